"""The page of document 003, three posts in its order: positions, heads, attention."""

from .page_000 import divisors
from .page_parts import Section, kata
from .page_sums import deviation, head_sizes, projected, reordered, rotated_stamp, wavelength


def sections(seed: int | None) -> list[Section]:
    return [
        Section(
            "Part 3: Positional encoding",
            "Without positions attention cannot tell one order from another.",
            (reordered(seed),),
        ),
        Section(
            "The sinusoidal encoding",
            "Sines at even channels, cosines at odd ones, slower from pair to pair.",
            (divisors(seed, 10000, 4 if seed is None else 8), kata("stamp", seed)),
        ),
        Section("Why 10000", "The base sets how slow the slowest pair is.", (wavelength(seed),)),
        Section(
            "Relative positions",
            "An offset of k is a rotation that does not depend on the position.",
            (rotated_stamp(seed),),
        ),
        Section("Implementation", "The encoding is added to the embedding.", (kata("add-stamp", seed),)),
        Section(
            "Alternatives",
            "RoPE rotates queries and keys; ALiBi subtracts from a score by distance.",
            (kata("rope", seed), kata("alibi", seed)),
        ),
        Section(
            "Part 2: Multi-head attention",
            "Each head attends with projections of its own; W_O mixes their concatenated outputs.",
            (kata("heads", seed),),
        ),
        Section("Dimension arithmetic", "d_k = d_model/h.", (head_sizes(seed),)),
        Section(
            "Three variants of attention",
            "Self-attention, masked self-attention, and cross-attention to another sequence.",
            (kata("attention", seed), kata("causal", seed), kata("cross", seed)),
        ),
        Section(
            "Part 1: Query, key, value",
            "What a token looks for (WANT), is found by (HAVE), hands over (GIVE).",
            (projected(seed),),
        ),
        Section(
            "The formula",
            "softmax(Q Kᵀ/√d_k) V, step by step.",
            (kata("match", seed), kata("scale", seed), kata("softmax", seed), kata("weighted-sum", seed)),
        ),
        Section(
            "The scaling trick",
            "Dot products of vectors with unit variance spread by √d_k.",
            (deviation(seed, (64, 512)),),
        ),
    ]
