"""Marian's translators as Hugging Face names them (MarianMTModel), to our encoder–decoder and back.

Separate query, key and value there, one joined matrix here; the waves that tell positions are computed, not kept.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from ..core.positions import SinCos
from ..models.seq2seq import Seq2SeqConfig

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
WAVES = tuple(f"{stack}.embed_positions.weight" for stack in STACKS)
# where a table of words may stand: first what their file is sure to hold, then what a model in memory holds too
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
        raise UserError(
            "this Marian says that its tables of words are shared and that they are not tied; only one holds"
        )
    return Seq2SeqConfig(
        vocab=theirs["vocab_size"] if shared else theirs.get("decoder_vocab_size") or theirs["vocab_size"],
        source_vocab=None if shared else theirs["vocab_size"],
        context=theirs["max_position_embeddings"],
        source_context=theirs["max_position_embeddings"],
        width=theirs["d_model"],
        depth=theirs["encoder_layers"],
        heads=theirs["encoder_attention_heads"],
        hidden=theirs["encoder_ffn_dim"],
        trunk="post",
        eps=1e-5,
        activation=activation,  # pyright: ignore[reportArgumentType]
        bias=True,
        positions="sincos-halves",
        shared=shared,
        scaled=bool(theirs.get("scale_embedding")),
        tied=tied,
        head_bias=True,
    )


def from_hf(tensors: Mapping[str, Tensor], config: Seq2SeqConfig) -> dict[str, Tensor]:
    """Our state dict from theirs, read from a file or taken from a model in memory."""
    for name in WAVES:
        if name in tensors:
            _check_waves(tensors[name])
    head = ("lm_head.weight",)
    ours = {"tokens.weight": _first(tensors, (SHARED if config.shared else TARGET) + (head if config.tied else ()))}
    if not config.shared:
        ours["source_tokens.weight"] = _first(tensors, SOURCE)
    if not config.tied:
        ours["head.weight"] = _first(tensors, head)
    bias = tensors.get("final_logits_bias")
    ours["head_bias"] = ours["tokens.weight"].new_zeros(config.vocab) if bias is None else bias[0]
    for kind in ("weight", "bias"):
        ours |= {named: tensors[name] for name, named in _both(pairs(config.depth), kind)}
        for parts, named in joined(config.depth):
            ours[f"{named}.{kind}"] = torch.cat([tensors[f"{part}.{kind}"] for part in parts])
    return ours


def to_hf(tensors: Mapping[str, Tensor], config: Seq2SeqConfig) -> dict[str, Tensor]:
    """What their file holds, from our state dict."""
    _check(config)
    theirs = {"final_logits_bias": tensors["head_bias"][None]}
    theirs[(SHARED if config.shared else TARGET)[0]] = tensors["tokens.weight"]
    if not config.shared:
        theirs[SOURCE[0]] = tensors["source_tokens.weight"]
    if not config.tied:
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


def _check_waves(table: Tensor) -> None:
    """Refuse positions that are not the waves we compute; a file may have rounded them to half precision."""
    length, width = table.shape
    waves = SinCos(width, halves=True).stamp(torch.arange(length)[None, :, None])[0]
    if not torch.allclose(table.to(waves), waves, atol=1e-3, rtol=0):
        raise UserError("this Marian's table of positions is not the sines and then the cosines that ours are")


def _check(config: Seq2SeqConfig) -> None:
    c = config
    kept = c.trunk == "post" and c.norm == "layer" and c.positions == "sincos-halves" and c.bias and c.head_bias
    plain = c.activation in ACTIVATIONS.values() and c.kv_heads in (None, c.heads) and c.eps == 1e-5
    if not kept or not plain or (c.shared and not c.tied):
        raise UserError(
            "only a post-norm encoder–decoder with biases, a bias on the head, sincos-halves positions and, if shared, "
            "a tied table can be written as a Marian"
        )
