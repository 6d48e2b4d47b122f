"""The diffusion transformer as its authors publish it: a .pt file of tensors, from whose shapes the sizes follow."""

from collections.abc import Iterator, Mapping
from math import isqrt
from typing import Any

from ..config import UserError
from ..models.dit import PRESETS, DiT, DiTConfig
from .dit import EPS, channels_first, random_inputs
from .maps import MAPPED, NEUTRAL, Architecture, Fields, Rule, Use, layers, parts, reshaped, same

NAME = "original DiT"
HEADS = {preset["width"]: preset["heads"] for name, preset in PRESETS.items() if "/" in name}  # of the published sizes
PARTS = {"t_embedder.mlp.0": "time.up", "t_embedder.mlp.2": "time.down", "final_layer.adaLN_modulation.1": "last"}
BLOCK = {
    "attn.qkv": "attn.qkv",
    "attn.proj": "attn.out",
    "mlp.fc1": "mlp.up",
    "mlp.fc2": "mlp.down",
    "adaLN_modulation.1": "ada",
}
# the arguments of its constructor
FIELDS: dict[str, Use] = {
    **dict.fromkeys(
        "input_size patch_size in_channels hidden_size depth num_heads mlp_ratio num_classes learn_sigma".split(),
        MAPPED,
    ),
    "class_dropout_prob": NEUTRAL,
}


def sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The arguments of its constructor; the number of heads is that of the published model of this width, if any."""

    def shape(name: str, length: int) -> tuple[int, ...]:
        if len(shapes.get(name, ())) != length or 0 in shapes[name]:
            raise UserError(f"this {NAME} has no {name} of {length} axes that are not empty")
        return shapes[name]

    width, channels, patch, _ = shape("x_embedder.proj.weight", 4)
    side, rows = isqrt(shape("pos_embed", 3)[1]), shape("final_layer.linear.weight", 2)[0]
    arguments: dict[str, Any] = dict(
        input_size=side * patch,
        patch_size=patch,
        in_channels=channels,
        hidden_size=width,
        depth=len([name for name in shapes if name.startswith("blocks.") and name.endswith(".attn.qkv.weight")]),
        mlp_ratio=shape("blocks.0.mlp.fc1.weight", 2)[0] / width,
        learn_sigma=rows == 2 * channels * patch**2,
        num_classes=shape("y_embedder.embedding_table.weight", 2)[0] - 1,  # the last row is the null class
    )
    return arguments | ({"num_heads": HEADS[width]} if width in HEADS else {})


def settings(theirs: Fields) -> dict[str, Any]:
    width = theirs.size("hidden_size")
    if "num_heads" not in theirs:
        raise UserError(
            f"this {NAME} is {width} wide, which no published one is, and its file does not say how many heads it has: "
            'write {"num_heads": N} into a config.json beside it'
        )
    if type(ratio := theirs.given("mlp_ratio", 4.0)) not in (int, float) or not ratio > 0:
        raise UserError(f"this {NAME}'s mlp_ratio must be a number above 0, not {ratio!r}")
    return dict(
        image_size=(theirs.size("input_size"),) * 2,
        channels=theirs.size("in_channels"),
        patch=(theirs.size("patch_size"),) * 2,
        classes=theirs.size("num_classes"),
        width=width,
        depth=theirs.size("depth"),
        heads=theirs.size("num_heads"),
        hidden=round(ratio * width),
        eps=EPS,
        positions="learned",
        noise_schedule="linear",
        learned_variance=bool(theirs.given("learn_sigma", True)),
    )


def rules(c: DiTConfig) -> Iterator[Rule]:
    weight = (c.width, c.channels, *c.patch)
    yield reshaped("x_embedder.proj.weight", "patches.proj.weight", weight, (c.width, -1))
    yield same("x_embedder.proj.bias", "patches.proj.bias")
    yield reshaped("pos_embed", "positions.table", (1, -1, c.width), (-1, c.width))
    yield same("y_embedder.embedding_table.weight", "labels.weight")
    for theirs, ours in PARTS.items():
        yield from parts(same, theirs, ours)
    for i in range(c.depth):
        yield from layers(f"blocks.{i}", f"blocks.{i}", BLOCK)
    for kind in ("weight", "bias"):
        yield channels_first(f"final_layer.linear.{kind}", f"head.{kind}", c)


DIT_ORIGINAL = Architecture(
    NAME,
    "dit",
    (),
    DiT,
    DiTConfig,
    FIELDS,
    settings,
    None,
    rules,
    marks=("x_embedder.proj.weight", "t_embedder.mlp.0.weight", "final_layer.linear.weight"),
    sizes=sizes,
    inputs=random_inputs,
    ask=lambda original, given: original(*given),
    outputs=lambda c: {f"blocks.{i}.post": f"blocks.{i}" for i in range(c.depth)},
)
