"""The server with real models: over HTTP everything is what the session itself gives, and a browser finds no fault."""

import base64
import json
import re
from urllib.parse import quote

import numpy as np
import pytest
from served import serving, state

from conftest import HERE, unchecked
from pencil.explore.cells import contributions, tensor_slice
from pencil.explore.cells import receipt as receipt_of
from pencil.explore.session import Session


@pytest.fixture(scope="module")
def served():
    with unchecked():
        gpt = Session.open(HERE / "runs-0.6" / "gpt", "a")
        captioner = Session.open(HERE / "runs-0.6" / "captioner", "b")
        with serving(gpt, captioner) as found:
            found.gpt, found.captioner = gpt, captioner
            yield found


def numbers(found):
    return np.frombuffer(base64.b64decode(found["values"]), "<f8")


def untimed(answer):
    return {key: value for key, value in answer.items() if key != "milliseconds"}


def test_the_events_are_the_answer_token_by_token(served):
    with served.stream("/api/answer", state("The")) as found:
        events = list(found)
    name, answer = events[-1]
    assert name == "answer"
    tokens = [data for name, data in events if name == "token"]
    assert tokens == answer["tokens"] != []
    plain = json.loads(json.dumps(served.gpt.answer(state("The"))))
    assert untimed(answer) == untimed(plain)
    assert untimed(served.post("/api/answer", state("The")).data) == untimed(plain)


def test_a_trace_is_read_as_the_subject_reads_it(served):
    outline = served.post("/api/record", state("The")).data
    key, cell = outline["trace"], quote(outline["start"])
    assert served.get(f"/api/trace/{key}/receipt?cell={cell}").data == receipt_of(served.gpt, key, outline["start"])
    found = served.get(f"/api/trace/{key}/slice?name=logits").data
    assert found == tensor_slice(served.gpt, key, "logits")
    assert served.get(f"/api/trace/{key}/receipt?cell=nothing%5B0%5D").status == 400
    assert served.get(f"/api/trace/{key}/contributions?cell={cell}").data == contributions(
        served.gpt, key, outline["start"]
    )


def test_a_slice_less_another_is_their_difference(served):
    keys = [served.post("/api/record", state(text, options={"tokens": 1})).data["trace"] for text in ("The", "Tee")]
    path = f"/api/trace/{keys[0]}/slice?name=logits&index=0,:,:"
    one, other = (numbers(tensor_slice(served.gpt, key, "logits")) for key in keys)
    assert (numbers(served.get(f"{path}&minus={keys[1]}").data) == one - other).all()
    assert (one != other).any()


def test_a_picture_of_the_page_is_the_one_that_the_model_reads(served):
    example = served.captioner.about()["example"]
    given = {"model": "b", "input": example, "edits": []}
    over_http = served.post("/api/answer", given).data
    direct = json.loads(json.dumps(served.captioner.answer(given)))
    assert over_http["text"] == direct["text"]
    assert over_http["tokens"] == direct["tokens"]


def test_what_a_model_cannot_read_is_its_sentence(served):
    reply = served.post("/api/answer", state("x" * 5000))
    assert reply.status == 400
    assert "context" in reply.error


def test_the_page_works_under_its_policy_and_asks_nothing_of_others(served, browser):
    page = browser.new_context().new_page()
    faults, asked = [], []
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    address = f"http://127.0.0.1:{served.port}/"
    with page.expect_response("**/api/answer") as answered:
        page.goto(served.address())
    assert answered.value.status == 200
    assert answered.value.headers["content-type"].startswith("text/event-stream")
    page.wait_for_load_state("networkidle")
    assert page.locator("#app").inner_text().strip()
    assert faults == []
    assert all(one.startswith((address, "data:", "blob:")) for one in asked)
    page.context.close()


ASKING = "Open the address that pencil explore printed"


def test_only_a_page_with_the_secret_opens_and_its_address_does_not_show_it(served, browser):
    context, other = browser.new_context(), browser.new_context()
    page = context.new_page()
    page.goto(served.address("#view=share&cell=x[0]"))
    page.locator("h1").wait_for()
    assert re.fullmatch(rf"http://127\.0\.0\.1:{served.port}/#view=share&.*cell=x\[0\]", page.url)
    assert "secret" not in page.url
    page.reload()
    page.locator("h1").wait_for()
    linked = context.new_page()  # a link in another tab of the same browser
    linked.goto(page.url)
    linked.locator("h1").wait_for()
    stranger = other.new_page()
    stranger.goto(page.url)
    stranger.get_by_text(ASKING).wait_for()
    assert stranger.locator("h1").count() == 0
    stranger.evaluate("where => { location.href = where }", served.address())  # pasted into the same tab
    stranger.locator("h1").wait_for()
    assert "secret" not in stranger.url
    context.close()
    other.close()


@pytest.mark.long
def test_a_page_goes_on_by_itself_when_its_server_is_started_again(served, browser):
    page = browser.new_context().new_page()
    with serving(served.gpt) as first:
        port, secret = first.port, first.explorer.secret
        page.goto(first.address("#view=numbers"))
        page.locator("#receipt h3").wait_for()
    page.locator("tbody td").nth(2).click()
    page.locator("main [role=alert]").wait_for()
    assert "The server has stopped; start it again with: pencil explore" in page.inner_text("main [role=alert]")
    with serving(served.gpt, port=port, secret=secret):
        page.locator("main [role=alert]").wait_for(state="detached")
        page.locator("#receipt .late").wait_for(state="detached")
        shown = page.url.partition("cell=")[2]
        page.locator("#receipt h3 code", has_text=shown).wait_for()
    page.context.close()


@pytest.mark.long
def test_a_page_notices_another_server_at_its_port(served, browser):
    page = browser.new_context().new_page()
    with serving(served.gpt) as first:
        port, secret = first.port, first.explorer.secret
        page.goto(first.address("#view=numbers"))
        page.locator("#receipt h3").wait_for()
    with serving(served.captioner, port=port, secret=secret):  # noticed at the next click, with another model in it
        page.locator("tbody td").nth(3).click()
        page.locator("h1", has_text=served.captioner.name).wait_for()
    with serving(served.gpt, port=port):  # of somebody else
        page.locator(".tabs a", has_text="Map").click()
        page.locator(".tabs a", has_text="Answer").click()
        page.get_by_text("open the address that pencil explore printed").first.wait_for()
    page.context.close()
