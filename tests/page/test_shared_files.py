"""Files made by Share, opened without the server: the input they were made from, the view and what was open on it."""

import base64
import io
import json
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

from conftest import unchecked
from explore.served import serving
from explore.shared_page import views_of
from explore.small_runs import write_run
from page.blank import blank_page
from page.test_inside_views import address, opened
from pencil.explore.export import Shown, export_page
from pencil.explore.session import Session

MISSING = "This file does not hold"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def get(name):
        if name not in made:
            made[name] = write_run(
                name, folder / name, **({"context": 19, "depth": 2} if name == "gpt" else {"depth": 2})
            )
        return made[name]

    with unchecked():
        yield get


@pytest.fixture(scope="module")
def texts(runs):
    with serving(Session.open(runs("gpt"))) as found:
        yield found


@contextmanager
def offline(browser, made):
    """A page of a file; nothing is asked for."""
    with blank_page(browser, []) as (page, requested):
        page.set_content(made)
        page.wait_for_selector(".groups a")
        yield page
    assert [url for url in requested if url.startswith("http")] == []


def until_open(page, count):
    """Parts are opened one after the other, each with what the server answers."""
    page.wait_for_function("n => document.querySelectorAll('.why [aria-expanded=true]').length >= n", arg=count)


def open_parts(page):
    page.wait_for_selector(".why .sum")
    return page.locator(".why [aria-expanded=true]").evaluate_all("them => them.map((one) => one.dataset.part)")


def test_the_file_of_why_opens_on_the_input_and_the_parts_that_were_on_screen(browser, texts):
    with opened(browser, texts, address("why", "a dog ")) as page:
        page.wait_for_selector(".why .sum")
        page.locator(".choice").nth(1).click()
        page.wait_for_selector(".choice.on >> nth=0")
        page.wait_for_selector(".why [aria-expanded=true]")
        page.get_by_label("Against").select_option(index=2)
        page.wait_for_selector(".sum:has-text('against')")
        # a part of the head that opened by itself, and a small part beside it
        page.wait_for_selector(".why [aria-expanded=true]")
        page.locator(".why ul ul [aria-expanded=false]").nth(1).click()
        page.locator(".why > div > ul > li:last-child button.more, .why [aria-expanded=false]").last.click()
        page.wait_for_function("() => !document.querySelector('.note[role=status]')")
        seen, parts = page.inner_text(".why .sum"), open_parts(page)
        assert len(parts) >= 2
        page.get_by_role("link", name="Share").click()
        assert page.get_by_label("The file opens on").input_value() == "look"
        assert page.get_by_label("The link opens on").input_value() == "look"
        with page.expect_download() as found:
            page.click("text=Download the file")
        made = found.value.path().read_text(encoding="utf-8")
        page.get_by_role("link", name="Look", exact=True).click()
        until_open(page, len(parts))
        assert open_parts(page) == parts  # and on the page they stayed open
    with offline(browser, made) as page:
        assert page.inner_text(".groups [aria-current]") == "Look"
        until_open(page, len(parts))
        assert open_parts(page) == parts
        assert page.inner_text(".why .sum") == seen
        assert MISSING not in page.inner_text("main")
        assert page.inner_text(".given .fixed") == "a dog "
        assert "tokens to write 3" in page.inner_text(".given")


def test_the_head_that_opens_by_itself_is_in_the_file(runs):
    one = Session.open(runs("gpt"))
    state = {"input": {"text": "it was", "options": {"tokens": 12}}}
    views = views_of(export_page(one, state))
    held = views["contributions"]
    for token in views["answer"]["tokens"][:12]:
        whole = held[f"{token['cell']}||"]
        head = max((p for p in whole["parts"] if p["kind"] == "head" and p["parts"]), key=lambda p: abs(p["value"]))
        assert f"{token['cell']}||{head['id']}" in held
    inside = [f"{name.rpartition('|')[0]}|{p['id']}" for name, one in held.items() for p in one["parts"] if p["parts"]]
    lacking = sum(name not in held for name in inside)
    assert lacking
    assert any(f"what {lacking} of the {len(inside)} parts" in line for line in views["left_out"])


