"""The claim about the KV cache: the time it saves and the memory it needs."""

import statistics
import time
from typing import Any

import torch

from ...models.gpt import GPT, GPTConfig
from .claim import Claim, Curve, Measured, Prediction, Size
from .training import generator, points, seeded


@torch.no_grad()
def time_next_token(model: GPT, text: torch.Tensor, cached: bool, times: int) -> tuple[float, Any]:
    """Seconds to decode one token after a text, the median of several; and the cache, if there is one."""
    taken, cache = [], None
    if cached:
        cache = model.new_cache(1, text.shape[1] + times + 1)
        model(text, cache=cache, last=True)
    for _ in range(times + 1):
        start = time.perf_counter()
        model(text[:, -1:] if cached else text, cache=cache, last=True)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:]), cache


def measure_cache(arm: str, seed: int, size: Size) -> Measured:
    """The time of one token by the length of the context, and the bytes of the cache against the formula."""
    lengths = size["lengths"]
    model = seeded(
        lambda: GPT(GPTConfig(vocab=97, context=max(lengths) + size["times"] + 1, width=size["width"], depth=4)), seed
    ).eval()
    text = torch.randint(97, (1, max(lengths)), generator=generator(seed))
    taken = [time_next_token(model, text[:, :n], arm == "with", size["times"])[0] * 1000 for n in lengths]
    found: Measured = {"milliseconds": taken[-1], "growth": taken[-1] / taken[0]}
    if arm == "with":
        caches = [model.new_cache(1, n) for n in lengths]
        formula = [2 * n * size["width"] * len(model.blocks) * 4 for n in lengths]
        found["bytes"] = max(cache.nbytes / expected for cache, expected in zip(caches, formula, strict=True))
        found["bytes by length"] = points(lengths, [cache.nbytes / 1e6 for cache in caches])
    return found | {"time by length": points(lengths, taken)}


_SIZE = dict(lengths=(32, 64, 128, 256, 512), width=128, times=7)

CLAIMS = (
    Claim(
        name="kv-cache",
        title="The KV cache",
        hypothesis="Without cached keys and values every new token reads the whole text again; the cache costs 2·n·d·L "
        "values of memory, and the time per token hardly grows with the text.",
        removed="each token is computed from the whole text instead of from the cache",
        arms=("with", "without"),
        measure=measure_cache,
        predictions=(
            Prediction(
                "a token takes longer after a long text",
                "milliseconds",
                "time of one token after the longest text (ms)",
                "without",
                "with",
                times=2.0,
            ),
            Prediction(
                "the time grows faster with the length",
                "growth",
                "time after the longest text ÷ after the shortest",
                "without",
                "with",
                times=2.0,
            ),
            Prediction(
                "the cache holds 2·n·d·L values",
                "bytes",
                "bytes of the cache ÷ 2·n·d·L·4",
                "with",
                "",
                near=1.0,
            ),
        ),
        quick=_SIZE,
        full=_SIZE | dict(lengths=(32, 64, 128, 256, 512, 1024, 2048), width=256, times=15),
        tiny=dict(lengths=(3, 5), width=8, times=1),
        curves=(
            Curve("time by length", "tokens before", "time of one token (ms)", log_x=True, log_y=True),
            Curve("bytes by length", "cached tokens", "cache (MB, 10⁶ bytes)"),
        ),
        alone=True,
        caveat="Timed on one thread of this machine's processor, with batch size 1. With fewer key-value heads than "
        "query heads (GQA) the cache is smaller by that factor; the formula is for equally many.",
        source="002, KV Cache",
    ),
)
