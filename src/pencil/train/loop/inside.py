"""What happens inside a model while it is trained: measured at each evaluation, on the same few examples.

`activation_scale.BLOCK` is the root mean square of a block's output, and `attention_entropy.ATTENTION` the mean entropy
of a query's pattern, over heads, queries and examples. The examples are the first of the training's first batch.
Hooks measure both, so no model and no task knows of it. A model without blocks and without `Attention` is not run.
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...core.attention import Attention
from ...core.probe import NullProbe
from ..parallel.gradients import cut_rows
from ..recompute import named_blocks
from ..task import Batch, Task

EXAMPLES = 4
MOST_PATTERN_VALUES = 1 << 26  # of one attention; its entropy is left out where there are more


def first_examples(task: Task) -> Batch:
    """The first examples of the first batch."""
    rows = slice(0, EXAMPLES)
    if "rows" in inspect.signature(task.batch).parameters:
        return task.batch(0, 0, rows)  # pyright: ignore[reportCallIssue]: of a task that has this parameter
    batch, size = task.batch(0, 0), task.train.batch
    # a batch that is not one row for each example is taken whole
    return cut_rows(batch, rows, size) if all(not t.ndim or len(t) == size for t in batch) else batch


def measure_inside(task: Task, model: nn.Module, batch: Batch) -> tuple[dict[str, float], str]:
    """Scales and entropies by their names in metrics.jsonl, and a sentence about entropies that are left out."""
    scales: dict[str, list[Tensor]] = {}
    probes: dict[str, _EntropyProbe] = {}
    with torch.no_grad(), ExitStack() as hooks:
        for name, block in named_blocks(model).items():
            hooks.enter_context(_scale_measured(block, scales.setdefault(name, [])))
        for name, module in model.named_modules():
            if isinstance(module, Attention):
                hooks.enter_context(_probed(module, probes.setdefault(name, _EntropyProbe())))
        if scales or probes:
            task.loss(model, batch)
    measured = {f"activation_scale.{name}": values for name, values in scales.items() if values}
    measured |= {f"attention_entropy.{name}": probe.entropies for name, probe in probes.items() if probe.entropies}
    if not measured:
        values = {}
    else:
        # the host waits once for all; a module that ran several times, as on each group of tokens, has their mean
        means = torch.stack([torch.stack(values).mean() for values in measured.values()])
        values = dict(zip(measured, means.tolist(), strict=True))
    large = [(name, probe.largest) for name, probe in probes.items() if probe.largest > MOST_PATTERN_VALUES]
    if not large:
        return values, ""
    name, size = large[0]
    others = f" and of {len(large) - 1} others" if large[1:] else ""
    return values, (
        f"the entropy of attention in {name}{others} is not measured: its patterns would have {size:,} values, and at "
        f"most {MOST_PATTERN_VALUES:,} are computed"
    )


@contextmanager
def _scale_measured(block: nn.Module, values: list[Tensor]) -> Iterator[None]:
    def measure(block: nn.Module, given: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            values.append(output.float().square().mean().sqrt())

    hook = block.register_forward_hook(measure)
    try:
        yield
    finally:
        hook.remove()


class _EntropyProbe(NullProbe):
    """Wants the pattern of one attention alone, where it is not too large, and keeps its mean entropy."""

    def __init__(self):
        super().__init__()
        self.entropies: list[Tensor] = []
        self.largest = 0  # how many values a pattern has
        self.shapes: dict[str, torch.Size] = {}

    def wants(self, *names: str) -> bool:
        if "pattern" not in names:
            return False
        batch, heads, queries, _ = self.shapes["q"]
        size = batch * heads * queries * self.shapes["k"][2]
        self.largest = max(self.largest, size)
        return size <= MOST_PATTERN_VALUES

    def __call__(self, name: str, value: Tensor) -> Tensor:
        if name in ("q", "k"):
            self.shapes[name] = value.shape
        if name == "pattern":
            self.entropies.append(torch.special.entr(value.float()).sum(-1).mean())
        return value


@contextmanager
def _probed(attention: Attention, probe: NullProbe) -> Iterator[None]:
    def add_probe(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**keywords, "probe": probe}

    hook = attention.register_forward_pre_hook(add_probe, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
