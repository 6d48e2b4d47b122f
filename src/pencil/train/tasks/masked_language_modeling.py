"""Masked language modelling: predict the tokens that were masked in a text."""

import math
import shlex
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...collectives.distributed_map import distributed_map, ordered_sum
from ...config import UserError
from ...data.text import text_data as text
from ...inference.text_batches import mask_token
from ...runs.run import Run
from ..losses.cross_entropy import next_token
from ..settings import TrainConfig
from ..task import Batch, Prepared, Preview, Request, random_of
from .language_modeling import LanguageModeling

DEFAULT_MASK_FRACTION = 0.15


class MaskedLanguageModeling(LanguageModeling):
    """Predict masked tokens: the id after the tokenizer's last is the mask token."""

    headline = "accuracy"

    @classmethod
    def prepare(cls, request: Request, train: TrainConfig) -> Prepared:
        for name in ("class_weights", "balanced_batches"):
            if getattr(train, name) is not None:
                raise UserError(f"train.{name} is for texts with labels, and {request.data} has none: leave it out")
        for name in (setting for setting in request.data_settings if setting != "text_column"):
            raise UserError(
                f"data.{name} is for a table of texts with labels, and {request.data} is none: leave it out"
            )
        data = text.load(request.data, *request.tokenizer("char"), request.reading.get("text_column"))
        needed = max(data.tokenizer.vocab, mask_token(data.tokenizer) + 1)
        config = request.configure(vocab=needed)
        if config.vocab < needed:
            raise UserError(
                f"model.vocab {config.vocab} has no room for the tokenizer's {data.tokenizer.vocab} and the mask token"
            )
        if config.classes:
            raise UserError("model.classes is for text with labels: a .tsv or .jsonl file of a text and a label a line")
        if config.output != "words":
            raise UserError(f"a reader with model.head {config.head} predicts nothing to train on: leave it out")
        task = cls(request.family, data, config, train)
        facts = {"tokenizer": data.tokenizer.kind}
        notes = [*data.corpus.notes, *filter(None, [text.labelled(data.corpus)])]
        name, sha, tokenizer = data.corpus.name, data.corpus.hash, data.tokenizer
        return Prepared(task, name, sha, config, train, tokenizer, facts, data.reading, notes)

    def __init__(self, family: Any, data: text.TextData, config: Any, train: TrainConfig):
        super().__init__(family, data, config, train)
        self.fraction = DEFAULT_MASK_FRACTION if train.mask_fraction is None else train.mask_fraction
        self.mask, self.words = mask_token(data.tokenizer), data.tokenizer.vocab
        self.first = []  # special tokens are put after masking: they are not predicted
        self.around = data.tokenizer.around

    @classmethod
    def reopen(
        cls, family: Any, run: Run, source: str, train: TrainConfig, whole: bool = False
    ) -> "MaskedLanguageModeling":
        plain = LanguageModeling.reopen(family, run, source, train, whole)
        return cls(family, plain.data, plain.config, train)

    @property
    def usage(self) -> str:
        decode, ids = self.data.tokenizer.decode, self.data.val[:8].tolist()
        return f"--prompt {shlex.quote(decode(ids[:4]) + '[mask]' + decode(ids[5:]))}"

    def mask_tokens(self, tokens: Tensor, rng: np.random.Generator) -> Batch:
        """The input and the targets, as in BERT: of the chosen tokens 80 % are masked, 10 % random, 10 % unchanged."""
        shape = tuple(tokens.shape)
        predicted, how = rng.random(shape) < self.fraction, rng.random(shape)
        others = torch.from_numpy(rng.integers(0, self.words, shape))
        targets = tokens.masked_fill(~torch.from_numpy(predicted), -100)
        inputs = tokens.masked_fill(torch.from_numpy(predicted & (how < 0.8)), self.mask)
        return self._around(torch.where(torch.from_numpy(predicted & (how >= 0.9)), others, inputs), targets)

    def _around(self, inputs: Tensor, targets: Tensor) -> Batch:
        """The same between the special tokens of an imported run, cut to the context."""
        before, after = (torch.tensor(ids, dtype=torch.int64).expand(len(inputs), -1) for ids in self.around)
        length = self.config.context - before.shape[1] - after.shape[1]
        if length == self.config.context:
            return inputs, targets
        not_predicted = [torch.full_like(ids, -100) for ids in (before, after)]
        targets = torch.cat([not_predicted[0], targets[:, :length], not_predicted[1]], 1)
        return torch.cat([before, inputs[:, :length], after], 1), targets

    def batch(self, step: int, micro: int = 0) -> Batch:
        tokens, _ = super().batch(step, micro)
        return self.mask_tokens(tokens, random_of(self.train.seed, step, micro + (1 << 22)))

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        """Loss, perplexity and accuracy on masked tokens of the held-out text; the same ones each time."""
        ids, starts, size = self.data.val, self.held_out_windows(batches), self.train.batch
        device = next(model.parameters()).device

        def score_batch(i: int) -> tuple[float, int, int]:
            few = starts[i : i + size].tolist()
            # each window by itself, so that the batch size does not change which tokens are masked
            rows = [self.mask_tokens(self._windows(ids, [at])[0], random_of(0, at)) for at in few]
            inputs, targets = (torch.cat(part).to(device) for part in zip(*rows, strict=True))
            logits, masked = model(inputs).float(), targets >= 0
            if not masked.any():
                return 0.0, 0, 0
            count, right = int(masked.sum()), int((logits.argmax(-1) == targets)[masked].sum())
            return float(next_token(logits, targets)) * count, right, count

        losses, rights, counts = zip(*distributed_map(range(0, len(starts), size), score_batch), strict=True)
        right, count = sum(rights), sum(counts)
        if not count:
            raise UserError(
                f"with train.mask_fraction {self.fraction:g} no token of the {len(starts)} held-out windows is masked: "
                "use a larger --train.mask_fraction"
            )
        loss = ordered_sum(losses) / count
        return {"val_loss": loss, "perplexity": math.exp(min(loss, 700)), "accuracy": right / count}

    @torch.no_grad()
    def preview(self, model: nn.Module) -> Preview:
        """The first held-out text with the masked tokens in brackets, and the same with the predictions."""
        tokens = torch.from_numpy(self.data.val[: self.config.context].astype(np.int64))[None]
        masked_places = torch.from_numpy(random_of(0, 1).random(tuple(tokens.shape)) < self.fraction)
        inputs = tokens.masked_fill(masked_places, self.mask).to(next(model.parameters()).device)
        predicted = torch.where(masked_places, model(inputs)[..., : self.words].argmax(-1).cpu(), tokens)

        def bracketed(ids: Tensor) -> str:
            marked = zip(ids[0].tolist(), masked_places[0].tolist(), strict=True)
            return "".join(
                f"[{self.data.tokenizer.decode([i])}]" if masked else self.data.tokenizer.decode([i])
                for i, masked in marked
            )

        return Preview(".txt", f"{bracketed(tokens)}\n\npredicted:\n\n{bracketed(predicted)}\n".encode())
