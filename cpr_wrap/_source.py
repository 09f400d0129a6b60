"""What a piece of code does, as text, so that stored work is not taken for that of changed code."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from cpr_wrap._files import digest

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_DATA = (Tensor, np.ndarray, np.generic, nn.Module, Mapping, tuple, list, set)


def plain_repr(thing: Any) -> str:
    """`repr` without places in memory, which change from run to run."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def source_text(thing: Any, seen: list[Any] | None = None) -> str:
    """Describe code so that the text changes with what it computes.

    It is the source of the module that defines it, with defaults and what it closes over, however
    deep; what was `seen` on the way is not described again. Code without a readable source, e.g.
    typed at a prompt, tells its version in an attribute `revision`.
    """
    seen = [] if seen is None else seen
    if isinstance(thing, functools.partial):
        given = [thing.args, thing.keywords]
        return f"{source_text(thing.func, seen)} {value_text(given, 3, seen)}"
    if inspect.ismethod(thing):
        return f"{source_text(thing.__func__, seen)} {_state(thing.__self__, seen)}"
    if not (inspect.isfunction(thing) or inspect.isclass(thing)):
        return f"{source_text(type(thing), seen)} {_state(thing, seen)}"
    name = _name(thing)
    revision = getattr(thing, "revision", None)
    if isinstance(revision, str | int):
        return f"{name} revision {revision}"
    if again := _noted(thing, seen):
        return f"{name} {again}"
    line = thing.__code__.co_firstlineno if inspect.isfunction(thing) else 0  # tells lambdas apart
    return f"{name}:{line} {_closed(thing, seen)} {_source(thing, name)}"


def _noted(thing: Any, seen: list[Any]) -> str:
    """Which of those seen a thing is; if it is new, note it."""
    for number, other in enumerate(seen):
        if other is thing:
            return f"again {number}"
    seen.append(thing)
    return ""


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


def value_text(value: Any, depth: int = 3, seen: list[Any] | None = None) -> str:
    """Describe a value so that the text changes with it, and is the same in every process.

    Tensors, arrays and networks by digest, code by its source, other objects by what they hold,
    `depth` objects deep.
    """
    seen = [] if seen is None else seen
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, Tensor):
        return digest(value)
    if isinstance(value, np.ndarray | np.generic):
        return digest(f"{value.dtype}{value.shape}", value.tobytes())
    if isinstance(value, Mapping):
        return value_text(sorted((str(key), held) for key, held in value.items()), depth, seen)
    if isinstance(value, tuple | list):
        return f"[{', '.join(value_text(each, depth, seen) for each in value)}]"
    if isinstance(value, set | frozenset):
        # The order of a set differs from run to run, so that its members know nothing of others.
        return f"[{', '.join(sorted(value_text(each, depth, [*seen]) for each in value))}]"
    if isinstance(value, nn.Module):
        held = (part for pair in sorted(value.state_dict().items()) for part in pair)
        return digest(plain_repr(value), *(p for p in held if isinstance(p, str | Tensor)))
    if inspect.isroutine(value) or isinstance(value, type | functools.partial):
        try:
            return _name(value) if _is_foreign(value) else source_text(value, seen)
        except ValueError:
            return _name(value)
    if not hasattr(value, "__dict__") or depth == 0:
        return plain_repr(value) if depth else type(value).__qualname__
    return f"{type(value).__qualname__} {value_text(vars(value), depth - 1, seen)}"


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"


def _is_foreign(thing: Any) -> bool:
    """Whether code is Python's or torch's own: its name tells enough."""
    home = str(getattr(thing, "__module__", None)).split(".")[0]
    return inspect.isbuiltin(thing) or home in ("None", "builtins", "torch")


def _closed(thing: Any, seen: list[Any]) -> str:
    """Defaults, and what a function closes over."""
    if not inspect.isfunction(thing):
        return ""
    parts = [repr(thing.__defaults__), repr(thing.__kwdefaults__)]
    for cell in thing.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if inspect.isfunction(held):
            parts.append(source_text(held, seen))
        elif isinstance(held, (*_PLAIN, *_DATA)):
            parts.append(value_text(held, 3, seen))
    return " ".join(parts)


def _state(thing: Any, seen: list[Any]) -> str:
    return _noted(thing, seen) or value_text(getattr(thing, "__dict__", {}), 3, seen)
