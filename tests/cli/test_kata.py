"""`pencil kata` as a learner and a teacher type it: answering, what comes back when, sheets, and a class graded."""

import csv
import html
import io
import itertools
import json
import math
import re
import subprocess
import sys
from collections import Counter
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from conftest import pencil
from pencil.cli import kata as verb
from pencil.cli.screens import exercise as exercise_screen
from pencil.learn.katas import KATAS, kata, progress, sheet_html, sheets
from pencil.learn.katas import page as document_page
from pencil.learn.katas.class_grading import COLUMNS, Marked, Row, commonest
from pencil.learn.katas.exercise import Blank, Mistake, Question, Table
from pencil.learn.katas.grader import choices, grade, parts, understood
from pencil.learn.katas.progress import DAYS, NEW, Standing, after, following

NOON = datetime(2026, 3, 2, 12)


def portions(*scores):
    """Softmax by its definition."""
    raised = [math.exp(s) for s in scores]
    return " ".join(f"{r / sum(raised):.3f}" for r in raised)


RIGHT = portions(0 / 2, 4 / 2)  # the page's softmax: s2's match row is [0, 4], and tags are 4 wide
UNSCALED = portions(0, 4)


@pytest.fixture(autouse=True)
def private_data(tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def at(monkeypatch):
    """Set the clock."""

    def call(moment):
        seconds = itertools.count()
        monkeypatch.setattr(verb, "now", lambda: moment + timedelta(seconds=next(seconds)))

    call(NOON)
    return call


@pytest.fixture
def do(type_in, monkeypatch, at):
    """`pencil kata` with these words, and these lines typed."""

    def call(*words, typed="", code=0):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        return type_in("kata", *words, code=code)

    return call


@pytest.fixture
def standing(tmp_path):
    def call(name):
        path = tmp_path / "data" / "katas.json"
        row = json.loads(path.read_text())["katas"].get(name) if path.exists() else None
        return row and tuple(row[key] for key in ("attempts", "solved", "seen", "wrong", "box", "due"))

    return call


def solve(question):
    return " ".join(blank.written for blank in question.blanks)


# ---- one exercise


def test_the_working_stays_covered_until_the_answer(do, standing):
    covered = do("softmax").out
    assert "Scale, then softmax" in covered
    for number in RIGHT.split():
        assert number not in covered
    assert covered.rstrip().endswith("This one was not counted.")
    assert standing("softmax") is None
    said = do("softmax", typed=f"{RIGHT}\n").out
    assert said.startswith(covered.removesuffix("This one was not counted.\n"))
    told = said.removeprefix(covered.removesuffix("This one was not counted.\n"))
    assert told.startswith("✓ Right.\n")
    assert all(number in told for number in RIGHT.split())
    assert all(line.strip()[:20] in told for line in kata("softmax").make(None).working)
    assert standing("softmax") == (1, 1, 0, 0, 1, "2026-03-03")


def test_one_at_a_time_is_the_same_as_all_on_a_line(do):
    together = do("softmax", typed=f"{RIGHT}\n").out
    assert do("softmax", typed=RIGHT.replace(" ", "\n") + "\n").out == together
    assert do("softmax", typed=f"\n  [{RIGHT.replace(' ', ', ')}]\n").out == together
    assert do("softmax", typed=RIGHT.replace(".", ",") + "\n").out == together
    assert do("softmax", typed=RIGHT.replace(".", ",").replace(" ", "\n") + "\n").out == together


def test_a_mistake_is_named_and_what_was_wrong_comes_back(do, standing):
    said = do("softmax", typed=f"{UNSCALED}\n{RIGHT}\n").out
    assert "✗ None of them is right." in said
    named = grade(kata("softmax").make(None), UNSCALED.split()).hint
    assert f"{named.name}: {named.hint}"[:60] in said
    assert "√" in named.name
    assert said.index("✗") < said.index("✓")
    assert standing("softmax") == (1, 1, 0, 1, 1, "2026-03-03")


def test_only_the_wrong_blanks_are_read_again(do, standing):
    first, second = RIGHT.split()
    said = do("softmax", typed=f"{first} 5\n{second}\n").out
    label = kata("softmax").make(None).blanks[1].label
    assert f"✗ Not right yet: {label}\n" in said
    assert "✓" in said
    said = do("softmax", typed=f"{first} 5\n{RIGHT}\n").out  # all of them again will do as well
    assert "✓" in said


def test_three_wrong_answers_uncover_the_working(do, standing):
    said = do("softmax", typed="7 7\n" * 4).out
    assert said.count("✗") == 3
    assert "✓" not in said
    assert RIGHT.split()[0] in said
    assert standing("softmax") == (1, 0, 0, 1, 0, "2026-03-02")


@pytest.mark.parametrize("word", ["?", "show", "SHOW"])
def test_the_working_counts_as_seen_not_as_solved(do, standing, word):
    assert RIGHT.split()[0] in do("softmax", typed=f"{word}\n{RIGHT}\n").out
    assert standing("softmax") == (1, 0, 1, 0, 0, "2026-03-02")


def test_what_is_no_number_is_read_again_and_not_counted(do, standing):
    said = do("softmax", typed=f"half\n0.1 x\n1 2 3\n{RIGHT}\n").out
    assert "half is not a number" in said
    assert "x is not a number" in said
    assert "That is 3 answers for 2 blanks." in said
    assert "✗" not in said
    assert standing("softmax") == (1, 1, 0, 0, 1, "2026-03-03")


@pytest.mark.parametrize("word, said", [
    ("banana", "banana is not row or square; type one"), ("rows", "rows is not row or square; type one")
])  # fmt: skip
def test_an_unknown_word_is_read_again(do, standing, word, said):
    *numbers, last = (blank.written for blank in kata("missing-swap").make(None).blanks)
    told = do("missing-swap", typed=f"{' '.join(numbers)}\n{word}\n{last[:1].upper()}\n").out
    assert said in told
    assert "✗" not in told
    assert standing("missing-swap")[:4] == (1, 1, 0, 0)


def test_the_words_that_may_be_answered():
    blanks = (Blank("a", "right", words=True), Blank("b", 3.0), Blank("c", "right", words=True))
    verdicts = Question((), "", blanks, kata="x", seed=1)
    assert choices(verdicts) == ["right", "wrong"]
    assert [understood(said, blanks[0], choices(verdicts)) for said in ("R", " wrong ", "wrongs", "", "3")] == [
        True, True, False, False, False
    ]  # fmt: skip
    assert not understood("pat", blanks[0], ["patch", "path"])  # which of them?
    assert understood("pat", blanks[0], ["pat", "path"])
    alone = Question((), "", (Blank("a", "row", words=True),), kata="x", seed=1)
    assert choices(alone) == []  # the only known word would be the answer
    assert understood("square", alone.blanks[0], [])
    for name in KATAS:
        for question in (kata(name).make(seed) for seed in (None, 3, 5)):
            words = choices(question)
            assert all(understood(blank.written, blank, words) for blank in question.blanks)


@pytest.mark.parametrize("typed, counted", [("q\n", None), ("", None), ("0.1\n", None), ("huh\nquit\n", None),
                                            ("7 7\nq\n", (1, 0, 0, 1, 0, "2026-03-02"))])  # fmt: skip
def test_leaving_counts_only_what_was_answered(do, standing, typed, counted):
    do("softmax", typed=typed)
    assert standing("softmax") == counted


def test_control_c_leaves_as_q_does(do, standing, monkeypatch):
    class Keyboard(io.StringIO):
        def readline(self, *_):
            raise KeyboardInterrupt

    monkeypatch.setattr(exercise_screen.sys, "stdin", Keyboard())
    monkeypatch.setattr(io, "StringIO", lambda _: exercise_screen.sys.stdin)
    assert "This one was not counted." in do("softmax").out
    assert standing("softmax") is None


def test_fresh_numbers_have_a_seed_that_repeats_them(do):
    shown = [do("layernorm", "--new").out for _ in range(3)]
    seeds = [re.search(r"\(--seed (\d+)\)", one)[1] for one in shown]
    for seed, one in zip(seeds, shown, strict=True):
        assert do("layernorm", "--seed", seed).out == one
    assert len(set(shown)) == len(set(seeds))
    assert "--seed" not in do("layernorm").out.splitlines()[0]


def test_a_page_in_its_order(do, standing):
    sections = document_page("003")
    questions = [question for section in sections for question in section.questions]
    said = do("--page", "003", typed="".join(f"{solve(q)}\n" for q in questions)).out
    titles = [said.index(f"\n{section.title}\n") if i else 0 for i, section in enumerate(sections)]
    assert titles == sorted(titles)
    assert said.count("✓") == len(questions)
    assert said.endswith(f"\n{len(questions)} of {len(questions)} right at once, 0 after a wrong answer.\n")
    asked = Counter(q.kata for q in questions)
    assert all(standing(name)[:2] == (times, times) for name, times in asked.items() if name in KATAS)
    assert all(standing(name) is None for name in asked if name not in KATAS)  # these belong to the page alone
    left = do("--page", "003", typed=f"{solve(questions[0])}\nq\n").out
    assert left.endswith(f"\n1 of {len(questions)} right at once, 0 after a wrong answer.\n")


def test_quitting_a_page_does_not_count_the_one_not_answered(do, standing):
    said = do("--page", "003", typed="?\n?\n?\n\nq\n").out
    assert said.count("Seen, not solved.") == 3
    assert "This one was not counted." in said
    assert "Nothing" not in said
    first = [section.questions for section in document_page("003")][:3]
    names = [question.kata for questions in first for question in questions]
    assert names == ["reordered", "divisors", "stamp", "wavelength"]
    assert [standing(name) is not None for name in names] == [False, False, True, False]


@pytest.mark.long
def test_nothing_is_wider_than_the_terminal(do, monkeypatch):
    width = 60
    monkeypatch.setenv("COLUMNS", str(width))
    shown = [do(name, *seed, typed="?\n").out for name in KATAS for seed in ((), ("--seed", 13))]
    shown += [do("--list").out]
    long = [line for one in shown for line in one.splitlines() if cell_len(line) > width]
    assert not long


def test_wide_tables_are_cut_and_narrow_ones_stand_side_by_side():
    wide = Table("grid", [[17 * i * j for j in range(29)] for i in range(3)], [f"c{j}" for j in range(29)], list("xyz"))
    lines = exercise_screen.laid_out([wide], 60)
    assert max(map(len, lines)) <= 60
    found = [line.split() for line in lines]
    for i, name in enumerate("xyz"):
        assert [int(n) for words in found if words[:1] == [name] for n in words[1:]] == [17 * i * j for j in range(29)]
    assert [w for words in found if words and words[0].startswith("c") for w in words] == [f"c{j}" for j in range(29)]
    small = Table("W", [[1, 0.5], [-2, 10]], down=["s1", "s2"])
    assert exercise_screen.laid_out([small, small], 60) == [
        "W              W",
        "s1   1  0.5    s1   1  0.5",
        "s2  −2   10    s2  −2   10",
    ]


@pytest.mark.long
def test_over_a_pipe_nothing_but_text(tmp_path):
    done = pencil("kata", "softmax", stdin=f"\x1b[31m\n{'9e9' * 99}\n{RIGHT}\n", cwd=tmp_path)
    assert "✓ Right." in done.stdout
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", done.stdout)
    assert done.stdout.count("is not a number") == 2
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert not done.stderr


def test_in_a_terminal_each_blank_has_a_prompt(do, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    quiet = do("softmax", typed=f"{RIGHT}\n").out
    monkeypatch.setattr(io, "StringIO", Terminal)
    said = do("softmax", typed=RIGHT.replace(" ", "\n") + "\n").out
    prompts = "".join(f"{blank.label}: " for blank in kata("softmax").make(None).blanks)
    assert prompts in said
    assert said.replace(prompts, "") == quiet


@pytest.mark.parametrize("line, decimals, found", [
    ("0.119 0.881", 3, ["0.119", "0.881"]),
    ("0,119 0,881", 3, ["0,119", "0,881"]),
    ("0,119; 0,881", 3, ["0,119", "0,881"]),
    ("[0.119, 0.881]", 3, ["0.119", "0.881"]),
    ("0.119,0.881", 3, ["0.119", "0.881"]),
    ("0,5", 3, ["0,5"]),
    ("1,2", 0, ["1", "2"]),
    ("(1, 2)", 0, ["1", "2"]),
    ("327,680 2", 0, ["327,680", "2"]),
    ("−0.5\t1/3", 2, ["−0.5", "1/3"]),
    ("  ", 2, []),
])  # fmt: skip
def test_a_line_of_two_answers(line, decimals, found):
    assert parts(line, [Blank("a", 1.0, decimals), Blank("b", 2.0, decimals)]) == found


def test_the_one_answer_is_not_taken_apart():
    assert parts("b2, c3", [Blank("cells", "c3 b2", words=True)]) == ["b2, c3"]
    assert parts("327 680", [Blank("bytes", 327680.0)]) == ["327 680"]


# ---- what comes back when


def test_the_boxes(at):
    moment, s = NOON, NEW
    for days in (*DAYS[1:], DAYS[-1]):
        s = after(s, "solved", moment)
        assert s.due == moment.date() + timedelta(days)
        moment += timedelta(days)
    assert list(DAYS) == sorted(set(DAYS))
    assert after(s, "wrong", moment).due == after(s, "seen", moment).due == moment.date()
    assert after(s, "corrected", moment).due == moment.date() + timedelta(1)
    early = after(after(NEW, "solved", NOON), "solved", NOON)
    assert (early.box, early.due, early.solved) == (1, NOON.date() + timedelta(1), 2)


OUTCOMES = st.lists(
    st.tuples(st.sampled_from(["solved", "corrected", "wrong", "seen"]), st.integers(0, 50)), max_size=40
)


@given(OUTCOMES)
def test_what_was_wrong_comes_before_what_was_right(history):
    s, moment = NEW, NOON
    for outcome, days in history:
        moment += timedelta(days)
        was, s = s, after(s, outcome, moment)
        waits = (s.due - moment.date()).days
        assert 0 <= waits <= DAYS[-1]
        assert (waits == 0) == (outcome in ("wrong", "seen"))
        if outcome == "solved" and (was.due is None or was.due <= moment.date()):
            assert waits == DAYS[s.box] > DAYS[was.box] or was.box == s.box == len(DAYS) - 1
    counts = [outcome for outcome, _ in history]
    assert s.attempts == len(history)
    assert s.solved == counts.count("solved") + counts.count("corrected")
    assert s.wrong == counts.count("wrong") + counts.count("corrected")
    assert s.seen == counts.count("seen")


NAMES = list("abcdefg")


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(-9, 9), max_size=7), st.randoms())
def test_due_ones_come_first_then_new_ones_in_order(days, random):
    today, order = NOON.date(), random.sample(sorted(days), len(days))
    known = {
        name: Standing(1, due=today + timedelta(days[name]), last=NOON + timedelta(minutes=i))
        for i, name in enumerate(order)
    }
    chosen = following(known, NAMES, today)
    due = [name for name in order if days[name] <= 0]
    waiting = [name for name in due if name != order[-1]]  # what was done last waits for another one in between
    new = [name for name in NAMES if name not in known]
    if waiting:
        assert chosen == min(waiting, key=lambda name: (days[name], order.index(name)))
    elif new:
        assert chosen == new[0]
    else:
        assert chosen == (due[0] if due else None)


