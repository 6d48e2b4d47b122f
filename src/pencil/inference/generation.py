"""Text generation: prefill and cached decode in one path, and text streamed as it is decoded."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..config import UserError, build
from ..core.masks import NOWHERE
from ..core.span import Span
from ..data.detokenizer import Detokenizer
from ..data.tokenizers import Tokenizer
from .sampling import Sampling, penalize, probabilities


class Generation:
    """A batch of sequences generated together: iterate for each step's new tokens (None in a row that has ended).

    Every row has its own random stream and its own positions, so it is generated as it would be alone.
    The model takes (tokens, span=, cache=, last=True), has a config with context and vocab, and makes its `new_cache`;
    `given` are its other inputs, passed with the prefill only: a picture or a source, one a row.
    Each token of `end` ends a row; those of `never` are not generated.
    `reasons` is why each row ended: "length", "context", "end" or "stop".
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampling: Sampling | None = None,
        *,
        samples: Sequence[int] | None = None,
        end: int | Collection[int] | None = None,
        never: Sequence[int] = (),
        vocab: int | None = None,
        slide: bool = False,
        cached: bool = True,
        given: Mapping[str, Any] | None = None,
    ):
        context, vocab = int(model.config.context), int(vocab or model.config.vocab)
        if not isinstance(max_new_tokens, int) or max_new_tokens < 0:
            raise UserError(f"max_new_tokens must be a whole number, at least 0, not {max_new_tokens!r}")
        for prompt in prompts:
            if not prompt:
                raise UserError("the prompt is empty: give at least one token")
            if len(prompt) > context:
                raise UserError(f"the prompt has {len(prompt)} tokens and the context is {context}; shorten it")
            for token in prompt:
                if not 0 <= token < vocab:
                    raise UserError(f"token {token} is outside the vocabulary of {vocab}")
        self.model, self.max_new_tokens, self.sampling = model, max_new_tokens, sampling or Sampling()
        self.context, self.vocab, self.slide, self.cached = context, vocab, slide, cached
        self.ends = frozenset(() if end is None else (end,) if isinstance(end, int) else end)
        self.never = list(never)
        self.given = dict(given or {})
        self.device = next(model.parameters()).device
        self.rows = [list(map(int, prompt)) for prompt in prompts]  # the context of each row: sliding may shorten it
        self.reasons: list[str | None] = [None] * len(self.rows)
        # sample k of a prompt has its own random stream, the same alone or in a batch
        seeds = [(self.sampling.seed * 1_000_003 + k) % (1 << 63) for k in samples or [0] * len(self.rows)]
        self.random = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.cache = None

    def finish(self, row: int, reason: str) -> None:
        self.reasons[row] = self.reasons[row] or reason

    @property
    def ended(self) -> bool:
        return all(self.reasons)

    def __iter__(self) -> Iterator[list[int | None]]:
        for step in range(self.max_new_tokens):
            logits = self.allowed(self._logits())
            chosen: list[int | None] = [
                None if reason else token for token, reason in zip(self._choose(logits), self.reasons, strict=True)
            ]
            for i, token in enumerate(chosen):
                if token is not None:
                    self.rows[i].append(token)
                    if token in self.ends:
                        self.finish(i, "end")
                    elif step + 1 == self.max_new_tokens:
                        self.finish(i, "length")
            yield chosen
            self._make_room()
            if self.ended:
                return

    def allowed(self, logits: Float[Tensor, "... V"]) -> Float[Tensor, "... V"]:
        """The logits of tokens that may be generated: a padded vocabulary has unused ids."""
        logits = logits[..., : self.vocab]
        if not self.never:
            return logits
        return logits.index_fill(-1, torch.tensor(self.never, device=logits.device), -torch.inf)

    def _make_room(self) -> None:
        """A row whose context is full ends, or slides: its older half is dropped and the rest prefilled again."""
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
        # without padding the model knows the next position itself
        span = None if self.cache.even and NOWHERE not in index else self._at([[i] for i in index])
        return self.model(tokens, span=span, cache=self.cache, last=True)[:, -1]

    def prefill(self) -> Float[Tensor, "B V"]:
        """Read every row at once, shorter ones padded on the left."""
        rows = [row[-self.context :] for row in self.rows]
        longest = max(map(len, rows))
        pads = [longest - len(row) for row in rows]
        tokens = torch.tensor([[0] * pad + row for pad, row in zip(pads, rows, strict=True)], device=self.device)
        span = None
        if any(pads):
            span = self._at([[NOWHERE] * pad + list(range(longest - pad)) for pad in pads])
        if self.cached:
            room = min(self.max_new_tokens, self.context - min(map(len, rows)))
            self.cache = self.model.new_cache(len(rows), longest + room)
        return self.model(tokens, span=span, cache=self.cache, last=True, **self.given)[:, -1]

    def _at(self, index: list[list[int]]) -> Span:
        return Span.at(torch.tensor(index, device=self.device))

    def _choose(self, logits: Float[Tensor, "B V"]) -> list[int]:
        if self.sampling.repetition_penalty != 1:
            # the end token is no repetition
            rows = [[token for token in row if token not in self.ends] for row in self.rows]
            logits = penalize(logits, rows, self.sampling.repetition_penalty)
        if self.sampling.temperature == 0:
            return logits.argmax(-1).tolist()
        cumulative = probabilities(logits.cpu(), self.sampling).cumsum(-1)
        # in single precision the largest numbers would round to 1, which is beyond the last token with a probability
        drawn = [[torch.rand((), generator=g, dtype=torch.float64).item()] for g in self.random]
        uniforms = torch.tensor(drawn, dtype=torch.float64)
        return (
            torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
            .clamp(max=cumulative.shape[1] - 1)[:, 0]
            .tolist()
        )


