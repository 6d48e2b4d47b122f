"""The task of an encoder–decoder: write the target of a source."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import draw
from ..beam import Found, search
from ..config import UserError
from ..core.masks import NOWHERE
from ..core.span import Span
from ..data import pairs
from ..data.dates import Dates
from ..data.tokenizers import Tokenizer, learn
from ..files import write_all
from ..generate import Generation, Sampling
from ..models import configure, create, preset_of
from ..models.seq2seq import attention_maps
from ..runs import Run
from .losses import next_token
from .scores import character_error_rate, corpus_scores, exact_match
from .settings import PICTURES, TrainConfig, refuse
from .tasks import Asked, Batch, Begun, Preview, in_turn, random_of

JUDGED = 64  # sentences at a time
SHOWN = 40  # mistakes told


class PairTask:
    """Write the target of a source. A source ends, and a target begins and ends, with the tokenizer's end."""

    family, unit, headline, slow = "seq2seq", "tokens", "exact_match", False

    @classmethod
    def begin(cls, asked: Asked, config: TrainConfig) -> Begun:
        """Read the data the task was asked to learn."""
        refuse(config, PICTURES, f"for pictures, and {asked.family} reads text")
        refuse(config, ("word_dropout",), f"not for a {asked.family}")
        data = pairs.load(asked.data)
        usual = "char" if asked.data in pairs.EMBEDDED else "bpe"
        tokenizer = learn(asked.tokenizer or usual, data.texts(), asked.vocab, ended=True)
        found: dict[str, Any] = {"vocab": tokenizer.vocab}
        if "context" not in preset_of(asked.family, asked.preset):
            config = replace(config, **{n: v for n, v in data.pace.items() if n not in asked.train})
            for name, side in (("source_context", 0), ("context", 1)):
                found[name] = max(16, -(-(longest(data, tokenizer, side) + 1) // 8) * 8)
        sizes = configure(asked.family, asked.preset, **{**found, **asked.model})
        for name in ("vocab", "source_vocab"):
            if (size := getattr(sizes, name)) is not None and size < tokenizer.vocab:
                raise UserError(f"model.{name} {size} is smaller than the tokenizer's {tokenizer.vocab}")
        task = cls(data, sizes, config, tokenizer)
        return Begun(task, data.name, data.hash, sizes, config, tokenizer, {"tokenizer": tokenizer.kind})

    @classmethod
    def again(cls, run: Run, source: str, config: TrainConfig) -> "PairTask":
        """The task of a run, on the data it was trained on."""
        return cls(pairs.load(source), configure(run.family, None, **run.config["model"]), config, run.tokenizer)

    def __init__(self, data: pairs.PairData, sizes: Any, config: TrainConfig, tokenizer: Tokenizer):
        self.data, self.config, self.train, self.tokenizer = data, sizes, config, tokenizer
        self.end = end_of(tokenizer)
        self.encoded = lru_cache(1 << 16)(lambda text: tokenizer.encode(text).tolist())
        for name, side in (("source_context", 0), ("context", 1)):
            room = getattr(sizes, name)
            over = [pair[side] for pair in data.every() if 1 + len(tokenizer.encode(pair[side])) > room]
            if over:
                raise UserError(
                    f"{len(over)} {('sources', 'targets')[side] if len(over) > 1 else ('source', 'target')[side]} of "
                    f"{data.name} will not fit into model.{name} {room}: the longest needs "
                    f"{longest(data, tokenizer, side) + 1}; the first begins “{over[0][:40]}”"
                )

    @property
    def chooses(self) -> bool:
        return self.data.chosen_by

    @property
    def hash(self) -> str:
        return self.data.hash

    def about(self) -> str:
        made = "made on the fly" if isinstance(self.data.train, Dates) else f"{len(self.data.train):,} to train on"
        return f"pairs of {self.data.name}, {made}, {len(self.data.test):,} to be judged by"

    def skipped(self) -> list[tuple[str, str]]:
        return []

    @property
    def usage(self) -> str:
        return f"--source {shlex.quote(self.data.test[0][0])}"

    def build(self) -> nn.Module:
        return create(self.family, self.config)

    def batch(self, step: int, micro: int = 0) -> Batch:
        size, train = self.train.batch, self.data.train
        if isinstance(train, Dates):
            return self.tokens(train.draw(random_of(self.train.seed, step, micro), size))
        first = (step * self.train.accumulate + micro) * size
        return self.tokens([train[i] for i in in_turn(self.train.seed, first, size, len(train))])

    def tokens(self, rows: Sequence[pairs.Pair]) -> Batch:
        """Sources, where their tokens stand, what is read of the targets and what is to be said; filled up alike."""
        sources = [[*self.encoded(pair[0]), self.end] for pair in rows]
        targets = [[self.end, *self.encoded(pair[1]), self.end] for pair in rows]
        source, places = padded(sources, self.end, self.config.source_context)
        target, index = padded(targets, self.end, self.config.context + 1)
        return source, places, target[:, :-1], target[:, 1:].masked_fill(index[:, 1:] == NOWHERE, -100)

    def count(self, batch: Batch) -> int:
        return batch[0].numel() + batch[2].numel()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._loss(model, batch, self.train.label_smoothing or 0.0)

    def _loss(self, model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
        source, places, read, say = batch
        return next_token(model(read, source, Span.at(places)), say, smoothing)

    def judged(self, batches: int | None) -> Sequence[pairs.Pair]:
        """Held-out pairs, spread evenly: all of them, or as many as `batches` batches hold."""
        total = len(self.data.test)
        few = total if batches is None else min(total, batches * self.train.batch)
        return [self.data.test[i] for i in np.linspace(0, total - 1, few).astype(int)]

    @torch.no_grad()
    def _judge(self, model: nn.Module, rows: Sequence[pairs.Pair], whole: bool = False) -> "Judged":
        """The loss a token, and what was written for each source: to its end, or no further than could be right."""
        device = next(model.parameters()).device
        total, tokens, said = 0.0, 0, []
        for i in range(0, len(rows), JUDGED):
            few = rows[i : i + JUDGED]
            batch = tuple(t.to(device) for t in self.tokens(few))
            judged = int((batch[3] >= 0).sum())
            total, tokens = total + float(self._loss(model, batch, 0.0)) * judged, tokens + judged
            room = None if whole else max(len(self.encoded(target)) for _, target in few) + 1
            said += write(model, self.tokenizer, [source for source, _ in few], room)
        return Judged(total / tokens, [source for source, _ in rows], said, [target for _, target in rows])

    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        judged = self._judge(model, self.judged(batches))
        return {"val_loss": judged.loss, "exact_match": exact_match(judged.said, judged.meant)}

    def preview(self, model: nn.Module) -> Preview:
        return Preview(".txt", table(self._judge(model, self.data.test[:20])).encode())

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        """Exact matches, errors a character, BLEU and chrF; what differs; and where the model looked, word by word."""
        folder.mkdir(parents=True, exist_ok=True)
        judged = self._judge(model, self.data.test, whole=True)
        measures = {
            "val_loss": judged.loss,
            "exact_match": exact_match(judged.said, judged.meant),
            "character_error_rate": character_error_rate(judged.said, judged.meant),
            **corpus_scores(judged.said, judged.meant),
        }
        wrong = [row for row in judged.rows() if row[1] != row[2]]
        head = f"{len(wrong)} of {len(judged.said)} differ" + (f"; the first {SHOWN}" if len(wrong) > SHOWN else "")
        some = Judged(0.0, *([row[k] for row in wrong[:SHOWN]] for k in range(3)))
        files = {"mistakes.txt": f"{head}\n\n{table(some)}".encode()}
        for i, (source, said, _) in enumerate(list(judged.rows())[:3], 1):
            files[f"attention-{i}.png"] = looks(model, self.tokenizer, source, said)
        return measures, write_all(folder, files)


class Judged(NamedTuple):
    """What came of judging: each source, what was said and what was meant."""

    loss: float
    sources: list[str]
    said: list[str]
    meant: list[str]

    def rows(self):
        return zip(self.sources, self.said, self.meant, strict=True)


def table(judged: Judged) -> str:
    """One source a line, what was said, and, where it differs, what was meant."""
    lines = [f"{a}\t{b}" + ("" if b == c else f"\t(is: {c})") for a, b, c in judged.rows()]
    return "\n".join(lines) + "\n"


def end_of(tokenizer: Tokenizer) -> int:
    if tokenizer.end is None:
        raise UserError("the tokenizer has no <|endoftext|>, which begins and ends a text")
    return tokenizer.end


def padded(rows: Sequence[Sequence[int]], fill: int, room: int) -> tuple[Tensor, Tensor]:
    """Rows of unlike lengths side by side, and the place of each token: those that fill a row up stand nowhere.

    All are at most `room` long, and so is what comes of them.
    """
    # few different lengths, so that a compiled model meets few shapes
    longest = min(room, -(-max(map(len, rows)) // 8) * 8)
    tokens = np.full((len(rows), longest), fill, np.int64)
    places = np.full((len(rows), longest), NOWHERE, np.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], places[i, : len(row)] = row, np.arange(len(row))
    return torch.from_numpy(tokens), torch.from_numpy(places)


def sources_of(model: Any, tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, Any]:
    """What an encoder–decoder reads, ready to be given to it; a source that is empty or too long is refused."""
    room, end, rows = model.config.source_context, end_of(tokenizer), []
    for text in texts:
        ids = [*tokenizer.encode(text).tolist(), end]
        if len(ids) == 1:
            raise UserError("the source is empty: give at least one word")
        if len(ids) > room:
            raise UserError(
                f"the source “{text[:40]}{'…' * (len(text) > 40)}” has {len(ids)} tokens with its end, and the model "
                f"reads {room}; shorten it"
            )
        rows.append(ids)
    device = next(model.parameters()).device
    if len({len(row) for row in rows}) == 1:
        return {"source": torch.tensor(rows, device=device)}
    tokens, places = padded(rows, end, room)
    return {"source": tokens.to(device), "source_span": Span.at(places.to(device))}


def write(model: Any, tokenizer: Tokenizer, texts: Sequence[str], new: int | None = None) -> list[str]:
    """The likeliest word after each word, for each source."""
    end, room = end_of(tokenizer), model.config.context - 1
    grown = Generation(
        model, [[end]] * len(texts), min(room, new or room), Sampling(0), end=end, vocab=tokenizer.vocab,
        given=sources_of(model, tokenizer, texts),
    )  # fmt: skip
    for _ in grown:
        pass
    return [decoded(tokenizer, row[1:]) for row in grown.rows]


def best(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], beams: int, penalty: float, new: int | None = None
) -> list[list[tuple[str, Found]]]:
    """For each source the likeliest targets found by a beam, best first, with their scores."""
    end, room = end_of(tokenizer), model.config.context - 1
    found = search(
        model, [[end]] * len(texts), min(room, new or room), beams, end=end, vocab=tokenizer.vocab, penalty=penalty,
        given=sources_of(model, tokenizer, texts),
    )  # fmt: skip
    return [[(decoded(tokenizer, one.tokens), one) for one in rows] for rows in found]


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode([token for token in ids if token != tokenizer.end])


def looks(model: Any, tokenizer: Tokenizer, source: str, said: str) -> bytes:
    """A picture of which words of the source each word said was looking at."""
    given = sources_of(model, tokenizer, [source])["source"]
    ids = [tokenizer.end, *tokenizer.encode(said).tolist()][: model.config.context]
    maps = attention_maps(model, given, torch.tensor([ids], device=given.device))[0].float().cpu().numpy()
    with torch.no_grad():
        ended = int(model(torch.tensor([ids], device=given.device), given)[0, -1].argmax()) == tokenizer.end
    rows = [shown(tokenizer, token) for token in ids[1:]]
    if ended or not rows:  # what was cut short never said so
        rows.append("end")
    columns = [*(shown(tokenizer, token) for token in given[0, :-1].tolist()), "end"]
    title = "where it looked in the source as it said each word"
    return draw.heat_maps([maps[: len(rows)]], [""], rows, columns, title)


def shown(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.decode([token]).replace(" ", "␣").replace("\n", "⏎") or "·"


def longest(data: pairs.PairData, tokenizer: Tokenizer, side: int) -> int:
    """Tokens of the longest source or target."""
    return max(len(tokenizer.encode(pair[side])) for pair in data.every())
