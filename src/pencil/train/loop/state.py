"""What a training called from Python gives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...runs.run import Run
from ..tasks.metrics import is_detail


@dataclass
class Outcome:
    """How a training ended."""

    step: int
    finished: bool
    best: dict[str, Any]
    seconds: float
    early: str = ""  # why it ended before its last step, if it did
    overfits: str = ""  # the sentence about a validation loss that rose
    highest: dict[str, Any] = field(default_factory=dict)  # the evaluation with the highest headline, and its step
    used: str = ""  # how much of its time budget


@dataclass(frozen=True, repr=False)
class Trained:
    """A training that ended: its folder, whether it came to its end, and the metrics of the weights that are kept."""

    path: Path
    finished: bool  # False after Ctrl-C, or where a callback stopped it: it can be resumed
    step: int
    # metrics of the weights that are kept, those of the lowest val_loss unless the last are, and their step; the step
    # alone if they were not evaluated
    best: Mapping[str, Any]
    seconds: float  # spent on training
    open: Callable[..., Any] = field(compare=False)  # (path, device)
    highest: Mapping[str, Any] = field(default_factory=dict)  # the highest accuracy of all evaluations, and its step

    @classmethod
    def of(cls, run: Run, outcome: Outcome, open: Callable[..., Any]) -> "Trained":
        kept = run.weights_step
        best = outcome.best if outcome.best.get("step") == kept else {"step": kept}
        return cls(run.path, outcome.finished, outcome.step, best, outcome.seconds, open, outcome.highest)

    def load(self, device: str = "cpu") -> Any:
        """What was trained, opened for use: as `pencil.load` gives a run; the model of a task of one's own."""
        return self.open(self.path, device)

    def __repr__(self) -> str:
        how = "" if self.finished else ", stopped early"
        shown = {name: value for name, value in self.best.items() if isinstance(value, float) and not is_detail(name)}
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in shown.items())
        kept = f"{metrics} at step {self.best['step']}, which is kept" if metrics else "not evaluated"
        return f"Trained({str(self.path)!r}: {self.step} steps{how}; {kept})"
