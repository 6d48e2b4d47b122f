"""The figure of a claim: its tested numbers seed by seed, and its curves."""

import math
import textwrap
from typing import Any

from ... import draw
from .claim import Curve
from .finding import Finding, number
from .run import Result

# the palette of Okabe and Ito, safe for colour blindness; markers and dashes differ too
COLOURS = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
MARKS = "o", "s", "^", "D", "v", "P"
DASHES = "-", "--", ":", "-.", "-", "--"
WIDE, HIGH, ACROSS = 3.7, 3.0, 2  # inches a panel; panels a row


def figure(result: Result) -> bytes:
    """A PNG: one panel a prediction, then one a curve."""
    panels = [*result.findings, *result.claim.curves]
    down = math.ceil(len(panels) / ACROSS)
    across = min(ACROSS, len(panels))
    drawn = draw.canvas(WIDE * max(across, ACROSS), HIGH * down + 0.9)
    drawn.suptitle(draw.literal(f"{result.claim.title}: {result.verdict}"), fontsize=12)
    for i, panel in enumerate(panels):
        axes = drawn.add_subplot(down, across, i + 1)
        if isinstance(panel, Curve):
            _curve(axes, panel, result)
        else:
            _markers(axes, panel, result)
    named = dict(zip(*reversed(_legend(result)), strict=True))
    drawn.legend(named.values(), named.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return draw.as_png(drawn)


def _legend(result: Result) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    arms = result.claim.arms
    lines = [
        Line2D([], [], color=COLOURS[i], marker=MARKS[i], linestyle=DASHES[i], label=arm) for i, arm in enumerate(arms)
    ]
    return lines, [draw.literal(arm) for arm in arms]


def _markers(axes: Any, finding: Finding, result: Result) -> None:
    """One marker a seed in each arm; markers of one seed are joined where they are compared."""
    p = finding.prediction
    arms = [arm for arm in result.claim.arms if arm in finding.values and (p.near is None or arm == p.more)]
    compared = [p.more] if p.near is not None else [arm for arm in arms if arm in (p.more, p.less)]
    positive = all(value > 0 for arm in compared for value in finding.values[arm])
    for seed in range(len(finding.values[arms[0]])):
        line = [finding.values[arm][seed] for arm in compared]
        axes.plot([arms.index(arm) for arm in compared], line, color="#999999", linewidth=1, zorder=1)
    for at, arm in enumerate(arms):
        i = result.claim.arms.index(arm)
        axes.scatter([at] * len(finding.values[arm]), finding.values[arm], color=COLOURS[i], marker=MARKS[i], zorder=2)
    if p.near is not None:
        axes.axhspan(p.near - p.by, p.near + p.by, color="#56b4e9", alpha=0.25, zorder=0)
        axes.axhline(p.near, color="#56b4e9", linewidth=1, zorder=0)
    if p.times is not None and positive:
        _logarithmic(axes)
    axes.set_xticks(range(len(arms)), [draw.literal(arm) for arm in arms], fontsize=8)
    axes.set_xlim(-0.6, len(arms) - 0.4)
    axes.set_title(_folded(p.label), fontsize=9)
    axes.set_xlabel(_folded(f"{finding.verdict}: {p.symptom}"), fontsize=8)
    axes.grid(alpha=0.3, axis="y")
    axes.tick_params(axis="y", labelsize=8)


def _curve(axes: Any, curve: Curve, result: Result) -> None:
    """The mean over the seeds, and the range of their values."""
    for i, arm in enumerate(result.claim.arms):
        runs = [row.measured[curve.name] for row in result.of(arm) if curve.name in row.measured]
        if not runs:
            continue
        # a training that diverged is shorter: the steps that all seeds have are drawn
        shared = min(map(len, runs))
        heights = [[points[at][1] for points in runs] for at in range(shared)]
        # a logarithmic axis has no place for 0
        drawn = [at for at in range(shared) if not curve.log_y or min(heights[at]) > 0]
        places, heights = [runs[0][at][0] for at in drawn], [heights[at] for at in drawn]
        style: dict[str, Any] = {"color": COLOURS[i], "linestyle": DASHES[i], "linewidth": 1.6}
        if shared <= 12:
            style |= {"marker": MARKS[i], "markersize": 4}
        axes.plot(places, [sum(values) / len(values) for values in heights], **style)
        axes.fill_between(places, list(map(min, heights)), list(map(max, heights)), color=COLOURS[i], alpha=0.18)
        if curve.log_x:
            axes.set_xscale("log", base=2)
            if len(drawn) == shared <= 12:
                axes.set_xticks(places, [f"{place:g}" for place in places])
    if curve.log_y:
        _logarithmic(axes)
    axes.set_title(_folded(curve.y), fontsize=9)
    axes.set_xlabel(draw.literal(curve.x), fontsize=8)
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=8)


def _logarithmic(axes: Any) -> None:
    """A logarithmic y axis with plain numbers at powers of ten; at others only if the range is small."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    few = low > 0 and high / low < 100
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=7))
    axes.yaxis.set_major_formatter(FuncFormatter(_tick))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _tick(value: float, place: int) -> str:
    return f"{value:g}" if 1e-3 <= value < 1e5 else number(value).removeprefix("1·")


def _folded(text: str) -> str:
    return draw.literal("\n".join(textwrap.wrap(text, 46)))
