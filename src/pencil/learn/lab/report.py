"""Writes results: an HTML page with its figures, a Markdown table, and all numbers as JSON."""

import base64
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ... import draw
from ... import files as writing
from .claim import Curve
from .runner import Result, as_json, environment, sizes_in_words
from .verdict import Finding, effect, number, wanted

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
    """A logarithmic y axis with plain numbers at powers of ten; at others if the range is small; linear if tiny."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    if low > 0 and high < 2 * low:  # a logarithmic axis would have one number, or none
        return
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


STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.5rem;border-top:1px solid #ccc;padding-top:1rem}
table{border-collapse:collapse;width:100%;margin:1rem 0;font-size:.9rem}
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem;border-bottom:1px solid #ddd}
img{max-width:100%;height:auto}.shown{color:#005b8f;font-weight:600}.not{color:#a34700;font-weight:600}
dl{display:grid;grid-template-columns:7rem 1fr;gap:.3rem 1rem}dt{color:#666}dd{margin:0}
.wide{overflow-x:auto}code{background:#f3f3f3;padding:.1rem .3rem}
"""


def write_claim(folder: Path, result: Result, command: str) -> list[Path]:
    """figure.png, report.html and results.json of one claim."""
    png = figure(result)
    facts = environment() | {"command": command}
    page = _page(result.claim.title, _section(result, png) + _facts(facts))
    files = {
        "figure.png": png,
        "report.html": page.encode(),
        "results.json": _json({"facts": facts, "claims": [as_json(result)]}),
    }
    return writing.write_all(folder, files)


def write_all(folder: Path, results: Sequence[Result], command: str, took: str) -> list[Path]:
    """index.html, table.md and results.json of many claims, and a figure of each."""
    facts = environment() | {"command": command, "time": took}
    content = {"facts": facts, "claims": [as_json(result) for result in results]}
    pngs = {f"{result.claim.name}.png": figure(result) for result in results}
    sections = "".join(_section(result, png) for result, png in zip(results, pngs.values(), strict=True))
    body = f"<h1>What breaks when a part is removed</h1>{_overview(results)}{_facts(facts)}{sections}"
    files = {
        **pngs,
        "index.html": _page("The removal lab", body).encode(),
        "table.md": table(content).encode(),
        "results.json": _json(content),
    }
    return writing.write_all(folder, files)


def table(results: Mapping[str, Any]) -> str:
    """The Markdown table of a results.json, one line a prediction."""
    lines = ["| claim | what must happen without it | measured | 95 % interval | verdict |", "|---|---|---|---|---|"]
    for claim in results["claims"]:
        for i, finding in enumerate(claim["findings"]):
            first = f"`{claim['name']}` {claim['title']}" if i == 0 else ""
            verdict = finding["verdict"] if finding["verdict"] == "shown" else f"**{finding['verdict']}**"
            cells = (first, finding["symptom"], _middle(finding), _interval(finding), verdict)
            lines.append(f"| {' | '.join(cells)} |")
    facts = results["facts"]
    lines += [
        "",
        f"`{facts['command']}`, {facts.get('time', '')}; pencil {facts['pencil']}, torch {facts['torch']}, "
        f"{facts['machine']}.",
    ]
    return "\n".join(lines) + "\n"


def _middle(finding: Mapping[str, Any]) -> str:
    means = {arm: number(sum(values) / len(values)) for arm, values in finding["values"].items()}
    arms = [finding["more"]] if finding["near"] is not None else [finding["more"], finding["less"]]
    return f"{finding['label']}: " + ", ".join(f"{arm} {means[arm]}" for arm in arms)


def _interval(finding: Mapping[str, Any]) -> str:
    sign = "÷" if finding["times"] is not None else "−"
    kind = finding["more"] if finding["near"] is not None else f"{finding['more']} {sign} {finding['less']}"
    return f"{kind}: {number(finding['mean'])} ({number(finding['low'])} to {number(finding['high'])})"


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><body>{body}</body></html>\n"
    )


def _mark(verdict: str) -> str:
    return f'<span class="{"shown" if verdict == "shown" else "not"}">{escape(verdict)}</span>'


def _rows(lines: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    """A table; its cells are HTML."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def _overview(results: Sequence[Result]) -> str:
    lines = [
        [
            f'<a href="#{escape(result.claim.name)}">{escape(result.claim.title)}</a>' if i == 0 else "",
            escape(finding.prediction.symptom),
            _mark(finding.verdict),
        ]
        for result in results
        for i, finding in enumerate(result.findings)
    ]
    return _rows(lines, ("what is removed", "what must happen without it", "verdict"))


def _section(result: Result, png: bytes) -> str:
    claim = result.claim
    picture = base64.b64encode(png).decode()
    facts = {
        "claim": claim.hypothesis,
        "from": claim.source,
        "removed": claim.removed,
        "sizes": sizes_in_words(result.size),
        "seeds": f"{len(result.of(claim.arms[0]))}, the same data in the same order in every arm",
        "limits": claim.caveat,
        "by hand": claim.by_hand,
    }
    terms = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text)
    lines = [_found(finding) for finding in result.findings]
    return (
        f'<h2 id="{escape(claim.name)}">{escape(claim.title)}: {_mark(result.verdict)}</h2><dl>{terms}</dl>'
        + _rows(lines, ("predicted", "measured", "condition", "verdict"))
        + f'<img alt="{escape(claim.title)}: each seed, arm by arm" src="data:image/png;base64,{picture}">'
        + _seeds(result)
    )


def _found(finding: Finding) -> list[str]:
    p = finding.prediction
    means = ", ".join(f"{arm} {number(finding.average(arm))}" for arm in finding.values)
    return [
        escape(p.symptom),
        f"{escape(p.label)}: {escape(means)}<br>{escape(effect(finding))}",
        escape(wanted(p)),
        _mark(finding.verdict),
    ]


def _seeds(result: Result) -> str:
    """Every measured number, a line for each arm and seed."""
    rows = [row for arm in result.claim.arms for row in result.of(arm)]
    names = list(
        dict.fromkeys(name for row in rows for name, value in row.measured.items() if isinstance(value, (int, float)))
    )
    lines = [
        [escape(row.arm), str(row.seed)]
        + [number(row.measured[name]) if name in row.measured else "" for name in names]
        + [f"{row.seconds:.1f}"]
        for row in rows
    ]
    return _rows(lines, ["arm", "seed", *map(escape, names), "seconds"])


def _facts(facts: Mapping[str, str]) -> str:
    terms = "".join(
        f"<dt>{escape(name)}</dt><dd>{f'<code>{escape(text)}</code>' if name == 'command' else escape(text)}</dd>"
        for name, text in facts.items()
    )
    return f"<dl>{terms}</dl>"
