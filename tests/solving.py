"""Solves exercises from their own blanks, mistakes and working; a program of its own, so that shapes are not checked.

Checking every call makes the tape several times slower, and there are 51 questions of each kind.
"""

import json
import math
import re
import sys

from pencil.learn.katas import KATAS
from pencil.learn.katas.exercise import written
from pencil.learn.katas.grader import accepts, grade

SEEDS = [None, *range(50)]
WORKED = [None, 11, 13]
NONSENSE = "31415.926"  # larger than anything in an exercise but bytes, and no number of those


def solved(question):
    """The right answers are taken, rounded, in full, and rounded along the way; nonsense is not, and has no hint."""
    right = [blank.written for blank in question.blanks]
    graded = grade(question, right)
    assert (graded.solved, graded.hint, graded.unread) == (True, None, ()), right
    exact = [b.value if b.words else repr(b.value) for b in question.blanks]
    assert grade(question, exact).solved, exact
    for i, blank in enumerate(question.blanks):
        for other in blank.also:
            assert written(other, blank.decimals) != blank.written
            assert grade(question, [*right[:i], written(other, blank.decimals), *right[i + 1 :]]).solved
    graded = grade(question, ["zebra" if b.words else NONSENSE for b in question.blanks])
    assert (any(graded.right), graded.hint, graded.unread) == (False, None, ())


def mistaken(question):
    """Each mistake gets its own hint."""
    assert question.mistakes or question.kata == "wrong-cells"
    for mistake in question.mistakes:
        assert all(math.isfinite(value) for value in mistake.values if isinstance(value, float))
        said = [written(v, b.decimals) for b, v in zip(question.blanks, mistake.values, strict=True)]
        graded = grade(question, said)
        assert not graded.solved
        assert graded.hint == mistake, (mistake.name, graded.hint)


def worked(question):
    """Every answer stands in the working."""
    text = "\n".join(question.working).replace("−", "-").replace(",", "")
    found = [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]
    for blank in question.blanks:
        here = str(blank.value) in text if blank.words else any(accepts(blank, one) for one in found)
        assert here, (blank.label, blank.value, text)


def fit_to_print(question):
    assert len({blank.label for blank in question.blanks}) == len(question.blanks) <= 10
    assert len({mistake.name for mistake in question.mistakes}) == len(question.mistakes)
    assert re.fullmatch("[^\n]+[.?]", question.ask)
    for mistake in question.mistakes:
        assert re.fullmatch(r"[^.]+(?:\d\.\d[^.]*)*\.", mistake.hint), mistake.hint
    for table in question.given:
        assert {len(row) for row in table.rows} == {len(table.across or table.rows[0])}
        assert len(table.rows) == len(table.down or table.rows)
        given = [cell for row in table.rows for cell in row if not isinstance(cell, str)]
        assert all(round(cell, 4) == cell for cell in given), given  # numbers for a pencil


def main(names):
    """Solve them all; print what was given with one seed, and the names of the mistakes."""
    given, mistakes = {}, set()
    for name in names:
        asked = set()
        for seed in SEEDS:
            question = KATAS[name].make(seed)
            assert (question.kata, question.seed, question.title) == (name, seed, KATAS[name].title)
            solved(question)
            mistaken(question)
            fit_to_print(question)
            if seed in WORKED:
                worked(question)
            asked.add(repr(question.given) + question.ask)
            mistakes |= {mistake.name for mistake in question.mistakes}
        assert len(asked) > 15, f"the numbers of {name} are not fresh"
        given[name] = repr([table.rows for table in KATAS[name].make(17).given])
    print(json.dumps({"given": given, "mistakes": sorted(mistakes)}))


if __name__ == "__main__":
    names = sys.argv[1:]
    if "--all" in names:
        names.remove("--all")
        WORKED = SEEDS
    main(names)
