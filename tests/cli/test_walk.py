"""`pencil walk` as a reader types it: by keys, over a pipe in 60 columns, as a page, with a run's numbers."""

import html
import os
import pty
import re
import select
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from rich.cells import cell_len

from conftest import unchecked
from pencil.cli.screens import walk as walk_screen
from pencil.cli.screens.exercise import Screen
from pencil.learn.check.check import check
from pencil.learn.walks import walk
from pencil.learn.walks.page import page
from pencil.learn.worked.examples import example

RUN = Path(__file__).parents[1] / "runs-0.6" / "gpt"
DOCUMENTS = "000", "001", "002", "003", "004"
traced, checked = cache(example), cache(check)


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("pencil.learn.worked.examples.example", traced)
    monkeypatch.setattr("pencil.learn.walks.sections.check", checked)
    monkeypatch.setattr(
        "pencil.learn.walks.walk",
        lambda number, run=None, beside=None: (
            walk(number, run, beside) if run or beside or number not in DOCUMENTS else walked(number)
        ),
    )
    with unchecked():
        yield


@cache
def walked(number):
    return walk(number)


def titles(number):
    return [section.title for section in walked(number).sections]


def flat(text):
    return " ".join(text.split())


@pytest.mark.parametrize(
    "number", [pytest.param(one, marks=pytest.mark.long) if one == "002" else one for one in DOCUMENTS]
)
def test_over_a_pipe_all_of_it_in_order_within_60_columns(number, type_in):
    printed = type_in("walk", number, "--answers").out
    assert max(map(cell_len, printed.split("\n"))) <= 60
    assert "\x1b" not in printed
    words, at = flat(printed), 0
    for section in walked(number).sections:
        at = words.index(flat(section.title), at) + 1
        for one in section.unfolded:
            at = words.index(flat(one.command), at)
            assert (one.again or flat(one.lines[-1])) in words[at:]
    wrong = sum(one.counts["wrong"] for section in walked(number).sections for one in section.compared)
    assert len(re.findall(r"[\d)]✗", printed)) == wrong


def test_a_wrong_number_stands_beside_the_right_one(type_in):
    printed = type_in("walk", "000", "--answers").out
    assert re.search(r"printed +right\n.*\n.*\n +9 +10 +13✗ +14✗ +9 +10 +11 +12\n", printed)
    assert "middle = mean(strip) as middle[0,0,0] printed 45: right" in flat(printed)
    assert not re.search(r"\bline \d", printed)


def test_over_a_pipe_what_answers_a_question_is_at_the_end(type_in):
    printed = type_in("walk", "000").out
    walk_itself, _, answers = printed.partition("\nAnswers\n")
    asked = [question for section in walked("000").sections for question in section.questions]
    assert len(asked) > 5
    for number, question in enumerate(asked, 1):
        assert f"Question {number}\n" in walk_itself
        assert flat(question.ask) in flat(walk_itself)
        right = [f"{blank.label} = {blank.written}" for blank in question.blanks]
        assert " ".join(right) in flat(answers)
        assert flat(question.working[-1]) in flat(answers)
    number = 0
    for section in walked("000").sections:
        if section.questions:
            first, number = number + 1, number + len(section.questions)
            named = f"answer {number}" if first == number else f"answers {first}–{number}"
            assert f"\n{named.capitalize()} and the rest of this step are at the end.\n" in walk_itself
            assert f"\n{named} (step " in answers
            for shown in section.shown:
                assert not re.search(rf"^  {re.escape(shown.symbol)}:", walk_itself.partition("5 of 12")[2], re.M)
            for claim in section.claims:
                assert flat(claim.text) not in flat(walk_itself)
                assert flat(claim.text) in flat(answers)


def test_the_letters_of_the_tables_are_explained_once_and_answers_are_named(type_in):
    printed = type_in("walk", "000").out
    shapes = re.findall(r" (B 1 (?:\S+ \d+ )*)", printed.partition("1 of 12")[2])
    letters = {word for shape in shapes for word in re.findall(r"(\S+) \d+", shape)} - {"1"}
    head = flat(printed.partition("1 of 12")[0])
    assert {"B", "C", "y", "u", "T", "S"} <= letters
    assert all(re.search(rf"[:·] {re.escape(letter)} [a-z]", head) for letter in letters), head
    assert head == flat(" ".join(["000", walked("000").title, walked("000").credit, *walked("000").notes, "─" * 60]))
    assert "Axes" not in type_in("walk", "000").out.partition("1 of 12")[2]
    assert "as in answer 6 (step 6): SCALE" in flat(printed)
    assert "as in step 6: SCALE" in flat(type_in("walk", "000", "--answers").out)
    assert html.escape(walked("000").notes[0]) in page(walked("000"))


