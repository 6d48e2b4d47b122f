"""Training steps of a session: they are taken by a copy of the model, and the run is never written.

A copy belongs to the lessons that made it, as a trace belongs to its state: the same lessons give the same weights
again, two pages do not disturb each other, and going back is another state. The last copies are kept, so that one more
step is one step.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from ..api.step import StepMaker, precision_note
from ..config import UserError
from ..families.explore_profile import ExploreProfile
from ..inference.int8 import refuse_int8
from ..runs.run import Loaded
from ..tracing.step import StepTrace
from .answers import Listener
from .lru_cache import Cache
from .requests import Lesson

MOST_COPIES = 2  # besides the run's own weights


@dataclass(frozen=True)
class Trained:
    """A model after its lessons: what its optimizers remember, and the loss before each step on the last input."""

    loaded: Loaded
    optimizers: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()


class Lessons:
    """The copies of one model."""

    def __init__(self, loaded: Loaded, profile: ExploreProfile):
        self._run, self._profile = Trained(loaded), profile
        self._copies = Cache[str, Trained](MOST_COPIES)

    def trained(self, lessons: Sequence[Lesson], listener: Listener) -> Trained:
        """The model after these lessons."""
        if not lessons:
            return self._run
        return self._copies.get_or_make(_key(lessons), lambda: self._train(lessons, listener))

    def record(self, lessons: Sequence[Lesson], step: Lesson, listener: Listener) -> StepTrace:
        """The step that follows these lessons; its facts say what the numbers of the trace do not."""
        trained = self.trained(lessons, listener)
        listener.tell("progress", {"done": 0, "total": 1, "text": "recording the step"})
        maker = self._maker(trained, step)
        trace = maker.record()
        rates = {type(one).__name__: one.param_groups[0]["lr"] for one in maker.optimizers.values()}
        trace.facts |= {
            "targets": maker.targets,
            "rates": rates,
            "clip": maker.clip,
            "history": list(_history(trained, lessons, step)),
            "note": precision_note(trained.loaded.run),
        }
        return trace

    def _train(self, lessons: Sequence[Lesson], listener: Listener) -> Trained:
        """The model after the last of the lessons, from the nearest copy on the way there."""
        *before, last = lessons
        start, done = None, last.steps
        while start is None and done > 1:
            done -= 1
            start = self._copies.get(_key([*before, replace(last, steps=done)]))
        if start is None:
            start, done = self.trained(before, listener), 0
        model = deepcopy(start.loaded.model)
        maker = self._maker(replace(start, loaded=start.loaded._replace(model=model)), last)
        history = list(start.history if done else _history(start, before, last))
        for step in range(done, last.steps):
            listener.step(step - done, last.steps - done, "training")
            loss, probabilities = maker.take()
            seen = {"loss": loss, "probabilities": probabilities}
            history.append(seen)
            listener.tell("lesson", seen)
        state = {name: optimizer.state_dict() for name, optimizer in maker.optimizers.items()}
        return Trained(start.loaded._replace(model=model), state, history)

    def _maker(self, trained: Trained, lesson: Lesson) -> StepMaker:
        """What makes the steps of a lesson; its optimizers remember what those before them did."""
        loaded, profile = trained.loaded, self._profile
        if isinstance(why_not := profile.target(loaded), str):
            raise UserError(why_not)
        assert profile.with_target is not None
        refuse_int8(loaded.model, "trained")
        if loaded.device.type != "cpu":
            raise UserError(f"the page trains on a CPU, and this model is on {loaded.device}: open its run on a CPU")
        live = profile.with_target(loaded, profile.read(loaded, lesson.input), lesson.target)
        if live.traced_model.targets is None and live.loss is None:
            raise UserError("a text's targets are its next tokens, and this one has a single token: write one more")
        maker = StepMaker(loaded, live)
        for name, state in trained.optimizers.items():
            maker.optimizers[name].load_state_dict(deepcopy(state))
        for group in (group for optimizer in maker.optimizers.values() for group in optimizer.param_groups):
            group["lr"] = group["peak"] * lesson.rate
        return maker


def _history(trained: Trained, lessons: Sequence[Lesson], step: Lesson) -> Sequence[Mapping[str, Any]]:
    """What is known of the steps before one: of those on the same input."""
    return trained.history if lessons and lessons[-1].is_on(step.input, step.target) else ()


def _key(lessons: Sequence[Lesson]) -> str:
    return json.dumps([lesson.as_json() for lesson in lessons])
