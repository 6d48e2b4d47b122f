"""Generation: prefill and cached decode in one path, sampling, and text streamed as it is made."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .config import UserError
from .core.masks import NOWHERE
from .core.span import Span
from .data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn: penalty, then temperature, then top-k, top-p and min-p; temperature 0 is greedy."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self):
        def within(name: str, low: float, high: float) -> None:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                upper = "" if high == math.inf else f" and at most {high:g}"
                raise UserError(f"{name.replace('_', '-')} must be at least {low:g}{upper}, not {value}")

        within("temperature", 0, 1e6)
        within("top_k", 1, math.inf)
        within("top_p", 1e-9, 1)
        within("seed", 0, math.inf)
        within("min_p", 0, 1)
        within("repetition_penalty", 1e-9, math.inf)


def probabilities(logits: Float[Tensor, "B V"], how: Sampling) -> Float[Tensor, "B V"]:
    """The distribution the next token is drawn from, after temperature and every cut."""
    logits = logits.double()
    p = ((logits - logits.amax(-1, keepdim=True)) / how.temperature).softmax(-1)
    order = p.sort(-1, descending=True)
    sorted_p, keep = order.values, torch.ones_like(order.values, dtype=torch.bool)
    if how.top_k is not None:
        keep[:, how.top_k :] = False
    if how.top_p is not None:
        kept = sorted_p * keep
        kept = kept / kept.sum(-1, keepdim=True)
        # the token that crosses the line is kept, so at least one always is
        keep &= kept.cumsum(-1) - kept < how.top_p
    if how.min_p is not None:
        keep &= sorted_p >= how.min_p * sorted_p[:, :1]
    p = torch.zeros_like(p).scatter(-1, order.indices, sorted_p * keep)
    return p / p.sum(-1, keepdim=True)


def penalise(logits: Float[Tensor, "B V"], rows: Sequence[Sequence[int]], penalty: float) -> Float[Tensor, "B V"]:
    """Make what a row already holds less likely: positive logits are divided, negative ones multiplied."""
    logits = logits.clone()
    for i, row in enumerate(rows):
        held = torch.tensor(sorted(set(row)), device=logits.device, dtype=torch.long)
        values = logits[i, held]
        logits[i, held] = torch.where(values > 0, values / penalty, values * penalty)
    return logits


class Generation:
    """Rows of tokens growing together: iterate for each step's new tokens (None in a row that has ended).

    Every row has its own stream of random numbers and its own place in the context, so it grows as it would alone.
    The model takes (tokens, span=, cache=, last=True), has a config with context and vocab, and makes its `new_cache`;
    `given` is what it reads besides, with the first tokens and never again: a picture or a source, one a row.
    `reasons` says why each row ended: "length", "context", "end" or "stop".
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        new: int,
        how: Sampling | None = None,
        *,
        samples: Sequence[int] | None = None,
        end: int | None = None,
        vocab: int | None = None,
        slide: bool = False,
        cached: bool = True,
        given: Mapping[str, Any] | None = None,
    ):
        context, vocab = int(model.config.context), int(vocab or model.config.vocab)
        for prompt in prompts:
            if not prompt:
                raise UserError("the prompt is empty: give at least one token to go on from")
            if len(prompt) > context:
                raise UserError(f"the prompt has {len(prompt)} tokens and the context holds {context}; shorten it")
            for token in prompt:
                if not 0 <= token < vocab:
                    raise UserError(f"token {token} is outside the vocabulary of {vocab}")
        self.model, self.new, self.how = model, new, how or Sampling()
        self.context, self.vocab, self.end, self.slide, self.cached = context, vocab, end, slide, cached
        self.given = dict(given or {})
        self.device = next(model.parameters()).device
        self.rows = [list(map(int, prompt)) for prompt in prompts]  # what each row sees: slides may shorten it
        self.reasons: list[str | None] = [None] * len(self.rows)
        # sample k of a prompt has its own stream, the same whether it is made alone or in a batch
        seeds = [(self.how.seed * 1_000_003 + k) % (1 << 63) for k in samples or [0] * len(self.rows)]
        self.random = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.cache = None

    def finish(self, row: int, reason: str) -> None:
        self.reasons[row] = self.reasons[row] or reason

    @property
    def ended(self) -> bool:
        return all(self.reasons)

    def __iter__(self) -> Iterator[list[int | None]]:
        for made in range(self.new):
            logits = self._logits()[:, : self.vocab]  # a padded vocabulary has ids that stand for nothing
            chosen: list[int | None] = [
                None if reason else token for token, reason in zip(self._choose(logits), self.reasons, strict=True)
            ]
            for i, token in enumerate(chosen):
                if token is not None:
                    self.rows[i].append(token)
                    if token == self.end:
                        self.finish(i, "end")
                    elif made + 1 == self.new:
                        self.finish(i, "length")
            yield chosen
            self._make_room()
            if self.ended:
                return

    def _make_room(self) -> None:
        """A row whose context is full ends, or slides: its older half is forgotten and the rest is read again."""
        for i, row in enumerate(self.rows):
            if len(row) > self.context and not self.reasons[i]:
                if not self.slide:
                    self.finish(i, "context")
                else:
                    del row[: len(row) - max(1, self.context // 2)]
                    self.cache = None

    @torch.no_grad()
    def _logits(self) -> Float[Tensor, "B V"]:
        if self.cache is None:
            return self.prefill()
        index = [NOWHERE if reason else len(row) - 1 for row, reason in zip(self.rows, self.reasons, strict=True)]
        tokens = torch.tensor([[row[-1]] for row in self.rows], device=self.device)
        # where nothing is padded the model knows where the next token stands
        span = None if self.cache.even and NOWHERE not in index else self._at([[i] for i in index])
        return self.model(tokens, span=span, cache=self.cache, last=True)[:, -1]

    def prefill(self) -> Float[Tensor, "B V"]:
        """Read every row at once, shorter ones padded on the left by tokens that stand nowhere."""
        rows = [row[-self.context :] for row in self.rows]
        longest = max(map(len, rows))
        pads = [longest - len(row) for row in rows]
        tokens = torch.tensor([[0] * pad + row for pad, row in zip(pads, rows, strict=True)], device=self.device)
        span = None
        if any(pads):
            span = self._at([[NOWHERE] * pad + list(range(longest - pad)) for pad in pads])
        if self.cached:
            room = min(self.new, self.context - min(map(len, rows)))
            self.cache = self.model.new_cache(len(rows), longest + room)
        return self.model(tokens, span=span, cache=self.cache, last=True, **self.given)[:, -1]

    def _at(self, index: list[list[int]]) -> Span:
        return Span.at(torch.tensor(index, device=self.device))

    def _choose(self, logits: Float[Tensor, "B V"]) -> list[int]:
        if self.how.repetition_penalty != 1:
            # to end is no repetition
            rows = [[token for token in row if token != self.end] for row in self.rows]
            logits = penalise(logits, rows, self.how.repetition_penalty)
        if self.how.temperature == 0:
            return logits.argmax(-1).tolist()
        ladder = probabilities(logits.cpu(), self.how).cumsum(-1)
        draws = torch.tensor([[torch.rand((), generator=g, dtype=torch.float64).item()] for g in self.random])
        return (
            torch.searchsorted(ladder, draws * ladder[:, -1:], right=True).clamp(max=ladder.shape[1] - 1)[:, 0].tolist()
        )


class _Text:
    """One row's tokens as text: whole characters only, and nothing that may be the start of a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]):
        self.tokenizer, self.stop = tokenizer, stop
        self.waiting: list[int] = []
        self.told = 0  # characters of the waiting tokens already passed on
        self.held = ""

    def add(self, token: int) -> tuple[str, bool]:
        """What may be shown now, and whether a stop string was met."""
        self.waiting.append(token)
        text = self.tokenizer.decode(self.waiting)
        # half a character at the end decodes to U+FFFD: what stands before it is sure, it itself waits for its rest
        half = text.endswith("\ufffd")
        sure = text[:-1] if half else text
        self.held += sure[self.told :]
        self.told = len(sure) if half else 0
        if not half:
            self.waiting.clear()
        met = [at for word in self.stop if (at := self.held.find(word)) >= 0]
        if met:
            shown, self.held = self.held[: min(met)], ""
            return shown, True
        keep = max((n for word in self.stop for n in range(1, len(word)) if self.held.endswith(word[:n])), default=0)
        cut = len(self.held) - keep
        shown, self.held = self.held[:cut], self.held[cut:]
        return shown, False

    def rest(self) -> str:
        rest = self.tokenizer.decode(self.waiting)[self.told :] if self.waiting else ""
        return self.held + rest


def stream(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    new: int = 256,
    how: Sampling | None = None,
    *,
    stop: Sequence[str] = (),
    samples: Sequence[int] | None = None,
    slide: bool = False,
    cached: bool = True,
    reasons: list[str] | None = None,
    begin: int | None = None,
    given: Mapping[str, Any] | None = None,
) -> Iterator[list[str]]:
    """Each step's new text, one piece a prompt; `reasons`, if given, is filled with why each row ended.

    What cannot be done is refused before the first piece. `begin` is a token set before every prompt.
    """
    ids = [([] if begin is None else [begin]) + tokenizer.encode(prompt).tolist() for prompt in prompts]
    grown = Generation(
        model, ids, new, how, samples=samples, end=tokenizer.end, vocab=tokenizer.vocab, slide=slide, cached=cached,
        given=given,
    )  # fmt: skip
    return _pieces(grown, tokenizer, [_Text(tokenizer, stop) for _ in prompts], [] if reasons is None else reasons)


def _pieces(grown: Generation, tokenizer: Tokenizer, texts: list[_Text], reasons: list[str]) -> Iterator[list[str]]:
    for step in grown:
        pieces = [""] * len(texts)
        for i, token in enumerate(step):
            if token is not None and token != tokenizer.end:
                pieces[i], met = texts[i].add(token)
                if met:
                    grown.reasons[i] = "stop"
        yield pieces
    yield ["" if reason == "stop" else text.rest() for text, reason in zip(texts, grown.reasons, strict=True)]
    reasons[:] = [reason or "length" for reason in grown.reasons]


def complete(model: Any, tokenizer: Tokenizer, prompts: Sequence[str], *args, **options) -> list[str]:
    """What the model writes after each prompt, whole; takes what `stream` takes."""
    return ["".join(row) for row in zip(*stream(model, tokenizer, prompts, *args, **options), strict=True)]