def test_the_next_exercise_for_you(do, at, standing):
    names = list(KATAS)
    assert KATAS[names[0]].title in do().out
    do(typed=f"{solve(kata(names[0]).make(None))}\n")
    assert KATAS[names[1]].title in do(typed="?\n").out  # seen only: it is due today
    assert KATAS[names[2]].title in do(typed=f"{solve(kata(names[2]).make(None))}\n").out  # another one in between
    back = do().out
    assert KATAS[names[1]].title in back
    seed = int(re.search(r"--seed (\d+)", back)[1])  # with other numbers
    again = do(names[1], "--seed", seed, typed=f"{solve(kata(names[1]).make(seed))}\n").out
    assert "✓" in again
    assert standing(names[1]) == (2, 1, 1, 0, 1, "2026-03-03")
    assert KATAS[names[3]].title in do().out
    at(NOON + timedelta(1))
    assert KATAS[names[0]].title in do().out


def test_nothing_due_says_when_to_come_again(do, tmp_path):
    (tmp_path / "data").mkdir()
    done = Standing(3, 3, 0, 0, 2, NOON.date() + timedelta(3), NOON)
    progress.write(tmp_path / "data" / "katas.json", dict.fromkeys(KATAS, done))
    said = do().out
    assert "Nothing is due today; cut comes back in 3 days." in said
    assert "pencil kata cut --new" in said


