"""ViT: an image in, the logits of its class out; every patch attends to every patch."""

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..config import UserError
from ..core.embed import Patches
from ..core.masks import full
from ..core.patches import by, grid_of, grid_positions, patch_sizes
from ..core.positions import Learned, Scheme
from ..core.probe import OFF, Probe
from ..core.span import Span
from .build import Shown, block_maker, describe, initialise, make_positions, norm_maker, rebuilt
from .config import BlockConfig, check_picture, check_positions, check_sizes


@dataclass(frozen=True)
class ViTConfig(BlockConfig, without=("kv_heads", "head_dim", "rope_scaling", "rope_factor", "rope_original_context")):
    """Sizes and options of a vision transformer."""

    image_size: tuple[int, int] = (28, 28)  # height and width
    channels: int = 1  # 1 grey, 3 colour
    patch: tuple[int, int] = (4, 4)  # height and width of a patch
    classes: int = 10  # number of classes
    width: int = 64  # size of the residual stream (d_model)
    eps: float = 1e-6  # epsilon of the norms
    bias: bool = True  # biases in linear layers and norms
    positions: Scheme = "learned"  # position scheme
    rope_theta: float = 100.0  # base of the RoPE frequencies; small, as images are a few dozen patches wide
    pool: Literal["class", "mean"] = "class"  # the class is read from a class token, or from the mean of all patches
    class_token: bool | None = None  # a class token before the patches; unless given, where the class is read from it
    registers: int = 0  # learned tokens after the class token that belong to no patch
    token_positions: bool = True  # whether class token and registers have a position, too
    qkv_bias: bool | None = None  # biases of queries, keys and values; as bias unless given
    embed_norm: bool = False  # a norm before the first block, and patches without a bias, as in CLIP
    norm_pooled: bool = False  # the last norm comes after the pooling, not before it
    distilled: bool = False  # the first register has a head of its own; the logits are the mean of both, as in DeiT

    def __post_init__(self):
        check_sizes(self)
        check_picture(self.image_size, self.patch)
        check_positions(self.positions, self, 2)
        check_tokens(self)

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Settings of a run made before 0.7, whose dropout was of activations and of whole keys."""
        return {"attention_dropout": 0.0, "key_dropout": values.get("dropout", 0.0)} | values

    @property
    def before(self) -> int:
        """Tokens before the patches: the class token and the registers."""
        return (self.pool == "class" if self.class_token is None else self.class_token) + self.registers

    @property
    def grid(self) -> tuple[int, ...]:
        """Patches down and across."""
        return grid_of(self.image_size, self.patch)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis letter used in shapes."""
        patches = prod(self.grid)
        return self.block_sizes(patches + self.before, 2) | {
            "N": patches,
            "c": self.channels * prod(self.patch),
            "K": self.classes,
            **patch_sizes(self.channels, self.grid, self.patch),
        }


def check_tokens(c: ViTConfig) -> None:
    """Refuse tokens before the patches that would have no use, or that something else needs."""
    if c.registers < 0:
        raise UserError(f"model.registers must be at least 0, not {c.registers}")
    if c.pool == "class" and c.class_token is False:
        raise UserError("model.pool class reads a class token: leave model.class_token out, or set model.pool mean")
    if not c.token_positions and (not c.before or c.positions != "learned"):
        what = f"positions {c.positions}" if c.before else "no class token and no registers"
        raise UserError(f"model.token_positions has no effect with {what}: leave it out")
    if c.distilled and (c.registers < 1 or c.pool != "class" or c.norm_pooled):
        raise UserError(
            "model.distilled reads the class token and the first register: it needs model.registers 1 or more, "
            "model.pool class and no model.norm_pooled"
        )


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


