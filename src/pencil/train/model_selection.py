"""What the validation losses of a training say: which weights are best, whether it overfits, when to stop early.

A test set does not select weights. Digits, MNIST and the scenes have a test set that others report on, so the last
weights are kept. Of a folder of the user's own a tenth is held out; there the best by that tenth are kept, as for text.

Too little data is counted in passes. After about 40 passes over the same text more of them teach almost nothing
(Muennighoff et al., 2023); an augmented image differs in each pass (200 are allowed), and so does a noised one (2,000,
as often as DDPM sees CIFAR-10). A training that would exceed this says so first. It depends on data and steps alone,
not on a guess of how hard a task is; whether it overfits is then measured: three evaluations in a row with a rising
validation loss.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from .settings import TrainConfig

HIGHER_IS_BETTER = ("accuracy", "exact_match")
RISES_TO_OVERFIT = 3  # evaluations in a row with a higher loss than the one before
# passes over the same data after which more of them teach almost nothing: Muennighoff et al., 2023, for text
MOST_PASSES = 40
MOST_PASSES_AUGMENTED = 200  # an augmented image is another one in each pass
MOST_PASSES_NOISED = 2000  # as often DDPM sees each image of CIFAR-10, each time with other noise


class Amount(NamedTuple):
    """How much there is to train on."""

    examples: int
    what: str  # "captions"
    per_update: int  # how many of them are in one update
    most_passes: int = MOST_PASSES

    def __str__(self) -> str:
        return f"{self.examples:,} {self.what}"

    def too_little(self, config: TrainConfig, started: bool = False) -> str | None:
        """A sentence if each example would be seen so often that it is learned by heart.

        `started`: training starts from the weights of another run, so that nothing more is gained by that.
        """
        passes = config.steps * self.per_update / max(1, self.examples)
        if passes <= self.most_passes:
            return None
        enough = max(1, self.most_passes * self.examples // self.per_update)
        return (
            f"{self} are little for {config.steps:,} steps: each is seen {passes:,.0f} times, and after about "
            f"{self.most_passes} a model learns little but to repeat them; more data, "
            f"{'' if started else 'a smaller preset, --from RUN with the weights of a run trained on more, '}or "
            f"--train.steps {enough}"
        )


@dataclass
class Validation:
    """How the validation loss has developed so far."""

    last: float = math.inf
    best: float = math.inf
    rises: int = 0  # evaluations in a row with a higher loss than the one before
    without_better: int = 0  # evaluations since the best
    overfits: bool = False  # it rose RISES_TO_OVERFIT times in a row at some point

    def add(self, loss: float) -> bool:
        """Add an evaluation; whether overfitting is to be announced after it."""
        self.rises = self.rises + 1 if loss > self.last else 0
        self.without_better = 0 if loss < self.best else self.without_better + 1
        self.last, self.best = loss, min(loss, self.best)
        announced, self.overfits = self.overfits, self.overfits or self.rises >= RISES_TO_OVERFIT
        return self.overfits and not announced

    def exhausted(self, patience: int) -> bool:
        """Whether so many evaluations brought no better loss."""
        return 0 < patience <= self.without_better

    def state(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        return {name: None if value == math.inf else value for name, value in asdict(self).items()}

    @classmethod
    def restored(cls, state: Mapping[str, Any] | None, best: Mapping[str, Any]) -> "Validation":
        """The state that a checkpoint has recorded; older versions recorded the best only."""
        if state is None:
            return cls(best=best.get("val_loss", math.inf))
        values: dict[str, Any] = {name: math.inf if value is None else value for name, value in state.items()}
        return cls(**values)


def higher_headline(highest: Mapping[str, Any], results: Mapping[str, Any], headline: str) -> dict[str, Any]:
    """The evaluation with the highest headline so far, and its step: other weights may have a lower validation loss.

    Only of a metric that is known to be better the higher it is: that of a task of `pencil.fit` may be an error.
    """
    better = headline in HIGHER_IS_BETTER and results.get(headline, -math.inf) > highest.get(headline, -math.inf)
    return {"step": results["step"], headline: results[headline]} if better else dict(highest)


def describe_highest(highest: Mapping[str, Any], weights: Mapping[str, Any], headline: str) -> str:
    """A remark, where `weights`, the facts of those kept for their validation loss, lack the highest headline."""
    if headline not in highest or not highest[headline] > float(weights.get(headline, math.inf)):
        return ""
    return f"the highest {headline} was {highest[headline]:.4f}, at step {highest['step']}"


def describe_overfitting(amount: Amount | None, kept_weights: str) -> str:
    """The sentence about a validation loss that rises."""
    have = f"{amount}: " if amount else ""
    return (
        f"{have}validation loss has risen for {RISES_TO_OVERFIT} evaluations; {kept_weights}; more data, or a smaller "
        "preset"
    )
