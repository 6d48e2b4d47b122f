"""The decode loop: the prompts' pass, the cache, the steps after it, and when rows end, for a batch of sequences."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..config import UserError
from ..core.layers import evaluating
from ..core.masks import NOWHERE
from ..core.span import Span
from ..device import free_memory
from ..models.build import refuse_output
from ..progress import duration
from .decode_step import CHUNK, DecodeState, StaticStep, bucket_of, idle_bytes, release_step, static_step
from .sampling import NOT_FINITE, Sampling

STEPS_AHEAD = 8  # steps that the device may be ahead of the tokens read from it
MIN_CAPTURED_STEPS = 64  # steps from which capturing pays: it takes about as long as some ten eager steps


class Generation:
    """A batch of sequences generated together: iterate for each step's new tokens (None in a row that has ended).

    It owns the decode loop. Sampling and greedy decoding iterate over it; `text_stream` makes text of its tokens and
    ends rows with `finish`; beam search chooses tokens itself, and calls `branch` and `extend`.

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
        self.behind = 0 if not self.static else STEPS_AHEAD if self.device.type == "cuda" else int(compile)
        if cached:
            check_cache(model, len(self.rows), self.cache_length(), idle_bytes(model) if self.static else 0)
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
        self.cache: Any = None
        self.step: StaticStep | None = None  # where steps have static shapes; `state` and `cache` are then the step's
        self.startup = 0.0
        self.read = 0  # steps whose tokens were read
        self.unread: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()  # tokens of the steps after these
        self.restart = True  # whether the next step reads whole rows: the first ones, and after a row slid
        self.just_ended: list[int] = []  # rows of which the state has yet to hear that they ended

    def finish(self, row: int, reason: str) -> None:
        """End a row: its next tokens, also those already computed, are None."""
        self.reasons[row] = reason
        self.just_ended.append(row)

    @property
    def ended(self) -> bool:
        return all(self.reasons)

    def __iter__(self) -> Iterator[list[int | None]]:
        try:
            while self.read < self.max_new_tokens:
                while self._may_begin_step():
                    with evaluating(self.modules):
                        self._begin_step()
                    self.unread.append(_to_host(self.state.chosen))
                yield self._read_step()
                self._leave_full_contexts()
                if self.ended:
                    return
        finally:
            self.release()

    def _may_begin_step(self) -> bool:
        """Whether another step can begin before the tokens of the latest ones are read; with none unread it can."""
        ahead = len(self.unread)
        if ahead == 0:
            return True
        if ahead > self.behind or ahead >= self.max_new_tokens - self.read:
            return False
        lengths = [len(row) + ahead for row, reason in zip(self.rows, self.reasons, strict=True) if not reason]
        # before a row slides all tokens are read; a row that may not slide ends by itself when the context is full
        return bool(lengths) and (max(lengths) if self.slide else min(lengths)) <= self.context

    @torch.no_grad()
    def _begin_step(self) -> None:
        """Compute the next token of each row, without waiting for it."""
        logits = self.prefill() if self.restart or not self.cached else None
        begun = self.read + len(self.unread)
        sampled = self.sampling.temperature > 0
        if self.restart:
            self.state.begin(self.rows, [reason is not None for reason in self.reasons])
            self.restart = False
            if sampled:  # the state may have been another generation's, and steps may have been left unread
                self.random = [torch.Generator().manual_seed(seed) for seed in self.seeds]
                for _ in range(begun // CHUNK + 1):
                    self.state.draw(self.random)
                self.state.turn.fill_(begun % CHUNK)
        elif sampled and begun % CHUNK == 0:
            self.state.draw(self.random)
        for row in self.just_ended:  # end tokens and a full context the device finds itself, stop strings it does not
            self.state.active[row].fill_(False)
        self.just_ended.clear()
        if logits is not None:
            self.state.take(logits)
        elif self.step is not None:
            self._take_static(self.step)
        else:
            # where no row has ended the cache knows the next positions itself
            self.state.take(self._logits(self.state.tokens, self.state.span() if any(self.reasons) else None))

    def _take_static(self, step: StaticStep) -> None:
        if self.notify and step.compiled and not step.prepared:
            self.notify("(compiling the decoder; this takes a minute or more)")
        before = step.startup
        step(self.model)
        spent = step.startup - before
        self.startup += spent
        if self.notify and spent > 1:
            self.notify(f"(preparing the decoder: {duration(spent)})")

    def _logits(self, tokens: Tensor, span: Span | None) -> Float[Tensor, "B V"]:
        return self.model(tokens, span=span, cache=self.cache, last=True)[:, -1]

    def allowed(self, logits: Float[Tensor, "... V"]) -> Float[Tensor, "... v"]:
        """The logits of tokens that may be generated."""
        return self.state.allowed(logits)

    def _read_step(self) -> list[int | None]:
        """The tokens of the earliest step that was not read, once they have arrived; a row may end with its own."""
        tokens, arrival = self.unread.popleft()
        if arrival is not None:
            arrival.synchronize()
        chosen = [None if reason else token for token, reason in zip(tokens.tolist(), self.reasons, strict=True)]
        self.read += 1
        if NOT_FINITE in chosen:
            refuse_output(self.model, f"the logits of token {self.read}")
        for i, token in enumerate(chosen):
            if token is not None:
                self.rows[i].append(token)
                if token in self.ends:
                    self.finish(i, "end")
                elif self.read == self.max_new_tokens:
                    self.finish(i, "length")
        return chosen

    def _leave_full_contexts(self) -> None:
        """A row whose context is full ends, or slides: its older half is dropped and the rest prefilled again."""
        for i, row in enumerate(self.rows):
            if len(row) > self.context and not self.reasons[i]:
                if not self.slide:
                    self.finish(i, "context")
                else:
                    del row[: len(row) - max(1, self.context // 2)]
                    self.cache, self.restart = None, True

    def release(self) -> None:
        """Leave the captured step to a later generation; tokens that were never read are computed again."""
        if self.step is not None:
            release_step(self.model, self.step)
            self.step = None
        elif not self.unread:
            return
        self.unread.clear()
        self.cache, self.restart = None, True

    def prefill(self) -> Float[Tensor, "B V"]:
        """Read every row at once, shorter ones padded on the right."""
        rows = [row[-self.context :] for row in self.rows]
        longest = max(map(len, rows))
        if self.cached:
            self.cache = self._new_cache()
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
            self.step.fix_memory()
        return logits

    def _new_cache(self) -> Any:
        length = self.cache_length()
        if not self.static:
            return self.model.new_cache(len(self.rows), length)
        if self.step is None:
            self.step = static_step(self.model, self.state, length, self.compile, self._max_steps(), self.notify)
        self.state = self.step.state
        self.step.cache.reset()
        return self.step.cache

    def cache_length(self) -> int:
        """The most tokens that a row has in the cache from here on."""
        longest = min(max(map(len, self.rows), default=1), self.context)
        length = min(longest + self.max_new_tokens, self.context)
        # few lengths, so that a later generation finds the same one
        return bucket_of(length, self.context) if self.static else length

    def _max_steps(self) -> int:
        steps = self.context + 1 - min(map(len, self.rows), default=0)
        return self.max_new_tokens if self.slide else min(self.max_new_tokens, steps)

    def _is_static(self, capture: bool | None, compile: bool) -> bool:
        """Whether steps have static shapes: where it was asked for, and where they are captured and outlast that."""
        if compile or capture is not None:
            return compile or bool(capture)
        if not self.cached or self.device.type != "cuda" or self._max_steps() < MIN_CAPTURED_STEPS:
            return False
        if torch.is_autocast_enabled("cuda"):  # the weights it converts would be captured, and stay as they are
            return False
        # a hook would run at the capture only
        return not any(module._forward_hooks or module._forward_pre_hooks for module in self.modules)

    @torch.no_grad()
    def branch(self, count: int) -> Float[Tensor, "B V"]:
        """Read the prompts, then continue each of them in `count` rows; the logits of these."""
        check_cache(self.model, len(self.rows) * count, self.cache_length())
        logits = self.prefill()
        prompts = torch.arange(len(self.rows), device=self.device).repeat_interleave(count)
        self.cache.pick(prompts)
        self.rows = [list(row) for row in self.rows for _ in range(count)]
        return logits[prompts]

    @torch.no_grad()
    def extend(self, parents: Sequence[int], tokens: Sequence[int | None]) -> Float[Tensor, "B V"]:
        """Make row i a copy of row parents[i] with one token more, and return the logits after it.

        A row without a token is padding: it stays, so that the batch and the cache's storage stay the same. Rows are
        copied within those of one prompt, so each source stays where it is.
        """
        self.cache.pick(self._tensor(parents), sources=False)
        self.rows = [
            self.rows[parent] + ([] if token is None else [token])
            for parent, token in zip(parents, tokens, strict=True)
        ]
        index = [NOWHERE if token is None else len(row) - 1 for row, token in zip(self.rows, tokens, strict=True)]
        span = Span.at(self._tensor(index)[:, None]) if None in tokens else None
        return self._logits(self._tensor([[token or 0] for token in tokens]), span)

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, device=self.device)


def _to_host(tokens: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A copy of the tokens on its way to the host, and the event of its arrival."""
    if not tokens.is_cuda:
        return tokens.clone(), None
    copy, arrival = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True), torch.cuda.Event()
    copy.copy_(tokens, non_blocking=True)
    arrival.record()
    return copy, arrival


def check_cache(model: Any, batch: int, length: int, spare: int = 0) -> None:
    """Refuse a cache that does not fit, and say what would; `spare` bytes in use will be free by then."""
    smallest = model.new_cache(1, 1)
    slot, before = smallest.nbytes // smallest.length, smallest.length - 1  # an image is before the text
    device = smallest.store.device
    row, free = (before + length + 1) * slot, free_memory(device) + spare
    if batch * row <= free:
        return
    rows, tokens = free // row, free // (batch * slot) - before - 1
    fits = [f"{rows:,} such sequence{'s' * (rows > 1)}"] * (rows > 0)
    fits += [f"{batch:,} of {tokens:,} tokens"] * (tokens > 0 and batch > 1)
    fits += [f"{tokens:,} tokens"] * (tokens > 0 and batch == 1)
    place = f"{free / 1e9:,.3g} GB are free on the GPU" if device.type == "cuda" else f"there are {free / 1e9:,.3g} GB"
    raise UserError(
        f"the KV cache of {batch:,} sequence{'s' * (batch > 1)} of {length:,} tokens needs {batch * row / 1e9:,.3g} GB "
        f"and {place}; " + (f"{' or '.join(fits)} would fit" if fits else "no cache of this model fits")
    )
