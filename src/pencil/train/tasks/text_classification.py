"""Text classification: predict the class of a text."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...collectives.distributed_map import distributed_map
from ...config import UserError
from ...core.span import Span
from ...data.images.image_data import check_known
from ...data.settings import DataConfig
from ...data.tables import pairs
from ...data.tokenizers.tokenizer import Tokenizer
from ...files import write_all
from ...inference.text_batches import pad, text_ids
from ...progress import track
from ...runs.run import Run
from ..model_selection import Amount
from ..settings import TrainConfig
from ..task import Batch, FamilyTask, Prepared, Preview, Request, check_vocab, recorded, round_up
from .baselines import MOST_FITTED, TFIDF
from .class_balance import ClassBalance
from .class_report import Answers, class_files, group_metrics
from .metrics import ClassPredictions, class_predictions, classification_metrics

EVAL_BATCH = 64  # texts
MISTAKES = 40  # listed
MAX_DEFAULT_CONTEXT = 512  # tokens that are read of a text, unless another context is requested


class TextClassification(FamilyTask):
    """Predict the class of a text. The input begins with the end token, whose output is pooled."""

    unit, headline, baseline = "texts", "accuracy", TFIDF
    groups: Sequence[str] | None = None  # of each held-out text, if their accuracies are wanted

    @classmethod
    def prepare(cls, request: Request, train: TrainConfig) -> Prepared:
        if train.mask_fraction is not None:
            raise UserError("train.mask_fraction is for text without labels: leave it out")
        data = pairs.load_labelled(request.data, reading=request.reading, split=request.split)
        if request.start is not None and (order := request.start.in_order(data.classes)):
            data = replace(data, classes=order)
        texts = (text for text, _ in data.all_pairs())
        tokenizer = request.learn_tokenizer(texts, "bpe")
        from_data: dict[str, Any] = {"vocab": tokenizer.vocab, "classes": len(data.classes)}
        if "context" not in request.preset_values:
            longest = max(len(tokenizer.encode(text)) for text, _ in data.all_pairs()) + 1
            from_data["context"] = min(MAX_DEFAULT_CONTEXT, round_up(longest))
        config, chosen = request.configure(**from_data), []
        if config.context == from_data.get("context") and "context" not in request.model:
            chosen = [f"model.context {config.context}, from the data: predicting refuses a text with more tokens"]
        task = cls(request.family, data, config, train, tokenizer)
        facts = {"tokenizer": tokenizer.kind, "classes": data.classes}
        reading, notes = DataConfig(**data.reading), [*([data.note] if data.note else []), *chosen, *data.unevaluated]
        return Prepared(task, data.name, data.hash, config, train, tokenizer, facts, reading, notes)

    @classmethod
    def reopen(
        cls, family: Any, run: Run, source: str, train: TrainConfig, whole: bool = False
    ) -> "TextClassification":
        config, data = family.read_config(run.config["model"]), pairs.load_labelled(source, whole, recorded(run))
        if whole:
            classes = tuple(map(str, run.config["run"].get("classes") or data.classes))
            check_known(data.classes, classes, data.name, run.path)
            data = replace(data, classes=classes)
        elif set(classes := tuple(map(str, run.config["run"].get("classes") or ()))) == set(data.classes):
            data = replace(data, classes=classes)  # in the order of the run that it was started from
        return cls(family, data, config, train, run.tokenizer)

    def __init__(self, family: Any, data: pairs.PairData, config: Any, train: TrainConfig, tokenizer: Tokenizer):
        super().__init__(family, data, config, train)
        self.tokenizer = tokenizer
        self.rows = data.train if isinstance(data.train, list) else []
        check_vocab(config, tokenizer)
        if (config.classes or 0) < len(data.classes):
            raise UserError(
                f"model.classes {config.classes} is fewer than the {len(data.classes)} classes of {data.name}"
            )
        self.number = {name: i for i, name in enumerate(data.classes)}
        self.encoded = lru_cache(1 << 16)(lambda text: text_ids(tokenizer, text, config.context))
        self.end = self.encoded("")[0]
        labels = [self.number[label] for _, label in self.rows]
        self.balance = ClassBalance(train, labels, data.classes, config.classes or 0, data.name)

    def about(self) -> str:
        train, test = len(self.rows), len(self.data.test)
        return f"texts of {self.data.name}, {train:,} to train on, {test:,} held out{self.cut_note}"

    @property
    def cut_note(self) -> str:
        """How many texts are longer than the context; nothing where none is."""
        extra = len(self.encoded(""))  # special tokens
        whole = (len(self.tokenizer.encode(text)) + extra for text, _ in self.data.all_pairs())
        cut = sum(length > self.config.context for length in whole)
        return f" ({cut:,} of them longer than the context of {self.config.context} and cut)" if cut else ""

    @property
    def amount(self) -> Amount:
        """How much there is to train on."""
        return Amount(len(self.rows), "texts", self.train.batch * self.train.accumulate)

    @property
    def usage(self) -> str:
        return f"--prompt {shlex.quote(self.data.test[0][0])}"

    def tokens(self, rows: list[pairs.Pair]) -> Batch:
        """The tokens, their places, and the labels."""
        ids = [self.encoded(text) for text, _ in rows]
        whole = self.train.deterministic  # kernels, and so the last bits, depend on the shapes compiled
        tokens, places = pad(ids, self.end, self.config.context, whole)
        return tokens, places, torch.tensor([self.number[label] for _, label in rows])

    def batch(self, step: int, micro: int = 0) -> Batch:
        return self.tokens([self.rows[i] for i in self._indices(step, micro)])

    def _indices(self, step: int, micro: int) -> list[int]:
        if self.balance.members:
            return self.balance.indices(self.train.seed, self.first_example(step, micro), self.train.batch)
        return self.epoch_examples(step, micro, len(self.rows))

    def sample_ids(self, step: int, micro: int = 0) -> list[str]:
        return [repr(self.rows[i][0][:60]) for i in self._indices(step, micro)]

    def targets(self, batch: Batch) -> float:
        return self.balance.targets(batch[2])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        tokens, places, labels = batch
        return self.balance.cross_entropy(model(tokens, Span.at(places)).float(), labels)

    @torch.no_grad()
    def _predict(self, model: nn.Module, rows: list[pairs.Pair]) -> list[tuple[Tensor, Tensor]]:
        """Log-probabilities and labels of held-out texts, a batch at a time."""
        return [self._classify(model, rows[i : i + EVAL_BATCH]) for i in track(range(0, len(rows), EVAL_BATCH))]

    @torch.no_grad()
    def _classify(self, model: nn.Module, rows: list[pairs.Pair]) -> tuple[Tensor, Tensor]:
        device = next(model.parameters()).device
        tokens, places, labels = self.tokens(rows)
        logits = model(tokens.to(device), Span.at(places.to(device)))
        return logits.float().log_softmax(-1).cpu(), labels

    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        total = len(self.data.test)
        few = total if batches is None else min(total, batches * self.train.batch)
        rows = [self.data.test[i] for i in np.linspace(0, total - 1, few).astype(int)]

        def one(i: int) -> ClassPredictions:
            return self._predictions(self._classify(model, rows[i : i + EVAL_BATCH]), rows[i : i + EVAL_BATCH])

        parts = distributed_map(range(0, few, EVAL_BATCH), one)
        return classification_metrics(parts, self.data.classes, self.balance.evaluation)

    def baseline_examples(self, held_out: bool) -> tuple[list[str], list[int]]:
        """The texts and the classes that a baseline is measured on, or fitted to."""
        rows = list(self.data.test) if held_out else self.rows
        few = np.linspace(0, len(rows) - 1, len(rows) if held_out else min(len(rows), MOST_FITTED)).astype(int)
        return [rows[i][0] for i in few], [self.number[rows[i][1]] for i in few]

    def _predictions(self, outputs: tuple[Tensor, Tensor], rows: list[pairs.Pair]) -> ClassPredictions:
        return class_predictions(*outputs, (text.encode() for text, _ in rows))

    def preview(self, model: nn.Module) -> Preview:
        return Preview(".txt", "\n".join([*self._lines(model, self.data.test[:20]), ""]).encode())

    def _lines(self, model: nn.Module, rows: list[pairs.Pair]) -> list[str]:
        """For each text the predicted class, and the label where it differs."""
        lines = []
        predicted = [row for part, _ in self._predict(model, rows) for row in part]
        for (text, label), row in zip(rows, predicted, strict=True):
            guess = int(row.argmax())
            name = self.data.classes[guess] if guess < len(self.data.classes) else str(guess)
            lines.append(f"{name} ({row.exp().max():.0%})\t{'' if name == label else f'(is: {label}) '}{text[:200]}")
        return lines

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        """The metrics over all, of each class and of each group; mistakes, and all answers."""
        folder.mkdir(parents=True, exist_ok=True)
        rows = list(self.data.test)
        parts = [
            self._predictions(part, rows[i * EVAL_BATCH : (i + 1) * EVAL_BATCH])
            for i, part in enumerate(self._predict(model, rows))
        ]
        metrics = classification_metrics(parts, self.data.classes, self.balance.evaluation, listed=None)
        answers = Answers.of(parts)
        metrics["calibration_error"] = answers.calibration.error
        if self.groups is not None:
            metrics |= group_metrics(answers, self.groups)
        wrong = [row for row, right in zip(rows, answers.right.tolist(), strict=True) if not right]
        lines = [f"{len(wrong)} of {len(rows)} wrong" + (f"; the first {MISTAKES}" * (len(wrong) > MISTAKES)), ""]
        lines += self._lines(model, wrong[:MISTAKES]) if wrong else []
        inputs = [[str(line), text] for line, (text, _) in zip(self.data.lines, rows, strict=True)]
        files = class_files(answers, ["line", "text"], inputs, self.data.classes, self.data.name)
        return metrics, write_all(folder, {**files, "mistakes.txt": ("\n".join(lines) + "\n").encode()})
