"""Measurements on disk: a command that was interrupted goes on where it was, and takes over no others.

A folder of results has plan.json, what the measurements in its results.jsonl are of: the command, the sizes, the
versions and the machine. Only the same plan is continued.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...config import UserError
from ...files import locked, write_aside
from .claim import Claim
from .runner import Plan, Row, environment

PLAN, ROWS = "plan.json", "results.jsonl"
FORMAT = 1
MEND = "--force starts anew, --out chooses another folder"


def described(plan: Plan, command: str) -> dict[str, Any]:
    """What the measurements of a plan are of; two plans with the same description may share them."""
    facts = environment()
    return {
        "format": FORMAT,
        "command": command,
        "seeds": plan.seeds,
        "sizes": {claim.name: _plain(claim.size(plan.quick)) for claim in plan.claims},
        "arms": {claim.name: list(claim.arms) for claim in plan.claims},
        "pencil": facts["pencil"],
        "source of pencil": _source(),
        "torch": facts["torch"],
        "python": facts["python"],
        "machine": facts["machine"].rpartition(", load")[0] or facts["machine"],
    }


def _plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    return json.loads(json.dumps(dict(value) if isinstance(value, Mapping) else value))


def _source() -> str:
    """A short digest of Pencil's code: the version alone does not tell an edited copy."""
    top = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(top.rglob("*.py")):
        with suppress(OSError):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(top).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """One writer of a folder at a time."""
    with locked(folder, f"{folder} is being written by another process; --out chooses another folder"):
        yield


def take_over(folder: Path, plan: Plan, command: str) -> list[Row]:
    """The measurements of this plan that the folder has; a new folder gets the plan, another plan is refused.

    What is not taken over is removed from results.jsonl: the line a kill cut short, and the lines of a claim that
    measures time and was not finished, since its arms must be measured in one go.
    """
    wanted = described(plan, command)
    if not (folder / ROWS).exists() and not (folder / PLAN).exists():
        write_aside(folder / PLAN, _json(wanted))
        write_aside(folder / ROWS, b"")
        return []
    _compare(folder, wanted)
    rows = _usable(_read(folder / ROWS, plan), plan)
    write_aside(folder / ROWS, b"".join(_json(vars(row)) for row in rows))
    return rows


def finished(plan: Plan, rows: Sequence[Row]) -> list[str]:
    """The claims of which every measurement is there."""
    counts = {claim.name: sum(row.claim == claim.name for row in rows) for claim in plan.claims}
    return [claim.name for claim in plan.claims if counts[claim.name] == plan.seeds * len(claim.arms)]


def start_anew(folder: Path) -> None:
    """Remove the measurements of an earlier command."""
    for name in (ROWS, PLAN, "results.json"):
        (folder / name).unlink(missing_ok=True)


def _json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False) + "\n").encode()


def _compare(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Refuse measurements of another command, version or machine, and name the first difference."""
    try:
        written = json.loads((folder / PLAN).read_bytes()) if (folder / PLAN).is_file() else None
    except (ValueError, RecursionError):
        written = None
    if not isinstance(written, dict) or written.get("format") != FORMAT:
        raise UserError(f"{folder} has measurements, but no {PLAN} that says of what; {MEND}")
    for key, value in wanted.items():
        if written.get(key) != value:
            there = "".join(letter for letter in str(written.get(key))[:80] if letter.isprintable())
            there = f" ({there}, not {value})" if isinstance(value, (str, int)) else ""
            raise UserError(f"{folder} has measurements of another {key.removesuffix('s')}{there}; {MEND}")


def _read(path: Path, plan: Plan) -> list[Row]:
    """The whole lines of a file of measurements."""
    if not path.is_file():
        raise UserError(f"{path} is missing; {MEND}")
    *lines, last = path.read_bytes().split(b"\n")
    del last  # empty, or cut short when the writer was killed
    claims, rows = {claim.name: claim for claim in plan.claims}, {}
    names: dict[tuple[str, str], set[str]] = {}  # what is measured, in each arm of each claim
    for number, line in enumerate(lines, 1):
        row = _row(line, claims, plan.each_seed)
        twice = row is None or (row.claim, row.arm, row.seed) in rows
        if row is None or twice or names.setdefault((row.claim, row.arm), {*row.measured}) != {*row.measured}:
            raise UserError(f"{path}, line {number} is damaged; {MEND}")
        rows[row.claim, row.arm, row.seed] = row
    return list(rows.values())


def _row(line: bytes, claims: Mapping[str, Claim], seeds: range) -> Row | None:
    """A line as a measurement of one of these claims; None if it is not one."""
    try:
        row = Row(**json.loads(line))
        claim = claims[row.claim]
        wanted = {p.metric for p in claim.predictions if row.arm in (p.more, p.less)}
        curves = {curve.name for curve in claim.curves}
        fine = row.arm in claim.arms and row.seed in seeds and row.seconds >= 0 and wanted <= row.measured.keys()
        fine = fine and all(_is_curve(v) if name in curves else math.isfinite(v) for name, v in row.measured.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None
    return row if fine else None


def _is_curve(value: Any) -> bool:
    return isinstance(value, list) and all(len(point) == 2 and all(map(math.isfinite, point)) for point in value)


def _usable(rows: Sequence[Row], plan: Plan) -> list[Row]:
    whole = finished(plan, rows)
    timed = {claim.name for claim in plan.claims if claim.alone}
    return [row for row in rows if row.claim in whole or row.claim not in timed]
