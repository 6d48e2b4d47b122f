"""The claim about the KV cache: what it saves, and what it costs."""

import statistics
import time
from typing import Any

import torch

from ...models.gpt import GPT, GPTConfig
from .claim import Claim, Curve, Measured, Prediction, Size
from .practice import built, dice, points


@torch.no_grad()
def next_word(model: GPT, text: torch.Tensor, cached: bool, times: int) -> tuple[float, Any]:
    """Seconds for one more word after a text, the middle of several tries; and the cache, if there is one."""
    taken, cache = [], None
    if cached:
        cache = model.new_cache(1, text.shape[1] + times + 1)
        model(text, cache=cache, last=True)
    for _ in range(times + 1):
        begun = time.perf_counter()
        model(text[:, -1:] if cached else text, cache=cache, last=True)
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken[1:]), cache


def saved(arm: str, seed: int, size: Size) -> Measured:
    """Time a word against how many stand before it, and the bytes of the cache against the formula."""
    lengths = size["lengths"]
    model = built(
        lambda: GPT(GPTConfig(vocab=97, context=max(lengths) + size["times"] + 1, width=size["width"], depth=4)), seed
    ).eval()
    text = torch.randint(97, (1, max(lengths)), generator=dice(seed))
    taken = [next_word(model, text[:, :n], arm == "with", size["times"])[0] * 1000 for n in lengths]
    found: Measured = {"milliseconds": taken[-1], "growth": taken[-1] / taken[0]}
    if arm == "with":
        held = [model.new_cache(1, n) for n in lengths]
        formula = [2 * n * size["width"] * len(model.blocks) * 4 for n in lengths]
        found["bytes"] = max(cache.store.nbytes / said for cache, said in zip(held, formula, strict=True))
        found["bytes by length"] = points(lengths, [cache.store.nbytes / 1e6 for cache in held])
    return found | {"time by length": points(lengths, taken)}


_SIZE = dict(lengths=(32, 64, 128, 256, 512), width=128, times=7)

CLAIMS = (
    Claim(
        name="kv-cache",
        title="The KV cache",
        hypothesis="Without kept keys and values every new word reads the whole text again; with them it costs "
        "2·n·d·L numbers of memory and hardly more time as the text grows.",
        removed="each word is computed from the whole text in place of from the cache",
        arms=("with", "without"),
        measure=saved,
        predictions=(
            Prediction(
                "a word takes longer after a long text",
                "milliseconds",
                "time for one word after the longest text (ms)",
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
                "the cache holds 2·n·d·L numbers",
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
            Curve("time by length", "words before", "time for one word (ms)", log_x=True, log_y=True),
            Curve("bytes by length", "words held", "cache (MB, 10⁶ bytes)"),
        ),
        alone=True,
        caveat="Timed on one thread of this machine's processor, one text at a time. Where fewer key-value heads serve "
        "all heads the cache is smaller by as much; the formula is that of full heads.",
        source="002, KV Cache",
    ),
)
