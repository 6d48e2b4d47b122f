"""A session: one opened model, its answers and its traces.

The views of the page are functions of a session, each in its own file. A session is used from one thread. It keeps the
last few traces; an older one is recorded again from its state, which is remembered by its key.

Views are data, and Python comes first. A `Session` is one opened model. Each view is a function of a session that takes
a state (model, input, edits) and gives plain dicts; the server is a thin shell around them (`explore/server.py`), and a
file that is shared holds the same dicts (`explore/export.py`). What a family takes, answers and offers is a field of
its record (`families/explore_profile.py`); nothing in `explore` names a family.

An answer is not recorded. Typing runs the untraced pass, edited where there are edits (`explore/edits.py`: the same
numbers as an edited trace). A trace is recorded when something is opened, under a key: a hash of model, checkpoint,
input and edits. A few are kept; an older one is recorded again from its state, so a link never ends in nothing.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..api.loading import load
from ..config import UserError
from ..families import family
from ..families.predictions import input_transform
from ..models.build import check_finite
from ..runs import snapshots
from ..runs.files import example_run
from ..runs.run import Loaded
from ..tensors import rename
from ..tracing.contributions import Contributions
from ..tracing.live_trace import LiveTrace
from ..tracing.step import StepTrace
from ..train.loop import checkpoint
from .answers import NOBODY, Answer, Listener, Question, answer, one_thread
from .edits import Edit, locate_edit, with_edits
from .lessons import MOST_COPIES, Lessons, Trained
from .lru_cache import Cache
from .requests import Lesson, State, read_state

MOST_LIVE_PARAMETERS = 10_000_000  # up to which every change is answered at once
MOST_TRACES, MOST_TRACE_BYTES = 6, 2_000_000_000  # of the traces that are kept, together
MOST_ANSWERS, MOST_STATES = 24, 2000
# the trained models that are explored where no run is named, and what the page calls them
EXAMPLES = {"example:scenes": "two digits, described", "example:english": "a small writer of English"}


class Session:
    """One opened model: a run, a run at a checkpoint, an imported run, or the example that comes with Pencil."""

    def __init__(
        self,
        loaded: Loaded,
        id: str = "a",
        name: str | None = None,
        step: int | None = None,
        path: str | None = None,
    ):
        self.id, self.loaded, self.kind = id, loaded, family(loaded.run.family)
        if self.kind.explore is None:
            raise UserError(
                f"{loaded.run.path} is a {self.kind.name}, which cannot be explored; pencil trace records it"
            )
        self.profile = self.kind.explore
        self.folder = Path(str(loaded.run.path))
        self.name = name or self.folder.name
        self.path = str(loaded.run.path) if path is None else path  # to open it again
        self.step = getattr(loaded.run, "weights_step", None) if step is None else step
        self.weights = f"{loaded.run.path}@{self.step}"
        self.own_weights = step is None  # those of the run, not of one of its checkpoints
        self.takes, self.controls = self.profile.takes(loaded), tuple(self.profile.controls(loaded))
        # how a picture is brought to the model's size, as plain data; None for a model that reads none
        self.transform = asdict(input_transform(loaded)) if "picture" in self.takes else None
        self.parameters = sum(p.numel() for p in loaded.model.parameters())
        self.live = self.parameters <= MOST_LIVE_PARAMETERS
        loaded.model.eval()
        check_finite(loaded.model.named_parameters())
        self.states = Cache[str, State](MOST_STATES)
        self.answers = Cache[str, Answer](MOST_ANSWERS)
        self.lessons = Lessons(loaded, self.profile)
        self.moments = Cache[int, Trained](MOST_COPIES)  # the model at steps of its training
        # what the attention views make of a trace, and how they score its heads: a session imports no view, so the
        # values have no type here; pictures go with their trace
        self.pictures: Cache[str, Any] = Cache(MOST_TRACES)
        self.traces = Cache[str, LiveTrace | StepTrace](
            MOST_TRACES, MOST_TRACE_BYTES, lambda trace: trace.graph.bytes, on_drop=self.pictures.pop
        )
        self.contributions = Cache[tuple[str, str, str | None], Contributions](MOST_TRACES)
        self.head_scores: Cache[str, Any] = Cache(1)

    @classmethod
    def open(cls, path: str | Path, id: str = "a", step: int | None = None) -> "Session":
        """The model of a run, or the one of its snapshot or checkpoint at a step."""
        loaded = load(path, dtype="auto")
        if step is None:
            return cls(loaded, id)
        return cls(load_step(loaded, step), id, f"{Path(path).name}@{step}", step)

    @classmethod
    def of_examples(cls) -> "list[Session]":
        """The small trained models that come with Pencil: a captioner first, and a GPT."""
        found = [(name, title) for name, title in EXAMPLES.items() if example_run(name) is not None]
        if not found:
            raise UserError("this installation has no example model: name a run, pencil explore runs/…")
        return [
            cls(load(name, dtype="auto"), id, title, path=name) for id, (name, title) in zip("ab", found, strict=True)
        ]

    @property
    def path_elsewhere(self) -> str:
        """The path on another machine: an example's name, or the run's folder without those above it."""
        return self.path if self.path in EXAMPLES else f"runs/{self.folder.name}"

    def about(self) -> dict[str, Any]:
        """The model in a few numbers, what it reads, and inputs to begin with."""
        c = self.loaded.model.config
        examples = [{"name": name, "input": input} for name, input in self.profile.examples(self.loaded)]
        target = self.profile.target(self.loaded)
        return {
            "id": self.id,
            "name": self.name,
            "path": self.path,
            "family": self.kind.name,
            "summary": self.kind.summary,
            "parameters": self.parameters,
            "step": self.step,
            "depth": c.depth,
            "heads": c.heads,
            "live": self.live,
            "input": self.takes,
            "output": self.profile.output(self.loaded),
            "unmeasured": self._unmeasured(),
            "target": target if isinstance(target, str) else asdict(target),
            "controls": [asdict(control) for control in self.controls],
            "example": examples[0]["input"],
            "examples": examples,
        }

    def _unmeasured(self) -> str:
        """Why no score says what a head does; empty where scores can be measured."""
        from ..learn.heads.kept import is_example

        if isinstance(self.kind.heads, str):
            return self.kind.heads.partition(";")[0]
        known = {"data_path", "data_hash"} <= set(self.loaded.run.config["run"])
        own_text = is_example(self.loaded) and self.kind.heads is not None and self.kind.heads.from_text is not None
        return "" if known or own_text else "the run does not record where its data is"

    def state(self, raw: State | Mapping[str, Any]) -> State:
        """A state as the page sends it, checked and completed."""
        if isinstance(raw, State):
            return raw
        return read_state(raw, self.id, self.weights, self.takes, self.controls)

    def answer(self, raw: State | Mapping[str, Any], listener: Listener = NOBODY) -> dict[str, Any]:
        """The answer to a state, from a pass that is not recorded."""
        return self.compute_answer(self.state(raw), listener).shown

    def compute_answer(self, state: State, listener: Listener = NOBODY) -> Answer:
        """The answer and its tokens; computed anew where someone hears of its events."""

        asked, state = state, replace(state, step=None, rate=1.0)  # which says only what is recorded
        if self.profile.draws:  # and of a picture out of the noise also the denoising step
            state = replace(state, options={**state.options, "step": 1})
            if state.key in self.answers:
                found = self.answers[state.key]
                return replace(found, shown={**found.shown, "state": asked.as_json()})

        def compute() -> Answer:
            edits, loaded = self.located_edits(state), self.trained(state, listener).loaded
            return answer(Question(loaded, self.profile, state, edits, self.live, listener))

        if listener.on_event is not None:
            found = self.answers.put(state.key, compute())
        else:
            found = self.answers.get_or_make(state.key, compute)
        return replace(found, shown={**found.shown, "state": asked.as_json()}) if self.profile.draws else found

    def trained(self, state: State, listener: Listener = NOBODY) -> Trained:
        """The model of a state: the run's, at a step of its training, or the copy that has taken its lessons."""
        with one_thread(self.live):
            if state.at is None:
                return self.lessons.trained(state.lessons, listener)
            at = state.at
            return self.moments.get_or_make(at, lambda: Trained(load_step(self.copy(), at)))

    def copy(self) -> Loaded:
        """The same run with a model of its own."""
        return self.loaded._replace(model=deepcopy(self.loaded.model))

    def record(self, raw: State | Mapping[str, Any], listener: Listener = NOBODY) -> LiveTrace:
        """What the model computed for the answer to a state, every operation of it."""
        state = self.state(raw)
        if state.step is not None:
            raise UserError("this is a training step: only its numbers can be shown")
        trace = self._record(state, listener)
        assert isinstance(trace, LiveTrace)
        return trace

    def record_step(self, raw: State | Mapping[str, Any], listener: Listener = NOBODY) -> StepTrace:
        """The training step on the input of a state, towards its target."""
        state = self.state(raw)
        if state.edits:
            raise UserError("a training step is recorded without changes: undo them first")
        trace = self._record(state, listener)
        assert isinstance(trace, StepTrace)
        return trace

    def _record(self, state: State, listener: Listener) -> LiveTrace | StepTrace:
        self.states.put(state.key, state)

        def record() -> LiveTrace | StepTrace:
            if state.step is not None:
                step = Lesson(state.input, state.step, 1, state.rate)
                with one_thread(self.live):
                    return self.lessons.record(state.lessons, step, listener)
            answer = self.compute_answer(state, listener)
            listener.tell("progress", {"done": 0, "total": 1, "text": "recording"})
            with one_thread(self.live):  # as the answer was computed
                loaded = self.trained(state).loaded
                trace = self.profile.trace(loaded, answer.prompt, answer.written, state.options)
                return with_edits(trace, self.located_edits(state))

        return self.traces.get_or_make(state.key, record)

    def trace(self, key: str) -> LiveTrace:
        """The trace of a key; recorded again where it is no longer kept."""
        return self.record(self._known(key))

    def any_trace(self, key: str) -> LiveTrace | StepTrace:
        """The same, of an answer or of a training step."""
        state = self._known(key)
        return self.record(state) if state.step is None else self.record_step(state)

    def _known(self, key: str) -> State:
        if key not in self.states:
            raise UserError("this page is of another session: load it again")
        return self.states[key]

    def located_edits(self, state: State) -> list[Edit]:
        """The edits of a state, with indices for their labels, and the values that they are patched with."""
        if not state.edits:
            return []
        trace = self.record(state.with_edits(()))
        return [locate_edit(trace, edit, partial(self._other_trace, state)) for edit in state.edits]

    def _other_trace(self, state: State) -> LiveTrace | None:
        """The trace of the other input of a state; none where it has none."""
        if self.profile.draws:
            raise UserError(
                "this model runs once a denoising step, and a patch is of one run: set a number, mean or noise"
            )
        return None if state.other is None else self.record(state.with_edits(()).of_other())


