"""GPT-2 as Hugging Face names it. Its projections are stored input-first, so each is transposed."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import UserError, build
from ..models.gpt import GPT, GPTConfig
from .checks import check_tensors, drop_tied, fields_of, on_meta, renamed

WHAT = "GPT-2"

ACTIVATIONS = {"gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu": "gelu"}
BLOCK = {
    "ln_1.weight": "attn_norm.weight",
    "ln_1.bias": "attn_norm.bias",
    "attn.c_attn.weight": "attn.qkv.weight",
    "attn.c_attn.bias": "attn.qkv.bias",
    "attn.c_proj.weight": "attn.out.weight",
    "attn.c_proj.bias": "attn.out.bias",
    "ln_2.weight": "mlp_norm.weight",
    "ln_2.bias": "mlp_norm.bias",
    "mlp.c_fc.weight": "mlp.up.weight",
    "mlp.c_fc.bias": "mlp.up.bias",
    "mlp.c_proj.weight": "mlp.down.weight",
    "mlp.c_proj.bias": "mlp.down.bias",
}


def pairs(depth: int) -> Iterator[tuple[str, str]]:
    """Their name and ours, for every tensor."""
    yield "wte.weight", "tokens.weight"
    yield "wpe.weight", "positions.table"
    for i in range(depth):
        for theirs, ours in BLOCK.items():
            yield f"h.{i}.{theirs}", f"blocks.{i}.{ours}"
    yield "ln_f.weight", "norm.weight"
    yield "ln_f.bias", "norm.bias"


def config_from(theirs: Mapping[str, Any]) -> GPTConfig:
    """Our config from their config.json."""
    theirs = fields_of(theirs, WHAT)
    theirs.only(
        activation_function=tuple(ACTIVATIONS), scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False, tie_word_embeddings=True,
    )  # fmt: skip
    values = dict(
        vocab=theirs["vocab_size"],
        context=theirs["n_positions"],
        width=theirs["n_embd"],
        depth=theirs["n_layer"],
        heads=theirs["n_head"],
        hidden=theirs.get("n_inner"),
        eps=theirs.get("layer_norm_epsilon", 1e-5),
        activation=ACTIVATIONS[theirs.get("activation_function", "gelu_new")],
        bias=True,
        positions="learned",
    )
    return build(GPTConfig, values, "model.")


def from_hf(tensors: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Our state dict from theirs, with or without its tied head and the causal masks of older files."""
    plain = renamed(tensors, lambda name: name.removeprefix("transformer."), WHAT)
    drop_tied(plain, "lm_head.weight", "wte.weight", WHAT)
    for name in [name for name in plain if re.fullmatch(r"h\.\d+\.attn\.(masked_)?bias", name)]:
        mask = plain.pop(name)
        if mask.ndim == 4 and not torch.equal(mask.bool(), torch.ones_like(mask).tril().bool()):
            raise UserError(f"this {WHAT}'s {name} is another mask than the causal one")
    wanted = to_hf(on_meta(GPT, config), config)
    check_tensors(plain, {name.removeprefix("transformer."): t for name, t in wanted.items()}, WHAT)
    return {ours: _transposed(theirs, plain[theirs]) for theirs, ours in pairs(config.depth)}


def to_hf(tensors: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Their state dict from ours."""
    c = config
    plain = c.norm == "layer" and c.activation in ACTIVATIONS.values() and c.kv_heads in (None, c.heads)
    if not (plain and c.bias and c.tie_embeddings and c.positions == "learned"):
        raise UserError(
            "only a GPT with LayerNorm, GELU, biases, learned positions, tie_embeddings and a key-value head for each "
            "head can be written as a GPT-2"
        )
    return {f"transformer.{theirs}": _transposed(theirs, tensors[ours]) for theirs, ours in pairs(c.depth)}


def _transposed(theirs: str, tensor: Tensor) -> Tensor:
    return tensor.T.contiguous() if ".c_" in theirs and tensor.ndim == 2 else tensor
