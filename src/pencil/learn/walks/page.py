"""A walk as one static page: nothing to fetch, to read, to project or to print."""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from ...console import visible
from ..check.check import RIGHT, ROUNDED, Number
from .sections import Compared, Drawn, Grid, Section, Shown, Walk, written

STYLE = Path(__file__).with_name("walk.css")
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{about}
<nav><ol>{contents}</ol></nav>
<main>
{sections}
</main>
<script>
const folded = [];
addEventListener("beforeprint", () => {{
  for (const one of document.querySelectorAll("details:not([open])")) {{ one.open = true; folded.push(one) }}
}});
addEventListener("afterprint", () => {{ while (folded.length) folded.pop().open = false }});
</script>
</body>
</html>
"""
CLASSES = {RIGHT: "right", ROUNDED: "rounded"}


def page(walk: Walk) -> str:
    """The whole page of a walk."""
    sections = list(enumerate(walk.sections, 1))
    return PAGE.format(
        title=_text(f"{walk.number} · {walk.title}"),
        style=STYLE.read_text("utf-8"),
        about=f'<p class="dim">With the numbers of {_text(walk.run)}.</p>' if walk.run else "",
        contents="".join(f'<li><a href="#s{i}">{_text(_title(section))}</a></li>' for i, section in sections),
        sections="\n".join(_section(i, section) for i, section in sections),
    )


def _text(text: str) -> str:
    """Escaped; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(visible(text)))


def _title(section: Section) -> str:
    return section.title + (f" ({section.about})" if section.about else "")


def _section(number: int, section: Section) -> str:
    level = min(4, section.level + 1)
    first, last = section.lines
    lines = f"line {first}" if first == last else f"lines {first}–{last}"
    return "\n".join(
        [
            f'<section id="s{number}">',
            f"<h{level}>{_text(_title(section))}</h{level}>",
            f'<p class="where">{lines} of the document</p>',
            f"<p>{_text(section.text)}</p>" if section.text else "",
            f'<p class="dim">Left out: {_text(section.skipped)}.</p>' if section.skipped else "",
            f'<p class="not">{_text(section.lacking)}</p>' if section.lacking else "",
            *_tensors(section.shown),
            f'<p class="dim">Not in this model: {_text(", ".join(section.missing))}</p>' if section.missing else "",
            *_comparisons(section.compared),
            *_claims(section),
            *(_figure(one) for one in section.figures),
            *_unfolded(section),
            _list("Corrections", [f"{n}. {_text(words)}" for n, words in section.corrections]),
            _links(section),
            "</section>",
        ]
    )


def _tensors(tensors: Iterable[Shown]) -> Iterable[str]:
    for source, group in groupby(tensors, key=lambda shown: shown.source):
        yield f'<p class="dim">Tensors of <code>{_text(source)}</code></p>'
        for one in group:
            sizes = " ".join(f"{axis} {size}" for axis, size in zip(one.axes, one.shape, strict=False))
            sizes = sizes or "×".join(map(str, one.shape))
            about = f' <span class="dim">{_text(sizes)}</span> {_text(one.meaning)}'
            yield f"<p><b>{_text(one.symbol)}</b> · <code>{_text(one.name)}</code>{about}</p>"
            yield f'<div class="tables">{"".join(map(_grid, one.grids))}</div>'
            if one.cut:
                yield f'<p class="dim">(cut: {_text(one.cut)})</p>'


def _grid(grid: Grid) -> str:
    labelled = any(grid.down)
    head = "".join(f"<th>{_text(word)}</th>" for word in (*([""] if labelled else ()), *grid.across))
    rows = (
        "<tr>"
        + (f"<th>{_text(word)}</th>" if labelled else "")
        + "".join(f"<td>{_text(v)}</td>" for v in row)
        + "</tr>"
        for word, row in zip(grid.down, written(grid.rows), strict=True)
    )
    caption = f"<caption>{_text(grid.where)}</caption>" if grid.where else ""
    top = f"<thead><tr>{head}</tr></thead>" if any(grid.across) else ""
    return f"<table>{caption}{top}<tbody>{''.join(rows)}</tbody></table>"


def _comparisons(comparisons: Sequence[Compared]) -> Iterable[str]:
    if comparisons:
        yield '<p class="dim">Printed, and below it the right number where the printed one is not right</p>'
    for one in comparisons:
        named = "" if one.name == one.formula else f"{one.name} = "
        counted = ", ".join(f"{n} {verdict}" for verdict, n in one.counts.items() if n)
        same = f", as <code>{_text(one.where)}</code>" if one.where else ""
        yield f"<p>line {one.line}: <code>{_text(named + one.formula)}</code>{same} · {counted}</p>"
        rows = "".join("<tr>" + "".join(map(_number, row)) + "</tr>" for row in one.rows)
        yield f'<div class="tables"><table class="compared"><tbody>{rows}</tbody></table></div>'
        for words in sorted({number.note for row in one.rows for number in row if number.note}):
            yield f'<p class="dim">({_text(words)})</p>'


def _number(number: Number) -> str:
    kind = CLASSES.get(number.verdict, "wrong")
    if kind == "right":
        return f'<td class="right">{_text(number.printed)}</td>'
    mark = "✗" if kind == "wrong" else "~"
    return f'<td class="{kind}"><s>{_text(number.printed)}</s>{mark}<ins>{_text(number.true)}</ins></td>'


def _claims(section: Section) -> Iterable[str]:
    if section.claims:
        yield '<p class="dim">Claims</p><ul>'
        for claim in section.claims:
            kind = {"shown": "shown", "wrong": "wrong"}.get(claim.verdict, "not")
            command = f" <code>{_text(claim.command)}</code>" if claim.command else ""
            yield (
                f'<li>line {claim.line}: {_text(claim.text)} <b class="{kind}">{_text(claim.verdict)}</b>'
                f"{': ' if claim.evidence else ''}{_text(claim.evidence)}{command}</li>"
            )
        yield "</ul>"


def _figure(figure: Drawn) -> str:
    source = b64encode(figure.png()).decode()
    caption = f"{_text(figure.caption)} · <code>{_text(figure.command)}</code>"
    image = f'<img src="data:image/png;base64,{source}" alt="{_text(figure.caption)}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _unfolded(section: Section) -> Iterable[str]:
    if section.unfolded:
        yield "<details><summary>The arithmetic</summary>"
        for one in section.unfolded:
            yield f"<p><code>{_text(one.command)}</code></p>"
            yield f"<pre>{_text(chr(10).join(one.lines))}</pre>"
        yield "</details>"


def _links(section: Section) -> str:
    links = [
        *(f"practise: <code>pencil kata {_text(name)}</code>" for name in section.katas),
        *(f"measure: <code>pencil lab {_text(name)}</code>" for name in section.labs),
        *(f"see: <code>{_text(command)}</code>" for command in section.commands),
    ]
    return _list("", links)


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    head = f'<p class="dim">{title}</p>' if title else ""
    return f"{head}<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"
