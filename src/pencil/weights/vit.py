"""ViT and DeiT as transformers names them: classifiers of images with a class token.

DeiT has a second token before the patches. `DeiTForImageClassificationWithTeacher` reads a class from it, too, and
takes the mean; in `DeiTForImageClassification` it is a register. The patch projection is a convolution there: the same
values as our matrix, in the same order.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from ..models.vit import ViT, ViTConfig
from .maps import (
    Architecture,
    Fields,
    Rule,
    count_labels,
    fields,
    layers,
    must_have,
    parts,
    projections,
    reshaped,
    same,
    their_word,
)

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu",
               "silu": "silu", "swish": "silu"}  # fmt: skip
FIELDS = fields(
    mapped="image_size patch_size num_channels hidden_size num_hidden_layers num_attention_heads intermediate_size "
    "hidden_act layer_norm_eps qkv_bias id2label num_labels architectures",
    neutral="hidden_dropout_prob attention_probs_dropout_prob encoder_stride pooler_output_size pooler_act",
)
TEACHER = "DeiTForImageClassificationWithTeacher"
CLASSES = {"vit": ("ViTForImageClassification",), "deit": ("DeiTForImageClassification", TEACHER)}
BLOCK = {
    "layernorm_before": "attn_norm",
    "attention.output.dense": "attn.out",
    "layernorm_after": "mlp_norm",
    "intermediate.dense": "mlp.up",
    "output.dense": "mlp.down",
}
QKV = tuple(f"attention.attention.{part}" for part in ("query", "key", "value"))
# a model in memory has other names for what its file holds, and a file of the model without its head no prefix
RENAMED = {
    r"^(?=(embeddings|encoder|layers|layernorm|pooler)\.)": "{kind}.",
    r"^{kind}\.layers\.": "{kind}.encoder.layer.",
    r"attention\.q_proj": QKV[0],
    r"attention\.k_proj": QKV[1],
    r"attention\.v_proj": QKV[2],
    r"attention\.o_proj": "attention.output.dense",
    r"mlp\.fc1": "intermediate.dense",
    r"mlp\.fc2": "output.dense",
}


def sides(theirs: Fields, name: str) -> tuple[int, int]:
    """Height and width: two whole numbers, or one for both."""
    value = theirs[name]
    pair = tuple(value) if isinstance(value, list | tuple) else (value, value)
    if len(pair) != 2 or any(type(side) is not int or side < 1 for side in pair):
        raise UserError(f"this {theirs.what}'s {name} must be one or two whole numbers above 0, not {value!r}")
    return pair


def class_names(theirs: dict[str, Any]) -> list[str]:
    """The names of the classes in a config, in the order of the logits; empty where it has only numbers."""
    table = theirs.get("id2label")
    if not isinstance(table, dict):
        return []
    by_number = {str(number): str(name) for number, name in table.items()}
    names = [by_number.get(str(i), "") for i in range(len(by_number))]
    return [] if any(name in ("", f"LABEL_{i}") for i, name in enumerate(names)) else names


def settings(theirs: Fields, kind: str) -> dict[str, Any]:
    made = (theirs.get("architectures") or CLASSES[kind])[0]
    if made not in CLASSES[kind]:
        raise UserError(
            f"this {theirs.what} is a {made}, and only {' or '.join(CLASSES[kind])} has the classes it needs"
        )
    classes, labels = count_labels(theirs), theirs.get("id2label")
    if labels is not None and set(map(str, labels)) != set(map(str, range(len(labels)))):
        raise UserError(
            f"this {theirs.what}'s id2label must have a name for each number from 0, not {str(labels)[:60]}"
        )
    return dict(
        image_size=sides(theirs, "image_size"),
        channels=theirs.size("num_channels"),
        patch=sides(theirs, "patch_size"),
        classes=classes,
        **theirs.sizes(
            width="hidden_size", depth="num_hidden_layers", heads="num_attention_heads", hidden="intermediate_size"
        ),
        eps=theirs["layer_norm_eps"],
        activation=theirs.one_of("hidden_act", ACTIVATIONS),
        qkv_bias=None if theirs["qkv_bias"] else False,
        registers=1 if kind == "deit" else 0,
        distilled=made == TEACHER,
    )


def describe(c: ViTConfig, kind: str, name: str) -> dict[str, Any]:
    must_have(
        c,
        name,
        norm="layer",
        bias=True,
        positions="learned",
        activation=tuple(ACTIVATIONS.values()),
        pool="class",
        token_positions=True,
        embed_norm=False,
        norm_pooled=False,
        registers=int(kind == "deit"),
    )
    return dict(
        model_type=kind,
        architectures=[CLASSES[kind][c.distilled]],
        image_size=list(c.image_size),
        patch_size=list(c.patch),
        num_channels=c.channels,
        hidden_size=c.width,
        num_hidden_layers=c.depth,
        num_attention_heads=c.heads,
        intermediate_size=c.mlp_width,
        layer_norm_eps=c.eps,
        hidden_act=their_word(ACTIVATIONS, c.activation),
        qkv_bias=c.qkv_bias is not False,
        encoder_stride=c.patch[0],
        id2label={str(i): f"LABEL_{i}" for i in range(c.classes)},
        label2id={f"LABEL_{i}": i for i in range(c.classes)},
    )


def rules(c: ViTConfig, kind: str) -> Iterator[Rule]:
    yield same(f"{kind}.embeddings.cls_token", "class_token")
    if kind == "deit":
        yield same("deit.embeddings.distillation_token", "registers")
    rows = c.before + c.grid[0] * c.grid[1]
    yield reshaped(f"{kind}.embeddings.position_embeddings", "positions.table", (1, rows, c.width), (rows, c.width))
    yield from patch_rules(f"{kind}.embeddings.patch_embeddings.projection", c)
    for i in range(c.depth):
        theirs, ours = f"{kind}.encoder.layer.{i}", f"blocks.{i}"
        kinds = ("weight", *["bias"] * (c.qkv_bias is not False))
        yield from projections([f"{theirs}.{part}" for part in QKV], f"{ours}.attn.qkv", [c.width] * 3, kinds)
        yield from layers(theirs, ours, BLOCK)
    yield from parts(same, f"{kind}.layernorm", "norm")
    yield from parts(same, "cls_classifier" if c.distilled else "classifier", "head")
    if c.distilled:
        yield from parts(same, "distillation_classifier", "distilled_head")


def patch_rules(theirs: str, c: ViTConfig) -> Iterator[Rule]:
    """The patch projection."""
    values = c.channels * c.patch[0] * c.patch[1]
    kernel = (c.width, c.channels, *c.patch)
    yield reshaped(f"{theirs}.weight", "patches.proj.weight", kernel, (c.width, values))
    if not c.embed_norm:
        yield same(f"{theirs}.bias", "patches.proj.bias")


def random_pictures(c: ViTConfig, generator: torch.Generator, length: int) -> tuple[Tensor]:
    """For `inputs`: two images."""
    return (torch.randn(2, c.channels, *c.image_size, generator=generator),)


def _architecture(name: str, kind: str) -> Architecture:
    return Architecture(
        name,
        "transformers",
        (kind,),
        ViT,
        ViTConfig,
        FIELDS,
        partial(settings, kind=kind),
        partial(describe, kind=kind, name=name),
        partial(rules, kind=kind),
        renamed={old.replace("{kind}", kind): new.replace("{kind}", kind) for old, new in RENAMED.items()},
        dropout={"hidden_dropout_prob": ("dropout", 0.0), "attention_probs_dropout_prob": ("attention_dropout", 0.0)},
        defaults=dict(layer_norm_eps=1e-12, hidden_act="gelu", qkv_bias=True),
        inputs=random_pictures,
        ask=lambda original, given: original(pixel_values=given[0]).logits,
        outputs=lambda c: (
            {f"blocks.{i}.post": f"{kind}.layers.{i}" for i in range(c.depth)} | {"norm": f"{kind}.layernorm"}
        ),
    )


VIT = _architecture("ViT", "vit")
DEIT = _architecture("DeiT", "deit")
