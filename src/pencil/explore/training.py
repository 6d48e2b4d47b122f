"""A run's training watched: its losses, the steps whose weights are kept, and one number of the answer at each.

The weights on the way are the run's snapshots and its checkpoints. A state of the page names the step that it is `at`,
so every view shows the model of that moment. A run that is being trained is read anew at every question.
"""

from collections.abc import Mapping
from typing import Any

import torch

from ..files import read_toml
from ..runs import snapshots
from ..train.loop import checkpoint
from ..train.loop.report import read_metrics
from .ablations import logit_of, run_of
from .answers import NOBODY, Listener, one_thread
from .requests import State
from .session import Session, load_step

MOST_POINTS = 400  # of a curve of losses


def training(session: Session) -> dict[str, Any]:
    """The losses of a run so far, the steps whose weights there are, and how many steps it is trained for."""
    lines = read_metrics(session.folder)[0]
    curves = {
        name: [[line["step"], line[name]] for line in lines if isinstance(line.get(name), int | float)]
        for name in ("train_loss", "val_loss")
    }
    planned = read_toml(session.folder / "config.toml").get("train", {}).get("steps", 0)
    return {
        "kept": kept_steps(session),
        "own": session.step,
        "step": max((line["step"] for line in lines), default=0),
        "steps": planned,
        **{name: _thinned(points) for name, points in curves.items()},
    }


def kept_steps(session: Session) -> list[int]:
    """The steps whose weights can be looked at."""
    return sorted({*snapshots.listed(session.folder), *checkpoint.saved_steps(session.folder)})


def along(session: Session, raw: State | Mapping[str, Any], cell: str, listener: Listener = NOBODY) -> dict[str, Any]:
    """One number of the answer as the model of each kept step computes it, on the tokens of the answer on screen."""
    state = session.state(raw)
    trace, edits = session.record(state, listener), session.located_edits(state)
    name, index = trace.locate(cell)
    node = trace.graph.nodes[trace.find(name)]
    labels, points = trace.axis_words(node, len(node.shape) - 1), []
    steps, copy = kept_steps(session), session.copy()
    with one_thread(session.live), torch.no_grad():
        for step in steps:
            listener.step(len(points), len(steps), "running the model of each kept step")
            at = load_step(copy, step)
            points.append({"step": step, **logit_of(name, *run_of(trace, edits, name, index, at.model), index, labels)})
    return {"cell": cell, "points": points}


def _thinned(points: list[list[float]]) -> list[list[float]]:
    """At most so many points, evenly spaced, with the last."""
    every = -(-len(points) // MOST_POINTS) or 1
    return [point for i, point in enumerate(points) if (len(points) - 1 - i) % every == 0]
