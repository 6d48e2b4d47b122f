"""Continuous batching: sequences join and leave a fixed number of rows, and each round gives every one its next tokens.

A round is a piece of a prompt or a few for each tile, so that a long prompt does not hold up the others, then the next
steps of every tile in which a row is used: one on a CPU, several on CUDA, where the device goes on by itself with the
tokens that it has chosen. There the host reads a round's tokens while the device is busy with the next, and what was
computed after the end of a text is dropped.

Everything is allocated when the engine is made: the rows' caches, and the pool in which the first pieces of prompts are
kept for later prompts that begin alike. Only whole pieces, counted from token 0, are reused: those have the same bits
whoever computed them.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..config import UserError
from ..device import free_memory
from ..families.family import family
from ..inference.cpu_replay import Program
from ..inference.sampling import NOT_FINITE
from ..inference.text_stream import TextStream
from .captured_steps import CapturedSteps
from .errors import TOO_LONG, RequestError
from .prompt_reader import PromptReader, to_device
from .row_sampling import ALL, Choices, Kinds, RowRules, Rules
from .tile import Tile, prompts_at_once, steady, whole_keys

DRAWN = 64  # random numbers of a sequence drawn at a time
VECTOR = 16  # numbers that a kernel reads at once, or a multiple of them
AHEAD = 16  # steps of a tile that follow one another on CUDA before the host looks at their tokens

Likeliest = tuple[Tensor, Tensor]  # the ids of the likeliest tokens of each step, and their logprobs


class Token(NamedTuple):
    """One generated token, and how it was chosen: what a receipt shows."""

    id: int
    runner: int
    logprob: float
    low: float
    high: float
    margin: float
    drawn: float | None  # None where it is the token of the largest logit
    top: Sequence[tuple[int, float]] = ()  # the likeliest tokens and their logprobs


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
    text: TextStream | None = None
    uniforms: list[float] = field(default_factory=list)
    random: torch.Generator | None = None
    read: int = 0  # tokens of the prompt that were read
    reused: int = 0  # those of them that were not computed again
    asked: int = 0  # tokens that the device was asked for
    count: int = 0  # tokens that were generated
    ended: bool = False

    @property
    def sampled(self) -> bool:
        return self.rules.sampling.temperature > 0

    def draw(self, count: int) -> list[float]:
        """The next random numbers; the same stream as `pencil sample` draws for this seed."""
        if not self.sampled:
            return [0.0] * count
        if self.random is None:
            self.random = torch.Generator().manual_seed(
                (self.rules.sampling.seed * 1_000_003 + self.sample) % (1 << 63)
            )
        while len(self.uniforms) < count:
            self.uniforms += torch.rand(DRAWN, generator=self.random, dtype=torch.float64).tolist()
        drawn, self.uniforms = self.uniforms[:count], self.uniforms[count:]
        return drawn


Row = tuple[int, int, Continuation]  # the tile, the place in it, and whose it is


class Chosen:
    """The tokens of some rows in steps that follow one another, on their way from the device.

    `numbers` are those of their choices, and `at` is where each row is in them.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        at: Sequence[int],
        numbers: Float[Tensor, "numbers B steps"],
        likeliest: Sequence[Likeliest | None],
        drawn: Sequence[Sequence[float]],
    ):
        self.rows = rows
        self._at, self._likeliest, self._drawn = at, likeliest, drawn
        self._numbers = numbers.to("cpu", non_blocking=True)
        self._event = torch.cuda.Event() if numbers.is_cuda else None
        if self._event is not None:
            self._event.record()

    def read(self) -> list[list[Token]]:
        """The tokens of each row; waits for the device."""
        if self._event is not None:
            self._event.synchronize()
        columns = self._numbers.tolist()  # of each number of a choice the rows, of each row the steps
        found = []
        for i, (_, _, one) in enumerate(self.rows):
            ids, runners, *rest = (column[self._at[i]] for column in columns)
            drawn = self._drawn[i] if one.sampled else [None] * len(ids)
            tokens = list(map(Token, map(int, ids), map(int, runners), *rest, drawn))
            likeliest = self._likeliest[i]
            if likeliest is not None:
                top = [list(zip(*pair, strict=True)) for pair in zip(*(one.tolist() for one in likeliest), strict=True)]
                tokens = [token._replace(top=best) for token, best in zip(tokens, top, strict=True)]
            found.append(tokens)
        return found


