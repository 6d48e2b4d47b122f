"""Continuous batching: sequences join and leave a fixed number of rows, and each round gives every one a token.

A round is one piece of a prompt for each tile at most, so that a long prompt does not hold up the others, then a decode
step of every tile in which a row is used. Everything is allocated when the engine is made: the rows' caches, and the
pool in which the first pieces of prompts are kept for later prompts that begin alike. Only whole pieces, counted from
token 0, are reused: those have the same bits whoever computed them.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import UserError
from ..core.cache import Cache
from ..device import free_memory
from ..families.family import family
from ..inference.sampling import NOT_FINITE
from ..inference.text_stream import TextStream
from .errors import TOO_LONG, RequestError
from .row_sampling import RowRules, Rules
from .tile import Newest, Tile, steady, whole_keys

DRAWN = 64  # random numbers of a sequence drawn at a time


@dataclass
class Token:
    """One generated token, and how it was chosen: what a receipt shows."""

    id: int
    logprob: float
    drawn: float | None  # None where it is the token of the largest logit
    low: float
    high: float
    runner: int
    margin: float
    top: list[tuple[int, float]] = field(default_factory=list)  # the likeliest tokens and their logprobs


@dataclass
class Piece:
    """What is new of a sequence; with a reason, or an error, it is the last."""

    text: str
    tokens: list[Token]
    reason: str | None = None
    error: RequestError | None = None


@dataclass(eq=False)
class Continuation:
    """One text to be generated; `listener` gets each step's piece, in the engine's thread."""

    prompt: list[int]
    most: int  # tokens to generate
    rules: Rules
    listener: Callable[[Piece], None]
    sample: int = 0  # which of several samples of a request this is: each has a random stream of its own
    given: Mapping[str, Any] = field(default_factory=dict)  # a picture or a source, by the model's own name
    stop: tuple[str, ...] = ()
    ignore_end: bool = False
    top: int = 0  # how many of the likeliest tokens are listed
    deadline: float = float("inf")  # on time.monotonic
    cancelled: bool = False
    tokens: list[Token] = field(default_factory=list)
    text: TextStream | None = None
    uniforms: list[float] = field(default_factory=list)
    random: torch.Generator | None = None
    row: Cache | None = None  # while the prompt is read
    reused: int = 0  # tokens of the prompt that were not computed again

    def uniform(self) -> float:
        """The next random number; the same stream as `pencil sample` draws for this seed."""
        if self.rules.sampling.temperature == 0:
            return 0.0
        if self.random is None:
            self.random = torch.Generator().manual_seed(
                (self.rules.sampling.seed * 1_000_003 + self.sample) % (1 << 63)
            )
        if not self.uniforms:
            self.uniforms = torch.rand(DRAWN, generator=self.random, dtype=torch.float64).flip(0).tolist()
        return self.uniforms.pop()


class Prefixes:
    """Keys and values of prompts' first pieces, by all the tokens up to their end; the longest unused ones go first."""

    def __init__(self, count: int, shape: Sequence[int], like: Tensor):
        self.pool = torch.zeros(count, *shape, device=like.device, dtype=like.dtype)
        self.places: OrderedDict[bytes, int] = OrderedDict()

    def get(self, name: bytes) -> Tensor | None:
        if name not in self.places:
            return None
        self.places.move_to_end(name)
        return self.pool[self.places[name]]

    def put(self, name: bytes, kept: Tensor) -> None:
        if not len(self.pool) or name in self.places:
            return
        place = len(self.places)
        if place == len(self.pool):
            place = self.places.popitem(last=False)[1]
        self.pool[place] = kept
        self.places[name] = place


