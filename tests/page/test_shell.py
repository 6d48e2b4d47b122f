"""The frame of the page: one address for everything, the drawer, keys, search, and a server that stops."""

import base64
import hmac
import json
import re
from contextlib import ExitStack
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import torch

from page.blank import blank_page
from page.mock import Events, Status, axe, mocked
from pencil.families import configure, create
from pencil.learn.worked.examples import example
from pencil.tracing import html
from pencil.tracing.live_trace import trace
from pencil.tracing.trace import Trace

WORDS = "the cat sat on a mat and".split()


@cache
def gpt() -> Trace:
    torch.manual_seed(3)
    model = create("gpt", configure("gpt", None, vocab=37, context=7, width=24, depth=2, heads=3))
    return trace(model, torch.randint(0, 37, (1, 7)), words={"T": WORDS, "S": WORDS})


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    made = tmp_path_factory.mktemp("pages")
    html.write(gpt(), made / "gpt.html", "A small GPT")
    html.write(example("vit-4x4"), made / "vit.html", "A picture becomes numbers")
    return made


@pytest.fixture
def visit(browser, pages):
    """Open the file of a trace, once in a test; afterwards nothing may have gone wrong in it."""
    console: list[str] = []
    with ExitStack() as stack:

        def go(name: str, where: str = "", **how: Any):
            page, _ = stack.enter_context(blank_page(browser, console, **how))
            page.goto((pages / f"{name}.html").as_uri() + where)
            page.wait_for_selector("main section")
            return page

        yield go
    assert console == []


# ---- what is built


def test_the_built_page_is_two_small_files_that_ask_nobody():
    built = {one.name: one.read_text(encoding="utf-8") for one in files("pencil").joinpath("page").iterdir()}
    licences = built.pop("LICENSES.txt")  # they name the pages of their authors, at the head of the script too
    assert set(built) == {"app.js", "app.css"}
    built["app.js"] = built["app.js"].replace(licences, "")
    fonts = re.findall(r"url\(data:font/woff2;base64,([^)]+)\)", built["app.css"])
    assert 0 < sum(len(base64.b64decode(one)) for one in fonts) <= 150_000
    for one in fonts:
        built["app.css"] = built["app.css"].replace(one, "")
    assert "SIL OPEN FONT LICENSE" in licences
    assert sum(len(text.encode()) for text in built.values()) <= 465_000
    for text in built.values():
        # the names of XML vocabularies, and the pages that Svelte's own errors point to, are text and are never fetched
        others = [
            url
            for url in re.findall(r"https?://[^\s\"'`)]+", text)
            if "w3.org/" not in url and "svelte.dev/e/" not in url
        ]
        assert others == []
        assert "url(" not in re.sub(r"url\((data:|#)", "", text)  # what is in the page itself is not fetched
    assert not re.search(r"\beval\(|new Function\(", built["app.js"])
    assert not re.search(r"<!--|</?script", built["app.js"], re.IGNORECASE)  # it is also written inside a page


# ---- the drawer, and the numbers


def test_a_receipt_opens_when_it_is_asked_for_and_closes_with_its_view(visit):
    page = visit("gpt", "#view=numbers")
    assert page.locator("#receipt").count() == 0  # a number is chosen, and nobody asked for its arithmetic
    page.click("#tensors a[title^='blocks.1.attn.pattern ']")
    page.click("td[data-r='5'][data-c='3']")
    assert page.inner_text("#receipt h3 code") == "blocks.1.attn.pattern[0,0,5,3]"
    assert page.inner_text(".where").endswith("block 2 · head 1 · pattern")
    page.click("#receipt .chip >> nth=0")
    assert page.inner_text("#receipt h3 code") == "blocks.1.attn.scores[0,0,5,0]"
    page.go_back()
    assert page.inner_text("#receipt h3 code") == "blocks.1.attn.pattern[0,0,5,3]"
    page.keyboard.press("Escape")
    page.wait_for_selector("#receipt", state="detached")
    assert page.evaluate("document.querySelector('td.chosen').dataset.cell") == "blocks.1.attn.pattern[0,0,5,3]"


def test_operations_of_the_library_are_hidden_unless_asked_for(visit):
    page = visit("gpt", "#view=numbers")
    few = page.locator("#tensors a").count()
    assert page.locator("#tensors a[title*=':']").count() == 0
    page.check(".every input")
    assert page.locator("#tensors a").count() > few
    assert page.locator("#tensors a[title*=':']").count() > 0


