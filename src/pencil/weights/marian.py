"""Marian's translators as transformers names them (MarianMTModel), to our encoder–decoder and back.

Separate query, key and value there, one joined matrix here; sinusoidal positions are computed, not saved.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..config import UserError
from ..core.positions import Sinusoidal
from ..models.seq2seq import Seq2Seq, Seq2SeqConfig
from .maps import (
    Architecture,
    Fields,
    Rule,
    fields,
    layers,
    must_have,
    only,
    projections,
    reshaped,
    same,
    their_word,
    token_ids,
)

ACTIVATIONS = {
    "swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
}  # fmt: skip
BLOCK = {
    "self_attn.out_proj": "attn.out",
    "self_attn_layer_norm": "attn_norm",
    "fc1": "mlp.up",
    "fc2": "mlp.down",
    "final_layer_norm": "mlp_norm",
}
CROSS = {"encoder_attn.out_proj": "cross.out", "encoder_attn_layer_norm": "cross_norm"}
SHARED = "model.shared.weight"
SOURCE, TARGET = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
HEAD = "lm_head.weight"
BIAS = "final_logits_bias"

FIELDS = fields(
    mapped="vocab_size decoder_vocab_size max_position_embeddings d_model encoder_layers decoder_layers "
    "encoder_attention_heads decoder_attention_heads encoder_ffn_dim decoder_ffn_dim activation_function "
    "scale_embedding share_encoder_decoder_embeddings tie_word_embeddings",
    neutral="dropout attention_dropout activation_dropout classifier_dropout classif_dropout encoder_layerdrop "
    "decoder_layerdrop init_std extra_pos_embeddings add_bias_logits force_bos_token_to_be_generated "
    "normalization_type",
    is_encoder_decoder=only(True),
    normalize_before=only(False),
    normalize_embedding=only(False),
    add_final_layer_norm=only(False),
    static_position_embeddings=only(True),
)
# other names of a config's sizes: they stand for the encoder's
SIZES = {
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
}

DEFAULTS = dict(
    decoder_vocab_size=None,
    activation_function="gelu",
    scale_embedding=False,
    share_encoder_decoder_embeddings=True,
    tie_word_embeddings=True,
)


def settings(theirs: Fields) -> dict[str, Any]:
    for size in ("attention_heads", "ffn_dim"):
        here, there = theirs.size(f"encoder_{size}"), theirs.size(f"decoder_{size}")
        if here != there:
            raise UserError(
                f"this Marian has encoder_{size} {here} and decoder_{size} {there}, and ours has one for both"
            )
    shared, tied = theirs["share_encoder_decoder_embeddings"], theirs["tie_word_embeddings"]
    if shared and not tied:
        raise UserError("this Marian's config shares its embeddings and does not tie them, which contradict each other")
    vocab, depth = theirs.size("vocab_size"), theirs.size("encoder_layers")
    decoder = theirs.size("decoder_layers")
    return dict(
        vocab=vocab if shared else theirs["decoder_vocab_size"] or vocab,
        source_vocab=None if shared else vocab,
        context=theirs.size("max_position_embeddings"),
        source_context=theirs.size("max_position_embeddings"),
        width=theirs.size("d_model"),
        depth=depth,
        decoder_depth=None if decoder == depth else decoder,
        heads=theirs.size("encoder_attention_heads"),
        hidden=theirs.size("encoder_ffn_dim"),
        norm_position="post",
        eps=1e-5,
        activation=theirs.one_of("activation_function", ACTIVATIONS),
        bias=True,
        positions="sinusoidal-halves",
        share_embeddings=shared,
        scale_embeddings=bool(theirs["scale_embedding"]),
        tie_embeddings=tied,
        head_bias=True,
    )


def describe(c: Seq2SeqConfig) -> dict[str, Any]:
    must_have(
        c,
        "Marian",
        norm_position="post",
        norm="layer",
        eps=1e-5,
        positions="sinusoidal-halves",
        bias=True,
        head_bias=True,
        activation=tuple(dict.fromkeys(ACTIVATIONS.values())),
        kv_heads=(None, c.heads),
        head_width=c.width // c.heads,
        scale_logits=False,
        **({"tie_embeddings": True} if c.share_embeddings else {}),
    )
    return dict(
        model_type="marian",
        architectures=["MarianMTModel"],
        is_encoder_decoder=True,
        vocab_size=c.source_vocab or c.vocab,
        decoder_vocab_size=c.vocab,
        max_position_embeddings=max(c.context, c.source_context),  # one table for both, of any length
        d_model=c.width,
        encoder_layers=c.depth,
        decoder_layers=c.decoder_blocks,
        encoder_attention_heads=c.heads,
        decoder_attention_heads=c.heads,
        encoder_ffn_dim=c.mlp_width,
        decoder_ffn_dim=c.mlp_width,
        activation_function=their_word(ACTIVATIONS, c.activation),
        scale_embedding=c.scale_embeddings,
        share_encoder_decoder_embeddings=c.share_embeddings,
        tie_word_embeddings=c.tie_embeddings,
        # the library's defaults are tokens of one vocabulary
        pad_token_id=None,
        forced_eos_token_id=None,
    )


def rules(c: Seq2SeqConfig) -> Iterator[Rule]:
    yield same(SHARED if c.share_embeddings else TARGET, "tokens.weight")
    if not c.share_embeddings:
        yield same(SOURCE, "source_tokens.weight")
    if not c.tie_embeddings:
        yield same(HEAD, "head.weight")
    yield reshaped(BIAS, "head_bias", (1, c.vocab), (c.vocab,))
    for i in range(c.depth):
        yield from _block(f"model.encoder.layers.{i}", f"encoder.blocks.{i}", BLOCK, {"self_attn": "attn"}, c.width)
    for i in range(c.decoder_blocks):
        kinds = {"self_attn": "attn", "encoder_attn": "cross"}
        yield from _block(f"model.decoder.layers.{i}", f"blocks.{i}", BLOCK | CROSS, kinds, c.width)


def _block(theirs: str, ours: str, table: dict[str, str], attention: dict[str, str], width: int) -> Iterator[Rule]:
    for part, named in attention.items():
        yield from projections([f"{theirs}.{part}.{x}_proj" for x in "qkv"], f"{ours}.{named}.qkv", [width] * 3)
    yield from layers(theirs, ours, table)


def tied(c: Seq2SeqConfig) -> dict[str, str]:
    """A file has each table once, under any of its names."""
    if c.share_embeddings:
        return dict.fromkeys((SOURCE, TARGET, HEAD), SHARED)
    return {HEAD: TARGET} if c.tie_embeddings else {}


def _other_positions(table: Tensor, c: Seq2SeqConfig) -> str | None:
    if table.ndim != 2 or table.shape[1] != c.width:
        return f"has shape {tuple(table.shape)}: it is not length × width"
    ours = Sinusoidal(c.width, halves=True).embedding(torch.arange(len(table))[None, :, None])[0]
    # a file may have rounded them to half precision
    if not torch.allclose(table.to(ours), ours, atol=1e-3, rtol=0):
        return "is another table of positions than ours: all the sines, then all the cosines"
    return None


def _blocks(c: Seq2SeqConfig, encoder: str, decoder: str) -> dict[str, str]:
    """For `outputs`: the blocks of both halves, under the original's names of their lists."""
    return {f"encoder.blocks.{i}.post": f"{encoder}.{i}" for i in range(c.depth)} | {
        f"blocks.{i}.post": f"{decoder}.{i}" for i in range(c.decoder_blocks)
    }


