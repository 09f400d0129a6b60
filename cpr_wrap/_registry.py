"""Names for things people can choose: rules, zoos, data sets, attacks, budgets, recipes.

A registry may belong to a group of entry points. Packages that declare entries in that group are
imported when a name is not known yet or all names are asked for, and not before.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import metadata
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
        self,
        kind: str,
        group: str | None = None,
        adopt: Callable[[str, Any], object] | None = None,
    ) -> None:
        """Make an empty registry.

        Args:
            kind: What is registered, for messages.
            group: Entry-point group in which other packages add to it, e.g. `cpr_wrap.rules`.
            adopt: Checks and enters what a package adds under a name; without it, all is entered.
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
            # LookupError, not KeyError: the latter prints its text as a quoted repr.
            hint = near(str(name), list(self))
            raise LookupError(f"unknown {self.kind} {name!r}.{hint} Known: {', '.join(self)}")
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


def unknown(kind: str, name: str, known: Collection[str]) -> LookupError:
    """An error for a name that is not among the known ones, with the nearest of them."""
    listed = f" Known: {', '.join(sorted(known)) or 'none'}" if len(known) <= 12 else ""
    return LookupError(f"unknown {kind} {name!r}.{near(name, known, 3)}{listed}")
