"""The diffusion transformer (DiT): a noised image or video and the timestep in, the prediction target out.

The blocks' norms are set by a condition (adaLN): the timestep, and a label or a text if there is one.

The prediction target belongs to the model. `noise_schedule` and `prediction` are in a dit's config, since its output
means nothing without them; a sampler that does not fit is refused. The weights it is used with are their exponential
moving average, kept beside the others in every checkpoint.
"""

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn

from ..config import UserError
from ..core.attention import Attention
from ..core.blocks import AdaBlock, AdaNormBlock
from ..core.embed import Patches, TimestepEmbedding, Tokens
from ..core.layers import MLP, LayerNorm, gelu_tanh
from ..core.masks import full
from ..core.patches import by, grid_of, grid_positions, join, patch_sizes
from ..core.positions import Scheme
from ..core.probe import OFF, Name, Probe, renamed, spelled
from ..core.span import Span
from ..core.token_groups import Grouping, frames_and_positions, windows
from .build import Shown, describe, make_positions
from .config import BlockConfig, check_picture, check_positions, check_sizes
from .reader import Encoder, ReaderConfig, mean_of

# what is the same in every DiT: its norms have no weights, its MLP a GELU, its layers biases
_NOT_OF_ADALN = (
    "kv_heads", "head_dim", "norm", "activation", "bias", "dropout", "attention_dropout", "key_dropout",
    "rope_scaling", "rope_factor", "rope_original_context",
)  # fmt: skip