def pair_inputs(c: Seq2SeqConfig, generator: torch.Generator, length: int) -> tuple[Tensor, Tensor]:
    """Random tokens of a target and of a source that is a little shorter."""
    target = token_ids(c.vocab, length, generator)
    return target, token_ids(c.source_vocab or c.vocab, max(1, length - 3), generator)[: len(target)]


def ask_pair(original: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
    return original(input_ids=given[1], decoder_input_ids=given[0], use_cache=False, return_dict=True).logits


MARIAN = Architecture(
    "Marian",
    "transformers",
    ("marian",),
    Seq2Seq,
    Seq2SeqConfig,
    FIELDS,
    settings,
    describe,
    rules,
    tied=tied,
    absent=lambda c: {BIAS: None},
    unused=lambda c: {r"model\.(en|de)coder\.embed_positions\.weight": _other_positions},
    # files of the model without its head have no prefix
    renamed={r"^(?=(shared|encoder|decoder)\.)": "model."},
    aliases=SIZES,
    defaults=DEFAULTS,
    classes=("MarianMTModel", "MarianModel"),
    dropout={"dropout": ("dropout", 0.1), "attention_dropout": ("attention_dropout", 0.0)},
    inputs=pair_inputs,
    ask=ask_pair,
    outputs=lambda c: _blocks(c, "model.encoder.layers", "model.decoder.layers"),
)
