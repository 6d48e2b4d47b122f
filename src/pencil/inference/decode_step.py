"""The decode step: the model on each row's newest token, then the choice of the next, in tensors that stay in place.

A step with static shapes is captured in a CUDA graph, one for each number of key slots, and replayed without Python. It
may be compiled before that.

A decode step stays on the device. `inference/decode_step.py`: tokens, lengths, which rows are active and the random
numbers are tensors that keep their addresses, and `DecodeState.take` chooses the next token there. Each row's random
numbers are drawn ahead on the CPU, from the same stream as one at a time, so a seed writes the same text on every
route. On CUDA a generation of 64 steps or more has static shapes: the step is captured in one graph for each bucket of
key slots (128, 256, 512, …), and compiled before that if asked for. The latest step of a model is kept for the next
generation of the same sizes, as long as its weights are where they were. A prompt of up to 64 tokens is padded to a
power of two, and from the second generation on its prefill is replayed too, since Python takes longer to launch it than
the device to run it. The host reads tokens up to eight steps behind; what was computed after a stop string is dropped.
End tokens and a full context are found on the device. Logits that are not finite are a number below zero in the place
of a token, so the host learns of them without waiting, and names the tensor of the weights that is not finite. Outside
CUDA and for short texts a step is eager, with exact lengths and no mask where no row is padded.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary, ref

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..config import UserError
from ..core.cache import Cache, Memory
from ..core.embed import Tokens
from ..core.masks import NOWHERE
from ..core.span import Span
from ..device import total_memory
from .cuda_graph import Captured, capture
from .persistent import persistent_step
from .sampling import Sampling, choose

CHUNK = 256  # random numbers drawn for a row at a time
MIN_COMPILED_STEPS = 150_000  # from which compiling pays: for GPT-2 and 32 rows it takes 21 s and saves 0.15 ms a step
MIN_BUCKET_SLOTS = 128  # key slots of the smallest bucket
MAX_IDLE_SHARE = 1 / 8  # of the device's memory: the largest cache that stays allocated for a later generation
MAX_CAPTURED_PROMPT = 64  # tokens; a longer prefill takes the device longer than Python takes to launch it
MAX_HEAD_WIDTH = 256  # channels of a head that the attention kernel takes
NO_TOKEN = -1  # the choice of a row that has ended


class DecodeState:
    """What a step reads and writes. The tensors keep their addresses, so that a captured step finds them again."""

    def __init__(
        self,
        batch: int,
        sampling: Sampling,
        *,
        vocab: int,
        context: int,
        ends: Sequence[int] = (),
        never: Sequence[int] = (),
        device: torch.device | str = "cpu",
    ):
        # the seed is in the random numbers; without it, states of other seeds are alike
        self.sampling, self.vocab, self.context = replace(sampling, seed=0), vocab, context
        self.greedy = sampling.temperature == 0
        self.rules = (batch, self.sampling, vocab, context, tuple(ends), tuple(never), torch.device(device))
        self.tokens = torch.zeros(batch, 1, dtype=torch.long, device=device)  # the newest token of each row
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)  # of the rows, with it
        self.active = torch.ones(batch, dtype=torch.bool, device=device)
        # as `tokens`, but NO_TOKEN in a row that had ended
        self.chosen = torch.zeros(batch, dtype=torch.long, device=device)
        self.uniforms = torch.zeros(batch, CHUNK, dtype=torch.float64, device=device)
        self.turn = torch.zeros(1, dtype=torch.long, device=device)  # the next column of them
        self.ends = torch.tensor(list(ends), dtype=torch.long, device=device)
        self.never = torch.tensor(list(never), dtype=torch.long, device=device)
        penalized = sampling.repetition_penalty != 1
        self.seen = torch.zeros(batch, vocab, dtype=torch.bool, device=device) if penalized else None

    def begin(self, rows: Sequence[Sequence[int]], ended: Sequence[bool]) -> None:
        """The rows before their next token."""
        self.lengths.copy_(torch.tensor([len(row) for row in rows]))
        self.active.copy_(~torch.tensor(ended))
        if self.seen is not None:
            seen = torch.zeros(self.seen.shape, dtype=torch.bool)
            for i, row in enumerate(rows):
                seen[i, row] = True
            seen[:, self.ends.cpu()] = False  # the end token is no repetition
            self.seen.copy_(seen)

    def draw(self, random: Sequence[torch.Generator]) -> None:
        """The next random numbers of each row; the same ones as drawn one at a time."""
        drawn = torch.stack([torch.rand(CHUNK, generator=g, dtype=torch.float64) for g in random])
        if self.uniforms.is_cuda:  # from pinned memory nothing waits for the device
            drawn = drawn.pin_memory()
        self.uniforms.copy_(drawn, non_blocking=True)
        self.turn.zero_()

    def allowed(self, logits: Float[Tensor, "... V"]) -> Float[Tensor, "... v"]:
        """The logits of tokens that may be generated: a padded vocabulary has unused ids."""
        logits = logits[..., : self.vocab]
        return logits.index_fill(-1, self.never, -torch.inf) if len(self.never) else logits

    def span(self) -> Span:
        """Where the newest tokens are; that of a row that has ended is padding."""
        return Span.at(torch.where(self.active, self.lengths - 1, NOWHERE)[:, None])

    def take(self, logits: Float[Tensor, "B V"]) -> None:
        """Choose the next token of each row."""
        self.accept(self.choose(logits))

    def choose(self, logits: Float[Tensor, "B V"]) -> Int[Tensor, "B"]:
        uniforms = None if self.greedy else self.uniforms.index_select(1, self.turn)[:, 0]
        return choose(self.allowed(logits), self.sampling, uniforms, self.seen)

    def accept(self, token: Int[Tensor, "B"]) -> None:
        """Make these the newest tokens; a row may end with its own."""
        self.chosen.copy_(torch.where(self.active, token, NO_TOKEN))
        self.tokens.copy_(token[:, None].clamp(min=0))  # steps may follow before the host knows that there is none
        self.lengths.add_(self.active)
        if not self.greedy:
            self.turn.add_(1)
        if self.seen is not None:
            self.seen.scatter_(1, self.tokens, True)
        self.active.logical_and_(self.lengths <= self.context)  # else the newest token has no place in the context
        if len(self.ends):
            self.active.logical_and_((self.tokens != self.ends).all(1))


@runtime_checkable
class NewestTokens(Protocol):
    """The newest token of each row, and where it is."""

    tokens: Int[Tensor, "B 1"]

    def span(self) -> Span: ...


def newest_logits(model: Any, state: NewestTokens, cache: Cache) -> Float[Tensor, "B V"]:
    """The model on the newest tokens: nothing in it depends on a number that the host has to know."""
    inputs = dict(span=state.span(), cache=cache, last=True)
    if not _transposed(model, state.tokens):
        return model(state.tokens, **inputs)[:, -1]
    return (model.tokens.weight @ model.hidden(state.tokens, **inputs)[:, -1].mT).mT.contiguous()


def _transposed(model: Any, tokens: Tensor) -> bool:
    """Whether the logits are computed with a row for each word of the vocabulary.

    cuBLAS has only slow kernels for rows of odd length, such as those of GPT-2's logits; these have the batch's length.
    """
    table = getattr(model, "tokens", None)
    if not tokens.is_cuda or len(tokens) % 8 or type(table) is not Tokens or len(table.weight) % 8 == 0:
        return False
    weight, bias = model.output_matrix
    return weight is table.weight and bias is None


class StaticStep:
    """The decode step with static shapes, of one batch size and one length of the cache.

    On CUDA the first step of each bucket runs as it is, which compiles it or prepares the device's libraries; then it
    is captured for the later ones. On other devices nothing is captured. A `kernel` computes the logits in place of the
    model.
    """

    def __init__(
        self,
        state: DecodeState,
        cache: Cache,
        length: int,
        compiled: bool = False,
        kernel: Callable[[], Float[Tensor, "B V"]] | None = None,
    ):
        self.state, self.cache, self.length, self.compiled, self.kernel = state, cache, length, compiled, kernel
        # the choice is not compiled: a reduction over a vocabulary is then ten times slower than torch's own
        self.logits = torch.compile(newest_logits, dynamic=False) if compiled else newest_logits
        self.accept = torch.compile(DecodeState.accept, dynamic=False) if compiled else DecodeState.accept
        if kernel is not None:
            self.logits = lambda model, state, cache: kernel()
        self.kernels = row_kernels(cache.store)
        self.memory: Memory | None = None
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.prefills: dict[int, Captured] = {}  # by the length that prompts are padded to
        self.prepared: set[int] = set()
        self.pool = torch.cuda.graph_pool_handle() if state.tokens.is_cuda else None
        self.startup = 0.0  # seconds for compiling and capturing
        self.key: Any = None  # what it was captured with, once it is idle

    def padded_length(self, longest: int) -> int | None:
        """The length that prompts are padded to, so that their prefill is captured; None where it is not."""
        length = max(16, 1 << (longest - 1).bit_length())
        return length if self.cache.store.is_cuda and length <= min(MAX_CAPTURED_PROMPT, self.cache.length) else None

    def prefill(
        self, model: Any, tokens: Int[Tensor, "B T"], index: Int[Tensor, "B T"], last: Int[Tensor, "B"], longest: int
    ) -> Float[Tensor, "B V"]:
        """The logits after prompts that are padded; captured at the second call of a length."""
        # a step does not keep its model alive, nor itself: its graphs are freed with the last reference to it
        length, model_reference, cache = tokens.shape[1], ref(model), self.cache
        if length not in self.prefills:

            def read(tokens: Tensor, index: Tensor, last: Tensor) -> Tensor:
                alive: Any = model_reference()
                return alive(tokens, span=Span.at(index), cache=cache, last=last)[:, -1]

            self.prefills[length] = Captured(read)
        logits = self.prefills[length](tokens, index, last)
        self.cache.filled, self.cache.even = longest, False  # a replay runs no Python
        return logits

    def fix_memory(self) -> None:
        """After a prefill: its source's keys and values, moved to where a captured step reads them, if they fit."""
        new, old = self.cache.memory, self.memory
        if new is not None and old is not None and _copied(new, old):
            self.cache.memory = old
        elif new is not old:
            self.memory = new
            self.graphs.clear()
            self.prepared.clear()

    def __call__(self, model: Any) -> None:
        cache = self.cache
        # the kernel reads no slot beyond a row's last token
        bucket = cache.length if self.kernel else bucket_of(min(cache.filled + 1, cache.length), cache.length)
        if cache.bucket != bucket:
            cache.fix(bucket, *self.kernels)
        if cache.filled < cache.length:  # else only rows go on that are shorter than the fullest
            cache.advance(1)
        if bucket in self.graphs:
            self.graphs[bucket].replay()
            return
        began = time.perf_counter()
        if self.compiled:
            import torch._dynamo.config as dynamo
            from torch._dynamo.exc import TorchDynamoException

            try:
                with dynamo.patch(recompile_limit=64):  # one compilation for each bucket is meant
                    self._prepare(model, bucket)
            except TorchDynamoException as error:
                raise UserError(
                    f"the decode step cannot be compiled here: {str(error).strip().splitlines()[0]}; leave compile out"
                ) from error
        else:
            self._prepare(model, bucket)
        if bucket not in self.prepared:
            self.prepared.add(bucket)
            self.startup += time.perf_counter() - began

    def _prepare(self, model: Any, bucket: int) -> None:
        """Take the step, and on CUDA capture it for the next ones."""
        if self.pool is None:
            self._decode(model)
            return
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            self._decode(model)
        here.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with capture(graph, self.pool):
            self._decode(model)
        self.graphs[bucket] = graph

    def _decode(self, model: Any) -> None:
        self.accept(self.state, self.state.choose(self.logits(model, self.state, self.cache)))


