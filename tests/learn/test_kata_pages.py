"""The pages of the five documents: every question is on them, its answers are right, and they print."""

import functools
import html
import math
import re
from pathlib import Path

import numpy as np
import pytest

from conftest import call
from pencil.learn.katas import PAGES, page, sheet_html, sheets
from pencil.learn.katas.class_grading import graded_class
from pencil.learn.katas.grader import grade
from traced import unchecked


@pytest.fixture(autouse=True)
def quickly():
    """Without shape checking: pages have hundreds of receipts."""
    with unchecked():
        yield


@functools.cache
def questions(name, seed=None):
    return [question for section in page(name, seed) for question in section.questions]


def values(question):
    return [blank.value for blank in question.blanks]


def named(name, title, seed=None):
    return next(question for question in questions(name, seed) if question.title == title)


@pytest.mark.parametrize(
    "name, seed",
    [*((name, None) for name in PAGES), ("001", 11),
     *(pytest.param(name, 11, marks=pytest.mark.long) for name in ("000", "002", "003", "004"))],
)  # fmt: skip
def test_every_answer_is_taken_and_stands_in_its_working(name, seed):
    asked = questions(name, seed)
    assert len(asked) > 17
    for one in asked:
        assert grade(one, [blank.written for blank in one.blanks]).solved, one.title
        assert grade(one, ["", *[blank.written for blank in one.blanks[1:]]]).solved is False
        assert not one.rows or sum(count for _, count in one.rows) == len(one.blanks), one.title
        assert one.working, one.title


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_every_question_and_the_answers_apart(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = call("kata", "--page", name, "--out", "page.html").stdout
    code = re.search(r"Sheet (\S+): (\d+) exercises", out)[1]
    sheet = sheets.again(code)
    assert sheet.questions == tuple(questions(name))
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    work, key = text.split('<div class="key">')
    found = [html.unescape(one) for one in re.findall(r"<h2>(.*?)</h2>", work)]
    assert found == [f"{i}. {one.title}" for i, one in enumerate(sheet.questions, 1)]
    parts = [html.unescape(one) for one in re.findall(r'class="part"><b>(.*?)</b>', work)]
    assert parts == [section.title for section in page(name)]
    assert work.count('class="box"') == sum(len(one.blanks) for one in sheet.questions)
    assert all(html.escape(one.ask) in work for one in sheet.questions)
    assert 'class="answer"' not in work
    answers = [html.unescape(one) for one in re.findall(r'class="answer">(.*?)</b>', key)]
    assert answers == [blank.written for one in sheet.questions for blank in one.blanks]


def test_a_page_with_fresh_numbers_repeats_and_is_graded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, two = (call("kata", "--page", "003", "--seed", "7", "--out", name).stdout for name in ("a.html", "b.html"))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    code = re.search(r"Sheet (003\.new-19-7-\w{3}):", one)[1]
    assert code in two
    fresh, own = sheets.again(code), sheets.of_document("003", None)
    assert [q.title for q in fresh.questions] == [q.title for q in own.questions]
    assert sum(a.tables != b.tables or a.ask != b.ask for a, b in zip(fresh.questions, own.questions, strict=True)) > 15
    lines = ["student,sheet,question,answer"]
    for i, question in enumerate(fresh.questions, 1):
        answer = " ".join(blank.written.replace("−", "-") for blank in question.blanks)
        lines.append(f"Ana,{code},{i},{'0' if i == 2 else answer}")
    (tmp_path / "class.csv").write_text("\n".join(lines), encoding="utf-8")
    marked = graded_class(tmp_path / "class.csv")
    assert [one.solved for one in marked] == [i != 2 for i in range(1, 20)]


def test_004_is_the_worked_example_whole(golden):
    def close(title, expected):
        np.testing.assert_allclose(values(named("004", title)), np.ravel(expected), atol=1e-6)

    def expected(case, key):
        return golden[f"004-{case}"]["expected"][key]

    close("The patches", expected("patchify", "patches"))
    close("Embed each patch", expected("embed", "z"))
    close("Add class token and positions", expected("Z0", "Z0"))
    for head in (1, 2):
        close(f"Q of head {head}", expected(f"head{head}-qkv", f"Q{head}"))
        close(f"Scores of head {head}", expected(f"head{head}-scores", "scores"))
        close(f"Attention of head {head}", expected(f"head{head}-attn", "attn"))
        close(f"Output of head {head}", expected(f"head{head}-out", "out"))
    row = np.asarray(expected("head1-scores", "scores")[0])
    raised = np.exp(row - row.max())
    close("The softmax of cls, head 1", [*(row - row.max()), *raised, raised.sum(), *(raised / raised.sum())])
    close("MSA output", expected("msa", "msa_out"))
    close("Add it to Z⁰", expected("residual", "Z_after_msa"))


def test_001_has_the_shapes_of_the_notation():
    size = {"B": 2, "T": 5, "V": 11, "D": 6, "F": 24}
    asked = questions("001")
    shapes = [dict(zip([r for r, _ in q.rows], _shapes(q), strict=True)) for q in asked if q.kata == "shapes"]
    text = {symbol: shape for one in shapes[:7] for symbol, shape in one.items()}
    b, t, v, d, f = size.values()
    assert text == {
        "E": (v, d), "P": (t, d), "X⁰": (b, t, d), "X̃": (b, t, d), "γ": (d,), "W_Q": (d, d), "Q": (b, t, d),
        "K": (b, t, d), "V": (b, t, d), "S": (b, t, t), "A": (b, t, t), "H": (b, t, d), "O": (b, t, d),
        "X′": (b, t, d), "X̂": (b, t, d), "W₁": (d, f), "U": (b, t, f), "G": (b, t, f), "W₂": (f, d), "M": (b, t, d),
        "X": (b, t, d), "X_f": (b, t, d), "Z": (b, t, v),
    }  # fmt: skip
    # a picture of 4 × 6 in patches of 2, 3 channels: N = 6, S = 11
    both = {symbol: shape for one in shapes[7:] for symbol, shape in one.items()}
    assert [both[one] for one in ("X_patch", "W_patch", "P_img", "X⁰", "S", "X_f,txt", "Z")] == [
        (2, 6, 12), (12, 8), (6, 8), (2, 11, 8), (2, 11, 11), (2, 5, 8), (2, 5, 13),
    ]  # fmt: skip


def _shapes(question):
    left = iter(question.blanks)
    return [tuple(int(next(left).value) for _ in range(count)) for _, count in question.rows]


def test_sums_of_002_and_003_are_the_golden_ones(golden):
    assert values(named("003", "The longest wave")) == pytest.approx([200 * math.pi, 60611])
    assert values(named("002", "Generating with and without a cache")) == [204, 36]
    assert values(named("002", "Tokens of a video"))[0] == 4096
    assert values(named("002", "How far dot products spread")) == pytest.approx([64, 8, math.sqrt(512), 1])
    assert values(named("002", "What QKᵀ costs")) == pytest.approx([4.294967296, 4])
    sizes = values(named("003", "Many heads for the price of one"))
    assert sizes == [64, 6400, 51200, 51200, 1048576]
    weights = values(named("002", "A soft lookup in the plane"))[3:]
    assert np.round(weights, 2).tolist() == golden["002-figure-weights"]["inputs"]["alpha"]
    np.testing.assert_allclose(values(named("002", "From one position to another")), [math.sin(3), math.cos(3), 3])
    moved = named("003", "Attention does not see the order")
    outputs = np.asarray(moved.tables[0].rows)
    np.testing.assert_allclose(np.reshape(values(moved), (3, 4)).round(2), outputs[[2, 0, 1]])


@pytest.mark.long
def test_pages_print_on_both_kinds_of_paper(browser, tmp_path):
    shown = browser.new_page()
    shown.emulate_media(media="print")
    for name in ("000", "004"):
        sheet = sheets.of_document(name, None)
        pages = {}
        for part, text in (
            ("whole", sheet_html.page([("", sheet)])),
            ("work", sheet_html.page([("", sheet)], answers=False)),
        ):
            (tmp_path / f"{part}.html").write_text(text, encoding="utf-8")
            shown.goto((tmp_path / f"{part}.html").as_uri())
            for width in (210, 215.9):
                room = int((width - 32) / 25.4 * 96)  # without the margins
                shown.set_viewport_size({"width": room, "height": 1000})
                furthest = (
                    "Math.max(...[...document.querySelectorAll('body *')].map(e => e.getBoundingClientRect().right))"
                )
                assert shown.evaluate(furthest) <= room, name
            # no exercise is higher than a sheet of Letter paper, so none is cut
            tallest = (
                "Math.max(...[...document.querySelectorAll('section')].map(e => e.getBoundingClientRect().height))"
            )
            assert shown.evaluate(tallest) < (279 - 34) / 25.4 * 96, name
            pages[part] = len(re.findall(rb"/Type\s*/Page\b", shown.pdf(format="A4")))
        assert pages["whole"] > pages["work"] > 5  # the answers are on sheets of their own
    shown.close()


def test_the_docs_show_the_code_of_the_page():
    docs = (Path(__file__).parents[2] / "docs" / "learn" / "exercises.md").read_text(encoding="utf-8")
    assert f"Sheet {sheets.of_document('000', None).code}: 35 exercises in page.html" in docs
