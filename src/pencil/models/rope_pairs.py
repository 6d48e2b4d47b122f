"""From one convention of RoPE to the other: the same model with the channels of its queries and keys in another order.

A score is a sum over channels, so the order in which q and k hold them is free as long as both hold the same. Halves
rotate channels i and i + n together, adjacent pairs channels 2i and 2i + 1; reordering the rows of W_Q and W_K (and of
their biases and norms) turns one into the other. No weight changes its value.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..config import UserError, nearest
from ..core.attention import Attention
from ..core.positions import Positions, Rope, Shaw
from .build import Model, rebuilt
from .config import RopePairs

PAIRS = ("halves", "adjacent")


def convert_rope(model: Model, pairs: RopePairs) -> Model:
    """The same model with its pairs of channels as `pairs` says: equal logits, to rounding."""
    if pairs not in PAIRS:
        raise UserError(f"rope_pairs is halves or adjacent, not {pairs}: {nearest(pairs, PAIRS)}")
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "rope_pairs"):
        raise UserError(f"{type(model).__name__} has no rope_pairs to convert: give one of Pencil's models")
    tensors = model.state_dict() if config.rope_pairs == pairs else reordered(model.state_dict(), model, pairs)
    return rebuilt(model, replace(config, rope_pairs=pairs), tensors)


def reordered(tensors: Mapping[str, Tensor], model: nn.Module, pairs: RopePairs) -> dict[str, Tensor]:
    """The tensors of a model from the other convention to `pairs`; the model may be on the meta device."""
    made = dict(tensors)
    for path, attention, owner in _self_attentions(model):
        ropes = [part for part in owner.children() if isinstance(part, Rope)]
        if not ropes:
            continue
        rotary, rotated_heads = 2 * sum(ropes[0].pairs), attention.heads + attention.kv_heads
        for name in ("qkv.weight", "qkv.bias", "q_norm.weight", "k_norm.weight"):
            if (tensor := made.get(f"{path}.{name}")) is not None:
                made[f"{path}.{name}"] = reordered_rows(tensor, attention.head_width, rotary, rotated_heads, pairs)
    for path, owner in model.named_modules():
        parts = dict(owner.named_children())
        rope = next((part for part in parts.values() if isinstance(part, Rope)), None)
        for child, part in parts.items():
            # Shaw's vectors are multiplied with q too: those of a captioner's image beside a rotated text
            if rope is not None and isinstance(part, Shaw):
                name = ".".join(filter(None, (path, child, "table")))
                order = channel_order(part.table.shape[-1], 2 * sum(rope.pairs), pairs)
                made[name] = made[name][..., order]
    return made


def reordered_rows(tensor: Tensor, head_width: int, rotary_width: int, heads: int, pairs: RopePairs) -> Tensor:
    """The rows of `heads` heads of queries and keys, then values, in the order of `pairs`; values keep theirs.

    A tensor of one head's rows serves all heads: the weight of q_norm or k_norm.
    """
    channels = torch.tensor(channel_order(head_width, rotary_width, pairs))
    heads = 1 if len(tensor) == head_width else heads
    rows = (torch.arange(heads)[:, None] * head_width + channels).flatten()
    return tensor[torch.cat((rows, torch.arange(len(rows), len(tensor)))).to(tensor.device)]


def channel_order(head_width: int, rotary_width: int, pairs: RopePairs) -> list[int]:
    """For each channel of a head under `pairs`, the channel it is under the other convention."""
    half, rest = rotary_width // 2, range(rotary_width, head_width)
    if pairs == "adjacent":
        return [*(i // 2 + i % 2 * half for i in range(rotary_width)), *rest]
    return [*(i % half * 2 + i // half for i in range(rotary_width)), *rest]


def _self_attentions(model: nn.Module) -> list[tuple[str, Attention, nn.Module]]:
    """Each self-attention with its path and the module whose position scheme it has; cross-attention has none."""
    modules, attentions = dict(model.named_modules()), []
    for path, module in modules.items():
        if isinstance(module, Attention) and not path.endswith("cross"):
            above = path.split(".")
            names = (".".join(above[:n]) for n in range(len(above) - 1, -1, -1))
            owners = (modules[name] for name in names if name in modules)
            owner = next((o for o in owners if any(isinstance(c, Positions) for c in o.children())), model)
            attentions.append((path, module, owner))
    return attentions