def test_the_list_says_how_you_stand(do, at):
    assert f"{len(KATAS)} exercises: {len(KATAS)} new, 0 due." in do("--list").out
    do("softmax", typed=f"{RIGHT}\n")
    do("layernorm", typed="?\n")
    said = do("--list").out
    assert all(name in said and one.title in said for name, one in KATAS.items())
    assert re.search(r"softmax .*\n +tomorrow, 1 of 1 solved\n", said)
    assert re.search(r"layernorm .*\n +due, 0 of 1 solved\n", said)
    assert said.endswith(f"{len(KATAS)} exercises: {len(KATAS) - 2} new, 1 due.\n")
    masks = do("--list", "--topic", "mask").out
    assert "causal" in masks
    assert "softmax" not in masks


def test_two_terminals_count_together(do, standing):
    from pencil.learn.katas.progress import Record

    first, second = Record(print), Record(print)
    first.add("softmax", "solved")
    second.add("cut", "solved")
    assert standing("softmax")[:2] == standing("cut")[:2] == (1, 1)


def test_progress_survives_the_file(tmp_path):
    path = tmp_path / "a" / "katas.json"
    assert progress.read(path) == {}
    kept = {"ä": Standing(5, 3, 1, 2, 4, date(2026, 2, 3), datetime(2026, 1, 2, 3, 4, 5)), "b": NEW}
    progress.write(path, kept)
    assert progress.read(path) == kept
    assert [one.name for one in path.parent.iterdir()] == ["katas.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 1, "katas": {"cut": {}}}', "\0", "[" * 9999,
    '{"format": 1, "katas": {"cut": {"attempts": -1, "solved": 0, "seen": 0, "wrong": 0, "box": 0, "due": null, "last": null}}}',
    '{"format": 1, "katas": {"cut": {"attempts": 1, "solved": 0, "seen": 0, "wrong": 0, "box": 99, "due": null, "last": null}}}',
    '{"format": 1, "katas": {"cut": {"attempts": 1, "solved": 0, "seen": 0, "wrong": 0, "box": 0, "due": "soon", "last": null}}}',
])  # fmt: skip
def test_a_damaged_file_is_set_aside(do, tmp_path, standing, content):
    folder = tmp_path / "data"
    folder.mkdir()
    for times in (1, 2):
        (folder / "katas.json").write_text(content)
        said = do("softmax", typed=f"{RIGHT}\n")
        assert said.err.count("\n") == 1
        assert "was damaged" in said.err
        assert standing("softmax")[:2] == (1, 1)
        assert len(list(folder.glob("katas.json.damaged*"))) == times
    assert (folder / "katas.json.damaged").read_text() == content


