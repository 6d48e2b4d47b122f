"""A run: made, opened, named; its tokenizer and its weights."""

import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ..config import UserError, to_toml
from ..data.tokenizers.tokenizer import Tokenizer, read_json
from ..files import WINDOWS, beside, entry_of, fingerprint, flush_folder, is_text, read_text, write_aside
from ..tensors import check_bytes, check_tensors, in_file_order, read_tensors, write_tensors
from .files import WEIGHTS, Manifest, RunFiles, check_name, find_run


class Run(RunFiles):
    """One folder under runs/: its config, its tokenizer, its weights."""

    def __repr__(self) -> str:
        return f"Run({str(self._path)!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows: what the run is, and the settings of its model."""
        if not (self._path / "config.toml").is_file():
            return f"<p><code>{escape(str(self._path))}</code>: there is no run here any more</p>"
        rows = [f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in self.config["model"].items()]
        rest = f"<p>Its model: <code>{escape(f'pencil.load({str(self._path)!r})')}</code></p>"
        return f"{self.about_html()}<table><tr><th>setting</th><th>value</th></tr>{''.join(rows)}</table>{rest}"

    def about_html(self, summary: str = "") -> str:
        """One line for a notebook: the folder, the family, the data and the step of the weights."""
        facts, step = self.config["run"], self.weights_step
        about = [f"a {self.family}{f' ({summary})' if summary else ''}"]
        about += [f"trained on {facts['data']}"] if facts.get("data") else []
        about += [f"weights of step {step:,}"] if step is not None else []
        return f"<p><code>{escape(str(self._path))}</code>: {escape(', '.join(about))}</p>"

    @staticmethod
    def open(path: str | Path) -> "Run":
        return Run(find_run(path))

    @staticmethod
    def create(
        path: Path,
        config: Mapping[str, Any],
        tokenizer: Tokenizer | None,
        force: bool = False,
        others: Mapping[str, bytes] | None = None,
        words: tuple[str, str] = ("--out", "--force"),
    ) -> "Run":
        """A new folder for a run, with other files in it; one that holds anything is never written into without
        `force`. `words` are what the user writes to choose a folder, and to replace what is in it."""
        choose, replace = words
        check_name(path)
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; {choose} is the folder of a run")
        if path.exists() and any(path.iterdir()):
            if not (path / "config.toml").is_file():
                raise UserError(f"{path} already holds something that is not a run; choose another {choose}")
            if not force:
                raise UserError(
                    f"{path} already holds another run; choose another {choose}, or {replace} to replace it"
                )
            shutil.rmtree(Run.open(path).put_aside())
        number = uuid.uuid4().hex[:16]
        contents = {**(others or {}), **({} if tokenizer is None else {"tokenizer.json": tokenizer.to_json().encode()})}
        settings = to_toml({**config, "run": {**config["run"], "id": number}})
        if not is_text(settings):
            wrong = next(line for line in settings.splitlines() if not is_text(line))
            raise UserError(f"{wrong!r} cannot be written into config.toml, since it is not UTF-8: use another name")
        contents["config.toml"] = settings.encode()
        try:
            (path / "samples").mkdir(parents=True)
            Manifest(number, {name: [entry_of(content)] for name, content in contents.items()}, {}).write(path)
            for name, content in contents.items():  # the config last: a folder without one is no run yet
                write_aside(path / name, content)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
        return Run(path)

    def put_aside(self) -> Path:
        """Give the folder a hidden name, for another of its name; refused while another process writes it."""
        aside = beside(self._path)
        with self.writing():
            if not WINDOWS:
                self._path.rename(aside)
        if WINDOWS:  # which renames no folder in which a file, the lock, is open
            self._path.rename(aside)
        return aside

    @property
    def family(self) -> str:
        return str(self.config["run"].get("family"))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        path = self.path / "tokenizer.json"
        if not path.is_file():
            raise self.no_tokenizer()
        return read_json(read_text(path), str(path), self.config.get("tokens"))

    def no_tokenizer(self) -> UserError:
        again = "import it again with --tokenizer FILE" if "import" in self.config else "put it back, from a copy"
        return UserError(f"{self.path} has no tokenizer.json: {again}")

    def write_weights(self, model: nn.Module, facts: Mapping[str, Any]) -> None:
        """Make these weights the run's own."""
        tensors = model.state_dict()
        shapes = {name: tuple(tensors[name].shape) for name in in_file_order(tensors)}
        dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
        self.stream_weights(shapes, dtypes, tensors.items(), facts)

    def stream_weights(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype | Mapping[str, torch.dtype],
        tensors: Iterable[tuple[str, torch.Tensor]],
        facts: Mapping[str, Any],
    ) -> None:
        """Make tensors that come one at a time the run's weights; they are never in memory all at once."""
        aside = beside(self.path / WEIGHTS)
        try:
            write_tensors(aside, shapes, dtype, tensors, {"format": "pt"} | {k: str(v) for k, v in facts.items()})
            self._list(WEIGHTS, fingerprint(aside), lambda: aside.replace(self.path / WEIGHTS))
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        flush_folder(self.path)

    def drop_weights(self) -> None:
        """Remove damaged weights, so that the next evaluation writes others."""
        manifest = self.manifest
        if manifest is not None:
            files = {name: entries for name, entries in manifest.files.items() if name != WEIGHTS}
            manifest._replace(files=files).write(self.path)
        (self.path / WEIGHTS).unlink(missing_ok=True)

    @property
    def weights_step(self) -> int | None:
        """The step the run's weights are of; None where there are none, or none recorded."""
        step = self.weights_facts.get("step", "")
        return int(step) if step.isdigit() else None

    @property
    def weights_facts(self) -> dict[str, str]:
        """What is recorded with the run's weights: their step, and their metrics if they were evaluated."""
        path = self.path / WEIGHTS
        return dict(check_tensors(path).metadata) if path.is_file() else {}

    def load_weights(
        self,
        model: nn.Module,
        renamed: Mapping[str, str] | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        """Give a model built on the meta device the run's weights; `renamed` are name prefixes of older versions."""
        path, manifest = self.path / WEIGHTS, self.manifest
        if not os.path.lexists(path) and (manifest is None or WEIGHTS not in manifest.files):
            raise UserError(f"{self.path} has no weights yet; train it with: pencil resume {self.path}")
        shapes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
        if path.is_file():
            check_bytes(path, shapes)
        self.verify()
        model.load_state_dict(read_tensors(path, shapes, renamed, device, dtype), assign=True)


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
