"""The diffusion transformer: a noised picture or video and the time in, what to take away out.

Strips look at one another in blocks whose norms are set by a condition: the time, and a label or a text if there is.
"""

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn

from ..config import UserError
from ..core.attention import Attention
from ..core.blocks import AdaBlock, AdaNormBlock
from ..core.embed import Patches, Time, Tokens
from ..core.groups import Grouping, frames_and_seats, windows
from ..core.layers import MLP, LayerNorm, gelu_tanh
from ..core.masks import full
from ..core.patches import by, grid_of, join, seats
from ..core.probe import OFF, Name, Off, spelled
from ..core.span import Span
from .parts import Scheme, check_picture, check_positions, check_sizes, positions_of, turned
from .reader import Encoder, ReaderConfig, mean_of


@dataclass(frozen=True)
class DiTConfig:
    """Sizes and choices. With `classes` it is given a label, with `vocab` a text, with neither nothing but the time.

    `null` leaves room for no condition, which guidance needs. A video has `frames`, cut by `patch_frames`. `attention`
    is among all strips, or of a video in turn within frames and across them, or within windows. `noise` is how pictures
    were noised, and `says` what is said of them where that is in steps (linear, cosine); `variance`, of the variance
    too. `ada` sets the norms and gates (zero) or the norms alone (plain).
    """

    image_size: tuple[int, int] = (8, 8)
    channels: int = 1
    patch: tuple[int, int] = (2, 2)
    frames: int = 1
    patch_frames: int = 1
    classes: int | None = None
    vocab: int | None = None
    context: int = 32
    reader_depth: int = 2
    null: bool = True
    width: int = 128
    depth: int = 4
    heads: int = 4
    hidden: int | None = None
    eps: float = 1e-6
    mlp_eps: float | None = None  # of the norm before the MLP, where it is another, as diffusers has it
    positions: Scheme = "sincos"
    rope_base: float = 100.0
    rope_share: float = 1.0  # of each head
    reach: int | None = None  # distances beyond it count as it: 16 for shaw and 128 for t5 unless given
    attention: Literal["full", "factored", "windowed"] = "full"
    window: int = 4  # strips along each side of a window
    ada: Literal["zero", "plain"] = "zero"
    noise: Literal["flow", "linear", "cosine"] = "flow"
    says: Literal["eps", "x0", "v"] = "eps"
    variance: bool = False
    time_closed: bool = False  # the clock's slowest wave is exactly 1/10,000, as diffusers has it
    dropout: float = 0.0

    def __post_init__(self):
        check_sizes(self)
        check_picture(self)
        check_positions(self.positions, self, len(self.grid))
        if self.mlp_eps is not None and not self.mlp_eps > 0:
            raise UserError(f"model.mlp_eps must be above 0, not {self.mlp_eps}")
        if self.dropout:
            raise UserError(f"a dit drops nothing, and model.dropout is {self.dropout:g}: leave it out")
        if self.classes is not None and self.vocab is not None:
            raise UserError("a dit is given a label or a text, not both: leave model.classes or model.vocab out")
        if self.variance and self.noise == "flow":
            raise UserError("model.variance is for noise in steps: --model.noise linear or cosine")
        if self.frames < 1 or self.patch_frames < 1 or self.frames % self.patch_frames:
            raise UserError(f"model.patch_frames {self.patch_frames} does not divide model.frames {self.frames}")
        if self.attention == "factored" and self.frames == 1:
            raise UserError("model.attention factored is for video: it looks within frames, then across them")
        if self.window < 1:
            raise UserError(f"model.window must be at least 1, not {self.window}")
        if self.attention == "windowed" and any(side % min(self.window, side) for side in self.grid):
            raise UserError(f"model.window {self.window} does not divide a grid of {by(self.grid)} strips")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def mlp_width(self) -> int:
        return self.hidden or 4 * self.width

    @property
    def sides(self) -> tuple[int, ...]:
        """Of what is read: height and width, and before them the frames of a video."""
        return self.image_size if self.frames == 1 else (self.frames, *self.image_size)

    @property
    def cut(self) -> tuple[int, ...]:
        return self.patch if self.frames == 1 else (self.patch_frames, *self.patch)

    @property
    def grid(self) -> tuple[int, ...]:
        """Strips along each side."""
        return grid_of(self.sides, self.cut)

    @property
    def out_channels(self) -> int:
        return self.channels * (1 + self.variance)

    @property
    def sizes(self) -> dict[str, int]:
        """What each letter of the shapes stands for here."""
        strips, first = prod(self.grid), groupings(self, torch.device("cpu"))[0]
        groups = {} if first is None else {"w": first.count, "n": first.size}
        return groups | {
            "T": strips, "S": strips, "N": strips, "c": self.channels * prod(self.cut), "D": self.width,
            "h": self.heads, "g": self.heads, "d": self.head_width, "d/2": turned(self) // 2, "F": self.mlp_width,
            "a": len(self.grid), "m": (6 if self.ada == "zero" else 4) * self.width, "f": 256, "s": self.context,
            "o": self.out_channels * prod(self.cut), "r": 2 * self.width,
        }  # fmt: skip


