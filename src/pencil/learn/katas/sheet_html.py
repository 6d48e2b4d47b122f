"""Worksheets as HTML pages to print, in black and white, on A4 or Letter."""

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from itertools import accumulate

from .document_words import worded
from .drawings import drawing
from .exercise import Question, Table
from .grader import digits, labels, shown
from .sheets import Sheet

# space to work, in millimetres: for each line of the working, and for each further COLUMN of its letters
LINE, LEAST, COLUMN, ROOMS = 6, 2, 72, 20
COVER = "Work down the page and cover what is below: a question may show the result of one before it."

STYLE = """
@page { margin: 16mm 16mm 18mm; @bottom-left { content: "SHEET"; font: 8pt sans-serif }
  @bottom-right { content: counter(page) " / " counter(pages); font: 8pt sans-serif } }
* { box-sizing: border-box }
html { color: #000; background: #fff; font: 11pt/1.45 Georgia, "Times New Roman", serif }
body { max-width: 178mm; margin: 0 auto; padding: 4mm }
@media print { body { max-width: none; padding: 0 } }
h1 { font-size: 17pt; margin: 0 }
header { border-bottom: 1.5pt solid #000; padding-bottom: 3mm; margin-bottom: 5mm }
header p { margin: 2mm 0 0 }
.who { display: flex; gap: 6mm; margin-top: 4mm }
.who span { flex: 1; border-bottom: .6pt solid #000; padding-top: 5mm }
.who span:first-child { flex: 2 }
code { overflow-wrap: anywhere; font: 10.5pt ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace }
section { break-inside: avoid; margin: 0 0 5mm }
h2 { font-size: 12pt; margin: 0 0 1mm; break-after: avoid }
section p { margin: 1mm 0; white-space: pre-line }
.given { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 2mm 10mm; margin: 2mm 0 }
.given b { display: block; font-size: 9.5pt }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th { font-weight: normal; font-style: italic; font-size: 9.5pt; text-align: right; padding: .5mm 2mm }
tbody th { text-align: left; padding-left: 0 }
td { border: .5pt solid #888; text-align: right; padding: .5mm 2mm }
.drawing { display: block; max-width: 100%; height: auto; margin: 2mm 0 }
.drawing .label { font-size: 13px; font-style: italic }
.blanks { display: flex; flex-wrap: wrap; gap: 2mm 5mm; margin-top: 2mm }
.blank { display: flex; align-items: center; gap: 2mm }
.blank .box { display: inline-block; width: 24mm; height: 8.5mm; border: 1pt solid #000 }
.fill { margin-top: 2mm }
.fill td { border: 1pt solid #000; min-width: 21mm; height: 8.5mm }
.fill tbody th { padding-right: 3mm; font-style: normal }
.fill thead th { text-align: center }
.part { break-after: avoid; break-inside: avoid; border-top: .8pt solid #000; padding-top: 2mm; margin: 0 0 4mm }
header + .part { border-top: 0; padding-top: 0 }
.part b { font-size: 13pt }
.part p { margin: 1mm 0 0; font-style: italic }
ROOM
.key, .paper + .paper { break-before: page }
.answers { columns: 2; column-gap: 8mm }
.answers section { margin-bottom: 3.5mm }
.answers span { display: inline-block }
.working { font: 8pt/1.4 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; margin: 1mm 0 0 3mm }
"""
# classes, since the page's policy allows no style on an element
STYLE = STYLE.replace("ROOM", "\n".join(f".room{n} {{ height: {n * LINE}mm }}" for n in range(LEAST, ROOMS + 1)))
Paper = tuple[str, Sheet]  # a student, or nobody, and the sheet


def page(papers: Sequence[Paper], answers: bool = True, words: str = "field") -> str:
    """Worksheets as one HTML page, each from a new sheet of paper; with `answers`, they are at its end.

    `words` are those of the field (Q, K, V) or of document 000 (WANT, HAVE, GIVE).
    """
    papers = _worded(papers, words)
    body = "\n".join(f'<div class="paper">{_paper(student, sheet)}</div>' for student, sheet in papers)
    keys = "\n".join(f'<div class="key">{_key(student, sheet)}</div>' for student, sheet in papers if answers)
    return _whole(papers, papers[0][1].title, f"{body}\n{keys}")


def _worded(papers: Sequence[Paper], words: str) -> list[Paper]:
    return [
        (student, replace(sheet, questions=tuple(worded(question, words) for question in sheet.questions)))
        for student, sheet in papers
    ]