def test_a_newer_file_and_a_folder_that_cannot_be_written(do, tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "katas.json").write_text('{"format": 2, "katas": {}}')
    assert "written by a newer pencil" in do("softmax", code=2).err
    assert (folder / "katas.json").exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENCIL_DATA", str(tmp_path / "file" / "x"))
    assert "set PENCIL_DATA" in do("softmax", typed=f"{RIGHT}\n", code=2).err


def test_where_progress_is_kept(monkeypatch, tmp_path):
    assert progress.file() == tmp_path / "data" / "katas.json"
    monkeypatch.delenv("PENCIL_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "x"))
    assert progress.file() == tmp_path / "x" / "pencil" / "katas.json"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert progress.file() == tmp_path / ".local" / "share" / "pencil" / "katas.json"


# ---- sheets


def boxes(page):
    return page.count('class="box"')


def numbered(page):
    """The answers of a key, by the number of their exercise."""
    found = {}
    for number, body in re.findall(r"<h2>(\d+)\. (.*?)</section>", page, re.S):
        found[int(number)] = [html.unescape(word) for word in re.findall(r'class="answer">(.*?)</b>', body)]
    return found


def test_a_sheet_with_its_answers_on_the_last_page(do, tmp_path):
    said = do("--print", 12, "--out", "sheet.html", "--seed", 7).out
    code = re.search(r"Sheet (all-12-7-\w{3}): 12 exercises in sheet.html", said)[1]
    page = (tmp_path / "sheet.html").read_text(encoding="utf-8")
    sheet, key = page.split('<div class="key">')
    questions = sheets.again(code).questions
    assert code in sheet
    assert code in key
    assert sheet.count('class="exercise"') == 12
    assert boxes(sheet) == sum(len(q.blanks) for q in questions)
    assert 'class="answer"' not in sheet
    assert "working" not in sheet.partition("</style>")[2]
    assert list(numbered(key).values()) == [[b.written for b in q.blanks] for q in questions]
    assert [q.kata for q in questions] == sorted((q.kata for q in questions), key=list(KATAS).index)
    assert len({q.kata for q in questions}) == 12
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    do("--print", 12, "--out", "again.html", "--seed", 7)
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_the_key_apart(do, tmp_path):
    do("--print", 5, "--topic", "attention", "--out", "sheet.html", "--key", "key.html", "--csv", "answers.csv")
    sheet, key = ((tmp_path / name).read_text(encoding="utf-8") for name in ("sheet.html", "key.html"))
    assert 'class="key"' not in sheet
    assert 'class="answer"' not in sheet
    assert len(numbered(key)) == 5
    code = re.search(r"<code>(.*?)</code>", sheet)[1]
    assert code.startswith("all.attention-5-")
    assert {KATAS[q.kata].topic for q in sheets.again(code).questions} == {"attention"}
    rows = list(csv.DictReader(io.StringIO((tmp_path / "answers.csv").read_text(encoding="utf-8-sig"))))
    assert [(row["sheet"], row["question"]) for row in rows] == [(code, str(i)) for i in range(1, 6)]
    assert tuple(rows[0]) == COLUMNS


def test_one_exercise_many_times(do, tmp_path):
    do("softmax", "--print", 7, "--out", "sheet.html", "--seed", 3)
    code = re.search(r"<code>(.*?)</code>", (tmp_path / "sheet.html").read_text(encoding="utf-8"))[1]
    questions = sheets.again(code).questions
    assert {q.kata for q in questions} == {"softmax"}
    assert len({q.tables[0].rows.__repr__() for q in questions}) > 4
    more = sheets.make("all", len(KATAS) + 3, 1).questions
    assert {q.kata for q in more} == set(KATAS)


def test_a_mistyped_code_is_noticed():
    sheet = sheets.make("all", 3, 17)
    assert sheets.again(f" {sheet.code.upper()} ") == sheet
    what, check = sheet.code.rsplit("-", 1)
    for wrong in (f"all-3-18-{check}", f"all-2-17-{check}", f"softmax-3-17-{check}", f"{what}-{check[::-1]}x"):
        with pytest.raises(ValueError, match="mistyped"):
            sheets.again(wrong)


def test_words_from_elsewhere_stay_words(monkeypatch):
    odd = Question(
        (Table("<i>", [["&"]], ["<"], [">"]),), "<script>", (Blank("<u>", "<s>", words=True),), title="<b>title"
    )
    page = sheet_html.page([("", sheets.Sheet("c", (odd,)))])
    assert not re.search(r"<(i|u|s|script)>", page)
    assert "<b>title" not in page


@pytest.mark.long
def test_the_sheet_prints_on_both_kinds_of_paper(browser, tmp_path):
    sheet = sheets.make("all", len(KATAS), 5)
    made = {
        "whole": sheet_html.page([("", sheet)]),
        "sheet": sheet_html.page([("", sheet)], answers=False),
        "key": sheet_html.key_page([("", sheet)]),
    }
    page, asked, pages = browser.new_page(), [], {}
    page.on("request", lambda request: asked.append(request.url))
    page.emulate_media(media="print")
    for name, text in made.items():
        path = tmp_path / f"{name}.html"
        path.write_text(text, encoding="utf-8")
        page.goto(path.as_uri())
        for width in (210, 215.9):
            room = int((width - 32) / 25.4 * 96)  # without the margins
            page.set_viewport_size({"width": room, "height": 1000})
            furthest = "Math.max(...[...document.querySelectorAll('body *')].map(e => e.getBoundingClientRect().right))"
            assert page.evaluate(furthest) <= room
        pages[name] = len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))
    assert asked == [(tmp_path / f"{name}.html").as_uri() for name in made]
    assert pages["whole"] == pages["sheet"] + pages["key"]  # the answers begin on a page of their own
    assert len(KATAS) / 6 < pages["sheet"] < len(KATAS)
    page.close()


