"""Random numbers of each row, from a key of its own: the same whichever rows are computed together, and where.

SplitMix64 (Steele, Lea and Flood, 2014): number i of a key k is a mix of the bits of k + i·γ.
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

GAMMA, FIRST, SECOND = (value - (1 << 64) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def row_keys(rng: np.random.Generator, count: int) -> Int[Tensor, "B"]:
    """A key for each of so many rows."""
    return torch.from_numpy(rng.integers(1 << 62, size=count))


def random_bits(keys: Int[Tensor, "B"], count: int, first: int = 0) -> Int[Tensor, "B n"]:
    """`count` numbers of 64 random bits for each key, from number `first` on."""
    # a compiler takes products of an arange for indices, which do not wrap around; the mask, which changes nothing,
    # makes them numbers
    numbers = torch.arange(first + 1, first + count + 1, device=keys.device) & ((1 << 62) - 1)
    z = keys[:, None] + numbers * GAMMA
    z = (z ^ _right(z, 30)) * FIRST
    z = (z ^ _right(z, 27)) * SECOND
    return z ^ _right(z, 31)


def _right(z: Tensor, by: int) -> Tensor:
    """Shifted to the right, with zeros from the left."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def uniform(keys: Int[Tensor, "B"], first: int = 0) -> Float[Tensor, "B"]:
    """A number of [0, 1) for each key."""
    return _right(random_bits(keys, 1, first)[:, 0], 40).float() / (1 << 24)


def normal(keys: Int[Tensor, "B"], shape: tuple[int, ...], first: int = 0) -> Float[Tensor, "B *s"]:
    """Standard normal numbers of this shape for each key: two of 64 bits, by Box and Muller."""
    count = math.prod(shape)
    bits = random_bits(keys, -(-count // 2), first)
    radius = (-2 * ((_right(bits, 32) + 1).float() / (1 << 32)).log()).sqrt()
    angle = (bits & 0xFFFFFFFF).float() * (2 * math.pi / (1 << 32))
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)[:, :count].reshape(-1, *shape)
