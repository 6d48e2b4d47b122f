"""The single-stream image→text model: patches, then text tokens, as one sequence through one stack of blocks.

An image is a prefix. The captioner is GPT's blocks over patches and words in one sequence. Its image has smaller
indices than every word, coordinates of its own (row and column), and positions of its own; `Span.then` joins the two,
and the mask (`causal`, or `prefix` over the image) is data. The image is read once, with the prefill, and kept in the
cache: `Generation(given={"picture": …})` is all that generation knows of it. A text begins and ends with the same
token, so that the first word, too, is predicted.

Delimiters of an image (`model.delimiters`: `none`, `begin`, `end` or `both`) belong to the image: they are in its
prefix and have its type embedding. By themselves they have no position: no embedding, no rotation, no bias. With
`model.delimiter_positions` they have one in the image's scheme: [IMG] is at (0, −1), as the class token of a ViT is,
and [/IMG] one column after the last patch. Numbered in reading order that is one before and one after the patches, so a
learned table has a row for each at its ends. The text is numbered from 0 in every case.

Both widths can differ from the stream's. `model.image_width` is that of the patch embeddings and `model.text_width`
that of the token table; each has a projection to `model.width` (W_proj with a bias, W_text without). Positions are
added after it. Table and W_text are a factorised embedding, as ALBERT's. A tied head uses both again, X W_textᵀ Eᵀ: the
product E W_text is then the one table of the model, at its input and its output. ALBERT has a second matrix at its
output instead; here that is `model.tie_embeddings false`, with a whole head. W_text begins with deviation
1/√`text_width`, so that E W_text begins as a whole table does: with 0.02 for both factors, 120 steps of the `nano`
preset at `text_width` 24 and batch 32 came to a loss of 1.88; so, to 0.88; a whole table to 0.85.

Two position schemes in one sequence. The captioner's image and text may each have any scheme. Embeddings and rotations
are each part's own; a bias acts within its part only (`within_segments`). The sequence has one scale of the scores, the
text's. Shaw's table, like T5's, is shared by all blocks (Shaw's paper has one per block). Along several axes ALiBi uses
the Euclidean distance; Shaw and T5 have a table an axis and add.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..config import UserError
from ..core.cache import Cache
from ..core.embed import Patches, Project, ProjectText, TiedProjectText, Tokens
from ..core.masks import NOWHERE, causal, prefix
from ..core.patches import grid_of, grid_positions, patch_sizes
from ..core.positions import Scheme, within_segments
from ..core.probe import OFF, Probe
from ..core.span import Span
from .build import Last, Shown, block_maker, check_length, describe, initialise, make_positions, norm_maker, pick_tokens
from .config import BlockConfig, check_picture, check_positions, check_sizes
from .vit import check_shape

Delimiters = Literal["none", "begin", "end", "both"]


@dataclass(frozen=True)
class CaptionerConfig(BlockConfig, without=("head_dim", "rope_scaling", "rope_factor", "rope_original_context")):
    """Sizes and options of a captioner; text has one axis of positions, the image two."""

    image_size: tuple[int, int] = (16, 16)  # height and width
    channels: int = 1  # 1 grey, 3 colour
    patch: tuple[int, int] = (4, 4)  # height and width of a patch
    vocab: int = 512  # tokens in the vocabulary
    context: int = 32  # maximum number of text tokens after the image
    width: int = 96  # size of the residual stream (d_model)
    depth: int = 3  # number of blocks
    image_width: int | None = None  # width of the patch embeddings, projected to width; width unless given
    text_width: int | None = None  # width of the token embeddings, projected to width; width unless given
    bias: bool = False  # biases in norms, blocks and head; the patch projection always has one
    mask: Literal["causal", "prefix"] = "prefix"  # prefix: the image attends to itself in both directions
    positions: Scheme = "rope"  # position scheme of the text
    image_positions: Scheme | None = None  # position scheme of the image; positions unless given
    rope_theta: float = 100.0  # base of the RoPE frequencies
    type_embeddings: bool = True  # one for patches, one for text tokens
    delimiters: Delimiters = "both"  # begin: [IMG] before the patches; end: [/IMG] after them
    delimiter_positions: bool = False  # delimiters have a position: [IMG] before the first patch, [/IMG] after the last
    tie_embeddings: bool = True  # the token table, with its projection, is also the output matrix

    RENAMED: ClassVar = BlockConfig.RENAMED | {
        "tied": "tie_embeddings",
        "types": "type_embeddings",
        "picture_positions": "image_positions",
        "picture_width": "image_width",
    }
    FORMER_VALUES: ClassVar = {("delimiters", True): "both", ("delimiters", False): "none"}

    def __post_init__(self):
        former: Any = self.delimiters
        object.__setattr__(self, "delimiters", self.FORMER_VALUES.get(("delimiters", former), former))
        check_sizes(self)
        check_picture(self.image_size, self.patch)
        check_positions(self.positions, self, 1)
        check_positions(self.image_scheme, self, 2)
        if self.delimiter_positions and self.delimiters == "none":
            raise UserError(
                "model.delimiter_positions is of delimiters, and model.delimiters is none; begin, end or both has them"
            )
        if self.delimiter_positions and self.image_scheme == "none":
            raise UserError(
                "model.delimiter_positions needs positions in the image, and its scheme is none; choose another "
                "model.image_positions"
            )

    @property
    def image_scheme(self) -> Scheme:
        return self.image_positions or self.positions

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        return self.positions, self.image_scheme

    @property
    def grid(self) -> tuple[int, ...]:
        """Patches down and across."""
        return grid_of(self.image_size, self.patch)

    @property
    def begin_marks(self) -> int:
        """Delimiters before the patches: one or none."""
        return int(self.delimiters in ("begin", "both"))

    @property
    def end_marks(self) -> int:
        """Delimiters after the patches: one or none."""
        return int(self.delimiters in ("end", "both"))

    @property
    def before(self) -> int:
        """Tokens before the text: the patches, and the delimiters around them."""
        return self.begin_marks + prod(self.grid) + self.end_marks

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis letter used in shapes."""
        tokens, patches = self.before + self.context, prod(self.grid)
        return self.block_sizes(tokens, 2) | {
            "N": patches,
            "M": self.before,
            "t": self.context,
            "c": self.channels * prod(self.patch),
            "E": self.image_width or self.width,
            "e": self.text_width or self.width,
            "V": self.vocab,
            **patch_sizes(self.channels, self.grid, self.patch),
        }


