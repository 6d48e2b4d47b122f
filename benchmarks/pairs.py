"""What beams and batches cost: an encoder–decoder decodes the targets of held-out sources; ratios within one run.

`python benchmarks/pairs.py RUN` takes a run of `pencil train seq2seq` and times greedy decoding and
beam search with four beams, one source at a time and 64 at once; the median of five rounds, the variants in turn.
"""

import statistics
import sys
import time

import torch

import pencil
from pencil.data.tables import pairs
from pencil.inference.text_batches import beam_targets, greedy_targets


def main(path: str) -> None:
    model, tokenizer, run = pencil.load(path)
    sources = [source for source, _ in pairs.load(run.config["run"]["data_path"]).test[:64]]
    few = sources[:16]
    variants = {
        "greedy, one at a time": (lambda: [greedy_targets(model, tokenizer, [source]) for source in few], len(few)),
        "4 beams, one at a time": (
            lambda: [beam_targets(model, tokenizer, [source], 4, 0.6) for source in few],
            len(few),
        ),
        "greedy, 64 at once": (lambda: greedy_targets(model, tokenizer, sources), len(sources)),
        "4 beams, 64 at once": (lambda: beam_targets(model, tokenizer, sources, 4, 0.6), len(sources)),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(6):  # the first round warms up
        for name, (call, count) in variants.items():
            begun = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - begun) / count)
    took = {name: statistics.median(each[1:]) for name, each in times.items()}
    alone, beams, batch, both = took.values()
    print(f"{torch.get_num_threads()} threads, {sum(p.numel() for p in model.parameters()):,} parameters")
    for name, seconds in took.items():
        print(f"{name:26} {seconds * 1e3:7.2f} ms a sentence")
    print(f"4 beams cost {beams / alone:.2f} times greedy; {both / batch:.2f} times in batches of 64")
    print(f"64 at once decode {alone / batch:.1f} times as many sentences a second as one at a time")


if __name__ == "__main__":
    main(*sys.argv[1:])