def row_kernels(store: Tensor) -> tuple[Callable[..., Any], ...]:
    """The kernels that attend to the filled slots and write them, where there is Triton and the dtype is one for it."""
    dtypes = torch.bfloat16, torch.float16, torch.float32
    if (
        not store.is_cuda
        or store.dtype not in dtypes
        or store.shape[-1] > MAX_HEAD_WIDTH
        or find_spec("triton") is None
    ):
        return ()
    from .decode_attention import attend_rows, write_rows

    return attend_rows, write_rows


def bucket_of(slots: int, most: int) -> int:
    """The smallest bucket with so many key slots: a power of two, or the whole cache."""
    return min(most, max(MIN_BUCKET_SLOTS, 1 << (slots - 1).bit_length()))


def _copied(new: Memory, old: Memory) -> bool:
    """Copy a memory into another, where it has the same shapes and the same mask."""
    pairs = [pair for both in zip(new.layers, old.layers, strict=True) for pair in zip(*both, strict=True)]
    pairs += [
        (getattr(new.span, name), getattr(old.span, name)) for name in ("index", "coords", "key_index", "key_coords")
    ]
    if new.span.start != old.span.start or any(a.shape != b.shape for a, b in pairs):
        return False
    for a, b in pairs:
        b.copy_(a)
    return True


