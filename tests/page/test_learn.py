"""The view Learn, in the built page over the real server: a step, its receipts, and a copy that takes it."""

import re
from urllib.parse import quote, unquote

import pytest

from conftest import unchecked
from explore.served import serving
from explore.small_runs import write_run
from page.answer_server import shown, until
from page.blank import blank_page
from page.mock import axe, turn_to
from pencil.explore.learning import learning
from pencil.explore.session import Session
from pencil.tracing.receipt import format_number

TEXT = "the cat"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with unchecked():
        yield {
            "gpt": write_run("gpt", folder, context=19, depth=1),
            "dit": write_run("dit", folder, depth=1),
            "dit-video": write_run("dit-video", folder, depth=1),
        }


@pytest.fixture(scope="module")
def served(runs):
    with serving(Session.open(runs["gpt"])) as found:
        yield found


def asked(steps=0):
    lessons = [{"input": {"text": TEXT}, "target": "", "steps": steps, "rate": 1}] if steps else []
    return {"model": "a", "input": {"text": TEXT, "options": {"tokens": 3}}, "edits": [], "lessons": lessons}


def view(session, steps=0):
    """What the server says of the step, and the answer of the copy that has taken those before it."""
    state = session.state({**asked(steps), "step": ""})
    session.record_step(state)
    return learning(session, state.key), session.answer(asked(steps))


def probabilities(page, label):
    return page.locator(f"[aria-label='{label}'] .p").all_inner_texts()


def shows(page, label, bars):
    wanted = [shown(bar["probability"]) for bar in bars]
    until(page, lambda: probabilities(page, label) == wanted)


def changed(page):
    """The table of what a step changes: the cell, its value before and after."""
    rows = page.locator("[aria-label='the weights that change most'] tbody tr").all()
    return [(row.locator("th").inner_text(), *row.locator("td").all_inner_texts()[0:4:3]) for row in rows]


def of_changes(step):
    return [(one["cell"], *(format_number(one[key], 4) for key in ("before", "after"))) for one in step["changes"]]


def test_a_gradient_opens_and_a_copy_takes_the_step_that_is_shown(browser, served, runs):
    session, console = Session.open(runs["gpt"]), []  # one for each thread
    (before, answer), (after, other), (last, trained) = (view(session, steps) for steps in (0, 1, 11))
    with blank_page(browser, console) as (page, requested):
        page.goto(served.address(f"#view=learn&text={quote(TEXT)}&o.tokens=3"))
        shows(page, "Targets", before["targets"])
        shows(page, "Next token", answer["tokens"][0]["top"])
        # a weight and its gradient side by side; a number of it opens its receipt
        page.click("[data-pair='blocks.0.attn.w_k']")
        cell = "grad:blocks.0.attn.w_k[0,2,5]"
        page.click(f"td[data-cell='{cell}']")
        page.wait_for_selector("#receipt .verdict.right")
        assert page.inner_text("#receipt h3 code") == cell
        assert "gradient of block 1" in page.inner_text(".where")
        page.click("#receipt .chip >> nth=0")  # the numbers it was made of open as well
        page.wait_for_function("document.querySelector('#receipt h3 code').textContent.startsWith('grad:blocks.0')")
        change = before["changes"][0]["cell"]
        page.click(f"a[data-cell='new:{change}']")
        until(page, lambda: page.inner_text("#receipt h3 code") == f"new:{change}")
        page.wait_for_selector("#receipt .verdict.right")
        # the step is taken: what the model answers changes on screen, to what the server says of the copy
        arithmetic = page.inner_text("#receipt .formula")
        page.click("text=Take this step")
        assert shown(after["targets"][0]["probability"]) != shown(before["targets"][0]["probability"])
        shows(page, "Targets", after["targets"])
        shows(page, "Next token", other["tokens"][0]["top"])
        # what it changed stays on screen; what the next step would change is shown where it is wanted
        until(page, lambda: changed(page) == of_changes(before))
        # the receipt stays that of the step that was taken, and each number of the table opens its own
        assert page.inner_text("#receipt .formula") == arithmetic
        for name, key in (("grad:", "gradient"), ("new:", "after"), ("", "before")):
            page.click(f"td a[data-cell='{name}{change}'] >> nth=-1")  # of new: the value after, not the change
            until(page, lambda name=name: page.inner_text("#receipt h3 code") == name + change)
            number = page.locator("#receipt .verdict strong, #receipt .formula strong").first.inner_text()
            assert number == format_number(before["changes"][0][key], 4)
        page.reload()  # the address says which step is open
        until(page, lambda: changed(page) == of_changes(before))
        shows(page, "Targets", after["targets"])
        small = page.locator("section[aria-label='grad:blocks.0.attn.w_k'] td")
        small.first.wait_for()
        assert not {"0.000", "−0.000"} & set(small.all_inner_texts())  # a small gradient shows its size
        copied = page.locator(".learn .copy code")
        assert "# the step just taken" in copied.text_content()
        assert "other numbers than there" not in copied.text_content()
        page.check("label:has-text('the next step') input")
        until(page, lambda: changed(page) == of_changes(after) != of_changes(before))
        assert "other numbers than there" in copied.text_content()
        page.uncheck("label:has-text('the next step') input")
        page.click(f"td a[data-cell='{change}']")
        until(page, lambda: page.inner_text("#receipt h3 code") == change)
        page.click("text=Ten steps")
        page.wait_for_selector("text=The receipt was of another training step, and is closed.")
        assert "cell=" not in page.url
        shows(page, "Targets", last["targets"])
        page.click("text=The same as numbers")
        rows = page.locator("[aria-label='loss and probabilities after each step'] tbody tr")
        assert rows.count() == 12
        assert rows.nth(11).locator("td").nth(1).inner_text() == shown(last["targets"][0]["probability"])
        assert axe(page) == []
        # every other view is of the copy, and says so
        turn_to(page, "Look")
        bars = trained["tokens"][0]["top"]
        page.wait_for_selector("[aria-label='Changes in effect']:has-text('after 11 training steps')")
        page.click(".tokens button >> nth=0")
        until(
            page,
            lambda: probabilities(page, "Most likely tokens")[: len(bars)] == [shown(b["probability"]) for b in bars],
        )
        assert "lesson=" in unquote(page.url)
        page.click("text=Back to the run's weights")
        page.wait_for_selector("[aria-label='Changes in effect']", state="detached")
        bars = answer["tokens"][0]["top"]
        until(
            page,
            lambda: probabilities(page, "Most likely tokens")[: len(bars)] == [shown(b["probability"]) for b in bars],
        )
    assert console == []
    assert all(re.match(rf"http://127\.0\.0\.1:{served.port}/|data:|blob:", url) for url in requested)


