"""Vision transformers of transformers (ViTForImageClassification) and of timm, to ours and back.

Both have a convolution for the patch projection: the same values as our matrix, in the same order.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import UserError, build
from ..models.vit import ViT, ViTConfig
from .checks import check_tensors, fields_of, on_meta, renamed

WHAT = "ViT"
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}
HF_BLOCK = {
    "layernorm_before": "attn_norm",
    "attention.output.dense": "attn.out",
    "layernorm_after": "mlp_norm",
    "intermediate.dense": "mlp.up",
    "output.dense": "mlp.down",
}
HF_QKV = tuple(f"attention.attention.{part}" for part in ("query", "key", "value"))
# a model in memory has other names for what its file holds
HF_MEMORY = {
    "vit.layers.": "vit.encoder.layer.",
    "attention.q_proj": HF_QKV[0],
    "attention.k_proj": HF_QKV[1],
    "attention.v_proj": HF_QKV[2],
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
TIMM_BLOCK = {
    "norm1": "attn_norm",
    "attn.qkv": "attn.qkv",
    "attn.proj": "attn.out",
    "norm2": "mlp_norm",
    "mlp.fc1": "mlp.up",
    "mlp.fc2": "mlp.down",
}


def hf_pairs(depth: int) -> Iterator[tuple[str, str]]:
    """Their name and ours, without weight or bias, for every part but the joined query, key and value."""
    yield "vit.embeddings.patch_embeddings.projection", "patches.proj"
    for i in range(depth):
        for theirs, ours in HF_BLOCK.items():
            yield f"vit.encoder.layer.{i}.{theirs}", f"blocks.{i}.{ours}"
    yield "vit.layernorm", "norm"
    yield "classifier", "head"


def timm_pairs(depth: int) -> Iterator[tuple[str, str]]:
    yield "patch_embed.proj", "patches.proj"
    for i in range(depth):
        for theirs, ours in TIMM_BLOCK.items():
            yield f"blocks.{i}.{theirs}", f"blocks.{i}.{ours}"
    yield "norm", "norm"
    yield "head", "head"


def config_from(theirs: Mapping[str, Any]) -> ViTConfig:
    """Our config from transformers' config.json."""
    theirs = fields_of(theirs, WHAT)
    theirs.only(hidden_act=tuple(ACTIVATIONS), qkv_bias=True)
    values = dict(
        image_size=theirs["image_size"],
        channels=theirs["num_channels"],
        patch=theirs["patch_size"],
        classes=len(theirs["id2label"]),
        width=theirs["hidden_size"],
        depth=theirs["num_hidden_layers"],
        heads=theirs["num_attention_heads"],
        hidden=theirs["intermediate_size"],
        eps=theirs["layer_norm_eps"],
        activation=ACTIVATIONS[theirs.get("hidden_act") or "gelu"],
    )
    return build(ViTConfig, values, "model.")


def from_hf(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """Our state dict from theirs, read from a file or taken from a model in memory."""
    plain, depth = renamed(tensors, _in_file, WHAT), config.depth
    check_tensors(plain, to_hf(on_meta(ViT, config), config), WHAT)
    ours = {
        "class_token": plain["vit.embeddings.cls_token"],
        "positions.table": plain["vit.embeddings.position_embeddings"][0],
        **_renamed(plain, hf_pairs(depth)),
    }
    for i in range(depth):
        for kind in ("weight", "bias"):
            parts = [plain[f"vit.encoder.layer.{i}.{part}.{kind}"] for part in HF_QKV]
            ours[f"blocks.{i}.attn.qkv.{kind}"] = torch.cat(parts)
    return ours


def _in_file(name: str) -> str:
    for here, there in HF_MEMORY.items():
        name = name.replace(here, there)
    return name


def to_hf(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """What their file holds, from our state dict."""
    _check(config)
    theirs = {
        "vit.embeddings.cls_token": tensors["class_token"],
        "vit.embeddings.position_embeddings": tensors["positions.table"][None],
        **_back(tensors, hf_pairs(config.depth), config),
    }
    for i in range(config.depth):
        for kind in ("weight", "bias"):
            parts = tensors[f"blocks.{i}.attn.qkv.{kind}"].chunk(3)
            theirs |= {f"vit.encoder.layer.{i}.{p}.{kind}": t for p, t in zip(HF_QKV, parts, strict=True)}
    return theirs


def from_timm(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """Our state dict from that of timm's VisionTransformer with a class token."""
    if "cls_token" not in tensors or any("gamma" in name or "q_norm" in name for name in tensors):
        raise UserError("only timm's plain vision transformers with a class token can be converted")
    check_tensors(tensors, to_timm(on_meta(ViT, config), config), "model of timm")
    tables = {"class_token": tensors["cls_token"], "positions.table": tensors["pos_embed"][0]}
    return tables | _renamed(tensors, timm_pairs(config.depth))


def to_timm(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """timm's state dict from ours."""
    _check(config)
    tables = {"cls_token": tensors["class_token"], "pos_embed": tensors["positions.table"][None]}
    return tables | _back(tensors, timm_pairs(config.depth), config)


def _renamed(tensors: Mapping[str, Tensor], pairs: Iterator[tuple[str, str]]) -> dict[str, Tensor]:
    both = [(f"{theirs}.{kind}", f"{ours}.{kind}") for theirs, ours in pairs for kind in ("weight", "bias")]
    return {ours: tensors[theirs].flatten(1) if tensors[theirs].ndim == 4 else tensors[theirs] for theirs, ours in both}


def _back(tensors: Mapping[str, Tensor], pairs: Iterator[tuple[str, str]], config: ViTConfig) -> dict[str, Tensor]:
    found = {f"{theirs}.{kind}": tensors[f"{ours}.{kind}"] for theirs, ours in pairs for kind in ("weight", "bias")}
    kernel = (config.channels, *config.patch)
    return {n: t.unflatten(1, kernel) if n.endswith(("projection.weight", "patch_embed.proj.weight")) else t
            for n, t in found.items()}  # fmt: skip


def _check(config: ViTConfig) -> None:
    plain = config.norm == "layer" and config.bias and config.activation != "swiglu"
    if config.pool != "class" or config.positions != "learned" or not plain:
        raise UserError("only a ViT with a class token, a learned table and biases can be written for other libraries")
