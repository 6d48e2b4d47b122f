"""ViT: an image in, the logits of its class out; every patch attends to every patch."""

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.embed import Patches
from ..core.masks import full
from ..core.patches import by, grid_of, grid_positions, patch_sizes
from ..core.positions import Learned
from ..core.probe import OFF, Probe
from ..core.span import Span
from .parts import (
    RENAMED,
    RENAMED_VALUES,
    Activation,
    RopePairs,
    Scheme,
    block_maker,
    check_picture,
    check_positions,
    check_sizes,
    describe,
    initialise,
    make_positions,
    norm_maker,
    rotary_width,
)


@dataclass(frozen=True)
class ViTConfig:
    """Sizes and options of a vision transformer."""

    image_size: tuple[int, int] = (28, 28)  # height and width
    channels: int = 1  # 1 grey, 3 colour
    patch: tuple[int, int] = (4, 4)  # height and width of a patch
    classes: int = 10  # number of classes
    width: int = 64  # size of the residual stream (d_model)
    depth: int = 4  # number of blocks
    heads: int = 4  # attention heads in a block
    hidden: int | None = None  # width of the MLP; 4·width unless given
    norm: Literal["layer", "rms"] = "layer"  # LayerNorm or RMSNorm
    eps: float = 1e-6  # epsilon of the norms
    activation: Activation = "gelu"  # of the MLP; swiglu is gated
    bias: bool = True  # biases in linear layers and norms
    dropout: float = 0.0  # rate for embeddings, attention weights and the outputs of attention and MLP
    attention_dropout: float | None = None  # rate for attention weights; dropout unless given
    key_dropout: float = 0.0  # rate for whole keys, the same for all queries
    positions: Scheme = "learned"  # position scheme
    rope_theta: float = 100.0  # base of the RoPE frequencies; small, as images are a few dozen patches wide
    rope_fraction: float = 1.0  # fraction of each head's channels that is rotated
    rope_pairs: RopePairs = "halves"  # channels rotated together: i and i + n (halves), or 2i and 2i + 1 (adjacent)
    max_distance: int | None = None  # of relative positions; larger ones are clipped (unless given: shaw 16, t5 128)
    pool: Literal["class", "mean"] = "class"  # the class is read from a class token, or from the mean of all patches

    RENAMED: ClassVar = RENAMED
    RENAMED_VALUES: ClassVar = RENAMED_VALUES

    def __post_init__(self):
        check_sizes(self)
        check_picture(self)
        check_positions(self.positions, self, 2)

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Settings of a run made before 0.7, whose dropout was of activations and of whole keys."""
        return {"attention_dropout": 0.0, "key_dropout": values.get("dropout", 0.0)} | values

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def mlp_width(self) -> int:
        return self.hidden or 4 * self.width

    @property
    def grid(self) -> tuple[int, ...]:
        """Patches down and across."""
        return grid_of(self.image_size, self.patch)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis letter used in shapes."""
        patches = prod(self.grid)
        tokens = patches + (self.pool == "class")
        return {
            "T": tokens, "S": tokens, "N": patches, "c": self.channels * prod(self.patch), "K": self.classes,
            "D": self.width, "h": self.heads, "g": self.heads, "d": self.head_width, "d/2": rotary_width(self) // 2,
            "F": self.mlp_width, "a": 2, "h·d": self.width, "1": 1,
            **patch_sizes(self.channels, self.grid, self.patch),
        }  # fmt: skip


def _published(patch: int, width: int, depth: int, heads: int) -> dict:
    """The sizes of the ViT papers: 224×224 images, 1,000 classes."""
    return dict(
        image_size=(224, 224), channels=3, patch=(patch, patch), classes=1000, width=width, depth=depth, heads=heads
    )


# a preset without an image_size takes size, channels and patch from the data
PRESETS: dict[str, dict] = {
    "nano": dict(width=64, depth=4, heads=4),
    "small": dict(width=192, depth=6, heads=6, dropout=0.1, attention_dropout=0.0, key_dropout=0.1),
    "ti/16": _published(16, 192, 12, 3),
    "s/16": _published(16, 384, 12, 6),
    "b/16": _published(16, 768, 12, 12),
    "b/32": _published(32, 768, 12, 12),
    "l/16": _published(16, 1024, 24, 16),
}


