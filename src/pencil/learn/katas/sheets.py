"""Worksheets of exercises with fresh numbers, as HTML pages to print; each has a code.

The code holds the topic or the exercises, their number and the seed, so the same sheet can be made again from the code
alone; three letters at its end are a checksum of the exercises, so a mistyped code is noticed.
"""

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from ...config import UserError
from . import KATAS
from .answer_text import digits, labels, shown
from .exercise import Kata, Question, Table, tag_key

MOST = 100  # exercises on one sheet
SEEDS = 10_000  # of one exercise
LARGEST = 1_000_000  # seeds of sheets are below this, which keeps codes short
EVERYTHING = "all"
AND = "+"  # between the exercises in a code
# space to work, in millimetres: for each line of the working, and for each further COLUMN of its letters
LINE, LEAST, COLUMN, ROOMS = 6, 2, 72, 20


@dataclass(frozen=True)
class Sheet:
    """Exercises in teaching order, and the code to make them again."""

    code: str
    questions: tuple[Question, ...]


def topics() -> list[str]:
    """The topics, in teaching order."""
    return list(dict.fromkeys(kata.topic for kata in KATAS.values()))


def slug(words: str) -> str:
    """Words as written in a code."""
    return re.sub(r"\W+", "-", words.lower()).strip("-")


def topic(words: str) -> str:
    """The topic with this name; its beginning is enough."""
    alike = [known for known in topics() if slug(words) and slug(known).startswith(slug(words))]
    exact = [known for known in alike if slug(known) == slug(words)]
    if len(exact or alike) != 1:
        raise UserError(f"there is no topic {words}; known: {', '.join(topics())}")
    return (exact or alike)[0]


def scope(names: Sequence[str] = (), of: str | None = None) -> str:
    """The contents of a sheet as written in its code: some exercises in teaching order, `all` of a topic, or `all`."""
    named = AND.join(name for name in KATAS if name in names)
    return named or (f"{EVERYTHING}.{slug(topic(of))}" if of else EVERYTHING)


def _pool(what: str) -> list[Kata]:
    names = what.split(AND)
    if set(names) <= set(KATAS):
        return [kata for name, kata in KATAS.items() if name in names]
    return [kata for kata in KATAS.values() if what in (EVERYTHING, scope(of=kata.topic))]


def make(what: str, count: int, seed: int) -> Sheet:
    """A sheet of `count` exercises of a scope."""
    if not 1 <= count <= MOST:
        raise UserError(f"a sheet has between 1 and {MOST} exercises, not {count}")
    if not 0 <= seed < LARGEST:
        raise UserError(f"a sheet's seed is between 0 and {LARGEST - 1:,}, not {seed}")
    chosen = _chosen(_pool(what), count, seed)
    questions = tuple(kata.make(_number(seed, i, kata.name) % SEEDS) for i, kata in enumerate(chosen))
    return Sheet(f"{what}-{count}-{seed}-{_check(questions)}", questions)


def again(code: str) -> Sheet:
    """The sheet with this code, in upper or lower case."""
    found = re.fullmatch(r"(.+)-(\d{1,3})-(\d{1,6})-(\w+)", code.strip().lower())
    if not found or not _pool(found[1]):
        raise UserError(f"{code.strip()[:40]} is not the code of a sheet; one looks like {EVERYTHING}-12-1234-abc")
    what, count, seed, check = found.groups()
    sheet = make(what, int(count), int(seed))
    if sheet.code.rpartition("-")[2] != check:
        raise UserError(f"there is no sheet {code}: either it is mistyped, or another version of pencil printed it")
    return sheet


def _chosen(katas: list[Kata], count: int, seed: int) -> list[Kata]:
    """`count` of them in teaching order; each is used once before any is used twice."""
    shuffled = sorted(katas, key=lambda kata: _number(seed, kata.name))
    drawn = [shuffled[i % len(shuffled)] for i in range(count)]
    return sorted(drawn, key=katas.index)


