"""Text generation: prefill and cached decode in one path, for a batch of sequences."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..config import UserError
from ..core.layers import evaluating
from ..core.masks import NOWHERE
from ..core.span import Span
from ..models.output import refuse_output
from ..progress import duration
from .arriving import Arriving
from .cache_memory import check_cache
from .decode_step import (
    BEHIND,
    CAPTURE_FROM,
    CHUNK,
    COMPILE_FROM,
    DecodeState,
    StaticStep,
    borrow,
    bucket_of,
    keep,
    kept_bytes,
)
from .persistent import persistent_step
from .sampling import NOT_FINITE, Sampling


class Generation:
    """A batch of sequences generated together: iterate for each step's new tokens (None in a row that has ended).

    Every row has its own random stream and its own positions, so it is generated as it would be alone.
    The model takes (tokens, span=, cache=, last=), has a config with context and vocab, and makes its `new_cache`;
    `given` are its other inputs, passed with the prefill only: a picture or a source, one a row.
    Each token of `end` ends a row; those of `never` are not generated. A model in training mode is used in evaluation
    mode, without dropout, while a step is computed.
    `reasons` is why each row ended: "length", "context", "end" or "stop".

    On CUDA a long generation takes its steps with static shapes, captured in CUDA graphs, and the tokens are read some
    steps behind the device; `capture` decides it instead, on any device. `compile` compiles the step first, which takes
    tens of seconds; a later generation of the same sizes by the same model needs no start-up. `startup` is the seconds
    that were spent on it, and `notify` is called with a line that says so.
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
        capture: bool | None = None,
        compile: bool = False,
        notify: Callable[[str], None] | None = None,
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
        if (capture or compile) and not cached:
            raise UserError("a step that is captured or compiled needs the cache: leave cached=False out")
        if compile and capture is False:
            raise UserError("a compiled step is captured: leave capture=False out")
        self.model, self.max_new_tokens, self.sampling = model, max_new_tokens, sampling or Sampling()
        self.context, self.vocab, self.slide, self.cached = context, vocab, slide, cached
        self.ends = frozenset(() if end is None else (end,) if isinstance(end, int) else end)
        self.given, self.notify = dict(given or {}), notify
        self.device, self.modules = next(model.parameters()).device, list(model.modules())
        self.rows = [list(map(int, prompt)) for prompt in prompts]  # the context of each row: sliding may shorten it
        self.reasons: list[str | None] = [None] * len(self.rows)
        self.static, self.compile = self._is_static(capture, compile), compile
        # a step that is not captured waits for Python anyhow; a compiled one is compiled before a token is shown
        self.behind = 0 if not self.static else BEHIND if self.device.type == "cuda" else int(compile)
        self.step: StaticStep | None = None
        self.cache, self.startup = None, 0.0
        if cached:
            longest = max(map(len, self.rows), default=1)
            spare = kept_bytes(model) if self.static else 0
            check_cache(model, len(self.rows), self.cache_length(longest), spare)
        # sample k of a prompt has its own random stream, the same alone or in a batch
        self.seeds = [(self.sampling.seed * 1_000_003 + k) % (1 << 63) for k in samples or [0] * len(self.rows)]
        self.random: list[torch.Generator] = []
        self.state = DecodeState(
            len(self.rows),
            self.sampling,
            vocab=vocab,
            context=context,
            ends=sorted(self.ends),
            never=never,
            device=self.device,
        )
        self.taken, self.read = 0, 0  # steps so far, and those whose tokens were read
        self.fresh = True  # whether the state has yet to get the rows
        self.known = list(self.reasons)  # the reasons that the state has

    def finish(self, row: int, reason: str) -> None:
        self.reasons[row] = self.reasons[row] or reason

    @property
    def ended(self) -> bool:
        return all(self.reasons)

    def __iter__(self) -> Iterator[list[int | None]]:
        arriving, read = Arriving(), 0
        try:
            while read < self.max_new_tokens:
                while self._may_begin(len(arriving), self.max_new_tokens - read):
                    with evaluating(self.modules):
                        self._begin_step()
                    arriving.push(self.state.chosen)
                chosen: list[int | None] = [
                    None if reason else token for token, reason in zip(arriving.pop(), self.reasons, strict=True)
                ]
                read += 1
                self.read += 1
                if NOT_FINITE in chosen:
                    refuse_output(self.model, f"the logits of token {read}")
                for i, token in enumerate(chosen):
                    if token is not None:
                        self.rows[i].append(token)
                        if token in self.ends:
                            self.finish(i, "end")
                        elif read == self.max_new_tokens:
                            self.finish(i, "length")
                yield chosen
                self._make_room()
                if self.ended:
                    return
        finally:
            self._give_back(unread=len(arriving) > 0)

    def _may_begin(self, ahead: int, left: int) -> bool:
        """Whether another step can begin before the tokens of the `ahead` latest ones are read; one always can."""
        if ahead == 0:
            return True
        if ahead > self.behind or ahead >= left:
            return False
        lengths = [len(row) + ahead for row, reason in zip(self.rows, self.reasons, strict=True) if not reason]
        # before a row slides all tokens are read; a row that may not slide ends by itself when the context is full
        return bool(lengths) and (max(lengths) if self.slide else min(lengths)) <= self.context

    def allowed(self, logits: Float[Tensor, "... V"]) -> Float[Tensor, "... v"]:
        """The logits of tokens that may be generated."""
        return self.state.allowed(logits)

    def _make_room(self) -> None:
        """A row whose context is full ends, or slides: its older half is dropped and the rest prefilled again."""
        for i, row in enumerate(self.rows):
            if len(row) > self.context and not self.reasons[i]:
                if not self.slide:
                    self.finish(i, "context")
                else:
                    del row[: len(row) - max(1, self.context // 2)]
                    self.cache, self.fresh = None, True

    @torch.no_grad()
    def _begin_step(self) -> None:
        """Compute the next token of each row, without waiting for it."""
        logits = self.prefill() if self.cache is None else None
        if self.fresh:
            self.state.begin(self.rows, [reason is not None for reason in self.reasons])
            self.known, self.fresh = list(self.reasons), False
            self._begin_random()
        elif self.sampling.temperature > 0 and self.taken % CHUNK == 0:
            self.state.draw(self.random)
        for i, (reason, known) in enumerate(zip(self.reasons, self.known, strict=True)):
            if reason and not known:  # end tokens and a full context the device finds itself, stop strings it does not
                self.state.active[i].fill_(False)
                self.known[i] = reason
        self.taken += 1
        if logits is not None:
            self.state.take(logits)
        elif self.step is not None:
            self._take_static(self.step)
        else:
            # where no row has ended the cache knows the next positions itself
            span = self.state.span() if any(self.reasons) else None
            self.state.take(self.model(self.state.tokens, span=span, cache=self.cache, last=True)[:, -1])

    def _begin_random(self) -> None:
        """The random numbers of the next step: the state may have been another generation's, and its steps unread."""
        self.taken = self.read
        if self.sampling.temperature > 0:
            self.random = [torch.Generator().manual_seed(seed) for seed in self.seeds]
            for _ in range(self.taken // CHUNK + 1):
                self.state.draw(self.random)
            self.state.turn.fill_(self.taken % CHUNK)

    def prefill(self) -> Float[Tensor, "B V"]:
        """Read every row at once, shorter ones padded on the right."""
        rows = [row[-self.context :] for row in self.rows]
        longest = max(map(len, rows))
        if self.cached:
            self.cache = self._new_cache(longest)
        padded = None if self.step is None or self.given else self.step.padded_length(longest)
        length = padded or longest
        pads = [length - len(row) for row in rows]
        tokens = self._tensor([row + [0] * pad for pad, row in zip(pads, rows, strict=True)])
        if not any(pads) and not padded:
            logits = self.model(tokens, cache=self.cache, last=True, **self.given)[:, -1]
        else:
            index = self._tensor([[*range(length - pad), *[NOWHERE] * pad] for pad in pads])
            last = self._tensor([length - pad - 1 for pad in pads])
            if self.step is not None and padded:
                return self.step.prefill(self.model, tokens, index, last, longest)
            logits = self.model(tokens, span=Span.at(index), cache=self.cache, last=last, **self.given)[:, -1]
        if self.step is not None:
            self.step.hold_memory()
        return logits

    def cache_length(self, longest: int) -> int:
        """The tokens a row needs room for, after prompts of which the longest has so many."""
        length = min(longest + self.max_new_tokens, self.context)
        # few lengths, so that a later generation finds the same one
        return bucket_of(length, self.context) if self.static else length

    def _new_cache(self, longest: int) -> Any:
        length = self.cache_length(longest)
        if not self.static:
            return self.model.new_cache(len(self.rows), length)
        if self.step is None:
            self.step = borrow(self.model, self.state, length, self.compile)
        if self.step is None:
            compiled = self.compile or (self._steps() >= COMPILE_FROM and find_spec("triton") is not None)
            cache, kernel = self.model.new_cache(len(self.rows), length), None
            if not compiled:
                kernel = persistent_step(self.model, cache, self.state.tokens, self.state.active, self.notify)
            self.step = StaticStep(self.state, cache, length, compiled, kernel)
        self.state = self.step.state
        self.step.cache.reset()
        return self.step.cache

    def _steps(self) -> int:
        """How many steps there are at most."""
        room = self.context + 1 - min(map(len, self.rows), default=0)
        return self.max_new_tokens if self.slide else min(self.max_new_tokens, room)

    def _is_static(self, capture: bool | None, compile: bool) -> bool:
        """Whether steps have static shapes: where it was asked for, and where they are captured and outlast that."""
        if compile or capture is not None:
            return compile or bool(capture)
        if not self.cached or self.device.type != "cuda" or self._steps() < CAPTURE_FROM:
            return False
        if torch.is_autocast_enabled("cuda"):  # the weights it converts would be captured, and stay as they are
            return False
        # a hook would run at the capture only
        return not any(one._forward_hooks or one._forward_pre_hooks for one in self.model.modules())

    def _take_static(self, step: StaticStep) -> None:
        if self.notify and step.compiled and not step.prepared:
            self.notify("(compiling the decoder; this takes a minute or more)")
        before = step.startup
        step(self.model)
        spent = step.startup - before
        self.startup += spent
        if self.notify and spent > 1:
            self.notify(f"(preparing the decoder: {duration(spent)})")

    def _give_back(self, unread: bool) -> None:
        """Keep the captured step for a later generation; tokens that were never read are computed again."""
        if self.step is not None:
            keep(self.model, self.step)
            self.step = None
        elif not unread:
            return
        self.cache, self.fresh = None, True

    def _tensor(self, values: list[Any]) -> Tensor:
        return torch.tensor(values, device=self.device)
