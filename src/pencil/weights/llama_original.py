"""LLaMA as its authors publish it (params.json and consolidated weights; Mistral's consolidated.safetensors too).

Its rotated pairs are adjacent channels, so a model read from it has `rope_pairs = "adjacent"`, and its rows of W_Q and
W_K are taken as they are; `pencil.convert_rope` makes halves of them. Hugging Face's files are the same models after
that reordering.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import UserError, build
from ..models.gpt import GPT, GPTConfig
from ..models.rope_pairs import reordered
from .checks import Fields, check_tensors, on_meta, skeleton

WHAT = "original LLaMA"

BLOCK = {
    "attention_norm": "attn_norm",
    "attention.wo": "attn.out",
    "ffn_norm": "mlp_norm",
    "feed_forward.w1": "mlp.gate",
    "feed_forward.w3": "mlp.up",
    "feed_forward.w2": "mlp.down",
}
QKV = [f"attention.w{part}" for part in "qkv"]


def config_from(params: Mapping[str, Any], tensors: Mapping[str, Tensor], context: int) -> GPTConfig:
    """Our config from their params.json and tensors; the file does not say the context."""
    theirs = Fields(params, WHAT)
    theirs.only(use_scaled_rope=False, moe=(), sliding_window=())
    for name in ("tok_embeddings.weight", "layers.0.feed_forward.w1.weight"):
        if name not in tensors:
            raise UserError(f"this {WHAT} has no {name}")
    if theirs.get("head_dim") not in (None, theirs.size("dim") // theirs.size("n_heads")):
        raise UserError(f"this {WHAT}'s heads are {theirs['head_dim']} wide, and ours share the width evenly")
    values = dict(
        vocab=len(tensors["tok_embeddings.weight"]),
        context=context,
        width=theirs.size("dim"),
        depth=theirs.size("n_layers"),
        heads=theirs.size("n_heads"),
        kv_heads=theirs.get("n_kv_heads"),
        hidden=len(tensors["layers.0.feed_forward.w1.weight"]),
        norm="rms",
        eps=theirs["norm_eps"],
        activation="swiglu",
        positions="rope",
        rope_theta=theirs.get("rope_theta") or 10000.0,
        rope_pairs="adjacent",
        tie_embeddings="output.weight" not in tensors,
    )
    return build(GPTConfig, values, "model.")


def from_original(tensors: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Our state dict from theirs, in the convention of the config."""
    tensors = {name: tensor for name, tensor in tensors.items() if name != "rope.freqs"}
    check_tensors(tensors, to_original(on_meta(GPT, config), config), WHAT)
    made = {"tokens.weight": tensors["tok_embeddings.weight"], "norm.weight": tensors["norm.weight"]}
    if not config.tie_embeddings:
        made["head.weight"] = tensors["output.weight"]
    for i in range(config.depth):
        parts = [tensors[f"layers.{i}.{name}.weight"] for name in QKV]
        made[f"blocks.{i}.attn.qkv.weight"] = torch.cat(parts)
        for theirs, ours in BLOCK.items():
            made[f"blocks.{i}.{ours}.weight"] = tensors[f"layers.{i}.{theirs}.weight"]
    return made if config.rope_pairs == "adjacent" else reordered(made, skeleton(GPT, config), "halves")


def to_original(tensors: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Their state dict from ours."""
    c = config
    if not (c.norm == "rms" and c.activation == "swiglu" and c.positions == "rope") or c.bias or c.rope_fraction != 1:
        raise UserError(
            "only a GPT with RMSNorm, swiglu, rope over whole heads and no biases can be written as a LLaMA"
        )
    if c.rope_pairs == "halves":
        tensors = reordered(tensors, skeleton(GPT, c), "adjacent")
    made = {"tok_embeddings.weight": tensors["tokens.weight"], "norm.weight": tensors["norm.weight"]}
    if not c.tie_embeddings:
        made["output.weight"] = tensors["head.weight"]
    kv = (c.kv_heads or c.heads) * c.head_width
    for i in range(c.depth):
        for name, part in zip(QKV, tensors[f"blocks.{i}.attn.qkv.weight"].split([c.width, kv, kv]), strict=True):
            made[f"layers.{i}.{name}.weight"] = part.contiguous()
        for theirs, ours in BLOCK.items():
            made[f"layers.{i}.{theirs}.weight"] = tensors[f"blocks.{i}.{ours}.weight"]
    return made
