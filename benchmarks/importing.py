"""A checkpoint with the layout of GPT-2 XL on disk: memory and time of importing it, and the time to the first token.

    python benchmarks/importing.py [--depth 48]

The weights are random and in half precision, in two shards. Every step is a process of its own, whose peak memory is the
operating system's figure; memory-mapped pages of files count in it. That figure never falls below what the parent held
when it started the child, so the parent does not import torch.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path


def make(folder: Path, depth: int) -> None:
    """The folder of a checkpoint."""
    import torch

    from pencil.models.gpt import PRESETS, GPTConfig
    from pencil.tensors import write_tensors
    from pencil.weights.gpt2 import GPT2
    from pencil.weights.maps import skeleton, write

    config = GPTConfig(**{**PRESETS["gpt2-xl"], "depth": depth})
    assert GPT2.describe is not None
    (folder / "config.json").write_text(json.dumps(GPT2.describe(config)))
    empty = skeleton(GPT2.model, config).state_dict()
    shapes = {name: tuple(t.shape) for name, t in write(GPT2, empty, config)}
    generator, places = torch.Generator().manual_seed(0), {}
    for part, names in enumerate((list(shapes)[: len(shapes) // 2], list(shapes)[len(shapes) // 2 :])):
        file = f"model-{part + 1:05d}-of-00002.safetensors"
        tensors = ((name, 0.02 * torch.randn(shapes[name], generator=generator)) for name in names)
        write_tensors(folder / file, {name: shapes[name] for name in names}, torch.bfloat16, tensors, {"format": "pt"})
        places |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def measured(*words: str) -> tuple[float, float]:
    """Seconds and peak bytes of a command."""
    began = time.perf_counter()
    child = os.posix_spawn(sys.executable, [sys.executable, *words], os.environ)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{' '.join(words)} failed")
    return time.perf_counter() - began, usage.ru_maxrss * 1024


FIRST = """
import sys, time
began = time.perf_counter()
import torch, pencil
model, _, _ = pencil.load(sys.argv[1], dtype="float32" if not torch.cuda.is_available() else None,
                          device="cuda" if torch.cuda.is_available() else "cpu")
with torch.no_grad():
    logits = model(torch.zeros(1, 8, dtype=torch.long, device=next(model.parameters()).device), last=True)
print(f"first token after {time.perf_counter() - began:.1f} s: {int(logits.argmax())}", file=sys.stderr)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=48, help="blocks; 48 is GPT-2 XL")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    depth = given.depth
    if given.make:
        return make(given.make, depth)
    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "model").mkdir()
        measured(__file__, "--depth", str(depth), "--make", str(folder / "model"))
        size = sum(file.stat().st_size for file in (folder / "model").glob("*.safetensors"))
        base = measured("-c", "import pencil.api.interchange.importing")[1]
        run = folder / "run"
        print(f"{'step':28} {'seconds':>8} {'peak':>9} {'of the weights':>15}")
        for step, words in (
            ("import", ("-m", "pencil", "import", str(folder / "model"), "--out", str(run))),
            ("load and one token, float32", ("-c", FIRST, str(run))),
        ):
            seconds, peak = measured(*words)
            whole = size * (2 if "float32" in step else 1)
            print(f"{step:28} {seconds:8.1f} {peak / 1e9:6.2f} GB {(peak - base) / whole:14.2f}×", flush=True)
        print(f"weights {size / 1e9:.2f} GB in bfloat16, {depth} blocks; Python with torch alone {base / 1e9:.2f} GB")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