_LATENT = dict(image_size=(32, 32), channels=4, classes=1000, variance=True, noise="linear")
_SIZES = {
    "s": dict(width=384, depth=12, heads=6),
    "b": dict(width=768, depth=12, heads=12),
    "l": dict(width=1024, depth=24, heads=16),
    "xl": dict(width=1152, depth=28, heads=16),
}

# a preset without an image_size takes size, channels and patch from the data
PRESETS: dict[str, dict] = {
    "nano": dict(width=128, depth=4, heads=4),
    "small": dict(width=256, depth=8, heads=8),
    **{f"{n}/{p}": {**size, **_LATENT, "patch": (p, p)} for n, size in _SIZES.items() for p in (2, 4, 8)},
}


class DiT(nn.Module):
    """A noised picture, the time and a condition to what the model says of it; the trunk is the loop in `forward`."""

    NAMES = {
        "input": ("B T D", "X⁰", "I + P"),
        "condition": ("B D", "c", "c_t (+ c_y)"),
        "last": ("B r", "β γ", "SiLU(c) W_last + b_last"),
        "norm": ("B T D", "X_f", "Norm(X)·(1 + γ) + β"),
        "strips": ("B N o", "Y", "X_f W_out + b_out"),
    }
    WEIGHTS = {
        "labels.weight": "Y", "nothing": "c_∅", "last.weight": "W_last", "last.bias": "b_last", "head.weight": "W_out",
        "head.bias": "b_out",
    }  # fmt: skip
    LETTERS = {"reader": {"T": "s", "S": "s"}}

    def __init__(self, config: DiTConfig):
        super().__init__()
        self.config = c = config
        self.mask = full
        self.patches = Patches(c.channels, c.cut, c.width)
        self.positions = positions_of(c.positions, c, c.grid)
        self._declare_groups()
        self.time = Time(c.width, closed=c.time_closed)
        self.labels = Tokens(c.classes + c.null, c.width) if c.classes else None
        self.words, self.reader, self.nothing = None, None, None
        if c.vocab:
            small = ReaderConfig(
                vocab=c.vocab, context=c.context, width=c.width, depth=c.reader_depth, heads=c.heads, hidden=c.hidden,
                rope_share=c.rope_share,
            )  # fmt: skip
            self.words, self.reader = Tokens(c.vocab, c.width), Encoder(small, c.context)
            self.nothing = nn.Parameter(torch.zeros(c.width)) if c.null else None
        block = partial(
            AdaBlock if c.ada == "zero" else AdaNormBlock,
            partial(Attention, c.width, c.heads),
            partial(MLP, c.width, c.mlp_width, gelu_tanh),
            partial(LayerNorm, c.width, c.eps, bias=False, scale=False),
            c.width,
        )
        self.blocks = nn.ModuleList(block() for _ in range(c.depth))
        if c.mlp_eps is not None:
            for part in self.blocks:
                part.mlp_norm = LayerNorm(c.width, c.mlp_eps, bias=False, scale=False)
        self.norm = LayerNorm(c.width, c.eps, bias=False, scale=False)
        self.last = nn.Linear(c.width, 2 * c.width)
        self.head = nn.Linear(c.width, c.out_channels * prod(c.cut))
        self._initialise()

    def _declare_groups(self) -> None:
        """Where strips look at one another in groups, a group is a row of the batch, in the blocks and in the bias."""
        c = self.config
        if c.attention == "full":
            return
        within = {"B": "B·w", "T": "n", "S": "n"}
        then = {"B": "B·n", "T": "w", "S": "w"} if c.attention == "factored" else within
        self.LETTERS = self.LETTERS | {f"blocks.{i}": then if i % 2 else within for i in range(c.depth)}
        biased = {k: Name(*v) for k, v in getattr(self.positions, "NAMES", {}).items() if k not in ("stamp", "angles")}
        self.INNER = {f"positions.{name}": spelled(entry, within) for name, entry in biased.items()}
        self.NAMES = self.NAMES | {f"positions.next.{name}": spelled(entry, then) for name, entry in biased.items()}

    def _initialise(self) -> None:
        """Glorot's for every matrix but those that set norms and the last, which begin at zero."""
        zero = {id(self.head), id(self.last)} | {id(block.get_submodule("ada")) for block in self.blocks}
        for module in self.modules():
            if isinstance(module, nn.Linear) and id(module) not in zero:
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for part in (self.time.up, self.time.down):
            nn.init.normal_(part.weight, std=0.02)
        for part in (self.last, self.head):
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)

    def example(self, batch: int = 1) -> tuple[Any, ...]:
        c, device = self.config, self.head.weight.device
        given = torch.zeros(batch, *([c.context] if c.vocab else []), dtype=torch.long, device=device)
        picture = torch.zeros(batch, c.channels, *c.sides, device=device)
        return (picture, torch.zeros(batch, device=device), *([given] if c.classes or c.vocab else []))

    def condition(
        self,
        clock: Num[Tensor, "B"],
        given: Int[Tensor, "B *s"] | None,
        places: Span | None,
        nothing: Bool[Tensor, "B"] | None,
        probe: Off = OFF,
    ) -> Float[Tensor, "B D"]:
        """The time, and the label or the text; rows marked `nothing` have neither."""
        c, time = self.config, self.time(clock, probe / "time")
        if (given is None) != (c.classes is None and c.vocab is None):
            raise ValueError("a label or a text comes with every call to a model that takes one, and with no other")
        if nothing is not None and not c.null:
            raise ValueError("the model was trained without the null class: it cannot leave its condition out")
        if self.labels is not None and given is not None:
            label = given if nothing is None else given.masked_fill(nothing, c.classes or 0)
            time = time + self.labels(label)
        if self.reader is not None and self.words is not None and given is not None:
            there = places or Span.whole(given.shape[1], device=given.device)
            read = self.reader(self.words(given), there, probe / "reader")
            pooled = mean_of(read, there)
            if nothing is not None and self.nothing is not None:
                pooled = torch.where(nothing[:, None], self.nothing.to(pooled.dtype), pooled)
            time = time + pooled
        return probe("condition", time)

    def forward(
        self,
        picture: Float[Tensor, "B C *sides"],
        clock: Num[Tensor, "B"],
        given: Int[Tensor, "B *s"] | None = None,
        places: Span | None = None,
        nothing: Bool[Tensor, "B"] | None = None,
        probe: Off = OFF,
    ) -> Float[Tensor, "B o *sides"]:
        """What the model says of a noised picture; `given` is a label a row, or a text's tokens at their `places`."""
        c = self.config
        if tuple(picture.shape[1:]) != (c.channels, *c.sides):
            raise ValueError(
                f"the pictures are {by(picture.shape[1:])} and the model takes {by((c.channels, *c.sides))}"
            )
        condition = self.condition(clock, given, places, nothing, probe)
        x = self.patches(picture, probe / "patches")
        coords = seats(c.grid, x.device)
        x, here = self.positions(x, Span.whole(len(coords), coords=coords[None], device=x.device), probe / "positions")
        x = probe("input", x)
        ways, spans = groupings(c, x.device), []
        for way, inner in zip(ways, (probe / "positions", probe / "positions" / "next"), strict=False):
            span = here if way is None else way.within(here, len(x))
            spans.append(span.under(self.mask, partial(self.positions.bias, probe=inner)))
        for i, block in enumerate(self.blocks):
            way, span = ways[i % len(ways)], spans[i % len(ways)]
            if way is None:
                x = block(x, span, condition, probe / f"blocks.{i}")
            else:
                grouped, each = way.gather(x), condition.repeat_interleave(way.count, 0)
                x = way.scatter(block(grouped, span, each, probe / f"blocks.{i}"))
        shift, scale = probe("last", self.last(nn.functional.silu(condition)))[:, None].chunk(2, -1)
        x = probe("norm", self.norm(x) * (1 + scale) + shift)
        return join(probe("strips", self.head(x)), c.sides, c.cut)


def groupings(c: DiTConfig, device: torch.device) -> list[Grouping | None]:
    """How the blocks look, in turn: at everything; within frames and across them; within windows, every other time
    moved by half a window."""
    if c.attention == "full":
        return [None]
    if c.attention == "factored":
        return [*frames_and_seats(c.grid, device)]
    sizes = [min(c.window, side) for side in c.grid]
    half = [size // 2 if size < side else 0 for size, side in zip(sizes, c.grid, strict=True)]
    return [windows(c.grid, sizes, moved, device) for moved in ([0] * len(half), half)]
