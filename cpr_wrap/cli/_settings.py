"""Settings of any rule from the command line: `--set name=value`, read by the rule's own types."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from cpr_wrap.cli.options import fraction

if TYPE_CHECKING:
    from cpr_wrap.rule import RejectionRule

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def rule_options(rule: type[RejectionRule], pairs: Sequence[str]) -> dict[str, Any]:
    """Read `name=value` pairs as settings of a rule.

    Args:
        rule: The rule's class.
        pairs: As typed.
    """
    from cpr_wrap._registry import near

    hints = typing.get_type_hints(rule) if pairs else {}
    known = [field.name for field in dataclasses.fields(rule)]
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise typer.BadParameter(f"--set: expected NAME=VALUE, got {pair!r}")
        if name not in known:
            hint = near(name, known)
            raise typer.BadParameter(
                f"rule {rule.name!r} has no setting {name!r}.{hint} Its settings: "
                f"{', '.join(known)}"
            )
        settings[name] = _read(name, text.strip(), hints[name])
    return settings


def _read(name: str, text: str, kind: Any) -> Any:
    """A value of a type, from text."""
    origin, choices = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if type(None) in choices and text.lower() == "none":
            return None
        return _read(name, text, next(c for c in choices if c is not type(None)))
    if origin is typing.Literal:
        known = {str(choice): choice for choice in choices}
        if text not in known:
            raise typer.BadParameter(f"{name}: expected one of {', '.join(known)}, got {text!r}")
        return known[text]
    try:
        if kind is bool:
            return _WORDS[text.lower()]
        if kind is int:
            return int(text)
        if kind is float:
            return -fraction(text[1:]) if text.startswith("-") else fraction(text)
    except (KeyError, ValueError, typer.BadParameter) as error:
        raise typer.BadParameter(f"{name}: expected {_named(kind)}, got {text!r}") from error
    if kind is str:
        return text
    raise typer.BadParameter(f"{name} cannot be set from the command line")


def _named(kind: type) -> str:
    return {bool: "yes or no", int: "a whole number", float: "a number"}[kind]
