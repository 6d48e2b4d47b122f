"""decode: whole generations from a short prompt, greedy and with sampling, through the route that a user gets."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from ..cost.devices import Workload
from ..families.gpt import FAMILY
from ..inference.generation import Generation
from ..inference.sampling import Sampling
from .equality import Equality, compare
from .gpt_fast import FastDecoder
from .models import make, work_of
from .plan import Plan, Row
from .timing import OURS, Contender, run_case

JOB = "decode"
PROMPT = 8
RULES = {"greedy": Sampling(0), "top-k 50, temperature 0.8": Sampling(0.8, top_k=50)}
QUICK = dict(vocab=4099, context=128)


def run(plan: Plan) -> Iterator[Row]:
    presets = [plan.preset] if plan.preset else ["nanogpt"] if plan.quick else ["gpt2", "gpt2-xl"][: 1 + plan.cuda]
    batches = [plan.batch] if plan.batch else [1, 4] if plan.quick else [1, 32][: 1 + plan.cuda]
    tokens = plan.tokens or (32 if plan.quick else 200 if plan.cuda else 64)
    for preset in presets:
        values = dict(FAMILY.preset_values(preset))
        config = FAMILY.configure(preset, **({} if "vocab" in values else QUICK), dropout=0.0)
        _check_length(config, tokens)
        yield from _of_model(plan, preset, config, batches, tokens, llama=False)
        if "gpt-fast" in plan.peers.modules:
            yield from _of_model(plan, f"{preset} with LLaMA's blocks", as_llama(config), batches, tokens, llama=True)


def _check_length(config: Any, tokens: int) -> None:
    if PROMPT + tokens > config.context:
        raise UserError(
            f"--tokens {tokens} after a prompt of {PROMPT} do not fit the context of {config.context}; "
            f"at most {config.context - PROMPT} do"
        )


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


def mean_work(config: Any, batch: int, tokens: int, plan: Plan) -> Workload:
    """What a whole generation costs: the decode step of its middle length, as often as there are tokens."""
    one = work_of(FAMILY, config, batch, plan, PROMPT + tokens // 2)[JOB]
    return Workload(tokens * one.flops, tokens * one.bytes, batch * tokens)


def _of_model(plan: Plan, name: str, config: Any, batches: list[int], tokens: int, llama: bool) -> Iterator[Row]:
    ours = make(FAMILY, config, plan.device)
    given = torch.randint(config.vocab, (2, min(64, config.context)), device=plan.device)
    makers: dict[str, Callable[[Any], Any]] = (
        {"gpt-fast": plan.peers.gpt_fast} if llama else {"transformers": plan.peers.transformers_gpt}
    )
    peers = {}
    for who, maker in makers.items():
        try:
            theirs = maker(ours)
        except UserError as error:
            plan.notify(f"{who} is left out: {error}")
            continue
        if theirs is not None:
            peers[who] = FastDecoder(theirs, plan) if llama else theirs
    ask = {who: partial(_logits, theirs, given) for who, theirs in peers.items()}
    sizes = config.width, config.depth
    equality = {who: compare(lambda: ours(given), ask[who], torch.float32, *sizes) for who in peers}
    if plan.dtype != torch.float32:
        for model in (ours, *peers.values()):
            model.to(plan.dtype)
        for who in peers:
            equality[who] |= compare(lambda: ours(given), ask[who], plan.dtype, *sizes)
    for batch in batches:
        prompts = torch.randint(config.vocab, (batch, PROMPT), generator=torch.Generator().manual_seed(1))
        for rule, sampling in RULES.items():
            case = f"{name}, {batch} sequence{'s' * (batch > 1)}, {rule}"
            contenders = [
                Contender(OURS, partial(generate, ours, prompts.tolist(), tokens, sampling, plan.compile), [ours]),
                *_peers(plan, peers, equality, prompts.to(plan.device), tokens, sampling),
            ]
            found: dict[str, Any] = {}
            for one in contenders:
                one.call = partial(_record, found, one.name, one.call)
            work = mean_work(config, batch, tokens, plan)
            rows = run_case(plan, JOB, case, "tokens/s", batch * tokens, contenders, work)
            if sampling.temperature == 0:
                for row in rows[1:]:
                    row |= _same_tokens(found[OURS], found[row["who"]])
            yield from rows


def _logits(theirs: Any, tokens: Tensor) -> Tensor:
    return theirs.logits(tokens) if isinstance(theirs, FastDecoder) else theirs(input_ids=tokens).logits


def _peers(
    plan: Plan, peers: dict[str, Any], equality: dict[str, Equality], prompts: Tensor, tokens: int, sampling: Sampling
) -> Iterator[Contender]:
    """Their own ways to generate: on CUDA, transformers' with and without a static cache and compilation."""
    for who, theirs in peers.items():
        if isinstance(theirs, FastDecoder):
            yield Contender(who, partial(theirs.generate, prompts, tokens, sampling), [theirs.model], equality[who])
            continue
        rule = {"do_sample": False}
        if sampling.temperature:
            rule = {"do_sample": True, "top_k": sampling.top_k, "temperature": sampling.temperature}
        call = partial(_generate, theirs, prompts, tokens, **rule)
        yield Contender(who, call, [theirs], equality[who])
        if plan.cuda:
            static = partial(call, cache_implementation="static")  # which compiles the decode step too
            yield Contender(f"{who}, static cache, compiled", static, [theirs], equality[who])


def _generate(theirs: Any, prompts: Tensor, tokens: int, **options: Any) -> list[list[int]]:
    found = theirs.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        pad_token_id=0,
        eos_token_id=None,
        **options,
    )
    return found[:, prompts.shape[1] :].tolist()


def _record(found: dict[str, Any], name: str, call: Callable[[], Any]) -> None:
    found[name] = call()


def _same_tokens(ours: list[list[int]], theirs: list[list[int]]) -> dict[str, int]:
    """How many of the greedy tokens are ours, counted to the first that differs: rounding decides near ties."""
    pairs = [list(zip(a, b, strict=True)) for a, b in zip(ours, theirs, strict=True)]
    same = sum(next((i for i, (a, b) in enumerate(row) if a != b), len(row)) for row in pairs)
    return {"same_tokens": same, "of_tokens": sum(map(len, pairs))}
