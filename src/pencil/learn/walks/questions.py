"""The questions of a walk: exercises with the document's own numbers, and questions of the document itself."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ...config import UserError
from ..check.formula import read, work_out
from ..katas import KATAS, PAGES, kata, page
from ..katas.exercise import Blank, Question
from .data import Asked


def exercise(number: str, name: str) -> Question:
    """An exercise with the numbers of its document: of the list, or of the page of this document by its title.

    "NAME | ROW" asks for one row of it, "NAME | each ROW" with that row of every table; after these,
    " | without TABLE, TABLE" leaves out tables that the answer does not need.
    """
    name, *parts = name.split(" | ")
    if parts:
        question = exercise(number, name)
        for part in parts:
            if part.startswith("without "):
                question = _without(question, part.removeprefix("without ").split(", "))
            else:
                question = _one_row(question, part.removeprefix("each "), part.startswith("each "))
        return question
    if name in KATAS:
        return kata(name).make(None)
    if number not in PAGES:
        raise UserError(f"there is no exercise {name}; pencil kata --list has their names")
    questions = _questions(number)
    if name not in questions:
        raise UserError(f"there is no exercise {name}, and pencil kata --page {number} has no question of that title")
    return questions[name]


def _without(question: Question, names: list[str]) -> Question:
    """The question without these tables."""
    known = [table.name for table in question.tables]
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"the exercise has no table {unknown[0]}; it has {', '.join(known)}")
    return replace(question, tables=tuple(table for table in question.tables if table.name not in names))


def _one_row(question: Question, row: str, each: bool) -> Question:
    """The question with this row alone of its answers, and of the first table that has it, or of `each`."""
    tables, found = list(question.tables), 0
    for i, table in enumerate(tables):
        if table.down and row in table.down and (each or not found):
            tables[i] = replace(table, rows=[table.rows[table.down.index(row)]], down=[row])
            found += 1
    asked = [i for i, blank in enumerate(question.blanks) if blank.label.startswith((f"{row},", f"{row} →"))]
    if not asked and found and question.ask.endswith(f" for {row}?"):
        return replace(question, tables=tuple(tables))  # it asks for this row alone
    if not asked:
        names = ", ".join(dict.fromkeys(blank.label.partition(",")[0] for blank in question.blanks))
        raise UserError(f"the exercise asks for no row {row}; it asks for {names}")
    return replace(
        question,
        tables=tuple(tables),
        ask=question.ask if len(asked) == len(question.blanks) else f"{question.ask} Only {row} is asked.",
        blanks=tuple(question.blanks[i] for i in asked),
        mistakes=tuple(replace(one, values=tuple(one.values[i] for i in asked)) for one in question.mistakes),
        work=lambda: (
            question.working
            if len(asked) == len(question.blanks)
            else [line for line in question.working if line.strip().startswith(row)]
        ),
        rows=(),
        across=(),
    )


@cache
def _questions(number: str) -> dict[str, Question]:
    """The questions of a document's page by title, and by section and title where several have it."""
    questions: dict[str, Question] = {}
    for section in page(number):
        for question in section.questions:
            questions.setdefault(question.title, question)
            questions.setdefault(f"{section.title}: {question.title}", question)
    return questions


def own_question(asked: Asked, known: Mapping[str, np.ndarray], title: str) -> Question:
    """A question of the document; a formula is worked out from the values of its check file."""
    answers: tuple[Any, ...] = asked.answer
    if asked.formula:
        value = work_out(read(asked.formula), dict(known))
        answers = tuple(np.ravel(value).tolist())
    labels = asked.labels or ("answer",) * len(answers)
    if len(labels) != len(answers):
        raise UserError(f"{asked.formula} gives {len(answers)} numbers, and labels has {len(labels)}")
    blanks = tuple(_blank(asked, label, answer) for label, answer in zip(labels, answers, strict=True))
    working = (asked.because,) if asked.because else (asked.formula,) if asked.formula else ()
    return Question((), asked.prompt, blanks, work=lambda: working, kata="", title=title)


def _blank(asked: Asked, label: str, answer: Any) -> Blank:
    if isinstance(answer, str):
        return Blank(label, answer, words=True, also=asked.accept)
    digits = str(answer).partition(".")[2] if not asked.formula else ""
    decimals = asked.decimals or (0 if digits == "0" else len(digits))
    return Blank(label, float(answer), decimals, tolerance=asked.tolerance)
