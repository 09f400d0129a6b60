"""CROWN (Zhang et al. 2018): linear bounds, carried back through the layers to the input.

A row of coefficients A says that A h is to be bounded from below, h being the outputs of a layer.
Carried through a layer it becomes a row on that layer's inputs and a constant. Rows of a
convolution's outputs read only a window of each map below; they are kept as windows, all places of
the map at once, where the windows are smaller than the maps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpr_wrap.bounds.interval import ball
from cpr_wrap.bounds.layers import (
    ROUNDING,
    Add,
    Affine,
    Box,
    Concat,
    MaxPool,
    Relu,
    Reshape,
    gamma,
    hull,
)
from cpr_wrap.bounds.tape import Entry, record
from cpr_wrap.geometry import wide

_ROWS = 256  # rows of whole maps that are carried back together
_NUMBERS = 3 * 10**7  # coefficients held at once

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Which part of a map the rows of each place read."""

    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)

    def below(self, kernel: Pair, stride: Pair, padding: Pair) -> Window:
        """The window on the input of a convolution or pooling."""
        pairs = zip(self.kernel, self.stride, self.padding, kernel, stride, padding, strict=True)
        found = [((k - 1) * s + n, t * s, p * s + q) for k, t, p, n, s, q in pairs]
        kernels, strides, paddings = zip(*found, strict=True)
        return Window(kernels, strides, paddings)

    def cut(self, values: Tensor) -> Tensor:
        """The windows of maps `(N, C, H, W)` as `(N, P, 1, C, h, w)`; 0 outside the maps."""
        parts = F.unfold(values, self.kernel, padding=self.padding, stride=self.stride)
        count, channels = values.shape[:2]
        return parts.transpose(1, 2).reshape(count, -1, 1, channels, *self.kernel)