# a preset without an image_size takes size, channels and patch from the data
PRESETS: dict[str, dict] = {
    "nano": dict(width=80, depth=3, heads=4, hidden=160),
    "seed": dict(mask="causal", positions="learned", delimiters="none", type_embeddings=False, bias=True, heads=1),
    "small": dict(width=192, depth=6, heads=6, dropout=0.3),
    "base": dict(image_size=(224, 224), channels=3, patch=(16, 16), width=768, depth=12, heads=12, context=64),
}


class Captioner(Shown, nn.Module):
    """Image and text tokens to the logits of the text; the image comes first, so that all text attends to it."""

    NAMES = {
        "embed": ("B t D", "E[t]", "rows t of E"),
        "text": ("B t D", "X_txt⁰", "E[t]⟨ + P_txt⟩⟨ + T_txt⟩"),
        "picture": ("B M D", "I⁰", "I⟨ + P_img⟩⟨ + T_img⟩"),
        "input": ("B T D", "X⁰", "[I⁰; X_txt⁰]"),
        "norm": ("B t D", "X_f,txt", "Norm_f(Xᴸ)[text]"),
        "logits": ("B t V", "Z", "{W_vocab? X_f,txt W_vocab⟨ + b_vocab⟩|{Y? Y|X_f,txt} Eᵀ}"),
    }
    RENAMED_TENSORS = {"picture_positions.": "image_positions."}  # before 0.7
    INPUTS = {"tokens": "t", "picture": "X_img"}
    WEIGHTS = {"types": "T_img T_txt", "marks": "[IMG] [/IMG]", "head.weight": "W_vocab", "head.bias": "b_vocab"}
    WEIGHT_AXES = {"head.weight": "V D", "head.bias": "V"}

    SYMBOLS: dict[str, dict[str, str]]
    INNER: dict[str, tuple[str, str, str]]

    def __init__(self, config: CaptionerConfig):
        super().__init__()
        self.config = c = config
        self.mask = {"causal": causal, "prefix": prefix(c.before)}[c.mask]
        narrow = c.image_width or c.width
        self.patches = Patches(c.channels, c.patch, narrow)
        self.project = Project(narrow, c.width) if narrow != c.width else None
        self.tokens = Tokens(c.vocab, c.text_width or c.width)
        project = TiedProjectText if c.tie_embeddings else ProjectText
        self.text_project = project(c.text_width, c.width) if c.text_width not in (None, c.width) else None
        before, after = (c.begin_marks, c.end_marks) if c.delimiter_positions else (0, 0)
        self.image_positions = make_positions(c.image_scheme, c, c.grid, before, after=after)
        self.positions = make_positions(c.positions, c, (c.context,), both=False)
        declare_formulas(self)
        self.types = nn.Parameter(torch.empty(2, c.width)) if c.type_embeddings else None
        marks = c.begin_marks + c.end_marks
        self.marks = nn.Parameter(torch.empty(marks, c.width)) if marks else None
        self.drop = nn.Dropout(c.dropout)
        block = block_maker(c)
        self.blocks = nn.ModuleList(block() for _ in range(c.depth))
        self.norm = norm_maker(c)()
        self.head = None if c.tie_embeddings else nn.Linear(c.width, c.vocab, bias=c.bias)
        initialise(self)
        if self.text_project is not None:  # so that E W_text begins with the deviation of a whole table
            nn.init.normal_(self.text_project.map.weight, std=self.text_project.map.in_features**-0.5)
        self.WEIGHTS = type(self).WEIGHTS | {"marks": " ".join(["[IMG]"] * c.begin_marks + ["[/IMG]"] * c.end_marks)}
        if self.text_project is not None:
            self.NAMES = self.NAMES | {"embed": ("B t e", *self.NAMES["embed"][1:])}
        if c.delimiter_positions:
            self.LETTERS = {"image_positions": {"N": "M"}}

    def new_cache(self, batch: int, length: int | None = None) -> Cache:
        """An empty cache for the image and `length` text tokens."""
        c, like = self.config, self.tokens.weight
        length = c.before + (c.context if length is None else length)
        heads = c.kv_heads or c.heads
        return Cache(c.depth, batch, heads, length, c.head_width, axes=2, device=like.device, dtype=like.dtype)

    def example(self, batch: int = 1) -> tuple[Int[Tensor, "B t"], Float[Tensor, "B C H W"]]:
        c, device = self.config, self.tokens.weight.device
        text = torch.zeros(batch, c.context, dtype=torch.long, device=device)
        return text, torch.zeros(batch, c.channels, *c.image_size, device=device)

    def forward(
        self,
        tokens: Int[Tensor, "B t"],
        picture: Float[Tensor, "B C H W"] | None = None,
        span: Span | None = None,
        cache: Cache | None = None,
        last: Last = False,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B n V"]:
        """Logits for every text token, or with `last` only for the last one, or for one of each row.

        The picture is given with the first call; a cache keeps it. The span, if given, is the text's alone.
        """
        return probe.checked(self.readout(self.stream(tokens, picture, span, cache, probe), last, probe))

    def readout(self, x: Float[Tensor, "B t D"], last: Last = False, probe: Probe = OFF) -> Float[Tensor, "B n V"]:
        """What the residual stream of the text says: the logits of the tokens that `last` chooses."""
        return probe("logits", self.logits(self.final(x, last, probe)))

    def hidden(
        self,
        tokens: Int[Tensor, "B t"],
        picture: Float[Tensor, "B C H W"] | None = None,
        span: Span | None = None,
        cache: Cache | None = None,
        last: Last = False,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B n e"]:
        """The final states of the text, in the width of the output matrix; it takes what `forward` takes."""
        return self.final(self.stream(tokens, picture, span, cache, probe), last, probe)

    def final(self, x: Float[Tensor, "B t D"], last: Last = False, probe: Probe = OFF) -> Float[Tensor, "B n e"]:
        """The final states of a residual stream of the text."""
        x, back = probe("norm", self.norm(pick_tokens(x, last))), self.text_project
        return back.back(x, probe / "text_project") if isinstance(back, TiedProjectText) else x

    def stream(
        self,
        tokens: Int[Tensor, "B t"],
        picture: Float[Tensor, "B C H W"] | None = None,
        span: Span | None = None,
        cache: Cache | None = None,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B t D"]:
        """The residual stream of the text after the last block."""
        c, first = self.config, cache is None or cache.unwritten
        if first != (picture is not None):
            raise ValueError("the picture is read once: give it with the first tokens, and with no later ones")
        count = tokens.shape[1]
        if span is not None or first:
            here = span or Span.whole(count, device=tokens.device)
            check_length(here, c.context, self.positions)
            start = None if here.start is None else here.start + c.before
            here = replace(here, index=here.index + c.before, start=start)
        else:
            here = cache.next(count)  # pyright: ignore[reportOptionalMemberAccess]
            check_length(here, c.context, self.positions, c.before)
            here = replace(here, coords=here.coords - c.before)
        image = None if picture is None else self.read(picture, probe)
        x = probe("embed", self.tokens(tokens))
        x = x if self.text_project is None else self.text_project(x, probe / "text_project")
        x, here = self.positions(x, here, probe / "positions")
        x = probe("text", x if self.types is None else x + self.types[1])
        if image is not None:
            patches, there = image
            x, here = torch.cat((patches, x), 1), there.then(here)
        if cache is not None:
            here = cache.place(here)
        here = here.under(self.mask, self.bias(probe))
        x = self.drop(probe("input", x))
        for i, block in enumerate(self.blocks):
            x = block(x, here, None if cache is None else cache[i], probe / f"blocks.{i}")
        return x[:, -count:]

    def logits(self, x: Float[Tensor, "B n e"]) -> Float[Tensor, "B n V"]:
        """The output matrix: final states to logits."""
        return self.tokens.logits(x) if self.head is None else self.head(x)

    @property
    def output_matrix(self) -> tuple[Float[Tensor, "V e"], Float[Tensor, "V"] | None]:
        """The matrix of `logits`, and its bias if it has one."""
        return (self.tokens.weight, None) if self.head is None else (self.head.weight, self.head.bias)

    def bias(self, probe: Probe = OFF) -> Callable[[Span], Callable[[Tensor], Tensor] | None]:
        """The image's bias among patches and the text's among text tokens; nothing is added between them.

        Delimiters are of the image where they have a position.
        """
        c = self.config
        first, last = (0, c.before) if c.delimiter_positions else (c.begin_marks, c.before - c.end_marks)
        return within_segments(
            (
                (partial(self.image_positions.bias, probe=probe / "image_positions"), first, last),
                (partial(self.positions.bias, probe=probe / "positions"), c.before, NOWHERE),
            )
        )

    def read(self, picture: Float[Tensor, "B C H W"], probe: Probe = OFF) -> tuple[Float[Tensor, "B M D"], Span]:
        """The image as tokens, with their position and type embeddings, and their span."""
        check_shape(picture, (self.config.channels, *self.config.image_size))
        x = self.patches(picture, probe / "patches")
        if self.project is not None:
            x = self.project(x, probe / "project")
        c, coords = self.config, grid_positions(self.config.grid, x.device)
        if c.delimiter_positions:
            x = self.delimited(x)
            # one position before the first patch, and one after the last
            ends = coords.new_tensor([[0, -1], [c.grid[0] - 1, c.grid[1]]])
            coords = torch.cat((ends[: c.begin_marks], coords, ends[2 - c.end_marks :]))
        x, here = self.image_positions(
            x, Span.whole(x.shape[1], coords=coords[None], device=x.device), probe / "image_positions"
        )
        if self.marks is not None and not c.delimiter_positions:
            x = self.delimited(x)
            unplaced = Span.whole(1, coords=torch.zeros_like(coords[None, :1]), device=x.device)
            here = unplaced.then(here) if c.begin_marks else here
            here = here.then(unplaced) if c.end_marks else here
            whole = Span.whole(x.shape[1], coords=here.coords, device=x.device)
            here = replace(whole, rotation=here.rotation, key_rotation=here.rotation, adjacent=here.adjacent)
        return probe("picture", x if self.types is None else x + self.types[0]), here

    def delimited(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B M D"]:
        """The patches with the delimiters around them."""
        if self.marks is None:
            return x
        marks = [mark.to(x.dtype).expand(x.shape[0], 1, -1) for mark in self.marks[:, None]]
        return torch.cat((*marks[: self.config.begin_marks], x, *marks[self.config.begin_marks :]), 1)


# the symbols of a position scheme, with the part of the sequence it is of
_SYMBOLS = {
    "P": "P_{}", "θ": "θ_{}", "B": "B_{}", "r": "r_{}", "b": "b_{}", "a_K": "a_K,{}", "r_a": "r_{},a", "b_a": "b_{},a",
}  # fmt: skip


def declare_formulas(model: Captioner) -> None:
    """Write the tables that `core/notation.py` reads: of the two parts of the sequence, as the config has them."""
    c = model.config
    describe(model, model.positions, model.mask.words)
    parts = {"image_positions": "img", "positions": "txt"}
    model.SYMBOLS |= {path: {a: b.format(part) for a, b in _SYMBOLS.items()} for path, part in parts.items()}
    image = "{I′|I}" + ("" if c.delimiter_positions else "⟨ + P_img⟩")
    begin, end = "[IMG]; " if c.begin_marks else "", "; [/IMG]" if c.end_marks else ""
    image = f"[{begin}{image}{end}]" if begin or end else image
    image += ("⟨ + P_img⟩" if c.delimiter_positions else "") + "⟨ + T_img⟩"
    text = "{X_txt|E[t]}⟨ + P_txt⟩⟨ + T_txt⟩"
    model.NAMES = type(model).NAMES | {"picture": ("B M D", "I⁰", image), "text": ("B t D", "X_txt⁰", text)}
    model.INNER = {"patches.out": ("B N E", "I", "X_patch W_patch⟨ + b_patch⟩")}
    model.LETTERS = {}
    tables = (("positions", model.positions, "t", "1"), ("image_positions", model.image_positions, "N", "a"))
    for path, scheme, letter, axis in tables:
        for name, (axes, symbol, formula) in scheme.NAMES.items():
            axes = axes.replace("T", letter) if name in ("embedding", "angles") else axes.replace("a", axis)
            model.INNER[f"{path}.{name}"] = (axes, symbol, formula)
    schemes = (model.image_positions, "img", "image"), (model.positions, "txt", "text")
    biases = [f"{added} within the {name}" for scheme, part, name in schemes if (added := scheme.bias_formula(part))]
    if biases:
        for i in range(c.depth):
            model.INNER[f"blocks.{i}.attn.bias"] = ("B h T S", "B", " + ".join(biases))


@torch.no_grad()
def attention_maps(
    model: Captioner, picture: Float[Tensor, "B C H W"], tokens: Int[Tensor, "B t"]
) -> Float[Tensor, "B t rows columns"]:
    """The attention to each patch at the step that produced each next token: averaged over blocks and heads."""
    probe = Probe("blocks.*.attn.pattern")
    model(tokens, picture, probe=probe)
    pattern = torch.stack(list(probe.values.values())).mean((0, 2))
    first = model.config.begin_marks
    attention = pattern[:, model.config.before :, first : first + prod(model.config.grid)]
    return attention.unflatten(-1, model.config.grid)
