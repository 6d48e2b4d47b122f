"""Parameters and FLOPs: sums over a model's parts."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .parts import Look, Part, parts_of


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of products: a multiplication and an addition are two."""

    forward: int
    backward: int

    @property
    def both(self) -> int:
        return self.forward + self.backward


def parameters(family: str, config: Any) -> dict[str, int]:
    """How many numbers a model learns, by what they are for."""
    found: Counter[str] = Counter()
    for part in parts_of(family, config):
        found[part.group] += part.parameters
    return {group: count for group, count in found.items() if count}


def flops(parts: Iterable[Part], recompute: bool = True) -> Flops:
    """As torch's FlopCounterMode counts them.

    `recompute` is how fused attention goes back: it has kept no scores, and computes them again.
    """
    parts = list(parts)
    return Flops(sum(part.flops for part in parts), sum(part.backward(recompute) for part in parts))


def by_group(parts: Iterable[Part]) -> dict[str, int]:
    """The FLOPs of a forward pass, by what they are for; Q Kᵀ and A V apart from attention's matrices."""
    found: Counter[str] = Counter()
    for part in parts:
        found[f"{part.group}: Q Kᵀ, A V" if isinstance(part, Look) else part.group] += part.flops
    return {group: count for group, count in found.items() if count}
