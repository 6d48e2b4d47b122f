"""The diffusion transformer of diffusers (DiTTransformer2DModel) to ours and back.

There every block has its own copy of the timestep and label embeddings; here there is one, so the copies must be equal.
Their positions are sinusoids, computed and not saved, in another order than ours: here they are a learned table.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import UserError, build
from ..core.patches import grid_positions
from ..core.positions import Sinusoidal
from ..models.dit import DiT, DiTConfig
from .checks import Fields, check_tensors, on_meta

WHAT = "DiT"
EPS = 1e-6  # of every norm but the one before the MLP, which is in their config
BLOCK = {"norm1.linear": "ada", "attn1.to_out.0": "attn.out", "ff.net.0.proj": "mlp.up", "ff.net.2": "mlp.down"}
QKV = tuple(f"attn1.to_{part}" for part in "qkv")
EMBED = {
    "norm1.emb.timestep_embedder.linear_1.weight": "time.up.weight",
    "norm1.emb.timestep_embedder.linear_1.bias": "time.up.bias",
    "norm1.emb.timestep_embedder.linear_2.weight": "time.down.weight",
    "norm1.emb.timestep_embedder.linear_2.bias": "time.down.bias",
    "norm1.emb.class_embedder.embedding_table.weight": "labels.weight",
}
TABLE = "pos_embed.pos_embed"


def pairs(depth: int) -> Iterator[tuple[str, str]]:
    """Their name and ours, for every tensor with the same values in the same order."""
    for kind in ("weight", "bias"):
        for i in range(depth):
            for theirs, ours in BLOCK.items():
                yield f"transformer_blocks.{i}.{theirs}.{kind}", f"blocks.{i}.{ours}.{kind}"
        yield f"proj_out_1.{kind}", f"last.{kind}"
    yield "pos_embed.proj.bias", "patches.proj.bias"


def joined(depth: int) -> Iterator[tuple[list[str], str]]:
    """Their names of a query, key and value, and ours of the three together."""
    for i in range(depth):
        for kind in ("weight", "bias"):
            yield [f"transformer_blocks.{i}.{part}.{kind}" for part in QKV], f"blocks.{i}.attn.qkv.{kind}"


def config_from(theirs: Mapping[str, Any]) -> DiTConfig:
    """Our config from their config.json; a file names the class, and older ones call it Transformer2DModel."""
    theirs = Fields(theirs, WHAT)
    theirs.only(_class_name=("DiTTransformer2DModel", "Transformer2DModel"))
    if "_class_name" in theirs and "norm_type" not in theirs:
        raise UserError(f"the config of this {WHAT} has no norm_type, which a file of it always has")
    theirs.only(
        norm_type="ada_norm_zero", activation_fn="gelu-approximate", only_cross_attention=False, num_vector_embeds=(),
        caption_channels=(), attention_type="default", use_additional_conditions=False, interpolation_scale=1,
    )  # fmt: skip
    if theirs.get("cross_attention_dim") is not None or theirs.get("double_self_attention"):
        raise UserError("this model has a second attention in every block, and our DiT has one")
    if not theirs.get("num_embeds_ada_norm"):
        raise UserError("this model has no num_embeds_ada_norm: it embeds no classes, which diffusers' DiT always does")
    if not theirs.get("attention_bias", True) or theirs.get("norm_elementwise_affine", False):
        raise UserError("this model has an attention without bias, or norms with weights of their own; ours has not")
    channels = theirs.size("in_channels")
    out = theirs.get("out_channels") or channels
    if out not in (channels, 2 * channels):
        raise UserError(f"this model has {channels} input and {out} output channels; ours has as many or twice as many")
    values = dict(
        image_size=(theirs.size("sample_size"),) * 2,
        channels=channels,
        patch=(theirs.size("patch_size"),) * 2,
        classes=theirs["num_embeds_ada_norm"],
        width=theirs.size("num_attention_heads") * theirs.size("attention_head_dim"),
        depth=theirs["num_layers"],
        heads=theirs["num_attention_heads"],
        eps=EPS,
        mlp_eps=theirs.get("norm_eps", 1e-5),
        positions="learned",
        noise_schedule="linear",
        learned_variance=out != channels,
        downscale_freq_shift=True,
    )
    return build(DiTConfig, values, "model.")


def from_diffusers(tensors: Mapping[str, Tensor], config: DiTConfig) -> dict[str, Tensor]:
    """Our state dict from theirs, read from a file or taken from a model in memory."""
    c = config
    if any(".attn2." in name for name in tensors):
        raise UserError("this model has a second attention in every block, and our DiT has one")
    empty = on_meta(DiT, c)
    table = {TABLE: empty["positions.table"][None]} if TABLE in tensors else {}
    check_tensors(tensors, _written(empty, c) | table, WHAT)
    ours = {named: tensors[f"transformer_blocks.0.{name}"] for name, named in EMBED.items()}
    for name, named in _shared(c).items():
        if not torch.equal(tensors[name], ours[named]):
            raise UserError(f"{name} is another than block 0's, and ours has one timestep and label embedding for all")
    ours |= {named: tensors[name] for name, named in pairs(c.depth)}
    ours |= {named: torch.cat([tensors[name] for name in names]) for names, named in joined(c.depth)}
    ours["patches.proj.weight"] = tensors["pos_embed.proj.weight"].flatten(1)
    for kind in ("weight", "bias"):
        patches = tensors[f"proj_out_2.{kind}"].unflatten(0, (*c.patch, c.out_channels))
        ours[f"head.{kind}"] = patches.movedim(2, 0).flatten(0, 2)
    like = ours["patches.proj.weight"]
    ours["positions.table"] = tensors[TABLE][0] if TABLE in tensors else sinusoids(c).to(like)
    return ours


def to_diffusers(tensors: Mapping[str, Tensor], config: DiTConfig) -> dict[str, Tensor]:
    """What their file holds, from our state dict."""
    c = config
    _check(c)
    table = tensors["positions.table"]
    # a table kept in half precision is off by its rounding
    if not torch.allclose(table.cpu().double(), sinusoids(c), atol=1e-6 + torch.finfo(table.dtype).eps, rtol=0):
        raise UserError("diffusers' DiT computes its positions, and this model's table has been trained away from them")
    return _written(tensors, c)


def _written(tensors: Mapping[str, Tensor], c: DiTConfig) -> dict[str, Tensor]:
    theirs = {name: tensors[named] for name, named in pairs(c.depth)}
    theirs |= {name: tensors[named].clone() for name, named in _shared(c).items()}
    for names, named in joined(c.depth):
        theirs |= {name: part.contiguous() for name, part in zip(names, tensors[named].chunk(3), strict=True)}
    theirs["pos_embed.proj.weight"] = tensors["patches.proj.weight"].unflatten(1, (c.channels, *c.patch))
    for kind in ("weight", "bias"):
        patches = tensors[f"head.{kind}"].unflatten(0, (c.out_channels, *c.patch))
        theirs[f"proj_out_2.{kind}"] = patches.movedim(0, 2).flatten(0, 2)
    return theirs


def sinusoids(config: DiTConfig) -> Tensor:
    """Their positions: the column's sines and cosines, then the row's."""
    if config.width % 4:
        raise UserError(f"sines and cosines of rows and columns need a width divisible by 4, not {config.width}")
    half, positions = Sinusoidal(config.width // 2, halves=True), grid_positions(config.grid)
    return torch.cat([half.embedding(positions[None, :, axis, None])[0] for axis in (1, 0)], -1)


def _shared(config: DiTConfig) -> dict[str, str]:
    """Their name in every block of the timestep and label embeddings, and ours."""
    return {f"transformer_blocks.{i}.{name}": named for i in range(config.depth) for name, named in EMBED.items()}


def _check(c: DiTConfig) -> None:
    square = c.frames == 1 and len(set(c.image_size)) == 1 and len(set(c.patch)) == 1
    plain = c.adaln == "zero" and c.attention == "full" and c.positions == "learned" and c.mlp_width == 4 * c.width
    if not (square and plain and c.downscale_freq_shift and c.eps == EPS and c.classes and c.null_condition):
        raise UserError(
            "only a DiT of square pictures with classes, null_condition, full attention, adaln zero, eps 1e-6, "
            "downscale_freq_shift, hidden = 4·width and learned positions can be written for diffusers"
        )
