"""What it takes to open GPT-2 (124 M, random weights) at 1,024 tokens: seconds, and the most memory at any time."""

import resource
import time

import torch

import pencil

CELLS = ("blocks.3.attn.pattern[0,2,1000,3]", "blocks.7.mlp.act[0,1000,5]", "logits[0,1000,77]")


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # kilobytes on Linux


def main() -> None:
    torch.manual_seed(0)
    model = pencil.create("gpt", pencil.configure("gpt", "gpt2"))
    tokens = torch.randint(0, model.config.vocab, (1, 1024))
    start = time.perf_counter()
    trace = pencil.trace(model, tokens)
    print(f"recorded in {time.perf_counter() - start:.1f} s, at most {peak():.2f} GB")
    for cell in CELLS:
        start = time.perf_counter()
        found = trace[cell].why()
        assert found.agrees
        print(f"{cell} unfolded in {time.perf_counter() - start:.2f} s, at most {peak():.2f} GB")
    start = time.perf_counter()
    changed = trace.edit("blocks.3.attn.pattern[:,2]", 0).logits
    moved = (changed - trace.logits).abs().max().item()
    print(
        f"a head knocked out and run on in {time.perf_counter() - start:.1f} s (logits move by up to {moved:.3f}), at most {peak():.2f} GB"
    )


if __name__ == "__main__":
    main()
