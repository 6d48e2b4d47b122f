"""The scores of heads as a table, in sentences, as a picture and as plain data."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from ... import draw
from ...inference.head_patterns import HeadProfile
from .scores import FEWEST, NAMES, Head, Report, Score

NUMBERED = 16  # heads along a side of a panel up to which each cell has its number
ABOUT = (
    "Percent of the attention ± a 95 % interval over the texts; in brackets, what chance would give.",
    "broad: 100 is uniform attention. This shows where a head attends, not what the model does with it.",
)


def scores_of(heads: Sequence[Head]) -> list[str]:
    """The names of the scores that some head has, in the order they are shown."""
    return [name for name in NAMES if any(name in head.scores for head in heads)]


def groups_of(report: Report) -> dict[str, list[Head]]:
    """The heads of each group of blocks."""
    names = dict.fromkeys(head.group for head in report.heads)
    return {group: [head for head in report.heads if head.group == group] for group in names}


def tables(report: Report) -> list[Table]:
    """For each group, one head a line: its scores with interval and baseline, and its name where it has earned one."""
    made_tables = []
    for group, heads in groups_of(report).items():
        names = scores_of(heads)
        title = (
            f"{group or 'decoder'}, self-attention" if group != "cross" else "decoder, cross-attention to the source"
        )
        made = Table(
            title=title if group else None, title_justify="left", box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0)
        )
        made.add_column("head", no_wrap=True, min_width=4)
        for name in names:
            made.add_column(name, justify="right", overflow="fold")
        made.add_column("name", min_width=10)
        for head in heads:
            cells = [_cell(head.scores.get(name)) for name in names]
            made.add_row(f"{head.layer}.{head.head}", *cells, _called(head))
        made_tables.append(made)
    return made_tables


def _cell(score: Score | None) -> Text:
    if score is None:
        return Text("")
    text = f"{100 * score.mean:.0f} ±{100 * score.margin:.0f} ({100 * score.baseline:.0f})"
    return Text(text, style="bold" if score.clear else "")


def _called(head: Head) -> Text:
    if head.names:
        return Text(", ".join(head.names), style="bold")
    return Text("as untrained" if head.untrained else "–", style="dim")


def words(report: Report) -> list[str]:
    """What shows and what does not, in sentences."""
    lines, missing = [], []
    for name in scores_of(report.heads):
        if name == "broad":
            continue
        places = [at(head) for head in report.heads if NAMES[name] in head.names]
        if places:
            lines.append(f"{NAMES[name]}: {', '.join(places)}")
        else:
            missing.append(NAMES[name])
    if not lines:
        lines = ["No score is clearly beyond its baseline: there is no head to name."]
    elif missing:
        lines.append(f"No head shows: {', '.join(missing)}.")
    idle = sum(head.untrained and not head.names for head in report.heads)
    if idle:
        many = (
            "All of them spread"
            if idle == len(report.heads)
            else f"{idle} of {len(report.heads)} heads spread{'s' * (idle == 1)}"
        )
        lines.append(f"{many} {'its' if idle == 1 else 'their'} attention as untrained heads do.")
    return lines


def about(report: Report) -> list[str]:
    """How the table is read, by its last head."""
    last = report.heads[-1]
    code = f"{last.layer}.{last.head}"
    return [f"{code} counts from 0, as an index does: it is head {last.head + 1} of blocks.{last.layer}.", *ABOUT]


def at(head: Head) -> str:
    return f"{head.group} {head.layer}.{head.head}".strip()


def measured_on(report: Report, profile: HeadProfile, held_out: bool) -> str:
    """A sentence on where the numbers come from."""
    where = (
        f"Measured on {report.texts} {'held-out ' if held_out else ''}{profile.unit} of up to {report.tokens} tokens"
    )
    if profile.induction is not None and not report.repeated:
        return f"{where}; induction was not: it needs {FEWEST} different tokens, and a context of twice as many."
    if report.repeated:
        return f"{where}; induction on random sequences of {FEWEST} to {report.repeated} tokens, written twice or not."
    return f"{where}."


def as_data(report: Report) -> dict[str, Any]:
    """The same as plain data."""
    heads = [
        {
            "group": head.group,
            "layer": head.layer,
            "head": head.head,
            "scores": {name: vars(score) for name, score in head.scores.items()},
            "names": list(head.names),
            "as_untrained": head.untrained,
        }
        for head in report.heads
    ]
    return {"texts": report.texts, "tokens": report.tokens, "repeated": report.repeated, "heads": heads}


def from_data(data: Mapping[str, Any]) -> Report:
    """The report that `as_data` gave."""
    heads = [
        Head(
            str(head["group"]),
            int(head["layer"]),
            int(head["head"]),
            {str(name): Score(**score) for name, score in head["scores"].items()},
        )
        for head in data["heads"]
    ]
    return Report(tuple(heads), int(data["texts"]), int(data["tokens"]), int(data["repeated"]))


def picture(report: Report, title: str) -> bytes:
    """A panel for each score: blocks down, heads across, darker where more; a frame around what earned a name."""
    groups = groups_of(report)
    panels = [(group, heads, name) for group, heads in groups.items() for name in scores_of(heads)]
    count, depth = (max(getattr(head, side) for head in report.heads) + 1 for side in ("head", "layer"))
    wide, high = max(2.4, 0.42 * min(count, NUMBERED) + 0.8), max(1.9, 0.36 * min(depth, NUMBERED) + 1.1)
    # groups are below one another, a single one in two rows
    across = 3 if len(groups) == 1 else max(len(scores_of(heads)) for heads in groups.values())
    down = sum(-(-len(scores_of(heads)) // across) for heads in groups.values())
    figure = draw.canvas(min(wide * across + 0.9, 24), min(high * down + 0.8, 24))
    named = any(head.names for head in report.heads)
    key = "orange frame: clearly beyond its baseline" if named else "no score is clearly beyond its baseline"
    figure.suptitle(draw.literal(f"{title}\n{key}"), fontsize=10)
    drawn: list[Any] = []
    shown: Any = None
    place, last = 0, ""
    for group, heads, name in panels:
        if group != last and place % across:
            place += across - place % across
        place, last = place + 1, group
        axes = figure.add_subplot(down, across, place)
        drawn.append(axes)
        shown = _panel(axes, heads, name)
        axes.set_title(f"{group} {NAMES[name]}".strip() + f"\n{_baselines(heads, name)}", fontsize=9)
    figure.colorbar(shown, ax=drawn, fraction=0.03, label="percent")
    return draw.as_png(figure)


def _panel(axes: Any, heads: list[Head], name: str) -> Any:
    from matplotlib.patches import Rectangle

    down, across = (max(getattr(head, side) for head in heads) + 1 for side in ("layer", "head"))
    values = np.full((down, across), np.nan)
    for head in heads:
        values[head.layer, head.head] = 100 * head.scores[name].mean
    shown = axes.imshow(values, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    few = max(down, across) <= NUMBERED
    for head in heads:
        value = head.scores[name].mean
        if few:
            shade = "white" if value > 0.55 else "black"
            axes.text(head.head, head.layer, f"{100 * value:.0f}", ha="center", va="center", fontsize=8, color=shade)
        if head.scores[name].clear:
            corner = head.head - 0.46, head.layer - 0.46
            axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=draw.BAD, linewidth=2.5))
    if few:
        axes.set(xticks=range(across), yticks=range(down))
    axes.set_xlabel("head", fontsize=8)
    axes.set_ylabel("block", fontsize=8)
    axes.tick_params(labelsize=8)
    return shown


def _baselines(heads: list[Head], name: str) -> str:
    base = [100 * head.scores[name].baseline for head in heads]
    low, high = f"{min(base):.0f}", f"{max(base):.0f}"
    what = "untrained" if name == "broad" else "by chance"
    return f"{what} {low}" if low == high else f"{what} {low}–{high}"
