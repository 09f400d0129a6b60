"""What a function does, as text: so that stored work is not taken for that of changed code."""

from __future__ import annotations

import functools
import types
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def code_text(thing: Any) -> str:
    """Describe a function so that the text changes with what it computes.

    Read are its instructions, constants, defaults, what it closes over, and the functions and plain
    values of its module that it names; modules and classes that it names are taken as they are.

    Args:
        thing: A function, a `functools.partial`, any other callable, or a plain value.
    """
    return _text(thing, set())


def _text(thing: Any, seen: set[int]) -> str:
    if isinstance(thing, _PLAIN):
        return repr(thing)
    if isinstance(thing, types.CodeType):
        parts = [_text(part, seen) for part in thing.co_consts]
        return f"code({thing.co_code.hex()} {thing.co_names} {' '.join(parts)})"
    if isinstance(thing, (tuple, list, set, frozenset)):
        parts = [_text(part, seen) for part in thing]
        return f"({' '.join(parts if isinstance(thing, (tuple, list)) else sorted(parts))})"
    if isinstance(thing, dict):
        return f"{{{' '.join(f'{key}:{_text(thing[key], seen)}' for key in sorted(thing))}}}"
    if isinstance(thing, types.MethodType):
        return _text(thing.__func__, seen) + _text(thing.__self__, seen)
    if isinstance(thing, functools.partial):
        return " ".join(_text(part, seen) for part in (thing.func, thing.args, thing.keywords))
    if isinstance(thing, types.FunctionType):
        return _function_text(thing, seen)
    kind = thing if isinstance(thing, type) else type(thing)
    name = f"{kind.__module__}.{kind.__qualname__}"
    call = getattr(kind, "__call__", None)  # noqa: B004 - the function itself is wanted
    if kind is thing or not isinstance(call, types.FunctionType):
        return name
    state = {key: value for key, value in vars(thing).items() if isinstance(value, _PLAIN)}
    return f"{name} {_text(call, seen)} {_text(state, seen)}"


def _function_text(function: types.FunctionType, seen: set[int]) -> str:
    if id(function) in seen:
        return function.__qualname__
    seen.add(id(function))
    code, world = function.__code__, function.__globals__
    closed = []
    for cell in function.__closure__ or ():
        try:
            closed.append(_text(cell.cell_contents, seen))
        except ValueError:  # not filled yet
            closed.append("-")
    named = {
        name: _text(world[name], seen)
        for name in code.co_names
        if name in world
        and isinstance(world[name], (*_PLAIN, types.FunctionType, functools.partial))
    }
    parts = (
        _text(code, seen),
        _text(function.__defaults__, seen),
        _text(function.__kwdefaults__, seen),
        " ".join(closed),
        _text(named, seen),
    )
    return " ".join(parts)
