"""LLaMA as its authors publish it (params.json and consolidated weights; Mistral's consolidated.safetensors too).

Its rotated pairs are adjacent channels, so a model read from it has `rope_pairs = "adjacent"`, and its rows of W_Q and
W_K are taken as they are; `pencil.convert_rope` makes halves of them. Transformers' files are the same models after
that reordering, under other names.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ..config import UserError
from ..models.gpt import GPT, GPTConfig
from . import llama
from .maps import MAPPED, NEUTRAL, Architecture, Fields, Rule, Use, must_have, only, token_inputs

NAME = "original LLaMA"
# parts of the names in transformers, and here
NAMES = {
    "model.embed_tokens": "tok_embeddings",
    "model.layers": "layers",
    "model.norm": "norm",
    "lm_head": "output",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}
FIELDS: dict[str, Use] = {
    **dict.fromkeys(
        "dim n_layers n_heads n_kv_heads head_dim hidden_dim norm_eps rope_theta vocab_size table_rows max_seq_len "
        "sliding_window tied_embeddings".split(),
        MAPPED,
    ),
    # multiple_of and ffn_dim_multiplier give the width of the MLP, which the tensors have
    **dict.fromkeys("multiple_of ffn_dim_multiplier max_batch_size model_parallel_size".split(), NEUTRAL),
    "use_scaled_rope": only(False),
    "moe": only(),
    "quantization_args": only(),
}


def sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """What params.json leaves out: the vocabulary, the width of the MLP, and whether there is an output matrix."""
    for name in ("tok_embeddings.weight", "layers.0.feed_forward.w1.weight"):
        if name not in shapes:
            raise UserError(f"this {NAME} has no {name}")
    return dict(
        table_rows=shapes["tok_embeddings.weight"][0],  # its vocab_size may be -1
        hidden_dim=shapes["layers.0.feed_forward.w1.weight"][0],
        tied_embeddings="output.weight" not in shapes,
    )


def settings(theirs: Fields) -> dict[str, Any]:
    width, heads = theirs.size("dim"), theirs.size("n_heads")
    if theirs.get("max_seq_len") is None:
        raise UserError(
            f"the params.json of this {NAME} does not say how long its context is: write max_seq_len into it (2048 for "
            "LLaMA, 4096 for LLaMA 2, 8192 for LLaMA 3)"
        )
    if theirs.get("head_dim") is not None and theirs.get("rope_theta") is None:
        raise UserError(
            f"the params.json of this {NAME} is one of Mistral's without rope_theta, whose default differs between "
            "versions of their code: write rope_theta into it (10000 for Mistral 7B v0.1, 1000000 for later ones)"
        )
    if theirs.get("head_dim") is None and width % heads:
        raise UserError(f"this {NAME}'s n_heads {heads} does not divide its dim {width}")
    return dict(
        vocab=theirs.size("table_rows" if theirs.get("vocab_size") in (None, -1) else "vocab_size"),
        context=theirs.size("max_seq_len"),
        width=width,
        depth=theirs.size("n_layers"),
        heads=heads,
        kv_heads=theirs.get("n_kv_heads"),
        head_dim=None if theirs.get("head_dim") in (None, width / heads) else theirs.size("head_dim"),
        hidden=theirs.size("hidden_dim"),
        norm="rms",
        eps=theirs["norm_eps"],
        activation="swiglu",
        window=theirs.get("sliding_window"),
        positions="rope",
        rope_theta=float(theirs.get("rope_theta") or 10000.0),
        rope_pairs="adjacent",
        tie_embeddings=bool(theirs.given("tied_embeddings", False)),
    )


def describe(c: GPTConfig) -> dict[str, Any]:
    must_have(
        c,
        NAME,
        norm="rms",
        activation="swiglu",
        positions="rope",
        bias=False,
        qkv_bias=(None, False),
        qk_norm=False,
        rope_fraction=1.0,
        rope_scaling=None,
    )
    theirs: dict[str, Any] = dict(
        dim=c.width,
        n_layers=c.depth,
        n_heads=c.heads,
        n_kv_heads=c.kv_heads or c.heads,
        head_dim=c.head_width,
        hidden_dim=c.mlp_width,
        norm_eps=c.eps,
        rope_theta=c.rope_theta,
        vocab_size=c.vocab,
        max_seq_len=c.context,
        tied_embeddings=c.tie_embeddings,
    )
    return theirs if c.window is None else theirs | {"sliding_window": c.window}


def rules(c: GPTConfig) -> Iterator[Rule]:
    for rule in llama.rules(c, "adjacent"):
        yield rule._replace(theirs=tuple(map(_named, rule.theirs)))


def _named(name: str) -> str:
    for theirs, original in NAMES.items():
        name = name.replace(theirs, original)
    return name


LLAMA_ORIGINAL = Architecture(
    NAME,
    "llama",
    (),
    GPT,
    GPTConfig,
    FIELDS,
    settings,
    describe,
    rules,
    tied=lambda c: {"output.weight": "tok_embeddings.weight"} if c.tie_embeddings else {},
    unused=lambda c: {r"rope\.freqs": llama.other_frequencies},
    marks=("tok_embeddings.weight", "layers.0.feed_forward.w1.weight"),
    sizes=sizes,
    inputs=token_inputs,
    ask=lambda original, given: original(given[0]),
    outputs=lambda c: {f"blocks.{i}.post": f"layers.{i}" for i in range(c.depth)} | {"norm": "norm"},
)
