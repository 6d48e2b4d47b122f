"""What a training knows of itself, besides tensors: its state while it goes on, and how it ended."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ...runs.run import Run
from ..model_selection import Validation, higher_headline
from ..schedule import factor
from ..settings import Plan, TrainConfig, fit_warmup
from ..tasks.metrics import is_detail
from .time_budget import Budget


@dataclass
class TrainState:
    """What changes from step to step; `state_dict` is what a checkpoint records of it."""

    config: TrainConfig  # the settings in force: those of the latest plan, where there is a time budget
    step: int = 0  # how many updates were made
    best: dict[str, Any] = field(
        default_factory=dict
    )  # step and metrics of the weights kept as the best; empty if they were lost
    pending: list[float] = field(default_factory=list)  # losses since the last line of metrics
    pending_norms: list[float] = field(default_factory=list)  # of the same updates, the norms of their gradients
    seconds: float = 0.0  # spent on updates
    skipped: int = 0  # updates that were left out because they were not finite
    validation: Validation = field(default_factory=Validation)
    evaluated: int = -1  # the step that was evaluated last
    highest: dict[str, Any] = field(default_factory=dict)  # the evaluation with the highest headline, and its step
    budget: Budget | None = None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint records, besides the step and the time budget."""
        return {
            "best": self.best,
            "pending": self.pending,
            "pending_norms": self.pending_norms,
            "seconds": self.seconds,
            "skipped": self.skipped,
            "validation": self.validation.state(),
            "evaluation_due": self.evaluation_due,
        }

    def load_state_dict(self, recorded: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`; older versions recorded less. A KeyError, TypeError or ValueError if damaged."""
        best = dict(recorded["best"])
        pending, seconds = list(recorded["pending"]), float(recorded["seconds"])
        self.step, self.best, self.pending, self.seconds = recorded["step"], best, pending, seconds
        self.pending_norms = list(recorded.get("pending_norms", ()))
        self.skipped = recorded.get("skipped", 0)
        self.evaluated = -1 if recorded.get("evaluation_due") else self.step
        self.validation = Validation.restored(recorded.get("validation"), best)

    @property
    def plans(self) -> list[Plan]:
        """The plans of the time budget that were in force so far; none without one."""
        return [] if self.budget is None else self.budget.plans

    @property
    def evaluation_due(self) -> bool:
        """Whether this step is one that is evaluated, and has not been."""
        due = self.step >= self.config.steps or self.step % self.config.eval_every == 0
        return due and self.evaluated != self.step

    @property
    def ended(self) -> bool:
        """Whether the last step was made and evaluated, or no better one is expected."""
        last = 0 < self.config.steps <= self.step
        return self.evaluated == self.step and (last or self.validation.exhausted(self.config.patience))

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last update."""
        return self.config.lr * factor(self.step - 1, self.config, self.plans)

    def open_budget(self, budget: Budget) -> None:
        """Train within a time budget, by the last of its plans."""
        self.budget = budget
        if budget.plans:
            self.config = with_plan(self.config, budget.plans[-1])

    def fit_warmup(self) -> list[str]:
        """Shorten the warm-up to the steps that a first plan has decided; notes about it."""
        self.config, notes = fit_warmup(self.config, chosen=False)
        return notes

    def follow(self, plan: Plan) -> None:
        """Train by this plan of the time budget from this step on."""
        self.plans.append(plan)
        self.config = with_plan(self.config, plan)

    def record_evaluation(self, results: Mapping[str, float], headline: str) -> bool:
        """Record the evaluation of this step; whether overfitting is to be announced after it."""
        self.evaluated = self.step
        self.record_headline({"step": self.step, **results}, headline)
        return self.validation.add(results["val_loss"])

    def record_headline(self, results: Mapping[str, Any], headline: str) -> None:
        """Keep an evaluation if its headline is the highest so far."""
        self.highest = higher_headline(self.highest, results, headline)


def with_plan(config: TrainConfig, plan: Plan) -> TrainConfig:
    """The settings under a plan of a time budget."""
    return replace(config, **{name: value for name, value in plan.items() if name != "step"})


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
    def of(cls, run: Run, outcome: Outcome, open: Callable[..., Any]) -> Self:
        step = run.weights_step
        best = outcome.best if outcome.best.get("step") == step else {"step": step}
        return cls(run.path, outcome.finished, outcome.step, best, outcome.seconds, open, outcome.highest)

    def load(self, device: str = "cpu") -> Any:
        """What was trained, opened for use: as `pencil.load` gives a run; the model of a task of `pencil.fit`."""
        return self.open(self.path, device)

    def __repr__(self) -> str:
        how = "" if self.finished else ", stopped early"
        values = {name: value for name, value in self.best.items() if isinstance(value, float) and not is_detail(name)}
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        weights = f"{metrics} at step {self.best['step']}, which is kept" if metrics else "not evaluated"
        return f"Trained({str(self.path)!r}: {self.step} steps{how}; {weights})"