def other(session):
    """An input that is not the one the model begins with."""
    return session.about()["examples"][1]["input"]


def test_a_file_of_a_picture_shows_it_and_leads_to_a_pixel(browser, runs):
    one = Session.open(runs("captioner"))
    given = other(one)
    with offline(browser, export_page(one, {"input": {**given, "options": {"tokens": 3}}}, Shown("why"))) as page:
        page.wait_for_selector(".why [aria-expanded=true]")
        page.locator(".why ul ul [data-kind=patch]").first.click()
        pixel = page.locator(".why [data-kind=pixel]").first
        pixel.click()
        page.wait_for_selector("#receipt h3")
        assert MISSING not in page.inner_text("main")
        assert page.get_attribute(".given img", "src") == given["picture"] != one.about()["example"]["picture"]


def test_a_file_of_a_label_shows_it(browser, runs):
    one = Session.open(runs("dit"))
    given = {"label": "7", "options": {"steps": 3, "step": 2}}
    with offline(browser, export_page(one, {"input": given, "edits": ["blocks.0.mlp.out=0"]}, "answer")) as page:
        assert page.inner_text(".given .fixed") == "7"
        assert "blocks.0.mlp.out=0" in page.inner_text(".given")
        assert page.inner_text(".bar .count") == "after 3 of 3 steps"


@pytest.mark.parametrize("view", ["heads", *(pytest.param(one, marks=pytest.mark.long) for one in ("change",))])
def test_share_takes_the_view_one_comes_from(browser, texts, view):
    with opened(browser, texts, address(view)) as page:
        page.get_by_role("link", name="Share").click()
        assert page.get_by_label("The link opens on").input_value() == view
        assert page.get_by_label("The file opens on").input_value() == ("look" if view == "change" else view)
        assert ("Change needs the server" in page.inner_text(".share")) == (view == "change")


def copied(page):
    summary = page.locator("summary:text-is('Copy the Python')").last
    summary.click()
    return page.locator(".copy pre").last.inner_text()


GIVEN = {
    "gpt": "#text=a%20dog&o.tokens=5&o.temperature=0.9&o.top_k=7&o.seed=11",
    "gpt, changed": "#text=a%20dog&o.tokens=5&o.temperature=0&edit=blocks.0.attn.z[:,1]=0",
    "captioner": "#o.tokens=4",
    "captioner, begun": "#o.tokens=4&text=one%20above",
    "vit": "",
    "seq2seq": "#source=2%20May",
    "reader": "",
    "reader-vector": "",
    "dit": "#label=7&o.steps=3&o.step=2&o.seed=5",
}


@pytest.mark.parametrize("name", [n if n == "gpt" else pytest.param(n, marks=pytest.mark.long) for n in GIVEN])
def test_the_python_of_an_answer_prints_the_same(browser, runs, name, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    with serving(Session.open(runs(name.partition(",")[0]))) as served, opened(browser, served, GIVEN[name]) as page:
        page.wait_for_selector(".copy")
        page.wait_for_function("() => !pencil.session.stale && pencil.session.answer")
        answer = page.evaluate("JSON.parse(JSON.stringify(pencil.session.answer))")
        code = copied(page)
    exec(compile(code, name, "exec"), {"__name__": "copied"})
    said = capsys.readouterr().out
    if name == "dit":
        shown = Image.open(io.BytesIO(base64.b64decode(answer["picture"].partition(",")[2])))
        np.testing.assert_array_equal(np.array(Image.open("drawn.png")), np.array(shown))
    elif "vector" in answer:
        assert json.loads(said) == pytest.approx(answer["vector"], rel=1e-6)
    elif "classes" in answer:
        assert said.startswith(f"Prediction({answer['classes'][0]['label']!r} ")
    elif name == "reader":
        assert all(repr(one["text"]) in said for one in answer["tokens"])
    else:
        assert said == f"{answer['text']}\n"
