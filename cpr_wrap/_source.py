"""What a piece of code does, as text, so that stored work is not taken for that of changed code."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def plain_repr(thing: Any) -> str:
    """`repr` without places in memory, which change from run to run."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def source_text(thing: Any) -> str:
    """Describe code so that the text changes with what it computes.

    It is the source of the module that defines it, with defaults and what it closes over. Code
    without a readable source, e.g. typed at a prompt, tells its version in an attribute `revision`.

    Args:
        thing: A function, a class, a `functools.partial` or any other callable object.
    """
    if isinstance(thing, functools.partial):
        return f"{source_text(thing.func)} {thing.args!r} {sorted(thing.keywords.items())!r}"
    if inspect.ismethod(thing):
        return f"{source_text(thing.__func__)} {_state(thing.__self__)}"
    if not (inspect.isfunction(thing) or inspect.isclass(thing)):
        return f"{source_text(type(thing))} {_state(thing)}"
    name = f"{thing.__module__}.{thing.__qualname__}"
    revision = getattr(thing, "revision", None)
    if isinstance(revision, str | int):
        return f"{name} revision {revision}"
    line = thing.__code__.co_firstlineno if inspect.isfunction(thing) else 0  # tells lambdas apart
    return f"{name}:{line} {_closed(thing)} {_source(thing, name)}"


def _source(thing: Any, name: str) -> str:
    for place in (inspect.getmodule(thing), thing):
        try:
            if place is not None:
                return inspect.getsource(place)
        except (OSError, TypeError):
            continue
    raise ValueError(
        f"the source of {name} cannot be read, so work stored for it could be taken for that of "
        "other code; set an attribute `revision` on it and change that with the code"
    )


def _closed(thing: Any) -> str:
    """Defaults and plain values that a function closes over."""
    if not inspect.isfunction(thing):
        return ""
    cells = [cell.cell_contents for cell in thing.__closure__ or () if _filled(cell)]
    functions = [source_text(each) for each in cells if inspect.isfunction(each)]
    plain = [repr(each) for each in cells if isinstance(each, _PLAIN)]
    return " ".join([repr(thing.__defaults__), repr(thing.__kwdefaults__), *plain, *functions])


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # not filled yet
        return False


def _state(thing: Any) -> str:
    held = getattr(thing, "__dict__", {})
    return repr(sorted((k, v) for k, v in held.items() if isinstance(v, _PLAIN)))
