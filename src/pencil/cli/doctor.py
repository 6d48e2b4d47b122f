"""doctor: what this machine has, and what the cache holds."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..config import install
from ..console import Console

# the first word of a cached file's name, and what it is; all of them are made again when they are needed
CACHED = {
    "tokens": "tokenized texts",
    "bpe": "trained tokenizers",
    "latents": "encoded pictures",
    "pictures": "hashes of picture folders",
    "shards": "indexes of picture shards",
    "hub": "streamed texts of the hub",
    "checked": "hashes of large texts",
    "packed": "hashes of large compressed texts",
    "classifier": "classifiers for eval",
    "stdin": "unfinished copies of standard input",
}
# the extras of the package: what each needs, and what it enables
EXTRAS = {
    "gpt2-tokenizer": (["huggingface_hub"], "GPT-2's tokenizer from the hub"),
    "hub-data": (["datasets"], "--data hf:OWNER/NAME and Parquet tables"),
    "shards": (["webdataset"], "--data of pictures in .tar files"),
    "loggers": (["tensorboard", "trackio", "wandb"], "--train.logger"),
    "latents": (["diffusers"], "--vae, diffusion on the latents of an autoencoder"),
    "sentencepiece": (["sentencepiece", "protobuf"], "tokenizers of T5, Marian and LLaMA 2 in files of sentencepiece"),
    "serve": (["jinja2", "prometheus-client"], "pencil serve"),
    "onnx": (["onnx", "onnxruntime", "onnxscript"], "pencil export --to onnx"),
    "baselines": (["scikit-learn"], "pencil eval --baseline"),
    "compare": (["transformers", "timm", "diffusers", "sacrebleu"], "comparison with other libraries"),
}
# packages that are imported by another name
MODULES = {"protobuf": "google.protobuf", "scikit-learn": "sklearn", "prometheus-client": "prometheus_client"}
MISSING = "missing"
TESTED = "Linux is tested; Windows is tested by simulation only, macOS not at all"
KEPT = "text"  # standard input that was trained on: a run needs it to be resumed, and there is no other copy


def doctor(*, clear_cache: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Show what this machine has: Python, torch, device, threads; which extras are installed, and what each enables.

    Parameters
    ----------
    clear_cache
        Remove the files in the cache that Pencil can make again, and name them.
    """
    if clear_cache:
        return _clear()
    import torch

    from .. import __version__
    from ..data.images.limits import SETTING, limits
    from ..data.text.text_data import cache_folder
    from ..device import pick_device

    device, folder = pick_device("auto"), cache_folder()
    cached = [file for files in cached_files(folder).values() for file in files]
    facts = {
        "pencil": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "systems": TESTED,
        "torch": torch.__version__,
        "device": f"{device.type}" + (f" ({torch.cuda.get_device_name()})" if device.type == "cuda" else ""),
        "precision": "bfloat16 autocast, compiled" if device.type == "cuda" else "float32",
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} cores",
        "pictures": f"of at most {limits()[0] / 1e6:g} megapixels; {SETTING} in the environment sets another limit",
        "cache": f"{folder}: {_amount(cached)}, {shutil.disk_usage(folder).free / 1e9:.0f} GB free"
        + "; pencil doctor --clear-cache empties it" * bool(cached),
    }
    console = Console(soft_wrap=True)
    for name, value in facts.items():
        console.print(f"{name:16} {value}", highlight=False, markup=False)
    console.print("\nextras", highlight=False)
    for extra, (packages, use) in EXTRAS.items():
        states = {package: _state(package) for package in packages}
        line = f"{use}: {', '.join(f'{package} {state}' for package, state in states.items())}"
        if MISSING in states.values():
            line += f"; {install(extra)}"
        console.print(f"{extra:16} {line}", highlight=False, markup=False)
    return 0


def _state(package: str) -> str:
    """The version of a package that can be imported; else why not: pip installs some without what they need."""
    module = MODULES.get(package, package)
    try:
        if importlib.util.find_spec(module) is None:
            return MISSING
        version = importlib.metadata.version(package)
    # a folder of that name, such as the one wandb writes its runs to, or a module of a package that is missing
    except (importlib.metadata.PackageNotFoundError, ModuleNotFoundError):
        return MISSING
    try:
        with warnings.catch_warnings(action="ignore"):
            importlib.import_module(module)
    except Exception as error:  # a package can fail in any way
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        return f"{version}, installed, but cannot be imported: {why}"
    return version


def cached_files(folder: Path) -> dict[str, list[tuple[Path, int]]]:
    """The files that Pencil put into its cache, by the first word of their names, with their sizes.

    Links, folders and files of other names are not ours: they are neither counted nor removed.
    """
    by_word: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    with os.scandir(folder) as entries:
        for entry in entries:
            word, dash, _ = entry.name.lstrip(".").partition("-")
            if dash and (word in CACHED or word == KEPT) and entry.is_file(follow_symlinks=False):
                by_word[word].append((Path(entry.path), entry.stat(follow_symlinks=False).st_size))
    return dict(by_word)


def _clear() -> int:
    """Remove what can be made again; show a line for each kind of file, and one for what is kept."""
    from ..data.text.text_data import cache_folder

    folder, lines = cache_folder(), []
    for word, files in sorted(cached_files(folder).items()):
        if word == KEPT:
            lines.append(f"kept {_amount(files)}: standard input that runs were trained on ({word}-*)")
            continue
        for path, _ in files:
            path.unlink(missing_ok=True)
        lines.append(f"removed {_amount(files)}: {CACHED[word]} ({word}-*)")
    console = Console(soft_wrap=True)
    for line in (f"{folder}:", *(lines or ["nothing to remove"])):
        console.print(line, highlight=False, markup=False)
    return 0


def _amount(files: list[tuple[Path, int]]) -> str:
    return f"{len(files):,} file{'s' * (len(files) != 1)}, {sum(size for _, size in files) / 1e6:,.1f} MB"
