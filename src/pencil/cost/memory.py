"""Memory in bytes: a train step's, with and without activation recomputation, and a KV cache's."""

from dataclasses import dataclass
from typing import NamedTuple

from ..models.config import BlockConfig
from .activations import FULL, Activations
from .count import Counts
from .profile import CostProfile

BYTES = {"bf16": 2, "fp32": 4}
# as train/losses/cross_entropy.py has them; a test compares
LARGE, CHUNK, ALIGNED = 1 << 28, 8192, 64


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes of a train step's activations, on top of weights, gradients and optimizer state."""

    saved: int  # for the backward pass
    peak: int  # what is saved, and the temporaries of the backward pass at its fullest
    peak_recomputed: int  # the peak with activation recomputation: only the inputs of blocks are saved
    in_blocks: int  # the most while a block runs; the peak may be at the loss instead
    in_blocks_recomputed: int
    of_block: int  # what the backward pass gives back with each block
    of_block_recomputed: int
    copies: int  # of them autocast's half-precision copies of the matrices, held from forward to backward
    loss: int  # of the peak at the loss: logits and what follows from them
    fused: bool  # whether the loss is fused with the output matrix, so that it holds some of the logits at a time


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
        state, memory = self.muon if optimizer == "muon" else self.adamw, self.activations
        activations = 0 if memory is None else memory.peak_recomputed if recompute else memory.peak
        return self.weights + self.gradients + state + activations


class LossMemory(NamedTuple):
    """Bytes on top of what the model saves: kept for the backward pass, and at the most forwards and backwards."""

    saved: int
    forward: int
    backward: int
    fused: bool = False


