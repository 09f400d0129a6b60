"""Names for things people can choose: rules, zoos, data sets, recipes, attacks."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """A mapping from names to objects that refuses duplicates and suggests near misses.

    Example:
        >>> colours: Registry[str] = Registry("colour")
        >>> _ = colours.register("green")("#0f0")
        >>> colours["gren"]
        Traceback (most recent call last):
        ...
        LookupError: unknown colour 'gren'. Did you mean 'green'? Known: green
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that enters its argument under `name`."""

        def enter(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered already; choose another name")
            self._entries[name] = entry
            return entry

        return enter

    def __getitem__(self, name: str) -> T:
        if name in self._entries:
            return self._entries[name]
        spelled = {known.lower(): known for known in self._entries}
        close = difflib.get_close_matches(str(name).lower(), spelled, n=1)
        hint = f" Did you mean {spelled[close[0]]!r}?" if close else ""
        # LookupError, not KeyError: the latter prints its text as a quoted repr.
        raise LookupError(f"unknown {self.kind} {name!r}.{hint} Known: {', '.join(self)}")

    def get(self, name: str, default: Any = None) -> Any:
        """The entry, or `default` where there is none."""
        return self._entries.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)
