"""GPT-NeoX as transformers names it, with its sublayers one after the other (Pythia's are side by side, and refused).

It is what our own presets of GPT with LayerNorm and rotations are. Its queries, keys and values are stored by head.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ..config import UserError
from ..models.gpt import GPT, GPTConfig
from .gpt2 import no_head_bias, not_causal
from .llama import other_frequencies, rotations
from .maps import Architecture, Fields, Rule, fields, must_have, only, same, their_word, token_inputs, with_bias, zeros

NAME = "GPT-NeoX"
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
}
FIELDS = fields(
    mapped="vocab_size max_position_embeddings hidden_size num_hidden_layers num_attention_heads intermediate_size "
    "layer_norm_eps hidden_act tie_word_embeddings rope_parameters rope_scaling rope_theta rotary_pct rotary_emb_base "
    "partial_rotary_factor",
    neutral="attention_dropout hidden_dropout classifier_dropout",
    use_parallel_residual=only(False),
    attention_bias=only(True),
)
DEFAULTS = dict(
    layer_norm_eps=1e-5,
    hidden_act="gelu",
    tie_word_embeddings=False,
    use_parallel_residual=True,
    rotary_pct=0.25,
    rotary_emb_base=10000.0,
)
BLOCK = {"input_layernorm": "attn_norm", "attention.dense": "attn.out", "post_attention_layernorm": "mlp_norm",
         "mlp.dense_h_to_4h": "mlp.up", "mlp.dense_4h_to_h": "mlp.down"}  # fmt: skip


def settings(theirs: Fields) -> dict[str, Any]:
    rope = rotations(theirs, base="rotary_emb_base", fraction="rotary_pct")
    if rope["rope_type"] != "default":
        raise UserError(f"this {NAME}'s rotations are scaled, which ours are in a LLaMA only")
    for name in rope.keys() - {"rope_type", "type", "rope_theta", "partial_rotary_factor"}:
        raise UserError(f"this {NAME}'s rope_parameters have {name}, which Pencil does not know")
    # older versions of the library read these two names, and today's does not
    for name, other in {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}.items():
        if theirs.get(name) not in (None, rope[name]):
            raise UserError(
                f"this {NAME}'s {name} is {theirs[name]!r}, and its rope_parameters or {other} give {rope[name]!r}: "
                f"leave {name} out, or write the same value"
            )
    width, heads = theirs.size("hidden_size"), theirs.size("num_attention_heads")
    if width % heads:
        raise UserError(f"this {NAME}'s num_attention_heads {heads} does not divide its hidden_size {width}")
    tied = bool(theirs["tie_word_embeddings"])
    return dict(
        **theirs.sizes(
            vocab="vocab_size", context="max_position_embeddings", depth="num_hidden_layers", hidden="intermediate_size"
        ),
        width=width,
        heads=heads,
        eps=theirs["layer_norm_eps"],
        activation=theirs.one_of("hidden_act", ACTIVATIONS),
        bias=True,
        positions="rope",
        rope_theta=rope["rope_theta"],
        rope_fraction=int(width // heads * rope["partial_rotary_factor"]) / (width // heads),
        tie_embeddings=tied,
        head_bias=None if tied else False,
    )


def describe(c: GPTConfig) -> dict[str, Any]:
    must_have(
        c,
        NAME,
        norm="layer",
        positions="rope",
        rope_pairs="halves",
        rope_scaling=None,
        activation=tuple(ACTIVATIONS.values()),
        kv_heads=(None, c.heads),
        head_width=c.width // c.heads,
        qkv_bias=(None, c.bias),
        qk_norm=False,
        window=None,
        **no_head_bias(c),
    )
    rope = {"rope_type": "default", "rope_theta": c.rope_theta, "partial_rotary_factor": c.rotary_width / c.head_width}
    return dict(
        model_type="gpt_neox",
        architectures=["GPTNeoXForCausalLM"],
        vocab_size=c.vocab,
        max_position_embeddings=c.context,
        hidden_size=c.width,
        num_hidden_layers=c.depth,
        num_attention_heads=c.heads,
        intermediate_size=c.mlp_width,
        layer_norm_eps=c.eps,
        rope_parameters=rope,
        use_parallel_residual=False,
        hidden_act=their_word(ACTIVATIONS, c.activation),
        attention_bias=True,
        tie_word_embeddings=c.tie_embeddings,
    )


def rules(c: GPTConfig) -> Iterator[Rule]:
    yield same("gpt_neox.embed_in.weight", "tokens.weight")
    for i in range(c.depth):
        theirs, ours = f"gpt_neox.layers.{i}", f"blocks.{i}"
        yield _by_head(f"{theirs}.attention.query_key_value.weight", f"{ours}.attn.qkv.weight", c)
        if c.bias:
            yield _by_head(f"{theirs}.attention.query_key_value.bias", f"{ours}.attn.qkv.bias", c)
        else:
            yield zeros(f"{theirs}.attention.query_key_value.bias", (3 * c.width,))
        for there, here in BLOCK.items():
            rows = c.mlp_width if here == "mlp.up" else c.width
            yield from with_bias(f"{theirs}.{there}", f"{ours}.{here}", c.bias, rows)
    yield from with_bias("gpt_neox.final_layer_norm", "norm", c.bias, c.width)
    if not c.tie_embeddings:
        yield same("lm_head.weight", "head.weight")


def _by_head(theirs: str, ours: str, c: GPTConfig) -> Rule:
    """Query, key and value of each head after one another there; all queries, all keys, all values here."""

    def apart(tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (c.heads, 3, -1)).transpose(0, 1).flatten(0, 2)

    def together(tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (3, c.heads, -1)).transpose(0, 1).flatten(0, 2)

    return Rule((theirs,), (ours,), lambda t: [apart(t[0])], lambda t: [together(t[0])])


NEOX = Architecture(
    NAME,
    "transformers",
    ("gpt_neox",),
    GPT,
    GPTConfig,
    FIELDS,
    settings,
    describe,
    rules,
    tied=lambda c: {"lm_head.weight": "gpt_neox.embed_in.weight"} if c.tie_embeddings else {},
    unused=lambda c: {
        r"gpt_neox\.layers\.\d+\.attention\.(masked_)?bias": not_causal,
        r"gpt_neox\.layers\.\d+\.attention\.rotary_emb\.inv_freq": other_frequencies,
    },
    renamed={r"^embed_out\.": "lm_head.", r"^(?=(embed_in|layers|final_layer_norm)\.)": "gpt_neox."},
    untie="tie_word_embeddings",
    classes=("GPTNeoXForCausalLM", "GPTNeoXModel"),
    defaults=DEFAULTS,
    dropout={"hidden_dropout": ("dropout", 0.0), "attention_dropout": ("attention_dropout", 0.0)},
    inputs=token_inputs,
    ask=lambda original, given: original(input_ids=given[0]).logits,
    outputs=lambda c: (
        {f"blocks.{i}.post": f"gpt_neox.layers.{i}" for i in range(c.depth)} | {"norm": "gpt_neox.final_layer_norm"}
    ),
)
