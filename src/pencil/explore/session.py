"""One opened model, and everything the page shows of it as plain data.

A subject is used from one thread. It keeps the last few traces; an older one is recorded again from its state, which is
remembered by its key.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..api.loading import load
from ..config import UserError
from ..families import family
from ..families.predictions import input_transform
from ..models.output import check_finite
from ..runs.run import Loaded
from ..tracing.contributions import Contributions
from ..tracing.edits import edited, parse_edit
from ..tracing.live_trace import LiveTrace
from .answers import Found, Job, OnEvent, Stopped, answer
from .attention_views import Lights, Patterns, attention
from .cells import receipt, sliced
from .checkpoints import at_step
from .compare import compare
from .contributed import contributed
from .edited import Edit, check_token
from .export import Shown, exported
from .outline import outline
from .plain import address
from .state import State, read_state
from .threads import one_thread

LIVE = 10_000_000  # parameters up to which every change is answered at once
KEPT, BYTES = 6, 2_000_000_000  # traces kept, and the bytes they may have together
STATES = 2000  # states remembered by their key
EXAMPLE = "example"  # the folder of the run that comes with Pencil


class Subject:
    """One opened model: a run, a run at a checkpoint, an imported run, or the example that comes with Pencil."""

    def __init__(self, loaded: Loaded, id: str = "a", name: str | None = None, step: int | None = None):
        self.id, self.loaded, self.kind = id, loaded, family(loaded.run.family)
        if self.kind.explore is None:
            raise UserError(
                f"{loaded.run.path} is a {self.kind.name}, which cannot be explored; pencil trace records it"
            )
        self.profile = self.kind.explore
        self.name = name or Path(str(loaded.run.path)).name
        self.path = str(loaded.run.path)  # the folder to open it from again; empty: the example
        self.step = getattr(loaded.run, "weights_step", None) if step is None else step
        self.takes, self.controls = self.profile.takes(loaded), tuple(self.profile.controls(loaded))
        self.parameters = sum(p.numel() for p in loaded.model.parameters())
        self.live = self.parameters <= LIVE
        loaded.model.eval()
        check_finite(loaded.model.named_parameters())
        self._states: OrderedDict[str, State] = OrderedDict()
        self._answers: OrderedDict[str, Found] = OrderedDict()
        self._traces: OrderedDict[str, LiveTrace] = OrderedDict()
        self._lights: dict[str, Lights] = {}
        self._contributed: OrderedDict[tuple[str, str, str | None], Contributions] = OrderedDict()
        self._scores: dict[tuple[str, int, int], dict[str, Any]] | None = None

    @classmethod
    def open(cls, path: str | Path, id: str = "a", step: int | None = None) -> "Subject":
        """The model of a run, or the one of its checkpoint at a step."""
        loaded = load(path, dtype="auto")
        if step is None:
            return cls(loaded, id)
        return cls(at_step(loaded, step), id, f"{Path(path).name}@{step}", step)

    @classmethod
    def of_example(cls, id: str = "a") -> "Subject":
        """The small trained model that comes with Pencil."""
        folder = Path(str(files("pencil").joinpath("explore", EXAMPLE)))
        if not (folder / "config.toml").is_file():
            raise UserError("this installation has no example model: name a run, pencil explore runs/…")
        found = cls(load(folder, dtype="auto"), id, "two digits, described")
        found.path = ""
        return found

    @property
    def transform(self) -> dict[str, Any] | None:
        """How a picture is brought to the model's size, as plain data; None for a model that reads none."""
        return asdict(input_transform(self.loaded)) if "picture" in self.takes else None

    # ---- what it is

    def about(self) -> dict[str, Any]:
        """The model in a few numbers, what it reads, and inputs to begin with."""
        c = self.loaded.model.config
        examples = [{"name": name, "input": given} for name, given in self.profile.examples(self.loaded)]
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
            "unmeasured": self.kind.heads.partition(";")[0] if isinstance(self.kind.heads, str) else "",
            "controls": [one.as_json() for one in self.controls],
            "example": examples[0]["input"],
            "examples": examples,
        }

    def state(self, raw: Any) -> State:
        """A state as the page sends it, checked; remembered by its key."""
        state = raw if isinstance(raw, State) else read_state(raw, self.id, self.takes, self.controls)
        key = self.key(state)
        self._states[key] = state
        self._states.move_to_end(key)
        while len(self._states) > STATES:
            self._states.popitem(last=False)
        return state

    def key(self, raw: Any) -> str:
        """The key of a state: of the model with its weights, the input and the edits."""
        state = raw if isinstance(raw, State) else read_state(raw, self.id, self.takes, self.controls)
        return state.key(f"{self.loaded.run.path}@{self.step}")

    def knows(self, key: str) -> bool:
        """Whether a trace of this key can be shown."""
        return key in self._states

    # ---- the answer

    def answer(
        self, raw: Any, on_event: OnEvent | None = None, stopped: Callable[[], bool] | None = None
    ) -> dict[str, Any]:
        """The answer to a state, from a pass that is not recorded."""
        return self._answer(self.state(raw), on_event, stopped).answer

    def _answer(
        self, state: State, on_event: OnEvent | None = None, stopped: Callable[[], bool] | None = None
    ) -> Found:
        key = self.key(state)
        if key not in self._answers or on_event is not None:
            job = Job(
                self.loaded,
                self.profile,
                state,
                self._located(state),
                self.live,
                on_event or (lambda name, content: None),
                stopped or (lambda: False),
            )
            self._answers[key] = answer(job)
        self._answers.move_to_end(key)
        while len(self._answers) > 4 * KEPT:
            self._answers.popitem(last=False)
        return self._answers[key]

    def _located(self, state: State) -> list[Edit]:
        """The edits with indices for their labels, which the trace without edits has."""
        found = []
        for one in state.edits:
            where, value = parse_edit(one)
            plain = self.record(state.with_edits(()))
            name, index = plain.locate(where)
            check_token(plain, name, where, value)
            found.append(Edit(name, tuple(index), value))
        return found

    # ---- the trace

    def record(self, raw: Any, on_event: OnEvent | None = None, stopped: Callable[[], bool] | None = None) -> LiveTrace:
        """What the model computed for the answer to a state, every operation of it."""
        state = self.state(raw)
        key = self.key(state)
        if key not in self._traces:
            found = self._answer(state, on_event, stopped)
            if on_event is not None:
                on_event("progress", {"done": 0, "total": 1, "text": "recording"})
            with one_thread(self.live):  # as the answer was computed
                base = self.profile.trace(self.loaded, found.prompt, found.written, state.options)
                written = [f"{address_of(one)}={one.value!r}" for one in self._located(state)]
                self._traces[key] = edited(base, written)
            self._lights.pop(key, None)
        self._traces.move_to_end(key)
        self._shed()
        return self._traces[key]

    def _shed(self) -> None:
        """Drop the oldest traces beyond what is kept."""
        while len(self._traces) > 1 and (
            len(self._traces) > KEPT or sum(one.graph.bytes for one in self._traces.values()) > BYTES
        ):
            key, _ = self._traces.popitem(last=False)
            self._lights.pop(key, None)

    def trace(self, key: str) -> LiveTrace:
        """The trace of a key; recorded again where it is no longer kept."""
        if key not in self._states:
            raise UserError("this page is of another session: load it again")
        return self.record(self._states[key])

    def outline(self, key: str) -> dict[str, Any]:
        """The tensors of a trace, their places in the model, and the cell to open first."""
        trace = self.trace(key)
        return outline(trace, key, self._start(key, trace))

    def _start(self, key: str, trace: LiveTrace) -> str:
        """The cell to open first: that of the likeliest class or of the first token, else the last value's middle."""
        about = self._answer(self._states[key]).answer
        if about.get("tokens"):
            return about["tokens"][0]["cell"]
        if about.get("classes"):
            return about["classes"][0]["cell"]
        named = [n for n in trace.graph.nodes if n.named and n.size and n.kind not in ("weight", "input")]
        last = next((n for n in reversed(named) if n.axes), named[-1])
        return address(last.name, [0, *(size // 2 for size in last.shape[1:])][: len(last.shape)])

    def slice(
        self, key: str, name: str, index: str | Sequence[int | None] | None = None, minus: LiveTrace | None = None
    ) -> dict[str, Any]:
        """One or two axes of a tensor, the others held at an index; with `minus` less the same cells of that trace."""
        return sliced(self.trace(key), name, index, minus)

    def receipt(self, key: str, cell: str, digits: int = 4) -> dict[str, Any]:
        """How one number was computed."""
        return receipt(self.trace(key), cell, digits)

    # ---- attention and contributions

    def attention(self, key: str, scores: bool = False) -> dict[str, Any]:
        """Every layer and head; with `scores` also what each head measurably attends to, which takes a while."""
        if scores and self._scores is None:
            from .scores import head_scores  # measuring needs the run's data

            self._scores = head_scores(self.loaded)
        return attention(Patterns(self.trace(key), self.profile.groups(self.loaded)), self._scores)

    def light(self, key: str, layer: int | None = None, head: int | None = None, how: str = "mean") -> dict[str, Any]:
        """Where each word looked at the step that produced it."""
        trace = self.trace(key)
        if key not in self._lights:
            tokens = self._answer(self._states[key]).answer.get("tokens") if self.profile.writes else None
            pooled = getattr(self.loaded.model.config, "pool", None) if trace.facts.get("grid") else None
            self._lights[key] = Lights(Patterns(trace, self.profile.groups(self.loaded)), tokens or [], pooled)
        return self._lights[key].light(how, layer, head)

    def contributions(self, key: str, cell: str, against: str | None = None, part: str | None = None) -> dict[str, Any]:
        """What each part of the model added to one number; with `part` the parts of that one."""
        with one_thread(self.live):
            found = self.contributed(key, cell, against)
            return contributed(found, cell, against or None, found.part(part) if part else None)

    def contributed(self, key: str, cell: str, against: str | None = None) -> Contributions:
        """The contributions to one number; the last few are kept, since their parts are asked for one by one."""
        asked = key, cell, against or None
        if asked not in self._contributed:
            self._contributed[asked] = self.trace(key).contributions(cell, against or None)
        self._contributed.move_to_end(asked)
        while len(self._contributed) > KEPT:
            self._contributed.popitem(last=False)
        return self._contributed[asked]

    def export(
        self,
        raw: Any,
        shown: Shown | str = "",
        on_event: OnEvent | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> str:
        """What is on the page as one file that needs no server; `shown` is what it opens on: a view, or more."""

        def step(done: int, total: int, text: str) -> None:
            if stopped is not None and stopped():
                raise Stopped
            if on_event is not None:
                on_event("progress", {"done": done, "total": total, "text": text})

        with one_thread(self.live):
            opens = Shown(shown) if isinstance(shown, str) else shown
            return exported(self, self.state(raw), opens, step)

    def edit(self, raw: Any, edit: str) -> dict[str, Any]:
        """A state before and after one more edit: both answers, and the tensors that changed."""
        state = self.state(raw)
        more = self.state(state.with_edits((*state.edits, edit)))
        before, after = self._answer(state), self._answer(more)
        same = before.written == after.written
        # on the tokens of the answer before, so that only the edit makes a difference
        changed = self.record(more) if same else edited(self.record(state), [self._numbered(state, edit)])
        found = compare(self.record(state), changed)
        if not same:
            found["notes"].append("The answers differ in their tokens; the tensors are compared on those before.")
        return {**found, "before": before.answer, "after": after.answer}

    def _numbered(self, state: State, edit: str) -> str:
        """An edit with indices for its labels."""
        where, value = parse_edit(edit)
        name, index = self.record(state.with_edits(())).locate(where)
        return f"{address_of(Edit(name, tuple(index), value))}={value!r}"


def address_of(edit: Edit) -> str:
    """The address of what an edit changes, in indices."""
    if not edit.index:
        return edit.name
    parts = []
    for one in edit.index:
        if isinstance(one, slice):
            ends = ["" if end is None else str(end) for end in (one.start, one.stop, one.step)]
            parts.append(":".join(ends[: 3 if ends[2] else 2]))
        else:
            parts.append(str(one))
    return f"{edit.name}[{','.join(parts)}]"
