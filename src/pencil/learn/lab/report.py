"""Writes results: an HTML page with its figures, a Markdown table, and all numbers as JSON."""

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ... import files as writing
from .figure import figure
from .finding import Finding, effect, number, wanted
from .run import Result, as_json, environment, sizes_in_words

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
    held = {"facts": facts, "claims": [as_json(result) for result in results]}
    pngs = {f"{result.claim.name}.png": figure(result) for result in results}
    sections = "".join(_section(result, png) for result, png in zip(results, pngs.values(), strict=True))
    body = f"<h1>What breaks when a part is removed</h1>{_overview(results)}{_facts(facts)}{sections}"
    files = {
        **pngs,
        "index.html": _page("The removal lab", body).encode(),
        "table.md": table(held).encode(),
        "results.json": _json(held),
    }
    return writing.write_all(folder, files)


def table(results: Mapping[str, Any]) -> str:
    """The Markdown table of a results.json, one line a prediction."""
    lines = ["| claim | what must happen without it | measured | 95 % interval | verdict |", "|---|---|---|---|---|"]
    for claim in results["claims"]:
        for i, found in enumerate(claim["findings"]):
            first = f"`{claim['name']}` {claim['title']}" if i == 0 else ""
            cells = (first, found["symptom"], _middle(found), _interval(found), _emphasised(found["verdict"]))
            lines.append(f"| {' | '.join(cells)} |")
    facts = results["facts"]
    lines += [
        "",
        f"`{facts['command']}`, {facts.get('time', '')}; pencil {facts['pencil']}, torch {facts['torch']}, "
        f"{facts['machine']}.",
    ]
    return "\n".join(lines) + "\n"


def _middle(found: Mapping[str, Any]) -> str:
    means = {arm: number(sum(values) / len(values)) for arm, values in found["values"].items()}
    arms = [found["more"]] if found["near"] is not None else [found["more"], found["less"]]
    return f"{found['label']}: " + ", ".join(f"{arm} {means[arm]}" for arm in arms)


def _interval(found: Mapping[str, Any]) -> str:
    sign = "÷" if found["times"] is not None else "−"
    kind = found["more"] if found["near"] is not None else f"{found['more']} {sign} {found['less']}"
    return f"{kind}: {number(found['mean'])} ({number(found['low'])} to {number(found['high'])})"


def _emphasised(verdict: str) -> str:
    return verdict if verdict == "shown" else f"**{verdict}**"


def _json(held: Mapping[str, Any]) -> bytes:
    return (json.dumps(held, ensure_ascii=False, indent=1) + "\n").encode()


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
            escape(found.prediction.symptom),
            _mark(found.verdict),
        ]
        for result in results
        for i, found in enumerate(result.findings)
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
    }
    terms = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text)
    found = [_found(finding) for finding in result.findings]
    return (
        f'<h2 id="{escape(claim.name)}">{escape(claim.title)}: {_mark(result.verdict)}</h2><dl>{terms}</dl>'
        + _rows(found, ("predicted", "measured", "condition", "verdict"))
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
    names = list(dict.fromkeys(name for row in rows for name, value in row.measured.items() if _is_number(value)))
    lines = [
        [escape(row.arm), str(row.seed)]
        + [number(row.measured[name]) if name in row.measured else "" for name in names]
        + [f"{row.seconds:.1f}"]
        for row in rows
    ]
    return _rows(lines, ["arm", "seed", *map(escape, names), "seconds"])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _facts(facts: Mapping[str, str]) -> str:
    terms = "".join(
        f"<dt>{escape(name)}</dt><dd>{f'<code>{escape(text)}</code>' if name == 'command' else escape(text)}</dd>"
        for name, text in facts.items()
    )
    return f"<dl>{terms}</dl>"
