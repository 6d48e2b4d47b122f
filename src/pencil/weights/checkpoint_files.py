"""A checkpoint found: in a folder, in one file, or on the hub; its tensors, its config and where it is from.

What a folder holds is found by name. A file that leads out of the folder is refused, as is what is not a plain file.
Nothing of a checkpoint is executed.
"""

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from ..files import check_regular, leads_inside, read_json
from ..tensors import Entry, check_tensors, map_file, tensor_in, torch_dtypes
from .hub import PIPELINE, Fetched, fetch_checkpoint, find_here, licence_in, parse_name
from .maps import Source
from .pickled import ENDINGS, unpickle

LARGEST_CONFIG, LARGEST_INDEX = 10_000_000, 50_000_000
# the names that libraries give the weights, the preferred first
SAFETENSORS = ("model.safetensors", "diffusion_pytorch_model.safetensors", "open_clip_pytorch_model.safetensors")
PICKLED = ("pytorch_model.bin", "diffusion_pytorch_model.bin", "open_clip_pytorch_model.bin", "ckpt.pt")
CONFIGS = ("config.json", "params.json")  # the second of LLaMA as its authors publish it
SCHEDULER = "scheduler_config.json"  # of a pipeline of diffusers: the noise schedule of its transformer
Notify = Callable[[str], None]


class FileSource(Source):
    """The tensors of some safetensors files; every header is checked before the first tensor is read."""

    def __init__(self, files: list[Path], index: dict[str, str] | None = None):
        self.entries: dict[str, tuple[Path, int, Entry]] = {}
        for path in files:
            header = check_tensors(path)
            for name, entry in header.tensors.items():
                if name in self.entries:
                    raise UserError(f"{name} is in two shards, {self.entries[name][0].name} and {path.name}")
                self.entries[name] = (path, header.start, entry)
        for name, file in (index or {}).items():
            if name not in self.entries:
                raise UserError(f"the index of this checkpoint has {name} in {file}, which does not hold it")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, (_, _, entry) in self.entries.items()}

    def dtypes(self) -> dict[str, torch.dtype]:
        for name, (path, _, entry) in self.entries.items():
            if entry.dtype.startswith("F8"):
                raise UserError(f"{name} in {path} is {entry.dtype}, and weights are F32, F16 or BF16 here")
        return {name: torch_dtypes()[entry.dtype] for name, (_, _, entry) in self.entries.items()}

    def read(self, name: str) -> Tensor:
        """One tensor, mapped: it takes memory only while it is used."""
        path, start, entry = self.entries[name]
        return tensor_in(map_file(path), start, entry)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to be read, and closed."""

    where: str  # as the user named it
    library: str  # the word before the colon: hf, timm, diffusers, nanogpt; empty for a plain path
    folder: Path  # with the files beside the weights
    source: FileSource
    config: dict[str, Any]  # of config.json; empty where there is none
    revision: str | None = None
    licence: str | None = None
    hub: str | None = None  # OWNER/NAME of the hub
    values: dict[str, Any] = field(default_factory=dict)  # what a pickled file holds beside its tensors
    temporary: ExitStack = field(default_factory=ExitStack)  # the folder with the tensors of pickled files

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.temporary.close()


def open_checkpoint(what: str | Path, notify: Notify = lambda line: None) -> Checkpoint:
    """The checkpoint that a name (hf:OWNER/NAME, timm:NAME, diffusers:OWNER/NAME) or a path stands for.

    The weights are safetensors, or else pickled (.bin, .pt, .pth), in one file or in shards that an index lists. Of a
    pipeline of diffusers it is the transformer.
    """
    library, path, fetched = _located(str(what), notify)
    if path.is_dir():
        folder = path / "transformer" if (path / PIPELINE).is_file() else path
        files, index = weights_in(folder)
    else:
        check_regular(path)
        if path.suffix not in (".safetensors", *ENDINGS):
            kinds = ", ".join((".safetensors", *ENDINGS))
            raise UserError(f"{path} is not a checkpoint: give its folder, or one file of the kinds {kinds}")
        files, index, folder = [path], None, path.parent
    named = next((name for name in CONFIGS if (folder / name).exists()), None)
    config = read_json(inside(folder, named), LARGEST_CONFIG) if named else {}
    if folder.name == "transformer" and (folder.parent / "scheduler" / SCHEDULER).exists():
        config["scheduler"] = read_json(inside(folder.parent / "scheduler", SCHEDULER), LARGEST_CONFIG)
    values: dict[str, Any] = {}
    with ExitStack() as closing:
        if files[0].suffix != ".safetensors":
            folder_of_tensors = Path(closing.enter_context(TemporaryDirectory(prefix="pencil-")))
            values, files = _unpickled(files, folder_of_tensors, notify)
        source, temporary = FileSource(files, index), closing.pop_all()
    licence = fetched.licence if fetched else licence_in(path if path.is_dir() else folder)
    revision, hub = (fetched.revision, parse_name(str(what)).name) if fetched else (None, None)
    return Checkpoint(str(what), library, folder, source, config, revision, licence, hub, values, temporary)


def _located(what: str, notify: Notify) -> tuple[str, Path, Fetched | None]:
    """The library that a name begins with, and where its files are, or are now."""
    library, path = find_here(what)
    if path is not None:
        return library, path, None
    fetched = fetch_checkpoint(what, notify)
    return library, fetched.folder, fetched


def _unpickled(files: list[Path], folder: Path, notify: Notify) -> tuple[dict[str, Any], list[Path]]:
    """The plain values of pickled files, and their tensors as safetensors files in a folder."""
    values, written = {}, [folder / f"{number}.safetensors" for number in range(len(files))]
    for file, out in zip(files, written, strict=True):
        values |= unpickle(file, out, notify)
    return values, written


Weights = tuple[list[Path], dict[str, str] | None]  # the files, and the file of each tensor where an index names it


def weights_in(folder: Path) -> Weights:
    """The files of the weights in a folder."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    weights = (
        _listed(folder, "*.safetensors.index.json", ".safetensors")
        or _one(folder, SAFETENSORS, (".safetensors",))
        or _listed(folder, "*.bin.index.json", ".bin")
        or _one(folder, PICKLED, ENDINGS)
    )
    if weights is None:
        inner = [path.parent for ending in (".safetensors", *ENDINGS) for path in sorted(folder.glob(f"*/*{ending}"))]
        meant = f"; did you mean {inner[0]}?" if inner else ""
        raise UserError(f"{folder} holds no weights: neither .safetensors nor {', '.join(ENDINGS)} files{meant}")
    return weights


