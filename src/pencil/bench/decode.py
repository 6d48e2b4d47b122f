"""decode: whole generations from a short prompt, greedy and with sampling, through the route that a user gets."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from inspect import signature
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..config import UserError
from ..cost.measure import synchronize
from ..cost.memory import BYTES, kv_cache
from ..families.gpt import FAMILY
from ..inference.generation import Generation
from ..inference.sampling import Sampling
from .models import Pair, make, work_of
from .plan import Plan, Row
from .timing import OURS, Contender, run_case, weight_bytes

JOB = "decode"
PROMPT = 8
RULES = {"greedy": Sampling(0), "top-k 50, temperature 0.8": Sampling(0.8, top_k=50)}
QUICK = dict(vocab=4099, context=128)
STEPS = {"cuda": 256}  # decode steps that are timed together: enough to be captured on CUDA
FEW_STEPS = 16  # elsewhere
# sizes of the model, the batch and the tokens before the timed ones, and the values of each that are tried
SMALL = dict(width=384, depth=6, heads=6, vocab=65)
LARGE = dict(width=1024, depth=12, heads=16, vocab=50304)
HEAD = 64  # channels of a head where the width is scanned
VALUES = {
    "context": ([64, 128, 256, 512, 1024, 2048, 4096], [256, 512, 1024, 2048, 4096, 8192, 16384]),
    "batch": ([1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16, 32, 64, 128]),
    "depth": ([2, 4, 8, 16, 32], [4, 8, 16, 32, 64]),
    "width": ([128, 256, 512, 1024], [256, 512, 1024, 2048, 4096]),
}


def run(plan: Plan) -> Iterator[Row]:
    presets = [plan.preset] if plan.preset else ["nanogpt"] if plan.quick else ["gpt2", "gpt2-xl"][: 1 + plan.cuda]
    batches = [plan.batch] if plan.batch else [1, 4] if plan.quick else [1, 32][: 1 + plan.cuda]
    tokens = plan.tokens or (32 if plan.quick else 200 if plan.cuda else 64)
    for preset in presets:
        values = dict(FAMILY.preset_values(preset))
        config = FAMILY.configure(preset, **({} if "vocab" in values else QUICK), dropout=0.0)
        if PROMPT + tokens > config.context:
            raise UserError(
                f"--tokens {tokens} after a prompt of {PROMPT} do not fit the context of {config.context}; "
                f"at most {config.context - PROMPT} do"
            )
        yield from _of_model(plan, preset, config, batches, tokens, llama=False)
        if "gpt-fast" in plan.peers.modules:
            yield from _of_model(plan, f"{preset} with LLaMA's blocks", as_llama(config), batches, tokens, llama=True)


def as_llama(config: Any) -> Any:
    """A model of the same width, depth and heads with LLaMA's parts, which gpt-fast has."""
    hidden = -(-8 * config.width // 3 // 64) * 64
    return FAMILY.configure(
        None,
        vocab=config.vocab,
        context=config.context,
        width=config.width,
        depth=config.depth,
        heads=config.heads,
        hidden=hidden,
        norm="rms",
        activation="swiglu",
        positions="rope",
        rope_pairs="adjacent",
        tie_embeddings=False,
    )


def generate(
    model: Any, prompts: list[list[int]], tokens: int, sampling: Sampling, compiled: bool = False
) -> list[list[int]]:
    """The new tokens of each prompt, by the public route."""
    steps = list(Generation(model, prompts, tokens, sampling, compile=compiled))
    return [[step[row] for step in steps if step[row] is not None] for row in range(len(prompts))]  # pyright: ignore


def _of_model(plan: Plan, name: str, config: Any, batches: list[int], tokens: int, llama: bool) -> Iterator[Row]:
    ours = make(FAMILY, config, plan.device)
    inputs = (torch.randint(config.vocab, (2, min(64, config.context)), device=plan.device),)
    if llama:
        pair = Pair(
            plan,
            ours,
            "gpt-fast",
            lambda ours: FastDecoder(plan.peers.gpt_fast(ours), plan),
            FastDecoder.logits,
            inputs,
        )
    else:
        pair = Pair(
            plan,
            ours,
            "transformers",
            plan.peers.transformers_gpt,
            lambda theirs, tokens: theirs(input_ids=tokens).logits,
            inputs,
        )
    pair.to_inference_dtype()
    for batch in batches:
        prompts = torch.randint(config.vocab, (batch, PROMPT), generator=torch.Generator().manual_seed(1))
        for rule, sampling in RULES.items():
            case = f"{name}, {batch} sequence{'s' * (batch > 1)}, {rule}"
            contenders = [
                Contender(OURS, partial(generate, ours, prompts.tolist(), tokens, sampling, plan.compile), [ours]),
                *_peers(plan, pair, prompts.to(plan.device), tokens, sampling),
            ]
            generated: dict[str, Any] = {}
            for contender in contenders:
                contender.call = partial(_record, generated, contender.name, contender.call)
            # a whole generation: the decode step of its middle length, as often as there are tokens
            work = work_of(FAMILY, config, batch, plan, PROMPT + tokens // 2)[JOB].repeated(tokens)
            rows = run_case(plan, JOB, case, "tokens/s", batch * tokens, contenders, work)
            if sampling.temperature == 0:
                for row in rows[1:]:
                    row |= _same_tokens(generated[OURS], generated[row["who"]])
            yield from rows


def _peers(plan: Plan, pair: Pair, prompts: Tensor, tokens: int, sampling: Sampling) -> Iterator[Contender]:
    """Their own ways to generate: on CUDA, transformers' with and without a static cache and compilation."""
    for who, theirs in pair.theirs.items():
        if isinstance(theirs, FastDecoder):
            yield Contender(who, partial(theirs.generate, prompts, tokens, sampling), [theirs.model], pair.equality)
            continue
        rule = {"do_sample": False}
        if sampling.temperature:
            rule = {"do_sample": True, "top_k": sampling.top_k, "temperature": sampling.temperature}
        call = partial(_generate, theirs, prompts, tokens, **rule)
        yield Contender(who, call, [theirs], pair.equality)
        if plan.cuda:
            static = partial(call, cache_implementation="static")  # which compiles the decode step too
            yield Contender(f"{who}, static cache, compiled", static, [theirs], pair.equality)


def _generate(theirs: Any, prompts: Tensor, tokens: int, **options: Any) -> list[list[int]]:
    rows = theirs.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        pad_token_id=0,
        eos_token_id=None,
        **options,
    )
    return rows[:, prompts.shape[1] :].tolist()


def _record(results: dict[str, Any], name: str, call: Callable[[], Any]) -> None:
    results[name] = call()


def _same_tokens(ours: list[list[int]], theirs: list[list[int]]) -> dict[str, int]:
    """How many of the greedy tokens are ours, counted to the first that differs: rounding decides near ties."""
    pairs = [list(zip(a, b, strict=True)) for a, b in zip(ours, theirs, strict=True)]
    same = sum(next((i for i, (a, b) in enumerate(row) if a != b), len(row)) for row in pairs)
    return {"same_tokens": same, "of_tokens": sum(map(len, pairs))}


def _sees(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


class FastDecoder:
    """gpt-fast's Transformer, and the loop around it as in its generate.py.

    The cache is static, the decode step compiled, and the tokens stay on the device.
    """

    def __init__(self, model: Any, plan: Plan):
        self.model, self.plan = model, plan
        self.masked = "mask" in signature(model.forward).parameters  # as it is since 2024; before, it had its own
        self.mask: Any = None
        self.step = torch.compile(self._next, mode="reduce-overhead", fullgraph=True) if plan.cuda else self._next

    def to(self, dtype: torch.dtype) -> None:
        self.model.to(dtype)

    def _new_caches(self, batch: int, length: int) -> None:
        """New caches, in the dtype that the model has now."""
        self.model.max_seq_length = self.model.max_batch_size = -1
        with self.plan.device:
            self.model.setup_caches(max_batch_size=batch, max_seq_length=length)
        self.mask = self._causal(self.model.max_seq_length) if self.masked else None

    def _causal(self, queries: int) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(_sees, 1, 1, queries, self.model.max_seq_length, device=str(self.plan.device))

    def logits(self, tokens: Tensor) -> Tensor:
        self._new_caches(*tokens.shape)
        return self._ask(tokens, torch.arange(tokens.shape[1], device=tokens.device))

    def _ask(self, tokens: Tensor, position: Tensor) -> Tensor:
        if not self.masked:
            return self.model(tokens, position)
        if len(position) > 1:
            return self.model(self._causal(len(position)), tokens, position)
        mask = self.mask[:, :, position // self.mask.BLOCK_SIZE[0]]
        mask.mask_mod, mask.seq_lengths = self.mask.mask_mod, (1, self.model.max_seq_length)
        return self.model(mask, tokens, position)

    def _next(self, tokens: Tensor, position: Tensor, temperature: Tensor | None, top_k: int | None) -> Tensor:
        """The next token of each row; without a temperature, the likeliest."""
        logits = self._ask(tokens, position)[:, -1]
        if temperature is None:
            return logits.argmax(-1, keepdim=True)
        logits = logits / temperature
        if top_k is not None:
            smallest = torch.topk(logits, top_k).values[:, -1:]
            logits = torch.where(logits < smallest, -torch.inf, logits)
        probabilities = torch.softmax(logits, -1)
        # a draw without waiting for the device: the largest p/e with exponential e
        return (probabilities / torch.empty_like(probabilities).exponential_(1)).argmax(-1, keepdim=True)

    @torch.no_grad()
    def generate(self, prompts: Tensor, tokens: int, sampling: Sampling) -> list[list[int]]:
        model, (batch, length) = self.model, prompts.shape
        if model.max_batch_size != batch or model.max_seq_length < length + tokens:
            self._new_caches(batch, length + tokens)
        # a tensor, since a Python number would be compiled in
        temperature = torch.tensor(sampling.temperature, device=prompts.device) if sampling.temperature else None
        rule = temperature, sampling.top_k
        steps = [self._next(prompts, torch.arange(length, device=prompts.device), *rule)]
        position = torch.tensor([length], device=prompts.device)
        # as in generate.py: the plain products are fused best by the compiler
        with sdpa_kernel(SDPBackend.MATH) if self.plan.cuda else nullcontext():
            for _ in range(tokens - 1):
                steps.append(self.step(steps[-1].clone(), position, *rule).clone())
                position += 1
        return torch.cat(steps, 1).tolist()


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """p of values ≈ c·sizes^p, by least squares of the logarithms."""
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(values, float))
    return float(np.polyfit(x, y, 1)[0])


def scan(plan: Plan, size: str) -> Iterator[Row]:
    """decode --scan: the time and memory of one decode step against one size.

    A row for each value of the size; the last has the fitted exponents.
    """
    values = VALUES[size][plan.cuda and not plan.quick]
    values = values[:4] if plan.quick else values
    rows = []
    for value in values:
        rows.append(_measure(plan, size, value))
        if value != values[-1]:
            yield rows[-1]
    exponents = {
        name: fit_exponent(values, [row[name] for row in rows]) for name in ("seconds", "memory_bytes") if len(rows) > 1
    }
    yield rows[-1] | {"exponents": exponents}


def _measure(plan: Plan, size: str, value: int) -> Row:
    settings: dict[str, Any] = dict(LARGE if plan.cuda and not plan.quick else SMALL)
    before, batch = 64, plan.batch or 1
    if size == "context":
        before = value
    elif size == "batch":
        batch = value
    else:
        settings[size] = value
    if size == "width":
        settings["heads"] = value // HEAD
    steps = STEPS.get(plan.device.type, FEW_STEPS)
    config = FAMILY.configure(None, **settings, context=before + steps + 1)
    model = make(FAMILY, config, plan.device).to(plan.dtype)
    prompts = torch.randint(config.vocab, (batch, before)).tolist()
    others = 0
    if plan.cuda:
        torch.cuda.reset_peak_memory_stats(plan.device)
        others = torch.cuda.memory_allocated(plan.device) - weight_bytes([model])
    times = [_seconds(plan, model, prompts, steps) for _ in range(plan.repeat + 1)][1:]
    if plan.cuda:
        memory, how = torch.cuda.max_memory_allocated(plan.device) - others, "measured"
    else:
        each = plan.dtype_name
        weights = BYTES[each] * sum(p.numel() for p in model.parameters())
        memory, how = weights + kv_cache(config, batch, config.context, each), "counted"
    middle = median(times)
    plan.notify(f"{JOB}: {size} {value:,}: {1e3 * middle:.2f} ms a step")
    return {
        "job": JOB,
        "case": f"{size} {value}",
        "who": OURS,
        "unit": "tokens/s",
        "rate": batch / middle,
        "low": batch / max(times),
        "high": batch / min(times),
        "seconds": middle,
        "scan": size,
        "value": value,
        "memory_bytes": memory,
        "memory": how,
    }


def _seconds(plan: Plan, model: Any, prompts: list[list[int]], steps: int) -> float:
    """Seconds of one decode step, without the prefill, which gives the first token."""
    tokens = iter(Generation(model, prompts, steps + 1, Sampling(0), compile=plan.compile))
    next(tokens)
    synchronize(plan.device)
    begun = time.perf_counter()
    for _ in tokens:
        pass
    synchronize(plan.device)
    return (time.perf_counter() - begun) / steps
