"""BERT as Hugging Face names it (BertForMaskedLM, BertForSequenceClassification), to our reader and back.

Separate query, key and value there, one joined matrix here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import UserError, build
from ..models.reader import Reader, ReaderConfig
from .checks import check_tensors, drop_tied, fields_of, on_meta, renamed

WHAT = "BERT"
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu"}
TABLES = {
    "bert.embeddings.word_embeddings.weight": "tokens.weight",
    "bert.embeddings.token_type_embeddings.weight": "types.weight",
    "bert.embeddings.position_embeddings.weight": "encoder.positions.table",
}
BLOCK = {
    "attention.output.dense": "attn.out",
    "attention.output.LayerNorm": "attn_norm",
    "intermediate.dense": "mlp.up",
    "output.dense": "mlp.down",
    "output.LayerNorm": "mlp_norm",
}
QKV = tuple(f"attention.self.{part}" for part in ("query", "key", "value"))
MASKED = {"cls.predictions.transform.dense": "head.map", "cls.predictions.transform.LayerNorm": "head.norm"}
LABEL = {"bert.pooler.dense": "head.pool", "classifier": "head.label"}
# a file may have other names for what a model in memory holds
OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
# a file made in pre-training also has the head of next sentences, which a masked language model does not read
NEXT_SENTENCE = tuple(
    f"{part}.{kind}" for part in ("bert.pooler.dense", "cls.seq_relationship") for kind in ("weight", "bias")
)


def pairs(config: ReaderConfig) -> Iterator[tuple[str, str]]:
    """Their name and ours, for every tensor but the joined queries, keys and values."""
    yield from TABLES.items()
    parts = {"bert.embeddings.LayerNorm": "encoder.embed_norm"}
    for i in range(config.depth):
        parts |= {f"bert.encoder.layer.{i}.{theirs}": f"encoder.blocks.{i}.{ours}" for theirs, ours in BLOCK.items()}
    for theirs, ours in (parts | (LABEL if config.classes else MASKED)).items():
        for kind in ("weight", "bias"):
            yield f"{theirs}.{kind}", f"{ours}.{kind}"
    if not config.classes:
        yield "cls.predictions.bias", "head.bias"


def joined(depth: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Their names of a query, key and value, and ours of the three together."""
    for i in range(depth):
        for kind in ("weight", "bias"):
            yield tuple(f"bert.encoder.layer.{i}.{x}.{kind}" for x in QKV), f"encoder.blocks.{i}.attn.qkv.{kind}"


def config_from(theirs: Mapping[str, Any], classes: int | None = None) -> ReaderConfig:
    """Our config from their config.json: a classifier of that many labels, or without them a masked language model."""
    theirs = fields_of(theirs, WHAT)
    act, kind = theirs.get("hidden_act", "gelu"), theirs.get("position_embedding_type") or "absolute"
    activation = ACTIVATIONS.get(act)
    if activation is None:
        raise UserError(f"this BERT's activation, {act!r}, is none of ours")
    if kind != "absolute":
        raise UserError(f"this BERT's positions are {kind!r}, and only a table of absolute positions can be converted")
    if theirs.get("is_decoder") or theirs.get("add_cross_attention"):
        raise UserError("this BERT is a decoder, and our reader attends in both directions")
    if not classes and activation != "gelu":
        raise UserError(
            f"this BERT's masked-token head has the activation {act!r}, and ours the exact GELU; with classes it fits"
        )
    if not classes and not theirs.get("tie_word_embeddings", True):
        raise UserError(
            "this BERT's output embeddings are not tied to its input embeddings, and our masked-token head ties them"
        )
    values = dict(
        vocab=theirs["vocab_size"],
        context=theirs["max_position_embeddings"],
        classes=classes,
        width=theirs["hidden_size"],
        depth=theirs["num_hidden_layers"],
        heads=theirs["num_attention_heads"],
        hidden=theirs["intermediate_size"],
        norm_position="post",
        embed_norm=True,
        eps=theirs.get("layer_norm_eps", 1e-12),
        activation=activation,
        bias=True,
        positions="learned",
        token_types=theirs.get("type_vocab_size", 2),
        pool="class",
    )
    return build(ReaderConfig, values, "model.")


def from_hf(tensors: Mapping[str, Tensor], config: ReaderConfig) -> dict[str, Tensor]:
    """Our state dict from theirs, read from a file or taken from a model in memory."""
    plain = renamed(tensors, _modern, WHAT)
    if config.classes and "classifier.weight" not in plain:
        raise UserError("this BERT has no classifier: without classes it is read as a masked language model")
    if not config.classes and "cls.predictions.transform.dense.weight" not in plain:
        raise UserError("this BERT has no masked-token head: give classes if it has a classifier")
    plain.pop("bert.embeddings.position_ids", None)  # 0, 1, 2, …
    if not config.classes:
        drop_tied(plain, "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight", WHAT)
        drop_tied(plain, "cls.predictions.decoder.bias", "cls.predictions.bias", WHAT)
        plain = {name: tensor for name, tensor in plain.items() if name not in NEXT_SENTENCE}
    check_tensors(plain, to_hf(on_meta(Reader, config), config), WHAT)
    ours = {named: plain[name] for name, named in pairs(config)}
    return ours | {named: torch.cat([plain[part] for part in parts]) for parts, named in joined(config.depth)}


def _modern(name: str) -> str:
    for old, new in OLD.items():
        name = name.replace(old, new)
    return name


def to_hf(tensors: Mapping[str, Tensor], config: ReaderConfig) -> dict[str, Tensor]:
    """What their file holds, from our state dict."""
    _check(config)
    theirs = {name: tensors[named] for name, named in pairs(config)}
    for parts, named in joined(config.depth):
        theirs |= {part: t.contiguous() for part, t in zip(parts, tensors[named].chunk(3), strict=True)}
    return theirs


def _check(config: ReaderConfig) -> None:
    c = config
    post = c.norm_position == "post" and c.norm == "layer" and c.embed_norm
    embedded = c.positions == "learned" and c.bias and c.token_types
    plain = c.activation in ACTIVATIONS.values() and c.kv_heads in (None, c.heads)
    if not (post and embedded and plain) or (c.pool != "class" if c.classes else c.activation != "gelu"):
        raise UserError(
            "only a post-norm reader with embed_norm, token_types, biases, learned positions and, for classes, pool "
            "class (for masked tokens, the exact GELU) can be written as a BERT"
        )