# ---- a class


@pytest.fixture
def sheet():
    return sheets.make("all", 5, 23)


def written(sheet, answers, students=("Ana",), sep=",", numbers=str):
    lines = [sep.join(COLUMNS)]
    for student in students:
        for i, answer in enumerate(answers, 1):
            lines.append(sep.join((student, sheet.code, str(i), numbers(answer))))
    return "\n".join(lines) + "\n"


def test_print_work_grade(do, tmp_path):
    """A class that copies the key has full marks, on every exercise there is."""
    do("--print", len(KATAS), "--out", "s.html", "--key", "k.html", "--csv", "a.csv", "--seed", 11)
    key = numbered((tmp_path / "k.html").read_text(encoding="utf-8"))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text(encoding="utf-8-sig"))))
    for row in rows:
        row["answer"] = " ".join(key[int(row["question"])])
    rows[0]["student"] = "Zoë"
    with (tmp_path / "a.csv").open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    said = do("grade", "a.csv", "--out", "graded.csv").out
    total = len(KATAS)
    assert re.search(rf"Zoë +{total} of {total}  all-{total}-11-", said)
    assert said.count("1 of 1 right") == total
    marks = list(csv.DictReader(io.StringIO((tmp_path / "graded.csv").read_text(encoding="utf-8-sig"))))
    assert [(m["student"], m["solved"], m["boxes right"] == m["boxes"]) for m in marks] == [
        ("Zoë", "yes", True)
    ] * total


