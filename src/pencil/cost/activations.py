"""Activation memory of blocks, in bytes: what eager PyTorch saves for the backward pass on CUDA with fused attention.

In float32, or under bfloat16 autocast with float32 weights; `half` is the bytes of an activation, 4 or 2.
benchmarks/cost.py compares the formulas with a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..core.layers import ACTIVATIONS
from ..core.positions import Positions
from ..models.build import make_positions
from ..models.config import BlockConfig
from ..models.dit import DiTConfig

FULL = 4  # bytes of a float32


@dataclass(frozen=True)
class BlockGroup:
    """Identical blocks: their number, and for one of them bytes saved, of its input, and of its largest temporaries."""

    count: int
    saved: int
    inputs: int
    forward: int
    backward: int


@dataclass(frozen=True)
class Activations:
    """Bytes of a train step's activations."""

    blocks: Sequence[BlockGroup]
    before: int  # saved before the blocks
    after: int  # saved after the blocks, without logits
    logits: int = 0  # the number of logits that a loss over a vocabulary goes back through


def is_gated(c: BlockConfig) -> bool:
    """Whether the MLP has a third matrix, the gate."""
    return ACTIVATIONS[c.activation].gated


def norm_bytes(c: BlockConfig) -> int:
    """What a norm saves for one token: its input in float32, a mean and a deviation."""
    return FULL * c.width + 2 * FULL


def block_group(
    c: BlockConfig, batch: int, tokens: int, count: int, half: int, half_residual: bool = False
) -> BlockGroup:
    """Pre- or post-norm blocks.

    `half_residual`: the residual stream begins as a matrix product, so autocast leaves it in half precision.
    """
    rows, d = batch * tokens, c.head_width
    # the inputs of the first matrix of attention and of the MLP; autocast copies one for each matrix of a gated MLP
    inputs = half * c.width * (3 if is_gated(c) and half < FULL else 2)
    # q, k, v and the output; and one logsumexp per query
    attention = half * (2 * c.heads + 2 * c.kv_head_count) * d + FULL * c.heads
    if _rotates(c, tokens):
        # rotated copies, while v keeps the joined product alive; and the output, laid out as q is, copied for W_O
        attention += half * (2 * c.heads + c.kv_head_count) * d
    if c.key_dropout:
        attention += half * c.heads * d  # v with dropped keys
    dropped = 2 * c.width if c.dropout else 0  # dropout masks, a byte a value
    mlp = half * c.mlp_width * ACTIVATIONS[c.activation].saved
    saved = rows * (2 * norm_bytes(c) + inputs + attention + dropped + mlp) + score_bias(c, batch, tokens, half)
    residual, hidden = half if half_residual else FULL, half * c.mlp_width
    forward = (residual + FULL) * c.width + hidden * (4 if is_gated(c) else 2)
    backward = (residual + half) * c.width + hidden * (2 if is_gated(c) else 1)
    return BlockGroup(count, saved, rows * residual * c.width, rows * forward, rows * backward)


def score_bias(c: BlockConfig, batch: int, tokens: int, half: int) -> int:
    """Schemes that bias the scores add a matrix to them in each block: one for all rows of the batch, or one each."""
    schemes = [scheme for scheme in _schemes(c, tokens) if scheme.biases_scores]
    if not schemes:
        return 0
    return half * c.heads * tokens * tokens * (batch if any(scheme.bias_by_row for scheme in schemes) else 1)


def _rotates(c: BlockConfig, tokens: int) -> bool:
    """Whether a scheme rotates queries and keys."""
    return any(scheme.rotates_heads for scheme in _schemes(c, tokens))


def _schemes(c: BlockConfig, tokens: int) -> list[Positions]:
    """The position schemes of a model, without memory: a captioner's image can have another than its text."""
    with torch.device("meta"):
        return [make_positions(name, c, (tokens,)) for name in set(c.schemes)]


def with_cross_attention(
    blocks: BlockGroup, c: BlockConfig, batch: int, tokens: int, source: int, half: int
) -> BlockGroup:
    """The same blocks with cross-attention to a source, whose keys and values come from outside the block."""
    target = (
        norm_bytes(c) + half * (c.width + 2 * c.heads * c.head_width) + FULL * c.heads + (c.width if c.dropout else 0)
    )
    # a source token's key and value, and their input if autocast copied it
    read = half * 2 * c.kv_head_count * c.head_width + (half * c.width if half < FULL else 0)
    saved = blocks.saved + batch * (tokens * target + source * read)
    return replace(blocks, saved=saved, inputs=blocks.inputs + batch * source * read)


def adaln_block_group(c: DiTConfig, batch: int, groups: int, tokens: int, count: int, half: int) -> BlockGroup:
    """Blocks whose norms a condition sets: normed values are saved to be scaled, and what is gated is saved too.

    Attention is within `groups` groups of `tokens` tokens.
    """
    rows, gates = batch * groups * tokens, 2 if c.adaln == "zero" else 0
    norms = 2 * (2 * FULL * c.width + 2 * FULL)
    rotated = half * 3 * c.width if _rotates(c, tokens) else 0
    attention = half * 4 * c.width + FULL * c.heads + rotated
    each = norms + half * 2 * c.width + attention + half * 2 * c.mlp_width + half * gates * c.width
    condition = half * ((6 if gates else 4) + 3) * c.width + (FULL * c.width if groups > 1 else 0)
    saved = rows * each + batch * groups * condition + score_bias(c, batch * groups, tokens, half)
    forward = (half + FULL) * c.width + 2 * half * c.mlp_width
    backward = half * (3 * c.width + c.mlp_width)
    return BlockGroup(count, saved, rows * half * c.width, rows * forward, rows * backward)


def block_formulas(c: BlockConfig, blocks: str = "L", decoder: str = "L") -> dict[str, str]:
    """Formulas for the parameters of blocks, for display: how many there are, and of these in a decoder."""
    biases = " + biases" if c.bias else ""
    of_qkv = " + biases of Q, K, V" if c.qkv_bias and not biases else biases
    return {
        "attention": f"{blocks}·D·(2·h + 2·g)·d{of_qkv}",
        "cross-attention": f"{decoder}·D·(2·h + 2·g)·d{biases}",
        "MLP": f"{3 if is_gated(c) else 2}·{blocks}·D·F{biases}",
    }


# the FLOPs of one token's forward pass, for display
SELF_ATTENTION_FLOPS = {"attention: Q Kᵀ, A V": "4·L·n·h·d", "attention": "2 × its matrices", "MLP": "2 × its matrices"}
