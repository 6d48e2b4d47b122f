"""Attention as the page shows it: every head as a thumbnail."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

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
