"""A class: sheets of chosen exercises, room for their working, one table for all, every bad line at once, totals."""

import csv
import io
import re

import pytest

from conftest import call, unchecked
from pencil.learn.katas import KATAS, sheet_html, sheets
from pencil.learn.katas.class_grading import COLUMNS, as_csv, students
from pencil.learn.katas.sheets import AND

CLASS = ["Ana", "Zoë Çelik", "=1+2", "O'Neil, Ben"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "names.txt").write_text("\n".join(CLASS) + "\n\n", encoding="utf-8")
    with unchecked():
        yield


def table(path):
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"))))


def solve(question):
    return " ".join(blank.written for blank in question.blanks)


def filled(path, wrong=()):
    """Type the right answers into a table, but for some lines."""
    rows = table(path)
    for i, row in enumerate(rows):
        asked = sheets.again(row["sheet"]).questions[int(row["question"]) - 1]
        row["answer"] = "99 " * len(asked.blanks) if i in wrong else solve(asked)
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


# ---- sheets


def test_a_sheet_chooses_among_the_named_exercises(tmp_path):
    shown = call("kata", "softmax", "match", "--print", 7, "--seed", 3, "--out", "s.html").stdout
    code = re.search(r"Sheet (match\+softmax-7-3-\w{3}): 7 exercises", shown)[1]
    questions = sheets.again(code.upper()).questions
    assert {q.kata for q in questions} == {"softmax", "match"}
    assert 3 <= sum(q.kata == "match" for q in questions) <= 4
    again = call("kata", "match", "softmax", "--print", 7, "--seed", 3, "--out", "t.html").stdout
    assert code in again  # whatever order they are named in
    assert (tmp_path / "s.html").read_bytes() == (tmp_path / "t.html").read_bytes()
    assert "--print" in call("kata", "softmax", "match", code=2).stderr
    assert (
        "there is no kata matsch" in call("kata", "softmax", "matsch", "--print", 2, "--out", "u.html", code=2).stderr
    )
    assert "do not go together" in call("kata", "softmax", "match", "--list", code=2).stderr
    assert not any(AND in name for name in KATAS)


def test_the_room_to_work_follows_the_length_of_the_working():
    rooms = {}
    for name in ("scale", "layernorm", "heads"):
        sheet = sheets.make(name, 1, 5)
        page = sheet_html.page([("", sheet)])
        (room,) = re.findall(r'<div class="room(\d+)">', page)
        rooms[name] = float(re.search(rf"\.room{room} {{ height: (\d+)mm }}", page)[1])
        lines = len(sheet.questions[0].working)
        assert rooms[name] >= min(100, 5 * lines)  # half a centimetre for each line of handwriting
        assert "style=" not in page  # the policy of the page would ignore it
    assert rooms["scale"] < rooms["layernorm"] < rooms["heads"] <= 150


@pytest.mark.long
def test_the_rooms_are_as_high_in_a_browser(browser, tmp_path):
    (tmp_path / "s.html").write_text(sheet_html.page([("", sheets.make("scale+heads", 2, 5))]), encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "s.html").as_uri())
    rooms = "[...document.querySelectorAll('[class^=room]')].map(e => e.getBoundingClientRect().height / 96 * 25.4)"
    small, large = page.evaluate(rooms)
    assert 10 < small < 25 < 80 < large
    page.close()


# ---- one table for a class


def test_one_table_for_a_class(tmp_path):
    words = ("kata", "match", "scale", "--print", 2, "--seed", 5, "--out", "s.html", "--key", "k.html")
    call(*words, "--csv", "a.csv", "--students", "names.txt")
    rows = table(tmp_path / "a.csv")
    assert [(row["student"], row["question"]) for row in rows] == [
        (name.replace("=", "'="), str(i)) for name in CLASS for i in (1, 2)
    ]
    assert len({row["sheet"] for row in rows}) == 1
    filled(tmp_path / "a.csv", wrong=[3])
    shown = call("kata", "grade", "a.csv", "--out", "g.csv", "--totals", "t.csv").stdout
    for name, score in zip(CLASS, (2, 1, 2, 2), strict=True):
        assert re.search(rf"{re.escape(name)} +{score} of 2", shown)
    assert [(row["student"], row["solved"], row["questions"]) for row in table(tmp_path / "t.csv")] == [
        ("Ana", "2", "2"), ("Zoë Çelik", "1", "2"), ("'=1+2", "2", "2"), ("O'Neil, Ben", "2", "2"),
    ]  # fmt: skip
    assert "Totals" not in shown  # one sheet each


def test_different_sheets_for_a_class_in_one_file(tmp_path):
    words = ("kata", "match", "--print", 2, "--seed", 999_998, "--out", "s.html", "--key", "k.html")
    shown = call(*words, "--csv", "a.csv", "--students", "names.txt", "--different").stdout
    assert "4 sheets of 2 exercises in s.html, the first of them match-2-999998-" in shown
    page, key = ((tmp_path / name).read_text(encoding="utf-8") for name in ("s.html", "k.html"))
    codes = re.findall(r"Sheet <code>(.*?)</code>", page)
    assert len(set(codes)) == 4
    assert re.findall(r"Sheet <code>(.*?)</code>", key) == codes
    assert page.count('<div class="paper">') == key.count('<div class="paper">') == 4
    assert "Name &ensp; Zoë Çelik" in page
    filled(tmp_path / "a.csv")
    shown = call("kata", "grade", "a.csv").stdout
    assert len(re.findall(r"2 of 2  match-2-", shown)) == 4


