"""The lessons of the page: the tour of the model on screen, its verdicts, the documents, and the words of the field."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from conftest import unchecked
from explore.served import serving
from explore.small_runs import write_run
from page.blank import blank_page
from page.mock import axe, mocked
from page.test_inside_views import cell_of, opened, replies
from pencil.explore.session import Session
from pencil.explore.tour import tour
from pencil.tracing.receipt_text import format_number

WEB = Path(__file__).parents[2] / "web" / "src"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    with unchecked(), serving(Session.open(write_run("captioner", tmp_path_factory.mktemp("runs"), depth=2))) as found:
        yield found


def steps(served):
    session = served.explorer.sessions["a"]
    state = session.state({"input": session.about()["example"]})
    return tour(session, state.key)["steps"] if session.record(state) else []


def spoken(told):
    return "".join(
        piece if isinstance(piece, str) else piece.get("text") or format_number(float(piece["value"])) for piece in told
    )


def test_the_tour_moves_the_views_and_judges_each_answer(browser, pictures):
    expected = steps(pictures)
    with opened(browser, pictures, "#view=tour") as page:
        page.wait_for_selector("ol li")
        assert [one.strip(" ✓") for one in page.locator("ol li").all_inner_texts()] == [
            one["title"] for one in expected
        ]
        page.click("text=Begin the tour")
        for i, step in enumerate(expected):
            page.wait_for_selector(f".tour h2:has-text('{i + 1} of 10')")
            assert spoken(step["text"]) == page.inner_text(".tour .text")
            if step["address"]["cell"]:
                assert cell_of(page) == step["address"]["cell"]
                page.wait_for_selector(f"#receipt h3 code:text-is('{step['address']['cell']}')")
            question = step["question"]
            if question["kind"] == "choice":
                for k, choice in enumerate(question["choices"]):
                    assert page.locator(".choice").nth(k).inner_text() == spoken(choice["text"])
                    page.locator(".choice").nth(k).click()
                    said = page.inner_text(".said")
                    assert said.startswith("✓" if choice["right"] else "✗")
                    assert spoken(choice["why"]) in said
            else:
                answer = question["answer"]["value"]
                for mistake in question["mistakes"]:
                    page.fill(".question input", format_number(float(mistake["value"])))
                    page.click("text=Check")
                    page.wait_for_selector(".said .wrong")
                    assert re.search(r"too (large|small)", page.inner_text(".said"))
                    assert spoken(mistake["why"]) in page.inner_text(".said")
                page.fill(".question input", "no number")
                page.click("text=Check")
                assert page.inner_text(".said") == "Type a number, such as 0.5."
                page.fill(".question input", format_number(float(answer)))  # with the true minus sign
                page.click("text=Check")
                page.wait_for_selector(".said .right")
                assert spoken(question["why"]) in page.inner_text(".said")
            if i in (0, 3):
                assert axe(page) == []
                page.set_viewport_size({"width": 390, "height": 780})
                assert page.evaluate("document.documentElement.scrollWidth") <= 390
                page.set_viewport_size({"width": 1280, "height": 900})
            page.click("text=Next →" if i < 9 else "text=Finish")
        page.wait_for_selector("ol li")
        assert page.locator("ol .right").count() == 10


def test_the_address_has_the_step_and_a_shared_file_the_tour(browser, pictures, tmp_path):
    from pencil.explore.export import export_page
    from pencil.explore.requests import Shown

    session = pictures.explorer.sessions["a"]
    state = session.state({"input": session.about()["example"]})
    expected = steps(pictures)[2]
    where = f"#view=numbers&tour=3&cell={expected['address']['cell']}"
    with opened(browser, pictures, where) as page:
        page.wait_for_selector(".tour h2:has-text('3 of 10')")
        assert page.inner_text(".tour .text") == spoken(expected["text"])
    (tmp_path / "page.html").write_text(export_page(session, state, Shown("numbers", more={"tour": "3"})))
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector(".tour h2:has-text('3 of 10')")
    assert page.inner_text(".tour .text") == spoken(expected["text"])
    page.close()


def test_a_word_of_the_field_has_its_line_of_the_glossary(browser, pictures):
    glossary = (WEB.parents[1] / "docs" / "glossary.md").read_text(encoding="utf-8")
    with opened(browser, pictures, "#view=numbers&tour=3") as page:
        page.wait_for_selector(".tour .term")
        assert page.locator("[role=tooltip]").count() == 0
        words = page.locator(".tour .term").all_inner_texts()
        assert "query" in words
        assert len(words) == len(set(words))  # each once
        page.locator(".tour .term", has_text="query").focus()
        line = page.inner_text("[role=tooltip]")
        assert line.partition(": ")[2] in glossary.replace("`", "")
        page.keyboard.press("Escape")
        assert page.locator("[role=tooltip]").count() == 0


def test_every_word_that_a_view_marks_is_in_the_glossary():
    rows = (WEB.parents[1] / "docs" / "glossary.md").read_text(encoding="utf-8").split("\n## ")[1:]
    known = {
        word.strip().lower()
        for table in rows
        for line in table.splitlines()
        if line.startswith("| ")
        for cell in line.split("|")[1:3]
        for word in cell.split(",")
    }
    used = {
        word
        for file in WEB.rglob("*.svelte")
        for word in re.findall(r'<Term of="([^"]+)"', file.read_text(encoding="utf-8"))
    }
    assert {word for word in used if not {word.lower(), word.lower().rstrip("s"), f"{word.lower()}s"} & known} == set()


def test_a_document_is_walked_by_the_arrow_keys_and_a_prediction_is_judged(browser, pictures):
    with opened(browser, pictures, "#view=documents") as page:
        page.wait_for_selector(".list button")
        assert page.locator(".list button").count() == 5
        page.locator(".list button").nth(2).click()
        page.wait_for_selector("article h3")
        first = page.inner_text("article h3")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("first => document.querySelector('article h3').innerText !== first", arg=first)
        page.keyboard.press("ArrowLeft")
        assert page.inner_text("article h3") == first
        while not page.locator(".predict").count():
            page.keyboard.press("ArrowRight")
        # what there is to compute is shown, and its result is not
        working = page.inner_text(".working")
        assert working.endswith("= ?")
        page.fill(".predict input", "0.5")
        page.keyboard.press("ArrowRight")  # moves the cursor of the field, not the document
        page.locator(".predict button", has_text="Check").click()
        result = page.locator(".predict pre").first.inner_text().splitlines()[0]
        assert working.partition(" = ")[2].removesuffix("?") in result
        assert re.search(r"0\.5 is \S+ too (large|small)", page.inner_text(".predict"))
        # what is wrong in the document is its reader's business only when asked for
        assert page.locator(".checked").count() == 0
        page.check("text=check the document")
        page.wait_for_selector(".checked")
        assert "check=yes" in page.url


def test_a_document_draws_its_symbols(browser):
    empty = "shown unfolded compared corrections katas figures".split()
    section = {
        "title": "Why divide QK^T by √d_k?", "level": 2, "about": "", "text": "d_model is 8; the name `attn_norm` and w.d_k stay.",
        "skipped": "", **{name: [] for name in empty},
        "claims": [{"line": 1, "text": "W_O mixes", "verdict": "right", "values": "", "note": "", "command": ""}],
    }  # fmt: skip
    document = {"number": "1", "title": "One", "credit": "", "sections": [section]}
    listed = {"documents": [{"number": "1", "title": "One", "sections": 1}]}
    more = {"GET documents": listed, "GET documents/1": document}
    with mocked(browser, replies(**more), "#view=documents&document=1&check=yes") as page:
        page.wait_for_selector("article h3")
        assert page.inner_html("article h3").replace("<!---->", "") == "Why divide QKᵀ by √d<sub>k</sub>?"
        assert page.locator("article sub").all_inner_texts() == ["k", "model", "O"]
        assert "attn_norm" in page.inner_text("article .text")


# ---- the first minute


def test_the_words_of_the_first_minute_go_when_they_are_done_and_never_come_back(browser, pictures):
    context = browser.new_context()
    page = context.new_page()
    page.goto(pictures.address())
    page.wait_for_selector(".coach li")
    assert [one.split()[0].strip(":") for one in page.locator(".coach li").all_inner_texts()] == [
        "draw",
        "point",
        "why",
        "open",
    ]
    assert axe(page) == []
    page.evaluate("pencil.session.go({ more: { open: 'why' } })")
    page.wait_for_function("document.querySelectorAll('.coach li:not(.done)').length === 3")
    page.evaluate("pencil.session.setInput({ options: { seed: 3 } })")
    page.wait_for_function("document.querySelectorAll('.coach li:not(.done)').length === 2")
    page.reload()
    page.wait_for_selector(".coach li")
    assert page.locator(".coach li").count() == 2
    page.click(".coach button[title]")
    page.wait_for_selector(".coach", state="detached")
    page.reload()
    page.wait_for_selector(".result h2")
    assert page.locator(".coach").count() == 0
    context.close()


# ---- a lecture


def test_the_tour_is_a_lecture_in_one_file_that_asks_nobody(browser, pictures, tmp_path):
    from pencil.explore.export import slides_page

    session = pictures.explorer.sessions["a"]
    state = session.state({"input": session.about()["example"]})
    (tmp_path / "talk.html").write_text(html := slides_page(session, state), encoding="utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    expected = steps(pictures)
    assert 40 <= sum(step["minutes"] for step in expected) <= 50  # a lecture
    console: list[str] = []
    with blank_page(browser, console) as (page, requested):
        page.goto((tmp_path / "talk.html").as_uri())
        page.wait_for_selector(".lectern")
        assert page.locator("header.top").is_hidden()
        planned = 0
        page.keyboard.press("n")
        for i, step in enumerate(expected):
            page.wait_for_selector(f".tour h2:has-text('{i + 1} of 10')")
            planned += step["minutes"]
            assert step["notes"] in page.inner_text(".notes")
            assert re.search(rf"{step['minutes']} min; 0:\d\d of {planned}:00", page.inner_text(".notes"))
            page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector(".tour h2:has-text('9 of 10')")
        page.keyboard.press("s")
        assert page.locator(".spot").count() == 1
        page.keyboard.press("Escape")
        page.wait_for_selector("header.top", state="visible")
        assert page.locator(".lectern").count() == 0
    assert console == []
    assert [url for url in requested if not url.startswith(("file:", "data:", "blob:"))] == []


def test_one_element_fills_the_screen_and_is_saved_as_a_picture(browser, pictures, tmp_path):
    with opened(browser, pictures, "#view=heads") as page:
        page.wait_for_selector("main canvas")
        page.keyboard.press("p")
        page.wait_for_selector(".staged")
        box = page.locator(".staged").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 1281
        assert page.locator("header.top").is_hidden()
        with page.expect_download() as found:
            page.click(".lectern >> text=SVG")
        found.value.save_as(tmp_path / "heads.svg")
        root = ElementTree.parse(tmp_path / "heads.svg").getroot()
        images = root.findall(".//{*}image")
        # each head is drawn over the picture, whose colours it takes away
        drawn, under = (page.locator(f".staged {name}").count() for name in ("canvas", ".over img"))
        assert drawn == under > 0
        assert len(images) == drawn + under
        assert [one.get("filter") for one in images] == ["grayscale(1)", None] * drawn
        assert all(one.get("href").startswith("data:image/png") for one in images)
        assert any("head 1" in "".join(one.itertext()) for one in root.findall(".//{*}text"))
        with page.expect_download() as found:
            page.click(".lectern >> text=PNG")
        found.value.save_as(tmp_path / "heads.png")
        with Image.open(tmp_path / "heads.png") as image:
            assert image.size == (2 * int(root.get("width")), 2 * int(root.get("height")))
            assert len(image.convert("RGB").getcolors(1 << 24)) > 20  # the heads are in it
        page.keyboard.press("Escape")
        page.wait_for_selector(".lectern", state="detached")
        assert page.locator(".staged").count() == 0


# ---- a class


def test_a_class_opens_the_page_without_cryptography_and_is_told_what_it_cannot_do(browser, tmp_path):
    with unchecked():
        session = Session.open(write_run("gpt", tmp_path, context=19, depth=1))
        with serving(session, secret="a-token-for-the-class", shared=True) as classroom:
            page = browser.new_context().new_page()
            console: list[str] = []
            page.on("console", lambda message: console.append(message.text))
            # as in a browser that came over HTTP from another machine
            page.add_init_script("Object.defineProperty(crypto, 'subtle', { value: undefined })")
            page.goto(classroom.address("#view=learn&text=the%20cat&o.tokens=2"))
            page.get_by_text("takes no training steps").first.wait_for()
            # only what follows the # is another, with the secret in it: the page loads itself again
            with page.expect_event("load"):
                page.goto(classroom.address("#view=look&text=the%20cat&o.tokens=2"))
            page.wait_for_selector(".tokens button")
            assert "secret" not in page.url
            assert console == []
            page.context.close()
