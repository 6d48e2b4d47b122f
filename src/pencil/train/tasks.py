"""Tasks: what the loop asks of a family. A batch is a pure function of (seed, step)."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from ..config import UserError
from ..data.text import TextData
from ..generate import Generation, Sampling
from ..models import create
from .losses import next_token

Batch = tuple[Tensor, ...]


class Preview(NamedTuple):
    """Something to look at: a file name's ending and its content."""

    suffix: str
    content: bytes


@runtime_checkable
class Task(Protocol):
    """Everything the training loop needs to know of a family."""

    family: str
    unit: str  # what the rate counts

    def build(self) -> nn.Module: ...

    def batch(self, step: int, micro: int = 0) -> Batch:
        """The examples of a step; the same for the same (seed, step), whatever came before."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Tensor: ...

    def count(self, batch: Batch) -> int:
        """How many units a batch holds."""
        ...

    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        """Measures on held-out data, `val_loss` among them; on all of it when `batches` is None."""
        ...

    def preview(self, model: nn.Module) -> Preview: ...


def random_of(seed: int, step: int, micro: int = 0) -> np.random.Generator:
    """The random numbers of one step: keyed, not drawn from a state, so resuming is exact."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, step, micro]))


class TextTask:
    """Predict the next token of a text."""

    family, unit = "gpt", "tokens"

    def __init__(self, data: TextData, config: Any, batch: int, seed: int):
        self.data, self.config, self.size, self.seed = data, config, batch, seed
        for part, ids in (("train on", data.train), ("judge by", data.val)):
            if len(ids) < config.context + 1:
                raise UserError(
                    f"{data.corpus.name} has {len(ids)} tokens to {part}, fewer than the context of {config.context} "
                    "needs; bring more text or a smaller --model.context"
                )

    def build(self) -> nn.Module:
        return create(self.family, self.config)

    def _windows(self, ids: np.ndarray, starts: Sequence[int] | np.ndarray) -> Batch:
        span = self.config.context + 1
        rows = np.stack([ids[start : start + span] for start in starts]).astype(np.int64)
        both = torch.from_numpy(rows)
        return both[:, :-1], both[:, 1:]

    def batch(self, step: int, micro: int = 0) -> Batch:
        ids = self.data.train
        return self._windows(
            ids, random_of(self.seed, step, micro).integers(0, len(ids) - self.config.context, self.size)
        )

    def count(self, batch: Batch) -> int:
        return batch[0].numel()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        tokens, targets = batch
        return next_token(model(tokens), targets)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        """Side-by-side windows over the held-out text: all of them, or `batches` batches spread evenly."""
        ids, context = self.data.val, self.config.context
        starts = np.arange(0, len(ids) - context, context)
        if batches is not None and batches * self.size < len(starts):
            starts = starts[np.linspace(0, len(starts) - 1, batches * self.size).astype(int)]
        device = next(model.parameters()).device
        total = 0.0
        for i in range(0, len(starts), self.size):
            batch = tuple(t.to(device) for t in self._windows(ids, starts[i : i + self.size]))
            total += float(self.loss(model, batch)) * len(batch[0])
        loss = total / len(starts)
        bits = loss / math.log(2) * len(ids) / max(1, self.data.val_bytes)
        return {"val_loss": loss, "perplexity": math.exp(min(loss, 700)), "bits_per_byte": bits}

    def preview(self, model: nn.Module) -> Preview:
        """What the model writes after the first words it is judged by."""
        tokenizer = self.data.tokenizer
        ids = self.data.val[: min(16, self.config.context)].tolist()
        grown = Generation(
            model, [ids], 256, Sampling(0.8, top_p=0.95), end=tokenizer.end, vocab=tokenizer.vocab, slide=True
        )
        new = [token for (token,) in grown if token is not None]
        return Preview(".txt", (tokenizer.decode(ids + new) + "\n").encode())