@pytest.mark.parametrize("words, told", [
    (["--students", "names.txt"], "--students needs --csv"),
    (["--different"], "--different makes a sheet for each student: add --students"),
    (["--students", "twice.txt", "--csv", "a.csv"], "twice.txt, line 3: Ana is already on line 1"),
    (["--students", "empty.txt", "--csv", "a.csv"], "empty.txt has 0 names"),
    (["--students", "none.txt", "--csv", "a.csv"], "there is no file none.txt"),
    (["--students", "a.csv", "--csv", "a.csv"], "must be different files"),
    (["--students", "many.txt", "--different"], "200 sheets of 51 exercises are more than 5,000 exercises"),
])  # fmt: skip
def test_a_class_that_cannot_be_printed(tmp_path, words, told):
    (tmp_path / "twice.txt").write_text("Ana\nBo\nAna\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "many.txt").write_text("\n".join(f"s{i}" for i in range(200)))
    assert told in call("kata", "--print", 51, "--out", "s.html", *words, code=2).stderr
    assert not (tmp_path / "s.html").exists()
    assert not (tmp_path / "a.csv").exists()


def test_names_are_read_as_spreadsheets_write_them(tmp_path):
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "cp1252"):
        (tmp_path / "n.txt").write_bytes("Zoë\r\n \r\nÇelik\x07\r\n".encode(encoding))
        assert students(tmp_path / "n.txt") == ["Zoë", "Çelik"]


# ---- grading


def test_all_bad_lines_are_named_at_once(tmp_path):
    code = sheets.make("scale", 2, 31).code
    lines = ["student,sheet,question,answer", f"Ana,{code},1,1", f"Ana,{code},one,1", f"Ana,{code},3,1", ",,2,1",
             f"Bo,{code},1,1", f"Bo,{code},1,2", "Cy,nothing,1,2", ",,2,2", f"Di,{code},,1"]  # fmt: skip
    (tmp_path / "a.csv").write_text("\n".join(lines))
    shown = call("kata", "grade", "a.csv", "--out", "g.csv", code=2)
    assert not shown.stdout
    assert not (tmp_path / "g.csv").exists()
    assert shown.stderr.splitlines() == [
        "pencil: a.csv has 6 lines to correct:",
        "  line 3: one is not the number of a question",
        f"  line 4: there is no question 3: {code} has 1 to 2",
        f"  line 7: question 1 of Bo on {code} is already on line 6",
        "  lines 8–9: nothing is not the code of a sheet; one looks like all-12-1234-abc",
        "  line 10: the question is missing",
    ]


def test_a_long_list_of_bad_lines_ends(tmp_path):
    (tmp_path / "a.csv").write_text("\n".join([",".join(COLUMNS), *(f"Ana,x,q{i},1" for i in range(57))]))
    shown = call("kata", "grade", "a.csv", code=2).stderr.splitlines()
    assert shown[0] == "pencil: a.csv has 57 lines to correct:"
    assert len(shown) == 22
    assert shown[-1].strip() == "and 37 more"


def test_the_total_of_a_student_is_over_all_sheets(tmp_path):
    one, other = sheets.make("match", 2, 5), sheets.make("scale", 3, 7)
    rows = [f"Ana,{one.code},{i},{solve(q)}" for i, q in enumerate(one.questions, 1)]
    rows += [f"Bo,{one.code},1,{solve(one.questions[0])}", f"Ana,{other.code},2,{solve(other.questions[1])}"]
    (tmp_path / "a.csv").write_text("\n".join([",".join(COLUMNS), *rows]))
    shown = call("kata", "grade", "a.csv", "--totals", "t.csv").stdout
    assert re.search(r"Totals\n  Ana +3 of 5  on 2 sheets\n  Bo +1 of 2  on 1 sheet\n", shown)
    boxes = [sum(len(q.blanks) for q in sheet.questions) for sheet in (one, other)]
    assert [tuple(row.values()) for row in table(tmp_path / "t.csv")] == [
        ("Ana", "2", "3", "5", str(boxes[0] + len(other.questions[1].blanks)), str(sum(boxes))),
        ("Bo", "1", "1", "2", str(len(one.questions[0].blanks)), str(boxes[0])),
    ]
    for words, told in (
        (["--totals", "a.csv"], "--totals would replace the answers"),
        (["--totals", "t.csv", "--out", "t.csv"], "must be different files"),
        (["--totals", "t.txt"], "--totals writes a .csv file"),
    ):
        assert told in call("kata", "grade", "a.csv", *words, code=2).stderr


def test_words_that_look_like_formulas_stay_words():
    cells = ["=cmd()", "+SUM(A1)", "-x", "@me", "−0.5 1", "-0.45 1.34", "+2", "50%", "Ana"]
    (row,) = list(csv.reader(io.StringIO(as_csv(["a"] * 9, [cells]).lstrip("\ufeff"))))[1:]
    assert row == ["'=cmd()", "'+SUM(A1)", "'-x", "'@me", *cells[4:]]