def test_a_correction_that_a_claim_says_is_not_printed_twice(type_in):
    printed = flat(type_in("walk", "000", "--answers").out)
    found = [one for one in walked("000").sections if one.repeats]
    for section in found:
        for number, words in section.corrections:
            assert (flat(words) in printed) == (number not in section.repeats)
            assert (html.escape(words) in page(walked("000"))) == (number not in section.repeats)
    assert [section.repeats for section in found] == [(4,), (58,)]


def test_the_arithmetic_of_a_cell_is_printed_once(type_in):
    command = "pencil why example:pencil-attention 'z[0,0,0,1]'"
    printed = type_in("walk", "003", "--answers").out
    assert printed.count(command) == 2
    assert printed.count("H[0,1] = 0.04743·0 + 0.9526·3 = 2.858") == 1
    assert f"{command}\n  as in step 4\n" in printed
    assert f"{command}\n  as in answer 2 (step 4)\n" in type_in("walk", "003").out
    assert page(walked("003")).count("H[0,1] = 0.04743·0 + 0.9526·3 = 2.858") == 1


def test_masked_weights_are_no_zeros(type_in):
    printed = type_in("walk", "000", "--answers").out.partition("10 of 12")[2]
    assert re.search(r"portions:.*\n.*\n +token 1 +1 +· +·\n +token 2 +0\.5 +0\.5 +·\n +token 3 +0\.3333", printed)
    assert "the weight 0, written · in the tables" in flat(type_in("walk", "000").out)
    assert "<td>0.5</td><td>0.5</td><td>·</td>" in page(walked("000"))
    assert not any("written ·" in note for note in walked("004").notes)


def test_a_list_is_a_list(type_in):
    assert re.search(r"\n- Add to each patch", type_in("walk", "000").out)
    assert "<ul><li>Cut the image into patches" in page(walked("000"))


def test_with_answers_they_stand_below_their_questions(type_in):
    printed = flat(type_in("walk", "000", "--answers").out)
    at = printed.index("Question 5")
    assert "dim 0 = 2.000 dim 1 = 3.000 dim 2 = 2.000 dim 3 = 3.000" in printed[at : printed.index("6 of 12")]
    assert "at the end" not in printed


class Typed:
    """A terminal that types these keys; each is read at the prompt of the keys, or of an answer's blank."""

    def __init__(self, monkeypatch, *keys):
        self.keys = list(keys)
        monkeypatch.setattr(Screen, "read", lambda screen, prompt: self._next(prompt))

    def _next(self, prompt):
        key = self.keys.pop(0)
        self.prompts = [*getattr(self, "prompts", ()), prompt.removesuffix(": ")]
        if key == "q":
            raise walk_screen.Quit
        return key


def walks(monkeypatch, capsys, *keys, number="004", answers=True):
    typed = Typed(monkeypatch, *keys)
    walk_screen.stroll(walked(number), Screen(), answers)
    assert not typed.keys
    assert not answers or {*typed.prompts} == {walk_screen.KEYS}
    return capsys.readouterr().out


def test_keys_go_on_back_unfold_and_leave(monkeypatch, capsys):
    shown = walks(monkeypatch, capsys, "", "w", "b", "", "", "q")
    assert re.findall(r"^(\d+) of 12", shown, re.M) == ["1", "2", "1", "2", "3"]
    assert shown.count("X_patch[1,2] = ") == 1  # folded until w
    assert shown.endswith("Left at 3 of 12.\n")
    assert "pencil why example:vit-4x4 'input[0,2,2]'" not in shown


def test_back_from_the_first_section_and_a_key_that_is_none(monkeypatch, capsys):
    shown = walks(monkeypatch, capsys, "b", "x", "q")
    assert "This is the first section." in shown
    assert "x is no key here: Enter goes on, b back, w unfolds, q leaves." in flat(shown)
    assert re.findall(r"^(\d+) of 12", shown, re.M) == ["1", "1"]


