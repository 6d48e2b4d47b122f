"""Memory in bytes: a train step's, with and without activation recomputation, and a KV cache's."""

from dataclasses import dataclass
from typing import Any

from .activations import FULL, Activations, kv_heads
from .count import Counts
from .profile import CostProfile

BYTES = {"bf16": 2, "fp32": 4}


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes of a train step's activations, on top of weights, gradients and optimizer state."""

    saved: int  # for the backward pass
    peak: int  # what is saved, and the temporaries of the backward pass at its fullest
    peak_recomputed: int  # the peak with activation recomputation: only the inputs of blocks are saved


@dataclass(frozen=True)
class TrainMemory:
    """Bytes of a train step."""

    weights: int
    gradients: int  # of what is trained, and so is the optimizer state
    adamw: int  # optimizer state
    muon: int  # optimizer state of Muon for the matrices inside blocks and AdamW for the rest
    activations: ActivationMemory | None  # None: there are no formulas for the family

    @property
    def saved(self) -> int:
        return self.activations.saved if self.activations else 0

    def total(self, optimizer: str, recompute: bool = False) -> int:
        state, held = self.muon if optimizer == "muon" else self.adamw, self.activations
        activations = 0 if held is None else held.peak_recomputed if recompute else held.peak
        return self.weights + self.gradients + state + activations


def train_memory(
    profile: CostProfile, config: Any, counts: Counts, batch: int, length: int | None = None, dtype: str = "bf16"
) -> TrainMemory:
    """What a train step needs."""
    held, half = None, BYTES[dtype]
    if profile.activations is not None:
        held = _activation_memory(profile.activations(config, batch, length, half), counts, half)
    trained, weights = counts.trained, FULL * counts.total_parameters
    gradients = FULL * trained.parameters
    return TrainMemory(weights, gradients, 2 * gradients, 2 * gradients - FULL * trained.block_matrices, held)


def _activation_memory(found: Activations, counts: Counts, half: int) -> ActivationMemory:
    # autocast keeps a half-precision copy of every matrix until the backward pass has used it
    copied, inner = (half * counts.forward.matrices, half * counts.block_matrices) if half < FULL else (0, 0)
    groups, before, after, logits = found.blocks, found.before, found.after, found.logits
    depth = sum(group.count for group in groups)
    # blocks that the backward pass does not come to keep nothing
    share = counts.trained.share
    copied -= round((1 - share) * inner)
    inner = round(share * inner)
    saved_by_blocks = round(share * sum(g.count * g.saved for g in groups))
    inputs = round(share * sum(g.count * g.inputs for g in groups))
    # the loss goes back through log-probabilities, their gradient and the logits' gradient: three values a logit
    loss = 3 * FULL * logits
    saved = before + saved_by_blocks + after + copied + FULL * logits
    peak = max(saved + loss - FULL * logits, before + saved_by_blocks + copied + max(g.backward for g in groups))
    recomputed = before + inputs + max(
        after + copied - inner + loss,
        after + copied + ((half if half < FULL else 0) + 2 * FULL) * logits,
        copied + max(g.forward for g in groups),
        max(g.saved + g.backward for g in groups) + inner // depth,
    )  # fmt: skip
    return ActivationMemory(saved, peak, recomputed)


def kv_cache(c: Any, batch: int, tokens: int, dtype: str = "bf16", heads: int | None = None) -> int:
    """2·L·n·g·d values a sequence: a key and a value for each block, token and KV head."""
    depth = getattr(c, "decoder_depth", None) or c.depth  # only a decoder's keys and values are kept
    return 2 * depth * batch * tokens * (heads or kv_heads(c)) * c.head_width * BYTES[dtype]


def kv_sharing(c: Any) -> dict[str, int]:
    """KV heads with full, grouped-query and multi-query attention."""
    own = kv_heads(c)
    grouped = own if 1 < own < c.heads else next((n for n in (8, 4, 2, 3, 5) if c.heads % n == 0 and n < c.heads), None)
    found = {"full": c.heads, "grouped": grouped, "multi-query": 1 if c.heads > 1 else None}
    return {name: count for name, count in found.items() if count}
