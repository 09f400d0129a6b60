"""Yardsticks for the library itself, not needed to use it."""
