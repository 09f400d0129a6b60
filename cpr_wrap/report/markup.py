"""HTML and SVG from functions: text is escaped unless it is markup already."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any, TypeAlias

_VOID = frozenset({"img", "input", "link", "meta", "br"})


class Markup(str):
    """Text that is HTML already; only this module makes it, out of escaped pieces."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"
Attribute: TypeAlias = "str | float | bool | None"


def _inner(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int):
        return escape(str(child))
    return "".join(map(_inner, child))


def _attribute(name: str, value: Attribute) -> str:
    name = name.removesuffix("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(text)}"'


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """One element.

    Args:
        name: Its name, ours and never a user's.
        children: Text, which is escaped; markup, which is not; None, which is left out; or
            iterables of these.
        attributes: `class_` becomes `class`, `aria_sort` becomes `aria-sort`; None and False are
            left out, True stands alone.

    Example:
        >>> tag("p", "a < b", class_="note")
        '<p class="note">a &lt; b</p>'
    """
    kept = {k: v for k, v in attributes.items() if v is not None and v is not False}
    head = f"<{name}" + "".join(_attribute(k, v) for k, v in kept.items()) + ">"
    if name in _VOID:
        return Markup(head)
    return Markup(f"{head}{_inner(children)}</{name}>")


def join(*children: Child) -> Markup:
    """Children one after another, without an element around them."""
    return Markup(_inner(children))


def embedded_json(value: Any, identifier: str) -> Markup:
    """Data for the page's script; no `<` survives in it, so that no text can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{escape(identifier)}">{text}</script>')


def verbatim(text: str, element: str) -> Markup:
    """Our own style sheet or script in its element, as it is.

    Args:
        text: A package file, never text that came from outside.
        element: `style` or `script`.
    """
    if f"</{element}" in text.lower():
        raise ValueError(f"expected text without </{element}, which would end the element early")
    return Markup(f"<{element}>{text}</{element}>")