def _listed(folder: Path, pattern: str, ending: str) -> Weights | None:
    """The shards that an index lists."""
    indexes = sorted(folder.glob(pattern))
    if not indexes:
        return None
    index = indexes[0]
    places = read_json(inside(folder, index.name), LARGEST_INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise UserError(f"{index} is damaged: it has no weight_map")
    names = sorted(set(places.values()))
    for name in names:
        if not re.fullmatch(r"[\w.-]+" + re.escape(ending), name):
            raise UserError(f"{index} names the file {name[:200]!r}, which is not a {ending} file beside it")
        if not (folder / name).exists():
            raise UserError(f"{index} names {name}, which is not there: the copy of this checkpoint is not whole")
    return [inside(folder, name) for name in names], places


def _one(folder: Path, names: tuple[str, ...], endings: tuple[str, ...]) -> Weights | None:
    """One file of a usual name, or the only one with such an ending."""
    for name in names:
        if (folder / name).exists():
            return [inside(folder, name)], None
    names_of_weights = sorted(path.name for path in folder.iterdir() if path.suffix in endings)
    _check_shards(folder, names_of_weights)
    if len(names_of_weights) > 1:
        raise UserError(
            f"{folder} has {len(names_of_weights)} files of weights and no index that says how they belong together: "
            f"{', '.join(names_of_weights[:3])}, …; name one of them"
        )
    return ([inside(folder, names_of_weights[0])], None) if names_of_weights else None


def _check_shards(folder: Path, names: list[str]) -> None:
    """Refuse shards of which one is not there, by the numbers in their names: 00001-of-00002."""
    for name in names:
        if numbered := re.fullmatch(r"(.*-)(\d+)(-of-)(\d+)(\.\w+)", name):
            first, number, of, total, ending = numbered.groups()
            for i in range(1, min(int(total), 10_000) + 1):
                wanted = f"{first}{i:0{len(number)}}{of}{total}{ending}"
                if wanted not in names:
                    raise UserError(f"{folder} has no {wanted}: the copy of this checkpoint is not whole")


def inside(folder: Path, name: str) -> Path:
    """A plain file of a checkpoint's folder; a link out of it is refused, unless it is one of the hub's cache."""
    path = folder / name
    check_regular(path)
    if not leads_inside(path, folder):
        raise UserError(f"{path} is a link to {path.resolve()}, outside the checkpoint's folder: copy the file there")
    return path