@dataclass(frozen=True)
class DiTConfig(BlockConfig, without=_NOT_OF_ADALN):
    """Sizes and options of a DiT. `classes` conditions it on a label, `vocab` on a text; else only on the timestep."""

    image_size: tuple[int, int] = (8, 8)  # height and width
    channels: int = 1  # of the images or latents
    patch: tuple[int, int] = (2, 2)  # height and width of a patch
    frames: int = 1  # frames of a video; 1 for images
    patch_frames: int = 1  # frames in a patch
    classes: int | None = None  # number of classes, for a label as condition
    vocab: int | None = None  # tokens in the vocabulary, for a text as condition
    context: int = 32  # maximum number of tokens of the text
    text_encoder_depth: int = 2  # blocks of the text encoder
    null_condition: bool = True  # the unconditional class or text that classifier-free guidance needs
    width: int = 128  # size of the residual stream (d_model)
    eps: float = 1e-6  # epsilon of the norms
    mlp_eps: float | None = None  # epsilon of the norm before the MLP; eps unless given
    positions: Scheme = "sinusoidal"  # position scheme
    rope_theta: float = 100.0  # base of the RoPE frequencies
    attention: Literal["full", "factored", "windowed"] = "full"  # factored: within frames, then across them
    window: int = 4  # patches along each side of a window
    adaln: Literal["zero", "plain"] = "zero"  # zero: norms and gates (adaLN-Zero); plain: norms alone
    noise_schedule: Literal["flow", "linear", "cosine"] = "flow"  # flow is rectified flow
    prediction: Literal["eps", "x0", "v"] = "eps"  # prediction target, where noise_schedule is linear or cosine
    learned_variance: bool = False  # also predict the variance, where noise_schedule is linear or cosine
    downscale_freq_shift: bool = False  # the lowest timestep frequency is exactly 1/10,000, as in diffusers
    dropout: float = 0.0  # this model has none: it must be 0

    activation = "gelu-tanh"
    bias = True

    RENAMED: ClassVar = BlockConfig.RENAMED | {
        "says": "prediction",
        "noise": "noise_schedule",
        "variance": "learned_variance",
        "null": "null_condition",
        "ada": "adaln",
        "time_closed": "downscale_freq_shift",
        "reader_depth": "text_encoder_depth",
    }

    def __post_init__(self):
        check_sizes(self)
        check_picture(self.image_size, self.patch, max(1, self.frames // max(1, self.patch_frames)))
        check_positions(self.positions, self, len(self.grid))
        if self.mlp_eps is not None and not self.mlp_eps > 0:
            raise UserError(f"model.mlp_eps must be above 0, not {self.mlp_eps}")
        if self.dropout:
            raise UserError(f"this model has no dropout, and model.dropout is {self.dropout:g}: leave it out")
        if self.classes is not None and self.vocab is not None:
            raise UserError("the condition is a label or a text, not both: leave model.classes or model.vocab out")
        if self.learned_variance and self.noise_schedule == "flow":
            raise UserError("model.learned_variance needs --model.noise_schedule linear or cosine")
        if self.frames < 1 or self.patch_frames < 1 or self.frames % self.patch_frames:
            raise UserError(f"model.patch_frames {self.patch_frames} does not divide model.frames {self.frames}")
        if self.attention == "factored" and self.frames == 1:
            raise UserError("model.attention factored is for video: attention within frames, then across them")
        if self.window < 1:
            raise UserError(f"model.window must be at least 1, not {self.window}")
        if self.attention == "windowed" and any(side % min(self.window, side) for side in self.grid):
            raise UserError(f"model.window {self.window} does not divide a grid of {by(self.grid)} patches")

    @property
    def sides(self) -> tuple[int, ...]:
        """Of the input: height and width, and before them the frames of a video."""
        return self.image_size if self.frames == 1 else (self.frames, *self.image_size)

    @property
    def patch_sizes(self) -> tuple[int, ...]:
        return self.patch if self.frames == 1 else (self.patch_frames, *self.patch)

    @property
    def grid(self) -> tuple[int, ...]:
        """Patches along each side."""
        return grid_of(self.sides, self.patch_sizes)

    @property
    def out_channels(self) -> int:
        return self.channels * (1 + self.learned_variance)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis letter used in shapes."""
        patches, first = prod(self.grid), groupings(self, torch.device("cpu"))[0]
        groups = {} if first is None else {"w": first.count, "n": first.size}
        return (
            groups
            | self.block_sizes(patches, len(self.grid))
            | {
                "N": patches,
                "c": self.channels * prod(self.patch_sizes),
                "m": (6 if self.adaln == "zero" else 4) * self.width,
                "f": 256,
                "s": self.context,
                "o": self.out_channels * prod(self.patch_sizes),
                "r": 2 * self.width,
                **patch_sizes(self.channels, self.grid, self.patch_sizes),
            }
        )


_LATENT = dict(image_size=(32, 32), channels=4, classes=1000, learned_variance=True, noise_schedule="linear")
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


class DiT(Shown, nn.Module):
    """A noised image, the timestep and a condition to the prediction; the blocks run in the loop of `forward`."""

    NAMES = {
        "label?": ("B D", "c_y", "Y[y]"),
        "text?": ("B D", "c_y", "mean(X_text)"),
        "condition": ("B D", "c", "c_t⟨ + c_y⟩"),
        "input": ("B T D", "X⁰", "I⟨ + P⟩"),
        "last": ("B r", "m_f", "SiLU(c) W_last + b_last"),
        "last_shift": ("B 1 D", "β_f", "m_f[0:D]"),
        "last_scale": ("B 1 D", "γ_f", "m_f[D:2D]"),
        "ungrouped?": ("B T D", "X_out", "ungroup(Xᴸ)"),
        "norm": ("B T D", "X_f", "LN({X_out|Xᴸ})·(1 + γ_f) + β_f"),
        "patches_out": ("B N o", "Y_patch", "X_f W_out + b_out"),
    }
    INPUTS = {"picture": "X_img", "timestep": "t", "given": "y"}
    WEIGHTS = {
        "labels.weight": "Y", "null_text": "c_∅", "last.weight": "W_last", "last.bias": "b_last",
        "head.weight": "W_out", "head.bias": "b_out",
    }  # fmt: skip
    WEIGHT_AXES = {"labels.weight": "K D"}
    RENAMED_TENSORS = {"reader.": "text_encoder.", "words.": "text_tokens.", "nothing": "null_text"}  # before 0.7
    LETTERS = {"text_encoder": {"T": "s", "S": "s"}}

    INNER: dict[str, tuple[str, str, str]]

    def __init__(self, config: DiTConfig):
        super().__init__()
        self.config = c = config
        self.mask = full
        self.patches = Patches(c.channels, c.patch_sizes, c.width)
        self.positions = make_positions(c.positions, c, c.grid)
        self.time = TimestepEmbedding(c.width, downscale_freq_shift=c.downscale_freq_shift)
        self.labels = Tokens(c.classes + c.null_condition, c.width) if c.classes else None
        self.text_tokens, self.text_encoder, self.null_text = None, None, None
        if c.vocab:
            small = ReaderConfig(
                vocab=c.vocab,
                context=c.context,
                width=c.width,
                depth=c.text_encoder_depth,
                heads=c.heads,
                hidden=c.hidden,
                rope_fraction=c.rope_fraction,
                rope_pairs=c.rope_pairs,
            )
            self.text_tokens, self.text_encoder = Tokens(c.vocab, c.width), Encoder(small, c.context)
            self.null_text = nn.Parameter(torch.zeros(c.width)) if c.null_condition else None
        block = partial(
            AdaBlock if c.adaln == "zero" else AdaNormBlock,
            partial(Attention, c.width, c.heads),
            partial(MLP, c.width, c.mlp_width, gelu_tanh),
            partial(LayerNorm, c.width, c.eps, bias=False, scale=False),
            c.width,
        )
        self.blocks = nn.ModuleList(block() for _ in range(c.depth))
        if c.mlp_eps is not None:
            for part in self.blocks:
                part.mlp_norm = LayerNorm(c.width, c.mlp_eps, bias=False, scale=False)
        texts = {"text_encoder": {"X_emb": "E[y]", "X_f": "X_text"}}
        describe(self, self.positions, self.mask.words, texts | symbols_of_groups(c))
        declare_groups(self)
        self.norm = LayerNorm(c.width, c.eps, bias=False, scale=False)
        self.last = nn.Linear(c.width, 2 * c.width)
        self.head = nn.Linear(c.width, c.out_channels * prod(c.patch_sizes))
        self._initialise()

    def _initialise(self) -> None:
        """Xavier uniform for every matrix, but zero for the adaLN matrices and the head."""
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
        timestep: Num[Tensor, "B"],
        given: Int[Tensor, "B *s"] | None,
        places: Span | None,
        drop_condition: Bool[Tensor, "B"] | None,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B D"]:
        """The embedding of the timestep, plus that of the label or the text; null in the rows of `drop_condition`."""
        c, condition = self.config, self.time(timestep, probe / "time")
        if (given is None) != (c.classes is None and c.vocab is None):
            raise ValueError("a label or a text is given with every call to a model that takes one, and with no other")
        if drop_condition is not None and not c.null_condition:
            raise ValueError("the model has no null condition (model.null_condition false), so it cannot drop one")
        if self.labels is not None and given is not None:
            label = given if drop_condition is None else given.masked_fill(drop_condition, c.classes or 0)
            condition = condition + probe("label", self.labels(label))
        if self.text_encoder is not None and self.text_tokens is not None and given is not None:
            there = places or Span.whole(given.shape[1], device=given.device)
            x, inner = self.text_tokens(given), probe / "text_encoder"
            states = self.text_encoder.final(self.text_encoder(x, there, inner), inner)
            pooled = mean_of(states, there)
            if drop_condition is not None and self.null_text is not None:
                pooled = torch.where(drop_condition[:, None], self.null_text.to(pooled.dtype), pooled)
            condition = condition + probe("text", pooled)
        return probe("condition", condition)

    def forward(
        self,
        picture: Float[Tensor, "B C *sides"],
        timestep: Num[Tensor, "B"],
        given: Int[Tensor, "B *s"] | None = None,
        places: Span | None = None,
        drop_condition: Bool[Tensor, "B"] | None = None,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B o *sides"]:
        """The prediction for a noised image; `given` is a label a row, or the tokens of texts at their `places`."""
        c = self.config
        if tuple(picture.shape[1:]) != (c.channels, *c.sides):
            raise ValueError(
                f"the pictures are {by(picture.shape[1:])} and the model takes {by((c.channels, *c.sides))}"
            )
        condition = self.condition(timestep, given, places, drop_condition, probe)
        x = self.patches(picture, probe / "patches")
        coords = grid_positions(c.grid, x.device)
        x, here = self.positions(x, Span.whole(len(coords), coords=coords[None], device=x.device), probe / "positions")
        x = probe("input", x)
        groups, spans = groupings(c, x.device), []
        for group, inner in zip(groups, (probe / "positions", probe / "positions" / "next"), strict=False):
            span = here if group is None else group.within(here, x.shape[0])
            spans.append(span.under(self.mask, partial(self.positions.bias, probe=inner)))
        for i, block in enumerate(self.blocks):
            group, span = groups[i % len(groups)], spans[i % len(groups)]
            if group is None:
                x = block(x, span, condition, probe / f"blocks.{i}")
            else:
                grouped = probe(f"blocks.{i}.input", group.gather(x))
                repeated = probe(f"blocks.{i}.condition", condition.repeat_interleave(group.count, 0))
                x = group.scatter(block(grouped, span, repeated, probe / f"blocks.{i}"))
        if groups[0] is not None:
            x = probe("ungrouped", x)
        return join(probe.checked(self.readout(x, condition, probe)), c.sides, c.patch_sizes)

    def readout(
        self, x: Float[Tensor, "B N D"], condition: Float[Tensor, "B D"], probe: Probe = OFF
    ) -> Float[Tensor, "B N o"]:
        """What the residual stream says under a condition: the prediction, patch by patch."""
        shift, scale = probe("last", self.last(nn.functional.silu(condition)))[:, None].chunk(2, -1)
        shift, scale = probe("last_shift", shift), probe("last_scale", scale)
        x = probe("norm", self.norm(x) * (1 + scale) + shift)
        return probe("patches_out", self.head(x))


_SECOND = {"B": "B₂", "r": "r₂", "b": "b₂", "r_a": "r₂_a", "b_a": "b₂_a"}  # the biases of every other block


def groupings(c: DiTConfig, device: torch.device) -> list[Grouping | None]:
    """The attention groups of the blocks, used in rotation: none (all patches); frames, then positions across frames;
    windows, then windows shifted by half their size."""
    if c.attention == "full":
        return [None]
    if c.attention == "factored":
        return [*frames_and_positions(c.grid, device)]
    sizes = [min(c.window, side) for side in c.grid]
    half = [size // 2 if size < side else 0 for size, side in zip(sizes, c.grid, strict=True)]
    return [windows(c.grid, sizes, moved, device) for moved in ([0] * len(half), half)]


def symbols_of_groups(c: DiTConfig) -> dict[str, dict[str, str]]:
    """The symbols of every other block, whose groups are others."""
    return {} if c.attention == "full" else {f"blocks.{i}": _SECOND for i in range(1, c.depth, 2)}


def declare_groups(model: DiT) -> None:
    """Name the axes of grouped attention, where a group is a row of the batch, in the blocks and in the bias."""
    c = model.config
    if c.attention == "full":
        return
    within = {"B": "B·w", "T": "n", "S": "n"}
    then = {"B": "B·n", "T": "w", "S": "w"} if c.attention == "factored" else within
    model.LETTERS = model.LETTERS | {f"blocks.{i}": then if i % 2 else within for i in range(c.depth)}
    scheme = model.positions.NAMES
    biased = {k: Name(*v) for k, v in scheme.items() if k not in ("embedding", "angles")}
    model.INNER = {f"positions.{name}": spelled(entry, within)[:3] for name, entry in biased.items()}
    second = {name: renamed(spelled(entry, then), _SECOND)[:3] for name, entry in biased.items()}
    model.NAMES = model.NAMES | {f"positions.next.{name}": entry for name, entry in second.items()}
    for i in range(c.depth):
        model.NAMES = model.NAMES | {
            f"blocks.{i}.input": ("B T D", "X_in", "regroup(Xˡ⁻¹)"),
            f"blocks.{i}.condition": ("B D", "c_in", "repeat(c)"),
        }
