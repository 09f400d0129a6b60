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


def source_text(thing: Any, depth: int = 3) -> str:
    """Describe code so that the text changes with what it computes.

    It is the source of the module that defines it, with defaults and what it closes over, `depth`
    functions and objects deep. Code without a readable source, e.g. typed at a prompt, tells its
    version in an attribute `revision`.
    """
    if isinstance(thing, functools.partial):
        return f"{source_text(thing.func, depth)} {value_text([thing.args, thing.keywords], depth)}"
    if inspect.ismethod(thing):
        return f"{source_text(thing.__func__, depth)} {_state(thing.__self__, depth)}"
    if not (inspect.isfunction(thing) or inspect.isclass(thing)):
        return f"{source_text(type(thing), depth)} {_state(thing, depth)}"
    name = _name(thing)
    if depth == 0:
        return name
    revision = getattr(thing, "revision", None)
    if isinstance(revision, str | int):
        return f"{name} revision {revision}"
    line = thing.__code__.co_firstlineno if inspect.isfunction(thing) else 0  # tells lambdas apart
    return f"{name}:{line} {_closed(thing, depth - 1)} {_source(thing, name)}"


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


def value_text(value: Any, depth: int = 3) -> str:
    """Describe a value so that the text changes with it, and is the same in every process.

    Tensors, arrays and networks by digest, code by its source, other objects by what they hold,
    `depth` objects deep.
    """
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, Tensor):
        return digest(value)
    if isinstance(value, np.ndarray | np.generic):
        return digest(f"{value.dtype}{value.shape}", value.tobytes())
    if isinstance(value, Mapping):
        return value_text(sorted((str(key), held) for key, held in value.items()), depth)
    if isinstance(value, tuple | list | set | frozenset):
        parts = [value_text(each, depth) for each in value]
        return f"[{', '.join(parts if isinstance(value, tuple | list) else sorted(parts))}]"
    if isinstance(value, nn.Module):
        held = (part for pair in sorted(value.state_dict().items()) for part in pair)
        return digest(plain_repr(value), *(p for p in held if isinstance(p, str | Tensor)))
    if inspect.isroutine(value) or isinstance(value, type | functools.partial):
        try:
            return _name(value) if _is_foreign(value) else source_text(value, depth)
        except ValueError:
            return _name(value)
    if not hasattr(value, "__dict__") or depth == 0:
        return plain_repr(value) if depth else type(value).__qualname__
    return f"{type(value).__qualname__} {value_text(vars(value), depth - 1)}"


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"


def _is_foreign(thing: Any) -> bool:
    """Whether code is Python's or torch's own: its name tells enough."""
    home = str(getattr(thing, "__module__", None)).split(".")[0]
    return inspect.isbuiltin(thing) or home in ("None", "builtins", "torch")


def _closed(thing: Any, depth: int) -> str:
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
            parts.append(source_text(held, depth))
        elif isinstance(held, (*_PLAIN, *_DATA)):
            parts.append(value_text(held, depth))
    return " ".join(parts)


def _state(thing: Any, depth: int) -> str:
    return value_text(getattr(thing, "__dict__", {}), depth)
