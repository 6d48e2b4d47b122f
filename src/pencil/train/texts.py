"""The task of a text model: predict the next token."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..config import UserError
from ..data import text
from ..generate import Generation, Sampling
from ..models import configure, create
from ..runs import Run
from .losses import next_token
from .settings import PICTURES, TrainConfig, refuse
from .tasks import Asked, Batch, Begun, Preview, random_of, unchanged

WRITTEN = 256  # tokens of a preview


class TextTask:
    """Predict the next token of a text."""

    family, unit, headline, chooses, slow = "gpt", "tokens", "val_loss", True, False

    def __init__(self, data: text.TextData, config: Any, batch: int, seed: int):
        self.data, self.config, self.size, self.seed = data, config, batch, seed
        for part, ids in (("train on", data.train), ("judge by", data.val)):
            if len(ids) < config.context + 1:
                raise UserError(
                    f"{data.corpus.name} has {len(ids)} tokens to {part}, fewer than the context of {config.context} "
                    "needs; bring more text or a smaller --model.context"
                )

    @classmethod
    def begin(cls, asked: Asked, config: TrainConfig) -> Begun:
        """Read the data the task was asked to learn."""
        refuse(config, PICTURES, f"for pictures, and {asked.family} reads text")
        refuse(config, ("word_dropout", "label_smoothing"), f"not for a {asked.family}, which says every next word")
        usual = "gpt2" if asked.preset.startswith("gpt2") else "char"
        found = text.load(asked.data, asked.tokenizer or usual, asked.vocab)
        sizes = configure(asked.family, asked.preset, **{"vocab": found.tokenizer.vocab, **asked.model})
        if sizes.vocab < found.tokenizer.vocab:
            raise UserError(f"model.vocab {sizes.vocab} is smaller than the tokenizer's {found.tokenizer.vocab}")
        task = cls(found, sizes, config.batch, config.seed)
        return Begun(
            task, found.corpus.name, found.corpus.hash, sizes, config, found.tokenizer,
            {"tokenizer": found.tokenizer.kind},
        )  # fmt: skip

    @classmethod
    def again(cls, run: Run, source: str, config: TrainConfig) -> "TextTask":
        """The task of a run, on the data it was trained on."""
        facts = run.config["run"]
        if source == "-":
            source = str(text.cache_folder() / f"text-{facts['data_hash'][:32]}.txt")
        corpus = text.find(source)
        unchanged(run, corpus.hash)  # before what is new in it is refused by the tokenizer
        data = text.TextData(corpus, run.tokenizer, text.tokenize(corpus, run.tokenizer))
        sizes = configure(run.family, facts.get("preset"), **run.config["model"])
        return cls(data, sizes, config.batch, config.seed)

    @property
    def hash(self) -> str:
        return self.data.corpus.hash

    def about(self) -> str:
        return f"{len(self.data.train):,} tokens of {self.data.corpus.name}, {len(self.data.val):,} to be judged by"

    @property
    def usage(self) -> str:
        return ""

    def skipped(self) -> list[tuple[str, str]]:
        return [(str(path), fault) for path, fault in self.data.corpus.skipped]

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        return self.evaluate(model), []

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
            model, [ids], WRITTEN, Sampling(0.8, top_p=0.95), end=tokenizer.end, vocab=tokenizer.vocab, slide=True
        )
        new = [token for (token,) in grown if token is not None]
        return Preview(".txt", (tokenizer.decode(ids + new) + "\n").encode())
