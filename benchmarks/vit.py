"""ViT inference against timm's own model: the same weights, compiled the same way, timed in turn in one run.

python benchmarks/vit.py [--model vit_base_patch16_224] [--batch 64]        (needs timm and torchvision)
"""

import argparse
import statistics
import time

import torch

from pencil.families import create
from pencil.models.vit import ViTConfig
from pencil.weights.vit import from_timm


def config_of(theirs) -> ViTConfig:
    block = theirs.blocks[0]
    return ViTConfig(
        image_size=tuple(theirs.patch_embed.img_size), channels=3, patch=tuple(theirs.patch_embed.patch_size),
        classes=theirs.num_classes, width=theirs.embed_dim, depth=len(theirs.blocks), heads=block.attn.num_heads,
        hidden=block.mlp.fc1.out_features, eps=block.norm1.eps,
    )  # fmt: skip


def timed(call, x, cuda: bool, repeats: int) -> float:
    if not cuda:
        begun = time.perf_counter()
        call(x)
        return (time.perf_counter() - begun) * 1e3
    start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
    start.record()
    for _ in range(repeats):
        call(x)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats


def main():
    import timm

    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--model", default="vit_base_patch16_224")
    words.add_argument("--batch", type=int, nargs="+", default=[1, 64, 256])
    words.add_argument("--rounds", type=int, default=15)
    options = words.parse_args()
    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    torch.manual_seed(0)
    theirs = timm.create_model(options.model).eval()
    ours = create("vit", config_of(theirs)).eval()
    ours.load_state_dict(from_timm(theirs.state_dict(), ours.config))
    x = torch.randn(3, 3, *ours.config.image_size)
    with torch.no_grad():
        difference = (ours(x) - theirs(x)).abs().max().item()
    print(
        f"{options.model}: {sum(p.numel() for p in ours.parameters()):,} parameters; float32 logits differ by {difference:.1e}"
    )
    ours, theirs = ours.to(device, dtype), theirs.to(device, dtype)
    for batch in options.batch:
        torch.compiler.reset()
        fast = {"ours": torch.compile(ours), "timm": torch.compile(theirs)}
        x = torch.randn(batch, 3, *ours.config.image_size, device=device, dtype=dtype)
        times = {name: [] for name in fast}
        with torch.inference_mode():
            for call in fast.values():
                for _ in range(5):
                    call(x)
            for _ in range(options.rounds):
                for name, call in fast.items():
                    times[name].append(timed(call, x, cuda, 20))
        middle = {name: statistics.median(values) for name, values in times.items()}
        rates = ", ".join(f"{name} {batch / ms * 1e3:,.0f} images/s ({ms:.3f} ms)" for name, ms in middle.items())
        print(f"batch {batch}: {rates}; ours takes {middle['ours'] / middle['timm']:.3f} of timm's time")


if __name__ == "__main__":
    main()