# ---- keys, search, looks


def test_search_by_slash_finds_tensors_parts_and_cells(visit):
    page = visit("gpt")
    page.keyboard.press("/")
    page.keyboard.type("scores block")
    assert page.locator("[role=option]").first.inner_text().startswith("blocks.0.attn")
    page.fill("[role=combobox]", "mlp act")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.inner_text("#tensor h2 code") == "blocks.1.mlp.act"
    page.keyboard.press("/")
    page.keyboard.type("blocks.0.attn.q[0,1,2,3]")
    page.keyboard.press("Enter")
    assert page.inner_text("#receipt h3 code") == "blocks.0.attn.q[0,1,2,3]"
    page.keyboard.press("/")
    page.keyboard.type("no such thing")
    assert page.inner_text("dialog p") == "Nothing is called that here."
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")


def test_search_knows_the_places_that_the_page_prints(visit):
    page = visit("gpt", "#view=numbers&cell=blocks.1.attn.pattern[0,2,3,1]")
    where = page.locator(".where")
    printed = where.inner_text().split("\n")[-1]
    assert printed == "block 2 · head 3 · pattern"

    def found(text: str) -> list[str]:
        page.keyboard.press("/")
        page.fill("[role=combobox]", text)
        lines = [one.split("\n")[0] for one in page.locator("[role=option]").all_inner_texts()]
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")
        return lines

    assert found(printed)[0] == found("BLOCK 2 head 3 pattern")[0] == printed
    assert {"block 1 · head 1 · pattern", "block 2 · head 1 · pattern"} <= set(found("head 1 pattern"))
    assert not any("head 2" in one or "head 3" in one for one in found("head 1"))
    assert all(one.startswith("block 2 · head 1") for one in found("block 2 · head 1"))
    assert found("block 2 · attention · pattern")[0] == "blocks.1.attn.pattern"
    page.keyboard.press("/")
    page.fill("[role=combobox]", "block 1 · head 2 · pattern")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.where')?.textContent.includes('block 1 · head 2 · pattern')")


def test_a_trace_of_another_version_is_a_sentence(browser):
    made = html.page(gpt(), "another")
    assert made.count('"format":"pencil trace 1"') == 1
    with blank_page(browser, []) as (page, _):
        page.set_content(made.replace('"format":"pencil trace 1"', '"format":"pencil trace 99"'))
        said = page.locator(".wait")
        said.filter(has_text="“pencil trace 99”").wait_for()
        assert "Record it again with this version" in said.inner_text()
        assert "“pencil trace 1”" in said.inner_text()


@pytest.mark.long
def test_keys_for_themes_type_views_and_help(visit):
    page = visit("vit", color_scheme="light")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    size = page.evaluate("getComputedStyle(document.documentElement).fontSize")
    page.keyboard.press("t")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("l")
    assert float(page.evaluate("getComputedStyle(document.documentElement).fontSize")[:-2]) > 1.3 * float(size[:-2])
    page.reload()
    page.wait_for_selector("main section")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"  # the browser keeps it
    page.keyboard.press("?")
    assert "large type" in page.inner_text("dialog")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")


def test_a_scale_is_held_from_one_tensor_to_the_next(visit):
    page = visit("gpt", "#cell=blocks.0.attn.q[0,0,0,0]")
    before = page.inner_text("#tensor .legend")
    page.click("text=Hold the scale")
    page.click("#tensors a[title^='blocks.0.attn.k ']")
    page.wait_for_function("document.querySelector('#tensor h2 code').textContent === 'blocks.0.attn.k'")
    top = re.findall(r"[\d.]+", before)[-1]
    assert f"{top}, held" in page.inner_text("#tensor .legend")
    page.click("text=Hold the scale")
    assert f"{top}, held" not in page.inner_text("#tensor .legend")


def test_on_a_telephone_the_receipt_is_a_sheet(visit):
    page = visit("vit", viewport={"width": 390, "height": 800})
    page.click("td[data-r='1'][data-c='3']")
    page.wait_for_selector("#receipt h3")
    box = page.locator("#receipt").bounding_box()
    assert box["y"] > 300
    assert box["y"] + box["height"] <= 801
    page.get_by_role("button", name="Close the receipt").click()
    page.wait_for_selector("#receipt", state="detached")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


