"""Settings of the documentation site; `.ci/docs OUT` builds it."""

from __future__ import annotations

import re
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from typer.cli import get_docs_for_click

import cpr_wrap
from cpr_wrap._registry import Registry
from cpr_wrap.cli import app as command_line

project = "cpr-wrap"
author = "the cpr-wrap contributors"
project_copyright = author
version = release = cpr_wrap.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_static", "_templates"]
templates_path = ["_templates"]

# Pages are Markdown. Links to headings are checked as far as three levels down.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebook is stored with its output; a slow test executes it
smartquotes = False  # it would turn --option into a dash

# Docstrings: Google's style, single backticks for code, types from the annotations.
default_role = "code"
autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True  # as in the source, not as objects print
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"cpr-wrap {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False


def _append_commands(app: Sphinx, docname: str, source: list[str]) -> None:
    """Write the reference of every command, as typer documents it, under the page `cli`."""
    if docname != "cli":
        return
    command = typer.main.get_command(command_line)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="cpr-wrap")
    text = text[text.index("**Usage**") :]  # the page has a title and an introduction
    text = re.sub(r"^Example: (.+)$", r"Example: `\1`", text, flags=re.MULTILINE)
    text = re.sub(r"(`[^`]*`)|(--[a-z][a-z-]+)", lambda m: m[1] or f"`{m[2]}`", text)
    start, end = text.index("**Commands**"), text.index("## ")  # typer cuts the sentences off
    source[0] += text[:start] + "**Commands**:\n\n"
    for name, one in command.commands.items():
        source[0] += f"- [`{name}`](#cpr-wrap-{name}): {one.help.splitlines()[0]}\n"
    source[0] += "\n" + text[end:]


def _has_a_page_of_its_own(
    app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object
) -> bool | None:
    """Leave a name out of a module's page if `cpr_wrap` or another module documents it."""
    if what != "module":
        return None
    module = app.env.docname.removeprefix("api/")
    home = getattr(obj, "__module__", None) or module
    return True if name in cpr_wrap.__all__ or not home.startswith(module) else None


def _describe_constants(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Say what a registry holds, and give other constants the text below their definition."""
    module, _, attribute = name.rpartition(".")
    if what != "data":
        return
    if isinstance(obj, Registry):
        names = ", ".join(f"``{entry}``" for entry in obj) or "none yet"
        lines[:] = [f"Every {obj.kind} by its name: {names}.", ""]
        lines += [f"``{attribute}.register(name)`` is a decorator that adds one."]
        if obj.group:
            lines += [f"Packages add their own by entry points in the group ``{obj.group}``."]
    elif module == "cpr_wrap":
        notes = ModuleAnalyzer.for_module(cpr_wrap._HOME_OF[attribute]).find_attr_docs()
        lines[:] = notes["", attribute]


def _plain_signature(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, to: str
) -> tuple[str | None, str]:
    """Write defaults that are objects as Python code, without which Sphinx cannot read the rest."""
    if signature and "<" in signature:
        signature = re.sub(r"\s*=\s*<factory>", " = ...", signature)
        signature = re.sub(r"<(?:class|function) '?(?:\w+\.)*(\w+)'?[^>]*>", r"\1", signature)
    return signature, to


def _leave_out_aliases(
    app: Sphinx, what: str, name: str, obj: Any, options: object, lines: list[str]
) -> None:
    """Take Python's "Alias for field number" from named tuples: the class describes its fields."""
    if what == "class" and issubclass(obj, tuple):
        for field in getattr(obj, "_fields", ()):
            getattr(obj, field).__doc__ = ""


def _set_dashes(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put a dash between a parameter and its description; Sphinx writes two hyphens."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("source-read", _append_commands)
    app.connect("autodoc-skip-member", _has_a_page_of_its_own)
    app.connect("autodoc-process-signature", _plain_signature)
    app.connect("autodoc-process-docstring", _describe_constants)
    app.connect("autodoc-process-docstring", _leave_out_aliases)
    app.connect("doctree-resolved", _set_dashes)