@pytest.mark.parametrize(
    "encoding, sep", [("utf-8", ","), ("utf-8-sig", ";"), ("cp1252", ";"), ("utf-16", "\t"), ("utf-8", "\t")]
)
def test_what_spreadsheets_make_of_a_file(do, tmp_path, sheet, encoding, sep):
    answers = [solve(q).replace("−", "-") for q in sheet.questions]
    if sep != ",":
        answers = [a.replace(".", ",") for a in answers]
    text = written(sheet, answers, ("Zoë", "Çelik"), sep).replace("\n", "\r\n")
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    said = do("grade", "a.csv").out
    assert re.search(r"Zoë +5 of 5", said)
    assert re.search(r"Çelik +5 of 5", said)


def test_loose_tables_are_understood(do, tmp_path):
    sheet = sheets.make("softmax", 2, 5)
    first, second = (solve(q) for q in sheet.questions)
    text = (
        f"\nAnswer,Note,Question , SHEET,Student\n"
        f'"{first.replace(" ", "; ")}",,1.0,{sheet.code.upper()},Ana\n'
        f',,,,\n"[{second}]",late,2.,,\n'
        f"{first},,1,,Bo\n"
    )
    (tmp_path / "a.csv").write_text(text)
    said = do("grade", "a.csv").out
    assert re.search(r"Ana +2 of 2", said)
    assert re.search(r"Bo +1 of 2", said)  # one question has no line
    spread = f"student,sheet,question,answer\nAna,{sheet.code},1,{first.replace(' ', ',')}\n"
    (tmp_path / "a.csv").write_text(spread)
    assert re.search(r"Ana +1 of 2", do("grade", "a.csv").out)


def test_a_teacher_sees_what_to_teach_again(do, tmp_path):
    sheet = sheets.make("softmax", 1, 5)
    (question,) = sheet.questions
    slip = next(m for m in question.mistakes if "√" in m.name)
    wrong = " ".join(f"{v:.3f}" for v in slip.values)
    said = {"Ana": solve(question), "Bo": wrong, "Cy": wrong, "Di": "7 7 7"[: 2 * len(question.blanks) - 1], "Ed": "",
            "Flo": "half " * len(question.blanks), "Gus": "1 " * 9, "Hal": solve(question).split()[0]}  # fmt: skip
    rows = [f"{name},{sheet.code},1,{answer}" for name, answer in said.items()]
    (tmp_path / "a.csv").write_text("\n".join([",".join(COLUMNS), *rows]))
    told = do("grade", "a.csv", "--out", "g.csv").out
    students, questions = told.split("\nQuestions\n")
    assert "1. softmax: 1 of 8 right" in questions
    assert f"2 × {slip.name}: {slip.hint}"[:40] in questions
    assert questions.index(slip.name) < questions.index("not a known mistake")
    for name, marks in (("Ana", "1 of 1"), ("Bo", "0 of 1"), ("Ed", "0 of 1")):
        assert re.search(rf"{name} +{marks}", students)
    for note in ("no answer", "half cannot be read", f"9 answers for {len(question.blanks)} boxes",
                 f"1 of {len(question.blanks)} boxes filled"):  # fmt: skip
        assert note in students
    marks = {m["student"]: m for m in csv.DictReader(io.StringIO((tmp_path / "g.csv").read_text(encoding="utf-8-sig")))}
    assert (marks["Bo"]["mistake"], marks["Bo"]["hint"], marks["Bo"]["solved"]) == (slip.name, slip.hint, "no")
    assert marks["Hal"]["boxes right"] == "1"
    assert marks["Ana"]["should be"] == solve(question)


def test_what_was_left_out_counts_as_not_answered(do, tmp_path):
    sheet = sheets.make("all", 12, 7)
    names, answers = [q.kata for q in sheet.questions], [solve(q) for q in sheet.questions]
    rows = [f"Ada,{sheet.code},{i},{answers[i - 1]}" for i in (1, 2, 3, 5)]
    rows += [f"Ada,{sheet.code},4,", f"Ben,{sheet.code},1,{answers[0]}", f"Ben,{sheet.code},8,"]
    (tmp_path / "a.csv").write_text("\n".join([",".join(COLUMNS), *rows]))
    students, questions = do("grade", "a.csv").out.split("\nQuestions\n")
    assert re.search(r"Ada +4 of 12 .*\n +4, 6–12: no answer\n", students)
    assert re.search(r"Ben +1 of 12 .*\n +2–12: no answer\n", students)
    lines = [line.strip() for line in questions.splitlines()]
    assert lines == [
        sheet.code, f"1. {names[0]}: 2 of 2 right", f"2. {names[1]}: 1 of 2 right", "1 × no answer",
        f"3. {names[2]}: 1 of 2 right", "1 × no answer", f"5. {names[4]}: 1 of 2 right", "1 × no answer",
        "4, 6–12: nobody answered",
    ]  # fmt: skip


