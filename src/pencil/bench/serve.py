"""serve: streams over HTTP from `pencil serve` in a process of its own, beside transformers' continuous batching.

The other library generates in this process, without HTTP, all prompts at once: its easiest case. The same prompts come
to the server at once, too; then from clients that ask again and again, and at random times at half of that rate.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..config import UserError
from ..data.tokenizers.tokenizer import ByteTokenizer
from ..families.gpt import FAMILY
from ..runs.run import Run
from .load import Reply, ask, closed_loop, latencies, open_loop, serving
from .models import Pair, make
from .plan import Plan, Row
from .timing import OURS

JOB = "serve"
PROMPTS = (5, 47)  # tokens of a prompt: the fewest and the most
ROUNDS = 3  # requests of each client
QUICK = dict(context=128)
PAGE = 32  # tokens of a block of its cache


def run(plan: Plan) -> Iterator[Row]:
    tokenizer = ByteTokenizer(ended=True)
    preset, clients = plan.preset or ("gpt2" if plan.cuda else "nanogpt"), plan.batch or (16 if plan.quick else 64)
    tokens = plan.tokens or (16 if plan.quick else 64)
    # a vocabulary that both sides know; nothing ends a text but its length
    config = FAMILY.configure(preset, **(QUICK | {"vocab": tokenizer.vocab}), dropout=0.0)
    if PROMPTS[1] + tokens > config.context:
        raise UserError(f"--tokens is at most {config.context - PROMPTS[1]} after these prompts, not {tokens}")
    ours = make(FAMILY, config, plan.device)
    pair = Pair(plan, ours, "transformers", plan.peers.transformers_gpt,
                lambda theirs, tokens: theirs(input_ids=tokens).logits,
                (torch.randint(config.vocab, (2, PROMPTS[1]), device=plan.device),))  # fmt: skip
    pair.to_inference_dtype()
    drawn = torch.Generator().manual_seed(1)
    lengths = torch.randint(*PROMPTS, (clients,), generator=drawn).tolist()
    prompts = [torch.randint(256, (length,), generator=drawn).tolist() for length in lengths]
    bodies = [body_of(prompt, tokens) for prompt in prompts]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        write_run(path, ours, tokenizer)
        with serving(path, "--rows", str(clients), "--waiting", str(ROUNDS * clients)) as (address, _):
            asyncio.run(ask(address, bodies[0]))  # warm
            case = f"{preset}, {clients} prompts at once, {tokens} tokens"
            at_once = lambda: asyncio.run(closed_loop(address, iter(bodies), clients, 0))  # noqa: E731
            mine = [_of_replies(plan, case, at_once) for _ in range(plan.repeat)]
            row = sorted(mine, key=lambda one: one["rate"])[len(mine) // 2]
            yield _spread(row, mine)
            for who, theirs in pair.theirs.items():
                yield _peer(plan, case, who, theirs, prompts, tokens, row, pair)
            case = f"{preset}, {clients} clients, {ROUNDS} requests each, {tokens} tokens"
            many = list(islice(cycle(bodies), ROUNDS * clients))
            row = _of_replies(plan, case, lambda: asyncio.run(closed_loop(address, iter(many), clients, 3600)))
            yield _spread(row, [row])
            rate = row["rate"] / tokens / 2
            case = f"{preset}, {rate:.3g} requests a second, at random times, {tokens} tokens"
            row = _of_replies(plan, case, lambda: asyncio.run(open_loop(address, many, rate)))
            yield _spread(row, [row])
            case = f"{preset}, one client, {tokens} tokens"
            row = _of_replies(plan, case, lambda: asyncio.run(closed_loop(address, iter(bodies[:ROUNDS]), 1, 3600)))
            yield _spread(row, [row])


def body_of(prompt: Sequence[int], tokens: int, **options: Any) -> dict[str, Any]:
    """A request that is greedy, and ends with its length."""
    return {"prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "logit_bias": {"256": -100}, **options}


def write_run(path: Path, model: Any, tokenizer: Any) -> None:
    """A run of a gpt with these weights."""
    settings = {name: value for name, value in asdict(model.config).items() if value is not None}
    tables = {"run": {"family": FAMILY.name, "pencil": __version__}, "model": settings, "train": {}}
    Run.create(path, tables, tokenizer).write_weights(model, {})


def _of_replies(plan: Plan, case: str, load: Callable[[], list[Reply]]) -> Row:
    """What a load came to."""
    began = time.perf_counter()
    replies = load()
    seconds, failed = time.perf_counter() - began, [one for one in replies if not one.whole]
    if failed:
        raise UserError(f"{JOB}: {len(failed)} of {len(replies)} requests failed; the status of the first is "
                        f"{failed[0].status}")  # fmt: skip
    between = [gap for one in replies for gap in one.between]
    amount = sum(one.tokens for one in replies)
    row = {"job": JOB, "case": case, "who": OURS, "unit": "tokens/s", "rate": amount / seconds, "seconds": seconds}
    return row | latencies([one.first for one in replies], between) | {"texts": [one.text for one in replies]}


def _spread(row: Row, rows: Sequence[Row]) -> Row:
    """With the least and the most, and without the texts."""
    rates = [one["rate"] for one in rows]
    return {name: value for name, value in row.items() if name != "texts"} | {"low": min(rates), "high": max(rates)}


def _peer(
    plan: Plan, case: str, who: str, theirs: Any, prompts: Sequence[list[int]], tokens: int, ours: Row, pair: Pair
) -> Row:
    """transformers' continuous batching of the same prompts."""
    library = plan.peers.package("transformers")
    how = library.GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    # room for these texts alone: by itself it would take the machine's memory
    room = library.ContinuousBatchingConfig(page_size=PAGE, num_blocks=len(prompts) * -(-(PROMPTS[1] + tokens) // PAGE))
    options: dict[str, Any] = dict(generation_config=how, continuous_batching_config=room, record_timestamps=True)
    rows = []
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    for _ in range(1 + plan.repeat):  # the first call makes what the others find: its manager stays
        began = time.perf_counter()
        outputs = theirs.generate_batch(list(prompts), **options, persistent_manager=True)
        seconds = time.perf_counter() - began
        # its clock is not ours: a request begins when it was made
        first = [one.timestamps[0] - one.created_time for one in outputs.values()]
        between = [b - a for one in outputs.values() for a, b in pairwise(one.timestamps)]
        amount = sum(len(one.generated_tokens) for one in outputs.values())
        rows.append({"job": JOB, "case": case, "who": f"{who}, continuous batching", "unit": "tokens/s",
                     "rate": amount / seconds, "seconds": seconds, **latencies(first, between)})  # fmt: skip
    theirs.destroy_cached_continuous_batching_manager()
    startup, rows = rows[0]["seconds"], rows[1:]
    row = _spread(sorted(rows, key=lambda one: one["rate"])[len(rows) // 2], rows)
    row["startup_seconds"] = max(0.0, startup - row["seconds"])
    if pair.equality is not None:
        row |= {"equal": pair.equality.equal, "errors": pair.equality.errors, "bounds": pair.equality.bounds}
        if pair.equality.equal:
            row["ratio"] = row["seconds"] / ours["seconds"]
    return row