class Prefixes:
    """Keys and values of prompts' first pieces, by all the tokens up to their end; the longest unused ones go first."""

    def __init__(self, count: int, like: Tensor):
        self.pool = like.new_zeros(count, *like.shape)
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
        ahead: int | None = None,
    ):
        self.model, self.tokenizer = model, tokenizer
        self.context = int(model.config.context)
        self.vocab = int(tokenizer.vocab)
        self.piece, self.waiting = min(piece, self.context), waiting
        device = next(model.parameters()).device
        self.ahead = ahead or (AHEAD if device.type == "cuda" else 1)  # steps between two looks of the host
        if len(model.INPUTS) > 1:  # what a text begins with is then read after a picture, or beside a source
            prefixes = 0
        self.bytes = _check_memory(
            model, tiles * (rows + prompts_at_once(model, device)), prefixes * self.piece, device
        )
        schemes = [getattr(model, name, None) for name in ("positions", "image_positions")]
        biased = any(getattr(one, "biases_scores", False) for one in schemes)  # a bias is added to all keys at once
        programs: dict[str, Program] = {}
        self.tiles = [Tile(model, rows, self.context, self.piece, biased, programs) for _ in range(tiles)]
        # on CUDA the order of a row's sums depends on where in memory the row begins: at multiples of a vector's bytes
        self.width = -(-self.vocab // VECTOR) * VECTOR if device.type == "cuda" else self.vocab
        self.rules = [RowRules(rows, self.vocab, device, self.width) for _ in range(tiles)]
        self.rows: list[list[Continuation | None]] = [[None] * rows for _ in range(tiles)]
        self.prefixes = Prefixes(prefixes, self.tiles[0].reader.kept(0, self.piece))
        self.never = torch.tensor(tokenizer.never, dtype=torch.long, device=device)
        self.steps = [
            CapturedSteps(tile, rules, partial(self._choose, t), self.ahead) if device.type == "cuda" else None
            for t, (tile, rules) in enumerate(zip(self.tiles, self.rules, strict=True))
        ]
        self.queue: list[Continuation] = []
        # of each tile, the places of rows whose prompts wait to be read, and those whose prompts are in its reader
        self.waits: list[list[int]] = [[] for _ in range(tiles)]
        self.reading: list[list[int | None]] = [[None] * tile.reader.rows for tile in self.tiles]
        self.chosen: list[Chosen] = []  # what the host has not looked at
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
        """Some pieces of prompts, and the next tokens of every other row."""
        self._drop()
        self._admit()
        before, self.chosen = self.chosen, []
        left = max(self.ahead // 2, len(self.tiles))  # pieces: each holds up the steps
        while left > 0 and any(self._to_read(t) for t in range(len(self.tiles))):
            for t in range(len(self.tiles)):
                if places := self._to_read(t):
                    self._guard(self._rows(t, places), partial(self._read, t))
                    left -= 1
        for t in range(len(self.tiles)):
            if places := self._places(t):
                self._guard(self._rows(t, places), partial(self._step, t, places))
        ready = before
        if (
            self.ahead == 1 or not self.chosen
        ):  # else the device is busy with this round, and the host looks at the last
            ready, self.chosen = [*before, *self.chosen], []
        for one in ready:
            self._guard(one.rows, partial(self._look_at, one))

    def _to_read(self, t: int) -> list[int]:
        """The rows of a tile whose prompts are read next."""
        reading = [p for p in self.reading[t] if p is not None]
        return reading + self.waits[t][: len(self.reading[t]) - len(reading)]

    def _rows(self, t: int, places: Sequence[int]) -> list[Row]:
        return [(t, p, one) for p in places if (one := self.rows[t][p]) is not None]

    def _places(self, t: int) -> list[int]:
        """The rows of a tile that get their next tokens."""
        return [p for p, one in enumerate(self.rows[t]) if one is not None and 0 < one.asked < self._most(one)]

    def _most(self, one: Continuation) -> int:
        """How many tokens a sequence gets at most: the last one need not be read."""
        return min(one.most, self.context + 1 - len(one.prompt))

    def _guard(self, rows: Sequence[Row], work: Callable[[], None]) -> None:
        """Do it; where it fails, the rows that it was for end, and the others go on."""
        try:
            work()
        except Exception as error:
            failed = RequestError.inside(error)
            for t, p, one in rows:
                if self.rows[t][p] is one:
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
            p, one = self.rows[t].index(None), self.queue.pop(0)
            self.rows[t][p] = one
            self.waits[t].append(p)

    def _names(self, tokens: list[int]) -> list[bytes]:
        """A hash of all tokens up to the end of each whole piece."""
        hashed, names = hashlib.sha256(), []
        for last in range(self.piece, len(tokens) + 1, self.piece):
            hashed.update(np.asarray(tokens[last - self.piece : last], np.int64).tobytes())
            names.append(hashed.digest())
        return names

    def _begin(self, reader: PromptReader, row: int, one: Continuation) -> None:
        """Begin to read a prompt: what is kept of others that begin alike is not computed again."""
        reader.begin(row)
        for name in self._names(one.prompt[: len(one.prompt) - 1]):  # the last token is read for its logits
            kept = self.prefixes.get(name)
            if kept is None:
                break
            reader.restore(kept, row)
        one.read = one.reused = reader.read(row)
        self.counts["reused"] += one.reused

    def _read(self, t: int) -> None:
        """Read the next pieces of prompts; after its last one a row has its first token."""
        reader, reading = self.tiles[t].reader, self.reading[t]
        pieces, given = {}, {}
        for row, p in enumerate(reading):
            if p is None and self.waits[t]:
                p = reading[row] = self.waits[t].pop(0)
                self._begin(reader, row, self._at(t, p))
            if p is not None:
                one = self._at(t, p)
                pieces[row] = one.prompt[one.read : one.read + self.piece]
                given, one.given = one.given, {}
        logits = reader.prefill(pieces, given)
        for row, tokens in pieces.items():
            p = reading[row]
            assert p is not None
            one = self._at(t, p)
            first, one.read = one.read, one.read + len(tokens)
            self.counts["prompt"] += len(tokens)
            if len(tokens) == self.piece:
                self.prefixes.put(self._names(one.prompt[: one.read])[-1], reader.kept(first, one.read, row))
            if one.read == len(one.prompt):
                reading[row] = None
                self._seat(t, p, row, logits[row])

    def _at(self, t: int, p: int) -> Continuation:
        one = self.rows[t][p]
        assert one is not None
        return one

    def _seat(self, t: int, p: int, row: int, logits: Float[Tensor, "V"]) -> None:
        """Give a prompt that was read its row, and choose its first token."""
        tile, one = self.tiles[t], self._at(t, p)
        tile.seat(p, row)
        self.rules[t].set(p, one.rules, one.prompt)  # not earlier: a row with rules counts each token that is chosen
        drawn = one.draw(1)
        steps = self.steps[t]
        if steps is None or one.top:
            here = slice(p, p + 1)
            choices, allowed = self._choose(
                t, logits[None], to_device(drawn, logits.device), here, self.rules[t].kinds[p]
            )
            tile.put(p, choices.tokens[0], len(one.prompt))
            numbers, likeliest = choices.stacked()[..., None], _likeliest([allowed[0]], one.top)
        else:
            numbers, likeliest = steps.first(logits, drawn, p, len(one.prompt))[..., None], None
        one.asked = 1
        self.chosen.append(Chosen([(t, p, one)], [0], numbers, [likeliest], [drawn]))

    def _step(self, t: int, places: Sequence[int]) -> None:
        """The next steps of a tile."""
        tile, rows, steps = self.tiles[t], self._rows(t, places), self.steps[t]
        count = min(self.ahead, max(self._most(one) - one.asked for _, _, one in rows))
        longest = min(self.context, max(len(one.prompt) + one.asked for _, _, one in rows) + count - 1)
        drawn = [one.draw(count) for _, _, one in rows]
        uniforms = np.zeros((tile.rows, count))
        uniforms[list(places)] = drawn
        likeliest: list[Likeliest | None] = [None] * len(rows)
        if steps is None or any(one.top for _, _, one in rows):
            given, choices, seen = to_device(uniforms, tile.device), [], [[] for _ in rows]
            for k in range(count):
                choice, logits = self._choose(t, tile.step(longest), given[:, k])
                tile.advance(choice.tokens)
                choices.append(choice.stacked())
                for kept, (_, p, one) in zip(seen, rows, strict=True):
                    if one.top:
                        kept.append(logits[p])
            numbers = torch.stack(choices, -1)
            likeliest = [_likeliest(logits, one.top) for logits, (_, _, one) in zip(seen, rows, strict=True)]
        else:
            numbers = steps.run(count, longest, uniforms)
        self.counts["steps"] += count
        for _, p, one in rows:
            one.asked += count
            if one.asked >= self._most(one):
                tile.leave(p)
        self.chosen.append(Chosen(rows, places, numbers, likeliest, drawn))

    def _choose(
        self, t: int, logits: Tensor, uniforms: Tensor, here: slice | Tensor = ALL, kinds: Kinds | None = None
    ) -> tuple[Choices, Tensor]:
        """The next token of the rows of a tile; and the logits of the tokens that may be generated."""
        logits = logits[:, : self.vocab].float()
        if self.width > self.vocab:
            logits = F.pad(logits, (0, self.width - self.vocab), value=-torch.inf)
        if len(self.never):
            logits = logits.index_fill(-1, self.never, -torch.inf)
        return self.rules[t].choose(logits, uniforms, here, kinds), logits

    # ---- what comes out

    def _look_at(self, chosen: Chosen) -> None:
        for (t, p, one), tokens in zip(chosen.rows, chosen.read(), strict=True):
            if not one.ended:
                self._take(t, p, one, tokens)

    def _take(self, t: int, p: int, one: Continuation, tokens: list[Token]) -> None:
        """A sequence has more tokens; it may end with them."""
        assert one.text is not None
        tokens, reason, error = tokens[: self._most(one) - one.count], None, None
        ids = [token.id for token in tokens]
        last = next((k for k, id in enumerate(ids) if id in self.tokenizer.ends or id == NOT_FINITE), len(ids))
        if not one.stop:
            text, _ = one.text.add(*ids[:last])
        else:  # which token meets a stop string decides how many are counted
            text = ""
            for k, id in enumerate(ids[:last]):
                new, met = one.text.add(id)
                text += new
                if met:
                    tokens, reason = tokens[: k + 1], "stop"
                    break
        if reason is None and last < len(ids):
            if ids[last] == NOT_FINITE:
                sentence = "the model's numbers are not finite here: its weights or the text are damaged"
                tokens, error = tokens[:last], RequestError(sentence, 500)
            else:
                tokens, reason = tokens[: last + 1], "stop"
                text += one.text.rest()
        one.count += len(tokens)
        self.counts["generated"] += len(tokens)
        if reason is None and error is None and one.count == self._most(one):
            reason = "length"
            text += one.text.rest()
        piece = Piece(text, tokens, reason, error)
        if reason is None and error is None:
            one.listener(piece)
        else:
            self._end(t, p, piece)

    def _end(self, t: int, p: int, last: Piece) -> None:
        one = self.rows[t][p]
        assert one is not None
        self.rows[t][p], one.ended = None, True
        if p in self.waits[t]:
            self.waits[t].remove(p)
        self.reading[t] = [None if other == p else other for other in self.reading[t]]
        self.tiles[t].leave(p)
        self.rules[t].forget(p)
        one.listener(last)


def _likeliest(logits: Sequence[Tensor], count: int) -> Likeliest | None:
    """The likeliest tokens of each of these logits, and how likely they are."""
    if not count:
        return None
    found = torch.stack(list(logits)).double().log_softmax(-1).topk(min(count, logits[0].shape[-1]))
    return found.indices, found.values


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
