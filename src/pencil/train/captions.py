"""The task of a captioner: say in words what a picture shows."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import draw
from ..config import UserError
from ..data import images
from ..data.tokenizers import Tokenizer, learn
from ..files import write_all
from ..generate import Generation, Sampling
from ..models import configure, preset_of
from ..models.captioner import attention_maps
from ..models.parts import numbers
from ..runs import Run
from .losses import next_token
from .pictures import SHOWN, PictureTask
from .settings import TrainConfig, refuse
from .tasks import Asked, Batch, Begun, Preview, random_of


class CaptionTask(PictureTask):
    """Say in words what a picture shows. A text begins and ends with the tokenizer's end."""

    family, want, headline = "captioner", "caption", "exact_match"

    @classmethod
    def begin(cls, asked: Asked, config: TrainConfig) -> Begun:
        data = images.load(asked.data, cls.want)
        if config.mixup:
            raise UserError("train.mixup blends two labels; two captions cannot be blended")
        refuse(config, ("label_smoothing",), "for pairs of texts, not for captions")
        config = cls.settings_for(asked, data, config)
        tokenizer = learn(asked.tokenizer or "bpe", data.captions(), asked.vocab, ended=True)
        found: dict[str, Any] = {"vocab": tokenizer.vocab}
        if "context" not in preset_of(asked.family, asked.preset):
            found["context"] = max(16, -(-(longest(data, tokenizer) + 1) // 8) * 8)
        sizes = cls.sizes_for(asked, data, found)
        if sizes.vocab < tokenizer.vocab:
            raise UserError(f"model.vocab {sizes.vocab} is smaller than the tokenizer's {tokenizer.vocab}")
        task = cls(data, sizes, config, tokenizer)
        return Begun(task, data.name, data.hash, sizes, config, tokenizer, {"tokenizer": tokenizer.kind})

    @classmethod
    def again(cls, run: Run, source: str, config: TrainConfig) -> "CaptionTask":
        sizes = configure(run.family, None, **run.config["model"])
        return cls(images.load(source, cls.want), sizes, config, run.tokenizer)

    def __init__(self, data: images.PictureData, sizes: Any, config: TrainConfig, tokenizer: Tokenizer):
        super().__init__(data, sizes, config)
        self.tokenizer = tokenizer
        if tokenizer.end is None:
            raise UserError("the tokenizer has no <|endoftext|>, which begins and ends a caption")
        self.end: int = tokenizer.end
        # captions come again and again, and a tokenizer's call costs more than all else in a batch
        self.encoded = lru_cache(1 << 16)(tokenizer.encode)
        self.length = 1 + longest(data, tokenizer)
        if self.length > sizes.context:
            over = [t for t in every_caption(data) if 1 + len(tokenizer.encode(t)) > sizes.context]
            raise UserError(
                f"{len(over)} {'captions' if len(over) > 1 else 'caption'} of {data.name} will not fit into "
                f"model.context {sizes.context}: the longest needs {self.length}; the first begins “{over[0][:40]}”"
            )

    def tokens(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        """What is read, begun by the end token, and what is to be said, closed by it; the rest is not judged."""
        read = np.full((len(captions), self.length), self.end, np.int64)
        say = np.full((len(captions), self.length), -100, np.int64)
        for i, caption in enumerate(captions):
            ids = self.encoded(caption)
            if len(ids) >= self.length:
                raise UserError(f"a caption of {len(ids)} tokens is longer than any seen before: “{caption[:40]}”")
            read[i, 1 : 1 + len(ids)] = ids
            say[i, : len(ids)], say[i, len(ids)] = ids, self.end
        return torch.from_numpy(read), torch.from_numpy(say)

    def batch(self, step: int, micro: int = 0) -> Batch:
        pictures, captions = self.draw(step, micro)
        read, say = self.tokens(captions)
        if self.train.word_dropout:
            rng = random_of(self.train.seed, step, micro + (1 << 22))
            hidden = torch.from_numpy(rng.random(tuple(read.shape)) < self.train.word_dropout)
            read = read.masked_fill(hidden, self.end)
        return torch.from_numpy(np.ascontiguousarray(pictures)), read, say

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        pictures, read, say = batch
        return next_token(model(read, numbers(pictures)), say)

    @torch.no_grad()
    def caption(self, model: nn.Module, pictures: np.ndarray) -> list[str]:
        """The likeliest words for each picture."""
        device = next(model.parameters()).device
        x = numbers(torch.from_numpy(np.ascontiguousarray(pictures)).to(device))
        grown = Generation(
            model, [[self.end]] * len(pictures), self.config.context - 1, Sampling(0), end=self.end,
            vocab=self.tokenizer.vocab, given={"picture": x},
        )  # fmt: skip
        for _ in grown:
            pass
        return [self.tokenizer.decode([t for t in row[1:] if t != self.end]).strip() for row in grown.rows]

    @torch.no_grad()
    def _judge(self, model: nn.Module, examples: images.Examples, batches: int | None) -> "Judged":
        """The loss a token, how many captions are right to the last word, and some pictures to show."""
        device = next(model.parameters()).device
        total, tokens, right, count, first, wrong = 0.0, 0, 0, 0, [], []
        for pictures, captions in self.judged(examples, batches):
            batch = tuple(t.to(device) for t in (torch.from_numpy(pictures), *self.tokens(captions)))
            judged = int((batch[2] >= 0).sum())
            total, tokens = total + float(self.loss(model, batch)) * judged, tokens + judged
            rows = list(zip(pictures, self.caption(model, pictures), (c.strip() for c in captions), strict=True))
            right, count = right + sum(said == meant for _, said, meant in rows), count + len(rows)
            first += rows[: 20 - len(first)]
            wrong += [row for row in rows if row[1] != row[2]][: SHOWN - len(wrong)]
        return Judged(total / tokens, right, count, first, wrong)

    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        judged = self._judge(model, self.data.test, batches)
        return {"val_loss": judged.loss, "exact_match": judged.right / judged.total}

    def preview(self, model: nn.Module) -> Preview:
        return Preview(".png", _captions(self._judge(model, self.data.test, 1).first, self.data.name))

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        """Exact matches; wrong captions as a contact sheet; and where the model looked, word by word."""
        folder.mkdir(parents=True, exist_ok=True)
        judged = self._judge(model, self.data.test, None)
        measures = {"val_loss": judged.loss, "exact_match": judged.right / judged.total}
        if self.data.familiar is not None:
            seen = self._judge(model, self.data.familiar, None)
            measures["exact_match_familiar"] = seen.right / seen.total
        title = f"{judged.total - judged.right} of {judged.total} captions differ"
        files = {
            "mistakes.png": _captions(
                judged.wrong, f"{title}; the first {SHOWN}" if judged.total - judged.right > SHOWN else title
            )
        }
        for i, (picture, said, _) in enumerate(judged.first[:3], 1):
            files[f"attention-{i}.png"] = overlay(model, self.tokenizer, picture, said)
        return measures, write_all(folder, files)


class Judged(NamedTuple):
    """What came of judging: the rows are (picture, said, meant)."""

    loss: float
    right: int
    total: int
    first: list[Any]
    wrong: list[Any]


def overlay(model: Any, tokenizer: Tokenizer, picture: np.ndarray, said: str) -> bytes:
    """A picture of a picture, once for each word of its caption, lit where the model looked as it said it."""
    ids = [tokenizer.end, *tokenizer.encode(said).tolist()][: model.config.context]
    device = next(model.parameters()).device
    x = numbers(torch.from_numpy(np.ascontiguousarray(picture[None])).to(device))
    looks = attention_maps(model, x, torch.tensor([ids], device=device))[0].float().cpu().numpy()
    words = [tokenizer.decode([token]).strip() or "·" for token in ids[1:]]
    return draw.overlays(picture, words, looks[: len(words)])


def longest(data: images.PictureData, tokenizer: Tokenizer) -> int:
    """Tokens of the longest caption."""
    return max(len(tokenizer.encode(text)) for text in every_caption(data))


def every_caption(data: images.PictureData) -> Iterator[str]:
    """All there are, or many that were drawn."""
    return chain(data.captions(), map(str, data.test.targets))


def _captions(rows: list[Any], title: str) -> bytes:
    lines = [said if said == meant else f"{said or '(nothing)'}\nis {meant}" for _, said, meant in rows]
    return draw.sheet([row[0] for row in rows], lines, [said == meant for _, said, meant in rows], title)
