"""T5 as transformers names it (T5ForConditionalGeneration), to our encoder–decoder and back.

Of the first T5 the head is the table of tokens, and what it multiplies is divided by √width; from T5 1.1 on (Flan-T5
too) the head is a matrix of its own and nothing is divided. Each half has one table of biases, kept in its first block.
"""

from collections.abc import Iterator
from typing import Any

from ..config import UserError
from ..models.seq2seq import Seq2Seq, Seq2SeqConfig
from .maps import Architecture, Fields, Rule, anything, fields, joined, must_have, only, reshaped, same
from .marian import ask_pair, pair_inputs

PLAIN = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "silu": "silu",
         "swish": "silu"}  # fmt: skip
GATED = {"gelu_new": "geglu-tanh", "gelu_pytorch_tanh": "geglu-tanh", "gelu": "geglu", "silu": "swiglu",
         "swish": "swiglu"}  # fmt: skip
TABLE, HEAD = "shared.weight", "lm_head.weight"

FIELDS = fields(
    mapped="vocab_size n_positions d_model d_kv d_ff num_layers num_decoder_layers num_heads "
    "relative_attention_num_buckets relative_attention_max_distance layer_norm_epsilon feed_forward_proj dense_act_fn "
    "is_gated_act tie_word_embeddings scale_decoder_outputs num_hidden_layers",
    neutral="dropout_rate classifier_dropout initializer_factor output_past",
    is_encoder_decoder=only(True),
)
SIZES = {"hidden_size": "d_model", "num_attention_heads": "num_heads", "head_dim": "d_kv"}

DEFAULTS = dict(
    d_kv=64,
    num_decoder_layers=None,
    relative_attention_num_buckets=32,
    relative_attention_max_distance=128,
    layer_norm_epsilon=1e-6,
    feed_forward_proj="relu",
)


def settings(theirs: Fields) -> dict[str, Any]:
    depth = theirs.size("num_layers")
    # the library reads this name after it has taken the decoder's depth from num_layers, so it does not stand for it
    if (other := theirs.get("num_hidden_layers", depth)) != depth:
        raise UserError(f"this T5's config has two values of num_layers: {depth} and, as num_hidden_layers, {other!r}")
    decoder = depth if theirs["num_decoder_layers"] is None else theirs.size("num_decoder_layers")
    width, heads, head_width = theirs.size("d_model"), theirs.size("num_heads"), theirs.size("d_kv")
    # a config says by either whether this is a first T5, and the newer of the two names counts
    first = theirs.get("scale_decoder_outputs", theirs.get("tie_word_embeddings") is not False)
    context = theirs.size("n_positions", 512)
    return dict(
        vocab=theirs.size("vocab_size"),
        context=context,
        source_context=context,
        width=width,
        depth=depth,
        decoder_depth=None if decoder == depth else decoder,
        heads=heads,
        head_dim=None if head_width * heads == width else head_width,
        hidden=theirs.size("d_ff"),
        norm="rms",
        eps=theirs["layer_norm_epsilon"],
        activation=_activation(theirs),
        bias=False,
        positions="t5",
        buckets=theirs.size("relative_attention_num_buckets"),
        max_distance=theirs.size("relative_attention_max_distance"),
        share_embeddings=True,
        tie_embeddings=bool(first),
        scale_logits=bool(first),
    )


def _activation(theirs: Fields) -> str:
    """Our word for `feed_forward_proj`: gated-gelu is the approximation through tanh, and gelu is not."""
    words = str(theirs["feed_forward_proj"])
    gated, name = words.startswith("gated-"), words.removeprefix("gated-")
    if words == "gated-gelu":
        name = "gelu_new"
    # written beside it by newer versions, and read by them
    gated, name = theirs.get("is_gated_act", gated), theirs.get("dense_act_fn", name)
    choices = GATED if gated else PLAIN
    if name not in choices:
        raise UserError(
            f"this T5's feed_forward_proj is {words!r} ({'gated ' if gated else ''}{name}), which ours does not have: "
            f"only {', '.join(choices)}{' with a gate' if gated else ''}"
        )
    return choices[name]


