"""Your own code by its address, `module:name`: networks, data, rules, attacks."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from cpr_wrap._registry import Registry, unknown

T = TypeVar("T")
_asked_for: set[str] = set()  # modules that the caller named


def find(registry: Registry[T], name: str) -> T:
    """What a registry has under a name, or else what the address names; for names people typed."""
    thing: T = resolve(name) if ":" in name and name not in registry else registry[name]
    return thing


def resolve(address: str) -> Any:
    """Import what an address names; both parts may have dots, e.g. `models.cnn:Net.small`.

    Example:
        >>> resolve("math:floor")(2.5)
        2
    """
    module_name, colon, path = address.partition(":")
    if not colon or not all(part.isidentifier() for part in f"{module_name}.{path}".split(".")):
        hint = ""
        if module_name.endswith(".py"):
            dotted = ".".join(Path(module_name).with_suffix("").parts)
            hint = f"; a file is named as a module, like {dotted}:{path or 'Name'}"
        raise ValueError(
            f"expected an address like module:name, e.g. mynet:MyCNN, got {address!r}{hint}"
        )
    found: Any = import_module(module_name)
    where = module_name
    for name in path.split("."):
        if not hasattr(found, name):
            public = [each for each in dir(found) if not each.startswith("_")]
            raise LookupError(f"{address}: {unknown(f'name in {where}', name, public)}")
        found, where = getattr(found, name), f"{where}.{name}"
    return found


def call(what: str | Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Call a function or class, given itself or by its address; an error says what was called."""
    function = resolve(what) if isinstance(what, str) else what
    name = what if isinstance(what, str) else getattr(what, "__qualname__", repr(what))
    if not callable(function):
        raise TypeError(
            f"{name}: expected a class or a function, got an object of type "
            f"{type(function).__name__}"
        )
    try:
        return function(*args, **settings)
    except Exception as error:
        raise RuntimeError(f"{name} failed: {type(error).__name__}: {error}") from error


def trusted(address: str, folder: Path) -> str:
    """An address that a file in `folder` names, if its code is the caller's own.

    Files come from anybody. What they name is run only if it lies in the current folder, and that
    folder did not come with the file, or if the caller has imported it himself.
    """
    module = address.partition(":")[0]
    here, top = Path.cwd(), Path(module.partition(".")[0])
    there = top.is_dir() or top.with_suffix(".py").is_file()
    if module in _asked_for or (there and not here.is_relative_to(folder.resolve())):
        return address
    raise LookupError(
        f"{folder} needs {address!r}, code that is not in the current folder {here}; run this "
        f"in its folder or, if you trust it, import it: --import {module} (for a network also "
        "--network)"
    )


def import_module(name: str) -> ModuleType:
    """Import a module by its name, from the current folder first."""
    try:
        with _from_here():
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise RuntimeError(f"importing {name} failed: {error}") from error
        near = [file.stem for file in Path.cwd().glob("*.py")]
        raise LookupError(
            f"{unknown('module', name, near)}. Looked in the current folder {Path.cwd()} and where "
            "Python looks (PYTHONPATH, installed packages)"
        ) from error
    except Exception as error:
        raise RuntimeError(f"importing {name} failed: {type(error).__name__}: {error}") from error
    _asked_for.add(name)
    return module


@contextmanager
def _from_here() -> Iterator[None]:
    """Inside, modules of the current folder go first; afterward they go last."""
    here = os.getcwd()
    known = here in sys.path or "" in sys.path
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)
        if not known:
            sys.path.append(here)  # for imports inside the functions of such a module