def loss_memory(logits: int, vocab: int, width: int, half: int, cuda: bool) -> LossMemory:
    """Of so many logits; `half` is the bytes of an activation, 4 or 2."""
    if not cuda or logits < LARGE:
        # backwards: log-probabilities, their gradient and the logits' gradient
        return LossMemory(FULL * logits, ((half if half < FULL else 0) + 2 * FULL) * logits, 3 * FULL * logits)
    tokens, rows = logits // vocab, -(-vocab // ALIGNED) * ALIGNED
    chunk = -(-tokens // -(-tokens // CHUNK))
    # the gradients are computed forwards, that of the matrix in float32
    by_x, by_matrix = half * tokens * width, FULL * rows * width
    copy = half * rows * width if half < FULL or rows > vocab else 0
    product = by_matrix if half < FULL else 0  # of a chunk, before it is added
    scaled = (2 if half < FULL else 1) * FULL * tokens * width
    forward = by_x + by_matrix + copy + product + half * chunk * rows
    return LossMemory(by_x + by_matrix, forward, by_x + by_matrix + scaled, fused=True)


def train_memory(
    profile: CostProfile,
    config: BlockConfig,
    counts: Counts,
    batch: int,
    length: int | None = None,
    dtype: str = "bf16",
    cuda: bool = False,
    sharded: bool = False,
) -> TrainMemory:
    """What a train step needs: on CUDA many logits have the fused loss; FSDP2 has blocks in the dtype (`sharded`)."""
    activation, half = None, BYTES[dtype]
    if profile.activations is not None:
        activations = profile.activations(config, batch, length, half)
        vocab = config.vocab or 1
        loss = loss_memory(activations.logits, vocab, config.width, half, cuda)
        activation = _activation_memory(activations, counts, half, loss, half * vocab * config.width, sharded)
    trained, weights = counts.trained, FULL * counts.total_parameters
    gradients = FULL * trained.parameters
    return TrainMemory(weights, gradients, 2 * gradients, 2 * gradients - FULL * trained.block_matrices, activation)


def _activation_memory(
    activations: Activations, counts: Counts, half: int, loss: LossMemory, head: int, sharded: bool
) -> ActivationMemory:
    # autocast keeps a half-precision copy of every matrix until the backward pass has used it; but for the output
    # matrix of the fused loss, and for blocks that FSDP2 gathers in half precision
    copied, inner = (half * counts.forward.matrices, half * counts.block_matrices) if half < FULL else (0, 0)
    if loss.fused and half < FULL:
        copied -= head
    if sharded:
        copied, inner = copied - inner, 0
    groups, before, after = activations.blocks, activations.before, activations.after
    depth = sum(group.count for group in groups)
    # blocks that the backward pass does not come to keep nothing
    share = counts.trained.share
    copied -= round((1 - share) * inner)
    inner = round(share * inner)
    saved_by_blocks = round(share * sum(g.count * g.saved for g in groups))
    inputs = round(share * sum(g.count * g.inputs for g in groups))
    saved = before + saved_by_blocks + after + copied
    in_blocks = before + saved_by_blocks + copied + max(g.backward for g in groups)
    most = max(loss.forward, loss.backward)
    peak = max(saved + most, in_blocks)
    in_blocks_recomputed = (
        before
        + inputs
        + max(copied + max(g.forward for g in groups), max(g.saved + g.backward for g in groups) + inner // depth)
    )
    at_loss = after + copied + max(loss.backward - inner, loss.forward)
    recomputed = max(before + inputs + at_loss, in_blocks_recomputed)
    given_back = saved_by_blocks // depth, inputs // depth
    return ActivationMemory(
        saved + loss.saved, peak, recomputed, in_blocks, in_blocks_recomputed, *given_back, copied, most, loss.fused
    )


def kv_cache(c: BlockConfig, batch: int, tokens: int, dtype: str = "bf16", heads: int | None = None) -> int:
    """2·L·n·g·d values a sequence: a key and a value for each block, token and KV head."""
    # only a decoder's keys and values are kept
    return 2 * c.decoder_blocks * batch * tokens * (heads or c.kv_head_count) * c.head_width * BYTES[dtype]


SCALE_BYTES = 2  # of the one scale of a quantised key or value: float16
PAGE_TOKENS = 16  # in a page of a paged cache: the default of vLLM
WINDOW_SHARE = 4  # a model without a window is shown with one of this share of the tokens


class SmallerCache(NamedTuple):
    """The model's KV cache in another form, with its formula."""

    name: str
    bytes: int
    formula: str


def smaller_kv_caches(c: BlockConfig, batch: int, tokens: int, dtype: str = "bf16") -> list[SmallerCache]:
    """The KV cache quantised to int8, of the last tokens alone, and in pages."""
    each, window = BYTES[dtype], min(tokens, c.window or -(-tokens // WINDOW_SHARE))
    vectors = 2 * c.decoder_blocks * batch * c.kv_head_count  # a token
    pages = -(-tokens // PAGE_TOKENS)
    layers, whose = getattr(c, "decoder_depth", None) or "L", "this model's" if c.window else f"n/{WINDOW_SHARE}"
    return [
        SmallerCache("int8", vectors * tokens * (c.head_width + SCALE_BYTES), f"2·B·n·{layers}·g·(d + {SCALE_BYTES})"),
        SmallerCache(
            f"window: w {window:,}",
            vectors * window * c.head_width * each,
            f"2·B·w·{layers}·g·d·{each}, w {whose}",
        ),
        SmallerCache(
            f"pages of {PAGE_TOKENS}",
            vectors * pages * PAGE_TOKENS * c.head_width * each,
            f"2·B·⌈n/{PAGE_TOKENS}⌉·{PAGE_TOKENS}·{layers}·g·d·{each}",
        ),
    ]


def kv_sharing(c: BlockConfig) -> dict[str, int]:
    """KV heads with full, grouped-query and multi-query attention."""
    own = c.kv_head_count
    grouped = own if 1 < own < c.heads else next((n for n in (8, 4, 2, 3, 5) if c.heads % n == 0 and n < c.heads), None)
    heads = {"full": c.heads, "grouped": grouped, "multi-query": 1 if c.heads > 1 else None}
    return {name: count for name, count in heads.items() if count}
