"""The tasks of a reader: say the label of a text, or which words were hidden from it."""

import math
import shlex
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import UserError
from ..core.span import Span
from ..data import pairs, text
from ..data.tokenizers import Tokenizer, learn
from ..files import write_all
from ..models import configure, create, preset_of
from ..runs import Run
from .labels import confusion, measure, per_class
from .losses import next_token
from .pairs import end_of, padded
from .settings import PICTURES, TrainConfig, refuse
from .tasks import Asked, Batch, Begun, Preview, in_turn, random_of
from .texts import TextTask

JUDGED = 64  # texts at a time
SHOWN = 40  # mistakes told
LONGEST = 512  # tokens read of a text, unless the model is given another context
HIDDEN = 0.15  # of the words, where nothing else is said


class ReadTask:
    """Which of the two it is: a file of texts with labels, or text without."""

    @staticmethod
    def begin(asked: Asked, config: TrainConfig) -> Begun:
        refuse(config, PICTURES, f"for pictures, and {asked.family} reads text")
        refuse(config, ("label_smoothing",), f"for pairs of texts, not for a {asked.family}")
        labelled = Path(asked.data).suffix.lower() in (".tsv", ".jsonl", ".json")
        return (TextLabelTask if labelled else HiddenWordTask).begin(asked, config)

    @staticmethod
    def again(run: Run, source: str, config: TrainConfig) -> Any:
        return (TextLabelTask if "classes" in run.config["run"] else HiddenWordTask).again(run, source, config)