DARK = {"color_scheme": "dark", "viewport": {"width": 390, "height": 800}}


@pytest.mark.parametrize(
    "where, how",
    [
        ("", {}),
        pytest.param("", DARK, marks=pytest.mark.long),
        ("#view=numbers&cell=attn.scores[0,0,1,2]", DARK),
    ],
)
def test_axe_finds_nothing_wrong_with_a_file(where, how, visit):
    page = visit("vit", where, reduced_motion="reduce", **how)
    assert axe(page) == []
    for key in "" if where else "/?":
        page.keyboard.press(key)
        page.wait_for_selector("dialog[open]")
        assert axe(page) == []
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")


def test_the_python_of_a_cell_is_copied(visit):
    page = visit("vit", "#cell=attn.q[0,0,3,1]", permissions=["clipboard-read", "clipboard-write"])
    page.click("text=Copy the Python")
    page.wait_for_selector("text=Copied")
    assert 't["attn.q[0,0,3,1]"]' in page.evaluate("navigator.clipboard.readText()")


def test_what_a_file_leaves_out_is_said(browser):
    """Values that are not in the file: a sentence in their place, and the rest of the page works."""
    t = gpt()
    made = html.page(t, "less").replace('"key":"', '"kept":"', 1)  # the first array is gone
    name = re.search(r'"name":"([^"]+)"[^{}]*?"kept"', made)
    assert name is not None
    made = made.replace('"kept":"', '"key":null,"kept":"', 1)
    with blank_page(browser, []) as (page, _):
        page.set_content(made)
        page.wait_for_selector("#tensor td.chosen")
        page.evaluate(f"pencil.session.openTensor({json.dumps(name[1])})")
        page.wait_for_selector("#tensor [role=alert]")
        assert f"The values of {name[1]} are not in this trace; open the model with pencil explore" in page.inner_text(
            "#tensor"
        )


# ---- over a server


MODEL = {
    "id": "a", "name": "runs/small", "family": "toy", "summary": "", "parameters": 1234, "step": 7, "depth": 1, "heads": 1,
    "live": True, "input": {"text": {"label": "text", "longest": 11, "optional": False}}, "output": "tokens",
    "controls": [], "example": {"text": "the cat"}, "examples": [],
}  # fmt: skip
TENSOR = {
    "name": "x", "symbol": "X", "formula": "2 Y", "shape": [3, 5], "axes": ["T", "D"], "kind": "elementwise", "op": "mul",
    "dtype": "float32", "portions": False, "path": "", "named": True,
}  # fmt: skip
MAP = {"path": "", "title": "Toy", "kind": "model", "parameters": 1234, "tensors": ["x"], "children": []}