class Engine:
    """One model's rows: `add` a sequence, and call `round` until nothing is left."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        tiles: int = 8,
        rows: int = 8,
        piece: int = 64,
        prefixes: int = 64,
        waiting: int = 256,
    ):
        self.model, self.tokenizer = model, tokenizer
        self.context = int(model.config.context)
        self.vocab = int(tokenizer.vocab)
        self.piece, self.waiting = min(piece, self.context), waiting
        device = next(model.parameters()).device
        if len(model.INPUTS) > 1:  # what a text begins with is then read after a picture, or beside a source
            prefixes = 0
        self.bytes = _check_memory(model, tiles * rows, prefixes * self.piece, device)
        schemes = [getattr(model, name, None) for name in ("positions", "image_positions")]
        biased = any(getattr(one, "biases_scores", False) for one in schemes)  # a bias is added to all keys at once
        self.tiles = [Tile(model, rows, self.context, self.piece, biased) for _ in range(tiles)]
        self.rules = [RowRules(rows, self.vocab, device) for _ in range(tiles)]
        self.rows: list[list[Continuation | None]] = [[None] * rows for _ in range(tiles)]
        store = self.tiles[0].cache.store
        self.prefixes = Prefixes(prefixes, (2, store.shape[1], store.shape[3], self.piece, store.shape[5]), store)
        self.never = torch.tensor(tokenizer.never, dtype=torch.long, device=device)
        self.queue: list[Continuation] = []
        self.reading: list[tuple[int, int]] = []  # tile and place of rows whose prompts are being read, oldest first
        self.counts = {"prompt": 0, "reused": 0, "generated": 0, "steps": 0}
        self.is_steady = self._is_steady()

    def _is_steady(self) -> bool:
        """Whether answers depend on nothing but the request, as measured; where they do, all keys are computed."""
        tile = self.tiles[0]
        measured = steady(tile, self.vocab)
        if not measured and not tile.all_keys:
            for one in self.tiles:
                one.all_keys = True
            measured = steady(tile, self.vocab)
        tile.cache.reset()
        return measured

    # ---- what comes in

    @property
    def room(self) -> int:
        """How many sequences can still be added."""
        return self.waiting + sum(row is None for rows in self.rows for row in rows) - len(self.queue)

    @property
    def running(self) -> int:
        return sum(row is not None for rows in self.rows for row in rows)

    @property
    def busy(self) -> bool:
        return bool(self.queue) or self.running > 0

    def add(self, sequence: Continuation) -> None:
        sequence.text = TextStream(self.tokenizer, sequence.stop, sequence.prompt)
        self.queue.append(sequence)

    def stop(self) -> None:
        """End every sequence."""
        for sequence in [*self.queue, *(one for rows in self.rows for one in rows if one is not None)]:
            sequence.cancelled = True

    # ---- a round

    def round(self) -> None:
        """One piece of some prompts, and one token of every other row."""
        self._drop()
        self._admit()
        for at in self.reading[: len(self.tiles)]:
            self._guard([at], lambda at=at: self._read(*at))
        for t in range(len(self.tiles)):
            places = [p for p, one in enumerate(self.rows[t]) if one is not None and one.row is None]
            if places:
                self._guard([(t, p) for p in places], lambda t=t, places=places: self._step(t, places))

    def _guard(self, at: Sequence[tuple[int, int]], work: Callable[[], None]) -> None:
        """Do it; where it fails, the rows that it was for end, and the others go on."""
        try:
            work()
        except Exception as error:
            failed = RequestError.inside(error)
            for t, p in at:
                if self.rows[t][p] is not None:
                    self._end(t, p, Piece("", [], error=failed))
            self.on_failure(error)

    def on_failure(self, error: Exception) -> None:
        """Called with what failed inside; replaced by the server, which counts it."""

    def _drop(self) -> None:
        """End what nobody waits for, and what took too long."""
        now = time.monotonic()

        def why(one: Continuation) -> RequestError | None:
            if one.cancelled:
                return RequestError("the request was cancelled", 499)
            if one.deadline < now:
                return RequestError(TOO_LONG, 504)
            return None

        for one in list(self.queue):
            if (error := why(one)) is not None:
                self.queue.remove(one)
                one.listener(Piece("", [], error=error))
        for t, rows in enumerate(self.rows):
            for p, one in enumerate(rows):
                if one is not None and (error := why(one)) is not None:
                    self._end(t, p, Piece("", [], error=error))

    def _admit(self) -> None:
        """Give free rows to the sequences that wait, in the fullest tiles: each tile in use costs a whole step."""
        while self.queue:
            free = [(sum(one is not None for one in rows), t) for t, rows in enumerate(self.rows) if None in rows]
            if not free:
                return
            t = max(free, key=lambda entry: (entry[0], -entry[1]))[1]
            p, one, tile = self.rows[t].index(None), self.queue.pop(0), self.tiles[t]
            self.rows[t][p] = one
            one.row = tile.clear(p)
            for name in self._names(one.prompt[: len(one.prompt) - 1]):  # the last token is read for its logits
                kept = self.prefixes.get(name)
                if kept is None:
                    break
                tile.restore(one.row, kept)
            one.reused = one.row.filled
            self.counts["reused"] += one.reused
            self.rules[t].set(p, one.rules, one.prompt)
            self.reading.append((t, p))

    def _names(self, tokens: list[int]) -> list[bytes]:
        """A hash of all tokens up to the end of each whole piece."""
        hashed, names = hashlib.sha256(), []
        for last in range(self.piece, len(tokens) + 1, self.piece):
            hashed.update(np.asarray(tokens[last - self.piece : last], np.int64).tobytes())
            names.append(hashed.digest())
        return names

    def _read(self, t: int, p: int) -> None:
        """Read the next piece of a prompt; after the last one the row has its first token."""
        one, tile = self.rows[t][p], self.tiles[t]
        assert one is not None
        assert one.row is not None
        first = tile.read(one.row)
        last = min(first + self.piece, len(one.prompt))
        logits = tile.prefill(p, one.row, one.prompt[first:last], one.given)
        one.given = {}
        self.counts["prompt"] += last - first
        if last - first == self.piece:
            name = self._names(one.prompt[:last])[-1]
            self.prefixes.put(name, tile.cache.store[:, :, p, :, first:last])
        if last < len(one.prompt):
            return
        self.reading.remove((t, p))
        one.row = None
        whole = logits.new_zeros(tile.rows, logits.shape[0])
        whole[p] = logits
        self._choose(t, [p], whole)

    def _step(self, t: int, places: Sequence[int]) -> None:
        newest = []
        for p in places:
            one = self.rows[t][p]
            assert one is not None
            newest.append(Newest(p, one.tokens[-1].id, len(one.prompt) + len(one.tokens) - 1))
        self.counts["steps"] += 1
        self._choose(t, places, self.tiles[t].step(newest))

    def _choose(self, t: int, places: Sequence[int], logits: Tensor) -> None:
        """Give these rows of a tile their next tokens."""
        rows, rules, uniforms = self.rows[t], self.rules[t], [0.0] * len(logits)
        for p in places:
            uniforms[p] = rows[p].uniform()  # pyright: ignore[reportOptionalMemberAccess]
        logits = logits[:, : self.vocab].float()
        if len(self.never):
            logits = logits.index_fill(-1, self.never, -torch.inf)
        choices = rules.choose(logits, uniforms)
        for p in places:
            one = rows[p]
            assert one is not None
            if choices.tokens[p] == NOT_FINITE:
                error = RequestError(
                    "the model's numbers are not finite here: its weights or the text are damaged", 500
                )
                self._end(t, p, Piece("", [], error=error))
                continue
            sampled = one.rules.sampling.temperature > 0
            token = Token(choices.tokens[p], choices.logprobs[p], uniforms[p] if sampled else None, choices.low[p],
                          choices.high[p], choices.runners[p], choices.margins[p])  # fmt: skip
            if one.top:
                likeliest = logits[p].double().log_softmax(-1).topk(min(one.top, self.vocab))
                token.top = list(zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True))
            self._take(t, p, one, token)

    def _take(self, t: int, p: int, one: Continuation, token: Token) -> None:
        """A sequence has a token more; it may end with it."""
        one.tokens.append(token)
        self.counts["generated"] += 1
        self.rules[t].count(p, token.id)
        assert one.text is not None
        text, reason = "", None
        if token.id in self.tokenizer.ends:
            reason = "stop"
        else:
            text, met = one.text.add(token.id)
            if met:
                reason = "stop"
        if reason is None and (len(one.tokens) == one.most or len(one.prompt) + len(one.tokens) > self.context):
            reason = "length"
        if reason is None:
            one.listener(Piece(text, [token]))
        else:
            rest = one.text.rest() if token.id in self.tokenizer.ends or reason == "length" else ""
            self._end(t, p, Piece(text + rest, [token], reason))

    def _end(self, t: int, p: int, last: Piece) -> None:
        one = self.rows[t][p]
        assert one is not None
        self.rows[t][p], one.row = None, None
        if (t, p) in self.reading:
            self.reading.remove((t, p))
        self.rules[t].forget(p)
        one.listener(last)


def new_seed() -> int:
    """The seed of a request that gives none."""
    return secrets.randbits(53)


def _check_memory(model: Any, rows: int, kept: int, device: torch.device) -> int:
    """The bytes of the caches; what does not fit is refused before it is allocated."""
    c, smallest = model.config, model.new_cache(1, 1)
    a_token, before = smallest.nbytes // smallest.length, smallest.length - 1  # a picture's tokens are before the text
    a_row = whole_keys(before + int(c.context)) + int(getattr(c, "source_context", 0))
    needed, free = a_token * (rows * a_row + kept), free_memory(device)
    if needed > free:
        raise UserError(
            f"the cache of {rows} rows needs {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; "
            "give fewer --rows"
        )
    return needed


def can_continue(loaded: Any) -> bool:
    """Whether a run's model writes texts token by token."""
    explore = family(loaded.run.family).explore
    return explore is not None and explore.writes and loaded.tokenizer is not None
