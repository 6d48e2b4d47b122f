"""DiT against diffusers' own model: the same weights, eager and compiled the same way, timed in turn in one run.

python benchmarks/dit.py                                              (DiT-XL/2, batch 32, on a GPU; needs diffusers)
python benchmarks/dit.py --preset s/8 --batch 2 --rounds 2 --repeats 1 --eager          (a quick check on any machine)

A forward pass is without gradients and in bfloat16 weights. A training step is forward, backward and a fused AdamW of
float32 weights under bfloat16 autocast, as `pencil train` has it. On a CPU everything is float32. Both models are in
eval mode: in training mode diffusers drops labels at random, differently in each of its embedders. The variants are
timed in turn, each round in another order, and a ratio is the median of the rounds' own ratios.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pencil.families import create
from pencil.models.dit import PRESETS, DiTConfig
from pencil.weights.dit import config_from, from_diffusers


def models_of(preset: str, device: str) -> tuple[nn.Module, nn.Module]:
    """Ours and theirs with the same random weights, and in theirs one embedding of time and label in every block."""
    from diffusers import DiTTransformer2DModel

    c = DiTConfig(**PRESETS[preset])
    theirs = DiTTransformer2DModel(
        num_attention_heads=c.heads, attention_head_dim=c.head_width, in_channels=c.channels,
        out_channels=c.out_channels, num_layers=c.depth, sample_size=c.image_size[0], patch_size=c.patch[0],
        num_embeds_ada_norm=c.classes,
    ).eval().to(device)  # fmt: skip
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(std=0.02)
    for block in theirs.transformer_blocks[1:]:
        block.norm1.emb.load_state_dict(theirs.transformer_blocks[0].norm1.emb.state_dict())
    config = config_from(dict(theirs.config))
    ours = create("dit", config).eval().to(device)
    ours.load_state_dict(from_diffusers(theirs.state_dict(), config))
    return ours, theirs


def drawn(c: DiTConfig, batch: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    timestep, label = (torch.randint(n, (batch,), device=device) for n in (1000, c.classes))
    return torch.randn(batch, c.channels, *c.image_size, device=device), timestep, label


def step(call: Callable[..., Tensor], optimizer: torch.optim.Optimizer, autocast, given, target: Tensor) -> None:
    with autocast():
        loss = F.mse_loss(call(*given).float(), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def timed(call: Callable[[], object], cuda: bool, repeats: int) -> float:
    """Milliseconds a call."""
    if not cuda:
        begun = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - begun) * 1e3 / repeats
    start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats


def compare(
    what: str, variants: dict[str, Callable[[], object]], batch: int, cuda: bool, rounds: int, repeats: int
) -> None:
    """A row of the table for each variant."""
    for name, variant in variants.items():
        begun = time.perf_counter()
        for _ in range(3):
            variant()
        if cuda:
            torch.cuda.synchronize()
        print(f"{what}, {name}: warm after {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    for _ in range(rounds):
        for name in order:
            times[name].append(timed(variants[name], cuda, repeats))
        order = [*order[1:], order[0]]
    for name, each in times.items():
        ms = statistics.median(each)
        faster = [
            f"{statistics.median(other / own for other, own in zip(times[base], each, strict=True)):.2f}×"
            if base in times else "" for base in ("diffusers eager", "diffusers compiled")
        ]  # fmt: skip
        print(f"| {what} | {name} | {ms:,.2f} | {batch / ms * 1e3:,.1f} | {faster[0]} | {faster[1]} |", flush=True)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--preset", default="xl/2", choices=[name for name in PRESETS if "/" in name])
    words.add_argument("--batch", type=int, default=32)
    words.add_argument("--rounds", type=int, default=15)
    words.add_argument("--repeats", type=int, default=5)
    words.add_argument("--eager", action="store_true", help="leave the compiled variants out")
    options = words.parse_args()
    cuda = torch.cuda.is_available()
    device, half = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    torch.manual_seed(0)
    ours, theirs = models_of(options.preset, device)
    with torch.no_grad():
        given = drawn(ours.config, 4, device)
        expected = theirs(*given, return_dict=False)[0]
        difference = ((ours(*given) - expected).norm() / expected.norm()).item()
    mine, other = (sum(p.numel() for p in model.parameters()) for model in (ours, theirs))
    where = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    print(f"DiT-{options.preset.upper()}, batch {options.batch}, {where}, torch {torch.__version__}")
    print(
        f"{mine:,} parameters, diffusers' {other:,}; in float32 the outputs differ by {difference:.1e} of their norm\n"
    )
    print(
        "| what | who | ms | images/s | against diffusers eager | against diffusers compiled |\n|---|---|---|---|---|---|"
    )

    torch.set_float32_matmul_precision("high")
    given = drawn(ours.config, options.batch, device)
    target = torch.randn_like(expected[:1].expand(options.batch, -1, -1, -1).contiguous())
    autocast = partial(torch.autocast, device, half) if cuda else nullcontext

    def make_variants() -> dict[str, tuple[nn.Module, Callable[..., Tensor]]]:
        """The model of each variant, and how it is called."""
        torch.compiler.reset()
        variants = {}
        for name, model in {"ours": ours, "diffusers": theirs}.items():
            for kind in ("eager",) if options.eager else ("eager", "compiled"):
                made = torch.compile(model) if kind == "compiled" else model
                call = (lambda *x, made=made: made(*x, return_dict=False)[0]) if model is theirs else made
                variants[f"{name} {kind}"] = (model, call)
        return variants

    optimizers = {model: torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True) for model in (ours, theirs)}
    steps = {
        name: partial(step, call, optimizers[model], autocast, given, target)
        for name, (model, call) in make_variants().items()
    }
    compare("training step", steps, options.batch, cuda, options.rounds, options.repeats)
    del optimizers, steps
    for model in (ours, theirs):
        model.to(half)
    given = (given[0].to(half), *given[1:])
    with torch.no_grad():
        passes = {name: partial(call, *given) for name, (_, call) in make_variants().items()}
        compare("forward", passes, options.batch, cuda, options.rounds, 2 * options.repeats)
        if not all(call().isfinite().all() for call in passes.values()):
            raise SystemExit("an output is not finite: the results above are void")


if __name__ == "__main__":
    main()
