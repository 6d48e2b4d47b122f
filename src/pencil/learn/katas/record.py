"""The learner's progress as one file, read at the start and written after every exercise."""

from collections.abc import Callable
from datetime import datetime

from . import progress
from .progress import Outcome, Standing


class Record:
    """The progress in every exercise; `notify` is called with a sentence if the file was damaged."""

    def __init__(self, notify: Callable[[str], None], now: Callable[[], datetime] = datetime.now):
        self._notify, self.now = notify, now
        self.path = progress.file()
        self.standings = self._read()

    def _read(self) -> dict[str, Standing]:
        try:
            return progress.read(self.path)
        except progress.Damaged:
            aside = progress.set_aside(self.path)
            self._notify(f"{self.path} was damaged: it is now {aside.name}, and your progress starts again")
            return {}

    def of(self, name: str) -> Standing:
        return self.standings.get(name) or progress.NEW

    def when(self, name: str) -> str:
        """When an exercise comes back, in words."""
        return progress.when(self.of(name), self.now().date())

    def following(self, names: list[str]) -> str | None:
        """The exercise that is due or new; None if nothing is left for today."""
        return progress.following(self.standings, names, self.now().date())

    def add(self, name: str, outcome: Outcome | None) -> None:
        """Count one exercise, unless it was not answered."""
        if outcome is not None:
            self.standings = self._read()  # another terminal, or a page, may have written to the file
            self.standings[name] = progress.after(self.of(name), outcome, self.now())
            progress.write(self.path, self.standings)
