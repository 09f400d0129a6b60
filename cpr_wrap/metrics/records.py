"""What an evaluation found, one row per image; all figures are computed from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cpr_wrap._checks import check_positive

CLEAN = "clean"  # the name under which a clean input's own answer is recorded
REJECTED = -1  # the label of a rejected input

# What each column holds, in the order of a row.
_COLUMNS: dict[str, Any] = {
    "index": torch.int64,
    "label": torch.int64,
    "clean_label": torch.int64,
    "outer_broken": torch.bool,
    "outer_distance": torch.float64,
    "rejected_radius": torch.float64,
    "boundary_distance": torch.float64,
    "depth": torch.float64,
    "base_label": torch.int64,
    "outer_by": str,
    "rejected_by": str,
}
_OPTIONAL = ("boundary_distance", "depth", "base_label")


def rounding(eps: float) -> float:
    """How far above a radius a measured distance may lie and still count as inside it.

    One spacing of float32 numbers at 1, times eps if eps is larger than 1. A pixel x + r stored in
    float32 is off by at most a quarter of it, r itself by another quarter, and a difference in
    float32 by a third quarter. L2 distances over very many pixels accumulate more than that, so
    record points that were projected slightly inside their ball.
    """
    return float(2.0**-23 * max(1.0, eps))


def inward(distance: Tensor, eps: float) -> Tensor:
    """Distances less the rounding allowance; all figures use these.

    So every comparison follows one rule, in favor of the adversary: a point that lies outside its
    radius by a rounding error counts as inside. A positive distance stays positive, because only
    the clean input is at 0.

    Args:
        distance: Distances, any shape, infinite ones included.
        eps: Adversarial budget.

    Returns:
        Distances in the same shape.
    """
    tiny = torch.full_like(distance, torch.finfo(distance.dtype).tiny)
    return torch.where(distance > 0, torch.maximum(distance - rounding(eps), tiny), distance)


def check_column(name: str, column: Any, kind: Any, count: int) -> None:
    """Refuse anything but a tuple of `count` strings, or a tensor `(count,)` of one dtype."""
    if kind is str:
        if not isinstance(column, tuple) or not all(isinstance(entry, str) for entry in column):
            raise TypeError(f"{name}: expected a tuple of strings, got {column!r:.60}")
    elif not isinstance(column, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(column).__name__}")
    elif column.dtype != kind:
        raise TypeError(f"{name}: expected {kind}, got {column.dtype}")
    elif column.device.type != "cpu":
        raise ValueError(f"{name}: expected a tensor on the CPU, got {column.device}")
    shape = tuple(column.shape) if isinstance(column, Tensor) else (len(column),)
    if shape != (count,):
        raise ValueError(
            f"{name}: expected one entry for each of the {count} images, got shape {shape}"
        )


def plain_rows(columns: Mapping[str, Tensor | Sequence[str]]) -> list[dict[str, Any]]:
    """One dictionary per entry of columns `(N,)`, ready for a line of JSON; inf becomes None."""
    plain = {
        name: [None if entry == math.inf else entry for entry in column.tolist()]
        if isinstance(column, Tensor)
        else column
        for name, column in columns.items()
    }
    return [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]


def distances(rows: Iterable[Mapping[str, Any]], name: str) -> Tensor:
    """A column of distances `(N,)` of rows as `plain_rows` makes them."""
    entries = [math.inf if row[name] is None else row[name] for row in rows]
    return torch.tensor(entries, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Per-image results of one evaluation, as columns on the CPU.

    Records are checked on creation; a record that contradicts itself is refused.

    Example:
        >>> import torch
        >>> inf = torch.inf
        >>> records = Records(
        ...     index=torch.arange(3),
        ...     label=torch.tensor([0, 1, 1]),
        ...     clean_label=torch.tensor([0, 1, -1]),  # the third image is rejected when clean
        ...     outer_broken=torch.tensor([True, False, False]),
        ...     outer_distance=torch.tensor([0.2, inf, inf], dtype=torch.float64),
        ...     outer_by=("CHCMOA", "", ""),
        ...     rejected_radius=torch.tensor([inf, 0.15, 0.0], dtype=torch.float64),
        ...     rejected_by=("", "LCIA", "clean"),
        ...     eps=0.3,
        ...     norm="Linf",
        ... )
        >>> records.first_broken_by()
        {'CHCMOA': 1}
    """

    index: Tensor  #: The image's number in its data set `(N,)`, int64, without duplicates.
    label: Tensor  #: True labels `(N,)`, int64.
    clean_label: Tensor  #: Answers to the clean inputs `(N,)`, int64, -1 where rejected.
    outer_broken: Tensor  #: Whether an accepted mistake was found within eps `(N,)`, bool.
    #: Distance of the nearest accepted mistake found `(N,)`, float64; 0 where the clean input is
    #: one, infinite where none was found.
    outer_distance: Tensor
    outer_by: tuple[str, ...]  #: Name of the attack that found it, `""` if none did.
    #: Smallest distance at which a rejected input was found `(N,)`, float64; 0 where the clean
    #: input is rejected, infinite where none was found.
    rejected_radius: Tensor
    rejected_by: tuple[str, ...]  #: Name of the attack that found it, `""` if none did.
    eps: float  #: Adversarial budget, in pixel units.
    norm: str  #: The norm of all distances, e.g. `Linf`.
    #: Smallest distance found to the base network's decision boundary `(N,)`, float64, infinite if
    #: none was found; None if not measured.
    boundary_distance: Tensor | None = None
    #: How far beyond that boundary a mistake within eps was found `(N,)`, float64, 0 if none was
    #: found; None if not measured.
    depth: Tensor | None = None
    #: The base network's own predictions for the clean inputs `(N,)`, int64; None if not recorded.
    base_label: Tensor | None = None

    def __post_init__(self) -> None:
        check_positive(self.eps, "eps")
        for name, kind in _COLUMNS.items():
            column = getattr(self, name)
            if column is not None or name not in _OPTIONAL:
                check_column(name, column, kind, len(self))
        if len(self.index.unique()) != len(self):
            raise ValueError("index: expected every image once, got duplicates")
        for wrong, rule in self._broken_rules():
            if bool(wrong.any()):
                row = int(wrong.int().argmax())
                entries = ", ".join(f"{k}={v!r}" for k, v in self.to_rows()[row].items())
                raise ValueError(f"{rule}; {int(wrong.sum())} rows do not, the first is {entries}")

    def __len__(self) -> int:
        return len(self.index)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Records):
            return NotImplemented
        mine, theirs = ((r.eps, r.norm, r.to_rows()) for r in (self, other))
        return mine == theirs

    def __repr__(self) -> str:
        return (
            f"Records({len(self)} images, {self.norm} eps={self.eps:g}: "
            f"{int(self.outer_broken.sum())} with an accepted mistake, "
            f"{int(self.rejected_radius.isfinite().sum())} made to be rejected, "
            f"{int((self.clean_label == REJECTED).sum())} of them clean)"
        )

    def _broken_rules(self) -> Iterator[tuple[Tensor, str]]:
        """The rules of records, each with the rows that break it `(N,)`."""
        held = {name: getattr(self, name) for name in _COLUMNS}
        for name in ("label", "base_label"):
            if held[name] is not None:
                yield held[name] < 0, f"{name}: expected a class number of at least 0"
        yield self.clean_label < REJECTED, "clean_label: expected a class number or -1"
        for name, kind in _COLUMNS.items():
            if kind == torch.float64 and held[name] is not None:
                # Written so that NaN is refused as well.
                yield ~(held[name] >= 0), f"{name}: expected a distance of at least 0, not NaN"
        met = self.outer_distance.isfinite()
        yield self.outer_broken != met, "outer_broken and a finite outer_distance go together"
        limit = self.eps + rounding(self.eps)
        for name, by in (("outer_distance", "outer_by"), ("rejected_radius", "rejected_by")):
            met = held[name].isfinite()
            beyond = f"{name}: expected a point within eps={self.eps:g}, or inf for none"
            yield met & (held[name] > limit), beyond
            named = torch.tensor([entry != "" for entry in held[by]], dtype=torch.bool)
            yield named != met, f"{by} and a finite {name} go together"
        rejected = self.clean_label == REJECTED
        mistaken = ~rejected & (self.clean_label != self.label)
        once = "the point at distance 0 is the clean input, so judge it once"
        yield (
            rejected != (self.rejected_radius == 0),
            "rejected_radius is 0 exactly where the clean input is rejected (clean_label -1); "
            + once,
        )
        yield (
            mistaken != (self.outer_distance == 0),
            f"outer_distance is 0 exactly where the clean input is accepted and wrong; {once}",
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per image, ready for a line of JSON; infinity becomes None."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        return plain_rows({name: held for name, held in columns.items() if held is not None})

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]], *, eps: float, norm: str) -> Records:
        """Make records from `to_rows` dictionaries; entries that are not columns are ignored."""
        rows = list(rows)
        columns: dict[str, Any] = {}
        for name, kind in _COLUMNS.items():
            if name in _OPTIONAL and (not rows or name not in rows[0]):
                continue
            missing = [row for row in rows if name not in row]
            if missing:
                raise LookupError(
                    f"expected every row to have {name!r}, got one with {sorted(missing[0])}"
                )
            if kind == torch.float64:
                columns[name] = distances(rows, name)
            else:
                entries = [row[name] for row in rows]
                columns[name] = tuple(entries) if kind is str else torch.tensor(entries, dtype=kind)
        return cls(**columns, eps=eps, norm=norm)

    def subset(self, rows: Tensor | Sequence[int]) -> Records:
        """The images at some positions: a mask `(N,)` or positions `(M,)` in the wanted order."""
        picked = torch.as_tensor(rows, device="cpu")
        if picked.dtype == torch.bool:
            if picked.shape != self.index.shape:
                raise ValueError(
                    f"expected a mask of shape ({len(self)},), got shape {tuple(picked.shape)}"
                )
            picked = picked.nonzero().flatten()
        held = self.to_rows()
        return self.from_rows([held[row] for row in picked.tolist()], eps=self.eps, norm=self.norm)

    def first_broken_by(self) -> dict[str, int]:
        """How many images each attack made accepted and wrong, the most successful first."""
        return _tally(self.outer_by)

    def first_rejected_by(self) -> dict[str, int]:
        """How many images each attack was the one to make rejected nearest, most first."""
        return _tally(self.rejected_by)


def _tally(names: tuple[str, ...]) -> dict[str, int]:
    return dict(Counter(name for name in names if name).most_common())
