"""Shared by the models: parts chosen by a config, what their formulas call things, initialisation; the tokens whose
logits are computed, errors where weights or output are not finite; and what a notebook shows: the parts of a model as a
tree, each learned tensor with its symbol and its shape."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any, NoReturn, TypeVar

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from ..config import UserError
from ..core.attention import Attention
from ..core.blocks import Block, CrossBlock, PostBlock, PostCrossBlock
from ..core.layers import ACTIVATIONS, MLP, NORMS, GatedMLP
from ..core.masks import NOWHERE
from ..core.positions import (
    T5,
    Alibi,
    Learned,
    Positions,
    Rope,
    Scheme,
    Shaw,
    Sinusoidal,
    interpolate,
    llama3,
    ntk,
    yarn,
    yarn_strength,
)
from ..core.probe import symbols
from ..core.span import Span
from .config import BlockConfig

Model = TypeVar("Model", bound=nn.Module)


def norm_maker(c: BlockConfig) -> Callable[[], nn.Module]:
    """A factory of the norm that the config names."""
    return partial(NORMS[c.norm], c.width, c.eps, c.bias)


def block_maker(c: BlockConfig, kind: Callable[..., Any] = Block) -> Callable[[], Any]:
    """A factory of blocks, by default pre-norm, with the config's attention, MLP and norm.

    `attention_dropout` zeroes single attention weights, at the rate of `dropout` unless given. `key_dropout` zeroes
    whole keys for all queries, which every fused kernel can do.
    """
    activation = ACTIVATIONS[c.activation]
    mlp = partial(GatedMLP if activation.gated else MLP, c.width, c.mlp_width, activation.function, c.bias)
    attention = partial(
        Attention,
        c.width,
        c.heads,
        c.kv_heads,
        c.head_width,
        bias=c.bias,
        qkv_bias=c.qkv_bias,
        qk_norm=c.eps if c.qk_norm else None,
        dropout=c.dropout if c.attention_dropout is None else c.attention_dropout,
        key_dropout=c.key_dropout,
    )
    return partial(kind, attention, mlp, norm_maker(c), c.dropout)


# the block of an encoder and of a decoder, pre-norm or post-norm
BLOCKS = {"pre": (Block, CrossBlock), "post": (PostBlock, PostCrossBlock)}


def make_positions(
    name: Scheme, c: BlockConfig, grid: Sequence[int], before: int = 0, both: bool = True, after: int = 0
) -> Positions:
    """The named scheme for a text, an image or a video: one axis for each size of `grid`.

    `before`, `after`: tokens before and after the grid. `both`: tokens attend in both directions.
    """
    axes, head = len(grid), c.head_width
    schemes: dict[Scheme, Callable[[], Positions]] = {
        "learned": partial(Learned, grid, c.width, before, after),
        "sinusoidal": partial(Sinusoidal, c.width, axes),
        "sinusoidal-halves": partial(Sinusoidal, c.width, axes, halves=True),
        "rope": partial(_rope, c, axes, grid[0]),
        "alibi": partial(Alibi, c.heads, axes),
        "shaw": partial(Shaw, head, axes, c.max_distance or 16),
        "t5": partial(T5, c.heads, axes, both, c.buckets or 32, c.max_distance or 128),
        "none": Positions,
    }
    return schemes[name]()


def describe(
    model: Any,
    positions: Positions,
    seen: str,
    symbols: dict[str, dict[str, str]] | None = None,
    facts: Sequence[str] = (),
) -> None:
    """Tell the formulas of a model's blocks what its positions do to the scores, and which keys j a query i sees.

    `symbols` and `facts` are added to the model's own (`core/notation.py`).
    """
    shaw = {"shaw" if len(positions.table) == 1 else "shaw_axes"} if isinstance(positions, Shaw) else set()
    model.FACTS = shaw | ({"unscaled"} if positions.scale == 1 else set()) | set(facts)
    words = {"SEEN": seen} | ({"R": f"{positions.strength!r}·R"} if positions.strength != 1 else {})
    model.SYMBOLS = {"blocks": words} | (symbols or {})


def check_length(span: Span, context: int, positions: Positions, before: int = 0) -> None:
    """Refuse tokens beyond a table of positions; under other schemes, warn once a model of tokens beyond the context.

    `before`: tokens of the index that come before the text. The last position is known without the device where tokens
    are in order. Else the index is read if it is on a CPU; on another device that would wait for it, so it is not.
    """
    length, compiling = 0, torch.compiler.is_compiling()
    if span.start is not None:
        length = span.start + span.index.shape[1] - before
    elif span.index.device.type == "cpu" and span.index.numel() and not compiling:
        length = int(span.index.masked_fill(span.index >= NOWHERE, before - 1).max()) + 1 - before
    if length <= context:
        return
    if isinstance(positions, Learned):
        raise UserError(
            f"the text has {length} tokens and the model's table of positions has {context}: give at most {context}"
        )
    if not (compiling or positions.beyond_announced):
        positions.beyond_announced = True  # Python's own filters forget what they have shown
        warnings.warn(
            f"the model's context is {context} tokens and the text is longer: it was not trained on such positions",
            stacklevel=3,
        )


def _rope(c: BlockConfig, axes: int, context: int) -> Rope:
    scaling, factor, strength, stretch = c.rope_scaling, c.rope_factor, 1.0, None
    if scaling is not None:
        trained = c.rope_original_context or max(1, round(context / factor))
        stretch = {
            "linear": partial(interpolate, factor),
            "ntk": partial(ntk, factor),
            "yarn": partial(yarn, factor, trained, c.rope_theta),
            "llama3": partial(llama3, factor, trained),
        }[scaling]
        strength = yarn_strength(factor) if scaling == "yarn" else 1.0
    adjacent = c.rope_pairs == "adjacent"
    return Rope(c.head_width, axes, c.rope_theta, c.rotary_width, stretch, strength, adjacent, scaling or "")


def initialise(model: nn.Module) -> None:
    """GPT-2's: normal(0.02), zero biases, and output projections into the residual stream scaled by 1/√(2·depth).

    The depth is that of the stack of blocks: an encoder and a decoder may have different ones.
    """
    for name, parameter in model.named_parameters():
        if name.endswith(("attn.out.weight", "cross.out.weight", "mlp.down.weight")):
            stack: Any = model.get_submodule(name.rsplit(".", 4)[0])  # of blocks.0.attn.out.weight
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * len(stack)))
        elif parameter.ndim >= 2:
            nn.init.normal_(parameter, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def initialise_post(model: nn.Module) -> None:
    """The first Transformer's: Xavier uniform for every matrix of the blocks, W_Q, W_K and W_V each by itself."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, Attention):
            for matrix in module.qkv.weight.data.split(module.sizes):
                nn.init.xavier_uniform_(matrix)