def describe(c: Seq2SeqConfig) -> dict[str, Any]:
    gates = {ours: theirs for theirs, ours in reversed(GATED.items())}
    plain = {ours: theirs for theirs, ours in reversed(PLAIN.items())}
    must_have(
        c,
        "T5",
        norm_position="pre",
        norm="rms",
        positions="t5",
        bias=False,
        head_bias=False,
        activation=(*plain, *gates),
        kv_heads=(None, c.heads),
        share_embeddings=True,
        scale_embeddings=False,
        scale_logits=c.tie_embeddings,
    )
    gated = c.activation in gates
    name = gates[c.activation] if gated else plain[c.activation]
    # the usual word for a gate is gated-gelu, whichever of the two GELUs it is
    words = f"gated-{name.removesuffix('_new')}" if gated else name
    return dict(
        model_type="t5",
        architectures=["T5ForConditionalGeneration"],
        is_encoder_decoder=True,
        vocab_size=c.vocab,
        n_positions=max(c.context, c.source_context),
        d_model=c.width,
        d_kv=c.head_width,
        d_ff=c.mlp_width,
        num_layers=c.depth,
        num_decoder_layers=c.decoder_blocks,
        num_heads=c.heads,
        relative_attention_num_buckets=c.buckets or 32,
        relative_attention_max_distance=c.max_distance or 128,
        layer_norm_epsilon=c.eps,
        feed_forward_proj=words,
        dense_act_fn=name,
        is_gated_act=gated,
        tie_word_embeddings=c.tie_embeddings,
    )


def rules(c: Seq2SeqConfig) -> Iterator[Rule]:
    yield same(TABLE, "tokens.weight")
    yield from _half("encoder", "encoder.", c.depth, c, cross=False)
    yield from _half("decoder", "", c.decoder_blocks, c, cross=True)
    if not c.tie_embeddings:
        yield same(HEAD, "head.weight")


def _half(theirs: str, ours: str, depth: int, c: Seq2SeqConfig, cross: bool) -> Iterator[Rule]:
    buckets = c.buckets or 32
    bias = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    yield reshaped(bias, f"{ours}positions.table", (buckets, c.heads), (1, buckets, c.heads))
    gated = c.activation in GATED.values()
    mlp = {"wi_0": "gate", "wi_1": "up", "wo": "down"} if gated else {"wi": "up", "wo": "down"}
    for i in range(depth):
        block, here = f"{theirs}.block.{i}.layer", f"{ours}blocks.{i}"
        yield from _attention(f"{block}.0", "SelfAttention", f"{here}.attn", c)
        if cross:
            yield from _attention(f"{block}.1", "EncDecAttention", f"{here}.cross", c)
        last = f"{block}.{1 + cross}"
        yield same(f"{last}.layer_norm.weight", f"{here}.mlp_norm.weight")
        for part, named in mlp.items():
            yield same(f"{last}.DenseReluDense.{part}.weight", f"{here}.mlp.{named}.weight")
    yield same(f"{theirs}.final_layer_norm.weight", f"{ours}norm.weight")


def _attention(layer: str, kind: str, ours: str, c: Seq2SeqConfig) -> Iterator[Rule]:
    yield same(f"{layer}.layer_norm.weight", f"{ours}_norm.weight")
    names = [f"{layer}.{kind}.{part}.weight" for part in "qkv"]
    yield joined(names, f"{ours}.qkv.weight", [c.heads * c.head_width] * 3)
    yield same(f"{layer}.{kind}.o.weight", f"{ours}.out.weight")


def _tied(c: Seq2SeqConfig) -> dict[str, str]:
    tables = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    return dict.fromkeys((*tables, HEAD) if c.tie_embeddings else tables, TABLE)


def _outputs(c: Seq2SeqConfig) -> dict[str, str]:
    halves = {f"encoder.blocks.{i}.post": f"encoder.block.{i}" for i in range(c.depth)}
    halves |= {f"blocks.{i}.post": f"decoder.block.{i}" for i in range(c.decoder_blocks)}
    return halves | {"encoder.out": "encoder.final_layer_norm", "norm": "decoder.final_layer_norm"}


T5 = Architecture(
    "T5",
    "transformers",
    ("t5",),
    Seq2Seq,
    Seq2SeqConfig,
    FIELDS,
    settings,
    describe,
    rules,
    tied=_tied,
    # the library then uses the table for the head
    absent=lambda c: {} if c.tie_embeddings else {HEAD: TABLE},
    # in some older files, and never used
    unused=lambda c: {r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight": anything},
    aliases=SIZES,
    defaults=DEFAULTS,
    classes=("T5ForConditionalGeneration", "T5Model", "T5WithLMHeadModel"),
    dropout={"dropout_rate": ("dropout", 0.1)},
    inputs=pair_inputs,
    ask=ask_pair,
    outputs=_outputs,
)