def test_each_sheet_has_a_class_of_its_own(do, tmp_path):
    one, other = sheets.make("softmax", 2, 5), sheets.make("softmax", 2, 6)
    rows = [f"Ada,{one.code},1,{solve(one.questions[0])}", f"Ben,{other.code},2,{solve(other.questions[1])}"]
    (tmp_path / "a.csv").write_text("\n".join([",".join(COLUMNS), *rows]))
    questions = do("grade", "a.csv").out.split("\nQuestions\n")[1]
    assert [line.strip() for line in questions.splitlines()] == [
        one.code, "1. softmax: 1 of 1 right", "2: nobody answered",
        other.code, "2. softmax: 1 of 1 right", "1: nobody answered",
    ]  # fmt: skip


def test_a_word_that_cannot_be_read_is_no_mistake(do, tmp_path):
    sheet = sheets.make("missing-swap", 1, 5)
    *numbers, last = solve(sheet.questions[0]).split()
    rows = [f"{name},{sheet.code},1,{' '.join(numbers)} {said}" for name, said in (("Ada", "rows"), ("Ben", last[:2]))]
    (tmp_path / "a.csv").write_text("\n".join([",".join(COLUMNS), *rows]))
    told = do("grade", "a.csv").out
    assert "1. missing-swap: rows cannot be read" in told
    assert re.search(r"Ben +1 of 1", told)


def test_mistakes_that_only_share_a_name_are_counted_apart():
    def made(name, number, slip, hint, values=(2.0,)):
        question = Question((), "", (Blank("a", 1.0),), kata=name, seed=1)
        return Marked(Row(2, "Ana", "s", number, "2"), question, 0, False, Mistake(slip, hint, values), "")

    marked = [
        made("scale", 1, "multiplied", "Divide."), made("residual", 2, "multiplied", "Add."),
        made("scale", 3, "multiplied", "Divide."),
        made("softmax", 4, "forgot", "By √d."), made("attention", 5, "forgot", "By √d."),
        made("gelu", 6, "slipped", "Not 2."), made("gelu", 7, "slipped", "Not 3."),
        made("gelu", 8, "coarse", "Write 3.", ()), made("softmax", 9, "coarse", "Write 2.", ()),
    ]  # fmt: skip
    assert dict(commonest(marked)) == {
        "multiplied in scale": 2, "multiplied in residual": 1, "forgot": 2, "slipped": 2, "coarse": 2
    }  # fmt: skip
    assert commonest(marked)[-1][0] == "multiplied in residual"