def rebuilt(model: Model, config: BlockConfig, tensors: Mapping[str, Tensor]) -> Model:
    """A model of another config with copies of these tensors, in their dtypes and on their devices.

    What a state dict does not hold is that of the model: which parameters are frozen, the mode of each module, and
    where its other buffers are.
    """
    with torch.device("meta"):
        made = type(model)(config)
    made.load_state_dict({name: tensor.detach().clone() for name, tensor in tensors.items()}, assign=True)
    for name, parameter in model.named_parameters():
        made.get_parameter(name).requires_grad_(parameter.requires_grad)
    for name, module in model.named_modules():
        made.get_submodule(name).training = module.training
    for name, buffer in model.named_buffers():
        owner, _, last = name.rpartition(".")
        setattr(made.get_submodule(owner), last, made.get_buffer(name).to(buffer.device))
    return made


def parameters(make: Callable[[], nn.Module]) -> int:
    """The number of parameters of a model, without allocating it."""
    with torch.device("meta"):
        return sum(p.numel() for p in make().parameters())


def normalize(
    picture: UInt8[Tensor, "B C *sides"], mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> Float[Tensor, "B C *sides"]:
    """Bytes to floats, from −1 (black) to 1 (white); or (pixel/255 − mean)/std of each channel."""
    if mean is None or std is None:
        return picture.float() / 127.5 - 1
    shape = (-1, *[1] * (picture.ndim - 2))
    mean_, std_ = (torch.tensor(values, device=picture.device).view(shape) for values in (mean, std))
    return (picture.float() / 255 - mean_) / std_


# all tokens (False), the last one (True), or one of each row, by its place in the call
Last = bool | Int[Tensor, "B"]


def pick_tokens(x: Float[Tensor, "B T D"], last: Last) -> Float[Tensor, "B t D"]:
    """The states of the tokens that `last` chooses."""
    if isinstance(last, Tensor):
        return x[torch.arange(len(x), device=x.device), last][:, None]
    return x[:, -1:] if last else x


def check_finite(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse weights with NaN or infinity, by the name of the first."""
    for name, tensor in tensors:
        if tensor.is_floating_point() and tensor.numel() and not all(one.isfinite() for one in tensor.aminmax()):
            raise UserError(
                f"the weights are not finite: {name} holds NaN or infinity, and all that is computed from it would, "
                "too; import or train the model again"
            )


def refuse_output(model: nn.Module, what: str) -> NoReturn:
    """Say why an output is not finite: the weights are not, or they are and something in between is not."""
    check_finite(model.named_parameters())
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    raise UserError(
        f"{what} of the model are not finite, though its weights are: a number exceeds what {dtype} can hold"
        + ("; --dtype float32 holds larger ones" if dtype in ("float16", "bfloat16") else "")
    )


def model_html(model: nn.Module) -> str:
    """A model as a tree that unfolds: modules, their learned tensors by symbol and shape, and parameters counted."""
    return _module(model, "", type(model).__name__, symbols(model), True)


def _module(module: nn.Module, path: str, title: str, learned: dict[str, str], opened: bool) -> str:
    place = f"{path}." if path else ""
    lines = [
        f"<li>{escape(learned.get(place + name, name))} <code>{escape(place + name)}</code> "
        f"{'×'.join(map(str, p.shape))}</li>"
        for name, p in module.named_parameters(recurse=False)
    ]
    lines += [
        f"<li>{_module(child, place + name, f'{name}: {type(child).__name__}', learned, False)}</li>"
        for name, child in module.named_children()
    ]
    count = sum(p.numel() for p in module.parameters())
    head = f"<b>{escape(title)}</b> {count:,} parameters"
    if not lines:
        return head
    return f"<details{' open' if opened else ''}><summary>{head}</summary><ul>{''.join(lines)}</ul></details>"


class Shown(nn.Module):
    """Of a model: what a notebook shows, by itself or through treescope."""

    def _repr_html_(self) -> str:
        return model_html(self)

    def __treescope_repr__(self, path: Any, subtree_renderer: Any) -> Any:
        from treescope import repr_lib

        return repr_lib.render_object_constructor(
            object_type=type(self),
            attributes=_tree(self, "", symbols(self)),
            path=path,
            subtree_renderer=subtree_renderer,
            roundtrippable=False,
        )


def _tree(module: nn.Module, path: str, learned: dict[str, str]) -> dict[str, Any]:
    """A module as plain data: learned tensors by symbol and shape, and the modules in it."""
    place = f"{path}." if path else ""
    own = {
        name: f"{learned.get(place + name, name)} {'×'.join(map(str, p.shape))}"
        for name, p in module.named_parameters(recurse=False)
    }
    inner = {f"{name}": _tree(child, place + name, learned) for name, child in module.named_children()}
    return own | {name: child for name, child in inner.items() if child}
