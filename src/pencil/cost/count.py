"""Parameters and FLOPs, counted on the meta device: shapes without memory, run under torch's FlopCounterMode.

The counter counts matrix products: a multiplication and an addition are two FLOPs. All else (norms, activations,
rotations) is some hundred times less work, and is not counted.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from ..config import UserError
from ..models.config import BlockConfig
from .profile import CostProfile, on_meta

# the group of a parameter or a product is that of the first module in its path that is named here
GROUPS = {
    **dict.fromkeys(("tokens", "source_tokens", "types", "marks", "class_token", "registers"), "embeddings"),
    **dict.fromkeys(("patches", "project"), "embeddings"),
    **dict.fromkeys(("positions", "image_positions"), "positions"),
    "attn": "attention",
    "cross": "cross-attention",
    "mlp": "MLP",
    **dict.fromkeys(("attn_norm", "cross_norm", "mlp_norm", "embed_norm", "norm"), "norms"),
    **dict.fromkeys(("head", "head_bias", "distilled_head"), "head"),
}
# a table of embeddings is looked up; only the head multiplies with it, where the two are tied
TIED = {"tokens": "head"}
ORDER = ("embeddings", "positions", "condition", "attention", "cross-attention", "MLP", "norms", "head")
SCORES = ": Q Kᵀ, A V"  # attention's products of activations, not of weights
MATRICES = "matrices"


@dataclass(frozen=True)
class Pass:
    """One forward pass over one sequence."""

    by_group: dict[str, int]  # FLOPs
    matrices: int  # values of the weight matrices, each as often as a product reads it

    @property
    def flops(self) -> int:
        return sum(self.by_group.values())


@dataclass(frozen=True)
class Trained:
    """What of a model is trained, and which of its blocks the backward pass goes through."""

    parameters: int
    block_matrices: int  # of them, those of the matrices inside blocks, which Muon updates
    blocks: int  # through which the backward pass goes: frozen first blocks need none
    all_blocks: int

    @property
    def share(self) -> float:
        """The share of the blocks that the backward pass goes through."""
        return self.blocks / self.all_blocks if self.all_blocks else 1.0


@dataclass(frozen=True)
class Counts:
    """A model as the meta device sees it: its parameters, and FLOPs for one sequence.

    FLOPs grow with the batch exactly: every product has a row for each token of each sequence.
    """

    parameters: dict[str, int]  # by group
    block_matrices: int  # parameters of the matrices inside blocks, which Muon updates
    forward: Pass
    unfused_backward: int
    trained: Trained
    prefill: Pass | None = None  # the whole sequence into the KV cache, with logits for its last token only
    decode: Pass | None = None  # the last token of the sequence, with the cache of all before it

    @property
    def total_parameters(self) -> int:
        return sum(self.parameters.values())

    @property
    def backward(self) -> int:
        """With fused attention, which saves no scores: Q Kᵀ is computed a second time."""
        scores = sum(flops for group, flops in self.forward.by_group.items() if group.endswith(SCORES))
        return self.unfused_backward + round(self.trained.share * (scores // 2))

    @property
    def recomputed(self) -> int:
        """FLOPs of the blocks that a train step runs a second time where their activations are recomputed."""
        inside = ("attention", "cross-attention", "MLP")
        flops = sum(n for group, n in self.forward.by_group.items() if group.removesuffix(SCORES) in inside)
        return round(self.trained.share * flops)


def count(
    build: Callable[[Any], nn.Module],
    profile: CostProfile,
    config: BlockConfig,
    length: int | None = None,
    short: bool = True,
) -> Counts:
    """Parameters, and FLOPs of one sequence with text of `length` tokens.

    Both are linear in depth, in steps of two blocks (blocks of factored attention alternate). So with `short` a deep
    model is not built: two models of at most four blocks give its counts exactly. One that `build` freezes in part
    is counted whole.
    """
    profile.check_length(config, length)
    first = 2 - config.depth % 2
    steps = (config.depth - first) // 2 if short else 0
    depths = (first, first + 2) if steps > 1 else (config.depth,)
    try:
        low, *high = (_count_passes(on_meta(build, replace(config, depth=n)), profile, length) for n in depths)
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        tokens = profile.tokens(config, length)
        raise UserError(f"{tokens:,} tokens are too many to count: torch has no tensor of that size") from None
    totals = (
        low
        if not high
        else {
            key: {name: low[key][name] + steps * (n - low[key][name]) for name, n in counted.items()}
            for key, counted in high[0].items()
        }
    )
    return Counts(
        _ordered(totals["parameters"]),
        totals["block_matrices"]["all"],
        _pass(totals["forward"]),
        totals["backward"]["all"],
        Trained(**totals["trained"]),
        _pass(totals["prefill"]) if profile.decodes else None,
        _pass(totals["decode"]) if profile.decodes else None,
    )


def count_trained(model: nn.Module, profile: CostProfile) -> Trained:
    """What is trained of a model on the meta device, some of whose parameters are frozen."""
    parameters = _count_parameters(model, {**GROUPS, **profile.groups})["trained"]
    with _passed_through(model) as passed:
        model(*profile.inputs(model.eval(), 1, None))
    return Trained(**parameters, blocks=sum(passed.values()), all_blocks=len(passed))


def _count_parameters(model: nn.Module, names: Mapping[str, str]) -> dict[str, Mapping[str, int]]:
    """The number of parameters by group, of those in matrices inside blocks, and of those that are trained."""
    by_group, inside, trained = Counter[str](), 0, {"parameters": 0, "block_matrices": 0}
    for name, parameter in model.named_parameters():
        by_group[_group(name, names)] += parameter.numel()
        matrix = parameter.numel() * (parameter.ndim == 2 and ".blocks." in f".{name}")
        inside += matrix
        trained["parameters"] += parameter.numel() * parameter.requires_grad
        trained["block_matrices"] += matrix * parameter.requires_grad
    return {"parameters": by_group, "block_matrices": {"all": inside}, "trained": trained}


@contextmanager
def _passed_through(model: nn.Module) -> Iterator[dict[str, bool]]:
    """For each block that runs inside, whether the backward pass goes through it: whether its output needs one."""
    passed: dict[str, bool] = {}
    blocks = [(name, part) for name, part in model.named_modules() if name.split(".")[-2:-1] == ["blocks"]]

    def hook(name: str) -> Any:
        return lambda module, inputs, output: passed.update({name: bool(getattr(output, "requires_grad", True))})

    hooks = [part.register_forward_hook(hook(name)) for name, part in blocks]
    try:
        yield passed
    finally:
        for handle in hooks:
            handle.remove()


def _count_passes(model: nn.Module, profile: CostProfile, length: int | None) -> dict[str, Mapping[str, int]]:
    """Parameters by group; FLOPs of each pass by group, and the values of its matrices."""
    names, inputs = {**GROUPS, **profile.groups}, profile.inputs(model.eval(), 1, length)
    counts = _count_parameters(model, names)
    with _passed_through(model) as passed:
        output, counts["forward"] = _count_products(model, names, lambda: model(*inputs))
    counts["trained"] = {**counts["trained"], "blocks": sum(passed.values()), "all_blocks": len(passed)}
    with FlopCounterMode(display=False) as counter:
        output.sum().backward()
    counts["backward"] = {"all": counter.get_total_flops()}
    if profile.decodes:
        tokens, *rest = inputs
        cache: Any = model.new_cache(1, tokens.shape[1])  # pyright: ignore[reportCallIssue]
        _, counts["prefill"] = _count_products(model, names, lambda: model(tokens, *rest, cache=cache, last=True))
        cache.filled -= 1  # the last token once more, alone
        _, counts["decode"] = _count_products(model, names, lambda: model(tokens[:, -1:], cache=cache, last=True))
    return counts


class _Recorded:
    """torch's FLOP formula of an operation; every call of it is recorded with the operation's tensors."""

    _get_raw = True  # the counter then passes tensors, not shapes

    def __init__(self, formula: Callable[..., int], record: Callable[[int, list[Tensor]], None]):
        self.formula, self.record = formula, record

    def __call__(self, *args: object, **kwargs: object) -> int:
        flops = self.formula(*args, **kwargs)
        self.record(flops, [x for x in args if isinstance(x, Tensor) and x.ndim > 1])
        return flops


def _count_products(
    model: nn.Module, names: Mapping[str, str], forward: Callable[[], Tensor]
) -> tuple[Tensor, Counter[str]]:
    """The output of a forward pass, and its FLOPs by group.

    A product's group is that of the parameter it multiplies with: a matrix may be used outside the forward of its
    module, as a tied head's is. A product without a parameter is attention's, and its group is that of its module.
    """
    flops_of, tied = Counter[str](), {**names, **TIED}
    owners = {p.untyped_storage()._cdata: name for name, p in model.named_parameters()}

    def record(flops: int, operands: list[Tensor]) -> None:
        weights = [x for x in operands if x.untyped_storage()._cdata in owners]
        if weights:
            flops_of[_group(owners[weights[0].untyped_storage()._cdata], tied)] += flops
            flops_of[MATRICES] += weights[0].numel()
        else:
            flops_of[_group(max(counter.mod_tracker.parents, key=len), names) + SCORES] += flops

    formulas = {op: _Recorded(formula, record) for op, formula in flop_registry.items()}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        output = forward()
    return output, flops_of


def _group(path: str, names: Mapping[str, str]) -> str:
    return next((names[part] for part in path.split(".") if part in names), "other")


def _ordered(counts: Mapping[str, int]) -> dict[str, int]:
    """Groups in the order of the model."""
    order = {group: place for i, name in enumerate(ORDER) for place, group in enumerate((name, name + SCORES), 2 * i)}
    return {group: counts[group] for group in sorted(counts, key=lambda g: order.get(g, len(order))) if counts[group]}


def _pass(counts: Mapping[str, int]) -> Pass:
    return Pass(_ordered({group: n for group, n in counts.items() if group != MATRICES}), counts[MATRICES])
