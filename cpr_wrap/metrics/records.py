"""What an evaluation found, one row per image; all figures are computed from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cpr_wrap._checks import check_positive

CLEAN = "clean"  # the name under which a clean input's own answer is recorded
REJECTED = -1  # the label of a rejected input

_DTYPES = {
    "index": torch.int64,
    "label": torch.int64,
    "clean_label": torch.int64,
    "outer_broken": torch.bool,
    "outer_distance": torch.float64,
    "rejected_radius": torch.float64,
    "boundary_distance": torch.float64,
    "depth": torch.float64,
    "base_label": torch.int64,
}
_OPTIONAL = ("boundary_distance", "depth", "base_label")
_NAMES = ("outer_by", "rejected_by")
_COLUMNS = (*_DTYPES, *_NAMES)


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
        for name in (*_DTYPES, *_NAMES):
            self._check_column(name)
        if len(self.index.unique()) != len(self):
            raise ValueError("index: expected every image once, got duplicates")
        self._check_values()
        self._check_agreement()

    def __len__(self) -> int:
        return len(self.index)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Records):
            return NotImplemented
        mine, theirs = ((r.eps, r.norm, r.to_rows()) for r in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Records({len(self)} images, {self.norm} eps={self.eps:g}: "
            f"{int(self.outer_broken.sum())} with an accepted mistake, "
            f"{int(self.rejected_radius.isfinite().sum())} made to be rejected, "
            f"{int((self.clean_label == REJECTED).sum())} of them clean)"
        )

    def _check_column(self, name: str) -> None:
        column = getattr(self, name)
        if column is None and name in _OPTIONAL:
            return
        if name in _NAMES:
            if not isinstance(column, tuple) or not all(isinstance(entry, str) for entry in column):
                raise TypeError(f"{name}: expected a tuple of strings, got {column!r:.60}")
            shape: tuple[int, ...] = (len(column),)
        else:
            if not isinstance(column, Tensor):
                raise TypeError(f"{name}: expected a torch.Tensor, got {type(column).__name__}")
            if column.dtype != _DTYPES[name]:
                raise TypeError(f"{name}: expected {_DTYPES[name]}, got {column.dtype}")
            if column.device.type != "cpu":
                raise ValueError(f"{name}: expected a tensor on the CPU, got {column.device}")
            shape = tuple(column.shape)
        if shape != (len(self),):
            raise ValueError(
                f"{name}: expected one entry for each of the {len(self)} images, got shape {shape}"
            )

    def _check_values(self) -> None:
        limit = self.eps + rounding(self.eps)
        for name in _DTYPES:
            column = getattr(self, name)
            if column is None:
                continue
            if name in ("label", "base_label"):
                self._refuse(column < 0, f"{name}: expected a class number of at least 0")
            if _DTYPES[name] == torch.float64:
                # Written so that NaN is refused as well.
                self._refuse(~(column >= 0), f"{name}: expected a distance of at least 0, not NaN")
            if name in ("outer_distance", "rejected_radius"):
                inside = f"{name}: expected a point within eps={self.eps:g}, or inf for none"
                self._refuse(column.isfinite() & (column > limit), inside)
        self._refuse(self.clean_label < REJECTED, "clean_label: expected a class number or -1")

    def _check_agreement(self) -> None:
        broken, met = self.outer_distance.isfinite(), self.rejected_radius.isfinite()
        rejected = self.clean_label == REJECTED
        mistaken = ~rejected & (self.clean_label != self.label)
        once = "the point at distance 0 is the clean input, so judge it once"
        for wrong, rule in (
            (self.outer_broken != broken, "outer_broken and a finite outer_distance go together"),
            (_named(self.outer_by) != broken, "outer_by and a finite outer_distance go together"),
            (
                _named(self.rejected_by) != met,
                "rejected_by and a finite rejected_radius go together",
            ),
            (
                rejected != (self.rejected_radius == 0),
                "rejected_radius is 0 exactly where the clean input is rejected (clean_label -1); "
                + once,
            ),
            (
                mistaken != (self.outer_distance == 0),
                f"outer_distance is 0 exactly where the clean input is accepted and wrong; {once}",
            ),
        ):
            self._refuse(wrong, rule)

    def _refuse(self, wrong: Tensor, rule: str) -> None:
        if bool(wrong.any()):
            row = int(wrong.int().argmax())
            entries = ", ".join(f"{k}={v!r}" for k, v in self.to_rows()[row].items())
            raise ValueError(f"{rule}; {int(wrong.sum())} rows do not, the first is {entries}")

    def to_rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per image, ready for a line of JSON; infinity becomes None."""
        held = {name: getattr(self, name) for name in _COLUMNS}
        columns = {
            name: [None if v == math.inf else v for v in column.tolist()]
            if isinstance(column, Tensor)
            else column
            for name, column in held.items()
            if column is not None
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]], *, eps: float, norm: str) -> Records:
        """Make records from `to_rows` dictionaries; entries that are not columns are ignored."""
        rows = list(rows)
        columns: dict[str, Any] = {}
        for name in _COLUMNS:
            if name in _OPTIONAL and (not rows or name not in rows[0]):
                continue
            missing = [row for row in rows if name not in row]
            if missing:
                raise LookupError(
                    f"expected every row to have {name!r}, got one with {sorted(missing[0])}"
                )
            entries, dtype = [row[name] for row in rows], _DTYPES.get(name)
            if dtype == torch.float64:
                entries = [math.inf if entry is None else entry for entry in entries]
            columns[name] = torch.tensor(entries, dtype=dtype) if dtype else tuple(entries)
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
        picked, columns = picked.long(), dict[str, Any]()
        for name in _COLUMNS:
            column = getattr(self, name)
            if isinstance(column, Tensor):
                column = column[picked]
            elif column is not None:
                column = tuple(column[row] for row in picked.tolist())
            columns[name] = column
        return Records(**columns, eps=self.eps, norm=self.norm)

    def first_broken_by(self) -> dict[str, int]:
        """How many images each attack made accepted and wrong, the most successful first."""
        return _tally(self.outer_by)

    def first_rejected_by(self) -> dict[str, int]:
        """How many images each attack was the one to make rejected nearest, most first."""
        return _tally(self.rejected_by)


def _tally(names: tuple[str, ...]) -> dict[str, int]:
    return dict(Counter(name for name in names if name).most_common())


def _named(names: tuple[str, ...]) -> Tensor:
    return torch.tensor([name != "" for name in names], dtype=torch.bool)
