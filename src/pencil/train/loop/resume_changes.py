"""What a checkpoint belongs to, and what was changed since it was saved: compared setting by setting."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...config import UserError, upgraded
from ...runs.files import Fault
from ...runs.run import Run
from ..settings import UNDECIDED, TrainConfig
from . import checkpoint

# settings of where a run goes on, how long, and how often it is evaluated and saved: these may change freely
FREE_SETTINGS = frozenset((
    "steps", "minutes", "patience", "device", "compile", "deterministic", "eval_every", "eval_batches", "save_every",
    "keep", "snapshots", "logger", "max_skipped", "recompute", "parallel", "sync",
))  # fmt: skip
UNCOMPARED_FACTS = ("run.settings", "run.changes")
NAMED_CHANGES = 3  # how many changes one sentence names


class Change(NamedTuple):
    """A setting that differs from when a checkpoint was saved; None where it was, or is, not set."""

    name: str
    was: Any
    now: Any

    @property
    def free(self) -> bool:
        section, _, name = self.name.partition(".")
        return section == "train" and name in FREE_SETTINGS

    def __str__(self) -> str:
        return f"{self.name} {self.was} -> {self.now}"


def identity(run: Run) -> dict[str, Any]:
    """What a checkpoint belongs to: a run, with all its settings and its tokenizer."""
    manifest = run.manifest
    tokenizer = manifest.files.get("tokenizer.json") if manifest else None
    facts = {name: value for name, value in run.config["run"].items() if name != "changes"}
    return {
        "run": facts,
        "model": run.config["model"],
        "train": run.config["train"],
        "data": run.config.get("data"),
        "tokenizer": tokenizer[0]["sha256"] if tokenizer else None,
    }


def differences(state: Mapping[str, Any], run: Run, record: Any) -> list[Change]:
    """The settings in which the run differs from the state of a checkpoint; older states record less."""
    if not isinstance(state.get("of"), dict):
        raise UserError(f"the newest checkpoint of {run.path} does not record what it belongs to")
    was, now = _flatten(state["of"], record), _flatten(identity(run), record)
    if not records_all_settings(state):
        old = _flatten({"model": upgraded(record.config, state["of"].get("model") or {})}, record)
        same = all(was.get(name) == now.get(name) for name in {*was, *now} if name.startswith("model."))
        was = was if same else {**{n: v for n, v in was.items() if not n.startswith("model.")}, **old}
        now = {name: value for name, value in now.items() if name in was or name.startswith("model.")}
    names = [name for name in {**was, **now} if name not in UNCOMPARED_FACTS]
    return [Change(name, was.get(name), now.get(name)) for name in names if was.get(name) != now.get(name)]


def records_all_settings(state: Mapping[str, Any]) -> bool:
    """Whether a state records all settings; one of an older version has the model and the data only."""
    return isinstance(state.get("of"), dict) and "train" in state["of"]


def _flatten(of: Mapping[str, Any], record: Any) -> dict[str, Any]:
    """Every setting by its dotted name; what is not set has its default."""
    if "family" in of:  # as older versions wrote it
        of = {"run": {"family": of["family"], "data_hash": of.get("data")}, "model": of.get("model")}
    flat = {name: of[name] for name in ("tokenizer",) if of.get(name) is not None}
    model = getattr(record, "config", None)
    for section, kind in (("run", None), ("model", model), ("train", TrainConfig), ("data", None)):
        table = of.get(section)
        if isinstance(table, Mapping):
            for name, value in {**_defaults(kind), **table}.items():
                if value is not None:
                    flat[f"{section}.{name}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _defaults(kind: type | None) -> dict[str, Any]:
    fields = dataclasses.fields(kind) if kind is not None and dataclasses.is_dataclass(kind) else ()
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


def recorded_changes(run: Run) -> dict[str, str]:
    """What each setting was last changed to with the user's knowledge.

    Nothing if config.toml is not as it was written, since the record is in it.
    """
    if any(fault for _, fault in run.check_files("config.toml")):
        return {}
    values_by_name = {}
    for line in run.config["run"].get("changes") or ():
        name, _, values = str(line).partition(": ")[2].partition(" ")
        values_by_name[name] = values.rpartition(" -> ")[2]
    return values_by_name


def record_changes(run: Run, step: int, changes: Iterable[Change], train: Any = None) -> None:
    """Write changes into the run, so that they are not refused when it is resumed again."""
    lines = [f"step {step}: {change}" for change in changes]
    facts = run.config["run"]
    facts = facts | ({"changes": [*facts.get("changes", ()), *lines]} if lines else {})
    run.write_config({**run.config, "run": facts, "train": run.config["train"] if train is None else train})


def newest_state(run: Path) -> tuple[Path, dict[str, Any]] | None:
    """The folder and the state of the newest checkpoint whose state can be read."""
    for stored in checkpoint.find(run)[0]:
        state = checkpoint.state_of(stored)
        if state is not None:
            return stored.folder, state
    return None


def review_changes(
    run: Run, record: Any, allow: bool = False, newest: tuple[Path, dict[str, Any]] | None = None
) -> tuple[list[Change], list[str]]:
    """What was changed in the files of a run since its newest checkpoint, and notes about it; refused unless allowed.

    Only changes of where and how long a run goes on, and those recorded in the run, need no permission.
    """
    notes, manifest = [], run.manifest
    if manifest is None:
        notes.append(
            f"{run.path} has no manifest.json, as an older version made it: its config.toml and tokenizer.json cannot "
            "be verified"
        )
    elif manifest.run != run.id:
        raise UserError(f"{run.path / 'manifest.json'} and config.toml are of two runs: {manifest.run} and {run.id}")
    newest = newest or newest_state(run.path)
    changes: list[Change] = []
    if newest is not None:
        folder, state = newest
        if not records_all_settings(state):
            notes.append(f"{folder} is of an older version, which recorded no training settings: they are not compared")
        allowed = recorded_changes(run)
        changes = [c for c in differences(state, run, record) if allowed.get(c.name) != str(c.now)]
        if "plans" in run.config:  # of a time budget: they were made after the checkpoint, and are followed
            changes = [c for c in changes if c.name.removeprefix("train.") not in UNDECIDED]
        if not state.get("step", 1):  # nothing was trained with the settings before
            changes = [c for c in changes if not c.name.startswith("train.")]
        _refuse_changes(run, folder, changes, allow)
    faults = {path.name: fault for path, fault in run.check_files("config.toml", "tokenizer.json") if fault}
    for name, fault in faults.items():
        if not allow and not (name == "config.toml" and changes):
            raise UserError(f"{fault}; put it back, or go on with it: {_allow_command(run)}")
    if changes:
        notes.append(f"{run.path / 'config.toml'} was changed since the last save: {', '.join(map(str, changes))}")
    return changes, notes


def _refuse_changes(run: Run, folder: Path, changes: list[Change], allow: bool) -> None:
    fixed = {change.name: change for change in changes if not change.free}
    if "run.id" in fixed:
        was, now = fixed["run.id"].was, fixed["run.id"].now
        raise UserError(
            f"{folder} is a checkpoint of another run, {was}, and this is {now}; put back the run's own, or take the "
            "folder away"
        )
    if fixed and not allow:
        first = list(fixed.values())[:NAMED_CHANGES]
        was = ", ".join(f"{change.name} {change.was}" for change in first)
        now = ", ".join(f"{change.now}" for change in first)
        more = f" (and {len(fixed) - NAMED_CHANGES} more)" if len(fixed) > NAMED_CHANGES else ""
        raise UserError(
            f"{folder} is a checkpoint of other settings: it was saved with {was}{more}, and config.toml has {now}; "
            f"put back what was changed, or go on with the changes: {_allow_command(run)}"
        )


def _allow_command(run: Run) -> str:
    return f"pencil resume {run.path} --allow-changes"


def check_weights(run: Run, allow: bool) -> Fault | None:
    """Refuse damaged weights; where changes are allowed they are removed, and what was wrong is returned."""
    for _, fault in run.check_files("model.safetensors"):
        if fault is None:
            continue
        if not allow:
            raise UserError(
                f"{fault}; put it back, or replace it by the weights of the last checkpoint: {_allow_command(run)}"
            )
        run.drop_weights()
        return fault
    return None


def check_start(run: Run, allow: bool) -> list[str]:
    """Refuse to start from step 0 over trained weights; what the user should know where it is fine."""
    manifest, step = run.manifest, run.weights_step
    listed = manifest.checkpoints if manifest else None
    if not (listed or (listed is None and step)):
        return [f"{run.path} had saved no checkpoint yet: it starts from step 0"] if step else []
    last = max(listed) if listed else step
    if not allow:
        raise UserError(
            f"{run.path / 'checkpoints'} has no checkpoint, and the run had come to step {last}: put the folder back, "
            f"or start from step 0 and replace the weights: {_allow_command(run)}"
        )
    return [f"{run.path / 'checkpoints'} has no checkpoint: it starts from step 0"]