@pytest.mark.parametrize("content, said", [
    ("", "a.csv is empty"),
    ("\n\n", "a.csv is empty"),
    ("student,sheet,question\nAna,x,1\n", "has no column answer: its first line must be student,sheet,question,answer"),
    ("a;b\n", "has no columns student and sheet and question and answer"),
    ("student,sheet,question,answer\n", "has no answers below its first line"),
    ("student,sheet,question,answer\n,CODE,1,2\n", "a.csv, line 2: the student is missing"),
    ("student,sheet,question,answer\nAna,,1,2\n", "a.csv, line 2: the sheet is missing"),
    ("student,sheet,question,answer\nAna,CODE,,2\n", "a.csv, line 2: the question is missing"),
    ("student,sheet,question,answer\nAna,CODE,one,2\n", "a.csv, line 2: one is not the number of a question"),
    ("student,sheet,question,answer\nAna,CODE,1.5,2\n", "a.csv, line 2: 1.5 is not the number of a question"),
    ("student,sheet,question,answer\nAna,CODE,nan,2\n", "a.csv, line 2: nan is not the number of a question"),
    ("student,sheet,question,answer\nAna,CODE,3,2\n", "a.csv, line 2: there is no question 3: CODE has 1 to 2"),
    ("student,sheet,question,answer\nAna,CODE,1,2\n\nAna,CODE,1,3\n", "a.csv, line 4: question 1 of Ana on CODE is already on line 2"),
    ("student,sheet,question,answer\nAna,sheet one,1,2\n", "a.csv, line 2: sheet one is not the code of a sheet"),
    ("student,sheet,question,answer\nAna,all-2-31-zzzz,1,2\n", "a.csv, line 2: there is no sheet all-2-31-zzzz"),
    ("student,sheet,question,answer\nAna,all-999-31-zzz,1,2\n", "a.csv, line 2: a sheet has between 1 and 100"),
    (b"PK\x03\x04\0\0\0\0", "a.csv is not a CSV file"),
    (b"\xff\xfe\0", "a.csv is not a CSV file"),
])  # fmt: skip
def test_a_file_that_cannot_be_graded(do, tmp_path, content, said):
    code = sheets.make("all", 2, 31).code
    data = content if isinstance(content, bytes) else content.replace("CODE", code).encode()
    (tmp_path / "a.csv").write_bytes(data)
    shown = do("grade", "a.csv", code=2)
    assert not shown.out
    assert said.replace("CODE", code) in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("words, said", [
    (["sofmax"], "there is no kata sofmax; known: cut, "),
    (["--page", "007"], "there is no page 007"),
    (["--topic", "cooking"], "there is no topic cooking; known: patches, positions, "),
    (["--topic", "the"], "there is no topic the"),
    (["softmax", "--seed", "-1"], "--seed is 0 or more"),
    (["--seed", "1"], "name it"),
    (["softmax", "--new", "--seed", "1"], "--new and --seed do not go together"),
    (["softmax", "--topic", "masks"], "a name and --topic do not go together"),
    (["softmax", "--page", "000"], "--page and a name do not go together"),
    (["--page", "005", "--out", "x.html"], "there is no page 005; the documents are 000, 001, 002, 003, 004"),
    (["--page", "000", "--key", "k.html"], "--page needs a file for the worksheet: --out sheet.html"),
    (["--page", "000", "--print", "3", "--out", "x.html"], "--page and --print do not go together"),
    (["--page", "000", "--out", "x.html", "--seed", "1000000"], "between 0 and 999,999"),
    (["--page", "000", "--out", "x.pdf"], "--out writes a .html file, not x.pdf"),
    (["--list", "--new"], "--list and --new do not go together"),
    (["--out", "x.html"], "--out is for a worksheet"),
    (["--print", "3"], "--print needs a file for the worksheet"),
    (["--print", "0", "--out", "x.html"], "between 1 and 100 exercises, not 0"),
    (["--print", "101", "--out", "x.html"], "between 1 and 100 exercises, not 101"),
    (["--print", "2", "--out", "x.html", "--seed", "1000000"], "between 0 and 999,999"),
    (["--print", "many", "--out", "x.html"], "--print"),
    (["--print", "2", "--out", "x", "--key", "x"], "must be different files"),
    (["--print", "2", "--out", "x.pdf"], "--out writes a .html file, not x.pdf"),
    (["--print", "2", "--out", "x.html", "--csv", "x.txt"], "--csv writes a .csv file, not x.txt"),
    (["softmax", "--print", "2", "--out", "no/where.html"], "there is no folder no to write where.html in"),
    (["--print", "2", "--out", "."], ". is a folder; --out is the file to write"),
    (["--print", "2", "--out", "x.html", "--key", "../"], ".. is a folder; --key is the file to write"),
    (["--print", "2", "--out", "x.html", "--key", "no/k.html"], "there is no folder no to write k.html in"),
    (["--print", "2", "--out", "x.html", "--csv", "."], ". is a folder; --csv is the file to write"),
    (["--print", "2", "--out", "old.csv/x.html"], "there is no folder old.csv to write x.html in"),
    (["grade", "old.csv", "--out", "."], ". is a folder; --out is the file to write"),
    (["grade", "old.csv", "--out", "no/g.csv"], "there is no folder no to write g.csv in"),
    (["--print", "2", "--out", "x.html", "--csv", "old.csv"], "old.csv already exists"),
    (["grade", "old.csv", "--out", "./old.csv"], "--out would replace the answers in old.csv"),
    (["grade", "nowhere.csv"], "there is no file nowhere.csv"),
    (["grade", "."], ". is a folder"),
])  # fmt: skip
def test_bad_words_get_one_sentence(do, tmp_path, words, said):
    (tmp_path / "old.csv").write_text("mine")
    shown = do(*words, code=2)
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["old.csv"]
    assert (tmp_path / "old.csv").read_text() == "mine"


def test_the_list_loads_nothing_heavy():
    code = (
        "import sys\nfrom pencil.cli.main import main\n"
        "try: main(['kata', '--list'])\nexcept SystemExit: print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1] == "False False"


# ---- the docs


@pytest.fixture
def docs():
    return (Path(__file__).parents[2] / "docs" / "learn" / "exercises.md").read_text(encoding="utf-8")


def test_the_session_in_the_docs_is_what_happens(do, monkeypatch, docs):
    session = re.search(r"```\n\$ pencil kata softmax\n(.*?)```", docs, re.S)[1]
    typed = re.findall(r"^token 2 → token 1: (.*)$", session, re.M)
    assert len(typed) == 2

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(io, "StringIO", Terminal)
    said = do("softmax", typed="".join(f"{line}\n" for line in typed)).out
    assert said == re.sub(r"^(token 2 → token 1: ).*\n", r"\1", session, flags=re.M)


def test_the_report_in_the_docs_is_what_is_printed(do, tmp_path, docs):
    answers, report = re.search(
        r"```csv\n(.*?)```\n\n```\n\$ pencil kata grade class.csv\n(.*?)```", docs, re.S
    ).groups()
    (tmp_path / "class.csv").write_text(answers, encoding="utf-8")
    assert do("grade", "class.csv").out == report


def test_the_docs_name_every_exercise_and_the_days(docs):
    table = docs[docs.index("## The exercises") :]
    assert re.findall(r"`([a-z-]+)`", table) == [n for t in sheets.topics() for n, k in KATAS.items() if k.topic == t]
    assert f"| days | {' | '.join(map(str, DAYS))} |" in docs
