"""Edits, and a model that runs with them unrecorded: the same numbers as an edited trace, but faster."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from ..core.probe import Probe, declared, symbols
from ..core.span import Span
from ..tracing.address import address
from ..tracing.live_trace import LiveTrace, cannot_run, cannot_set, parse_edit
from ..tracing.replacements import Patch, Replacement, resolved


@dataclass(frozen=True)
class Edit:
    """Cells of a named value, and the number they are set to, or what else they become."""

    name: str
    index: tuple[int | slice, ...]
    value: float | Replacement

    @property
    def where(self) -> str:
        """The cells, in indices."""
        return address(self.name, self.index)

    def of(self, old: Tensor) -> Any:
        """What the cells become."""
        return self.value.of(old)[self.index] if isinstance(self.value, Replacement) else self.value


def locate_edit(trace: LiveTrace, text: str, other: Callable[[], LiveTrace | None] = lambda: None) -> Edit:
    """An edit with indices for its labels, which the trace without edits has; `other` is the run it is patched from."""
    where, value = parse_edit(text)
    name, index = trace.locate(where)
    if isinstance(value, Replacement):
        value = resolved(trace, name, value, other() if isinstance(value, Patch) else None)
    else:
        _check_token(trace, name, where, value)
    return Edit(name, tuple(index), value)


def with_edits(trace: LiveTrace, edits: Iterable[Edit]) -> LiveTrace:
    """The same run with these edits, recorded."""
    for edit in edits:
        trace = trace.edit(edit.where, edit.value)
    return trace


def _check_token(trace: LiveTrace, name: str, where: str, value: float) -> None:
    """Refuse an id that no token has, where the edited value is the id of one."""
    node, words = trace.graph.nodes[trace.find(name)], trace.labels.get("V", ())
    ids = node.kind == "input" and "int" in node.dtype and len(node.shape) == 2
    if ids and words and not (value == value // 1 and 0 <= value < len(words)):
        raise UserError(f"{where} is the id of a token: give a whole number from 0 to {len(words) - 1}, not {value:g}")


class EditedModel:
    """A model whose named values, weights and inputs are changed whenever it runs; `seen` has the values of `read`.

    An index beyond the tokens that there are so far changes nothing yet: a text grows, and its earlier tokens never
    see the later ones.
    """

    def __init__(self, model: Any, edits: Sequence[Edit], read: Sequence[str] = ()):
        self.model, self.edits, self.read = model, edits, read
        self.seen: dict[str, Tensor] = {}
        self.applied: set[int] = set()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.weights = dict(model.named_parameters(remove_duplicate=False)) | dict(
            model.named_buffers(remove_duplicate=False)
        )
        own = {*declared(model), *symbols(model)}
        parameters = inspect.signature(model.forward).parameters
        # as a trace calls them: an input that shares its name with a value of the model's own is given.NAME
        self.inputs = {f"given.{name}" if name in own else name: name for name in parameters}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, *args: Any, last: bool | Tensor = False, cache: None = None, **named: Any) -> Tensor:
        assert cache is None, "an edited model reads all tokens at every step"
        bound = dict(inspect.signature(self.model.forward).bind(*args, **named).arguments)
        for name, parameter in self.inputs.items():
            if isinstance(bound.get(parameter), Tensor):
                bound[parameter] = self._changed(name, bound[parameter])
        out = self._changed("output", self._run(self.model, **bound))
        return out if last is False else out[:, -1:] if last is True else out[torch.arange(len(out)), last][:, None]

    def states(self, tokens: Tensor, span: Span | None) -> Tensor:
        """The hidden states of an encoder, edited."""
        return self._run(self.model.states, tokens=self._changed("tokens", tokens), span=span)

    def _run(self, call: Callable[..., Tensor], **inputs: Any) -> Tensor:
        names = dict.fromkeys(
            name
            for name in (*(edit.name for edit in self.edits), *self.read)
            if name not in self.weights and name not in self.inputs and name != "output"
        )
        probe = Probe(edit={name: lambda old, name=name: self._changed(name, old) for name in names})
        try:
            with self._other_weights():
                return call(**inputs, **({"probe": probe} if names else {}))
        except ValueError as error:
            raise UserError(str(error)) from None
        except (IndexError, RuntimeError) as error:
            raise cannot_run(" and ".join(dict.fromkeys(edit.name for edit in self.edits)), error) from None

    @contextmanager
    def _other_weights(self) -> Iterator[None]:
        """The weights with their edits; as they were afterwards."""
        before = {}
        try:
            for edit in self.edits:
                if (weight := self.weights.get(edit.name)) is not None and id(weight) not in before:
                    before[id(weight)] = weight, weight.data
                    weight.data = self._changed(edit.name, weight.data)
            yield
        finally:
            for weight, data in before.values():
                weight.data = data

    def _changed(self, name: str, old: Tensor) -> Tensor:
        edits = [(i, edit) for i, edit in enumerate(self.edits) if edit.name == name]
        new = old.detach().clone() if edits else old
        for i, edit in edits:
            self.shapes[name] = tuple(old.shape)
            try:
                new[edit.index] = edit.of(new)
            except IndexError:
                continue
            except (RuntimeError, TypeError, ValueError, OverflowError) as error:
                raise cannot_set(name, edit.value, new, error) from None
            self.applied.add(i)
        if name in self.read:
            self.seen[name] = new
        return new

    def check(self) -> None:
        """Refuse an edit that has changed nothing in all runs."""
        for i, edit in enumerate(self.edits):
            if i not in self.applied:
                shape = "×".join(map(str, self.shapes.get(edit.name, ()))) or "not computed by this model"
                raise UserError(f"{edit.name} has no such cell to edit: its shape is {shape}")
