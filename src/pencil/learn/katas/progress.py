"""A learner's progress: one small file, written after every exercise, and when each exercise comes back."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Literal

from ...config import UserError
from ...files import user_folder, write_aside

Outcome = Literal["solved", "corrected", "wrong", "seen"]
DAYS = (0, 1, 3, 7, 16, 35)  # of each box: days until its exercises come back
FORMAT = 1


@dataclass(frozen=True)
class Standing:
    """One exercise: its attempts and their outcomes, its box, when it is due, and when it was last done."""

    attempts: int = 0
    solved: int = 0
    seen: int = 0
    wrong: int = 0
    box: int = 0
    due: date | None = None
    last: datetime | None = None


NEW = Standing()


def after(standing: Standing, outcome: Outcome, now: datetime) -> Standing:
    """The standing after one more attempt.

    Solved at once, an exercise moves one box up, unless it was not due yet; solved after a wrong answer, it goes to
    box 1; not solved, or the working shown, it goes to box 0 and is due the same day.
    """
    today, box = now.date(), standing.box
    if outcome == "solved":
        early = standing.due is not None and today < standing.due
        box = box if early else min(box + 1, len(DAYS) - 1)
        due = standing.due if early else today + timedelta(DAYS[box])
    else:
        box = int(outcome == "corrected")
        due = today + timedelta(DAYS[box])
    return replace(
        standing,
        attempts=standing.attempts + 1,
        solved=standing.solved + (outcome in ("solved", "corrected")),
        wrong=standing.wrong + (outcome in ("corrected", "wrong")),
        seen=standing.seen + (outcome == "seen"),
        box=box,
        due=due,
        last=now,
    )


def following(standings: Mapping[str, Standing], names: Iterable[str], today: date) -> str | None:
    """The next exercise: what is due, longest due first; else the first new one; None if nothing is left for today.

    The one done last comes only after another exercise, if there is one.
    """
    names = list(names)
    tried = {name: standings[name] for name in names if name in standings}
    latest = max(tried, key=lambda name: tried[name].last or datetime.min, default=None)
    due = [name for name, s in tried.items() if s.due is None or s.due <= today]
    due.sort(key=lambda name: (tried[name].due or date.min, tried[name].last or datetime.min))
    fresh = [name for name in names if name not in tried]
    offered = [*(name for name in due if name != latest), *fresh[:1], *due]
    return offered[0] if offered else None


def when(standing: Standing, today: date) -> str:
    """When an exercise comes back, in words."""
    if not standing.attempts or standing.due is None:
        return "new"
    days = (standing.due - today).days
    return "due" if days <= 0 else "tomorrow" if days == 1 else f"in {days} days"


def file() -> Path:
    """Where progress is kept: in $PENCIL_DATA, or in the user's data folder."""
    return user_folder() / "katas.json"


def read(path: Path, notify: Callable[[str], None] = lambda sentence: None) -> dict[str, Standing]:
    """The standings in a file; none if there is no file.

    A damaged file is renamed, so that nothing is lost, and `notify` is called with a sentence about it.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"cannot read your progress in {path} ({error.strerror}); set PENCIL_DATA") from None
    try:
        table = json.loads(content)
        newer = table["format"] > FORMAT
        standings = {} if newer else {name: _standing(row) for name, row in table["katas"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        tried = (path.with_name(f"{path.name}.damaged{n if n > 1 else ''}") for n in count(1))
        aside = path.rename(next(name for name in tried if not name.exists()))
        notify(f"{path} was damaged: it is now {aside.name}, and your progress starts again")
        return {}
    if newer:
        raise UserError(f"{path} was written by a newer pencil; update this one, or move the file away")
    return standings


def write(path: Path, standings: Mapping[str, Standing]) -> None:
    """Replace the whole file."""
    rows = {name: {k: _plain(v) for k, v in vars(s).items()} for name, s in standings.items()}
    text = json.dumps({"format": FORMAT, "katas": rows}, indent=1, ensure_ascii=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, text.encode())
    except OSError as error:
        raise UserError(f"cannot keep your progress in {path} ({error.strerror}); set PENCIL_DATA") from None


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


def _standing(row: Mapping[str, Any]) -> Standing:
    counts = {name: row[name] for name in ("attempts", "solved", "seen", "wrong", "box")}
    if not all(type(n) is int and n >= 0 for n in counts.values()) or counts["box"] >= len(DAYS):
        raise ValueError
    due = date.fromisoformat(row["due"]) if row["due"] else None
    last = datetime.fromisoformat(row["last"]) if row["last"] else None
    if last is not None and last.tzinfo is not None:
        raise ValueError
    return Standing(**counts, due=due, last=last)


class Record:
    """The progress in every exercise; `notify` is called with a sentence if the file was damaged.

    With `keep` false it begins with nothing and is forgotten: a guest's, who neither sees nor changes that of the user.
    """

    def __init__(self, notify: Callable[[str], None], now: Callable[[], datetime] = datetime.now, keep: bool = True):
        self._notify, self.now = notify, now
        self.path = file() if keep else None
        self.standings = {} if self.path is None else read(self.path, notify)

    def of(self, name: str) -> Standing:
        return self.standings.get(name) or NEW

    def when(self, name: str) -> str:
        """When an exercise comes back, in words."""
        return when(self.of(name), self.now().date())

    def following(self, names: list[str]) -> str | None:
        """The exercise that is due or new; None if nothing is left for today."""
        return following(self.standings, names, self.now().date())

    def add(self, name: str, outcome: Outcome | None) -> None:
        """Count one exercise, unless it was not answered."""
        if outcome is not None:
            if self.path is not None:  # another terminal, or a page, may have written to the file
                self.standings = read(self.path, self._notify)
            self.standings[name] = after(self.of(name), outcome, self.now())
            if self.path is not None:
                write(self.path, self.standings)
