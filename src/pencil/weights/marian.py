"""Marian's translators as Hugging Face names them (MarianMTModel), to our encoder–decoder and back.

Separate query, key and value there, one joined matrix here; sinusoidal positions are computed, not saved.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import UserError, build
from ..core.positions import Sinusoidal
from ..models.seq2seq import Seq2Seq, Seq2SeqConfig
from .checks import check_tensors, drop_tied, fields_of, on_meta

WHAT = "Marian"
ACTIVATIONS = {
    "swish": "silu",
    "silu": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
}
BLOCK = {
    "self_attn.out_proj": "attn.out",
    "self_attn_layer_norm": "attn_norm",
    "fc1": "mlp.up",
    "fc2": "mlp.down",
    "final_layer_norm": "mlp_norm",
}
CROSS = {"encoder_attn.out_proj": "cross.out", "encoder_attn_layer_norm": "cross_norm"}
STACKS = {"model.encoder": "encoder.blocks", "model.decoder": "blocks"}
SINUSOIDS = tuple(f"{stack}.embed_positions.weight" for stack in STACKS)
# names of a token table: first the one their files always have, then those of a model in memory
SHARED = ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
SOURCE = ("model.encoder.embed_tokens.weight",)
TARGET = ("model.decoder.embed_tokens.weight",)


def pairs(depth: int) -> Iterator[tuple[str, str]]:
    """Their name and ours, without weight or bias, for every part but the joined queries, keys and values."""
    for theirs, ours in STACKS.items():
        parts = BLOCK | CROSS if ours == "blocks" else BLOCK
        for i in range(depth):
            for part, named in parts.items():
                yield f"{theirs}.layers.{i}.{part}", f"{ours}.{i}.{named}"


def joined(depth: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Their names of a query, key and value, and ours of the three together."""
    for theirs, ours in STACKS.items():
        kinds = {"self_attn": "attn", "encoder_attn": "cross"} if ours == "blocks" else {"self_attn": "attn"}
        for i in range(depth):
            for part, named in kinds.items():
                yield tuple(f"{theirs}.layers.{i}.{part}.{x}_proj" for x in "qkv"), f"{ours}.{i}.{named}.qkv"


def config_from(theirs: Mapping[str, Any]) -> Seq2SeqConfig:
    """Our config from their config.json."""
    theirs = fields_of(theirs, WHAT)
    theirs.only(
        normalize_before=False, normalize_embedding=False, add_final_layer_norm=False, static_position_embeddings=True
    )
    activation = ACTIVATIONS.get(theirs.get("activation_function", "gelu"))
    if activation is None:
        raise UserError(f"this Marian's activation, {theirs['activation_function']!r}, is none of ours")
    for size in ("layers", "attention_heads", "ffn_dim"):
        here, there = theirs[f"encoder_{size}"], theirs[f"decoder_{size}"]
        if here != there:
            raise UserError(
                f"this Marian has encoder_{size} {here} and decoder_{size} {there}, and ours has one for both"
            )
    shared, tied = theirs.get("share_encoder_decoder_embeddings", True), theirs.get("tie_word_embeddings", True)
    if shared and not tied:
        raise UserError("this Marian's config shares its embeddings and does not tie them, which contradict each other")
    values = dict(
        vocab=theirs["vocab_size"] if shared else theirs.get("decoder_vocab_size") or theirs["vocab_size"],
        source_vocab=None if shared else theirs["vocab_size"],
        context=theirs["max_position_embeddings"],
        source_context=theirs["max_position_embeddings"],
        width=theirs["d_model"],
        depth=theirs["encoder_layers"],
        heads=theirs["encoder_attention_heads"],
        hidden=theirs["encoder_ffn_dim"],
        norm_position="post",
        eps=1e-5,
        activation=activation,
        bias=True,
        positions="sinusoidal-halves",
        share_embeddings=shared,
        scale_embeddings=bool(theirs.get("scale_embedding")),
        tie_embeddings=tied,
        head_bias=True,
    )
    return build(Seq2SeqConfig, values, "model.")


