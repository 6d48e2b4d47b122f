"""The pages of five documents: the exercises of each in its order, section by section.

The page of document 004 is the whole worked example, table by table; its answers come from the trace of it.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ...tracing.live_trace import LiveTrace, trace
from ...tracing.receipt_text import format_number
from ..worked.examples import VitByHand, vit_4x4
from .exercise import Blank, Question, Table
from .page_questions import (
    Section,
    Vectors,
    both_sizes,
    counting,
    deviation,
    divisors,
    drawn,
    generation,
    grid,
    head_sizes,
    kata,
    kata_numbers,
    lookup,
    mask_grid,
    near,
    norm_steps,
    numbers,
    posed,
    predicted,
    products,
    projected,
    raised,
    recitation,
    reordered,
    rotated_encoding,
    score_cost,
    shapes,
    stream,
    table,
    turn,
    video_tokens,
    wavelength,
)

BLOCK = "blocks.0"
TOKENS = ["cls", "patch 1", "patch 2", "patch 3", "patch 4"]
DIMS = [f"dim {i}" for i in range(4)]


def _vision_from_pencil(seed: int | None) -> list[Section]:
    vectors: Vectors = {name: kata_numbers("weighted-sum", seed)[name] for name in ("queries", "keys", "values")}
    pair = {"queries": vectors["queries"], "keys": vectors["keys"]}
    image, x = kata_numbers("missing-swap", seed)["image"], kata_numbers("layernorm", seed)["x"]
    # the tokens of the mask's grid and of its weights are the same number
    tokens = len(kata_numbers("causal", seed)["scores"])
    pixel, base, first = {"image": image, "patch": 2}, 10000, 0
    if seed is not None:
        pixel["row"] = drawn("dot", seed).whole(0, len(image) - 1)
        pixel["column"] = drawn("dot column", seed).whole(0, 3)
        base, first = kata_numbers("stamp", seed)["base"], drawn("seat", seed).whole(1, 6)
    return [
        Section(
            "An image cut into patches",
            "Three steps: a reshape gives every pixel four coordinates (FOLD in the document), a transpose brings the "
            "pixels of a patch together (SWAP), and a reshape writes each patch as one row (GLUE).",
            (
                counting(seed, len(image), len(image[0]), 2),
                *(kata("cut", seed, image=image, patch=i) for i in range(4)),
                *(turn(kata("missing-swap", seed, image=image, patch=i)) for i in range(3)),
                turn(kata("dot", seed, **pixel)),
            ),
        ),
        Section(
            "Position encodings",
            "Cutting loses where a patch was. An encoding of sines and cosines, different for every position, is added "
            "to it; another way is a row of a learned table. The document calls a position a seat, and its encoding a "
            "stamp.",
            (
                divisors(seed, base, 4),
                *(kata("stamp", seed, position=first + i, base=base) for i in range(3)),
                near(seed, base, first),
                turn(kata("add-stamp", seed)),
                kata("seat-table", seed),
            ),
        ),
        Section(
            "Every token attends to every token",
            "Each token has a query, what it looks for; a key, what it is found by; and a value, what it passes on. "
            "The document calls them WANT, HAVE and GIVE, and the token a strip.",
            (
                kata("match", seed, **pair),
                *(kata("scale", seed, **pair, row=i) for i in range(2)),
                *(raised(seed, vectors, i) for i in range(2)),
                kata("softmax", seed, **pair, row=0),
                turn(kata("softmax", seed, **pair, row=1)),
                *(kata("weighted-sum", seed, row=i) for i in range(2)),
                products(seed, len(vectors["queries"]), len(vectors["queries"][0]), len(vectors["values"][0])),
            ),
        ),
        Section(
            "LayerNorm: each token alone",
            "LayerNorm takes the numbers of one token to mean 0 and standard deviation 1, and reads no other token; γ "
            "and β then scale and shift them. The document calls this taming.",
            (
                norm_steps(seed, x),
                kata("layernorm", seed),
                kata("dials", seed),
                turn(kata("middle", seed)),
            ),
        ),
        Section(
            "Block the future",
            "A score set to −inf before the softmax becomes a weight of 0: e^(−inf) = 0.",
            (
                mask_grid(seed, tokens),
                *(kata("causal", seed, row=i) for i in range(tokens) if i != 1),
                turn(kata("causal", seed, row=1)),
            ),
        ),
        Section("The whole, in one go", "", (recitation(seed),)),
    ]


def _block(seed: int | None, prefix: str, picture: bool) -> list[Section]:
    def of(*names: tuple[str, str]) -> Question:
        return shapes(seed, [(symbol, f"{BLOCK}.{name}") for symbol, name in names], picture)

    attention = (
        (kata("causal", other(seed)),)
        if picture
        else (
            kata("match", seed),
            kata("scale", seed),
            kata("causal", seed),
            kata("weighted-sum", seed),
            kata("residual", seed),
        )
    )
    return [
        Section(
            f"{prefix}1.1 Pre-norm (attention)",
            "X̃ = LN(X): each token alone, then γ and β.",
            (
                of(("X̃", "attn_norm"), ("γ", "attn_norm.weight")),
                kata("layernorm", other(seed)) if picture else kata("dials", seed),
            ),
        ),
        Section(
            f"{prefix}1.2 Q/K/V projections",
            "Q = X̃ W_Q, K = X̃ W_K, V = X̃ W_V.",
            (of(("W_Q", "attn.w_q"), ("Q", "attn.q"), ("K", "attn.k"), ("V", "attn.v")),),
        ),
        Section(
            f"{prefix}1.3 Attention (causal)",
            "S = Q Kᵀ/√D + M, A = softmax(S), H = A V, O = H W_O, X′ = X + O.",
            (
                of(("S", "attn.scores"), ("A", "attn.pattern"), ("H", "attn.z"), ("O", "attn.out"), ("X′", "mid")),
                *attention,
                *((stream(seed),) if picture else ()),
            ),
        ),
        Section(
            f"{prefix}1.4 Pre-norm (MLP)",
            "X̂ = LN(X′).",
            (of(("X̂", "mlp_norm")), *(() if picture else (kata("layernorm", seed),))),
        ),
        Section(
            f"{prefix}1.5 MLP and GELU",
            "U = X̂ W₁ + b₁, G = GELU(U), M = G W₂ + b₂, X = X′ + M.",
            (
                of(
                    ("W₁", "mlp.up.weight"),
                    ("U", "mlp.pre"),
                    ("G", "mlp.act"),
                    ("W₂", "mlp.down.weight"),
                    ("M", "mlp.out"),
                    ("X", "post"),
                ),
                *(() if picture else (kata("gelu", seed),)),
            ),
        ),
    ]


def _notation(seed: int | None) -> list[Section]:
    size = both_sizes(seed)
    return [
        Section(
            "Part I · 0) Inputs, embeddings, positions",
            "X⁰ = E[t] + P: a row of the table for each token, plus the row of its position.",
            (
                shapes(seed, [("E", "tokens.weight"), ("P", "positions.table"), ("X⁰", "input")]),
                kata("add-stamp", seed),
            ),
        ),
        *_block(seed, "Part I · ", False),
        Section(
            "Part I · 2) Output head: logits",
            "X_f = LN(X), Z = X_f Eᵀ; the softmax over the vocabulary predicts the next token.",
            (shapes(seed, [("X_f", "norm"), ("Z", "logits")]), kata("cross-entropy", seed)),
        ),
        Section(
            "Part II · Sizes",
            "The picture is cut into N patches of C·P² numbers each.",
            (counting(seed, size["H"], size["W"], size["P"]),),
        ),
        Section(
            "Part II · 0.1 Image to patch tokens",
            "X_patch = U(X_img), I = X_patch W_patch + b_patch, I⁰ = I + P_img.",
            (
                shapes(
                    seed,
                    [
                        ("X_patch", "patches.flat"),
                        ("W_patch", "patches.proj.weight"),
                        ("I", "patches.out"),
                        ("P_img", "image_positions.table"),
                        ("I⁰", "picture"),
                    ],
                    True,
                ),
                kata("cut", seed),
            ),
        ),
        Section(
            "Part II · 0.2 Text to token embeddings",
            "X_txt = E[t] + P_txt.",
            (shapes(seed, [("E", "tokens.weight"), ("P_txt", "positions.table"), ("X_txt", "text")], True),),
        ),
        Section(
            "Part II · 0.3 One sequence", "X⁰ = [I⁰; X_txt], of N + T tokens.", (shapes(seed, [("X⁰", "input")], True),)
        ),
        *_block(seed, "Part II · ", True),
        Section(
            "Part II · 2) Output head: text logits",
            "Only the text positions are read.",
            (
                shapes(seed, [("X_f,txt", "norm"), ("Z", "logits")], True),
                predicted(seed),
                kata("cross-entropy", other(seed)),
            ),
        ),
        Section(
            "Part II · Variants",
            "Patches that all see one another (a prefix mask); rotations or biases instead of added positions.",
            (kata("prefix", seed), kata("rope", seed), kata("alibi", seed)),
        ),
    ]


def other(seed: int | None) -> int | None:
    """Other numbers for an exercise that occurs twice."""
    return 1 if seed is None else seed + 1


def _first_principles(seed: int | None) -> list[Section]:
    return [
        Section(
            "Why not RNNs",
            "h_t = tanh(W_h h_t−1 + W_x x_t + b): every word in its turn, through one state.",
            (kata("rnn", seed),),
        ),
        Section(
            "The core idea",
            "A token's new representation is a weighted average over all tokens.",
            (kata("weighted-sum", seed),),
        ),
        Section(
            "Queries, keys and values",
            "Q = X W_Q, K = X W_K, V = X W_V.",
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
            "Every key is compared with the query; the result is a mixture of all values. The softmax weighs by "
            "e^score.",
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
            (rotated_encoding(seed),),
        ),
        Section("RoPE", "Queries and keys are rotated by their positions.", (kata("rope", seed),)),
        Section("Residual connections", "A part's output is added to what it read.", (kata("residual", seed),)),
        Section(
            "Layer normalization",
            "Mean 0, standard deviation 1, over the channels of one token; then γ and β.",
            (kata("layernorm", seed), kata("dials", seed)),
        ),
        Section(
            "The feed-forward network",
            "Two matrices with GELU between them, for each token alone.",
            (kata("gelu", seed),),
        ),
        Section("Autoregressive generation", "One token at a time, each after all before it.", (generation(seed),)),
        Section("The KV cache", "Keys and values of earlier tokens are stored.", (kata("kv-cache", seed),)),
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


def _understanding(seed: int | None) -> list[Section]:
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
            (rotated_encoding(seed),),
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
            "What a token looks for (query), is found by (key), passes on (value).",
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


@lru_cache(maxsize=4)
def _worked(seed: int | None) -> LiveTrace:
    """The document's picture, or one with fresh dots, through the document's weights."""
    if seed is None:
        return vit_4x4()
    dots = drawn("photo", seed).distinct(16, 1, 16)
    return trace(VitByHand(), torch.tensor(dots, dtype=torch.float64).reshape(1, 1, 4, 4))


def _cell(trace: LiveTrace, name: str, *at: int) -> str:
    """How one cell was computed."""
    receipt = trace[f"{name}[{','.join(map(str, (0, *at)))}]"].why()
    return f"{receipt.formula} = {format_number(receipt.recorded, 6)}"


def _table_to_fill(
    seed: int | None,
    title: str,
    ask: str,
    values: tuple[str, tuple[int, ...], int],
    labels: tuple[Sequence[str], Sequence[str]],
    tables: Sequence[Table],
) -> Question:
    """A table to fill in: (name, its leading index, decimals); its working shows the first cell of each row."""
    (name, first, decimals), (down, across) = values, labels
    part = _value(seed, name, *first)

    def working() -> Iterator[str]:
        for i, row in enumerate(down):
            yield f"{row}, {across[0]} = {_cell(_worked(seed), name, *first, i, 0)}"
            yield f"  {row}: {'  '.join(format_number(float(value), decimals + 2) for value in part[i])}"

    return posed(
        "worked",
        title,
        seed,
        ask,
        grid(down, across, part, decimals),
        working,
        tables,
        [(row, len(across)) for row in down],
        across,
    )


def _value(seed: int | None, name: str, *at: int) -> Any:
    return _worked(seed)[name].value[(0, *at)]


def _head(seed: int | None, head: int) -> Section:
    """All steps of one head."""
    which, dims = f"head {head + 1}", DIMS[2 * head : 2 * head + 2]
    q = table(f"Q = K = V, {which}", _value(seed, "attn.q", head), TOKENS)
    scores = table("scores", _value(seed, "attn.scores", head), TOKENS, TOKENS)
    pattern = table("attention", _value(seed, "attn.pattern", head), TOKENS, TOKENS)
    return Section(
        f"4) Attention, {which}",
        "S = Q Kᵀ/√2, A = softmax of each row of S, and the head's output is A V.",
        (
            _table_to_fill(
                seed,
                f"Scores of {which}",
                "Every Q row dotted with every K row, divided by √2.",
                ("attn.scores", (head,), 3),
                (TOKENS, TOKENS),
                [q],
            ),
            _softmax_row(seed, head),
            _table_to_fill(
                seed,
                f"Attention of {which}",
                "The softmax of each row of the scores.",
                ("attn.pattern", (head,), 4),
                (TOKENS, TOKENS),
                [scores],
            ),
            _table_to_fill(
                seed,
                f"Output of {which}",
                "A V: each row of the attention times V.",
                ("attn.z", (head,), 3),
                (TOKENS, dims),
                [pattern, q],
            ),
        ),
    )


def _softmax_row(seed: int | None, head: int) -> Question:
    """The softmax of the class token's row in the document's four steps."""
    row = np.asarray(_value(seed, "attn.scores", head, 0))
    less = row - row.max()
    powers = np.exp(less)
    parts = (less, powers, [powers.sum()], _value(seed, "attn.pattern", head, 0))
    names = ("minus the largest", "e to each", "sum", "divided by the sum")
    labels = [f"{name}, {token}" for name in names for token in (["all"] if name == "sum" else TOKENS)]
    flat = np.concatenate(parts)
    return posed(
        "worked",
        f"The softmax of cls, head {head + 1}",
        seed,
        "Step by step: subtract the row's largest score, raise e to each, add the results, divide each by the sum.",
        [Blank(label, float(value), 4) for label, value in zip(labels, flat, strict=True)],
        lambda: [
            f"{name}: {'  '.join(format_number(float(value), 6) for value in part)}"
            for name, part in zip(names, parts, strict=True)
        ],
        [table("scores", row, ["cls"], TOKENS)],
        [(name, len(part)) for name, part in zip(names, parts, strict=True)],
        TOKENS,
    )


def _reading(seed: int | None) -> Question:
    """Which token the class token attends to most, in each head."""
    rows = [np.asarray(_value(seed, "attn.pattern", head, 0)) for head in (0, 1)]
    best = [int(row.argmax()) for row in rows]
    return posed(
        "worked",
        "What the class token attends to",
        seed,
        "In each head: the index of the token that cls attends to most (cls is 0), and how many percent it gets.",
        numbers(
            *(
                answer
                for head, row in enumerate(rows)
                for answer in (
                    (f"head {head + 1}: token", best[head], 0),
                    (f"head {head + 1}: percent", 100 * row.max(), 1),
                )
            )
        ),
        lambda: [f"head {head + 1}: {TOKENS[best[head]]}, {100 * row.max():.2f} %" for head, row in enumerate(rows)],
        [table(f"cls, head {head + 1}", row, None, TOKENS) for head, row in enumerate(rows)],
    )


def _worked_example(seed: int | None) -> list[Section]:
    model: Any = _worked(seed).traced_model.model
    photo = _value(seed, "picture", 0)
    weights = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    strips = _value(seed, "patches.flat")
    columns = [f"col {i}" for i in range(4)]
    z, z0, out = (_value(seed, name) for name in ("patches.out", "input", "attn.out"))
    cls = table("z_cls", weights["cls"][0], ["cls"], DIMS)
    both = [
        table(f"output of head {h + 1}", _value(seed, "attn.z", h), TOKENS, DIMS[2 * h : 2 * h + 2]) for h in (0, 1)
    ]
    return [
        Section(
            "1) Image to patches",
            "4 × 4 dots in patches of 2 × 2, each written as a row: top-left, top-right, bottom-left, bottom-right.",
            (
                counting(seed, 4, 4, 2),
                _table_to_fill(
                    seed,
                    "The patches",
                    "Write the four dots of each patch.",
                    ("patches.flat", (), 0),
                    (TOKENS[1:], [f"dot {i + 1}" for i in range(4)]),
                    [table("image", photo, [f"row {i}" for i in range(4)], columns)],
                ),
            ),
        ),
        Section(
            "2) Patch embedding",
            "z = patch Eᵀ: each row of E is one output. Then the class token comes first, "
            "and every token has its position added: Z⁰ = [z_cls; z] + P.",
            (
                _table_to_fill(
                    seed,
                    "Embed each patch",
                    "z = patch Eᵀ.",
                    ("patches.out", (), 2),
                    (TOKENS[1:], DIMS),
                    [table("patches", strips, TOKENS[1:]), table("E", weights["patches.proj.weight"], DIMS)],
                ),
                _table_to_fill(
                    seed,
                    "Add class token and positions",
                    "Z⁰ = [z_cls; z] + P.",
                    ("input", (), 2),
                    (TOKENS, DIMS),
                    [cls, table("z", z, TOKENS[1:], DIMS), table("P", weights["positions"], TOKENS, DIMS)],
                ),
            ),
        ),
        Section(
            "3) Q, K and V of two heads",
            "Head 1 takes dims 0 and 1, head 2 dims 2 and 3; Q = K = V.",
            tuple(
                _table_to_fill(
                    seed,
                    f"Q of head {head + 1}",
                    f"Q = Z⁰ W_Q, where W_Q picks dims {2 * head} and {2 * head + 1}.",
                    ("attn.q", (head,), 2),
                    (TOKENS, DIMS[2 * head : 2 * head + 2]),
                    [table("Z⁰", z0, TOKENS, DIMS)],
                )
                for head in (0, 1)
            ),
        ),
        _head(seed, 0),
        _head(seed, 1),
        Section("4) Checking printed numbers", "Not every number in print is right.", (kata("wrong-cells", seed),)),
        Section(
            "5) Concatenate the heads",
            "Head 1's two numbers, then head 2's; W_O is the identity.",
            (
                _table_to_fill(
                    seed,
                    "MSA output",
                    "The two outputs of each token side by side.",
                    ("attn.out", (), 3),
                    (TOKENS, DIMS),
                    both,
                ),
            ),
        ),
        Section(
            "6) Residual connection",
            "Z′ = Z⁰ + MSA.",
            (
                _table_to_fill(
                    seed,
                    "Add it to Z⁰",
                    "Z′ = Z⁰ + MSA.",
                    ("out", (), 3),
                    (TOKENS, DIMS),
                    [table("Z⁰", z0, TOKENS, DIMS), table("MSA", out, TOKENS, DIMS)],
                ),
            ),
        ),
        Section(
            "7) Reading it",
            "Each row of the attention says how much of every token goes into one output.",
            (_reading(seed),),
        ),
    ]


PAGES = {
    "000": _vision_from_pencil,
    "001": _notation,
    "002": _first_principles,
    "003": _understanding,
    "004": _worked_example,
}