class Server:
    """A model made up of one tensor, and what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, dict[str, str]]] = []
        self.traces = 0
        self.gone: set[str] = set()
        self.replies = {
            "GET models": self._seen({"models": [MODEL], "version": "0"}),
            "POST answer": self._seen(self.answer),
            "POST record": self._seen(self.record),
            "GET slice": self._seen(self.slice),
            "GET receipt": self._seen(self.receipt),
        }

    def _seen(self, reply: Any) -> Any:
        def found(request: Any) -> Any:
            self.asked.append((urlsplit(request.url).path, json.loads(request.post_data or "null"), request.headers))
            return reply(request) if callable(reply) else reply

        return found

    def answer(self, request: Any) -> Any:
        state = json.loads(request.post_data)
        token = {
            "text": "sat",
            "id": 1,
            "position": 1,
            "cell": "x[0,0]",
            "probability": 0.5,
            "top": [],
            "chosen": {"rows": [], "uniform": None, "rest": 0},
        }
        return {"state": state, "milliseconds": 1, "words": WORDS[:3], "text": "sat", "tokens": [token], "notes": []}

    def record(self, request: Any) -> Any:
        self.traces += 1
        outline = {
            "trace": f"k{self.traces}",
            "tensors": [TENSOR],
            "labels": {"T": WORDS[:3]},
            "facts": {},
            "map": MAP,
            "start": "x[0,0]",
        }
        return Events(("progress", {"done": 1, "total": 2, "text": "block 1"}), ("outline", outline))

    def slice(self, request: Any) -> Any:
        if urlsplit(request.url).path.split("/")[3] in self.gone:
            return Status(404, "that trace is no longer kept")
        values = np.arange(15.0).reshape(3, 5)
        values[0, 1] = -np.inf
        raw = base64.b64encode(values.astype("<f8").tobytes()).decode()
        return {
            "name": "x",
            "index": [None, None],
            "shape": [3, 5],
            "values": raw,
            "rows": WORDS[:3],
            "columns": list("01234"),
            "low": 0,
            "high": 14,
        }

    def receipt(self, request: Any) -> Any:
        url = urlsplit(request.url)
        if url.path.split("/")[3] in self.gone:
            return Status(404, "that trace is no longer kept")
        cell = parse_qs(url.query)["cell"][0]
        index = [int(i) for i in re.findall(r"\d+", cell)]
        hidden = cell == "x[0,1]"
        return {
            "cell": cell, "label": cell.replace("x", "X"), "name": "x", "index": index, "kind": "elementwise", "op": "mul",
            "formula": "2·1", "meaning": "2 Y", "lines": [f"{cell} = 2·1 = 2"], "steps": [], "terms": [], "leading": [],
            "reworked": "-inf" if hidden else 2.0, "recorded": "-inf" if hidden else 2.0, "allowed": 0.0, "agrees": True, "masked": hidden,
        }  # fmt: skip


def test_a_file_has_the_views_that_were_prepared_for_it(browser):
    answer = Server().answer(
        type("Request", (), {"post_data": json.dumps({"model": "a", "input": {"text": "the cat"}, "edits": []})})
    )
    hostile = "</script><script>alert(1)</script>"
    views = {
        "model": {**MODEL, "name": hostile},
        "answer": {**answer, "notes": [hostile]},
        "view": "look",
        "left_out": ["The katas."],
    }
    wrong: list[str] = []
    with blank_page(browser, wrong) as (page, _):
        page.set_content(html.page(gpt(), "prepared", views=views))
        page.wait_for_selector(".groups a")
        assert page.inner_text(".groups [aria-current]") == "Look"
        page.click("text=What this file leaves out")
        assert page.inner_text("header li") == "The katas."
        assert page.locator(".groups a").all_inner_texts() == ["Look", "Inside"]
        said = page.evaluate("pencil.session.source.katas().catch((one) => one.message)")
        assert said == "This file does not hold the katas; open the model with pencil explore to see it."
        assert page.locator(".edited").count() == 0
        # a file that was made with an edit names it, in every view
        answer["state"]["edits"] = ["blocks.1.attn.z[:,2]=0"]
        changed = gpt().edit("blocks.1.attn.z[:,2]", 0)
        for made, said in (
            (html.page(changed, "changed", views={**views, "answer": answer}), "block 2 · head 3 off"),
            (html.page(changed, "changed"), "block 2 · attention · z changed"),
        ):
            page.set_content(made)
            page.wait_for_selector(".edited")
            assert page.inner_text(".edited p") == f"This file was made with a changed model: {said}"
            page.click(".groups >> text=Inside")
            assert page.locator(".edited").count() == 1
            assert page.locator(".edited button").count() == 0
    assert wrong == []


def test_the_address_is_the_state(browser):
    server = Server()
    where = "#view=numbers&text=a%20mat%20%26%20more&o.temperature=0.7&edit=x[0,1]=0&cell=x[2,3]"
    with mocked(browser, server.replies, where) as page:
        page.wait_for_selector("#receipt h3")
        assert page.inner_text("#receipt h3 code") == "x[2,3]"
        state = next(one[1] for one in server.asked if one[0] == "/api/record")
        assert state == {
            "model": "a",
            "input": {"text": "a mat & more", "options": {"temperature": 0.7}},
            "edits": ["x[0,1]=0"],
        }
        # HMAC-SHA256 of the port and the server's name, by the secret; and a name of the page's own
        proof = hmac.new(b"known", b"7 mocked", "sha256").hexdigest()
        tokens = {headers.get("x-pencil-token", "") for _, _, headers in server.asked}
        assert len(tokens) == 1
        assert re.fullmatch(proof + r"\.\w{1,32}", tokens.pop())
        page.evaluate("pencil.session.setInput({ text: 'x=y#z' }, 'push')")
        again = page.url
        page.go_back()
        assert page.evaluate("pencil.session.input.text") == "a mat & more"
        page.goto("about:blank")
        page.goto(again)
        page.wait_for_selector("#receipt h3")
        assert page.evaluate("pencil.session.state") == {**state, "input": {**state["input"], "text": "x=y#z"}}


@pytest.mark.long
def test_numbers_that_are_not_finite_come_as_words(browser):
    with mocked(browser, Server().replies, "#view=numbers&cell=x[0,1]") as page:
        page.wait_for_selector("#receipt h3")
        assert "−∞ reworked" in page.inner_text("#receipt")
        assert page.inner_text("td.chosen") == "−∞"
        assert "hatched" in page.get_attribute("td.chosen", "class")


def test_a_trace_that_is_no_longer_kept_is_recorded_again(browser):
    server, wrong = Server(), []
    with mocked(browser, server.replies, "#view=numbers&cell=x[1,1]", wrong) as page:
        page.wait_for_selector("#receipt h3")
        server.gone.add("k1")
        page.click("td[data-r='2'][data-c='4']")
        page.locator("#receipt h3 code", has_text="x[2,4]").wait_for()
        assert server.traces == 2
        assert page.locator("[role=alert]").count() == 0


def test_a_server_that_stopped_is_said_and_waited_for(browser):
    server, wrong = Server(), []
    replies = dict(server.replies)
    replies["GET models"] = {"models": [MODEL], "version": "0", "command": "pencil explore runs/a"}
    with mocked(browser, replies, "#view=numbers&cell=x[1,1]", wrong) as page:
        page.wait_for_selector("#receipt h3")
        replies["GET receipt"] = None  # no answer at all
        page.click("td[data-r='2'][data-c='4']")
        stopped = "has stopped; start it again with: pencil explore runs/a"
        page.locator("main [role=alert]", has_text=stopped).wait_for()
        replies["GET receipt"] = server.receipt
        page.locator("#receipt h3 code", has_text="x[2,4]").wait_for()  # without a click
        page.wait_for_selector("main [role=alert]", state="detached")


def test_a_refusal_is_shown_in_its_own_words_and_only_what_may_pass_is_tried_again(browser):
    long = "the text has 12 tokens; this model reads 11"
    server = Server()
    replies = server.replies | {"POST record": Status(400, long)}
    with mocked(browser, replies, "#view=numbers", wrong := []) as page:
        sentence, again = page.locator("main [role=alert]"), page.get_by_role("button", name="Try again")
        record = "() => pencil.session.trace(true).catch(() => undefined)"
        page.wait_for_function("() => pencil.session?.source")  # the page has found its server
        for refusal, buttons in (
            (Status(400, long), 0),
            (Status(503, "the server is stopping"), 1),
            (Events(("error", {"error": long, "status": 400})), 0),
            (Events(("error", {"error": "this failed inside Pencil", "status": 500})), 1),
        ):
            replies["POST record"] = refusal
            page.evaluate(record)
            assert (sentence.locator("button").count(), again.count()) == (buttons, buttons)
            expected = refusal.sentence if isinstance(refusal, Status) else refusal.text
            assert sentence.inner_text().removesuffix("Try again").strip() in expected
        replies["POST record"] = server.record
        again.click()
        page.wait_for_selector("#tensor td.chosen")
        assert sentence.count() == 0
    assert all("status of 400" in one or "status of 503" in one for one in wrong)


def test_events_are_read_however_they_are_cut(browser):
    text = ': waiting\n\nevent: token\r\ndata: {"text": "é"}\r\n\r\nevent: answer\ndata: {\ndata: "a": 1}\n\ndata: last\n\n'
    with blank_page(browser, []) as (page, _):
        page.add_script_tag(content=html._asset("app.js"))
        found = page.evaluate(
            """async (text) => {
                const all = new TextEncoder().encode(text), out = [];
                for (let size = 1; size < all.length + 1; size++) {
                    const body = new ReadableStream({ start(to) {
                        for (let i = 0; i < all.length; i += size) to.enqueue(all.slice(i, i + size));
                        to.close();
                    } });
                    const read = [];
                    for await (const one of pencil.events(body)) read.push([one.name, one.data]);
                    out.push(JSON.stringify(read));
                }
                return [...new Set(out)];
            }""",
            text,
        )
        assert [json.loads(one) for one in found] == [
            [["token", '{"text": "é"}'], ["answer", '{\n"a": 1}'], ["message", "last"]]
        ]
