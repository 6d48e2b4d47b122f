"""Image captioning: predict the words that describe an image.

Word dropout for the captioner (`train.word_dropout`, by default on the scenes): a model that reads the first digit
learns which digits never follow it, and then ignores the image. At a thousand steps of the `nano` preset, exact match
on held-out combinations was 88.8 % without it, 92.4–95.0 % with six words in ten dropped (four runs), 94.5 and 95.4 %
with eight in ten, the default.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ... import draw
from ...collectives.distributed_map import distributed_map, ordered_sum
from ...config import UserError
from ...data.images import open_images as images
from ...data.images.datasets import Examples
from ...data.tokenizers.tokenizer import Tokenizer
from ...files import write_all
from ...inference.attention_overlays import caption_attention
from ...inference.generation import Generation
from ...inference.sampling import Sampling
from ...inference.text_batches import end_token
from ...models.build import normalize
from ...progress import pollable
from ...runs.run import Run
from ..losses.cross_entropy import next_token, token_loss
from ..model_selection import Amount
from ..settings import TrainConfig
from ..task import ALL, Batch, Prepared, Preview, Request, check_vocab, random_of
from .image_task import ImageTask, reading_of
from .metrics import corpus_scores, exact_match

MISTAKES = 40  # on a sheet
MEANINGS = {
    "exact_match": "share of captions that equal their reference",
    "token_accuracy": "share of tokens predicted right, each after the right words before it",
    "chrf": "agreement of short runs of letters with the reference, from 0 to 100; forgives other endings of a word",
    "bleu": "agreement of runs of one to four words with the reference, from 0 to 100; 0 if no caption has four words",
}


class Captioning(ImageTask):
    """Predict the words that describe an image. A text begins and ends with the end token."""

    want, headline = "caption", "exact_match"

    @classmethod
    def prepare(cls, request: Request, train: TrainConfig) -> Prepared:
        data = images.load(request.data, cls.want, split=request.split)
        train = cls.settings(request, data, train)
        tokenizer = request.learn_tokenizer(data.captions(), "bpe")
        from_data: dict[str, Any] = {"vocab": tokenizer.vocab}
        if "context" not in request.preset_values:
            from_data |= caption_context(request, data, tokenizer)
        config = cls.configure(request, data, from_data)
        check_vocab(config, tokenizer)
        task = cls(request.family, data, config, train, tokenizer)
        notes, facts = task.choose_fit(request), {"tokenizer": tokenizer.kind}
        return Prepared(task, data.name, data.hash, config, train, tokenizer, facts, task.reading, notes)

    @classmethod
    def reopen(cls, family: Any, run: Run, source: str, train: TrainConfig, whole: bool = False) -> "Captioning":
        config, data = family.read_config(run.config["model"]), cls.load(source, cls.want, run, False, whole)
        return cls(family, data, config, train, run.tokenizer).read_as(reading_of(run))

    def __init__(self, family: Any, data: images.ImageData, config: Any, train: TrainConfig, tokenizer: Tokenizer):
        super().__init__(family, data, config, train)
        self.tokenizer, self.end = tokenizer, end_token(tokenizer)
        # captions repeat, and a tokenizer's call costs more than all else in a batch
        self.encoded = lru_cache(1 << 16)(tokenizer.encode)
        self.length = 1 + longest_caption(data, tokenizer)
        if self.length > config.context:
            over = [t for t in every_caption(data) if 1 + len(tokenizer.encode(t)) > config.context]
            raise UserError(
                f"{len(over)} {'captions' if len(over) > 1 else 'caption'} of {data.name} will not fit into "
                f"model.context {config.context}: the longest needs {self.length}; the first begins “{over[0][:40]}”"
            )

    def tokens(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        """The input, which begins with the end token, and the targets, which end with it; the rest is ignored."""
        inputs = np.full((len(captions), self.length), self.end, np.int64)
        targets = np.full((len(captions), self.length), -100, np.int64)
        for i, caption in enumerate(captions):
            ids = self.encoded(caption)
            if len(ids) >= self.length:
                raise UserError(f"a caption of {len(ids)} tokens is longer than any seen before: “{caption[:40]}”")
            inputs[i, 1 : 1 + len(ids)] = ids
            targets[i, : len(ids)], targets[i, len(ids)] = ids, self.end
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    @property
    def amount(self) -> Amount | None:
        """How much there is to train on: a caption is the same in each pass, however its image is augmented."""
        images = super().amount
        return images and Amount(images.examples, "captions", images.per_update)

    @property
    def notes(self) -> list[str]:
        """What to know of the metrics."""
        return [f"{name}: {meaning}" for name, meaning in MEANINGS.items()]

    def batch(self, step: int, micro: int = 0, rows: slice = ALL) -> Batch:
        pictures, captions = self.examples(step, micro, rows)
        inputs, targets = self.tokens(captions)
        if self.train.word_dropout:
            rng = random_of(self.train.seed, step, micro + (1 << 22))
            chance = rng.random((self.train.batch, inputs.shape[1]))[rows]
            dropped = torch.from_numpy(chance < self.train.word_dropout)
            inputs = inputs.masked_fill(dropped, self.end)
        return torch.from_numpy(np.ascontiguousarray(pictures)), inputs, targets

    def targets(self, batch: Batch) -> int:
        return int((batch[2] >= 0).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        pictures, inputs, targets = batch
        return token_loss(model, targets, inputs, normalize(pictures))

    @torch.no_grad()
    def caption(self, model: nn.Module, pictures: np.ndarray) -> list[str]:
        """The greedy caption of each image."""
        device = next(model.parameters()).device
        x = normalize(torch.from_numpy(np.ascontiguousarray(pictures)).to(device))
        generation = Generation(
            model,
            [[self.end]] * len(pictures),
            self.config.context - 1,
            Sampling(0),
            end=self.end,
            vocab=self.tokenizer.vocab,
            given={"picture": x},
        )
        for _ in pollable(generation):
            pass
        return [self.tokenizer.decode([t for t in row[1:] if t != self.end]).strip() for row in generation.rows]

    @torch.no_grad()
    def _predict(self, model: nn.Module, examples: Examples, batches: int | None) -> "Predicted":
        """The loss and the accuracy per token, every caption, and some images to show."""
        scores, first, wrong = [], [], []
        for pictures, captions, _ in self.held_out(examples, batches):
            scores.append(self._scores(model, pictures, captions))
            rows = list(zip(pictures, scores[-1][3], scores[-1][4], strict=True))
            first += rows[: 20 - len(first)]
            wrong += [row for row in rows if row[1] != row[2]][: MISTAKES - len(wrong)]
        return Predicted.of(scores, first, wrong)

    def _scores(self, model: nn.Module, pictures: np.ndarray, captions: list[str]) -> "Scores":
        """Of some images: the summed loss, tokens, those predicted right, the captions, and their references."""
        if not len(pictures):
            return 0.0, 0, 0, [], []
        device = next(model.parameters()).device
        x, inputs, targets = (t.to(device) for t in (torch.from_numpy(pictures), *self.tokens(captions)))
        logits, counted = model(inputs, normalize(x)), int((targets >= 0).sum())
        hits = int((logits.argmax(-1) == targets).sum())
        loss = float(next_token(logits, targets)) * counted
        return loss, counted, hits, self.caption(model, pictures), [caption.strip() for caption in captions]

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        examples, plain = self.data.test, self.transform.without_augmentation
        scores = distributed_map(
            self.held_out_parts(examples, batches), lambda which: self._scores(model, *examples.take(which, plain))
        )
        self.decoded(sum(len(captions) for *_, captions in scores))
        return Predicted.of(scores).metrics()

    def preview(self, model: nn.Module) -> Preview:
        return Preview(".png", _sheet(self._predict(model, self.data.test, 1).first, self.data.name))

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        """Exact match; wrong captions as a contact sheet; and the attention at each word."""
        folder.mkdir(parents=True, exist_ok=True)
        predicted = self._predict(model, self.data.test, None)
        metrics = predicted.metrics()
        if self.data.seen_combinations is not None:
            seen = self._predict(model, self.data.seen_combinations, None)
            metrics["exact_match_familiar"] = seen.metrics()["exact_match"]
        total = len(predicted.references)
        wrong = total - sum(map(str.__eq__, predicted.predictions, predicted.references))
        title = f"{wrong} of {total} captions differ" + f"; the first {MISTAKES}" * (wrong > MISTAKES)
        files = {"mistakes.png": _sheet(predicted.wrong, title)}
        for i, (picture, caption, _) in enumerate(predicted.first[:3], 1):
            files[f"attention-{i}.png"] = caption_attention(model, self.tokenizer, picture, caption)
        return metrics, write_all(folder, files)


Scores = tuple[float, int, int, list[str], list[str]]


class Predicted(NamedTuple):
    """Captions of held-out images: the rows are (image, caption, target)."""

    loss: float
    token_accuracy: float
    predictions: list[str]
    references: list[str]
    first: list[Any]
    wrong: list[Any]

    @classmethod
    def of(cls, parts: Sequence[Scores], first: Sequence[Any] = (), wrong: Sequence[Any] = ()) -> "Predicted":
        """Batches together."""
        losses, tokens, hits, predictions, references = zip(*parts, strict=True)
        count, (predicted, true) = sum(tokens), (list(chain.from_iterable(x)) for x in (predictions, references))
        return cls(ordered_sum(losses) / count, sum(hits) / count, predicted, true, list(first), list(wrong))

    def metrics(self) -> dict[str, float]:
        both = self.predictions, self.references
        return {
            "val_loss": self.loss,
            "exact_match": exact_match(*both),
            "token_accuracy": self.token_accuracy,
            **corpus_scores(*both),
        }


def caption_context(request: Request, data: images.ImageData, tokenizer: Tokenizer) -> dict[str, int]:
    """The context that holds every caption, as a setting."""

    def place(caption: str) -> str:
        for part in (data.train, data.test):
            for source, target in zip(getattr(part, "sources", ()), getattr(part, "targets", ()), strict=False):
                if target == caption:
                    return str(source)
        return ""

    return request.context_for(every_caption(data), lambda text: len(tokenizer.encode(text)), place=place)


def longest_caption(data: images.ImageData, tokenizer: Tokenizer) -> int:
    """Tokens of the longest caption."""
    return max(len(tokenizer.encode(text)) for text in set(every_caption(data)))  # captions repeat


def every_caption(data: images.ImageData) -> Iterator[str]:
    """All captions; of generated data, many of them."""
    return chain(data.captions(), map(str, data.test.targets))


def _sheet(rows: list[Any], title: str) -> bytes:
    lines = [caption if caption == target else f"{caption or '(nothing)'}\nis {target}" for _, caption, target in rows]
    return draw.sheet([row[0] for row in rows], lines, [caption == target for _, caption, target in rows], title)
