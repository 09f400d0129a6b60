"""A small plug-in for cpr-wrap, and a template for larger ones."""
