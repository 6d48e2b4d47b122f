"""How well each position scheme extrapolates: trained at one length, evaluated at longer ones.

`python benchmarks/positions.py [STEPS] [SEEDS] [PROCESSES] [SCHEME …] [--write]` trains a small GPT with each position
scheme on windows of 64 characters of Python's documentation, then evaluates it on held-out text in windows of 64, 128,
256 and 512. The loss is that of the last 64 characters of each window, the same characters at every length: a longer
context can only help a model that can use it. RoPE is also evaluated with scaled angles, without further training.
`--write` puts the plot into docs/.
"""

import math
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from pencil.data.text import text_data as text
from pencil.families import configure, create, family
from pencil.train.losses.cross_entropy import next_token
from pencil.train.optim import make_optimizers
from pencil.train.schedule import factor
from pencil.train.settings import TrainConfig, fit_warmup
from pencil.train.task import random_of
from pencil.train.tasks.language_modeling import LanguageModeling

TRAINED, LENGTHS = 64, (64, 128, 256, 512)
SCHEMES = {
    "none": dict(positions="none"),
    "learned": dict(positions="learned"),
    "sinusoidal": dict(positions="sinusoidal"),
    "rope": dict(positions="rope"),
    "rope, half of each head": dict(positions="rope", rope_fraction=0.5),
    "alibi": dict(positions="alibi"),
    "shaw": dict(positions="shaw"),
    "t5": dict(positions="t5"),
    "t5, max_distance 64": dict(positions="t5", max_distance=64),
}
WINDOWS = 500  # of held-out text
SCALED = ("linear", "ntk", "yarn")
DOCS = Path(__file__).parents[1] / "docs"


def trained(data: text.TextData, scheme: dict, steps: int, seed: int, device: str) -> tuple[dict, torch.nn.Module]:
    """A model trained at the short length, and its sizes."""
    sizes = dict(vocab=data.tokenizer.vocab, context=TRAINED, width=192, depth=4, heads=6, dropout=0.1, **scheme)
    config = configure("gpt", "nano", **sizes)
    settings, _ = fit_warmup(TrainConfig(steps=steps, batch=64, seed=seed), chosen=False)
    task = LanguageModeling(family("gpt"), data, config, settings)
    torch.manual_seed(seed)
    model = create("gpt", config).to(device).train()
    optimizers = make_optimizers(model, settings)
    loss_of = (
        torch.compile(lambda x, y: next_token(model(x), y))
        if device == "cuda"
        else lambda x, y: next_token(model(x), y)
    )
    for step in range(steps):
        torch.manual_seed(int(random_of(seed, step, 1 << 20).integers(1 << 62)))
        x, y = (t.to(device) for t in task.batch(step))
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss_of(x, y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor(step, settings)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return sizes, model.eval()


@torch.no_grad()
def evaluated(data: text.TextData, sizes: dict, model: torch.nn.Module, length: int, device: str, **scaling) -> float:
    """The loss of the last characters of windows of this length, the same characters whatever the length."""
    wider = create("gpt", configure("gpt", "nano", **{**sizes, "context": length, **scaling})).to(device).eval()
    wider.load_state_dict(model.state_dict())
    ids, total, count = data.val, 0.0, 0
    ends = np.linspace(max(LENGTHS) + 1, len(ids), WINDOWS).astype(int)
    for i in range(0, len(ends), 32):
        rows = np.stack([ids[end - length - 1 : end] for end in ends[i : i + 32]]).astype(np.int64)
        both = torch.from_numpy(rows).to(device)
        logits = wider(both[:, :-1])[:, -TRAINED:]
        total += float(next_token(logits, both[:, -TRAINED:])) * len(rows)
        count += len(rows)
    return total / count


def row_of(name: str, steps: int, seed: int) -> dict[str, dict[int, float]]:
    """One training, evaluated at every length; RoPE with scaled angles too."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.compiler.reset()  # each model is compiled on its own
    data = text.load("pydoc", "char")
    sizes, model = trained(data, SCHEMES[name], steps, seed, device)
    found: dict[str, dict[int, float]] = {name: {}}
    for length in LENGTHS if name != "learned" else (TRAINED,):
        found[name][length] = evaluated(data, sizes, model, length, device)
        for kind in SCALED if name == "rope" else ():
            scaling = dict(rope_scaling=kind, rope_factor=length / TRAINED) if length > TRAINED else {}
            found.setdefault(f"rope, {kind}", {})[length] = evaluated(data, sizes, model, length, device, **scaling)
    return found


def main(*words: str) -> None:
    given = [int(word) for word in words if word.isdigit()]
    steps, seeds, processes = (given + [4000, 3, 1][len(given) :])[:3]
    chosen = [name for name in SCHEMES if name in words] or list(SCHEMES)
    jobs = [(name, steps, seed) for name in chosen for seed in range(seeds)]
    found: dict[str, dict[int, list[float]]] = {}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for rows in pool.map(row_of, *zip(*jobs, strict=True)):
            for name, row in rows.items():
                print(name, {length: round(loss, 4) for length, loss in row.items()}, flush=True)
                for length, loss in row.items():
                    found.setdefault(name, {}).setdefault(length, []).append(loss)
    table = as_table(found)
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"\n{steps} steps of 64 windows of {TRAINED} characters, {seeds} seeds, on {where}\n\n{table}")
    if "--write" in words:
        plot(found, DOCS / "positions.png")


def as_table(found: dict[str, dict[int, list[float]]]) -> str:
    """Mean loss, and the range over the seeds."""
    lines = ["| scheme | " + " | ".join(map(str, LENGTHS)) + " |", "|---" * (len(LENGTHS) + 1) + "|"]
    for name, row in sorted(found.items(), key=lambda item: statistics.mean(item[1].get(512, [math.inf]))):
        cells = [
            f"{statistics.mean(row[n]):.3f} ({min(row[n]):.3f}–{max(row[n]):.3f})" if n in row else "no position"
            for n in LENGTHS
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(found: dict[str, dict[int, list[float]]], path: Path) -> None:
    from pencil import draw
    from pencil.files import write_aside

    figure = draw.canvas(8.4, 4.6)
    axes = figure.add_subplot()
    colours = ["#000000", "#999999", "#56b4e9", "#d55e00", "#e69f00", "#009e73", "#cc79a7", "#0072b2", "#0072b2"]
    shown = {name: colour for name, colour in zip(SCHEMES, colours, strict=True)}
    for name, row in found.items():
        plain = name in shown
        colour = shown.get(name, shown["rope"])
        dash = {"rope, linear": ":", "rope, ntk": "--", "rope, yarn": "-.", "t5, max_distance 64": "--"}.get(name, "-")
        places = [n for n in LENGTHS if n in row]
        means = [statistics.mean(row[n]) for n in places]
        axes.plot(
            places, means, dash, color=colour, marker="o" if plain else ".", markersize=5, linewidth=1.6, label=name
        )
    low = min(statistics.mean(v) for row in found.values() for v in row.values())
    axes.set_xscale("log", base=2)
    axes.set_xticks(LENGTHS, [str(n) for n in LENGTHS])
    axes.set(xlabel="characters in the window", ylabel="loss of its last 64 (nats)", ylim=(low - 0.05, low + 1.6),
             title=f"Trained at {TRAINED}, evaluated beyond")  # fmt: skip
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
    write_aside(path, draw.as_png(figure))


if __name__ == "__main__":
    main(*sys.argv[1:])
