"""CROWN (Zhang et al. 2018): linear bounds, carried back through the layers to the input.

A row of coefficients A says that A h is to be bounded from below, h being the outputs of a layer.
Carried through a layer it becomes a row on that layer's inputs and a constant. Outputs of a
convolution read only a window of each map below: their rows are kept as windows at places of the
map, where the windows are smaller than the maps. Bounds are tightened only where that can matter.
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
    Pair,
    Relu,
    Reshape,
    gamma,
    hull,
)
from cpr_wrap.bounds.tape import Entry, record
from cpr_wrap.geometry import wide

_COEFFICIENTS = 4 * 10**6  # held at once: what a processor's cache can keep
_OUTPUTS = 2**14  # of all layers and images that are bounded together


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


@dataclass(frozen=True)
class _Rows:
    """Coefficients `(N, R, ...)` on the outputs of an entry."""

    values: Tensor
    window: Window | None = None  # which part of the map they are on; None for all of it
    places: Tensor | None = None  # the place of each row's window `(R,)`
    inside: bool = False  # whether they are known to be 0 outside the map

    def cut(self, maps: Tensor) -> Tensor:
        """The part of maps `(N, ...)` that goes with the coefficients; 0 outside the maps."""
        if self.window is None:
            return maps[:, None]
        size, window = self.window.kernel, self.window
        parts = F.unfold(maps, size, padding=window.padding, stride=window.stride).transpose(1, 2)
        cut: Tensor = parts[:, self.places].unflatten(2, (maps.shape[1], *size))
        return cut

    def dot(self, even: Tensor | None, uneven: Tensor) -> Tensor:
        """A * even - |A| * uneven, summed `(N, R)`; both `(N, ...)` like the entry's outputs.

        `uneven` grows by what the sums can be off by.
        """
        size = self.values.shape[2:].numel()
        room = uneven if even is None else uneven + 2 * gamma(size, uneven) * even.abs()
        total = -_sum(self.values.abs(), self.cut(room * (1 + 4 * gamma(size, room))))
        return total if even is None else total + _sum(self.values, self.cut(even))


def _sum(rows: Tensor, values: Tensor) -> Tensor:
    """Products summed over all but the first two dimensions, in float64 `(N, R)`."""
    rows, values = rows.flatten(2), values.flatten(2)
    if values.shape[1] == 1:
        return (rows @ values.transpose(1, 2)).squeeze(2).double()
    return (rows[:, :, None] @ values[..., None])[:, :, 0, 0].double()


def crown_leads(
    network: nn.Module,
    x: Tensor,
    label: Tensor,
    radius: float | Tensor,
    *,
    num_classes: int | None = None,
) -> Tensor:
    """Lower bounds on the margins of a class over every other class, in the whole ball.

    Args:
        network: Network on pixels, in eval mode.
        x: Centers `(N, ...)` in [0, 1].
        label: The classes `(N,)`.
        radius: Linf radius of the balls, or one per row `(N,)`.
        num_classes: k, if the network has more outputs than classes.

    Returns:
        Bounds `(N, k)`; infinite for the class itself.
    """
    radii = torch.as_tensor(radius, dtype=wide(x), device=x.device).expand(len(x))
    found, start, stop = [], 0, 1
    with torch.no_grad():
        while start < len(x):
            entries = record(network, ball(x[start:stop], radii[start:stop]), 1.0)
            _tighten(entries)
            found.append(_final(entries, label[start:stop], num_classes))
            outputs = sum(entry.shape.numel() for entry in entries)
            start, stop = stop, stop + max(1, _OUTPUTS // outputs)
    return torch.cat(found) if found else x.new_zeros(0, num_classes or 2)


def _final(entries: list[Entry], label: Tensor, num_classes: int | None) -> Tensor:
    last = entries[-1]
    k = last.shape[0] if num_classes is None else num_classes
    unit = torch.eye(last.shape[0], dtype=last.box.center.dtype, device=label.device)
    bound = _carry(entries, last, _Rows(unit[label][:, None] - unit[:k]))
    return bound.scatter(1, label[:, None], torch.inf).to(last.box.center.dtype)


def _tighten(entries: list[Entry]) -> None:
    """Replace the boxes of a recorded network by tighter ones, from the input on."""
    bent: set[int] = set()  # entries with a nonlinear one above them: interval bounds are not exact
    for entry in entries[1:]:
        assert entry.layer is not None
        curved = isinstance(entry.layer, Relu | MaxPool)
        below = any(id(parent) in bent for parent in entry.parents)
        if curved or below:
            bent.add(id(entry))
        if below:
            fresh = entry.layer.box(1.0, *(parent.box for parent in entry.parents))
            entry.box = _meet(entry.box, fresh.low, fresh.high)
        if below and not curved:
            _refine(entries, entry)


def _meet(box: Box, low: Tensor, high: Tensor) -> Box:
    """What two boxes have in common, rounded outward."""
    low = torch.maximum(box.widened(1.0).low, low)
    high = torch.minimum(box.widened(1.0).high, high)
    return hull(low, torch.maximum(low, high)).widened(1.0)


def _refine(entries: list[Entry], entry: Entry) -> None:
    """Tighten an entry's box where a ReLU or pooling that reads it can gain from that."""
    low, high = entry.box.low.flatten(1).clone(), entry.box.high.flatten(1).clone()
    needed = _needed(entries, entry).flatten(1).any(dim=0).nonzero().squeeze(1)
    if not len(needed):
        return
    window, width = _path(entries, entry)
    for part in needed.split(max(1, _COEFFICIENTS // (2 * width * len(low)))):
        places = None
        if window is None:
            rows = F.one_hot(part, low.shape[1]).view(1, -1, *entry.shape)
        else:
            area = entry.shape[1:].numel()
            places = (part % area).repeat(2)
            rows = F.one_hot(part // area, entry.shape[0])[None, :, :, None, None]
        both = torch.cat([rows, -rows], dim=1).to(low.dtype)
        whole = None if window is None else Window()
        found = _carry(entries, entry, _Rows(both, whole, places)).to(low.dtype)
        low[:, part], high[:, part] = found[:, : len(part)], -found[:, len(part) :]
    shape = entry.box.center.shape
    entry.box = _meet(entry.box, low.view(shape), high.view(shape))


def _needed(entries: list[Entry], entry: Entry) -> Tensor:
    """Which outputs of an entry `(N, ...)` a ReLU or pooling above it bends."""
    low, high = entry.box.low, entry.box.high
    needed = torch.zeros_like(low, dtype=torch.bool)
    for reader in entries:
        if entry not in reader.parents:
            continue
        if isinstance(reader.layer, Relu):
            needed |= (low < 0) & (high > 0)
        elif isinstance(reader.layer, MaxPool):
            floor = reader.layer.pool(low)
            above = [e.layer for e in entries if reader in e.parents]
            if above and all(isinstance(layer, Relu) for layer in above):
                floor = floor.relu()
            if not reader.layer.tiles(entry.shape):
                return torch.ones_like(needed)
            size = reader.layer.kernel
            needed |= high > floor.repeat_interleave(size[0], 2).repeat_interleave(size[1], 3)
    return needed


def _path(entries: list[Entry], entry: Entry) -> tuple[Window | None, int]:
    """The window on the input that an entry's rows end with, and the most numbers of a row.

    The window is None where whole maps are better.
    """
    widest = max(e.shape.numel() for e in entries)
    window, most = Window(), 1
    while entry.layer is not None:
        layer = entry.layer
        if len(entry.shape) != 3 or len(entry.parents) != 1:
            return None, widest
        entry = entry.parents[0]
        if isinstance(layer, Affine) and layer.window is not None:
            window = window.below(*layer.window)
        elif isinstance(layer, MaxPool) and layer.tiles(entry.shape):
            window = window.below(layer.kernel, layer.stride, (0, 0))
        elif not isinstance(layer, Relu) and not (isinstance(layer, Affine) and layer.pointwise):
            return None, widest
        most = max(most, entry.shape[0] * window.kernel[0] * window.kernel[1])
    smaller = window.kernel[0] * window.kernel[1] < entry.shape[1:].numel()
    return (window, most) if smaller else (None, widest)


def _carry(entries: list[Entry], start: Entry, rows: _Rows) -> Tensor:
    """Lower bounds `(N, R)` of rows on an entry's outputs, rounding included."""
    held = {id(start): rows}
    constant = torch.zeros((), dtype=torch.float64, device=rows.values.device)
    for entry in reversed(entries[: entries.index(start) + 1]):
        here = held.pop(id(entry), None)
        if here is None:
            continue
        if entry.layer is None:
            return constant + here.dot(entry.box.center, entry.box.radius)
        moved, added = _through(entry, here)
        constant = constant + added
        for parent, part in zip(entry.parents, moved, strict=True):
            before = held.get(id(parent))
            held[id(parent)] = part if before is None else _Rows(before.values + part.values)
    raise AssertionError("rows always reach the input")


def _through(entry: Entry, rows: _Rows) -> tuple[list[_Rows], Tensor]:
    """Rows on a layer's inputs, and the constant `(N, R)`."""
    layer, box, values = entry.layer, entry.parents[0].box, rows.values
    none = torch.zeros((), dtype=torch.float64, device=values.device)
    if isinstance(layer, Affine):
        return _through_affine(entry, layer, rows)
    if isinstance(layer, Relu):
        return _through_relu(box, rows)
    if isinstance(layer, MaxPool):
        return _through_pool(box, layer, rows)
    if isinstance(layer, Reshape):
        return [_Rows(values.reshape(*values.shape[:2], *box.shape))], none
    if isinstance(layer, Concat):
        return [_Rows(values[:, :, : layer.split]), _Rows(values[:, :, layer.split :])], none
    assert isinstance(layer, Add)
    size = box.size + entry.parents[1].box.size
    return [rows, rows], rows.dot(None, ROUNDING * gamma(4, size) * size)


def _through_affine(entry: Entry, layer: Affine, rows: _Rows) -> tuple[list[_Rows], Tensor]:
    box, values, window = entry.parents[0].box, rows.values, rows.window
    if window is not None and window.padding != (0, 0) and not rows.inside:
        # What a layer above read from its padding is no output of this one.
        values = values * rows.cut(torch.ones_like(entry.box.center[:1, :1]))
        rows = replace(rows, values=values)
    room = ROUNDING * gamma(max(layer.terms, layer.fan), values) * layer.size(box)
    lead = values.shape[:2]
    if window is None:
        even = None if layer.bias is None else layer.bias.expand_as(entry.box.center)
        added = rows.dot(even, room)
        return [_Rows(layer.back(values.flatten(0, 1)).unflatten(0, lead))], added
    added = _channels(values, layer.bias, room)  # is enough, and much quicker
    if layer.pointwise:
        return [
            replace(rows, values=values * rows.cut(layer.back(torch.ones_like(box.center[:1]))))
        ], added
    assert layer.window is not None
    assert layer.kernel is not None
    size, stride, padding = layer.window
    # As a product and a sum over windows this is quicker than conv_transpose2d.
    parts = layer.kernel.flatten(1).t() @ values.flatten(0, 1).flatten(2)
    whole = window.below(size, stride, (0, 0)).kernel
    back = F.fold(parts, whole, size, stride=stride).unflatten(0, lead)
    return [_Rows(back, window.below(size, stride, padding), rows.places)], added


def _channels(values: Tensor, bias: Tensor | None, room: Tensor) -> Tensor:
    """As `_Rows.dot` of windows, with the largest room of each channel."""
    size = values.shape[2:].numel()
    most = room.amax(dim=(2, 3))
    if bias is not None:
        bias = bias.expand(values.shape[2], 1, 1).flatten()
        most = most + 2 * gamma(size, room) * bias.abs()
    sizes = values.abs().flatten(3).sum(dim=3)  # (N, R, C)
    total = -(sizes @ (most * (1 + 4 * gamma(size, room)))[:, :, None])
    if bias is not None:
        total = total + values.flatten(3).sum(dim=3) @ bias[:, None]
    return total.squeeze(2).double()


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
    low, high = layer.windows(box.low), layer.windows(box.high)  # (N, C, K, L)
    lower = torch.zeros_like(low).scatter_(2, low.argmax(dim=2, keepdim=True), 1.0)
    tops, places = high.topk(2, dim=2)
    top, second, place = tops[:, :, :1], tops[:, :, 1:], places[:, :, :1]
    bottom = low.gather(2, place)
    floor, length = torch.maximum(bottom, second), top - bottom
    alone = bottom >= second
    slope = torch.where(alone, 1.0, (top - floor) / length.clamp_min(1e-30))
    upper = torch.zeros_like(high).scatter_(2, place, slope)
    size = layer.pool(box.size)
    shift = torch.where(alone, 0.0, floor - slope * bottom).view_as(size)
    room = ROUNDING * gamma(4, size) * size
    added = rows.dot(shift / 2, shift.abs() / 2 + (shift.abs() - shift) / 2 + room)
    middle, half, values, shape = (lower + upper) / 2, (lower - upper) / 2, rows.values, box.shape
    if not layer.tiles(shape):  # only on whole maps
        flat = values.flatten(3)[:, :, :, None]  # (N, R, C, 1, L)
        parts = flat * middle[:, None] + flat.abs() * half[:, None]
        maps = layer.joined(parts.flatten(0, 1), shape)
        return [_Rows(maps.unflatten(0, (-1, values.shape[1])))], added
    window = rows.window and rows.window.below(layer.kernel, layer.stride, (0, 0))
    below = replace(rows, window=window, inside=True)
    slopes = [
        below.cut(layer.joined(part, shape))
        .unflatten(4, (-1, layer.kernel[1]))
        .unflatten(3, (-1, layer.kernel[0]))
        for part in (middle, half)
    ]
    spread = _bent(values[:, :, :, :, None, :, None], *slopes)
    return [replace(below, values=spread.flatten(5, 6).flatten(3, 4))], added