def test_enter_after_the_last_section_ends_the_walk(monkeypatch, capsys):
    shown = walks(monkeypatch, capsys, *[""] * 12)
    assert shown.endswith("The end of 004.\n")


def test_a_question_is_answered_before_the_section_goes_on(monkeypatch, capsys):
    keys = ["", "9 10 13 14 square", "11 12 row", "", "q"]
    shown = walks(monkeypatch, capsys, *keys, number="000", answers=False)
    covered, _, after = shown.partition("✓ Right.")
    assert "Type your answer; Enter shows it, b goes back, q leaves." in flat(covered)
    assert "Not right yet: pixel 3 · pixel 4 · shape of patch 1" in flat(covered)
    assert "transpose" in flat(covered.partition("Not right yet")[2])  # the mistake is named
    for hidden in ("Without the swap, a strip is a slice", "pixel 3 = 11", "printed"):
        assert hidden not in covered.partition("2 of 12")[2]
        assert hidden in after


def test_enter_shows_the_answer_b_goes_back_and_an_answered_question_is_not_asked_again(monkeypatch, capsys):
    shown = walks(monkeypatch, capsys, "", "b", "", "", "b", "", "", "q", number="000", answers=False)
    assert re.findall(r"^(\d+) of 12", shown, re.M) == ["1", "2", "1", "2", "1", "2", "3"]
    assert shown.count("Type your answer;") == 3
    assert "Right." not in shown
    assert shown.count("shape of patch 1 = row") == 2
    assert shown.endswith("Left at 3 of 12.\n")


def test_what_is_no_answer_is_said_and_asked_again(monkeypatch, capsys):
    shown = flat(walks(monkeypatch, capsys, "", "1 2 3 4 5 6", "x", "w", "q", number="000", answers=False))
    assert "That is 6 answers for 5 blanks." in shown
    assert "x is not a number" in shown
    assert "patch 1 is all of one row of the image" in shown


def test_headings_left_out_are_no_step(type_in):
    made = walked("003")
    assert [len(group) for step, group in made.groups if not step] == [3, 10]
    assert sum(len(group) for _, group in made.groups) == len(made.sections)
    assert made.steps == sum(not section.skipped for section in made.sections)
    printed = type_in("walk", "003").out.partition("Answers")[0]
    assert re.findall(r"^(\d+) of 25$", printed, re.M) == [str(step) for step in range(1, 26)]
    listed = re.findall(r'<li (value="\d+"|class="left-out")>', page(made))
    assert listed.count('class="left-out"') == 13
    assert re.findall(r"step (\d+) of 25", page(made)) == re.findall(r'value="(\d+)"', " ".join(listed))


@pytest.mark.long
def test_in_a_terminal(tmp_path):
    """A real terminal: it waits for keys, and leaves at q."""
    terminal, other = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60", "TERM": "dumb", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "pencil", "walk", "004"]
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment, cwd=tmp_path)
    os.close(other)
    keys = [("q leaves: ", "\n"), ("across: ", "3 2 4 4\n"), ("across: ", "2\n"), *[("q leaves: ", "w\n")] * 2]
    keys += [("q leaves: ", "q\n")]
    shown, answered = "", 0
    try:
        while process.poll() is None or select.select([terminal], [], [], 0)[0]:
            if not select.select([terminal], [], [], 0.1)[0]:
                continue
            try:
                shown += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                break
            if keys and keys[0][0] in shown[answered:]:
                answered = len(shown)
                os.write(terminal, keys.pop(0)[1].encode())
            time.sleep(0)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert process.returncode == 0
    shown = shown.replace("\r", "")
    assert re.findall(r"^(\d+) of 12", shown, re.M) == ["1", "2"]
    assert "✗ Not right yet: across" in shown
    assert "✓ Right." in shown
    assert "X_patch[1,2] = " in shown
    assert "Left at 2 of 12." in shown


# ---- the page


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """The pages of the documents, each opened once."""
    folder = tmp_path_factory.mktemp("pages")
    tabs = {}

    def call(number):
        if number not in tabs:
            path = folder / f"{number}.html"
            path.write_text(page(walked(number)), encoding="utf-8")
            tab = browser.new_page(viewport={"width": 900, "height": 1200})
            asked, failed = [], []
            tab.on("request", lambda request: asked.append(request.url))
            tab.on("pageerror", lambda error: failed.append(error))
            tab.goto(path.as_uri())
            tabs[number] = tab, asked, failed
        return tabs[number]

    yield call
    for tab, *_ in tabs.values():
        tab.close()


