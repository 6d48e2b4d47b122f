"""What a training called from Python gives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..runs import Run


@dataclass
class Outcome:
    """How a training ended."""

    step: int
    finished: bool
    best: dict[str, Any]
    seconds: float
    early: str = ""  # why it ended before its last step, if it did
    overfits: str = ""  # the sentence about a validation loss that rose
    used: str = ""  # how much of its time budget


@dataclass(frozen=True, repr=False)
class Trained:
    """A training that ended: its folder, whether it came to its end, and the metrics of the weights that are kept."""

    path: Path
    finished: bool  # False after Ctrl-C, or where a callback stopped it: it can be resumed
    step: int
    best: Mapping[str, Any]  # metrics of the weights that are kept, and their step; the step alone if not evaluated
    seconds: float  # spent on training
    open: Callable[..., Any] = field(compare=False)  # (path, device)

    @classmethod
    def of(cls, run: Run, outcome: Outcome, open: Callable[..., Any]) -> "Trained":
        kept = run.weights_step
        best = outcome.best if outcome.best.get("step") == kept else {"step": kept}
        return cls(run.path, outcome.finished, outcome.step, best, outcome.seconds, open)

    def load(self, device: str = "cpu") -> Any:
        """What was trained, opened for use: as `pencil.load` gives a run; the model of a task of one's own."""
        return self.open(self.path, device)

    def __repr__(self) -> str:
        how = "" if self.finished else ", stopped early"
        metrics = [f"{name} {value:.4f}" for name, value in self.best.items() if isinstance(value, float)]
        return f"Trained({str(self.path)!r}: {self.step} steps{how}; {', '.join(metrics) or 'not evaluated'})"