def crown_leads(
    network: nn.Module,
    x: Tensor,
    label: Tensor,
    radius: float | Tensor,
    *,
    num_classes: int | None = None,
) -> Tensor:
    """Lower bounds of how far a class leads each other one, in the whole ball.

    Args:
        network: In eval mode; takes pixels.
        x: Centres `(N, ...)` in [0, 1].
        label: The classes `(N,)`.
        radius: Linf radius of the balls, or one per row `(N,)`.
        num_classes: k, where the network has more outputs than classes.

    Returns:
        Bounds `(N, k)`; infinite for the class itself.
    """
    radii = torch.as_tensor(radius, dtype=wide(x), device=x.device).expand(len(x))
    found, at_once = [], 0
    with torch.no_grad():
        start = 0
        while start < len(x):
            rows = slice(start, start + max(at_once, 1))
            entries = record(network, ball(x[rows], radii[rows]), 1.0)
            at_once = at_once or max(1, _NUMBERS // max(1, _widest(entries)))
            _tighten(entries)
            found.append(_final(entries, label[rows], num_classes))
            start = rows.stop
    return torch.cat(found) if found else x.new_zeros(0, num_classes or 2)


def _final(entries: list[Entry], label: Tensor, num_classes: int | None) -> Tensor:
    last = entries[-1]
    k = last.shape[0] if num_classes is None else num_classes
    unit = torch.eye(last.shape[0], dtype=last.box.center.dtype, device=label.device)
    rows = (unit[label][:, None] - unit[:k])[:, None]
    bound = _carry(entries, last, rows, None)[:, 0]
    return bound.scatter(1, label[:, None], torch.inf).to(last.box.center.dtype)


def _widest(entries: list[Entry]) -> int:
    """Coefficients that one image takes."""
    sizes = [_ROWS * entry.shape.numel() for entry in entries]
    for entry in _to_tighten(entries):
        window = _window_below(entries, entry)
        if window is not None:
            channels, height, width = entry.shape
            area = window.kernel[0] * window.kernel[1] * 64
            sizes.append(2 * channels * height * width * area)
    return max(sizes)


def _to_tighten(entries: list[Entry]) -> list[Entry]:
    """Entries that a ReLU or max pooling reads, and that interval bounds do not give exactly."""
    bent: set[int] = set()  # entries with a nonlinear one above them
    read = {
        id(parent) for e in entries if isinstance(e.layer, Relu | MaxPool) for parent in e.parents
    }
    for entry in entries:
        if isinstance(entry.layer, Relu | MaxPool) or any(id(p) in bent for p in entry.parents):
            bent.add(id(entry))
    return [e for e in entries if id(e) in bent & read and not isinstance(e.layer, Relu | MaxPool)]


def _tighten(entries: list[Entry]) -> None:
    """Replace the boxes of a recorded network by tighter ones, from the input on."""
    loose = {id(entry) for entry in _to_tighten(entries)}
    for entry in entries[1:]:
        if entry.layer is not None:
            fresh = entry.layer.box(1.0, *(parent.box for parent in entry.parents))
            entry.box = _meet(entry.box, fresh.low, fresh.high)
        if id(entry) in loose:
            window = _window_below(entries, entry)
            low, high = _all_rows(entries, entry) if window is None else _all_places(entries, entry)
            entry.box = _meet(entry.box, low, high)


def _meet(box: Box, low: Tensor, high: Tensor) -> Box:
    """What two boxes have in common, rounded outwards."""
    low = torch.maximum(box.widened(1.0).low, low)
    high = torch.minimum(box.widened(1.0).high, high)
    return hull(low, torch.maximum(low, high)).widened(1.0)


def _all_places(entries: list[Entry], entry: Entry) -> tuple[Tensor, Tensor]:
    """Bounds of all outputs of a convolution, by windows."""
    channels = entry.shape[0]
    unit = torch.eye(channels, dtype=entry.box.center.dtype, device=entry.box.center.device)
    rows = torch.cat([unit, -unit])[None, None, :, :, None, None]
    found = _carry(entries, entry, rows, Window())  # (N, P, 2C)
    low, high = found.transpose(1, 2).reshape(len(found), 2, *entry.shape).unbind(1)
    return low.to(unit.dtype), -high.to(unit.dtype)


def _all_rows(entries: list[Entry], entry: Entry) -> tuple[Tensor, Tensor]:
    """Bounds of the outputs of any layer, where they may be on either side of 0."""
    box = entry.box
    low, high = box.low.flatten(1).clone(), box.high.flatten(1).clone()
    pooled = any(isinstance(e.layer, MaxPool) and entry in e.parents for e in entries)
    open_ = torch.ones_like(low) if pooled else (low < 0) & (high > 0)
    for part in open_.bool().any(dim=0).nonzero().squeeze(1).split(_ROWS // 2):
        if not len(part):
            break
        rows = torch.zeros(len(part), low.shape[1], dtype=low.dtype, device=low.device)
        rows.scatter_(1, part[:, None], 1.0)
        both = torch.cat([rows, -rows]).view(1, 1, -1, *entry.shape)
        found = _carry(entries, entry, both, None)[:, 0].to(low.dtype)
        low[:, part], high[:, part] = found[:, : len(part)], -found[:, len(part) :]
    return low.view_as(box.center), high.view_as(box.center)


def _window_below(entries: list[Entry], entry: Entry) -> Window | None:
    """The window on the input that an entry's rows end with; None where whole maps are better."""
    window, folded = Window(), False
    while entry.layer is not None:
        layer = entry.layer
        if len(entry.shape) != 3 or len(entry.parents) != 1:
            return None
        if isinstance(layer, Affine) and layer.window is not None:
            window, folded = window.below(*layer.window), False
        elif isinstance(layer, MaxPool) and layer.apart(entry.parents[0].shape):
            if folded:
                return None
            window, folded = window.below(layer.kernel, layer.stride, (0, 0)), True
        elif not isinstance(layer, Relu) and not (isinstance(layer, Affine) and layer.pointwise):
            return None
        entry = entry.parents[0]
    _, height, width = entries[0].shape
    return window if window.kernel[0] * window.kernel[1] < height * width else None


@dataclass
class _Rows:
    """Coefficients `(N, P, M, ...)` on the outputs of an entry.

    Attributes:
        values: The coefficients.
        window: Which part of the map they are on; None for all of it.
        fold: They are on `pixel_unshuffle(map, fold)`: the numbers of a pooling's window are
            channels, which is quicker than long rows with gaps.
        inside: Whether they are known to be 0 outside the map.
    """

    values: Tensor
    window: Window | None
    fold: int = 1
    inside: bool = False

    def cut(self, values: Tensor) -> Tensor:
        """Numbers of a map `(N, ...)`, shaped to go with the coefficients."""
        values = F.pixel_unshuffle(values, self.fold) if self.fold > 1 else values
        return values[:, None, None] if self.window is None else self.window.cut(values)

    def unfolded(self) -> _Rows:
        """The same coefficients on whole maps."""
        return self if self.fold == 1 else _Rows(F.pixel_shuffle(self.values, self.fold), None)

    def dot(self, even: Tensor | None, uneven: Tensor) -> Tensor:
        """A * even - |A| * uneven, summed `(N, P, M)`; both `(N, ...)` like the entry's outputs.

        `uneven` grows by what the sums can be off by.
        """
        size = self.values.shape[3:].numel()
        room = uneven if even is None else uneven + 2 * gamma(size, uneven) * even.abs()
        total = -_sum(self.values.abs(), self.cut(room * (1 + 4 * gamma(size, room))))
        return total if even is None else total + _sum(self.values, self.cut(even))


def _sum(rows: Tensor, values: Tensor) -> Tensor:
    """Products summed over all but the first three dimensions, in float64 `(N, P, M)`."""
    rows, values = rows.flatten(3), values.flatten(3)
    return (rows @ values.transpose(2, 3)).squeeze(3).double()


def _carry(entries: list[Entry], start: Entry, rows: Tensor, window: Window | None) -> Tensor:
    """Lower bounds `(N, P, M)` of rows on an entry's outputs, rounding included."""
    held: dict[int, _Rows] = {id(start): _Rows(rows, window)}
    constant = torch.zeros((), dtype=torch.float64, device=rows.device)
    for entry in reversed(entries[: entries.index(start) + 1]):
        here = held.pop(id(entry), None)
        if here is None:
            continue
        if entry.layer is None:
            box = entry.box
            return constant + here.dot(box.center, box.radius)
        moved, added = _through(entry, here)
        constant = constant + added
        for parent, part in zip(entry.parents, moved, strict=True):
            before = held.get(id(parent))
            held[id(parent)] = part if before is None else _sum_of(before, part)
    raise AssertionError("rows always reach the input")


def _sum_of(first: _Rows, second: _Rows) -> _Rows:
    """The sum of coefficients on whole maps that reached an entry by two ways."""
    return _Rows(first.unfolded().values + second.unfolded().values, None)


def _through(entry: Entry, rows: _Rows) -> tuple[list[_Rows], Tensor]:
    """Rows on a layer's inputs, and the constant `(N, P, M)`."""
    layer, box = entry.layer, entry.parents[0].box
    if rows.fold > 1 and not isinstance(layer, Affine | Relu | MaxPool):
        rows = rows.unfolded()
    none = torch.zeros((), dtype=torch.float64, device=rows.values.device)
    if isinstance(layer, Affine):
        return _through_affine(entry, layer, rows)
    if isinstance(layer, Relu):
        return _through_relu(box, rows)
    if isinstance(layer, MaxPool):
        return _through_pool(box, layer, rows)
    lead, values = rows.values.shape[:3], rows.values
    if isinstance(layer, Reshape):
        back = layer.back(values.flatten(0, 2))
        return [_Rows(back.view(*lead, *back.shape[1:]), None)], none
    if isinstance(layer, Concat):
        first, second = values[:, :, :, : layer.split], values[:, :, :, layer.split :]
        return [_Rows(first, None), _Rows(second, None)], none
    assert isinstance(layer, Add)
    size = entry.parents[0].box.size + entry.parents[1].box.size
    return [rows, rows], rows.dot(None, ROUNDING * gamma(4, size) * size)


def _through_affine(entry: Entry, layer: Affine, rows: _Rows) -> tuple[list[_Rows], Tensor]:
    rows = rows.unfolded() if rows.window is None else rows
    box, values, window = entry.parents[0].box, rows.values, rows.window
    if window is not None and window.padding != (0, 0) and not rows.inside:
        # What a layer above read from its padding is no output of this one.
        values = values * window.cut(torch.ones_like(entry.box.center[:1, :1]))
        rows = replace(rows, values=values)
    room = ROUNDING * gamma(max(layer.terms, layer.fan), values) * layer.size(box)
    even = None if layer.bias is None else layer.bias.expand_as(entry.box.center)
    added = rows.dot(even, room)
    lead = values.shape[:3]
    if window is None:
        back = layer.back(values.flatten(0, 2))
        return [_Rows(back.view(*lead, *back.shape[1:]), None)], added
    if layer.pointwise:
        return [replace(rows, values=values * rows.cut(layer.factor(box.center[:1])))], added
    assert layer.window is not None
    assert layer.kernel is not None
    kernel, (size, stride, padding) = layer.kernel, layer.window
    if rows.fold > 1:
        kernel, size = _shifted(kernel, stride, rows.fold), _grown((rows.fold,) * 2, size, stride)
        stride = stride[0] * rows.fold, stride[1] * rows.fold
    # As a product and a sum over windows this is quicker than conv_transpose2d.
    parts = kernel.flatten(1).t() @ values.flatten(0, 2).flatten(2)
    back = F.fold(parts, _grown(window.kernel, size, stride), size, stride=stride)
    below = window.below(size, stride, padding)
    return [_Rows(back.view(*lead, *back.shape[1:]), below)], added


def _grown(shape: Pair, kernel: Pair, stride: Pair) -> Pair:
    """The size of a window below a convolution."""
    high, wide = ((n - 1) * s + k for n, k, s in zip(shape, kernel, stride, strict=True))
    return high, wide


def _shifted(kernel: Tensor, stride: Pair, fold: int) -> Tensor:
    """The kernel of a convolution whose outputs are unshuffled: one channel for each shift."""
    outputs, inputs, high, wide = kernel.shape
    size = _grown((fold, fold), (high, wide), stride)
    found = kernel.new_zeros(outputs, fold, fold, inputs, *size)
    for i in range(fold):
        for j in range(fold):
            top, left = i * stride[0], j * stride[1]
            found[:, i, j, :, top : top + high, left : left + wide] = kernel
    return found.flatten(0, 2)


def _through_relu(box: Box, rows: _Rows) -> tuple[list[_Rows], Tensor]:
    low, high, size = box.low, box.high, box.size
    crossing = (low < 0) & (high > 0)
    upper = torch.where(crossing, high / (high - low), (low >= 0).to(low.dtype))
    shift = torch.where(crossing, -low * upper, torch.zeros_like(low))
    lower = torch.where(crossing, (high > -low).to(low.dtype), upper)
    room = ROUNDING * gamma(4, low) * size
    middle, half = rows.cut((lower + upper) / 2), rows.cut((lower - upper) / 2)
    bent = replace(rows, values=_bent(rows.values, middle, half), inside=True)
    return [bent], rows.dot(shift / 2, shift / 2 + room)


def _bent(values: Tensor, middle: Tensor, half: Tensor) -> Tensor:
    """Coefficients times one slope where they are positive, and another where negative."""
    shape = torch.broadcast_shapes(values.shape, middle.shape)
    found = torch.empty(shape, dtype=values.dtype, device=values.device)  # in plain memory order
    return torch.mul(values, middle, out=found).addcmul_(values.abs(), half)


def _through_pool(box: Box, layer: MaxPool, rows: _Rows) -> tuple[list[_Rows], Tensor]:
    """At least the number with the largest lower bound; at most a line in the one with the largest.

    With u the largest upper bound of a window, of a number in [l, u], and v the second largest
    upper bound, the maximum is at most max(x, v), and that at most the line from (l, max(l, v)) to
    (u, u).
    """
    if rows.fold > 1:
        assert rows.window is None
        rows = rows.unfolded()
    low, high = layer.windows(box.low), layer.windows(box.high)  # (N, C, K, L)
    best = low.argmax(dim=2, keepdim=True)
    lower = torch.zeros_like(low).scatter_(2, best, 1.0)
    tops, places = high.topk(2, dim=2)
    top, second, place = tops[:, :, :1], tops[:, :, 1:], places[:, :, :1]
    bottom = low.gather(2, place)
    floor = torch.maximum(bottom, second)
    wide = top - bottom
    slope = torch.where(wide > 0, (top - floor) / wide.clamp_min(1e-30), torch.ones_like(wide))
    slope = torch.where(bottom >= second, torch.ones_like(slope), slope)
    upper = torch.zeros_like(high).scatter_(2, place, slope)
    size = layer.pool(box.size)
    shift = (floor - slope * bottom).view_as(size)
    shift = torch.where((bottom >= second).view_as(size), torch.zeros_like(shift), shift)
    room = ROUNDING * gamma(4, size) * size
    added = rows.dot(shift / 2, shift.abs() / 2 + (shift.abs() - shift) / 2 + room)
    if not layer.apart(box.center.shape[1:]):
        return [_spread(rows, layer, lower, upper, box)], added
    # (N, C, K, L) to (N, C * K, H', W'), as pixel_unshuffle has them; one coefficient for all K.
    flat = _Rows(rows.values, rows.window)
    middle, half = (
        flat.cut(part.flatten(1, 2).unflatten(2, size.shape[2:])).unflatten(3, (-1, low.shape[2]))
        for part in ((lower + upper) / 2, (lower - upper) / 2)
    )
    values = _bent(rows.values[:, :, :, :, None], middle, half).flatten(3, 4)
    return [_Rows(values, rows.window, fold=layer.kernel[0], inside=True)], added


def _spread(rows: _Rows, layer: MaxPool, lower: Tensor, upper: Tensor, box: Box) -> _Rows:
    """Coefficients on the inputs of windows that overlap or leave a rest, for whole maps."""
    places, number = rows.values.shape[1:3]
    flat = rows.values.flatten(4)[:, :, :, :, None]  # (N, 1, M, C, 1, L)
    middle, half = ((lower + upper) / 2)[:, None, None], ((lower - upper) / 2)[:, None, None]
    parts = (flat * middle + flat.abs() * half).flatten(0, 2).flatten(1, 2)
    maps = layer.joined(parts, box.center.shape[1:])
    return _Rows(maps.view(-1, places, number, *box.center.shape[1:]), None)
