"""Cached against uncached generation, and the time of a new token as the context grows; one run, one machine.

    python benchmarks/decode.py [--out docs/decode.png]

The model has 6 blocks of width 384 and random weights: the speed does not depend on them.
"""

import argparse
import math
import time

import torch
from matplotlib.figure import Figure

from pencil.families import create
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling
from pencil.models.gpt import GPTConfig


def seconds(model, new: int, cached: bool) -> float:
    begun = time.perf_counter()
    for _ in Generation(model, [[1, 2, 3]], new, Sampling(0), cached=cached):
        pass
    return time.perf_counter() - begun


@torch.no_grad()
def per_token(model, contexts: list[int], repeats: int = 15) -> list[float]:
    """Median milliseconds of one new token after each number of tokens already cached."""
    found = []
    for length in contexts:
        cache = model.new_cache(1, length + repeats)
        for at in range(0, length, 512):
            model(torch.zeros(1, min(512, length - at), dtype=torch.long), cache=cache, last=True)
        times = []
        for _ in range(repeats):
            begun = time.perf_counter()
            model(torch.zeros(1, 1, dtype=torch.long), cache=cache, last=True)
            times.append(time.perf_counter() - begun)
        found.append(sorted(times)[repeats // 2] * 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="write the plot of cost against context here")
    parser.add_argument("--max-new-tokens", type=int, default=512)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = create("gpt", GPTConfig(vocab=65, context=8192, width=384, depth=6, heads=6)).eval()
    seconds(model, 8, True)
    fast = seconds(model, options.max_new_tokens, True)
    slow = seconds(model, options.max_new_tokens, False)
    print(f"{torch.get_num_threads()} threads, {options.max_new_tokens} tokens: cached {fast:.2f} s, uncached {slow:.2f} s, "
          f"ratio {slow / fast:.1f}")  # fmt: skip
    contexts = [2**k for k in range(5, 13)]
    costs = per_token(model, contexts)
    print("context  ms a token  growth exponent from the previous context")
    for i, (context, cost) in enumerate(zip(contexts, costs, strict=True)):
        grown = "" if not i else f"{math.log2(cost / costs[i - 1]):.2f}"
        print(f"{context:7}  {cost:10.2f}  {grown}")
    if options.out:
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(contexts, costs, "o-", color="#0072b2", label="one new token, cached")
        line = [costs[0] * c / contexts[0] for c in contexts]
        axes.plot(contexts, line, "--", color="#999999", label="linear growth from the first point")
        axes.set(xlabel="tokens already in the context", ylabel="milliseconds", xscale="log", yscale="log",
                 title="Cost of one new token: 6 × 384, two CPU threads")  # fmt: skip
        axes.grid(alpha=0.3, which="both")
        axes.legend(frameon=False)
        figure.savefig(options.out, dpi=130)


if __name__ == "__main__":
    main()
