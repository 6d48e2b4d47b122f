"""A whole run verified: its files, its checkpoints and its caches, each whole, or what is wrong with it."""

from collections.abc import Iterator
from pathlib import Path

from ..config import UserError
from ..data.cache import cache_fault
from ..data.text import text_data as text
from ..families.family import Family, family
from ..files import fingerprint
from ..runs import snapshots
from ..runs.files import CONTENTS, DATA_COPY, DATA_RECORD, FOLDERS, SNAPSHOTS, UNLISTED, Fault
from ..runs.run import Run
from ..train.loop import checkpoint
from ..train.loop.report import read_metrics
from ..train.loop.resume_changes import differences, recorded_changes, records_all_settings
from ..train.tasks.latents import latents_path
from .loading import open_run

Verdict = tuple[Path, Fault | None]


def verify_run(path: Path) -> Iterator[Verdict]:
    """Every file, checkpoint and cache of a run with what is wrong with it; None for what is whole."""
    run, fault, own = Run.open(path), None, False
    try:
        own = "task" in run.config["run"]  # of a user's own task, which no family knows
        run = run if own else open_run(path)
    except UserError as error:
        fault = Fault(path / "config.toml", "damaged", _without(error, path / "config.toml"))
    manifest = path / "manifest.json"
    try:
        files: list[Verdict] = [*run.check_files(), *(run.check_files(*names) if (names := _listed_data(run)) else ())]
    except UserError as error:
        files = [(manifest, Fault(manifest, "damaged", _without(error, manifest)))]
    if not manifest.exists():
        files = [(manifest, Fault(manifest, "missing", "is missing, so nothing in the folder can be verified by it"))]
    named = [one.path for _, one in files if one is not None]
    yield from files
    if (damaged := read_metrics(path)[1]) is not None:
        yield damaged.path, damaged
    if fault is not None:
        if fault.path not in named:
            yield fault.path, fault
        yield from _checkpoints(path, None, None)
        yield from _snapshots(path)
        return
    yield from _checkpoints(path, run, None if own else family(run.family))
    yield from _snapshots(path)
    if not any(one.name in ("config.toml", "tokenizer.json") for one in named):
        yield from _caches(run)


def not_verified(path: Path) -> tuple[list[str], list[str]]:
    """The names in a run's folder of what was written there and is not hashed, and of what no command wrote there."""
    listed = [*CONTENTS, "manifest.json", "checkpoints", SNAPSHOTS, *_listed_data(Run(path))]
    rest = sorted(one for one in path.iterdir() if one.name not in listed and not one.name.startswith("."))
    written = [one for one in rest if one.name in (*UNLISTED, *FOLDERS, DATA_RECORD) or one.name.startswith("eval-")]
    names = {one: f"{one.name}/" if one.is_dir() else one.name for one in rest}
    return [names[one] for one in written], [names[one] for one in rest if one not in written]


def _listed_data(run: Run) -> list[str]:
    """The files about its data that the manifest has hashes of; older versions wrote none, nor do imports."""
    try:
        return [name for name in (DATA_RECORD, DATA_COPY) if name in getattr(run.manifest, "files", ())]
    except UserError:  # a manifest that cannot be read is named already
        return []


def _without(error: UserError, path: Path) -> str:
    """The sentence of an error without the path it begins with."""
    return str(error).removeprefix(str(path)).lstrip(": ")


def _checkpoints(path: Path, run: Run | None, record: Family | None) -> Iterator[Verdict]:
    try:
        checkpoints, strange, listed = checkpoint.survey(path)
    except UserError:  # a manifest that cannot be read is named already
        (checkpoints, strange), listed = checkpoint.find(path), []
    for fault in [*strange, *listed]:
        yield fault.path, fault
    for one in checkpoints:
        faults = checkpoint.faults_of(one)
        if not faults and run is not None:
            faults = [*_foreign(one, run, record)]
        if faults and checkpoint.was_pruned(path, one):
            continue
        for fault in faults:
            yield fault.path, fault
        if not faults and one.folder not in [fault.path for fault in listed]:
            yield one.folder, None


def _snapshots(path: Path) -> Iterator[Verdict]:
    try:
        yield from snapshots.check(path)
    except UserError:  # a manifest that cannot be read is named already
        return


def _foreign(one: checkpoint.CheckpointFolder, run: Run, record: Family | None) -> Iterator[Fault]:
    """A whole checkpoint that belongs to another run, or to other settings."""
    try:
        state = checkpoint.state_of(one)
        if state is None:  # changed since its files were compared
            yield from checkpoint.faults_of(one)
            return
        if state.get("step") != one.step:
            yield checkpoint.step_mismatch(one, state)
        changes = differences(state, run, record)
    except (UserError, OSError) as error:
        yield Fault(one.folder, "foreign", str(error))
        return
    acknowledged = recorded_changes(run)
    for change in changes if records_all_settings(state) else ():
        if change.name == "run.id":
            yield Fault(one.folder, "foreign", f"is a checkpoint of another run, {change.was}")
        elif not change.free and acknowledged.get(change.name) != str(change.now):
            yield Fault(one.folder, "foreign", f"was saved with {change.name} {change.was}; config.toml: {change.now}")


def _caches(run: Run) -> Iterator[Verdict]:
    """The caches of a run that are there; a run without them makes them again."""
    facts = run.config["run"]
    data, paths = facts.get("data_hash"), []
    if data and "tokenizer" in facts:
        paths.append(text.tokens_path(data, run.tokenizer)[0])
        paths.append(text.tokenizer_path(data, run.tokenizer.vocab))
    if data and "vae_hash" in facts:
        size, channels = facts.get("vae_size"), facts.get("vae_channels")
        if size and channels:
            key, fit = (data, facts["vae_hash"], tuple(size), channels), run.config.get("data", {}).get("fit", "crop")
            paths += [latents_path(*key, part, fit, facts.get("split", 1)) for part in ("train", "test")]
    for path in paths:
        fault = cache_fault(path)
        if fault is not None:
            yield path, Fault(path, "damaged", fault)
        elif path.exists():
            yield path, None
    if data and facts.get("data_path") == "-":
        yield from _kept_input(data)


def _kept_input(data: str) -> Iterator[Verdict]:
    """The copy of a standard input that a run was trained on; its hash is in its name."""
    path = text.input_path(data)
    if not path.is_file():
        yield path, Fault(path, "missing", "is missing: it is the only copy of the standard input of this run")
    else:
        whole = fingerprint(path)["sha256"] == data
        yield path, None if whole else Fault(path, "damaged", "is damaged: its hash is not that of the run's data")