# the latest step of each model, for a generation of the same sizes: it needs no start-up
idle_steps: WeakKeyDictionary[Any, StaticStep] = WeakKeyDictionary()


def static_step(
    model: Any,
    state: DecodeState,
    length: int,
    compile: bool,
    steps: int,
    notify: Callable[[str], None] | None = None,
) -> StaticStep:
    """The idle step of this model if it fits, for one user at a time; else a new one, whose state is this one.

    `compile`: it must be compiled; else it may be. `steps`: how many it will take.
    """
    idle = _idle_step(model, state, length, compile)
    if idle is not None:
        return idle
    compiled = compile or (steps >= MIN_COMPILED_STEPS and find_spec("triton") is not None)
    cache, kernel = model.new_cache(len(state.tokens), length), None
    if not compiled:
        kernel = persistent_step(model, cache, state.tokens, state.active, notify)
    return StaticStep(state, cache, length, compiled, kernel)


def _idle_step(model: Any, state: DecodeState, length: int, compile: bool) -> StaticStep | None:
    """The idle step, if it fits; one that does not is forgotten, and its memory is free."""
    step = idle_steps.pop(model, None)
    if step is None or step.length != length or step.compiled < compile or step.key != _key(model, state):
        return None
    return step


def release_step(model: Any, step: StaticStep) -> None:
    """Leave a step to the next generation of this model; its cache stays allocated, unless it is large."""
    if step.cache.nbytes > MAX_IDLE_SHARE * total_memory(step.cache.store.device):
        return
    if step.key is None:
        step.key = _key(model, step.state)
    idle_steps[model] = step


def idle_bytes(model: Any) -> int:
    """The bytes of the cache of the model's idle step."""
    return idle_steps[model].cache.nbytes if model in idle_steps else 0


def _key(model: Any, state: DecodeState) -> Any:
    """What a captured step depends on: its sizes and rules, and where the weights are."""
    weights = (*model.parameters(), *model.buffers())
    return state.rules, tuple((weight.data_ptr(), weight.dtype) for weight in weights)
