"""Solves exercises from their own blanks, mistakes and working; a program of its own, so that shapes are not checked.

Checking every call makes the tape several times slower, and there are 51 questions of each kind.
"""

import json
import math
import random
import re
import sys
from itertools import combinations

from pencil.learn.katas import KATAS
from pencil.learn.katas.exercise import written
from pencil.learn.katas.grader import accepts, grade

SEEDS = [None, *range(50)]
TRIED = SEEDS[::4]
WORKED = [None, 11, 13]
MIXED = 5  # of the questions, every fifth is answered with mixtures of right and mistaken answers
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


def texts(question, values):
    return [written(value, blank.decimals) for blank, value in zip(question.blanks, values, strict=True)]


def differ(blank, one, other, units):
    """By more than this many units of the last digit; whole numbers and words by anything."""
    if isinstance(one, str) or isinstance(other, str):
        return one != other
    return abs(one - other) > (units * 10**-blank.decimals if blank.decimals else 1e-6)


def told_apart(question):
    """The right answers and those of each mistake differ from one another by more than anybody's rounding."""
    answers = [[blank.value for blank in question.blanks], *(mistake.values for mistake in question.mistakes)]
    for one, other in combinations(answers, 2):
        assert any(map(lambda *cells: differ(*cells, 3), question.blanks, one, other)), (one, other)


def named_whole_or_not_at_all(question):
    """A mistake is named only if every box fits it: not where some boxes are right, another mistake's or anything."""
    rng = random.Random(f"{question.kata} {question.seed}")
    right = [blank.value for blank in question.blanks]
    mixed = []
    for mistake in question.mistakes:
        for i in range(len(right)):
            mixed += [[*right[:i], mistake.values[i], *right[i + 1 :]]]
            mixed += [[*mistake.values[:i], right[i], *mistake.values[i + 1 :]]]
    for _ in range(7):
        wild = [v if isinstance(v, str) else v + rng.choice((-1, 1)) * 10 ** rng.uniform(-2, 2) for v in right]
        sources = [right, wild, *(mistake.values for mistake in question.mistakes)]
        mixed += [wild, [rng.choice(sources)[i] for i in range(len(right))]]
    for values in mixed:
        said = texts(question, values)
        hint = grade(question, said).hint
        if hint is not None:
            answers = [
                text if blank.words else float(text.replace("−", "-"))
                for blank, text in zip(question.blanks, said, strict=True)
            ]
            assert not any(map(lambda *cells: differ(*cells, 2), question.blanks, answers, hint.values)), (said, hint)


def informative(question):
    """Fresh numbers are not degenerate."""
    rows = {table.name: table.rows for table in question.tables}
    assert len({blank.written for blank in question.blanks}) > 1
    if question.kata == "scale":
        assert len(set(rows["q·k"][0])) == len(rows["q·k"][0])
        assert all(rows["q·k"][0])
    if question.kata in ("causal", "prefix"):
        assert all(len(set(row)) == len(row) for row in rows["scores"])
    if question.kata in ("softmax", "causal", "prefix"):
        shown = [blank.written for blank in question.blanks if blank.value]
        assert len(set(shown)) == len(shown)
    if question.kata in ("residual", "layernorm", "dials", "adaln"):
        assert len(set(rows["token"][0])) == len(rows["token"][0]) > 2  # two numbers are always normalised to −1 and 1
    if question.kata == "cross-entropy":
        assert len(set(rows["logits"][0])) == len(rows["logits"][0])
    if question.kata == "rope":
        assert all(rows["query"][0])


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
    for table in question.tables:
        assert {len(row) for row in table.rows} == {len(table.across or table.rows[0])}
        assert len(table.rows) == len(table.down or table.rows)
        given = [cell for row in table.rows for cell in row if not isinstance(cell, str)]
        assert all(round(cell, 4) == cell for cell in given), given  # numbers for a pencil


def ask_all(name, seeds, mistakes):
    """Solve the questions of one kind."""
    asked = set()
    for seed in seeds:
        question = KATAS[name].make(seed)
        assert (question.kata, question.seed, question.title) == (name, seed, KATAS[name].title)
        solved(question)
        mistaken(question)
        told_apart(question)
        if seed is None:
            named_whole_or_not_at_all(question)
        else:
            informative(question)
            if seed % MIXED == 0:
                named_whole_or_not_at_all(question)
        fit_to_print(question)
        if seed in WORKED:
            worked(question)
        asked.add(repr(question.tables) + question.ask)
        mistakes |= {mistake.name for mistake in question.mistakes}
    assert len(asked) > len(seeds) / 4, f"the numbers of {name} are not fresh"


def main(names, few):
    """Solve them all, and some of a few more; print what was given with one seed, and the names of the mistakes."""
    given, mistakes = {}, set()
    for name in names:
        ask_all(name, TRIED, mistakes)
        given[name] = repr([table.rows for table in KATAS[name].make(17).tables])
    for name in few:
        ask_all(name, SEEDS[:3], set())
    print(json.dumps({"given": given, "mistakes": sorted(mistakes)}))


if __name__ == "__main__":
    names, _, few = (words.split() for words in " ".join(sys.argv[1:]).partition("--few"))
    if "--all" in names:
        names.remove("--all")
        TRIED, WORKED, MIXED = SEEDS, SEEDS, 1
    main(names, few)
