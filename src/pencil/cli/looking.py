"""shapes and doctor."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from math import prod

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def shapes(what: str, /, *, batch: int = 1) -> int:
    """The one-page summary of a model: each symbol, its formula, and its shape at these sizes.

    Parameters
    ----------
    what
        A preset (gpt2, b/16, or captioner:nano where families share a name), or a run's folder.
    batch
        How many sequences at once: the B of the shapes.
    """
    import torch

    from ..config import UserError
    from ..core.probe import LEGEND, Probe, declared, symbols
    from ..models import create
    from .cost import found

    if batch < 1:
        raise UserError(f"--batch must be at least 1, not {batch}")
    family, config, _ = found(what)
    with torch.device("meta"):
        model = create(family, config)
    probe = Probe()
    model(*model.example(batch), probe=probe)
    names, greek = declared(model), symbols(model)
    parameters = {name: tuple(p.shape) for name, p in model.named_parameters()}
    console = Console(soft_wrap=True)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    count = sum(map(prod, parameters.values()))
    say(f"{what}: {family}, {count:,} parameters, {config.depth} blocks, positions {config.positions}")
    letters = {letter for name in probe.values for letter in names[name].axes.split()}
    say(" · ".join(f"{letter} {meaning}" for letter, meaning in LEGEND.items() if letter in letters))

    def show(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            # a stack is shown once, as block ℓ
            if not re.search(r"(^|\.)blocks\.[1-9]", row[-1]):
                table.add_row(*(Text(cell) for cell in (*row[:-1], row[-1].replace("blocks.0.", "blocks.ℓ."))))
        console.print(table)

    computed = [
        (names[name].symbol, names[name].formula, names[name].axes, "×".join(map(str, value.shape)), name)
        for name, value in probe.values.items()
    ]
    show("What is computed", ("symbol", "formula", "axes", "shape", "name"), computed)
    learned = [
        (greek.get(name, ""), "×".join(map(str, shape)), f"{prod(shape):,}", name) for name, shape in parameters.items()
    ]
    show("What is learned", ("symbol", "shape", "numbers", "name"), learned)
    return 0


def doctor() -> int:
    """What this machine has: Python, torch, device, threads, packages; what is missing, and how to get it."""
    import torch

    from .. import __version__
    from ..data.text import cache_folder
    from ..train.loop import pick_device

    device = pick_device("auto")
    facts = {
        "pencil": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "device": f"{device.type}" + (f" ({torch.cuda.get_device_name()})" if device.type == "cuda" else ""),
        "precision": "bfloat16 autocast, compiled" if device.type == "cuda" else "float32",
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} cores",
        "cache": f"{cache_folder()}, {shutil.disk_usage(cache_folder()).free / 1e9:.0f} GB free",
    }
    optional = {
        "huggingface_hub": ("hub", "GPT-2's tokenizer from the hub"),
        "tensorboard": ("tensorboard", "--train.logger tensorboard"),
        "trackio": ("trackio", "--train.logger trackio"),
        "transformers": ("transformers", "comparison with other people's models"),
        "timm": ("timm", "comparison with other people's models"),
        "datasets": ("datasets", "--data hub:OWNER/NAME"),
        "diffusers": ("diffusers", "its schedulers, and comparison with its models"),
        "sacrebleu": ("sacrebleu", "chrF and BLEU of a seq2seq"),
    }
    console = Console(soft_wrap=True)
    for name, value in facts.items():
        console.print(f"{name:16} {value}", highlight=False)
    for package, (extra, use) in optional.items():
        if importlib.util.find_spec(package):
            console.print(f"{package:16} {importlib.metadata.version(package)}", highlight=False)
        else:
            mend = f"missing, for {use}: pip install 'pencil-transformers[{extra}]'"
            console.print(f"{package:16} {mend}", highlight=False, markup=False)
    return 0
