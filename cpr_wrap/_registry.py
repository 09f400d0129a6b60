"""Names for things people can choose, and addresses `module:name` of their own code.

A registry may belong to a group of entry points. Packages that declare entries in that group are
imported when a name is not known yet or all names are asked for, and not before.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


def near(name: str, known: Collection[str], most: int = 1) -> str:
    """A hint at the known names most like `name`, as the end of a sentence; may be empty."""
    spelled = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), spelled, n=most)
    return f" Did you mean {' or '.join(repr(spelled[each]) for each in close)}?" if close else ""


class Registry(Mapping[str, T]):
    """A mapping from names to objects that refuses duplicates and suggests near misses.

    Example:
        >>> colors: Registry[str] = Registry("color")
        >>> _ = colors.register("green")("#0f0")
        >>> colors["gren"]
        Traceback (most recent call last):
        ...
        LookupError: unknown color 'gren'. Did you mean 'green'? Known: green
    """

    def __init__(
        self, kind: str, group: str | None = None, adopt: Callable[[str, Any], object] | None = None
    ) -> None:
        """Make an empty registry of some kind of thing, the word for messages.

        Other packages add to it in the entry-point group, e.g. `cpr_wrap.rules`. `adopt` checks and
        enters what they add under a name; without it, all is entered.
        """
        self.kind, self.group = kind, group
        self._adopt = adopt or (lambda name, thing: self.register(name)(thing))
        self._entries: dict[str, T] = {}
        self._plugins_loaded = group is None

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that enters its argument under `name`."""

        def enter(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered already; choose another name")
            self._entries[name] = entry
            return entry

        return enter

    def _load_plugins(self) -> None:
        """Import what other packages add. A plug-in that fails is named in a warning."""
        if self._plugins_loaded or self.group is None:
            return
        self._plugins_loaded = True
        for point in metadata.entry_points(group=self.group):
            try:
                thing = point.load()
                # Importing may have registered it, e.g. by a decorator.
                if self._entries.get(point.name) is not thing:
                    self._adopt(point.name, thing)
            except (Exception, SystemExit) as error:
                owner = point.dist.name if point.dist is not None else "an unknown package"
                warnings.warn(
                    f"{self.kind} {point.name!r} of {owner} could not be loaded: "
                    f"{type(error).__name__}: {error}",
                    stacklevel=4,
                )

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise unknown(self.kind, name, list(self), at_most=len(self))
        return self._entries[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The entry, or `default` where there is none."""
        return self._entries[name] if name in self else default

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self._load_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        self._load_plugins()
        return len(self._entries)


def unknown(kind: str, name: str, known: Collection[str], *, at_most: int = 12) -> LookupError:
    """An error for a name that is not among the known ones, with the nearest of them.

    All are listed if they are `at_most` so many.

    Not a KeyError, which prints its text as a quoted repr.
    """
    listed = f" Known: {', '.join(sorted(known)) or 'none'}" if len(known) <= at_most else ""
    return LookupError(f"unknown {kind} {name!r}.{near(str(name), known, 3)}{listed}")


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