@pytest.mark.parametrize(
    "number", [pytest.param(one, marks=pytest.mark.long) if one in ("001", "002", "003") else one for one in DOCUMENTS]
)
def test_the_page_has_every_heading_in_order_and_asks_for_nothing(number, opened):
    tab, asked, failed = opened(number)
    found = tab.eval_on_selector_all("section > :is(h2, h3, h4)", "all => all.map(one => one.textContent)")
    assert [re.sub(r" \([^()]*\)$", "", a) if a not in titles(number) else a for a in found] == titles(number)
    assert tab.eval_on_selector_all("nav a", "all => all.map(one => one.textContent)") == found
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert not failed
    figures = sum(len(section.figures) for section in walked(number).sections)
    drawn = tab.eval_on_selector_all("figure img", "all => all.map(one => one.naturalWidth)")
    assert len(drawn) == figures
    assert all(width > 100 for width in drawn)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 900


def test_the_page_marks_what_is_wrong_and_unfolds(opened):
    tab, *_ = opened("004")
    cell = tab.locator("td.wrong", has_text="101.500025").first
    assert cell.locator("s").text_content() == "101.500025"
    assert cell.locator("ins").text_content() == "112.2213817"
    assert tab.locator("td.wrong").count() == sum(
        one.counts["wrong"] for section in walked("004").sections for one in section.compared
    )
    details = tab.locator("section > details:not(.answer)").first
    assert not details.locator("pre").first.is_visible()
    details.locator("summary").click()
    assert details.locator("pre").first.is_visible()
    assert "recorded 1.4 ✓" in details.text_content()
    details.locator("summary").click()


def test_an_answer_is_revealed_without_javascript(browser, tmp_path):
    path = tmp_path / "walk.html"
    path.write_text(page(walked("000")), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    try:
        tab = context.new_page()
        tab.goto(path.as_uri())
        section = tab.locator("section", has_text="leave the swap out").first
        assert section.locator(".question").is_visible()
        hidden = [section.get_by_text("shape of patch 1 = row"), section.locator("td.wrong").first]
        assert not any(one.is_visible() for one in hidden)
        section.get_by_text("Reveal").click()
        assert all(one.is_visible() for one in hidden)
    finally:
        context.close()
    assert '<details class="answer" open>' in page(walked("000"), answers=True)


def test_printed_the_arithmetic_is_open_and_folds_again(opened):
    tab, *_ = opened("000")
    folded = "() => document.querySelectorAll('details:not([open])').length"
    before = tab.evaluate(folded)
    assert before
    tab.evaluate("() => { window.open_in_print = []; addEventListener('beforeprint', () => open_in_print.push("
                 "document.querySelectorAll('details:not([open])').length)) }")  # fmt: skip
    tab.pdf()
    assert tab.evaluate("open_in_print") == [0]
    assert tab.evaluate(folded) == before


def test_names_are_escaped():
    from dataclasses import replace

    evil = "<script>alert(1)</script>&\"'"
    plain = walked("000")
    section = replace(plain.sections[5], title=evil, text=evil, lacking=evil, missing=(evil,), commands=(evil,))
    shown = [replace(section.shown[0], symbol=evil, source=evil, name=evil, formula=evil)]
    unfolded = [replace(section.unfolded[0], command=evil, lines=(evil,))]
    made = page(
        replace(plain, title=evil, run=evil, sections=(replace(section, shown=tuple(shown), unfolded=tuple(unfolded)),))
    )
    assert "<script>alert" not in made
    assert made.count(html.escape(evil)) >= 11


def test_the_page_is_written_where_it_is_asked_for(type_in, tmp_path):
    assert type_in("walk", "000", "--html", "walk.html").err.startswith("walk.html: 0.")
    assert (tmp_path / "walk.html").read_text("utf-8") == page(walked("000"))


# ---- a run


def test_a_run_walks_part_one_and_its_missing_part_is_named(type_in):
    printed = flat(type_in("walk", "001", "--run", RUN, "--input", "the cat sat").out)
    assert "with the numbers of" in printed
    assert "0.1 Image → patch tokens: this model reads no image" in printed
    assert "S: blocks.0.attn.scores[0,0]" in printed
    assert printed.count("✓") > 10
    assert "✗" not in printed
    assert "Printed against right" not in printed


def test_every_option_of_a_trace_is_taken(type_in):
    printed = type_in("walk", "000", "--run", RUN, "--input", "cat", "--edit", "blocks.0.attn.pattern[:]=0.5").out
    table = printed.partition("SOFTMAX, the portions:")[2].partition("s1_new")[0]
    assert re.findall(r"^ +[cat]( +0\.5){3}$", table, re.M)


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["000", "--document", "nowhere.md"], "there is no file nowhere.md"),
        (["000", "--document", RUN], "there is no file"),
        (["nowhere.toml"], "there is no file nowhere.toml"),
        (["000", "--run", RUN, "--input", "a", "--answers"], "--answers is for the questions of a document"),
        (["005"], r"there is no document 005 to walk; known: 000 \(.*004 \("),
        (["005", "--run", RUN, "--input", "a"], "there is no document 005 to walk"),
        ([], "DOCUMENT is missing; usage: pencil walk DOCUMENT"),
        (["001", "002"], "walk cannot use '002'; usage: pencil walk DOCUMENT"),
        (["001", "--input", "a"], "walk takes no --input without --run"),
        (["--input", "a", "001"], "the document comes before --input"),
        (["001", "--run", RUN], "--input is missing"),
        (["001", "--run", RUN, "--input", "a", "--label", "3"], "is a gpt: it takes no --label"),
        (["001", "--run", "nowhere", "--input", "a"], "nowhere is no run's folder"),
        (["001", "--run", ".", "--input", "a"], "is not a run"),
        (["001", "--html", "walk.pdf"], "--html writes a .html file, not walk.pdf"),
    ],
)
def test_what_cannot_be_walked_is_one_sentence(words, sentence, fails):
    assert re.search(sentence, fails("walk", *words))


