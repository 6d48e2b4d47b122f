"""The manifest of a run: size and SHA-256 of each of its files, and which checkpoints it has.

A run is what its manifest lists. `manifest.json` has size and SHA-256 of config, tokenizer and weights, the hash of
each checkpoint's own manifest, and its own hash; entries are carried forward, never hashed anew. Every checkpoint
records the settings it was trained with, so that a setting changed in a file is noticed, and one changed on the command
line is announced and recorded. Where a run goes on, and how often it is looked at, may change freely
(`train/loop/identity.py`: `FREE_SETTINGS`).

The run's own weights (`model.safetensors`, the best by validation) are listed in the run's `manifest.json` beside
`config.toml` and `tokenizer.json`. While a file is being replaced the manifest allows both the old and the new, so a
kill between two renames leaves a run that loads.
"""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..config import UserError
from ..files import entry_of, read_json, write_aside

WEIGHTS = "model.safetensors"
ORIGINAL = "original.json"  # what an imported run keeps of the original's settings
# a thread lists a checkpoint while another replaces the weights: both read the manifest, and write it anew
CHANGING = threading.RLock()
CONTENTS = ("config.toml", "tokenizer.json", ORIGINAL, WEIGHTS)
DATA_RECORD = "data.json"  # hashes of what the run was trained on; older runs do not list it
LISTED = (*CONTENTS, DATA_RECORD)
UNLISTED = ("README.md", "heads.png", "loss.png", "metrics.jsonl")  # written into a run as well, and not hashed
FOLDERS = ("checkpoints", "eval", "samples", "tensorboard", "wandb")


class Fault(NamedTuple):
    """What is wrong with a file or a folder of a run."""

    path: Path
    kind: str  # damaged, missing, foreign or renamed
    why: str

    def __str__(self) -> str:
        return f"{self.path} {self.why}"


class Manifest(NamedTuple):
    """manifest.json of a run: what its files and its checkpoints must be."""

    run: str | None  # the id of the run; None in older versions
    files: dict[str, list[dict[str, Any]]]  # size and SHA-256; two while a file is being replaced
    checkpoints: dict[int, str] | None  # SHA-256 of each checkpoint's own manifest, by its step; None in older versions

    @staticmethod
    def read(folder: Path) -> "Manifest | None":
        """The manifest in a run's folder; None if there is none."""
        path = folder / "manifest.json"
        if not os.path.lexists(path):
            return None
        table = read_json(path)
        try:
            files = {str(name): [dict(entry) for entry in entries] for name, entries in table["files"].items()}
            kept = table.get("checkpoints")
            checkpoints = None if kept is None else {int(step): str(sha) for step, sha in kept.items()}
            unknown = [*(set(files) - set(LISTED)), *(set(table) - {"run", "files", "checkpoints", "sha256"})]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be read, or is damaged: {type(error).__name__} {error}") from None
        if unknown:
            raise UserError(f"{path} is damaged or was changed: a run has no {sorted(unknown)[0]}")
        if (table.get("run") or "sha256" in table) and table.get("sha256") != _own_hash(table):
            raise UserError(f"{path} is damaged or was changed: it does not match its own hash")
        return Manifest(table.get("run"), files, checkpoints)

    def write(self, folder: Path) -> None:
        table = {name: value for name, value in self._asdict().items() if value is not None}
        table["sha256"] = _own_hash(table)
        write_aside(folder / "manifest.json", json.dumps(table, indent=1).encode())


def _own_hash(table: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest without its own: damage to the list is not taken for damage to what it lists."""
    rest = json.loads(json.dumps({name: value for name, value in table.items() if name != "sha256"}))  # keys as text
    return entry_of(json.dumps(rest, sort_keys=True).encode())["sha256"]


def list_checkpoints(folder: Path, steps: Mapping[int, str]) -> None:
    """Make these the checkpoints that a run's manifest lists."""
    with CHANGING:
        manifest = Manifest.read(folder)
        if manifest is not None:
            manifest._replace(checkpoints=dict(steps)).write(folder)
