"""Tasks: what the training loop needs of a family. A batch is a pure function of (seed, step).

A micro-batch weighs as much as it has targets. A task's loss is a mean over `Task.targets(batch)` of them; the update
multiplies it by its share of all targets of the step. So accumulated micro-batches of unequal lengths give the gradient
of the whole batch, and one without a target is left out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from ..config import UserError, build
from ..data.in_memory import name_of
from ..data.settings import DataConfig
from ..data.split import SPLIT
from ..data.tables.pairs import Recorded
from ..data.tokenizers.tokenizer import VOCAB, Tokenizer, learn
from ..runs.run import Run
from .initial_weights import Start
from .model_selection import Amount
from .settings import TrainConfig

Batch = tuple[Tensor, ...]
ALL = slice(None)  # rows of a batch


class Preview(NamedTuple):
    """A sample written while training: the ending of its file name, and its content."""

    suffix: str
    content: bytes


class Task:
    """Everything the training loop needs to know of a family, with what is usual for one."""

    family: Any = None  # the family's record; None for a task of one's own
    train: TrainConfig
    unit = "examples"  # what the throughput counts
    headline = "val_loss"  # the metric to print first
    usage = ""  # what `pencil sample` needs besides the run
    select_best = True  # whether the best weights by val_loss are kept, or the last
    last_because = "a test set does not select weights"  # why the last are kept, where they are
    figures = True  # whether its report writes any
    slow = False  # whether batches take long to make, so that they are made ahead on another thread
    start: Start | None = None  # the run whose weights the training begins with

    @property
    def amount(self) -> Amount | None:
        """How much there is to train on; None for data that is made while training, and where it is not known."""
        return None

    def build(self) -> nn.Module:
        """The model."""
        raise NotImplementedError

    def batch(self, step: int, micro: int = 0) -> Batch:
        """A tuple of tensors: the examples of a step, the same for the same (seed, step), whatever came before.

        One with a third parameter, `rows`, makes some of them alone, where several processes share a batch; without it
        each of them makes the batch, and takes its rows of it.
        """
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss over the targets of a batch, which is on the model's device."""
        raise NotImplementedError

    def targets(self, batch: Batch) -> float:
        """How many targets the loss is a mean over, or the sum of their weights: what a micro-batch counts for."""
        return len(batch[0])

    def sample_ids(self, step: int, micro: int = 0) -> list[str]:
        """The examples of `batch(step, micro)`, by names with which they are found in the data."""
        return [f"batch({step}, {micro})"]

    def count(self, batch: Batch) -> int:
        """How many units a batch holds."""
        return len(batch[0])

    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        """Metrics on held-out data, `val_loss` among them; on all of it when `batches` is None.

        Batches that are taken through `track` (pencil.progress) show their progress, and Ctrl-C need not wait for them.
        """
        raise NotImplementedError

    def preview(self, model: nn.Module) -> Preview | None:
        """A sample to be written while training; None writes none."""
        return None

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        """All metrics on all held-out data, and pictures of them written into the folder."""
        return self.evaluate(model), []

    def skipped(self) -> list[tuple[str, str]]:
        """Data that could not be used so far, and why."""
        return []

    def about(self) -> str:
        """The data, in a few words."""
        return type(self).__name__


class FamilyTask(Task):
    """What the tasks of Pencil's own families have in common; data is drawn by epochs, in a new order each."""

    def __init__(self, family: Any, data: Any, config: Any, train: TrainConfig):
        self.family, self.data, self.config, self.train = family, data, config, train
        # a corpus says neither: its best weights are kept
        self.select_best = getattr(data, "select_best", True)
        self.last_because = getattr(data, "last_because", Task.last_because)

    @property
    def hash(self) -> str:
        return self.data.hash

    def build(self) -> nn.Module:
        return self.family.create(self.config)

    def first_example(self, step: int, micro: int) -> int:
        """How many examples were drawn before this micro-batch."""
        return (step * self.train.accumulate + micro) * self.train.batch

    def epoch_examples(self, step: int, micro: int, total: int) -> list[int]:
        """The numbers of the examples of a micro-batch, of so many in all."""
        return epoch_order(self.train.seed, self.first_example(step, micro), self.train.batch, total)


# a context that the data decides is not larger than this for a single text, so many times longer than half of them
LARGE_CONTEXT, FAR_LONGER = 512, 8


