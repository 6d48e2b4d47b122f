"""A walk as one static page: nothing to fetch, to read, to project or to print."""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from ...console import visible
from ..check.check import RIGHT, ROUNDED, Number
from ..katas.exercise import Question
from ..katas.grader import shown as given
from ..katas.grader import wanted
from .sections import Compared, Drawn, Section, Walk, corrections
from .tables import Grid, Shown

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


def page(walk: Walk, answers: bool = False) -> str:
    """The whole page of a walk; what follows a question is folded, or open with `answers`."""
    steps = [(step, section) for step, group in walk.groups for section in group]
    sections = [(at, step, section) for at, (step, section) in enumerate(steps, 1)]
    about = [
        _text(walk.credit),
        f"With the numbers of {_text(walk.run)}." if walk.run else "",
        f"Lines are those of {_text(walk.beside)}." if walk.beside else "",
        *map(_text, walk.notes),
    ]
    return PAGE.format(
        title=_text(f"{walk.number} · {walk.title}"),
        style=STYLE.read_text("utf-8"),
        about="".join(f'<p class="dim">{line}</p>' for line in about if line),
        contents="".join(
            f'<li{_number_of(step)}><a href="#s{at}">{_text(_title(section))}</a></li>'
            for at, step, section in sections
        ),
        sections="\n".join(_section(at, step, section, walk, answers) for at, step, section in sections),
    )


