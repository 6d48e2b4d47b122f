"""The page of document 002: an exercise for what each of its sections computes, in its order."""

import numpy as np

from ..worked.examples import soft_lookup
from .attention_by_hand import by_hand, softmax_cells
from .builder import blanks, rows
from .exercise import Question
from .page_000 import divisors
from .page_parts import Section, drawn, kata, posed, table
from .page_sums import (
    deviation,
    generation,
    head_sizes,
    projected,
    reordered,
    rotated_stamp,
    score_cost,
    video_tokens,
)


def lookup(seed: int | None) -> Question:
    """A query and three keys in the plane; the page's own are similar, opposite and at a right angle."""
    trace = soft_lookup()
    want, have = (trace[name].value[0, 0].tolist() for name in ("want", "have"))
    if seed is not None:
        d = drawn("lookup", seed)
        want, have = [[d.tenths(5, 15), d.tenths(5, 15)]], [[d.tenths(-15, 15), d.tenths(-15, 15)] for _ in range(3)]
    hand, keys = by_hand(want, have, have), ["k1", "k2", "k3"]
    labels = [*(f"score {j + 1}" for j in range(3)), *(f"weight {j + 1}" for j in range(3))]
    also = [
        np.append(*pair)
        for pair in zip(rows(hand.roundings("scores", 2), 0), rows(hand.roundings("pattern", 2), 0), strict=True)
    ]
    return posed(
        "lookup",
        "A soft lookup in the plane",
        seed,
        "The query q is compared with three keys: q·k/√2, then the softmax. Draw the arrows first: which key points "
        "nearly the same way?",
        blanks(labels, np.append(hand["scores"][0], hand["pattern"][0]), 2, also),
        lambda: hand.lines(*((f"score {j + 1}", f"scores[0,0,0,{j}]") for j in range(3)), *softmax_cells(0, 3)),
        [table("query", want, ["q"]), table("keys", have, keys)],
        [("scores", 3), ("weights", 3)],
        keys,
    )


def sections(seed: int | None) -> list[Section]:
    return [
        Section(
            "The core idea",
            "A token's new representation is a weighted average over all tokens.",
            (kata("weighted-sum", seed),),
        ),
        Section(
            "Queries, keys and values",
            "Q = X W_Q, K = X W_K, V = X W_V. The exercises call them WANT, HAVE and GIVE.",
            (projected(seed),),
        ),
        Section("The attention score", "e_ij = q_i · k_j: how well key j matches query i.", (kata("match", seed),)),
        Section(
            "The scaling factor",
            "Scores are divided by √d_k, so that their spread does not grow with d_k.",
            (deviation(seed, (64, 512)), kata("scale", seed)),
        ),
        Section(
            "The full attention equation",
            "softmax(Q Kᵀ/√d_k) V.",
            (kata("softmax", seed), kata("attention", seed), score_cost(seed)),
        ),
        Section(
            "Attention as a soft lookup",
            "Every key is compared with the query; the result is a mixture of all "
            "values. The softmax weighs by e^score.",
            (lookup(seed),),
        ),
        Section(
            "Several heads",
            "Each head has its own projections; their outputs are concatenated and multiplied by W_O.",
            (kata("heads", seed), head_sizes(seed)),
        ),
        Section(
            "Attention is permutation-equivariant",
            "Without positions, reordered rows come out reordered.",
            (reordered(seed),),
        ),
        Section(
            "Sinusoidal positional encoding",
            "p(pos, 2i) = sin(pos/10000^(2i/d)), p(pos, 2i + 1) the cosine.",
            (divisors(seed, 10000, 4 if seed is None else 8), kata("stamp", seed), kata("add-stamp", seed)),
        ),
        Section(
            "Why sinusoids: a rotation",
            "The encoding of pos + k is that of pos, rotated by an angle that depends on k alone.",
            (rotated_stamp(seed),),
        ),
        Section("RoPE", "Queries and keys are rotated by their positions.", (kata("rope", seed),)),
        Section("Residual connections", "A part's output is added to what it read.", (kata("residual", seed),)),
        Section(
            "Layer normalization",
            "Mean 0, spread 1, over the channels of one token; then γ and β.",
            (kata("layernorm", seed), kata("dials", seed)),
        ),
        Section(
            "The feed-forward network",
            "Two matrices with GELU between them, for each token alone.",
            (kata("gelu", seed),),
        ),
        Section("Autoregressive generation", "One token at a time, each after all before it.", (generation(seed),)),
        Section("The KV cache", "Keys and values of earlier tokens are kept.", (kata("kv-cache", seed),)),
        Section(
            "Memory of the cache",
            "2·n·d·L values with full heads; fewer with grouped ones.",
            (kata("cache-bytes", seed),),
        ),
        Section(
            "From noise to an image",
            "A diffusion transformer predicts the noise; a sampler removes it in steps.",
            (kata("ddim", seed),),
        ),
        Section(
            "Adaptive layer norm",
            "A timestep gives each norm its γ and β; adaLN-Zero adds a gate.",
            (kata("adaln", seed), kata("adaln-zero", seed)),
        ),
        Section("Video", "Patches of all frames are one sequence.", (video_tokens(seed),)),
    ]