class ViT(nn.Module):
    """Patches to the logits of the classes; the blocks run in the loop of `forward`."""

    NAMES = {
        "tokens": ("B T D", "z", "{z_cls? [z_cls; I]|I}"),
        "input": ("B T D", "X⁰", "z⟨ + P⟩"),
        "norm": ("B T D", "X_f", "Norm_f(Xᴸ)"),
        "pooled": ("B D", "y", "{z_cls? X_f[0]|mean(X_f)}"),
        "logits": ("B K", "Z", "y W_class + b_class"),
    }
    INPUTS = {"picture": "X_img"}
    WEIGHTS = {"class_token": "z_cls", "head.weight": "W_class", "head.bias": "b_class"}

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = c = config
        self.mask = full
        self.patches = Patches(c.channels, c.patch, c.width)
        self.class_token = nn.Parameter(torch.empty(1, 1, c.width)) if c.pool == "class" else None
        self.positions = make_positions(c.positions, c, c.grid, before=int(c.pool == "class"))
        describe(self, self.positions, self.mask.words)
        self.drop = nn.Dropout(c.dropout)
        block = block_maker(c)
        self.blocks = nn.ModuleList(block() for _ in range(c.depth))
        self.norm = norm_maker(c)()
        self.head = nn.Linear(c.width, c.classes)
        initialise(self, c.depth)

    def example(self, batch: int = 1) -> tuple[Float[Tensor, "B C H W"]]:
        c = self.config
        return (torch.zeros(batch, c.channels, *c.image_size, device=self.head.weight.device),)

    def span(self, device: torch.device) -> Span:
        """Patches at (row, column); the class token is one position before the first."""
        coords = grid_positions(self.config.grid, device)
        if self.class_token is not None:
            coords = torch.cat((torch.tensor([[0, -1]], device=device), coords))
        return Span.whole(len(coords), coords=coords[None], device=device)

    def forward(self, picture: Float[Tensor, "B C H W"], probe: Probe = OFF) -> Float[Tensor, "B K"]:
        check_shape(picture, self.config)
        x = self.patches(picture, probe / "patches")
        if self.class_token is not None:
            x = torch.cat((self.class_token.to(x.dtype).expand(len(x), -1, -1), x), 1)
        x, here = self.positions(probe("tokens", x), self.span(x.device), probe / "positions")
        here = here.under(self.mask, partial(self.positions.bias, probe=probe / "positions"))
        x = self.drop(probe("input", x))
        for i, block in enumerate(self.blocks):
            x = block(x, here, probe=probe / f"blocks.{i}")
        x = probe("norm", self.norm(x))
        x = probe("pooled", x.mean(1) if self.class_token is None else x[:, 0])
        return probe.checked(probe("logits", self.head(x)))

    def resized(self, image_size: tuple[int, int]) -> "ViT":
        """The same model for images of another size; a learned table of positions is interpolated to the new grid."""
        other = ViT(replace(self.config, image_size=image_size)).to(self.head.weight)
        state = self.state_dict()
        if isinstance(self.positions, Learned):
            state["positions.table"] = self.positions.resampled(other.config.grid).detach()
        other.load_state_dict(state)
        return other.train(self.training)


def check_shape(picture: Tensor, c: Any) -> None:
    """Refuse a picture whose shape is not the model's, naming both."""
    if tuple(picture.shape[1:]) != (c.channels, *c.image_size):
        raise ValueError(
            f"the pictures are {by(picture.shape[1:])} (channels, height, width) and the model takes "
            f"{by((c.channels, *c.image_size))}"
        )


@torch.no_grad()
def attention_maps(model: ViT, picture: Float[Tensor, "B C H W"]) -> Float[Tensor, "B rows columns"]:
    """The attention of the pooled token (or the mean over all tokens) to each patch.

    The last block's, averaged over its heads.
    """
    probe = Probe(f"blocks.{model.config.depth - 1}.attn.pattern")
    model(picture, probe=probe)
    (pattern,) = probe.values.values()
    pattern = pattern.mean(1)
    attention = pattern.mean(1) if model.class_token is None else pattern[:, 0, 1:]
    return attention.unflatten(1, model.config.grid)
