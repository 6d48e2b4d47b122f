"""The page of document 001: the shapes of its two models, and an exercise for what each section computes."""

from .exercise import Question
from .page_000 import counting
from .page_parts import Section, kata, numbers, posed
from .page_shapes import both_sizes, shapes

BLOCK = "blocks.0"


def stream(seed: int | None) -> Question:
    """Which positions of the one sequence are patches, and which words."""
    size = both_sizes(seed)
    patches = (size["H"] // size["P"]) * (size["W"] // size["P"])
    words = size["T"]
    return posed(
        "stream",
        "Who sees whom",
        seed,
        f"The sequence is {patches} patches, then {words} words, under the causal mask; positions count from 1. At "
        f"which position is the first word? How many positions does the last patch see, how many the first word, how "
        f"many the last word?",
        numbers(
            ("first word at", patches + 1, 0),
            ("last patch sees", patches, 0),
            ("first word sees", patches + 1, 0),
            ("last word sees", patches + words, 0),
        ),
        lambda: [
            "a position sees itself and all before it",
            f"{patches} patches, so the first word is at {patches + 1}, the last at {patches + words}",
        ],
    )


def predicted(seed: int | None) -> Question:
    """How many words of a text are predicted from the text positions alone."""
    words = both_sizes(seed)["T"]
    return posed(
        "targets",
        "How many words are predicted",
        seed,
        f"The logits are read at the {words} text positions, and each predicts the next word. How many of the {words} "
        f"words are predicted? And how many if the text has a begin token before its first word?",
        numbers(("as written", words - 1, 0), ("with a begin token", words, 0)),
        lambda: [
            "the first word would be predicted at the last patch, which is not read",
            "a begin token gives it a position of its own",
        ],
    )


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


def sections(seed: int | None) -> list[Section]:
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
