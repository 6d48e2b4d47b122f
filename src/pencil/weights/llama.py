"""LLaMA as Hugging Face names it: separate query, key and value there, one joined matrix here."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from ..models.gpt import GPTConfig

BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.o_proj": "attn.out",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}
QKV = [f"self_attn.{part}_proj" for part in "qkv"]


def config_from(theirs: Mapping[str, Any]) -> GPTConfig:
    """Our config from their config.json."""
    rope = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default" or theirs.get("attention_bias") or theirs.get("mlp_bias"):
        raise UserError("this LLaMA has scaled rotations or biases that ours does not")
    return GPTConfig(
        vocab=theirs["vocab_size"],
        context=theirs["max_position_embeddings"],
        width=theirs["hidden_size"],
        depth=theirs["num_hidden_layers"],
        heads=theirs["num_attention_heads"],
        kv_heads=theirs.get("num_key_value_heads"),
        hidden=theirs["intermediate_size"],
        norm="rms",
        eps=theirs["rms_norm_eps"],
        activation="swiglu",
        positions="rope",
        rope_base=rope.get("rope_theta") or theirs.get("rope_theta") or 10000.0,
        tied=bool(theirs.get("tie_word_embeddings")),
    )


def from_hf(tensors: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Our state dict from theirs."""
    made = {"tokens.weight": tensors["model.embed_tokens.weight"], "norm.weight": tensors["model.norm.weight"]}
    if not config.tied:
        made["head.weight"] = tensors["lm_head.weight"]
    for i in range(config.depth):
        parts = [tensors[f"model.layers.{i}.{name}.weight"] for name in QKV]
        made[f"blocks.{i}.attn.qkv.weight"] = torch.cat(parts)
        for theirs, ours in BLOCK.items():
            made[f"blocks.{i}.{ours}.weight"] = tensors[f"model.layers.{i}.{theirs}.weight"]
    return made


def to_hf(tensors: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Their state dict from ours."""
    made = {"model.embed_tokens.weight": tensors["tokens.weight"], "model.norm.weight": tensors["norm.weight"]}
    if not config.tied:
        made["lm_head.weight"] = tensors["head.weight"]
    kv = (config.kv_heads or config.heads) * config.head_width
    for i in range(config.depth):
        for name, part in zip(QKV, tensors[f"blocks.{i}.attn.qkv.weight"].split([config.width, kv, kv]), strict=True):
            made[f"model.layers.{i}.{name}.weight"] = part.contiguous()
        for theirs, ours in BLOCK.items():
            made[f"model.layers.{i}.{theirs}.weight"] = tensors[f"blocks.{i}.{ours}.weight"]
    return made
