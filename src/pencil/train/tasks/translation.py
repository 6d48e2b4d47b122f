"""Text to text: predict the target of a source, as in translation."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...collectives.distributed_map import distributed_map, ordered_sum
from ...config import UserError
from ...core.masks import NOWHERE
from ...core.span import Span
from ...data.settings import DataConfig
from ...data.tables import pairs
from ...data.tables.generated_dates import Dates
from ...data.tokenizers.tokenizer import Tokenizer
from ...files import write_all
from ...inference.attention_overlays import source_attention
from ...inference.text_batches import end_token, greedy_targets, pad, source_ids, target_ids
from ...runs.run import Run
from ..losses.cross_entropy import token_loss
from ..model_selection import Amount
from ..settings import TrainConfig
from ..task import Batch, FamilyTask, Prepared, Preview, Request, check_vocab, random_of, recorded
from .metrics import character_error_rate, corpus_scores, exact_match

EVAL_BATCH = 64  # pairs
MISTAKES = 40  # listed


class Translation(FamilyTask):
    """Predict the target of a source. A source ends, and a target begins and ends, with the end token."""

    unit, headline = "tokens", "exact_match"

    @classmethod
    def prepare(cls, request: Request, train: TrainConfig) -> Prepared:
        """Read the data."""
        data = pairs.load(request.data, reading=request.reading)
        usual = "char" if request.data in pairs.EMBEDDED else "bpe"
        tokenizer = request.learn_tokenizer(data.texts(), usual)
        from_data: dict[str, Any] = {"vocab": tokenizer.vocab}
        if "context" not in request.preset_values:
            train = replace(train, **{n: v for n, v in data.training_defaults.items() if n not in request.train})
            for name, side in (("source_context", 0), ("context", 1)):
                texts = (pair[side] for pair in data.all_pairs())
                from_data |= request.context_for(texts, lambda text, side=side: _length(tokenizer, text, side), name)
        config = request.configure(**from_data)
        check_vocab(config, tokenizer, "vocab", "source_vocab")
        task = cls(request.family, data, config, train, tokenizer)
        facts, reading = {"tokenizer": tokenizer.kind}, DataConfig(**data.reading)
        notes = [data.note] if data.note else []
        return Prepared(task, data.name, data.hash, config, train, tokenizer, facts, reading, notes)

    @classmethod
    def reopen(cls, family: Any, run: Run, source: str, train: TrainConfig, whole: bool = False) -> "Translation":
        """The task of a run, on the data it was trained on; or, `whole`, on all of other data."""
        data = pairs.load(source, whole, recorded(run))
        return cls(family, data, family.read_config(run.config["model"]), train, run.tokenizer)

    def __init__(self, family: Any, data: pairs.PairData, config: Any, train: TrainConfig, tokenizer: Tokenizer):
        super().__init__(family, data, config, train)
        self.tokenizer = tokenizer
        self.end = end_token(tokenizer)
        self.source = lru_cache(1 << 16)(lambda text: source_ids(tokenizer, text))
        self.target = lru_cache(1 << 16)(lambda text: [*target_ids(tokenizer, text), self.end])
        for name, side in (("source_context", 0), ("context", 1)):
            context = getattr(config, name)
            over = [pair[side] for pair in data.all_pairs() if 1 + _length(tokenizer, pair[side], side) > context]
            if over:
                raise UserError(
                    f"{len(over)} {('sources', 'targets')[side] if len(over) > 1 else ('source', 'target')[side]} of "
                    f"{data.name} will not fit into model.{name} {context}: the longest needs "
                    f"{longest(data, tokenizer, side) + 1}; the first begins “{over[0][:40]}”"
                )

    def about(self) -> str:
        rows = self.data.train
        count = "generated while training" if isinstance(rows, Dates) else f"{len(rows):,} to train on"
        return f"pairs of {self.data.name}, {count}, {len(self.data.test):,} held out"

    @property
    def amount(self) -> Amount | None:
        """How much there is to train on; None where pairs are generated."""
        rows = self.data.train
        each = self.train.batch * self.train.accumulate
        return None if isinstance(rows, Dates) else Amount(len(rows), "pairs", each)

    @property
    def usage(self) -> str:
        return f"--source {shlex.quote(self.data.test[0][0])}"

    def batch(self, step: int, micro: int = 0) -> Batch:
        return self.tokens(self._rows(step, micro))

    def _rows(self, step: int, micro: int) -> Sequence[pairs.Pair]:
        rows = self.data.train
        if isinstance(rows, Dates):
            return rows.draw(random_of(self.train.seed, step, micro), self.train.batch)
        return [rows[i] for i in self.epoch_examples(step, micro, len(rows))]

    def sample_ids(self, step: int, micro: int = 0) -> list[str]:
        return [repr(source[:60]) for source, _ in self._rows(step, micro)]

    def tokens(self, rows: Sequence[pairs.Pair]) -> Batch:
        """Sources, the places of their tokens, the decoder's inputs and its targets; padded alike."""
        sources, targets = [self.source(pair[0]) for pair in rows], [self.target(pair[1]) for pair in rows]
        whole = self.train.deterministic  # kernels, and so the last bits, depend on the shapes compiled
        source, places = pad(sources, self.end, self.config.source_context, whole)
        target, index = pad(targets, self.end, self.config.context + 1, whole)
        return source, places, target[:, :-1], target[:, 1:].masked_fill(index[:, 1:] == NOWHERE, -100)

    def count(self, batch: Batch) -> int:
        return batch[0].numel() + batch[2].numel()

    def targets(self, batch: Batch) -> int:
        return int((batch[3] >= 0).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._loss(model, batch, self.train.label_smoothing or 0.0)

    def _loss(self, model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
        source, places, inputs, targets = batch
        return token_loss(model, targets, inputs, source, Span.at(places), smoothing=smoothing)

    def held_out(self, batches: int | None) -> Sequence[pairs.Pair]:
        """Held-out pairs, spread evenly: all of them, or as many as `batches` batches hold."""
        total = len(self.data.test)
        few = total if batches is None else min(total, batches * self.train.batch)
        return [self.data.test[i] for i in np.linspace(0, total - 1, few).astype(int)]

    @torch.no_grad()
    def _predict(self, model: nn.Module, rows: Sequence[pairs.Pair], whole: bool = False) -> "Predicted":
        """The loss per token, and the greedy target of each source: to its end, or no longer than the references."""
        device = next(model.parameters()).device

        def score_batch(i: int) -> tuple[float, int, list[str]]:
            few = rows[i : i + EVAL_BATCH]
            batch = tuple(t.to(device) for t in self.tokens(few))
            counted = int((batch[3] >= 0).sum())
            loss = float(self._loss(model, batch, 0.0)) * counted
            limit = None if whole else max(len(self.target(target)) for _, target in few) - 1
            return loss, counted, greedy_targets(model, self.tokenizer, [source for source, _ in few], limit)

        losses, tokens, texts = zip(*distributed_map(range(0, len(rows), EVAL_BATCH), score_batch), strict=True)
        loss, predictions = ordered_sum(losses) / sum(tokens), list(chain.from_iterable(texts))
        return Predicted(loss, [source for source, _ in rows], predictions, [target for _, target in rows])

    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        predicted = self._predict(model, self.held_out(batches))
        return {"val_loss": predicted.loss, "exact_match": exact_match(predicted.predictions, predicted.references)}

    def preview(self, model: nn.Module) -> Preview:
        return Preview(".txt", table(self._predict(model, self.data.test[:20])).encode())

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        """Exact match, character error rate, BLEU and chrF; what differs; and the attention at each word."""
        folder.mkdir(parents=True, exist_ok=True)
        predicted = self._predict(model, self.data.test, whole=True)
        both = predicted.predictions, predicted.references
        metrics = {
            "val_loss": predicted.loss,
            "exact_match": exact_match(*both),
            "character_error_rate": character_error_rate(*both),
            **corpus_scores(*both),
        }
        wrong = [row for row in predicted.rows() if row[1] != row[2]]
        head = f"{len(wrong)} of {len(predicted.sources)} differ" + f"; the first {MISTAKES}" * (len(wrong) > MISTAKES)
        some = Predicted(0.0, *([row[k] for row in wrong[:MISTAKES]] for k in range(3)))
        files = {"mistakes.txt": f"{head}\n\n{table(some)}".encode()}
        for i, (source, prediction, _) in enumerate(list(predicted.rows())[:3], 1):
            files[f"attention-{i}.png"] = source_attention(model, self.tokenizer, source, prediction)
        return metrics, write_all(folder, files)


class Predicted(NamedTuple):
    """Held-out sources, their predictions and their references."""

    loss: float
    sources: list[str]
    predictions: list[str]
    references: list[str]

    def rows(self) -> Iterator[tuple[str, str, str]]:
        return zip(self.sources, self.predictions, self.references, strict=True)


def table(predicted: Predicted) -> str:
    """One source a line, its prediction, and, where they differ, the reference."""
    lines = [f"{a}\t{b}" + ("" if b == c else f"\t(is: {c})") for a, b, c in predicted.rows()]
    return "\n".join(lines) + "\n"


def longest(data: pairs.PairData, tokenizer: Tokenizer, side: int) -> int:
    """Tokens of the longest source or target."""
    return max(_length(tokenizer, pair[side], side) for pair in data.all_pairs())


def _length(tokenizer: Tokenizer, text: str, side: int) -> int:
    return len(tokenizer.encode_target(text) if side else tokenizer.encode(text))