def load_checkpoint(loaded: Loaded, step: int) -> Loaded:
    """The same run with its weights after this step: the moving average, where it has one."""
    folder = Path(str(loaded.run.path))
    steps = checkpoint.saved_steps(folder)
    if step not in steps:
        saved = f"it has those of steps {', '.join(map(str, steps))}" if steps else "it has none"
        raise UserError(f"{folder} has no checkpoint of step {step}; {saved}")
    tensors, renamed = checkpoint.read(folder, step).tensors, family(loaded.run.family).renamed_tensors
    own = loaded.model.state_dict()
    weights = {}
    for prefix in ("model.", "ema."):
        for stored in tensors:
            if stored.startswith(prefix):
                name = stored.removeprefix(prefix)
                name = name if name in own else rename(name, renamed)
                weights[name] = tensors[stored]
    if {name: value.shape for name, value in weights.items()} != {name: value.shape for name, value in own.items()}:
        raise UserError(f"the checkpoint of step {step} of {folder} is of another model")
    loaded.model.load_state_dict({name: value.to(own[name].dtype) for name, value in weights.items()})
    return loaded


def load_step(loaded: Loaded, step: int) -> Loaded:
    """The same run, its model given the weights of a snapshot or a checkpoint."""
    folder = Path(str(loaded.run.path))
    if step in snapshots.listed(folder):
        shapes = {name: tuple(t.shape) for name, t in loaded.model.state_dict().items()}
        own = loaded.model.state_dict()
        read = snapshots.read(folder, step, shapes, family(loaded.run.family).renamed_tensors)
        loaded.model.load_state_dict({name: t.to(own[name].dtype) for name, t in read.items()})
        return loaded
    return load_checkpoint(loaded, step)
