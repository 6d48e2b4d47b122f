"""The model as one picture: a line for each token, what hangs from the lines, and what it all meant for one number.

Everything drawn is read from the model's own structure (`tracing/residual_streams.py`) and from contributions: what
each head and MLP added directly, what each input added by way of all paths, and what the model would say after
each block (`tracing/lens.py`). Both sums are of the same number, and what belongs to neither is in them as the rest.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..config import UserError
from ..core.patches import join
from ..tracing.address import address
from ..tracing.contributions import GRID, Contributions, Leaf
from ..tracing.live_trace import LiveTrace
from ..tracing.module_graph import module_graph
from ..tracing.residual_streams import CONDITION, Column, ResidualStreams, Row, Stack
from .answers import Painter, one_thread, softmax
from .attention_views import Patterns, shrunk
from .cells import find_contributions
from .json_values import number, packed
from .session import Session

MOST_THUMB_CELLS = 24  # along a side
MOST_GUESSES = 5  # that are listed after each block
WORDS = {"time": "timestep"}  # lines of the condition


def picture(session: Session, key: str) -> dict[str, Any]:
    """The lines of a model and what hangs from them; its modules, where its blocks declare no residual stream."""
    with one_thread(session.live):
        try:
            return _drawn(session, key).shown
        except UserError:
            return {"stacks": [], "columns": [], "graph": module_graph(session.trace(key).graph)}


def picture_of(session: Session, key: str, cell: str) -> dict[str, Any]:
    """What everything in the picture meant for one number."""
    with one_thread(session.live):
        return _drawn(session, key).of(cell, find_contributions(session, key, cell))


def _drawn(session: Session, key: str) -> "Drawn":
    return session.pictures.get_or_make(key, lambda: Drawn(session, key))


class Drawn:
    """The picture of one trace."""

    def __init__(self, session: Session, key: str):
        self.trace: LiveTrace = session.trace(key)
        groups = session.profile.groups(session.loaded)
        self.streams, self.patterns = ResidualStreams(self.trace, groups), Patterns(self.trace, groups)
        tokenizer, answer = session.loaded.tokenizer, session.compute_answer(session.states[key])
        self.written = max(0, len(answer.written) - 1)  # the last token that was written is read by nothing
        self.vocab = None if tokenizer is None else tokenizer.vocab
        special = () if tokenizer is None else (tokenizer.begin, tokenizer.start, tokenizer.pad, tokenizer.mask)
        self.special = {*special, *(() if tokenizer is None else tokenizer.ends)}
        self.clean = _clean_pictures(session, key) if session.profile.draws else None

    # ---- what is drawn once

    @cached_property
    def shown(self) -> dict[str, Any]:
        return {
            "stacks": [self._stack(stack) for stack in self.streams.stacks.values()],
            "columns": [self._column(column) for column in self.streams.columns],
        }

    def _stack(self, stack: Stack) -> dict[str, Any]:
        kinds, lanes = self.kinds[stack.id], []
        first_written = len(stack.labels) - (self.written if stack.id == self.streams.read_out else 0)
        for i, (label, kind) in enumerate(zip(stack.labels, kinds, strict=True)):
            lane = {"label": WORDS.get(label, label), "kind": kind, "written": i >= first_written}
            if kind == "patch" and GRID.match(label):
                lane["at"] = [int(part) - 1 for part in label.split(" ")[1].split(",")]
            lanes.append(lane)
        shown: dict[str, Any] = {"id": stack.id, "title": stack.title, "lanes": lanes, "stream": stack.stream}
        return shown | ({"grid": list(self.trace.facts["grid"])} if "patch" in kinds else {})

    def _column(self, column: Column) -> dict[str, Any]:
        branch, thumbs = column.branch, np.zeros((1, 0, 0))
        if column.pattern:
            thumbs = np.stack([shrunk(one, MOST_THUMB_CELLS) for one in self.patterns[column.pattern]])
        return {
            "path": branch.path,
            "kind": column.kind,
            "stack": column.stack.id,
            "keys": column.keys.id,
            "block": column.block,
            "heads": column.heads,
            "pattern": column.pattern,
            "stream": branch.stream,
            "normed": branch.norm,
            "thumb": list(thumbs.shape[1:]),
            "thumbs": packed(np.rint(255 * np.clip(np.nan_to_num(thumbs), 0, 1)), "u1"),
            **({"condition": CONDITION} if branch.modulation else {}),
        }

    @cached_property
    def kinds(self) -> dict[str, list[str]]:
        """What the lines of each stack are of: a patch, a token, the class token, or nothing of the input."""
        stacks, symbols = self.streams.stacks, self.trace.traced_model.symbols
        try:
            places = self.streams.places
        except UserError:  # a model that contributions cannot hold: labels are what is known of it
            return {
                id: [CONDITION if id == CONDITION else "patch" if GRID.match(one) else "token" for one in stack.labels]
                for id, stack in stacks.items()
            }
        kinds = {id: [CONDITION if id == CONDITION else "special"] * len(stack.labels) for id, stack in stacks.items()}
        for (name, row), (stack, line) in places.items():
            leaf = self.leaves[name]
            if stack != CONDITION and leaf.kind == "pixel":
                kinds[stack][line] = "patch"
            elif stack != CONDITION and self._is_word(leaf, row):
                kinds[stack][line] = "token"
            elif symbols.get(name) == "z_cls":
                kinds[stack][line] = "class"
        return kinds

    @cached_property
    def leaves(self) -> dict[str, Leaf]:
        return {leaf.name: leaf for leaf in self.streams.model.leaves}

    def _is_word(self, leaf: Leaf, row: Row) -> bool:
        """Whether a row of an embedding is of the input's own tokens: not of a special one, not of a token's type."""
        if leaf.kind != "token" or leaf.ids is None:
            return False
        id, symbol = int(leaf.ids[row]), self.trace.traced_model.symbols.get(f"{leaf.name.split('#')[0]}.weight", "E")
        return not symbol.startswith("T_") and id not in self.special and (self.vocab is None or id < self.vocab)

    # ---- what is drawn for one number

    def of(self, cell: str, whole: Contributions) -> dict[str, Any]:
        stack, query, row = self.streams.read_from(whole)
        columns, rest = self._added(whole)
        for shown, column in zip(columns, self.streams.columns, strict=True):
            shown["rows"] = ""
            if column.pattern and column.stack.id == stack:
                shown["rows"] = packed(self.patterns.of(column.pattern, row)[:, query].mean(1), "f4")
        return {
            "cell": cell,
            "label": self._label(whole),
            "value": number(whole.value),
            "allowed": number(whole.allowed),
            "held": list(whole.held),
            "stack": stack,
            "query": query,
            "columns": columns,
            "rest": rest,
            **self._inputs(whole),
            **self._lens(whole, query),
        }

    def _label(self, whole: Contributions) -> str:
        """The word or the class that a number is of; else what is known of its place."""
        node = self.streams.node(whole.tensor)
        words = [self.trace.called(node, axis, i) for axis, i in enumerate(whole.index)][1:]
        return words[-1] if words and words[-1] else " · ".join(filter(None, words)) or whole.cell

    def _added(self, whole: Contributions) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """What each column added, head by head, and every other part: together they are the number.

        Of the others the same bias of all blocks is one.
        """
        added = [np.zeros(column.heads) for column in self.streams.columns]
        ids = [[""] * column.heads for column in self.streams.columns]
        places = {column.branch.path: i for i, column in enumerate(self.streams.columns)}
        rest: dict[str, dict[str, Any]] = {}
        for part in whole.parts:
            path, _, index = part.id.rpartition(".")[0], *part.id.partition(":")[1:]
            if part.kind in ("head", "mlp") and path in places:
                head = int(index) if index else 0
                added[places[path]][head] += part.value
                ids[places[path]][head] = part.id
            else:
                label = part.label.rpartition(" · ")[2] if part.kind in ("bias", "norm") else part.label
                shown = {"id": part.id, "label": label, "value": 0.0, "cell": part.cell}
                rest.setdefault(label, shown)["value"] += part.value
        packs = [packed(values, "f4") for values in added]
        by_size = sorted(rest.values(), key=lambda one: -abs(one["value"]))
        return [{"added": values, "ids": own} for values, own in zip(packs, ids, strict=True)], by_size

    def _inputs(self, whole: Contributions) -> dict[str, Any]:
        """What each input added by way of all paths, and what belongs to none: together they are the number."""
        inputs: dict[tuple[str, int], dict[str, Any]] = {}
        others: dict[str, dict[str, Any]] = {}
        pixels = None
        for leaf, cells in whole.sources:
            if leaf.kind == "pixel":
                pixels = _unfolded(cells[_row_of(cells)].numpy())
            for label, row, value, most in self._rows(whole, leaf, cells):
                place = self.streams.places.get((leaf.name, row))
                if place is not None and (leaf.kind in ("pixel", "timestep") or self._is_word(leaf, row)):
                    at = place.stack, place.line
                    shown = inputs.setdefault(at, {"stack": at[0], "lane": at[1], "value": 0.0, "cell": None})
                else:
                    shown = others.setdefault(label, {"id": label, "label": label, "value": 0.0, "cell": None})
                shown["value"] += value
                shown["cell"] = shown["cell"] or whole.tree.cell(leaf, most)
        sizes = {"pixels": {"shape": list(pixels.shape), "values": packed(pixels, "f4")}} if pixels is not None else {}
        by_size = sorted(others.values(), key=lambda one: -abs(one["value"]))
        return {"inputs": [inputs[place] for place in sorted(inputs)], "noInput": by_size, **sizes}

    def _rows(self, whole: Contributions, leaf: Leaf, cells: Any) -> Iterator[tuple[str, Row, float, Row]]:
        """Each row of a source with what it belongs to, what it added, and its largest cell."""
        rows = cells.shape if leaf.kind == "pixel" else cells.shape[:-1]
        flat = cells.reshape(int(np.prod(rows)), -1)
        values, largest = flat.sum(1).tolist(), flat.abs().argmax(1).tolist()
        for i in (flat != 0).any(1).nonzero()[:, 0].tolist():
            row = tuple(int(j) for j in np.unravel_index(i, rows)) if rows else ()
            label = "positions" if leaf.kind == "position" else ""
            if not label and leaf.kind != "pixel":
                label = whole.tree.label(leaf, row).rpartition(" · ")[2]
            yield label, row, values[i], (*row, largest[i])[: cells.ndim]

    # ---- what the model would say after each block

    def _lens(self, whole: Contributions, query: list[int]) -> dict[str, Any]:
        try:
            return {"lens": list(self._guesses(whole, query))}
        except UserError as error:
            return {"lens": [], "unlensed": f"{str(error)[0].upper()}{str(error)[1:]}."}

    def _guesses(self, whole: Contributions, query: list[int]) -> Iterator[dict[str, Any]]:
        name, at = whole.tensor, whole.index
        lens, words = self.trace.lens, self.trace.axis_words(self.streams.node(name), len(at) - 1)
        # an output with an axis of tokens is read from each token alone; a picture is read whole
        row = at[1] if len(at) == 3 and len(query) == 1 and self.clean is None else None
        for after, path in enumerate(lens.streams, "lens.input" not in lens.streams):
            output = lens.read(path, name, row)
            values = output[at[0]] if row is not None else output[at[:-1]]
            shown = {"after": after, "value": number(values[at[-1]]), "cell": address(f"{path}.{name}", at)}
            if self.clean is not None:
                shown["picture"] = self.clean(output[at[0]], at[0])
            if name == "logits":
                shown |= self._likeliest(values, at, f"{path}.{name}", words)
            yield shown

    def _likeliest(self, logits: np.ndarray, at: Row, name: str, words: list[str]) -> dict[str, Any]:
        logits = logits[: self.vocab] if self.vocab is not None and at[-1] < self.vocab else logits
        likely = softmax(logits)
        best = np.argsort(-logits, kind="stable")[:MOST_GUESSES].tolist()
        return {
            "probability": number(likely[at[-1]]),
            "rank": int((logits > logits[at[-1]]).sum()),
            "top": [
                {
                    "id": i,
                    "label": words[i],
                    "probability": number(likely[i]),
                    "cell": address(name, (*at[:-1], i)),
                }
                for i in best
            ],
        }


def _clean_pictures(session: Session, key: str) -> Callable[[np.ndarray, int], str]:
    """What makes the clean picture of what a diffusion model predicts, patch by patch, in a row of the batch."""
    loaded, options = session.trained(session.states[key]).loaded, session.states[key].options
    c, trace = loaded.model.config, session.trace(key)
    painter = Painter(loaded)
    time = painter.process.times(int(options["steps"]))[int(options["step"]) - 1]
    name = next(n.name for n in trace.graph.nodes if n.kind == "input" and n.shape[2:] == tuple(c.sides))
    noisy = torch.as_tensor(np.array(trace.array(name)))

    def picture_of(patches: np.ndarray, row: int) -> str:
        predicted = join(torch.as_tensor(patches).to(noisy.dtype)[None], c.sides, c.patch_sizes)
        return painter.address(painter.clean(noisy[row : row + 1], predicted, time))

    return picture_of


def _row_of(cells: Any) -> int:
    """The row of the batch that a number was computed from."""
    return int((cells != 0).flatten(1).any(1).nonzero()[0])


def _unfolded(cells: np.ndarray) -> np.ndarray:
    """Pixels as they stand in the picture (channels, rows, columns), from those of patches (C y u x v)."""
    sides = [a * b for a, b in zip(cells.shape[1::2], cells.shape[2::2], strict=True)]
    return cells.reshape(cells.shape[0], *sides)