class TextLabelTask:
    """Name the class of a text. What is read begins with the tokenizer's end, which stands for the whole."""

    family, unit, headline, slow = "reader", "texts", "accuracy", False

    @classmethod
    def begin(cls, asked: Asked, config: TrainConfig) -> Begun:
        refuse(config, ("word_dropout",), "for text without labels")
        data = pairs.load_labelled(asked.data)
        texts = (one for one, _ in data.every())
        tokenizer = learn(asked.tokenizer or "bpe", texts, asked.vocab, ended=True)
        found: dict[str, Any] = {"vocab": tokenizer.vocab, "classes": len(data.classes)}
        if "context" not in preset_of(asked.family, asked.preset):
            longest = max(len(tokenizer.encode(one)) for one, _ in data.every()) + 1
            found["context"] = min(LONGEST, max(16, -(-longest // 8) * 8))
        sizes = configure(asked.family, asked.preset, **{**found, **asked.model})
        task = cls(data, sizes, config, tokenizer)
        facts = {"tokenizer": tokenizer.kind, "classes": data.classes}
        return Begun(task, data.name, data.hash, sizes, config, tokenizer, facts)

    @classmethod
    def again(cls, run: Run, source: str, config: TrainConfig) -> "TextLabelTask":
        sizes = configure(run.family, None, **run.config["model"])
        return cls(pairs.load_labelled(source), sizes, config, run.tokenizer)

    def __init__(self, data: pairs.PairData, sizes: Any, config: TrainConfig, tokenizer: Tokenizer):
        self.data, self.config, self.train, self.tokenizer = data, sizes, config, tokenizer
        self.rows = data.train if isinstance(data.train, list) else []
        if sizes.vocab < tokenizer.vocab:
            raise UserError(f"model.vocab {sizes.vocab} is smaller than the tokenizer's {tokenizer.vocab}")
        if (sizes.classes or 0) < len(data.classes):
            raise UserError(
                f"model.classes {sizes.classes} is fewer than the {len(data.classes)} classes of {data.name}"
            )
        self.end, self.number = end_of(tokenizer), {name: i for i, name in enumerate(data.classes)}
        self.encoded = lru_cache(1 << 16)(lambda text: tokenizer.encode(text).tolist())

    @property
    def chooses(self) -> bool:
        return self.data.chosen_by

    @property
    def hash(self) -> str:
        return self.data.hash

    def about(self) -> str:
        train, test = len(self.rows), len(self.data.test)
        cut = sum(len(self.encoded(one)) >= self.config.context for one, _ in self.data.every())
        told = f" ({cut:,} of them longer than the context of {self.config.context} and cut)" if cut else ""
        return f"texts of {self.data.name}, {train:,} to train on, {test:,} to be judged by{told}"

    def skipped(self) -> list[tuple[str, str]]:
        return []

    @property
    def usage(self) -> str:
        return f"--prompt {shlex.quote(self.data.test[0][0])}"

    def build(self) -> nn.Module:
        return create(self.family, self.config)

    def tokens(self, rows: list[pairs.Pair]) -> Batch:
        """What is read, where its tokens stand, and the labels."""
        ids = [[self.end, *self.encoded(one)][: self.config.context] for one, _ in rows]
        tokens, places = padded(ids, self.end, self.config.context)
        return tokens, places, torch.tensor([self.number[label] for _, label in rows])

    def batch(self, step: int, micro: int = 0) -> Batch:
        size = self.train.batch
        first = (step * self.train.accumulate + micro) * size
        return self.tokens([self.rows[i] for i in in_turn(self.train.seed, first, size, len(self.rows))])

    def count(self, batch: Batch) -> int:
        return len(batch[0])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        tokens, places, labels = batch
        return F.cross_entropy(model(tokens, Span.at(places)).float(), labels)

    @torch.no_grad()
    def _judge(self, model: nn.Module, rows: list[pairs.Pair]) -> list[tuple[Tensor, Tensor]]:
        """Log-probabilities and labels of held-out texts, a few at a time."""
        device, parts = next(model.parameters()).device, []
        for i in range(0, len(rows), JUDGED):
            tokens, places, labels = self.tokens(rows[i : i + JUDGED])
            said = model(tokens.to(device), Span.at(places.to(device))).float().log_softmax(-1).cpu()
            parts.append((said, labels))
        return parts

    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        total = len(self.data.test)
        few = total if batches is None else min(total, batches * self.train.batch)
        rows = [self.data.test[i] for i in np.linspace(0, total - 1, few).astype(int)]
        return measure(self._judge(model, rows))[0]

    def preview(self, model: nn.Module) -> Preview:
        return Preview(".txt", "\n".join([*self._told(model, self.data.test[:20]), ""]).encode())

    def _told(self, model: nn.Module, rows: list[pairs.Pair]) -> list[str]:
        lines = []
        said = [row for part, _ in self._judge(model, rows) for row in part]
        for (one, label), row in zip(rows, said, strict=True):
            guess = int(row.argmax())
            name = self.data.classes[guess] if guess < len(self.data.classes) else str(guess)
            lines.append(f"{name} ({row.exp().max():.0%})\t{'' if name == label else f'(is: {label}) '}{one[:200]}")
        return lines

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        """Accuracy over all and per class; the confusion matrix, and mistakes."""
        folder.mkdir(parents=True, exist_ok=True)
        rows = list(self.data.test)
        measures, guessed, labels = measure(self._judge(model, rows))
        measures |= per_class(guessed, labels, self.data.classes)
        wrong = [row for row, right in zip(rows, (guessed == labels).tolist(), strict=True) if not right]
        told = [f"{len(wrong)} of {len(rows)} wrong" + (f"; the first {SHOWN}" if len(wrong) > SHOWN else ""), ""]
        told += self._told(model, wrong[:SHOWN]) if wrong else []
        files = {
            "confusion.png": confusion(guessed, labels, self.data.classes, self.data.name),
            "mistakes.txt": ("\n".join(told) + "\n").encode(),
        }
        return measures, write_all(folder, files)


class HiddenWordTask(TextTask):
    """Say which words were hidden: the token after the tokenizer's last stands in their place."""

    family, headline = "reader", "accuracy"

    @classmethod
    def begin(cls, asked: Asked, config: TrainConfig) -> Begun:
        found = text.load(asked.data, asked.tokenizer or "char", asked.vocab)
        sizes = configure(asked.family, asked.preset, **{"vocab": found.tokenizer.vocab + 1, **asked.model})
        if sizes.vocab <= found.tokenizer.vocab:
            raise UserError(
                f"model.vocab {sizes.vocab} has no room for the tokenizer's {found.tokenizer.vocab} and one that hides"
            )
        if sizes.classes:
            raise UserError("model.classes is for text with labels: a .tsv or .jsonl file of a text and a label a line")
        task = cls(found, sizes, config.batch, config.seed, config.word_dropout)
        facts = {"tokenizer": found.tokenizer.kind}
        return Begun(task, found.corpus.name, found.corpus.hash, sizes, config, found.tokenizer, facts)

    def __init__(self, data: text.TextData, config: Any, batch: int, seed: int, hidden: float | None = None):
        super().__init__(data, config, batch, seed)
        self.hidden, self.mask = HIDDEN if hidden is None else hidden, data.tokenizer.vocab

    @classmethod
    def again(cls, run: Run, source: str, config: TrainConfig) -> "HiddenWordTask":
        plain = super().again(run, source, config)
        return cls(plain.data, plain.config, config.batch, config.seed, config.word_dropout)

    @property
    def usage(self) -> str:
        decode, ids = self.data.tokenizer.decode, self.data.val[:8].tolist()
        return f"--prompt {shlex.quote(decode(ids[:4]) + '[mask]' + decode(ids[5:]))}"

    def hide(self, tokens: Tensor, rng: np.random.Generator) -> Batch:
        """Some tokens are to be said: most of them hidden, a tenth replaced by any other, a tenth left as they are."""
        shape = tuple(tokens.shape)
        chosen, how = rng.random(shape) < self.hidden, rng.random(shape)
        others = torch.from_numpy(rng.integers(0, self.mask, shape))
        say = tokens.masked_fill(~torch.from_numpy(chosen), -100)
        read = tokens.masked_fill(torch.from_numpy(chosen & (how < 0.8)), self.mask)
        return torch.where(torch.from_numpy(chosen & (how >= 0.9)), others, read), say

    def batch(self, step: int, micro: int = 0) -> Batch:
        tokens, _ = super().batch(step, micro)
        return self.hide(tokens, random_of(self.seed, step, micro + (1 << 22)))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        tokens, say = batch
        # a batch in which nothing was hidden teaches nothing, and must not divide by nothing
        total = F.cross_entropy(model(tokens).float().flatten(0, 1), say.flatten(), reduction="sum")
        return total / (say >= 0).sum().clamp(min=1)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        """How well hidden words of the held-out text are guessed; the same ones each time."""
        ids, context = self.data.val, self.config.context
        starts = np.arange(0, len(ids) - context, context)
        if batches is not None and batches * self.size < len(starts):
            starts = starts[np.linspace(0, len(starts) - 1, batches * self.size).astype(int)]
        device = next(model.parameters()).device
        total, right, count = 0.0, 0, 0
        for i in range(0, len(starts), self.size):
            few = starts[i : i + self.size].tolist()
            # each window by itself, so that the size of a batch hides no other words
            rows = [self.hide(self._windows(ids, [at])[0], random_of(0, at)) for at in few]
            read, say = (torch.cat(part).to(device) for part in zip(*rows, strict=True))
            logits, judged = model(read).float(), say >= 0
            if judged.any():
                total += float(next_token(logits, say)) * int(judged.sum())
                right += int((logits.argmax(-1) == say)[judged].sum())
                count += int(judged.sum())
        loss = total / max(1, count)
        return {"val_loss": loss, "perplexity": math.exp(min(loss, 700)), "accuracy": right / max(1, count)}

    @torch.no_grad()
    def preview(self, model: nn.Module) -> Preview:
        """The first held-out text, the same with words hidden, and with the model's guesses for them."""
        tokens = torch.from_numpy(self.data.val[: self.config.context].astype(np.int64))[None]
        chosen = torch.from_numpy(random_of(0, 1).random(tuple(tokens.shape)) < self.hidden)
        read = tokens.masked_fill(chosen, self.mask).to(next(model.parameters()).device)
        guessed = torch.where(chosen, model(read)[..., : self.mask].argmax(-1).cpu(), tokens)

        def said(ids: Tensor) -> str:
            marked = zip(ids[0].tolist(), chosen[0].tolist(), strict=True)
            return "".join(f"[{self.data.tokenizer.decode([i])}]" if hid else self.data.tokenizer.decode([i])
                           for i, hid in marked)  # fmt: skip

        return Preview(".txt", f"{said(tokens)}\n\nguessed:\n\n{said(guessed)}\n".encode())
