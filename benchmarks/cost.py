"""`pencil cost` against one GPU: FLOPs must be equal, activation memory is shown as a ratio.

python benchmarks/cost.py [--saved NAME]

Activations are measured on top of weights, gradients and AdamW's state, all in place from a step before. With
activation recomputation, `torch.utils.checkpoint` is around each block. `--saved` lists what one case saves for its
backward pass.
"""

import argparse
import gc
import math
import sys
from collections import Counter
from contextlib import nullcontext
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from pencil.cost.count import count
from pencil.cost.memory import train_memory
from pencil.families import family
from pencil.train.losses.cross_entropy import next_token

if not torch.cuda.is_available():
    sys.exit("this benchmark needs a CUDA GPU")

_GROUPED = dict(vocab=32000, context=1024, width=1024, depth=8, heads=16, kv_heads=4, hidden=2816, norm="rms",
                activation="swiglu", tie_embeddings=False)  # fmt: skip
_VIDEO = dict(frames=8, image_size=(32, 32), channels=4, classes=10, attention="factored", width=768, heads=12, depth=8)
CASES = {
    "gpt2": ("gpt", "gpt2", 8, "bf16", {}),
    "gpt2, batch 1": ("gpt", "gpt2", 1, "bf16", {}),
    "gpt2, float32": ("gpt", "gpt2", 4, "fp32", {}),
    "gpt2-medium": ("gpt", "gpt2-medium", 8, "bf16", {}),
    "gpt2, letters": ("gpt", "gpt2", 8, "bf16", dict(vocab=67)),
    "llama's form": ("gpt", "nano", 8, "bf16", _GROUPED),
    "vit b/16": ("vit", "b/16", 64, "bf16", {}),
    "vit l/16": ("vit", "l/16", 32, "bf16", {}),
    "dit b/2": ("dit", "b/2", 32, "bf16", {}),
    "dit xl/2": ("dit", "xl/2", 16, "bf16", {}),
    "dit, video": ("dit", "nano", 4, "bf16", _VIDEO),
    "dit, text": ("dit", "b/4", 64, "bf16", dict(classes=None, vocab=4096)),
    "bert-base": ("reader", "bert-base", 16, "bf16", {}),
    "seq2seq base": ("seq2seq", "base", 8, "bf16", {}),
    "captioner base": ("captioner", "base", 16, "bf16", dict(mask="causal")),
}


class Case:
    """A model on the GPU after one step, and its loss on random data."""

    def __init__(self, name: str, preset: str, batch: int, dtype: str, values: dict):
        torch.manual_seed(0)
        record = family(name)
        self.profile, self.batch, self.dtype = record.cost, batch, dtype
        self.config = record.configure(preset, **values)
        self.counts = count(record.create, self.profile, self.config)
        self.memory = train_memory(self.profile, self.config, self.counts, batch, dtype=dtype)
        self.model = record.create(self.config).to("cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.inputs = [
            torch.randn_like(x) if x.is_floating_point() else torch.randint_like(x, 3)
            for x in self.model.example(batch)
        ]
        self.step()
        self.optimizer.step()

    def forward(self) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16) if self.dtype == "bf16" else nullcontext():
            output = self.model(*self.inputs)
            if self.profile.decodes:
                return next_token(output, torch.zeros_like(self.inputs[0]))
            return self.profile.loss(output)

    def step(self) -> None:
        self.forward().backward()

    def peak(self) -> int:
        gc.collect()  # what is freed in the midst of the step would be subtracted from its peak
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.step()
        return torch.cuda.max_memory_allocated() - before

    def recompute(self) -> None:
        for name, module in self.model.named_modules():
            if name.rpartition(".")[0].endswith("blocks"):
                module.forward = partial(checkpoint, module.forward, use_reentrant=False)

    def milliseconds(self) -> float:
        times = []
        for _ in range(5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
            begin.record()
            self.step()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        return sorted(times)[2]

    def measured_flops(self) -> tuple[int, int]:
        with FlopCounterMode(display=False) as forward:
            loss = self.forward()
        with FlopCounterMode(display=False) as backward:
            loss.backward()
        return forward.get_total_flops(), backward.get_total_flops()


def saved(name: str) -> None:
    case, held = Case(*CASES[name]), {}
    own = {p.untyped_storage().data_ptr() for p in case.model.parameters()}

    def pack(t: torch.Tensor) -> torch.Tensor:
        place = t.untyped_storage()
        if place.data_ptr() not in own:
            held[place.data_ptr()] = (place.nbytes(), tuple(t.shape), str(t.dtype), t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = case.forward()
    print(f"{name}: {sum(size for size, *_ in held.values()) / 1e9:.3f} GB saved, loss {loss.item():.3f}")
    for (size, shape, dtype), times in Counter(tuple(entry[:3]) for entry in held.values()).most_common(24):
        print(f"  {times:3} × {size / 1e6:9.3f} MB  {dtype:16} {shape}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saved", choices=CASES)
    options = parser.parse_args()
    if options.saved:
        saved(options.saved)
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'':16}{'activations, GB':>24}{'':6}{'recomputed, GB':>24}{'':6}{'FLOPs of':>14}")
    print(f"{'':16}{'formula':>12}{'measured':>12}{'ratio':>7}{'formula':>11}{'measured':>12}{'ratio':>7}"
          f"{'forward':>9}{'backward':>10}{'TFLOP/s':>9}")  # fmt: skip
    worst = 0.0
    for name, values in CASES.items():
        case = Case(*values)
        held, batch = case.memory.activations, case.batch
        assert held is not None
        flops = batch * case.counts.forward.flops, batch * case.counts.backward
        try:
            same = ["same" if a == b else f"{a / b:.6f}" for a, b in zip(flops, case.measured_flops(), strict=True)]
        except AssertionError:
            same = ["refused", "refused"]  # older versions of the counter do not know grouped heads
        milliseconds = case.milliseconds()
        whole = case.peak()
        case.recompute()
        few = case.peak()
        ratios = held.peak / whole, held.peak_recomputed / few
        worst = max(worst, *(abs(math.log(ratio)) for ratio in ratios))
        print(f"{name:16}{held.peak / 1e9:12.3f}{whole / 1e9:12.3f}{ratios[0]:7.3f}{held.peak_recomputed / 1e9:11.3f}"
              f"{few / 1e9:12.3f}{ratios[1]:7.3f}{same[0]:>9}{same[1]:>10}{sum(flops) / milliseconds / 1e9:9.0f}",
              flush=True)  # fmt: skip
        del case
        torch.cuda.empty_cache()
    print(f"largest error: {math.expm1(worst):.1%}")


if __name__ == "__main__":
    main()