def key_page(papers: Sequence[Paper], words: str = "field") -> str:
    """The answers of worksheets with their working, as one HTML page."""
    papers = _worded(papers, words)
    title = f"{papers[0][1].title}: answers"
    keys = (_key(student, sheet) for student, sheet in papers)
    return _whole(papers, title, "\n".join(f'<div class="paper">{key}</div>' for key in keys))


def _paper(student: str, sheet: Sheet) -> str:
    name = f"Name &ensp; {escape(student)}" if student else "Name"
    cover = f"<p>{escape(COVER)}</p>" if sheet.parts else ""
    head = (
        f"<header><h1>{escape(sheet.title)}</h1><p>Sheet <code>{escape(sheet.code)}</code></p>"
        f'<div class="who"><span>{name}</span><span>Date</span></div>{cover}</header>'
    )
    # each part before its first exercise
    first = accumulate((count for *_, count in sheet.parts), initial=0)
    parts = {i: part for i, part in zip(first, sheet.parts, strict=False)}
    exercises = (
        (_part(*parts[i][:2]) if i in parts else "") + _exercise(i + 1, question)
        for i, question in enumerate(sheet.questions)
    )
    return head + "\n".join(exercises)


def _part(title: str, about: str) -> str:
    return f'<div class="part"><b>{escape(title)}</b>{f"<p>{escape(about)}</p>" if about else ""}</div>'


def _whole(papers: Sequence[Paper], title: str, body: str) -> str:
    codes = {sheet.code for _, sheet in papers}
    code = codes.pop() if len(codes) == 1 else ""  # the foot of a page cannot know whose page it is
    style = STYLE.replace("SHEET", code)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(f"{title} {code}".strip())}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def _exercise(number: int, question: Question) -> str:
    """One exercise with space to work and a box for every answer."""
    how = digits(question)
    boxes = _filled_in(question) or "".join(
        f'<span class="blank">{escape(label)}<span class="box"></span></span>' for label in labels(question)
    )
    tables = "".join(map(_table, question.tables))
    return (
        f'<section class="exercise"><h2>{number}. {escape(question.title)}</h2>'
        f'{drawing(question)}<div class="given">{tables}</div>'
        f"<p>{escape(question.ask)}{escape(f' Answer {how}.') if how else ''}</p>"
        f'<div class="room{_room(question)}"></div><div class="blanks">{boxes}</div></section>'
    )


def _filled_in(question: Question) -> str:
    """The boxes as a table, where the question has rows."""
    if not question.rows:
        return ""
    head = "".join(f"<th>{escape(word)}</th>" for word in question.across)
    top = f"<thead><tr><th></th>{head}</tr></thead>" if head else ""
    box = '<td class="box"></td>'
    rows = "".join(f"<tr><th>{escape(label)}</th>{box * count}</tr>" for label, count in question.rows)
    return f'<table class="fill">{top}<tbody>{rows}</tbody></table>'


def _room(question: Question) -> int:
    """How many lines of handwriting the working takes; a table to fill in takes part of it."""
    lines = sum(math.ceil(len(line) / COLUMN) for line in question.working)
    return min(max(LEAST, lines // 2 if question.rows else lines), ROOMS)


def _table(table: Table) -> str:
    side = table.down is not None
    head = "".join(f"<th>{escape(word)}</th>" for word in table.across or ())
    top = f"<thead><tr>{'<th></th>' if side else ''}{head}</tr></thead>" if head else ""
    rows = ""
    for i, row in enumerate(table.rows):
        label = f"<th>{escape(table.down[i])}</th>" if table.down is not None and i < len(table.down) else ""
        rows += f"<tr>{label}{''.join(f'<td>{escape(shown(value))}</td>' for value in row)}</tr>"
    return f"<div><b>{escape(table.name)}</b><table>{top}<tbody>{rows}</tbody></table></div>"


def _key(student: str, sheet: Sheet) -> str:
    """Every answer, with its working."""
    parts = []
    for i, question in enumerate(sheet.questions, 1):
        answers = " &ensp; ".join(
            f'<span>{escape(blank.label)} <b class="answer">{escape(blank.written)}</b></span>'
            for blank in question.blanks
        )
        working = escape("\n".join(question.working))
        parts.append(
            f"<section><h2>{i}. {escape(question.title)}</h2><p>{answers}</p>"
            + (f'<div class="working">{working}</div>' if working else "")
            + "</section>"
        )
    whose = f"{escape(student)}, " if student else ""
    head = f"<header><h1>Answers</h1><p>{whose}Sheet <code>{escape(sheet.code)}</code></p></header>"
    return head + '<div class="answers">' + "\n".join(parts) + "</div>"
