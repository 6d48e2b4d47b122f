"""Models to be measured: random weights, none of them zero, and another library's model with the same weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from ..cost.count import count
from ..cost.devices import Workload, workloads
from ..cost.memory import train_memory
from ..families.family import Family
from .equality import Equality, compare
from .plan import Plan
from .timing import OURS, Contender

Ask = Callable[..., Tensor]  # (model, *inputs) to its output


def make(record: Family, config: Any, device: torch.device) -> Any:
    """A model in evaluation mode; parts that begin as zeros are given random values too."""
    torch.manual_seed(0)
    with device:
        model = record.create(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model.eval()


def work_of(record: Family, config: Any, batch: int, plan: Plan, length: int | None = None) -> dict[str, Workload]:
    """FLOPs and the fewest bytes of each workload, as `pencil cost` counts them."""
    dtype = plan.dtype_name
    counts = count(record.create, record.cost, config, length)
    memory = train_memory(record.cost, config, counts, batch, length, dtype)
    return workloads(record.cost, config, counts, memory, batch, length, dtype, "adamw")


class Pair:
    """Our model and another library's with the same weights, compared on the inputs; ours alone where that has none.

    `ask` calls the other library's model.
    """

    def __init__(
        self, plan: Plan, ours: Any, peer: str, maker: Callable[[Any], Any], ask: Ask, inputs: tuple[Tensor, ...]
    ):
        self.plan, self.ours, self.config, self.inputs = plan, ours, ours.config, inputs
        self.models: dict[str, tuple[Any, Ask]] = {OURS: (ours, lambda model, *inputs: model(*inputs))}
        self.equality: Equality | None = None
        try:
            theirs = maker(ours)
        except UserError as error:
            plan.notify(f"{peer} is left out: {error}")
            theirs = None
        if theirs is not None:
            self.models[peer] = theirs, ask
        self._compare(torch.float32)

    @property
    def theirs(self) -> dict[str, Any]:
        """The other library's model, by its name, if there is one."""
        return {who: model for who, (model, _) in self.models.items() if who != OURS}

    def _compare(self, dtype: torch.dtype) -> None:
        inputs = [x.to(dtype) if x.is_floating_point() else x for x in self.inputs]
        for theirs, ask in list(self.models.values())[1:]:
            same = compare(
                lambda: self.ours(*inputs),
                lambda theirs=theirs, ask=ask: ask(theirs, *inputs),
                dtype,
                self.config.width,
                self.config.depth,
            )
            self.equality = same if self.equality is None else self.equality | same

    def to_inference_dtype(self) -> None:
        """Both in the dtype of inference, and compared in it too."""
        if self.plan.dtype != torch.float32:
            for model, _ in self.models.values():
                model.to(self.plan.dtype)
            self._compare(self.plan.dtype)

    def contenders(self, call_of: Callable[[Any, Ask], Callable[[], object]]) -> list[Contender]:
        """Both models, timed by what `call_of` makes of a model and of how it is called."""
        return [
            Contender(who, call_of(model, ask), [model], None if who == OURS else self.equality)
            for who, (model, ask) in self.models.items()
        ]
