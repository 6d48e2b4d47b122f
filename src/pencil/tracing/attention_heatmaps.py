"""Attention maps: labelled heat maps, one a head, and one query's attention over the image it came from."""

import math
from collections.abc import Sequence

import numpy as np

from .. import draw
from ..config import UserError, nearest
from .trace_base import TraceBase


def attention(trace: TraceBase, name: str | None = None, query: str | None = None) -> bytes:
    """The heads of a pattern or of scores side by side; with a query, its attention over the image."""
    if name == "curve" and "curve" in trace.facts:
        return curve(trace.facts["curve"])
    name = last_pattern(trace) if name is None else name
    view = trace[name]
    values = np.asarray(view.value, dtype=float)
    if values.ndim < 2 or not values.size:
        raise UserError(
            f"{name} has the shape {'×'.join(map(str, values.shape))}, and a heat map needs rows and columns"
        )
    heads = values.reshape(-1, *values.shape[-2:]) if values.ndim != 4 else values[0]
    letters = view.node.axes.split()
    rows, columns = (
        trace.words(letters[k] if len(letters) == len(view.node.shape) else "", values.shape[k], view.node.name)
        for k in (-2, -1)
    )
    # of several rows, such as the groups of a video's patches, the first is drawn
    several = values.ndim == 4 and len(values) > 1
    row = trace.words(letters[0] if letters else "", len(values), view.node.name)[0] if several else None
    drawn = name if row is None else f"{name}[0] ({row})"
    title = f"{drawn}   {view.node.symbol} = {view.node.formula}" if view.node.symbol else drawn
    if query is not None:
        if letters and letters[-1] != "S":
            raise UserError(
                f"{name} is not attention to the whole image: leave --query out, or choose another tensor by --of"
            )
        return _over_picture(trace, heads, rows, query, title)
    titles = [f"head {i + 1}" for i in range(len(heads))] if len(heads) > 1 else [""]
    axes = ("key", "query") if letters[-2:] == ["T", "S"] else None
    rows, columns = draw.numbered(rows), draw.numbered(columns)
    return draw.heat_maps(list(heads), titles, rows, columns, title, view.node.portions, axes)


def last_pattern(trace: TraceBase) -> str:
    patterns = [n for n in trace.names if n.endswith("pattern")] or [
        n.name for n in trace.graph.nodes if n.kind == "softmax" and len(n.shape) == 4
    ]
    if not patterns:
        raise UserError("this trace has no attention pattern; choose a tensor to draw by --of")
    return patterns[-1]


def _over_picture(trace: TraceBase, heads: np.ndarray, rows: list[str], query: str, title: str) -> bytes:
    """One query's attention to each patch, over the image, a head each."""
    if "grid" not in trace.facts:
        raise UserError("the input of this trace is no image: leave --query out")
    source = next((n for n in ("given.picture", "picture") if n in trace and len(trace[n].shape) > 3), None)
    if source is None:
        raise UserError("this trace has no copy of its image: leave --query out")
    picture = np.asarray(trace[source].value, dtype=float)[0]
    if len(picture) not in (1, 3):
        picture = picture.mean(0, keepdims=True)  # latents have no colours
    at = query_row(rows, query, trace.facts.get("first_word"))
    low, high = picture.min(), picture.max()
    shown = np.round((picture - low) / ((high - low) or 1) * 255).astype(np.uint8)
    first, grid = trace.facts["first_patch"], trace.facts["grid"]
    weights = heads[:, at, first : first + math.prod(grid)].reshape(-1, *grid)
    if len(grid) == 3:
        # a video's frames side by side, the first of those that are cut together
        shown = shown[:, :: shown.shape[1] // grid[0]]
        shown, weights = (np.concatenate(np.moveaxis(each, 1, 0), -1) for each in (shown, weights))
    return draw.overlays(shown, [f"head {i + 1}" for i in range(len(weights))], weights)


def query_row(labels: Sequence[str], query: str, first_word: int | None) -> int:
    """The row of a query: for a word, the step that produced it; for a patch, a class token or an index, its own row.

    Of a word that occurs twice the second occurrence is called a#2. `first_word` is the index of the first token of the
    text, which no step produced.
    """
    names = draw.numbered(labels)
    first = query.removesuffix("#1")
    if query in names or first in names:
        at = names.index(query if query in names else first)
        if first_word is None or at < first_word:
            return at
        if at == first_word:
            raise UserError(f"{query} is the first token, which no step produced: choose a word after it")
        return at - 1
    if query.lstrip("-").isdigit() and -len(names) <= int(query) < len(names):
        return int(query) % len(names)
    raise UserError(f"no token is called {query}; {nearest(query, names)}")


def curve(points: Sequence[tuple[int, float, float]]) -> bytes:
    """The standard deviation of dot products against their width, plain and scaled."""
    widths, plain, scaled = zip(*points, strict=True)
    figure = draw.canvas(6.4, 4.2)
    axes = figure.add_subplot()
    axes.plot(widths, plain, "o-", color=draw.BAD, label="plain: deviation of q·k")
    axes.plot(widths, scaled, "s-", color=draw.GOOD, label="scaled: deviation of q·k/√d_k")
    axes.axhline(1.0, color="gray", linestyle="--", linewidth=1, label="1")
    axes.set(
        xscale="log", xlabel="head width d_k", ylabel="deviation of the scores", title="Why scores are divided by √d_k"
    )
    axes.set_xticks(widths, [str(w) for w in widths])
    axes.minorticks_off()
    axes.legend(fontsize=9)
    axes.grid(alpha=0.3)
    return draw.as_png(figure)