def from_hf(tensors: Mapping[str, Tensor], config: Seq2SeqConfig) -> dict[str, Tensor]:
    """Our state dict from theirs, read from a file or taken from a model in memory."""
    tensors = dict(tensors)
    for name in SINUSOIDS:
        if name in tensors:
            _check_sinusoids(tensors.pop(name))
    tables = SHARED if config.share_embeddings else TARGET
    names = (*tables, "lm_head.weight") if config.tie_embeddings else tables
    tensors[names[0]] = _first(tensors, names)
    for name in names[1:]:
        drop_tied(tensors, name, names[0], WHAT)
    tensors.setdefault("final_logits_bias", tensors[names[0]].new_zeros(1, config.vocab))
    check_tensors(tensors, to_hf(on_meta(Seq2Seq, config), config), WHAT)
    ours = {"tokens.weight": tensors[names[0]], "head_bias": tensors["final_logits_bias"][0]}
    if not config.share_embeddings:
        ours["source_tokens.weight"] = tensors[SOURCE[0]]
    if not config.tie_embeddings:
        ours["head.weight"] = tensors["lm_head.weight"]
    for kind in ("weight", "bias"):
        ours |= {named: tensors[name] for name, named in _both(pairs(config.depth), kind)}
        for parts, named in joined(config.depth):
            ours[f"{named}.{kind}"] = torch.cat([tensors[f"{part}.{kind}"] for part in parts])
    return ours


def to_hf(tensors: Mapping[str, Tensor], config: Seq2SeqConfig) -> dict[str, Tensor]:
    """What their file holds, from our state dict."""
    _check(config)
    theirs = {"final_logits_bias": tensors["head_bias"][None]}
    theirs[(SHARED if config.share_embeddings else TARGET)[0]] = tensors["tokens.weight"]
    if not config.share_embeddings:
        theirs[SOURCE[0]] = tensors["source_tokens.weight"]
    if not config.tie_embeddings:
        theirs["lm_head.weight"] = tensors["head.weight"]
    for kind in ("weight", "bias"):
        theirs |= {name: tensors[named] for name, named in _both(pairs(config.depth), kind)}
        for parts, named in joined(config.depth):
            for part, tensor in zip(parts, tensors[f"{named}.{kind}"].chunk(3), strict=True):
                theirs[f"{part}.{kind}"] = tensor.contiguous()
    return theirs


def _both(names: Iterator[tuple[str, str]], kind: str) -> Iterator[tuple[str, str]]:
    return ((f"{theirs}.{kind}", f"{ours}.{kind}") for theirs, ours in names)


def _first(tensors: Mapping[str, Tensor], names: tuple[str, ...]) -> Tensor:
    for name in names:
        if name in tensors:
            return tensors[name]
    raise UserError(f"this Marian has no {' and no '.join(names)}")


def _check_sinusoids(table: Tensor) -> None:
    """Refuse positions that are not our sinusoids; a file may have rounded them to half precision."""
    length, width = table.shape if table.ndim == 2 else (0, 0)
    if not length or width % 2:
        raise UserError(f"this Marian's table of positions has shape {tuple(table.shape)}: it is not length × width")
    expected = Sinusoidal(width, halves=True).embedding(torch.arange(length)[None, :, None])[0]
    if not torch.allclose(table.to(expected), expected, atol=1e-3, rtol=0):
        raise UserError("this Marian's table of positions is not ours: all the sines, then all the cosines")


def _check(config: Seq2SeqConfig) -> None:
    c = config
    post = c.norm_position == "post" and c.norm == "layer" and c.positions == "sinusoidal-halves"
    biased = c.bias and c.head_bias
    plain = c.activation in ACTIVATIONS.values() and c.kv_heads in (None, c.heads) and c.eps == 1e-5
    if not (post and biased and plain) or (c.share_embeddings and not c.tie_embeddings):
        raise UserError(
            "only a post-norm encoder–decoder with biases, head_bias, sinusoidal-halves positions and, with "
            "share_embeddings, tie_embeddings can be written as a Marian"
        )
