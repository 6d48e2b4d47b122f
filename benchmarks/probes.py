"""What probes cost when none is used: an eager forward pass against a copy of the library without probes."""

import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
import bare
from pencil import families

SIZES = {
    "gpt": dict(vocab=256, context=64, width=128, depth=4, heads=4),
    "vit": dict(image_size=(28, 28), channels=1, patch=(4, 4), width=128, depth=4, heads=4, classes=10),
    "captioner": dict(image_size=(16, 16), channels=1, patch=(4, 4), width=80, depth=3, heads=4, vocab=64, context=12),
}


def seconds(model, inputs, repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        model(*inputs)
    return (time.perf_counter() - start) / repeat


def main() -> None:
    torch.manual_seed(0)
    plain = bare.families()
    for family, sizes in SIZES.items():
        ours = families.create(family, families.configure(family, None, **sizes)).eval()
        theirs = plain.create(family, plain.configure(family, None, **sizes)).eval()
        theirs.load_state_dict(ours.state_dict())
        inputs = ours.example(1)
        with torch.inference_mode():
            for model in (ours, theirs):
                seconds(model, inputs, 30)
            # in turn, so that other load on the machine affects both equally
            pairs = [(seconds(ours, inputs, 20), seconds(theirs, inputs, 20)) for _ in range(60)]
        ratio = statistics.median(a / b for a, b in pairs)
        mine = statistics.median(a for a, _ in pairs)
        print(f"{family}: {mine * 1e3:.3f} ms with probes off, {ratio:.4f} of a copy without probes")


if __name__ == "__main__":
    main()
