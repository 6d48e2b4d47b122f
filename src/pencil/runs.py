"""A run folder: opened, named, written and verified. Files are written under another name, flushed, then renamed."""

import hashlib
import json
import shutil
import struct
import tomllib
from collections.abc import Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from .config import UserError, to_toml
from .data.tokenizers import Tokenizer, read_json
from .files import beside, fingerprint, sweep, write_aside

WEIGHTS = "model.safetensors"
MANIFEST = ("config.toml", "tokenizer.json", WEIGHTS)


def read_tensors(
    path: Path, wanted: Mapping[str, tuple[int, ...]] | None = None, renamed: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """The tensors of a safetensors file; with `wanted`, exactly those names and shapes, checked before any is read."""
    try:
        with path.open("rb") as file:
            (header,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        if header > min(path.stat().st_size, 1 << 22):
            raise UserError(f"{path} is not a safetensors file, or is damaged")
        with safe_open(path, framework="pt") as file:
            names = {rename(name, renamed): name for name in file.keys()}  # noqa: SIM118
            if wanted is not None:
                for name in sorted(set(names) ^ set(wanted)):
                    where = "not in it" if name in wanted else "not in this model"
                    raise UserError(f"{path} is of another model: {name} is {where}")
                for name, shape in wanted.items():
                    found = tuple(file.get_slice(names[name]).get_shape())
                    if found != tuple(shape):
                        raise UserError(
                            f"{path} is of another model: {name} has shape {found} there and {tuple(shape)} here"
                        )
            return {name: file.get_tensor(stored) for name, stored in names.items()}
    except (SafetensorError, OSError, struct.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


class Run:
    """One folder under runs/: its config, its tokenizer, its weights."""

    def __init__(self, path: Path):
        self.path = path

    @staticmethod
    def open(path: str | Path) -> "Run":
        path = Path(path)
        if not path.is_dir():
            raise UserError(f"there is no run {path}")
        run = Run(path)
        if not (path / "config.toml").is_file():
            raise UserError(f"{path} is not a run: it has no config.toml")
        return run

    @staticmethod
    def create(path: Path, config: Mapping[str, Any], tokenizer: Tokenizer | None, force: bool = False) -> "Run":
        """A new folder for a run; one that holds anything is never written into without `force`."""
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; --out is the folder of a run")
        if path.exists() and any(path.iterdir()):
            if not (path / "config.toml").is_file():
                raise UserError(f"{path} already holds something that is not a run; choose another --out")
            if not force:
                raise UserError(f"{path} already holds another run; choose another --out, or --force to replace it")
            held = Run.open(path)
            with held.writing():
                aside = beside(path)
                path.rename(aside)
            shutil.rmtree(aside)
        try:
            (path / "samples").mkdir(parents=True)
            write_aside(path / "config.toml", to_toml(config).encode())
            if tokenizer is not None:
                write_aside(path / "tokenizer.json", tokenizer.to_json().encode())
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
        return Run(path)

    @cached_property
    def config(self) -> dict[str, Any]:
        path = self.path / "config.toml"
        try:
            config = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        for section in ("run", "model", "train"):
            if not isinstance(config.get(section), dict):
                raise UserError(f"{path} has no [{section}]")
        return config

    @property
    def family(self) -> str:
        return str(self.config["run"].get("family"))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        path = self.path / "tokenizer.json"
        if not path.is_file():
            raise UserError(f"{self.path} has no tokenizer.json")
        return read_json(path.read_text(encoding="utf-8"), str(path))

    def write_weights(self, model: nn.Module, facts: Mapping[str, Any]) -> None:
        """Make these weights the run's own."""
        tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
        self._replace(WEIGHTS, save(tensors, {"format": "pt"} | {key: str(value) for key, value in facts.items()}))

    def write_config(self, config: Mapping[str, Any]) -> None:
        self._replace("config.toml", to_toml(config).encode())
        self.__dict__.pop("config", None)

    def _replace(self, name: str, content: bytes) -> None:
        """Replace a file of the manifest; between the renames either may be found, so both are allowed till then."""
        path, manifest = self.path / name, self.path / "manifest.json"
        new = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        files = {n: [fingerprint(self.path / n)] for n in MANIFEST if (self.path / n).is_file()}

        def allow(*entries: dict[str, Any]) -> None:
            write_aside(manifest, json.dumps({"files": files | {name: entries}}, indent=1).encode())

        allow(new, *files.get(name, ()))
        write_aside(path, content)
        allow(new)

    def verify(self) -> None:
        """Refuse, by name, a file that does not match the manifest."""
        path = self.path / "manifest.json"
        try:
            files = json.loads(path.read_text(encoding="utf-8"))["files"]
            expected = {str(name): list(entries) for name, entries in files.items()}
        except FileNotFoundError:
            raise UserError(f"{self.path} has weights but no manifest.json to check them by") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        for name, entries in expected.items():
            file = self.path / Path(name).name
            if not file.is_file():
                raise UserError(f"{file} is missing")
            if fingerprint(file) not in entries:
                raise UserError(f"{file} is damaged or was changed: it does not match manifest.json")

    def load_weights(self, model: nn.Module, renamed: Mapping[str, str] | None = None) -> None:
        """Give a model built on the meta device the run's weights; `renamed` are name prefixes of older versions."""
        path = self.path / WEIGHTS
        if not path.is_file():
            raise UserError(f"{self.path} has no weights yet; train it with: pencil resume {self.path}")
        self.verify()
        shapes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
        model.load_state_dict(read_tensors(path, shapes, renamed), assign=True)

    @contextmanager
    def writing(self):
        """One writer at a time: the lock ends with the process, however that ends."""
        try:
            import fcntl
        except ImportError:  # Windows has no flock; a second writer is not noticed there
            yield
            return
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.path} is being written by another process") from None
            sweep(self.path)
            sweep(self.path / "samples")
            yield


def choose_path(name: str, root: Path = Path("runs")) -> Path:
    """runs/NAME, or runs/NAME-2, -3, … when taken."""
    path, n = root / name, 1
    while path.exists():
        n += 1
        path = root / f"{name}-{n}"
    return path


class Loaded(NamedTuple):
    """A run opened for use."""

    model: Any
    tokenizer: Any  # None where a family has no text
    run: Run

    @property
    def classes(self) -> list[str]:
        """The names of the classes; their numbers where the run has no names."""
        names = self.run.config["run"].get("classes") or ()
        return list(map(str, names or range(getattr(self.model.config, "classes", None) or 0)))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def rename(name: str, renamed: Mapping[str, str] | None) -> str:
    """A tensor's name with an old prefix replaced by the new one."""
    for old, new in (renamed or {}).items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