class ViT(Shown, nn.Module):
    """Patches to the logits of the classes; the blocks run in the loop of `forward`."""

    INPUTS = {"picture": "X_img"}
    WEIGHTS = {
        "class_token": "z_cls", "registers": "z_reg", "head.weight": "W_class", "head.bias": "b_class",
        "distilled_head.weight": "W_dist", "distilled_head.bias": "b_dist",
    }  # fmt: skip
    WEIGHT_AXES = {"head.weight": "K D", "head.bias": "K", "distilled_head.weight": "K D", "distilled_head.bias": "K"}

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = c = config
        self.mask = full
        self.NAMES = _names(c)
        self.patches = Patches(c.channels, c.patch, c.width, bias=not c.embed_norm)
        self.class_token = nn.Parameter(torch.empty(1, 1, c.width)) if c.before > c.registers else None
        self.registers = nn.Parameter(torch.empty(1, c.registers, c.width)) if c.registers else None
        self.positions = make_positions(c.positions, c, c.grid, before=c.before if c.token_positions else 0)
        if not c.token_positions:
            self.positions.NAMES = {"embedding": ("B N D", "P", "P_table[pos]")}
        describe(self, self.positions, self.mask.words)
        self.embed_norm = norm_maker(c)() if c.embed_norm else None
        self.drop = nn.Dropout(c.dropout)
        block = block_maker(c)
        self.blocks = nn.ModuleList(block() for _ in range(c.depth))
        self.norm = norm_maker(c)()
        self.head = nn.Linear(c.width, c.classes)
        self.distilled_head = nn.Linear(c.width, c.classes) if c.distilled else None
        initialise(self)

    def example(self, batch: int = 1) -> tuple[Float[Tensor, "B C H W"]]:
        c = self.config
        return (torch.zeros(batch, c.channels, *c.image_size, device=self.head.weight.device),)

    def span(self, device: torch.device, first: int) -> Span:
        """Patches at (row, column); the `first` tokens before them are in row 0, the last of them at column −1."""
        coords = grid_positions(self.config.grid, device)
        if first:
            left = torch.tensor([[0, column] for column in range(-first, 0)], device=device)
            coords = torch.cat((left, coords))
        return Span.whole(len(coords), coords=coords[None], device=device)

    def forward(self, picture: Float[Tensor, "B C H W"], probe: Probe = OFF) -> Float[Tensor, "B K"]:
        c = self.config
        check_shape(picture, (c.channels, *c.image_size))
        x = self.patches(picture, probe / "patches")
        if c.token_positions:
            x = probe("tokens", self.with_tokens(x))
            x, here = self.positions(x, self.span(x.device, c.before), probe / "positions")
        else:
            x, _ = self.positions(x, self.span(x.device, 0), probe / "positions")
            x = probe("tokens", self.with_tokens(probe("placed", x)))
            here = self.span(x.device, c.before)
        here = here.under(self.mask, partial(self.positions.bias, probe=probe / "positions"))
        x = self.drop(probe("input", x if self.embed_norm is None else self.embed_norm(x)))
        for i, block in enumerate(self.blocks):
            x = block(x, here, probe=probe / f"blocks.{i}")
        return probe.checked(self.readout(x, probe))

    def readout(self, x: Float[Tensor, "B T D"], probe: Probe = OFF) -> Float[Tensor, "B K"]:
        """What the residual stream says: the logits of the classes."""
        c = self.config
        x = x if c.norm_pooled else probe("norm", self.norm(x))
        patches = x[:, c.before :] if c.pool == "mean" and c.before else x
        pooled = probe("pooled", x[:, 0] if c.pool == "class" else patches.mean(1))
        pooled = probe("pooled_norm", self.norm(pooled)) if c.norm_pooled else pooled
        logits = self.head(pooled)
        if self.distilled_head is not None:
            logits = (logits + self.distilled_head(probe("distilled", x[:, 1]))) / 2
        return probe("logits", logits)

    def with_tokens(self, patches: Float[Tensor, "B N D"]) -> Float[Tensor, "B T D"]:
        """The patches after the class token and the registers, where there are any."""
        first = [token for token in (self.class_token, self.registers) if token is not None]
        first = [token.to(patches.dtype).expand(patches.shape[0], -1, -1) for token in first]
        return torch.cat((*first, patches), 1) if first else patches

    def resized(self, image_size: tuple[int, int]) -> "ViT":
        """The same model for images of another size; a learned table of positions is interpolated to the new grid."""
        config, state = replace(self.config, image_size=image_size), self.state_dict()
        if isinstance(self.positions, Learned):
            state["positions.table"] = self.positions.resampled(config.grid)
        return rebuilt(self, config, state)


def _names(c: ViTConfig) -> dict[str, tuple[str, str, str]]:
    """The model's own named values and their formulas."""
    patches, last = "I" if c.token_positions else "I_pos", "Xᴸ" if c.norm_pooled else "X_f"
    first = ["z_cls"] * (c.before > c.registers) + ["z_reg"] * bool(c.registers)
    placed = "z⟨ + P⟩" if c.token_positions else "z"
    logits = "y W_class + b_class"
    names = {} if c.token_positions else {"placed": ("B N D", "I_pos", "I⟨ + P⟩")}
    names["tokens"] = ("B T D", "z", f"[{'; '.join((*first, patches))}]" if first else patches)
    names["input"] = ("B T D", "X⁰", f"Norm_embed({placed})" if c.embed_norm else placed)
    if not c.norm_pooled:
        names["norm"] = ("B T D", "X_f", "Norm_f(Xᴸ)")
    mean = f"mean({last}[{c.before}:])" if c.before else f"mean({last})"
    names["pooled"] = ("B D", "y", f"{last}[0]" if c.pool == "class" else mean)
    if c.norm_pooled:
        names["pooled_norm"] = ("B D", "y_f", "Norm_f(y)")
        logits = "y_f W_class + b_class"
    if c.distilled:
        names["distilled"] = ("B D", "y_dist", f"{last}[1]")
        logits = f"({logits} + y_dist W_dist + b_dist)/2"
    return names | {"logits": ("B K", "Z", logits)}


def check_shape(picture: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a picture whose shape is not the model's, naming both."""
    if tuple(picture.shape[1:]) != shape:
        raise ValueError(
            f"the pictures are {by(picture.shape[1:])} (channels, height, width) and the model takes {by(shape)}"
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
    before = model.config.before
    attention = pattern[:, before:].mean(1) if model.config.pool == "mean" else pattern[:, 0]
    attention = attention[:, before:]
    return attention.unflatten(1, model.config.grid)