class _TextStream:
    """One row's tokens as text, holding back what may be the start of a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], prompt: Sequence[int] = ()):
        self.text, self.stop = Detokenizer(tokenizer, prompt), stop
        self.held = ""

    def add(self, token: int) -> tuple[str, bool]:
        """What may be shown now, and whether a stop string was met."""
        self.held += self.text.add(token)
        met = [at for word in self.stop if (at := self.held.find(word)) >= 0]
        if met:
            shown, self.held = self.held[: min(met)], ""
            return shown, True
        keep = max((n for word in self.stop for n in range(1, len(word)) if self.held.endswith(word[:n])), default=0)
        cut = len(self.held) - keep
        shown, self.held = self.held[:cut], self.held[cut:]
        return shown, False

    def rest(self) -> str:
        return self.held + self.text.rest()


def stream(
    model: Any,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    max_new_tokens: int = 256,
    sampling: Sampling | None = None,
    *,
    stop: str | Sequence[str] = (),
    samples: Sequence[int] | None = None,
    slide: bool = False,
    cached: bool = True,
    reasons: list[str] | None = None,
    begin: int | None = None,
    given: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Iterator[list[str]]:
    """Each step's new text, one piece a prompt; `reasons`, if given, is filled with why each row ended.

    A string is one prompt. How tokens are sampled is a `Sampling`, or its settings as keywords: temperature, top_k, …
    Bad input is refused before the first piece. `begin` is put before every prompt: the tokenizer's, unless given.
    """
    prompts = [prompts] if isinstance(prompts, str) else prompts
    stop = [stop] if isinstance(stop, str) else stop
    sampling = _sampling(sampling, settings)
    begin = tokenizer.begin if begin is None else begin
    ids = [([] if begin is None else [begin]) + tokenizer.encode(prompt).tolist() for prompt in prompts]
    generation = Generation(
        model, ids, max_new_tokens, sampling, samples=samples, end=tokenizer.ends, never=tokenizer.never,
        vocab=tokenizer.vocab, slide=slide, cached=cached, given=given,
    )  # fmt: skip
    texts = [_TextStream(tokenizer, stop, prompt) for prompt in ids]
    return _pieces(generation, tokenizer, texts, [] if reasons is None else reasons)


def _pieces(
    generation: Generation, tokenizer: Tokenizer, texts: list[_TextStream], reasons: list[str]
) -> Iterator[list[str]]:
    for step in generation:
        pieces = [""] * len(texts)
        for i, token in enumerate(step):
            if token is not None and token not in tokenizer.ends:
                pieces[i], met = texts[i].add(token)
                if met:
                    generation.reasons[i] = "stop"
        yield pieces
    yield ["" if reason == "stop" else text.rest() for text, reason in zip(texts, generation.reasons, strict=True)]
    reasons[:] = [reason or "length" for reason in generation.reasons]


def _sampling(sampling: Sampling | None, settings: Mapping[str, Any]) -> Sampling:
    """The sampling rules, as one object or as keywords."""
    if sampling is not None and not isinstance(sampling, Sampling):
        raise UserError(
            f"sampling is a pencil.Sampling, not {sampling!r}; its settings can be keywords: temperature=0.2"
        )
    if sampling is not None and settings:
        raise UserError(f"{next(iter(settings))} is a setting of sampling: give one of the two")
    return sampling or build(Sampling, settings)


def complete(
    model: Any, tokenizer: Tokenizer, prompts: str | Sequence[str], *args: Any, **options: Any
) -> str | list[str]:
    """The continuation of a prompt, or of each of several, whole; takes what `stream` takes."""
    texts = ["".join(row) for row in zip(*stream(model, tokenizer, prompts, *args, **options), strict=True)]
    return texts[0] if isinstance(prompts, str) else texts