def _number(*parts: object) -> int:
    """A large number derived from these; the same on every machine."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:8], "big")


def _check(questions: Iterable[Question]) -> str:
    """Three letters as a checksum of the exercises; of each given value, three digits count."""
    content = [
        [q.kata, q.ask, *(b.label for b in q.blanks), *(_about(v) for t in q.given for row in t.rows for v in row)]
        for q in questions
    ]
    return base64.b32encode(hashlib.sha256(repr(content).encode()).digest()).decode()[:3].lower()


def _about(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value + 0.0:.3g}"


# ---- as a page


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
.blanks { display: flex; flex-wrap: wrap; gap: 2mm 5mm; margin-top: 2mm }
.blank { display: flex; align-items: center; gap: 2mm }
.box { display: inline-block; width: 24mm; height: 8.5mm; border: 1pt solid #000 }
ROOM
.key, .paper + .paper { break-before: page }
.answers { columns: 2; column-gap: 8mm }
.answers section { margin-bottom: 3.5mm }
.answers span { white-space: nowrap }
.working { font: 8pt/1.4 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; margin: 1mm 0 0 3mm }
"""
# classes, since the page's policy allows no style on an element
STYLE = STYLE.replace("ROOM", "\n".join(f".room{n} {{ height: {n * LINE}mm }}" for n in range(LEAST, ROOMS + 1)))
Paper = tuple[str, Sheet]  # a student, or nobody, and the sheet


def page(sheet: Sheet, title: str = "Pencil worksheet", answers: bool = True) -> str:
    """The worksheet as HTML; with `answers`, they are at its end on a separate page."""
    return class_page([("", sheet)], title, answers)


def key_page(sheet: Sheet, title: str = "Pencil worksheet: answers") -> str:
    """The answers with their working, as HTML."""
    return class_key_page([("", sheet)], title)


def class_page(papers: Sequence[Paper], title: str = "Pencil worksheet", answers: bool = True) -> str:
    """The worksheets of a class as one HTML page, each from a new sheet of paper; then the answers."""
    body = "\n".join(f'<div class="paper">{_paper(student, sheet, title)}</div>' for student, sheet in papers)
    keys = "\n".join(f'<div class="key">{_key(student, sheet)}</div>' for student, sheet in papers if answers)
    return _whole(papers, title, f"{body}\n{keys}")


def class_key_page(papers: Sequence[Paper], title: str = "Pencil worksheets: answers") -> str:
    """The answers of a class's worksheets, as one HTML page."""
    keys = (_key(student, sheet, _legend(sheet)) for student, sheet in papers)
    return _whole(papers, title, "\n".join(f'<div class="paper">{key}</div>' for key in keys))


def _paper(student: str, sheet: Sheet, title: str) -> str:
    name = f"Name &ensp; {escape(student)}" if student else "Name"
    head = (
        f"<header><h1>{escape(title)}</h1><p>Sheet <code>{escape(sheet.code)}</code></p>"
        f'<div class="who"><span>{name}</span><span>Date</span></div>{_legend(sheet)}</header>'
    )
    return head + "\n".join(_exercise(i, question) for i, question in enumerate(sheet.questions, 1))


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
    boxes = "".join(
        f'<span class="blank">{escape(label)}<span class="box"></span></span>' for label in labels(question)
    )
    tables = "".join(map(_table, question.given))
    return (
        f'<section class="exercise"><h2>{number}. {escape(question.title)}</h2>'
        f'<div class="given">{tables}</div>'
        f"<p>{escape(question.ask)}{escape(f' Answer {how}.') if how else ''}</p>"
        f'<div class="room{_room(question)}"></div><div class="blanks">{boxes}</div></section>'
    )


def _room(question: Question) -> int:
    """How many lines of handwriting the working takes."""
    lines = sum(math.ceil(len(line) / COLUMN) for line in question.working)
    return min(max(LEAST, lines), ROOMS)


def _table(table: Table) -> str:
    side = table.down is not None
    head = "".join(f"<th>{escape(word)}</th>" for word in table.across or ())
    top = f"<thead><tr>{'<th></th>' if side else ''}{head}</tr></thead>" if head else ""
    rows = ""
    for i, row in enumerate(table.rows):
        label = f"<th>{escape(table.down[i])}</th>" if table.down is not None and i < len(table.down) else ""
        rows += f"<tr>{label}{''.join(f'<td>{escape(shown(value))}</td>' for value in row)}</tr>"
    return f"<div><b>{escape(table.name)}</b><table>{top}<tbody>{rows}</tbody></table></div>"


def _legend(sheet: Sheet) -> str:
    """The key to WANT, HAVE and GIVE, for a sheet that uses them."""
    key = tag_key(sheet.questions)
    return f"<p>{escape(key)}</p>" if key else ""


def _key(student: str, sheet: Sheet, legend: str = "") -> str:
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
    head = f"<header><h1>Answers</h1><p>{whose}Sheet <code>{escape(sheet.code)}</code></p>{legend}</header>"
    return head + '<div class="answers">' + "\n".join(parts) + "</div>"
