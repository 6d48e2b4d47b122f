"""Attention as the page shows it: every head as a thumbnail, and where each word looked."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import UserError, nearest
from ..core.token_groups import Grouping
from ..progress import watched
from ..tracing.live_trace import LiveTrace
from .answers import NOBODY, Listener
from .json_values import packed
from .outline import tensors
from .requests import State
from .session import Session

if TYPE_CHECKING:  # measuring needs the run's data
    from ..learn.heads.scores import Report

MOST_THUMBNAIL_CELLS = 48  # along a side
HOWS = ("head", "mean", "rollout")
Array = np.ndarray
HeadScores = dict[tuple[str, int, int], dict[str, Any]]  # by group, layer and number of the head


class Patterns:
    """The attention patterns of a trace, by group: "" where there is one, else encoder, decoder, cross, text.

    `within` are the groups of tokens that attend only to one another, where a model has such: their patterns are put
    together to one of all tokens.
    """

    def __init__(self, trace: LiveTrace, within: Sequence[Grouping | None] = (None,)):
        self.trace, self.within = trace, within
        names = [n.name for n in tensors(trace) if n.named and n.name.endswith(".pattern") and len(n.shape) == 4]
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(group_of(name), []).append(name)
        if "" in groups and "cross" in groups:
            groups = {"decoder" if group == "" else group: names for group, names in groups.items()}
        self.groups = groups

    def __getitem__(self, name: str) -> Array:
        """The attention weights (heads, queries, keys) of the first row of the batch."""
        return self.of(name)

    def of(self, name: str, row: int = 0) -> Array:
        """Those of a row of the batch."""
        values = np.asarray(self.trace.array(name), dtype=np.float64)
        parts = self.within[layer_of(name) % len(self.within)] if group_of(name) == "" else None
        if parts is None:
            return values[row]
        whole = np.zeros((values.shape[1], len(parts.order), len(parts.order)))
        for part, at in zip(values[row * parts.count :], parts.order.reshape(parts.count, -1).numpy(), strict=False):
            whole[:, at[:, None], at] = part
        return whole

    def labels(self, name: str) -> tuple[list[str], list[str]]:
        """The labels of the queries and of the keys."""
        node, (queries, keys) = self.trace.graph.nodes[self.trace.find(name)], self[name].shape[1:]
        letters = [node.letter(axis) for axis in (2, 3)] if (queries, keys) == node.shape[2:] else ["T", "T"]
        return self.trace.words(letters[0], queries, name), self.trace.words(letters[1], keys, name)


def group_of(name: str) -> str:
    parts = name.split(".")
    if "cross" in parts:
        return "cross"
    return {"encoder": "encoder", "text_encoder": "text"}.get(parts[0], "")


def layer_of(name: str) -> int:
    """The block that a pattern is of, counted from 0."""
    return next((int(part) for part in name.split(".") if part.isdigit()), 0)


def attention(session: Session, key: str, scores: bool = False, listener: Listener = NOBODY) -> dict[str, Any]:
    """Every layer and head; with `scores` also what each head measurably attends to, which takes a while once.

    Scores that were measured before are always there.
    """
    patterns, state = _patterns(session, key), session.states[key]
    by_head = _scores(session, state, scores, listener)
    groups = []
    for group, names in patterns.groups.items():
        layers = []
        for name in names:
            small = [shrunk(pattern) for pattern in patterns[name]]
            heads = []
            for head, pattern in enumerate(small):
                measured = by_head.get((group, layer_of(name), head), {})
                heads.append(
                    {
                        "head": head,
                        "names": list(measured.get("names", ())),
                        "scored": measured.get("scored", ""),
                        "score": measured.get("score"),
                        "baseline": measured.get("baseline"),
                        "thumbnail": packed(np.rint(255 * np.clip(np.nan_to_num(pattern), 0, 1)), "u1"),
                    }
                )
            layers.append({"name": name, "layer": layer_of(name), "heads": heads, "thumb": list(small[0].shape)})
        queries, keys = patterns.labels(names[0])
        groups.append({"name": group, "layers": layers, "queries": queries, "keys": keys})
    return {"groups": groups}


def _patterns(session: Session, key: str) -> "Patterns":
    return Patterns(session.trace(key), session.profile.groups(session.loaded))


def light(
    session: Session, key: str, layer: int | None = None, head: int | None = None, how: str = "mean"
) -> dict[str, Any]:
    """Where each word looked at the step that produced it."""
    trace = session.trace(key)

    def make() -> Lights:
        tokens = session.compute_answer(session.states[key]).shown.get("tokens") if session.profile.writes else None
        pooled = getattr(session.loaded.model.config, "pool", None) if trace.facts.get("grid") else None
        return Lights(_patterns(session, key), tokens or [], pooled)

    return session.lights.get_or_make(key, make).light(how, layer, head)


def _scores(session: Session, state: State, measured: bool, listener: Listener) -> HeadScores:
    """The scores of the weights of a state: measured now if asked for, else those that were measured before."""
    from ..learn.heads.kept import kept_report, measure_and_keep, score_heads  # measuring needs the run's data

    name, own = state.trained_weights, session.own_weights and not state.lessons and state.at is None
    if name not in session.head_scores:
        report = kept_report(session.loaded) if own else None
        if report is None and not measured:
            return {}
        if report is None:
            loaded = session.trained(state, listener).loaded
            with watched(lambda done, total: listener.step(done, total, "measuring what heads do")):
                report = (measure_and_keep if own else score_heads)(loaded)
        session.head_scores.put(name, _by_head(report))
    return session.head_scores[name]


def _by_head(report: "Report") -> HeadScores:
    """For each head: its names, and the score that is furthest above its baseline.

    `scored` is what that score measures, in the words of `pencil heads`.
    """
    from ..learn.heads.scores import NAMES

    scores = {}
    for head in report.heads:
        shares = {name: score for name, score in head.scores.items() if name != "broad"}
        best = max(shares, key=lambda name: shares[name].mean - shares[name].baseline, default=None)
        scores[head.group, head.layer, head.head] = {
            "names": [*head.names],
            "scored": "" if best is None else NAMES[best],
            "score": None if best is None else shares[best].mean,
            "baseline": None if best is None else shares[best].baseline,
        }
    return scores


def shrunk(values: Array, most: int = MOST_THUMBNAIL_CELLS) -> Array:
    """A matrix with at most so many rows and columns: each cell is the mean of the area it stands for."""
    return _averaged(_averaged(values, 0, most), 1, most)


def _averaged(values: Array, axis: int, most: int) -> Array:
    """Means along an axis over equal lengths of it, which may begin and end inside a cell."""
    count = values.shape[axis]
    if count <= most:
        return values
    total = np.concatenate((np.zeros_like(values.take([0], axis)), values.cumsum(axis)), axis)
    at = np.linspace(0, count, most + 1)
    low = np.minimum(at.astype(int), count - 1)
    share = (at - low).reshape([-1 if a == axis else 1 for a in range(values.ndim)])
    upto = total.take(low, axis) + share * values.take(low, axis)
    return np.diff(upto, axis=axis) * (most / count)


class Lights:
    """Where the words of one trace look, for each layer and head; rows and columns are chosen once.

    `rows` are the queries: the step that produced each word, or the tokens themselves.
    """

    def __init__(self, patterns: Patterns, tokens: Sequence[Any], pooled: str | None):
        self.patterns, groups = patterns, patterns.groups
        if not groups:
            raise UserError("nothing in this trace is an attention pattern")
        self.group = "cross" if "cross" in groups else "" if "" in groups else next(iter(groups))
        self.names = groups[self.group]
        labels, self.keys = patterns.labels(self.names[0])
        queries, facts = len(labels), patterns.trace.facts
        self.columns = np.arange(len(self.keys))
        first, grid = facts.get("first_patch"), facts.get("grid")
        if first is not None and grid is not None and first + prod(grid) <= len(self.keys):
            self.columns = np.arange(first, first + prod(grid))
        # a matrix that turns queries into rows: most choose one, a mean takes several
        if tokens:
            self.words, at = [token["text"] for token in tokens], [token["position"] for token in tokens]
        elif pooled == "class":
            self.words, at = [labels[0]], [0]
        elif pooled == "mean":
            self.words, at = ["mean of the patches"], []
        else:
            self.words, at = labels, list(range(queries))
        self.rows = np.zeros((len(self.words), queries))
        if at:
            self.rows[np.arange(len(at)), at] = 1
        else:
            self.rows[0, self.columns] = 1 / len(self.columns)
        self._leading: list[list[int]] | None = None
        self.of_words = bool(tokens) or pooled == "class"

    def seen(self, matrix: Array) -> Array:
        return (self.rows @ matrix)[:, self.columns]

    @property
    def leading(self) -> list[list[int]] | None:
        """For each word the layer and the head that attend most to the patches; none where there is nothing else."""
        if not self.of_words or len(self.columns) == len(self.keys):
            return None
        if self._leading is None:
            heads = [(layer_of(name), head) for name in self.names for head in range(len(self.patterns[name]))]
            sums = [self.seen(pattern).sum(1) for name in self.names for pattern in self.patterns[name]]
            self._leading = [list(heads[i]) for i in np.argmax(sums, 0)]
        return self._leading

    def light(self, how: str = "mean", layer: int | None = None, head: int | None = None) -> dict[str, Any]:
        """The attention of one head, the mean over the heads of a layer or of all, or rollout, which is derived."""
        if how not in HOWS:
            raise UserError(f"{how} is not a way to show attention; {nearest(how, HOWS)}")
        if how == "rollout":
            matrix, layer, head = self.rolled(), None, None
        else:
            names = [name for name in self.names if layer is None or layer_of(name) == layer]
            if not names:
                raise UserError(f"there is no block {layer}: it is from 0 to {layer_of(self.names[-1])}")
            if how == "head" and (layer is None or head is None):
                raise UserError("one head is chosen by its block and its number: give both")
            each = np.concatenate([self.patterns[name] for name in names])
            if how == "head":
                assert head is not None
                if not 0 <= head < len(each):
                    raise UserError(f"there is no head {head}: it is from 0 to {len(each) - 1}")
                matrix = each[head]
            else:
                matrix, head = each.mean(0), None
        rows = self.seen(matrix)
        return {
            "words": self.words,
            "patches": rows.shape[1],
            "keys": [self.keys[i] for i in self.columns],
            "rows": packed(rows, "f4"),
            "how": how,
            "layer": layer,
            "head": head,
            "leading": self.leading,
        }

    def rolled(self) -> Array:
        """Attention rollout (Abnar and Zuidema, 2020): the product over layers of half the mean over heads and half I.

        Of an encoder and a decoder: cross-attention averaged over layers and heads, through the encoder's rollout.
        """
        if self.group == "cross":
            across = np.mean([self.patterns[name].mean(0) for name in self.names], axis=0)
            return across @ self._product(self.patterns.groups["encoder"])
        return self._product(self.names)

    def _product(self, names: Sequence[str]) -> Array:
        product: Array | None = None
        for name in names:
            mean = self.patterns[name].mean(0)
            step = 0.5 * mean + 0.5 * np.eye(len(mean))
            product = step if product is None else step @ product
        assert product is not None
        return product