# ---- a walk of one's own, and the reader's copy of a document

PAGE = (Path(__file__).parents[2] / "docs" / "teach" / "write-a-walk.md").read_text(encoding="utf-8")
POST = """# Two words attend to each other

Each word has a query and a key of four numbers.


## The scores

Divide the products by 2:

    1  4
    0  3
## Your turn

The second word attends to itself most. How much?
"""


@pytest.fixture
def own(tmp_path):
    """The files of the page, in the folder in which commands run."""
    for name in ("two-words.toml", "numbers.toml"):
        content = re.search(rf"`{name}`:\n\n```toml\n(.*?)```", PAGE, re.S)
        (tmp_path / name).write_text(content[1], encoding="utf-8")
    (tmp_path / "post.md").write_text(POST, encoding="utf-8")
    return tmp_path / "two-words.toml"


def test_the_walk_of_the_page_prints_what_the_page_says(own, type_in, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = type_in("walk", "two-words.toml").out
    report = re.search(r"\$ pencil walk two-words.toml\n(.*?)```", PAGE, re.S)[1]
    for part in report.split("…\n"):
        assert part in printed
    assert "answer = 0.881\n  e^2 divided by e^0 + e^2." in printed
    assert "Its weight on itself is 0.8808, more than 0.5." in printed


def test_the_lines_are_those_of_the_readers_document(own, type_in):
    printed = flat(type_in("walk", "two-words.toml", "--document", "post.md").out)
    assert "2 of 3 · lines 6–11" in printed
    assert "line 10: scores = want" in printed
    assert "line 14: The second word attends to itself most." in printed
    content = type_in("walk", "two-words.toml", "--document", "post.md", "--html", "a.html") and own.with_name("a.html")
    assert "lines 6–11 of the document" in content.read_text("utf-8")


@pytest.mark.parametrize(
    "before, after, sentence",
    [
        (
            "## The scores",
            "## The products",
            r"heading 2 is '## The products' \(line 6\), and in the walk '## The scores'",
        ),
        ("\n\n\n## The", "\n" * 9 + "## The", r"has '## The scores' on line 12; the walk has it in lines 6–11"),
        ("## Your turn\n", "", "it has no heading '## Your turn'"),
        ("much?", "much?\n\n# More\n", r"it has one more heading, '# More' \(line 16\)"),
    ],
)
def test_another_document_is_refused_with_the_first_heading_that_differs(before, after, sentence, own, fails):
    (own.with_name("post.md")).write_text(POST.replace(before, after, 1), encoding="utf-8")
    assert re.search(sentence, fails("walk", "two-words.toml", "--document", "post.md"))


@pytest.mark.parametrize(
    "before, after, sentence",
    [
        (
            'scores[0,0]", "bl',
            'scoers[0,0]", "bl',
            "section '## The scores', show: nothing in the trace is called scoers",
        ),
        (
            "pencil-attention",
            "pencil-atention",
            "example: there is no example pencil-atention; did you mean pencil-att",
        ),
        ('katas = ["scale"]', 'katas = ["scales"]', "section '## The scores', katas: there is no kata scales"),
        (
            'katas = ["scale"]',
            'labs = ["scale"]',
            "section '## The scores', labs: there is no experiment scale; known: ",
        ),
        ('katas = ["scale"]', 'ask = ["scales"]', "section '## The scores', ask: there is no exercise scales"),
        ("then =", "than =", "section '## Your turn', than: not understood here; did you mean then?"),
        ("{d number}", "{e number}", "text: {e}: e is not under [sizes]; known: n, d"),
        ("{d number}", "{@have[0,0,0,9]}", "text: have has no cell"),
        ("{d number}", "{@have[0,0,0]}", "text: {@have[0,0,0]} names 4 numbers; give the index of one"),
        ("{d number}", "{@hove[0,0,0,0]}", "text: {@hove[0,0,0,0]}: the trace has no tensor"),
        ('"want:3"', '"wont:3"', "text: {d}: the trace has no tensor of wont:3"),
        ('"want:3"', '"want:x"', "text: {d}: want has no axis x"),
        ('"want:3"', '"want:7"', "text: {d}: want has 4 axes, and 7 is none of them"),
        ('"want:3"', "3", "two-words.toml, sizes: must be a table, [sizes]"),
        ('"weights[1, 1]"', '"wights[1, 1]"', "section '## Your turn', question: nothing above is named wights"),
        ("[6, 11]", "[11, 6]", "section '## The scores', lines: must be two line numbers, [first, last]"),
        ('"numbers.toml"', '"nombers.toml"', "two-words.toml, check: there is no file nombers.toml"),
        ("{ scores =", "{ scors =", "section '## The scores', beside: scors is no step of the check file"),
        ('"## The scores"', "3", "two-words.toml, section 2, heading: must be text in quotes"),
        ('[0,0,1,1]"]\nrun', '[0,0,5,1]"]\nrun', "section '## The scores', cells: scores has no cell"),
        ('formula = "weights[1, 1]"', "answer = [1, 2]", "question, labels: several answers need a label each"),
        (
            'answer = "first"',
            "",
            "question, answer: a question has an answer, or a formula that gives it, and not both",
        ),
        ('answer = "first"', "answer = 1", "question, accept: other right words are for a question with one word"),
        ('prompt = "Which word does it attend to least?"', "", "question, prompt: a question needs the words"),
        ("decimals = 3", "decimals = -3", "question, decimals: must be a whole number"),
        ("because =", "why =", "question, why: not understood here"),
        ('title = "Two', 'titel = "Two', "two-words.toml, titel: not understood here; did you mean title?"),
        ("[[section]]", "[[sektion]]", "two-words.toml, sektion: not understood here"),
        ("[sizes]", "[sizes", "two-words.toml is not TOML"),
    ],
)
def test_an_error_in_a_walk_names_the_file_the_section_and_the_key(before, after, sentence, own, fails):
    content = own.read_text("utf-8")
    assert before in content
    own.write_text(content.replace(before, after), encoding="utf-8")
    assert sentence in fails("walk", "two-words.toml")


def test_a_question_with_a_tolerance_takes_what_is_near_and_names_no_mistake(own, monkeypatch, capsys):
    content = own.read_text("utf-8").replace("decimals = 3", "decimals = 3\ntolerance = 0.02")
    own.write_text(content, encoding="utf-8")
    typed = Typed(monkeypatch, "", "", "0.85", "0.87", "itself", "S1", "q")
    walk_screen.stroll(walk(str(own)), Screen())
    assert not typed.keys
    shown = capsys.readouterr().out
    assert shown.count("✓ Right.") == 2
    assert shown.count("✗ Not right.") == 2
