"""What a beam and a batch cost: an encoder–decoder writing the targets of held-out sources, as ratios in one run.

`python benchmarks/pairs.py RUN` takes a run of `pencil train seq2seq` and times greedy writing one source at a time and
64 at once, and a beam of four one source at a time; the middle of five rounds, the ways taken in turn.
"""

import statistics
import sys
import time

import torch

import pencil
from pencil.data import pairs
from pencil.train.pairs import best, write


def main(path: str) -> None:
    model, tokenizer, run = pencil.load(path)
    sources = [source for source, _ in pairs.load(run.config["run"]["data_path"]).test[:64]]
    few = sources[:16]
    ways = {
        "greedy, one at a time": (lambda: [write(model, tokenizer, [source]) for source in few], len(few)),
        "beam of 4, one at a time": (lambda: [best(model, tokenizer, [source], 4, 0.6) for source in few], len(few)),
        "greedy, 64 at once": (lambda: write(model, tokenizer, sources), len(sources)),
        "beam of 4, 64 at once": (lambda: best(model, tokenizer, sources, 4, 0.6), len(sources)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(6):  # the first round warms up
        for name, (way, count) in ways.items():
            begun = time.perf_counter()
            way()
            times[name].append((time.perf_counter() - begun) / count)
    took = {name: statistics.median(each[1:]) for name, each in times.items()}
    alone, beam, batch, both = took.values()
    print(f"{torch.get_num_threads()} threads, {sum(p.numel() for p in model.parameters()):,} parameters")
    for name, seconds in took.items():
        print(f"{name:26} {seconds * 1e3:7.2f} ms a sentence")
    print(f"a beam of 4 costs {beam / alone:.2f} times greedy; {both / batch:.2f} times in batches of 64")
    print(f"64 at once write {alone / batch:.1f} times as many sentences a second as one at a time")


if __name__ == "__main__":
    main(*sys.argv[1:])
