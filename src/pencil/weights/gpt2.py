"""GPT-2 as Hugging Face names it. Its projections are stored input-first, so each is transposed."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from ..config import UserError
from ..models.gpt import GPTConfig

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
    activation = ACTIVATIONS.get(theirs.get("activation_function", "gelu_new"))
    if (
        activation is None
        or theirs.get("scale_attn_by_inverse_layer_idx")
        or not theirs.get("scale_attn_weights", True)
    ):
        raise UserError("this GPT-2 has an activation or an attention scale that ours does not")
    return GPTConfig(
        vocab=theirs["vocab_size"],
        context=theirs["n_positions"],
        width=theirs["n_embd"],
        depth=theirs["n_layer"],
        heads=theirs["n_head"],
        hidden=theirs.get("n_inner"),
        eps=theirs.get("layer_norm_epsilon", 1e-5),
        activation=activation,  # pyright: ignore[reportArgumentType]
        bias=True,
        positions="learned",
    )


def from_hf(tensors: Mapping[str, Tensor], depth: int) -> dict[str, Tensor]:
    """Our state dict from theirs."""
    plain = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    return {ours: _transposed(theirs, plain[theirs]) for theirs, ours in pairs(depth)}


def to_hf(tensors: Mapping[str, Tensor], depth: int) -> dict[str, Tensor]:
    """Their state dict from ours."""
    return {f"transformer.{theirs}": _transposed(theirs, tensors[ours]) for theirs, ours in pairs(depth)}


def _transposed(theirs: str, tensor: Tensor) -> Tensor:
    return tensor.T.contiguous() if ".c_" in theirs and tensor.ndim == 2 else tensor