def _text(text: str) -> str:
    """Escaped; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(visible(text)))


def _paragraphs(text: str) -> str:
    """A paragraph for each line, and a list of those that begin with a dash."""
    made = ""
    for dashed, lines in groupby(text.split("\n"), key=lambda line: line.startswith("- ")):
        if dashed:
            made += _list("", [_text(line[2:]) for line in lines])
        else:
            made += "".join(f"<p>{_text(line)}</p>" for line in lines if line)
    return made


def _title(section: Section) -> str:
    return section.title + (f" ({section.about})" if section.about else "")


def _number_of(step: int) -> str:
    """The number of an entry of the contents; a section left out has none."""
    return f' value="{step}"' if step else ' class="left-out"'


def _section(at: int, step: int, section: Section, walk: Walk, answers: bool) -> str:
    level = min(4, section.level + 1)
    first, last = section.lines
    lines = f"line {first} of the document" if first == last else f"lines {first}–{last} of the document"
    where = [f"step {step} of {walk.steps}"] * bool(step) + [lines] * bool(walk.beside)
    rest = [
        _paragraphs(section.then),
        *_tensors(section.shown),
        f'<p class="dim">Not in this model: {_text(", ".join(section.missing))}</p>' if section.missing else "",
        *_comparisons(section.compared, walk),
        *_claims(section, walk),
        *(_figure(one) for one in section.figures),
        *_unfolded(section),
        _list("Corrections", [_text(line) for line in corrections(section)]),
    ]
    if section.questions:
        answer = "\n".join(("".join(map(_answer, section.questions)), *rest))
        rest = [
            *map(_question, section.questions),
            f'<details class="answer"{" open" * answers}><summary>Reveal</summary>\n{answer}\n</details>',
        ]
    return "\n".join(
        [
            f'<section id="s{at}">',
            f"<h{level}>{_text(_title(section))}</h{level}>",
            f'<p class="where">{" · ".join(where)}</p>' if where else "",
            _paragraphs(section.text),
            f'<p class="dim">Left out: {_text(section.skipped)}.</p>' if section.skipped else "",
            f'<p class="not">{_text(section.lacking)}</p>' if section.lacking else "",
            *rest,
            _links(section),
            "</section>",
        ]
    )


def _question(question: Question) -> str:
    """A question with what is given, and the blanks to fill on paper."""
    tables = (
        _table(one.name, [[given(value) for value in row] for row in one.rows], one.down, one.across)
        for one in question.tables
    )
    begin, blanks, columns = wanted(question)
    asked = " · ".join(blanks) + columns
    return (
        f'<div class="question"><p class="dim">Your turn</p><div class="tables">{"".join(tables)}</div>'
        f"<p>{_text(question.ask)}</p><p>{begin}: {_text(asked)}</p></div>"
    )


def _answer(question: Question) -> str:
    answers = " · ".join(f"{_text(blank.label)} = {_text(blank.written)}" for blank in question.blanks)
    return f"<p><b>{answers}</b></p><pre>{_text(chr(10).join(question.working))}</pre>"


def _tensors(tensors: Iterable[Shown]) -> Iterable[str]:
    for source, group in groupby(tensors, key=lambda shown: shown.source):
        yield f'<p class="dim">Tensors of <code>{_text(source)}</code></p>'
        for one in group:
            sizes = " ".join(f"{axis} {size}" for axis, size in zip(one.axes, one.shape, strict=False))
            sizes = sizes or "×".join(map(str, one.shape))
            if one.again:
                again = f'<span class="dim">as in {_text(one.again)}</span>'
                yield f"<p><b>{_text(one.symbol)}</b> · <code>{_text(one.name)}</code> {again}</p>"
                continue
            about = f' <span class="dim">{_text(sizes)}</span> {_text(one.meaning)}'
            yield f"<p><b>{_text(one.symbol)}</b> · <code>{_text(one.name)}</code>{about}</p>"
            yield f'<div class="tables">{"".join(map(_grid, one.grids))}</div>'
            if one.cut:
                yield f'<p class="dim">(cut: {_text(one.cut)})</p>'


def _grid(grid: Grid) -> str:
    return _table(grid.where, grid.written(), grid.down, grid.across)


def _table(name: str, rows: Sequence[Sequence[str]], down: Sequence[str] | None, across: Sequence[str] | None) -> str:
    down, across = down or [""] * len(rows), across or []
    labelled = any(down)
    head = "".join(f"<th>{_text(word)}</th>" for word in (*([""] if labelled else ()), *across))
    lines = (
        "<tr>"
        + (f"<th>{_text(word)}</th>" if labelled else "")
        + "".join(f"<td>{_text(v)}</td>" for v in row)
        + "</tr>"
        for word, row in zip(down, rows, strict=True)
    )
    caption = f"<caption>{_text(name)}</caption>" if name else ""
    top = f"<thead><tr>{head}</tr></thead>" if any(across) else ""
    return f"<table>{caption}{top}<tbody>{''.join(lines)}</tbody></table>"


def _comparisons(comparisons: Sequence[Compared], walk: Walk) -> Iterable[str]:
    if comparisons:
        yield '<p class="dim">Printed, and below it the right number where the printed one is not right</p>'
    for one in comparisons:
        named = "" if one.name == one.formula else f"{one.name} = "
        same = f", as <code>{_text(one.where)}</code>" if one.where else ""
        yield f"<p>{_line(walk, one.line)}<code>{_text(named + one.formula)}</code>{same} · {one.counted}</p>"
        if one.where and set(one.counts.values()) == {0, one.counts[RIGHT]}:
            continue  # the tensor has the same table
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


def _line(walk: Walk, line: int | None) -> str:
    """Where a sentence stands in the reader's own copy of the document."""
    return f"line {line}: " if walk.beside and line else ""


def _claims(section: Section, walk: Walk) -> Iterable[str]:
    if section.claims:
        yield '<p class="dim">Claims</p><ul>'
        for claim in section.claims:
            kind = {"shown": "shown", "wrong": "wrong"}.get(claim.verdict, "not")
            command = f" <code>{_text(claim.command)}</code>" if claim.command else ""
            yield (
                f'<li>{_line(walk, claim.line)}{_text(claim.text)} <b class="{kind}">{_text(claim.verdict)}</b>'
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
            again = f' <span class="dim">as in {_text(one.again)}</span>' if one.again else ""
            yield f"<p><code>{_text(one.command)}</code>{again}</p>"
            if one.again:
                continue
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
