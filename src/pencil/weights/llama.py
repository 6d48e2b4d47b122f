"""LLaMA as Hugging Face names it: separate query, key and value there, one joined matrix here.

Their rotated pairs are halves; a model of ours with adjacent pairs has the rows of W_Q and W_K reordered on the way.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import UserError, build
from ..models.gpt import GPT, GPTConfig
from ..models.parts import rotary_width
from ..models.rope_pairs import reordered
from .checks import check_tensors, drop_tied, fields_of, on_meta, skeleton

WHAT = "LLaMA"

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
    theirs = fields_of(theirs, WHAT)
    theirs.only(attention_bias=False, mlp_bias=False, hidden_act="silu")
    if theirs.get("head_dim") not in (None, theirs.size("hidden_size") // theirs.size("num_attention_heads")):
        raise UserError(f"this LLaMA's heads are {theirs['head_dim']} wide, and ours share the width evenly")
    rope = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    values = dict(
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
        rope_theta=rope.get("rope_theta") or theirs.get("rope_theta") or 10000.0,
        rope_fraction=_fraction(theirs, rope),
        **_scaling(theirs, rope),
        tie_embeddings=bool(theirs.get("tie_word_embeddings")),
    )
    return build(GPTConfig, values, "model.")


def _fraction(theirs: Mapping[str, Any], rope: Mapping[str, Any]) -> float:
    """The fraction of each head that is rotated."""
    fraction = rope.get("partial_rotary_factor") or theirs.get("partial_rotary_factor")
    return 1.0 if fraction is None else float(fraction)


def _scaling(theirs: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any]:
    """Our settings for rotations scaled to a longer context; empty where they are not."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return {}
    if kind not in ("linear", "yarn", "llama3"):
        raise UserError(f"this LLaMA's rotations are scaled as {kind!r}, and ours can be linear, yarn or llama3")
    context = theirs["max_position_embeddings"]
    trained = theirs.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or context
    factor = float(rope.get("factor") or context / trained)
    if factor < 1:
        raise UserError(f"this LLaMA's rotations are scaled by {factor:g}, and ours take a factor of at least 1")
    usual: dict[str, tuple[Any, ...]] = {}  # the values of their other settings that ours has
    if kind == "llama3":
        usual = {"low_freq_factor": (1,), "high_freq_factor": (4,)}
    if kind == "yarn":
        usual = {"beta_fast": (None, 0, 32), "beta_slow": (None, 0, 1), "truncate": (None, True)}
        given, strength = rope.get("attention_factor"), 0.1 * math.log(factor) + 1
        if given is not None and not math.isclose(given, strength, rel_tol=1e-6):
            usual["attention_factor"] = (strength,)
        if rope.get("mscale") and rope.get("mscale_all_dim"):
            usual["mscale"] = (None,)
    for name, known in usual.items():
        if rope.get(name) not in known:
            raise UserError(f"this LLaMA's {kind} rotations have {name} {rope.get(name)}, which ours do not")
    return dict(rope_scaling=kind, rope_factor=factor, rope_original_context=None if kind == "linear" else trained)


def from_hf(tensors: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Our state dict from theirs, with or without the frequencies that older files hold."""
    tensors = dict(tensors)
    rotated = rotary_width(config)
    frequencies = config.rope_theta ** (-torch.arange(0, rotated, 2).double() / rotated)
    for name in [name for name in tensors if name.endswith(".rotary_emb.inv_freq")]:
        held = tensors.pop(name)
        # a file may have rounded them to half precision
        if held.shape != frequencies.shape or not torch.allclose(held.to(frequencies), frequencies, rtol=1e-2, atol=0):
            raise UserError(f"this {WHAT}'s {name} is another than its config's rope_theta {config.rope_theta:g} gives")
    if config.tie_embeddings:
        drop_tied(tensors, "lm_head.weight", "model.embed_tokens.weight", WHAT)
    check_tensors(tensors, to_hf(on_meta(GPT, config), config), WHAT)
    made = {"tokens.weight": tensors["model.embed_tokens.weight"], "norm.weight": tensors["model.norm.weight"]}
    if not config.tie_embeddings:
        made["head.weight"] = tensors["lm_head.weight"]
    for i in range(config.depth):
        parts = [tensors[f"model.layers.{i}.{name}.weight"] for name in QKV]
        made[f"blocks.{i}.attn.qkv.weight"] = torch.cat(parts)
        for theirs, ours in BLOCK.items():
            made[f"blocks.{i}.{ours}.weight"] = tensors[f"model.layers.{i}.{theirs}.weight"]
    if config.rope_pairs == "adjacent":
        made = reordered(made, skeleton(GPT, config), "adjacent")
    return made


def to_hf(tensors: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Their state dict from ours."""
    c = config
    if not (c.norm == "rms" and c.activation == "swiglu" and c.positions == "rope") or c.bias:
        raise UserError("only a GPT with RMSNorm, swiglu, rope and no biases can be written as a LLaMA")
    if c.rope_pairs == "adjacent":
        tensors = reordered(tensors, skeleton(GPT, c), "halves")
    made = {"model.embed_tokens.weight": tensors["tokens.weight"], "model.norm.weight": tensors["norm.weight"]}
    if not config.tie_embeddings:
        made["lm_head.weight"] = tensors["head.weight"]
    kv = (config.kv_heads or config.heads) * config.head_width
    for i in range(config.depth):
        for name, part in zip(QKV, tensors[f"blocks.{i}.attn.qkv.weight"].split([config.width, kv, kv]), strict=True):
            made[f"model.layers.{i}.{name}.weight"] = part.contiguous()
        for theirs, ours in BLOCK.items():
            made[f"model.layers.{i}.{theirs}.weight"] = tensors[f"blocks.{i}.{ours}.weight"]
    return made
