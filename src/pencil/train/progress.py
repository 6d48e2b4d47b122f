"""The progress of a long job: a bar in a terminal, a line now and then elsewhere."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """Rate, loss and time left."""

    def __init__(self, total: int, start: int, unit: str, console: Console | None = None):
        self.console = console or Console(stderr=True)
        self.total, self.unit, self.start, self.begun = total, unit, start, time.monotonic()
        self.spoken = self.begun
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"), TimeRemainingColumn(), console=self.console, transient=True,
        )  # fmt: skip
        self.task = self.progress.add_task("training", total=total, completed=start, note="")

    def __enter__(self) -> "Bar":
        if self.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.console.is_terminal:
            self.progress.stop()

    def update(self, step: int, loss: float, rate: float) -> None:
        note = f"loss {loss:.4f}  {rate:,.0f} {self.unit}/s"
        self.progress.update(self.task, completed=step, note=note)
        now = time.monotonic()
        if not self.console.is_terminal and now - self.spoken > 30:
            self.spoken = now
            left = (now - self.begun) / max(1, step - self.start) * (self.total - step)
            self.say(f"step {step}/{self.total}  {note}  {left:.0f} s left")

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)
