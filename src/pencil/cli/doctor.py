"""doctor: what this machine has."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil

from rich.console import Console


def doctor() -> int:
    """Show what this machine has: Python, torch, device, threads, packages; what is missing, and how to install it."""
    import torch

    from .. import __version__
    from ..data.text import cache_folder
    from ..device import pick_device

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
