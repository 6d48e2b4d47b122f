"""Snapshots: weights kept on the way of a training, log-spaced over its steps, so that it can be watched afterwards.

`snapshots/step-00000064.safetensors` has the weights alone, those that the run would be used with after that step. The
run's manifest lists each with its size and SHA-256. A file is flushed and named before it is listed, and unlisted
before it is removed, so what is listed is always there; one that is not listed was left by a writer that was killed, is
never read, and is removed by the next writer. Which steps are kept is a function of the step alone: a training that was
interrupted and resumed ends with the same series, and more steps continue it.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import UserError
from ..files import beside, fingerprint, flush_folder, matches
from ..tensors import read_tensors
from .files import CHANGING, SNAPSHOTS, Fault, Manifest

if TYPE_CHECKING:
    from torch import Tensor

MOST_PARAMETERS = 10_000_000  # of a model whose training keeps them
SERIES = tuple(dict.fromkeys([0, *(round(2 ** (half_powers / 2)) for half_powers in range(80))]))
FILE = re.compile(r"step-(\d{8,})\.safetensors")


def kept_steps(step: int, most: int) -> list[int]:
    """The steps whose weights are there after `step` steps: of the series 0, 1, 2, 3, 4, 6, 8, 11, … at most so many.

    Each is √2 times the one before it. Where there are more, the one nearest to its neighbours is left out, an early
    one first.
    """
    kept = []
    for at in SERIES:
        if at > step:
            break
        kept.append(at)
        if len(kept) > most:
            # neither the untrained weights, nor the first step, nor the newest
            gaps = {i: log(kept[i + 1] / kept[i - 1]) for i in range(2, len(kept) - 1)}
            kept.pop(min(gaps, key=lambda i: (round(gaps[i], 6), i)))
    return kept


def path_of(run: Path, step: int) -> Path:
    return run / SNAPSHOTS / f"step-{step:08d}.safetensors"


def listed(run: Path) -> dict[int, dict[str, Any]]:
    """The snapshots of a run by their steps, in order: size and SHA-256 of each."""
    manifest = Manifest.read(run)
    return dict(sorted(((manifest.snapshots if manifest else None) or {}).items()))


def add(run: Path, step: int, most: int, write: Callable[[Path], object]) -> None:
    """Keep the weights that `write` puts into a file, and of those before it what belongs to the series."""
    path = path_of(run, step)
    path.parent.mkdir(exist_ok=True)
    aside = beside(path)
    try:
        write(aside)
        entry = fingerprint(aside)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)
    kept = kept_steps(step, most)
    _list(run, lambda before: {**{n: one for n, one in before.items() if n in kept}, step: entry})


def forget_after(run: Path, step: int) -> None:
    """Unlist and remove the snapshots after a step: a training that goes on from it may take another course."""
    if (run / SNAPSHOTS).is_dir():
        _list(run, lambda before: {n: one for n, one in before.items() if n <= step})


def _list(run: Path, change: Callable[[dict[int, dict[str, Any]]], dict[int, dict[str, Any]]]) -> None:
    """Change what the manifest lists, then remove the files that it does not list."""
    with CHANGING:
        manifest = Manifest.read(run)
        if manifest is None:
            return
        before = manifest.snapshots or {}
        after = dict(sorted(change(before).items()))
        if after != before:
            manifest._replace(snapshots=after or None).write(run)
    for path in (run / SNAPSHOTS).iterdir():
        match = FILE.fullmatch(path.name)
        half_written = re.fullmatch(rf"\.{FILE.pattern}\.[0-9a-f]{{8}}", path.name)
        if half_written or (match and int(match[1]) not in after):
            path.unlink(missing_ok=True)


def check(run: Path) -> Iterator[tuple[Path, Fault | None]]:
    """Each snapshot with what is wrong with it; one that a training replaces meanwhile is left out."""
    for step, entry in listed(run).items():
        path = path_of(run, step)
        if path.is_file() and matches(path, entry):
            yield path, None
        elif listed(run).get(step) == entry:
            kind, why = ("damaged", "is damaged: it does not match manifest.json") if path.exists() else (
                "missing", "is missing"
            )  # fmt: skip
            yield path, Fault(path, kind, why)


def read(
    run: Path, step: int, shapes: Mapping[str, tuple[int, ...]], renamed: Mapping[str, str] | None = None
) -> "dict[str, Tensor]":
    """The weights of one snapshot, compared with the manifest first."""
    entries = listed(run)
    if step not in entries:
        there = f"it has those of steps {', '.join(map(str, entries))}" if entries else "it has none"
        raise UserError(f"{run} has no snapshot of step {step}; {there}")
    path = path_of(run, step)
    if not path.is_file() or not matches(path, entries[step]):
        raise UserError(f"{path} is missing or damaged: it does not match manifest.json")
    return read_tensors(path, shapes, renamed)
