"""Language modelling: predict the next token of a text."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...collectives.distributed_map import distributed_map, ordered_sum
from ...config import UserError
from ...data.text import text_data as text
from ...inference.generation import Generation
from ...inference.sampling import Sampling
from ...progress import pollable
from ...runs.run import Run
from ..losses.cross_entropy import token_loss
from ..model_selection import Amount
from ..settings import TrainConfig
from ..task import Batch, FamilyTask, Prepared, Preview, Request, check_unchanged, check_vocab, random_of

PREVIEW_TOKENS = 256


class LanguageModeling(FamilyTask):
    """Predict the next token of a text."""

    unit, figures = "tokens", False

    def __init__(self, family: Any, data: text.TextData, config: Any, train: TrainConfig):
        super().__init__(family, data, config, train)
        # the tokenizer of an imported run may have a token that begins a text: here, each window
        self.first = [token for token in (data.tokenizer.begin,) if token is not None]
        for part, ids in (("train", data.train), ("evaluate", data.val))[data.whole :]:
            if len(ids) < config.context + 1:
                raise UserError(
                    f"{data.corpus.name} has {len(ids)} tokens to {part} on, fewer than the context of "
                    f"{config.context} needs; give more text or a smaller --model.context"
                )

    @classmethod
    def prepare(cls, request: Request, train: TrainConfig) -> Prepared:
        """Read the data."""
        usual = "gpt2" if request.preset.startswith("gpt2") else "char"
        data = text.load(request.data, *request.tokenizer(usual), request.reading.get("text_column"))
        config = request.configure(vocab=data.tokenizer.vocab)
        check_vocab(config, data.tokenizer)
        task = cls(request.family, data, config, train)
        facts = {"tokenizer": data.tokenizer.kind}
        return Prepared(
            task,
            data.corpus.name,
            data.corpus.hash,
            config,
            train,
            data.tokenizer,
            facts,
            data.reading,
            data.corpus.notes,
        )

    @classmethod
    def reopen(cls, family: Any, run: Run, source: str, train: TrainConfig, whole: bool = False) -> "LanguageModeling":
        """The task of a run, on the data it was trained on; or, `whole`, on all of other data."""
        stored_input = source == "-" and not whole
        column = (run.config.get("data") or {}).get("text_column")
        path = str(text.input_path(run.config["run"]["data_hash"])) if stored_input else source
        corpus = text.find_like(path, column) if whole else text.find(path, column, plain=column is None)
        if not whole:
            check_unchanged(run, corpus.hash, source)  # before a changed corpus is tokenized
        data = text.TextData(corpus, run.tokenizer, text.tokenize(corpus, run.tokenizer), whole)
        return cls(family, data, family.read_config(run.config["model"]), train)

    @property
    def hash(self) -> str:
        return self.data.corpus.hash

    def about(self) -> str:
        lost = (
            ""
            if self.data.tokenizer.byte_lengths is not None
            else ("; no bits per byte, since the tokenizer does not keep every byte")
        )
        return f"{len(self.data.train):,} tokens of {self.data.corpus.name}, {len(self.data.val):,} held out{lost}"

    @property
    def amount(self) -> Amount:
        """How much there is to train on."""
        update = self.train.batch * self.train.accumulate * self.config.context
        return Amount(len(self.data.train), "tokens", update)

    def skipped(self) -> list[tuple[str, str]]:
        return [(str(path), fault) for path, fault in self.data.corpus.skipped]

    def _windows(self, ids: np.ndarray, starts: Sequence[int] | np.ndarray) -> Batch:
        length = self.config.context + 1 - len(self.first)
        rows = np.stack([ids[start : start + length] for start in starts]).astype(np.int64)
        both = torch.from_numpy(np.insert(rows, 0, self.first, axis=1) if self.first else rows)
        return both[:, :-1], both[:, 1:]

    def batch(self, step: int, micro: int = 0) -> Batch:
        return self._windows(self.data.train, self._starts(step, micro))

    def _starts(self, step: int, micro: int) -> np.ndarray:
        rng = random_of(self.train.seed, step, micro)
        return rng.integers(0, len(self.data.train) - self.config.context, self.train.batch)

    def sample_ids(self, step: int, micro: int = 0) -> list[str]:
        return [f"{self.data.corpus.name} at token {start}" for start in self._starts(step, micro)]

    def count(self, batch: Batch) -> int:
        return batch[0].numel()

    def targets(self, batch: Batch) -> int:
        return int((batch[1] >= 0).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        tokens, targets = batch
        return token_loss(model, targets, tokens)

    def held_out_windows(self, batches: int | None) -> np.ndarray:
        """The starts of adjacent windows over the held-out text: all of them, or `batches` batches spread evenly."""
        starts = np.arange(0, len(self.data.val) - self.config.context, self.config.context)
        if batches is not None and batches * self.train.batch < len(starts):
            starts = starts[np.linspace(0, len(starts) - 1, batches * self.train.batch).astype(int)]
        return starts

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        """Loss, perplexity and bits per byte on the held-out text."""
        ids, starts, size = self.data.val, self.held_out_windows(batches), self.train.batch
        device = next(model.parameters()).device

        def batch_loss(i: int) -> float:
            batch = tuple(t.to(device) for t in self._windows(ids, starts[i : i + size]))
            return float(self.loss(model, batch)) * len(batch[0])

        loss = ordered_sum(distributed_map(range(0, len(starts), size), batch_loss)) / len(starts)
        metrics = {"val_loss": loss, "perplexity": math.exp(min(loss, 700))}
        if self.data.val_bytes is not None:
            metrics["bits_per_byte"] = loss / math.log(2) * len(ids) / max(1, self.data.val_bytes)
        return metrics

    def preview(self, model: nn.Module) -> Preview:
        """A continuation of the first held-out words."""
        tokenizer = self.data.tokenizer
        ids = [*self.first, *self.data.val[:16].tolist()][: self.config.context]
        generation = Generation(
            model,
            [ids],
            PREVIEW_TOKENS,
            Sampling(0.8, top_p=0.95),
            end=tokenizer.ends,
            never=tokenizer.never,
            vocab=tokenizer.vocab,
            slide=True,
        )
        new = [token for (token,) in pollable(generation) if token is not None]
        return Preview(".txt", (tokenizer.decode(ids + new) + "\n").encode())