@dataclass
class Request:
    """A training as requested: settings not yet checked against the data."""

    family: Any  # the family's record
    data: str
    preset: str
    model: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    options: Any = None  # the family's own options: a tokenizer, an image size, …
    data_settings: Mapping[str, Any] = field(default_factory=dict)  # how the data is read
    start: Start | None = None  # the run whose weights it begins with
    split: int = SPLIT  # the rule by which a part of the data is held out

    def __post_init__(self):
        if self.options is None:
            self.options = self.family.train_options()

    @property
    def reading(self) -> dict[str, Any]:
        """The settings of how the data is read that were chosen."""
        settings = asdict(build(DataConfig, self.data_settings, "data."))
        return {name: value for name, value in settings.items() if value is not None}

    def context_for(
        self,
        texts: Iterable[str],
        length: Callable[[str], int],
        setting: str = "context",
        place: Callable[[str], str] = lambda text: "",
    ) -> dict[str, int]:
        """The context that holds the longest of these texts, by their tokens, as a setting; none if it was chosen.

        One text that alone would make it large, for all the others too, is refused; `place` is where it is.
        """
        if setting in self.model:
            return {}
        counts = Counter(texts)  # they repeat
        lengths = {text: length(text) for text in counts}
        text, longest = max(lengths.items(), key=lambda one: one[1])
        context, usual = round_up(longest + 1), median(lengths[text] for text in counts.elements())
        if self.start is None and context > LARGE_CONTEXT and longest > FAR_LONGER * usual:
            raise UserError(
                f"{place(text) or self.data} has a text of {longest:,} tokens, which begins {text[:40]!r}, and half of "
                f"the texts have at most {usual:,.0f}: shorten it, or have a context for it with --model.{setting} "
                f"{context}"
            )
        return {setting: context}

    def tokenizer(self, usual: str) -> tuple[str | Tokenizer, int]:
        """The name of the tokenizer, and the size to train one to; a size without effect is refused.

        A training that starts from a run has the run's tokenizer.
        """
        if self.start is not None:
            return self.start.tokenizer_for(), 0
        name, vocab = self.options.tokenizer or usual, self.options.vocab
        if vocab is not None and name != "bpe":
            raise UserError(
                f"--vocab {vocab} has no effect on the tokenizer {name}: leave it out, or add --tokenizer bpe"
            )
        return name, VOCAB if vocab is None else vocab

    def learn_tokenizer(self, texts: Iterable[str], usual: str) -> Tokenizer:
        """The tokenizer for these texts, with an end token."""
        if self.start is not None:
            return self.start.tokenizer_for(ended=True)
        name, vocab = self.tokenizer(usual)
        return learn(str(name), texts, vocab, ended=True)

    @property
    def preset_values(self) -> Mapping[str, Any]:
        """The model settings of the preset, or of the run that it starts from."""
        return self.start.values if self.start is not None else self.family.preset_values(self.preset)

    def configure(self, **defaults: Any) -> Any:
        """The model's config: the preset, over it what the data suggests, over that what was requested."""
        if self.start is not None:
            return self.start.configure(defaults, self.model)
        return self.family.configure(self.preset, **{**defaults, **self.model})


class Prepared(NamedTuple):
    """A task with its data read: everything a run folder is written from."""

    task: Any
    name: str  # of the data
    hash: str
    model: Any  # the model's config
    train: TrainConfig
    tokenizer: Tokenizer | None
    facts: dict[str, Any]
    data: Any = None  # how the data is read, if there are settings for it
    notes: Sequence[str] = ()  # what the user should know of the data before training


def random_of(seed: int, step: int, micro: int = 0, slot: int = 0) -> np.random.Generator:
    """The random numbers of one step: keyed, not drawn from a state, so resuming is exact."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, slot, step, micro]))


def epoch_order(seed: int, first: int, count: int, total: int) -> list[int]:
    """`count` of `total` examples from the `first` on: each epoch all of them, in a random order of its own."""
    return [int(_shuffled(seed, at // total, total)[at % total]) for at in range(first, first + count)]


@lru_cache(maxsize=4)
def _shuffled(seed: int, epoch: int, total: int) -> np.ndarray:
    return random_of(seed, epoch, 1 << 21).permutation(total)


def recorded(run: Run) -> Recorded:
    """How a run read its table of texts, and by which rule it was split."""
    return Recorded(run.config["run"].get("data_hash", ""), run.config.get("data") or {}, split_of(run))


def split_of(run: Run) -> int:
    """The rule by which the data of a run was split; runs of older versions record none."""
    return run.config["run"].get("split", 1)


def one_number(loss: Any, task: Task) -> Tensor:
    """The loss that a task returned, which must be one number."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    raise UserError(f"{type(task).__name__}.loss returned {what}, and a loss is one number: return its mean()")


def why_last(task: Task) -> str:
    """Why the last weights are kept, and not the best by validation; empty where the best are."""
    return "" if task.select_best else task.last_because


class DataChanged(UserError):
    """The data of a run is not what it was trained on."""


def check_unchanged(run: Run, data_hash: str, source: str) -> None:
    """Refuse data whose hash is not that of the data the run was trained on; `source` is where it was read from."""
    facts = run.config["run"]
    if data_hash != facts["data_hash"]:
        if source != facts.get("data_path", source):
            raise DataChanged(
                f"{name_of(source)} is not the data that {run.path} was trained on: its content is another"
            )
        raise DataChanged(f"{facts['data']} has changed since {run.path} was trained on it")


def check_vocab(config: Any, tokenizer: Tokenizer, *names: str) -> None:
    """Refuse a model whose vocabulary is smaller than the tokenizer's."""
    for name in names or ("vocab",):
        if (size := getattr(config, name)) is not None and size < tokenizer.vocab:
            raise UserError(f"model.{name} {size} is smaller than the tokenizer's {tokenizer.vocab}")


def round_up(length: int, multiple: int = 8, least: int = 16) -> int:
    """A context that holds this many tokens."""
    return max(least, -(-length // multiple) * multiple)
