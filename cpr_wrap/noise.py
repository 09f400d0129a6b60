"""Randomness without state: numbers are a function of their key.

A random start must depend on (seed, image, attack, target, restart) and on nothing else, not on
the batch it happened to be in and not on what was drawn before. So we hash the key with integer
tensor operations (the SplitMix64 finalizer), on whatever device the key is on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical shift of signed 64-bit integers (torch's `>>` repeats the sign bit)."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    value = (value ^ _shift_right(value, 30)) * _MIX_1
    value = (value ^ _shift_right(value, 27)) * _MIX_2
    return value ^ _shift_right(value, 31)


def _tensor(number: int, device: torch.device) -> Tensor:
    """Any integer as a 64-bit one, modulo 2 ** 64; only tensors multiply with wrap-around."""
    wrapped = (number + 2**63) % 2**64 - 2**63
    return torch.full((), wrapped, dtype=torch.int64, device=device)


def keys(seed: int, *parts: int | Tensor) -> Tensor:
    """Hash a seed and integers, e.g. image numbers `(N,)`, into int64 keys of their joint shape."""
    device = next((p.device for p in parts if isinstance(p, Tensor)), torch.device("cpu"))
    key = _tensor(seed, device)
    for part in parts:
        number = part.long() if isinstance(part, Tensor) else _tensor(part, device)
        key = _mix(_mix(key + _GOLDEN) ^ (number * _MIX_1 + _GOLDEN))
    return _mix(key + _GOLDEN)


def uniform(key: Tensor, count: int) -> Tensor:
    """Numbers in [0, 1) `(N, count)` of keys `(N,)`, float64 (float32 where there is none)."""
    counter = torch.arange(1, count + 1, dtype=torch.int64, device=key.device)
    bits = _mix(key[:, None] + counter * _GOLDEN)
    dtype, kept = (torch.float32, 24) if key.device.type == "mps" else (torch.float64, 53)
    return _shift_right(bits, 64 - kept).to(dtype) * 2.0**-kept


def normal(key: Tensor, count: int) -> Tensor:
    """Standard normal numbers `(N, count)` of keys `(N,)`, by Box and Muller's transform."""
    half = (count + 1) // 2
    u, angle = uniform(key, 2 * half).split(half, dim=1)
    length = (-2 * (1 - u).log()).sqrt()
    angle = 2 * math.pi * angle
    return torch.cat([length * angle.cos(), length * angle.sin()], dim=1)[:, :count]


def sampled(index: Tensor, share: float) -> Tensor:
    """Tell which images are in a sample of a share, by their numbers `(N,)` and nothing else."""
    if share >= 1:
        return torch.ones_like(index, dtype=torch.bool)
    return uniform(keys(0, index), 1).flatten() < share