def test_a_diffusion_model_takes_steps_towards_an_image(browser, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the lines to copy write the picture into a file
    session, console = Session.open(runs["dit"]), []
    seven = next(one["picture"] for one in session.about()["target"]["examples"] if one["name"] == "7")

    def lost(target, steps=0):
        lessons = [{"input": {"label": "7"}, "target": target, "steps": steps, "rate": 1}] if steps else []
        state = session.state({"model": "a", "input": {"label": "7"}, "edits": [], "lessons": lessons, "step": target})
        session.record_step(state)
        return format_number(learning(session, state.key)["loss"], 4)

    with serving(Session.open(runs["dit"])) as served, blank_page(browser, console) as (page, _):
        page.goto(served.address("#view=learn&label=7&o.steps=2"))
        loss = page.locator("[aria-label=Loss] h3 [data-cell=loss]")
        until(page, lambda: loss.all_inner_texts() == [lost(f"0.5 0 {seven}")])
        assert page.get_by_label("seed").input_value() == "0"
        page.get_by_label("time").fill("0.2")
        page.get_by_label("time").press("Enter")
        until(page, lambda: loss.all_inner_texts() == [lost(f"0.2 0 {seven}")])
        own: dict = {}
        exec(page.locator(".learn .copy code").text_content(), own)
        assert format_number(own["t"].loss, 4) == lost(f"0.2 0 {seven}")
        page.click("[aria-label='Parts of the model'] button:has-text('head')")
        page.click("[data-pair='head.weight']")
        page.click("td[data-cell='new:head.weight[1,2]']")
        page.wait_for_selector("#receipt .verdict.right")
        page.click("text=Take this step")
        until(page, lambda: loss.all_inner_texts() == [lost(f"0.2 0 {seven}", 1)])
        assert page.locator("[aria-label='From step to step'] figure").count() == 1
        # what the copy draws, and what the run's own weights did
        assert page.locator("[aria-label='The answer now'] img").count() == 2
        assert axe(page) == []
    assert console == []


def test_a_model_without_a_target_says_so_and_computes_nothing(browser, runs):
    with serving(Session.open(runs["dit-video"])) as served, blank_page(browser, console := []) as (page, requested):
        page.goto(served.address("#view=learn"))
        page.wait_for_selector("[role=alert]:has-text('was trained on videos')")
        assert page.locator("text=Take this step").count() == 0
        assert not [url for url in requested if url.endswith("/api/record")]
    assert console == []
