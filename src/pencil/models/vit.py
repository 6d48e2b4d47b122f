"""ViT: a picture in, a label's logits out; every strip looks at every strip."""

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.embed import Patches
from ..core.masks import full
from ..core.patches import by, grid_of, seats
from ..core.positions import Learned
from ..core.probe import OFF, Off, Probe
from ..core.span import Span
from .parts import (
    Activation,
    Scheme,
    block_maker,
    check_picture,
    check_positions,
    check_sizes,
    initialise,
    norm_maker,
    positions_of,
    turned,
)


@dataclass(frozen=True)
class ViTConfig:
    """Sizes and choices of a vision transformer; `hidden` follows from the width when not given."""

    image_size: tuple[int, int] = (28, 28)
    channels: int = 1
    patch: tuple[int, int] = (4, 4)
    classes: int = 10
    width: int = 64
    depth: int = 4
    heads: int = 4
    hidden: int | None = None
    norm: Literal["layer", "rms"] = "layer"
    eps: float = 1e-6
    activation: Activation = "gelu"
    bias: bool = True
    dropout: float = 0.0
    positions: Scheme = "learned"
    rope_base: float = 100.0  # pictures are a few dozen strips wide: slower waves would not turn
    rope_share: float = 1.0  # of each head
    reach: int | None = None  # distances beyond it count as it: 16 for shaw and 128 for t5 unless given
    pool: Literal["class", "mean"] = "class"

    def __post_init__(self):
        check_sizes(self)
        check_picture(self)
        check_positions(self.positions, self, 2)

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def mlp_width(self) -> int:
        return self.hidden or 4 * self.width

    @property
    def grid(self) -> tuple[int, ...]:
        """Strips down and across."""
        return grid_of(self.image_size, self.patch)

    @property
    def sizes(self) -> dict[str, int]:
        """What each letter of the shapes stands for here."""
        strips = prod(self.grid)
        tokens = strips + (self.pool == "class")
        return {
            "T": tokens, "S": tokens, "N": strips, "c": self.channels * prod(self.patch), "K": self.classes,
            "D": self.width, "h": self.heads, "g": self.heads, "d": self.head_width, "d/2": turned(self) // 2,
            "F": self.mlp_width, "a": 2,
        }  # fmt: skip


def _published(patch: int, width: int, depth: int, heads: int) -> dict:
    """The sizes of the ViT papers: 224×224 pictures, 1,000 classes."""
    return dict(
        image_size=(224, 224), channels=3, patch=(patch, patch), classes=1000, width=width, depth=depth, heads=heads
    )


# a preset without an image_size takes size, channels and patch from the data
PRESETS: dict[str, dict] = {
    "nano": dict(width=64, depth=4, heads=4),
    "small": dict(width=192, depth=6, heads=6, dropout=0.1),
    "ti/16": _published(16, 192, 12, 3),
    "s/16": _published(16, 384, 12, 6),
    "b/16": _published(16, 768, 12, 12),
    "b/32": _published(32, 768, 12, 12),
    "l/16": _published(16, 1024, 24, 16),
}


class ViT(nn.Module):
    """Strips, and a class token before them if it is the one that is read; the trunk is the loop in `forward`."""

    NAMES = {
        "tokens": ("B T D", "z", "[class; I]"),
        "input": ("B T D", "Z⁰", "z + P"),
        "norm": ("B T D", "X_f", "Norm(X)"),
        "pooled": ("B D", "y", "X_f[class] or mean X_f"),
        "logits": ("B K", "Z", "y W + b"),
    }
    WEIGHTS = {"class_token": "z_cls", "head.weight": "W_class", "head.bias": "b_class"}

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = c = config
        self.mask = full
        self.patches = Patches(c.channels, c.patch, c.width)
        self.class_token = nn.Parameter(torch.empty(1, 1, c.width)) if c.pool == "class" else None
        self.positions = positions_of(c.positions, c, c.grid, before=int(c.pool == "class"))
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
        """Strips at (row, column); the class token sits one seat before the first."""
        coords = seats(self.config.grid, device)
        if self.class_token is not None:
            coords = torch.cat((torch.tensor([[0, -1]], device=device), coords))
        return Span.whole(len(coords), coords=coords[None], device=device)

    def forward(self, picture: Float[Tensor, "B C H W"], probe: Off = OFF) -> Float[Tensor, "B K"]:
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
        return probe("logits", self.head(x))

    def resized(self, image_size: tuple[int, int]) -> "ViT":
        """The same model for pictures of another size; a learned table of positions is stretched to the new grid."""
        other = ViT(replace(self.config, image_size=image_size)).to(self.head.weight)
        state = self.state_dict()
        if isinstance(self.positions, Learned):
            state["positions.table"] = self.positions.resampled(other.config.grid).detach()
        other.load_state_dict(state)
        return other.train(self.training)


def check_shape(picture: Tensor, c: Any) -> None:
    """Refuse a picture of another shape than the model's, naming both."""
    if tuple(picture.shape[1:]) != (c.channels, *c.image_size):
        raise ValueError(
            f"the pictures are {by(picture.shape[1:])} (channels, height, width) and the model takes "
            f"{by((c.channels, *c.image_size))}"
        )


@torch.no_grad()
def attention_maps(model: ViT, picture: Float[Tensor, "B C H W"]) -> Float[Tensor, "B rows columns"]:
    """Where the model looks: the attention of the token that is read (all tokens, if they are averaged) to each strip.

    The last block's, averaged over its heads.
    """
    probe = Probe(f"blocks.{model.config.depth - 1}.attn.pattern")
    model(picture, probe=probe)
    (pattern,) = probe.values.values()
    pattern = pattern.mean(1)
    looks = pattern.mean(1) if model.class_token is None else pattern[:, 0, 1:]
    return looks.unflatten(1, model.config.grid)
