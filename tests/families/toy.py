"""A toy seventh family in one file: a list of whole numbers in, their parity out."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from cyclopts import Parameter
from torch import nn

from pencil.config import UserError
from pencil.core.probe import OFF, Probe
from pencil.families import Family
from pencil.families.options import NoOptions
from pencil.tracing.live_trace import trace
from pencil.train.task import Prepared, Preview, Task, random_of

LENGTH = 5


@dataclass(frozen=True)
class ParityConfig:
    """Sizes of the toy."""

    numbers: int = 7
    width: int = 11
    depth: int = 1
    positions: str = "none"

    def __post_init__(self):
        if self.width < 1:
            raise UserError(f"model.width must be at least 1, not {self.width}")

    @property
    def sizes(self) -> dict[str, int]:
        return {"T": LENGTH, "D": self.width, "K": 2}


class Parity(nn.Module):
    """The sum of embeddings, and a linear map to two logits."""

    NAMES = {"sum": ("B D", "s", "Σ E[t]"), "logits": ("B K", "Z", "s W + b")}
    WEIGHTS = {"table.weight": "E", "head.weight": "W", "head.bias": "b"}

    def __init__(self, config: ParityConfig):
        super().__init__()
        self.config = config
        self.table, self.head = nn.Embedding(config.numbers, config.width), nn.Linear(config.width, 2)

    def example(self, batch: int = 1):
        return (torch.zeros(batch, LENGTH, dtype=torch.long, device=self.head.weight.device),)

    def forward(self, tokens, probe: Probe = OFF):
        return probe("logits", self.head(probe("sum", self.table(tokens).sum(1))))


class ParityTask(Task):
    """Numbers drawn at random."""

    unit, headline, select_best, usage = "lists", "accuracy", False, "--list 1,2,3,4,5"
    hash = "parity"

    def __init__(self, family: Any, config: Any, train: Any):
        self.family, self.config, self.train = family, config, train

    @classmethod
    def prepare(cls, request: Any, train: Any) -> Prepared:
        if request.data != "integers":
            raise UserError(f"there is no data {request.data}; try integers")
        config = request.configure()
        return Prepared(cls(request.family, config, train), "integers", cls.hash, config, train, None, {})

    @classmethod
    def reopen(cls, family: Any, run: Any, source: str, train: Any) -> "ParityTask":
        return cls(family, family.read_config(run.config["model"]), train)

    def about(self) -> str:
        return "integers"

    def build(self) -> nn.Module:
        return self.family.create(self.config)

    def draw(self, rng: np.random.Generator, count: int):
        rows = torch.from_numpy(rng.integers(0, self.config.numbers, (count, LENGTH)))
        return rows, rows.sum(1) % 2

    def batch(self, step: int, micro: int = 0):
        return self.draw(random_of(self.train.seed, step, micro), self.train.batch)

    def sample_ids(self, step: int, micro: int = 0) -> list[str]:
        return [str(row.tolist()) for row in self.batch(step, micro)[0]]

    def loss(self, model: Any, batch: Any):
        return F.cross_entropy(model(batch[0]), batch[1])

    @torch.no_grad()
    def evaluate(self, model: Any, batches: int | None = None) -> dict[str, float]:
        rows, labels = self.draw(random_of(0, 0), 64)
        logits = model(rows)
        accuracy = (logits.argmax(-1) == labels).double().mean()
        return {"val_loss": float(F.cross_entropy(logits, labels)), "accuracy": float(accuracy)}

    def preview(self, model: Any) -> Preview:
        return Preview(".txt", b"parity\n")


@dataclass(frozen=True)
class ListInput(NoOptions):
    """The list to read."""

    list_: Annotated[str | None, Parameter(name="--list", group="Input", help="Whole numbers: 1,2,3,4,5.")] = None

    def check(self) -> None:
        if self.list_ is None:
            raise UserError("--list is missing: give whole numbers")

    def tensor(self) -> torch.Tensor:
        return torch.tensor([[int(part) for part in str(self.list_).split(",")]])


def sample(loaded: Any, options: ListInput, output: Any) -> None:
    with torch.no_grad():
        output.texts(["odd" if int(loaded.model(options.tensor()).argmax()) else "even"])


FAMILY = Family(
    name="parity",
    summary="a list of numbers to their parity",
    config=ParityConfig,
    model=Parity,
    presets={"nano": {}, "wide": {"width": 23}},
    training={"nano": dict(steps=20, batch=8, optimizer="adamw"), "wide": {}},
    task=ParityTask,
    data="integers",
    data_help="integers.",
    embedded=("integers",),
    sample_options=ListInput,
    sample=sample,
    trace_options=ListInput,
    trace=lambda loaded, options, double: trace(loaded.model.double() if double else loaded.model, options.tensor()),
)
