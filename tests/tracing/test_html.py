"""The page of a trace: self-contained, quiet, usable by hand or keys, and its arithmetic the same as Python's."""

import base64
import json
import math
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pencil.families import configure, create
from pencil.learn.worked.examples import example
from pencil.tracing import html
from pencil.tracing.live_trace import trace
from pencil.tracing.plan_functions import FUNCTIONS
from pencil.tracing.receipt import format_number, receipt
from pencil.tracing.trace import Trace
from traced import drawn, unchecked

PICTURES = dict(image_size=(6, 10), channels=3, patch=(2, 5), width=24, depth=2, heads=3)


@cache
def gpt(**changes) -> Trace:
    torch.manual_seed(3)
    model = create(
        "gpt", configure("gpt", None, **{**dict(vocab=37, context=11, width=24, depth=2, heads=3), **changes})
    )
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    words = "the cat sat on a mat and looked at me again".split()
    return trace(model, torch.randint(0, 37, (2, 11)), words={"T": words, "S": words})


def vit() -> Trace:
    torch.manual_seed(3)
    return trace(create("vit", configure("vit", None, classes=7, **PICTURES)), torch.randn(2, 3, 6, 10))


def captioner() -> Trace:
    torch.manual_seed(3)
    model = create("captioner", configure("captioner", None, vocab=29, context=7, **PICTURES))
    return trace(model, torch.randint(0, 29, (2, 7)), torch.randn(2, 3, 6, 10))


@cache
def gpt2() -> Trace:
    transformers = pytest.importorskip("transformers", reason="transformers (an extra) is not installed")
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=37, n_positions=17, n_embd=24, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0
    )
    return trace(transformers.GPT2LMHeadModel(config).eval(), torch.randint(0, 37, (2, 11)))


def rotation() -> Trace:
    """Complex numbers, and operations no model above has."""
    torch.manual_seed(3)

    def rotated(x):
        rotation = torch.polar(torch.ones(5, 4), torch.arange(5.0)[:, None] * torch.arange(1.0, 5.0))
        y = torch.view_as_real(torch.view_as_complex(x.reshape(2, 5, 4, 2)) * rotation).flatten(2)
        return (
            y.topk(3).values + y.amax(-1, keepdim=True) + y.argmax(-1, keepdim=True) + y.round().prod(-1, keepdim=True)
        )

    return trace(rotated, torch.randn(2, 5, 8))


def net() -> Trace:
    """Kernels turned round, groups, windows, spectra, sums in half precision, and where a proof ends."""

    def program(x):
        x = F.glu(F.conv_transpose2d(F.conv2d(x, drawn(6, 2, 3, 3), groups=3), drawn(6, 4, 3, 2), stride=2), 1)
        x = F.group_norm(F.max_pool2d(x, 3, 2, 1), 2)
        x = (
            F.interpolate(x, (5, 3), mode="bilinear").sort(-1)[0]
            + F.fold(F.unfold(x, 3, padding=1), x.shape[-2:], 3, padding=1)[..., :5, :3].mean()
        )
        half = x.bfloat16().reshape(-1, 3)
        loss = F.nll_loss(half.log_softmax(-1), torch.arange(len(half)) % 3) + F.mse_loss(half, half.flip(0))
        return torch.linalg.inv(torch.fft.rfft(x).abs()[0, 0, :2]) + x.nonzero().sum() + loss + half.prod(1).mean()

    return trace(program, drawn(1, 6, 7, 5), opaque=True)


# ---- the file


def test_the_same_trace_gives_the_same_bytes():
    assert html.page(gpt(), "once") == html.page(gpt.__wrapped__(), "once")


def test_no_text_of_a_trace_can_end_its_script():
    shown = "</script><script>alert(1)</script>"
    t = gpt()
    page = html.page(Trace(t.graph, {"T": [shown] * 11}), shown, shown)
    assert page.count("</script>") == 4  # the graph, the arrays, the views, the application
    assert "alert(1)</script>" not in page


def test_the_policy_lets_nothing_in():
    page = html.page(gpt(), "quiet")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)


def test_numbers_keep_their_kind():
    graph, body = html.data(gpt())
    kinds = {key: kind for key, (kind, _, _) in graph["arrays"].items()}
    assert {kind for key, kind in kinds.items() if key.startswith("table.")} == {"i32"}
    assert next(kind for key, kind in kinds.items() if key.endswith(":embed") or "tokens.weight" in key) == "f32"
    assert all(at % 8 == 0 for _, at, _ in graph["arrays"].values())
    assert len(body) % 8 == 0
    json.loads(json.dumps(graph, allow_nan=False))  # what is not a number JSON knows is written in words


def test_a_page_too_large_to_mail_is_reported(tmp_path, monkeypatch):
    warned = []
    size = html.write(gpt(), tmp_path / "t.html", warn=warned.append)
    assert size == (tmp_path / "t.html").stat().st_size
    assert warned == []
    monkeypatch.setattr(html, "HEAVY", 1000)
    html.write(gpt(), tmp_path / "t.html", warn=warned.append)
    assert "t.html is" in warned[0]


def test_the_example_is_small_enough_to_mail(tmp_path):
    application = sum(len(html._asset(name).encode()) for name in ("app.js", "app.css"))
    assert html.write(example("vit-4x4"), tmp_path / "vit-4x4.html") - application < 70_000
    # licences at the head of the script, and the typeface, have budgets of their own
    licences = html._asset("LICENSES.txt")
    fonts = sum(map(len, re.findall(r"base64,([^)]+)\)", html._asset("app.css"))))
    assert application - len(licences.encode()) - fonts < 465_000


# ---- a table without scripts


def test_a_table_for_a_notebook():
    t = gpt()
    made = html.table(t["blocks.0.attn.scores"])
    assert "<script" not in made
    assert "class=" not in made
    assert "−∞" in made
    assert "repeating-linear-gradient" in made
    assert "shown: [0, 0, :, :]" in made
    assert made.count("<td") == 121
    assert format_number(float(t["blocks.0.attn.scores"][0, 0, 3, 1].value), 3) in made


@pytest.mark.parametrize(
    "where, cells",
    [("logits[0,0]", 24), ("logits[0,0,3]", 1), ("logits[0]", 11 * 24), ("logits[1:1]", 0), ("logits", 11 * 24)],
)
def test_a_table_of_any_part(where, cells):
    assert html.table(gpt()[where]).count("<td") == cells


def test_a_table_has_the_labels_of_its_cells():
    made = html.table(gpt()["blocks.0.mlp.out[1,3:5,7:9]"])
    assert re.findall(r"<th [^>]*>([^<]*)", made) == ["", "7", "8", "on", "a"]


def test_a_table_of_complex_numbers_shows_their_sizes():
    t = rotation()
    name = next(n.name for n in t.graph.nodes if n.dtype == "complex64" and not n.moves)
    assert html.table(t[name]).count("<td") > 1


# ---- in a browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of a trace, made once."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            makers = {"example": lambda: example("vit-4x4"), "long": lambda: gpt(width=96, depth=1), "gpt2": gpt2}
            t = makers.get(name, gpt)()
            made[name] = tmp_path_factory.mktemp("pages") / f"{name}.html"
            html.write(t, made[name], "A picture becomes numbers")
        return made[name]

    return make


@pytest.fixture
def visit(browser, pages):
    """Open a page; afterwards nothing may have gone wrong in it, and it may have requested nothing."""
    contexts, wrong, requested = [], [], []

    def go(name: str, where: str = "", **how):
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **how})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: requested.append(request.url))
        page.goto(pages(name).as_uri() + where)
        # a receipt is open only where the address names its cell
        page.wait_for_selector("#receipt h3" if where else "td.chosen", state="attached")
        return page

    yield go
    for context in contexts:
        context.close()
    assert wrong == []
    assert [url for url in requested if not url.startswith(("file:", "data:", "about:", "blob:"))] == []


def here(page) -> str:
    return page.inner_text("#receipt h3 code")


@pytest.fixture
def blank(browser):
    """A page with nothing but the scripts, to hand data to."""
    page = browser.new_page()
    page.add_script_tag(content=html._asset("app.js"))
    yield page
    page.close()


OPEN = """([meta, body]) => {
    const raw = Uint8Array.from(atob(body), (c) => c.charCodeAt(0)).buffer;
    const kinds = { u8: Uint8Array, i32: Int32Array, f32: Float32Array, f64: Float64Array };
    const arrays = {};
    for (const [key, [kind, at, count]] of Object.entries(meta.arrays)) arrays[key] = new kinds[kind](raw, at, count);
    window.graph = new pencil.Graph(meta, arrays);
}"""
WORK = """(cells) => cells.map(([node, place]) => {
    const r = pencil.receipt(graph, node, place);
    const strings = (x) => (x === null ? null : [x].flat().map(String));
    const terms = r.terms.map((t) => [t.where, ...strings(t.value)]);
    return { lines: r.lines, where: r.where, terms, reworked: strings(r.reworked), allowed: String(r.allowed), agrees: r.agrees };
})"""


def number(shown: list[str]) -> complex:
    parts = [float(s.replace("Infinity", "inf")) for s in shown]
    return complex(*parts)


def alike(a: complex, b: complex, relative: float = 1e-12) -> bool:
    return a == b or (a != a and b != b) or abs(a - b) <= relative * max(1.0, abs(a), abs(b))


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "make", [gpt, net, *(pytest.param(one, marks=LONG) for one in (vit, captioner, gpt2, rotation))]
)
@unchecked()
def test_the_page_works_as_python_does(make, blank):
    t = make()
    graph, body = html.data(t)
    ids = [t.graph.names[n["name"]] for n in graph["nodes"]]  # the page leaves out what nothing needed
    rng = np.random.default_rng(5)
    cells = []
    for i, n in enumerate(t.graph.nodes[node] for node in ids):
        cells += [[i, int(place)] for place in rng.integers(0, n.size, (1 if n.moves else 3) if n.size else 0)]
    blank.evaluate(OPEN, [graph, base64.b64encode(body).decode()])
    found = blank.evaluate(WORK, cells)
    kinds = set()
    for (node, place), js in zip(cells, found, strict=True):
        ours = receipt(t, ids[node], place)
        kinds.add(ours.kind)
        assert js["lines"] == list(ours.lines())
        assert js["where"] == ours.where
        assert [term[0] for term in js["terms"]] == [term.where for term in ours.terms]
        assert all(alike(number(a[1:]), b.value, 0) for a, b in zip(js["terms"], ours.terms, strict=True))
        assert js["agrees"] == ours.agrees
        assert alike(float(js["allowed"].replace("Infinity", "inf")), ours.allowed, 1e-6)
        if ours.reworked is None:
            assert js["reworked"] is None
        else:
            assert alike(number(js["reworked"]), ours.reworked)
    assert len(kinds) > 4


def test_a_number_that_does_not_follow_is_marked(blank):
    t = trace(lambda x: x * 3 + 1, torch.ones(2))
    node = t.find("output")
    t.graph._arrays[node] = np.asarray([4.0, 4.5], np.float32)
    graph, body = html.data(t)
    blank.evaluate(OPEN, [graph, base64.b64encode(body).decode()])
    page = next(i for i, n in enumerate(graph["nodes"]) if n["name"] == t.graph.nodes[node].name)
    right, wrong = blank.evaluate(WORK, [[page, 0], [page, 1]])
    assert right["agrees"]
    assert not wrong["agrees"]
    assert wrong["lines"] == list(receipt(t, node, 1).lines())
    assert "✗ (off by 0.5" in wrong["lines"][-1]


def test_every_function_has_its_twin(blank):
    rng = np.random.default_rng(5)
    assert blank.evaluate("(names) => names.filter((name) => !(name in pencil.WORK))", list(FUNCTIONS)) == []
    complexes = {"complex", "real", "imag", "if"}
    for name, f in FUNCTIONS.items():
        if name in complexes:
            continue
        if f.reduces:
            lists = [np.round(rng.normal(size=n), 1).tolist() for n in (1, 2, 7, 8, 13, 127, 300)]
            args = [[x, *([0] if "{1}" in f.text else [])] for x in lists]
        else:
            values = np.round(rng.normal(size=(40, f.text.count("{}"))) * 3, 1)
            values = np.abs(values) if name in ("sqrt", "log", "pow") else values
            args = (np.trunc(np.abs(values)) if name.startswith("bit") else values).tolist()
        found = blank.evaluate("([name, args]) => args.map((a) => String(pencil.WORK[name](...a)))", [name, args])
        for a, js in zip(args, found, strict=True):
            with np.errstate(all="ignore"):
                ours = float(
                    np.asarray(f.of(*(np.asarray(x) if f.reduces else np.asarray([x]) for x in _listed(a)))).reshape(
                        -1
                    )[0]
                )
            assert alike(float(js.replace("Infinity", "inf")), ours, 1e-14), (name, a)


def _listed(args):
    """The arguments of a reducer: its list, and each number as a list of one."""
    return [x if isinstance(x, list) else [x] for x in args] if isinstance(args[0], list) else args


def test_numbers_are_written_alike(blank):
    rng = np.random.default_rng(5)
    numbers = [
        0.0,
        -0.0,
        123456789.5,
        0.00012345,
        1e-5,
        9.9995,
        0.99995,
        99995.0,
        -2.5,
        0.5,
        math.inf,
        -math.inf,
        5e-324,
    ]
    numbers += (rng.normal(size=4000) * 10.0 ** rng.integers(-12, 12, 4000)).tolist()
    numbers += (np.round(rng.normal(size=4000), 4) + 5e-5).tolist()  # halves
    numbers += (rng.integers(-(10**6), 10**6, 4000) / 2.0 ** rng.integers(0, 12, 4000)).tolist()
    sent = [n if math.isfinite(n) else str(n).replace("inf", "Infinity") for n in numbers]
    shown = blank.evaluate(
        "(all) => all.map((n) => [4, 3, 2].map((digits) => pencil.formatNumber(Number(n), digits)))", sent
    )
    assert shown == [[format_number(n, digits) for digits in (4, 3, 2)] for n in numbers]


def test_the_error_function_is_exact_to_a_few_units_in_the_last_place(blank):
    at = np.linspace(-7, 7, 3001).tolist()
    found = blank.evaluate("(at) => at.map(pencil.erf)", at)
    assert max(abs(a - math.erf(x)) for a, x in zip(found, at, strict=True)) < 1e-15


def test_the_first_sight_needs_no_choice(visit):
    page = visit("example")
    assert page.inner_text("h1") == "A picture becomes numbers"
    assert page.inner_text("#tensor h2 code") == "attn.pattern"
    assert page.inner_text("td.chosen") == "0.769"
    assert page.locator("#tensors a[aria-current]").count() == 1
    assert page.locator("#receipt").count() == 0  # it opens when it is asked for
    page.click("td.chosen")
    assert page.inner_text("#receipt .mark") == "✓"
    assert page.inner_text("td.chosen") == "0.769"


def test_the_first_sight_of_a_model_without_names_is_its_attention(visit):
    page = visit("gpt2")
    assert page.inner_text("#tensor h2 code") == "transformer.h.0.attn:safe_softmax"
    assert page.locator("#tensors a[aria-current]").count() == 1


def test_a_cell_opens_and_its_operands_are_the_way_back(visit):
    page = visit("example", "#attn.scores[0,0,0,2]")
    assert here(page) == "attn.scores[0,0,0,2]"
    assert page.inner_text("#receipt .formula").replace("\n", "") == "= (0.6·3 + 0.5·2)/√2"
    page.click("td[data-r='3'][data-c='1']")
    assert here(page) == "attn.scores[0,0,3,1]"
    assert page.url.endswith("#cell=attn.scores[0,0,3,1]")
    page.click("#receipt .chip >> nth=0")
    assert here(page) == "attn.q[0,0,3,0]"
    assert page.inner_text("#tensor h2 code") == "attn.q"
    assert page.locator("td.chosen").get_attribute("data-r") == "3"
    assert page.locator(".trail li").count() == 2
    page.go_back()
    assert here(page) == "attn.scores[0,0,3,1]"
    assert page.locator("td.chosen").get_attribute("data-c") == "1"
    page.click("#receipt .term >> nth=1")
    assert here(page) == "attn.k[0,0,1,0]"
    page.click(".trail button")
    assert here(page) == "attn.scores[0,0,3,1]"


def test_one_can_follow_links_from_a_logit_to_the_inputs(visit):
    page = visit("gpt", "#logits[0,3,5]")
    for _ in range(60):
        if "reworked" not in page.inner_text("#receipt"):
            break
        page.click("#receipt [data-follow]:not(.term) >> nth=0")
    assert "(" in page.inner_text("#receipt .formula")
    assert "reworked" not in page.inner_text("#receipt")


def test_keys_alone_reach_a_receipt(visit):
    page = visit("example", "#attn.pattern[0,0,0,4]")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # past the tensors, to the numbers
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    assert here(page) == "attn.pattern[0,0,0,4]"  # moving does not open
    page.keyboard.press("Enter")
    assert here(page) == "attn.pattern[0,0,2,3]"
    assert "recorded" in page.inner_text("#spoken")
    focused = "document.activeElement.getAttribute('data-cell')"
    assert page.evaluate(focused) == page.locator("td.chosen").get_attribute("data-cell")
    named = "document.activeElement.getAttribute('aria-label')"
    page.keyboard.press("Tab")
    assert page.evaluate(named) == "Close the receipt"
    page.keyboard.press("Tab")
    assert page.evaluate(named).startswith("attn.scores[0,0,2,0] =")
    assert page.locator("#receipt .term.lit").count() >= 1  # its number in the formula lights up
    page.keyboard.press("Enter")
    assert here(page) == "attn.scores[0,0,2,0]"
    page.keyboard.press("End")
    page.keyboard.press(" ")
    assert here(page) == "attn.scores[0,0,2,4]"


def test_choosing_another_head_keeps_the_cell(visit):
    page = visit("gpt", "#blocks.1.attn.pattern[1,0,5,3]")
    page.select_option("select[data-axis='1']", "2")
    assert here(page) == "blocks.1.attn.pattern[1,2,5,3]"
    assert "“looked”" not in page.inner_text("#receipt .labels")
    assert "“mat”" in page.inner_text("#receipt .labels")


def test_an_address_that_names_nothing_shows_the_first_sight(visit):
    page = visit("example", "#attn.nothing[0]")
    assert page.inner_text("#tensor h2 code") == "attn.pattern"
    page = visit("example", "#attn.q[0,9,9,9]")
    assert page.inner_text("#tensor h2 code") == "attn.pattern"


def test_every_operation_on_request(visit):
    page = visit("example")
    few = page.locator("#tensors a").count()
    page.check(".every input")
    assert page.locator("#tensors a").count() > 2 * few
    page.click("#tensors a[title^='attn:bmm ']")
    page.wait_for_function("document.querySelector('#tensor h2 code').textContent === 'attn:bmm'")
    page.click("td.chosen")
    assert here(page).startswith("attn:bmm[")


def test_long_sums_are_listed_on_request(visit):
    page = visit("gpt", "#logits[0,3,5]")
    assert "… (16 more sum to" in page.inner_text("#receipt .formula")
    page.click("details.list summary")
    assert page.locator("details.list tr").count() == 24


def test_a_large_tensor_is_a_picture_with_a_lens(visit):
    page = visit("long", "#blocks.0.mlp.act[0,3,300]")
    assert page.locator(".picture canvas").count() == 1
    assert page.locator("td[role=gridcell]").count() == 11 * 12
    assert here(page) == "blocks.0.mlp.act[0,3,300]"
    box = page.locator(".picture canvas").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.99)
    place = [int(i) for i in re.findall(r"\d+", here(page).split("[")[1])]
    assert place[1] == 10
    assert abs(place[2] - 192) < 8
    page.locator("td.chosen").focus()
    for _ in range(14):
        page.keyboard.press("ArrowRight")  # beyond the edge of the lens
    page.keyboard.press("Enter")
    assert here(page) == f"blocks.0.mlp.act[0,10,{place[2] + 14}]"
    painted = "(c) => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"
    assert page.locator(".picture canvas").evaluate(painted) > 20


@pytest.mark.parametrize("width", [400, pytest.param(800, marks=LONG), pytest.param(1400, marks=LONG)])
def test_no_width_scrolls_sideways(width, visit):
    for name in ("example", "long"):
        page = visit(name, viewport={"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.click("td.chosen")
        page.wait_for_selector("#receipt h3")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("pencil.session.openCell('blocks.0.mlp.pre[0,2,3]')")
    page.wait_for_function("document.querySelector('#tensor h2 code').textContent === 'blocks.0.mlp.pre'")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_chosen_cell_is_in_sight(visit):
    page = visit("gpt", "#logits[0,3,30]", viewport={"width": 400, "height": 800})
    cell, box = (page.locator(what).bounding_box() for what in ("td.chosen", ".scroll >> nth=0"))
    assert box["x"] < cell["x"]
    assert cell["x"] + cell["width"] <= box["x"] + box["width"]


@pytest.mark.long
def test_dark_and_light(visit):
    grounds = []
    for scheme in ("light", "dark"):
        page = visit("example", color_scheme=scheme)
        grounds.append(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    light, dark = (sum(map(int, re.findall(r"\d+", ground))) for ground in grounds)
    assert light > 600
    assert dark < 150


def test_the_scale_of_attention_ends_at_the_largest_of_it(browser):
    """Among many tokens all attention is small: the strongest colour is that of the largest, and so is the number."""
    torch.manual_seed(3)
    even = trace(lambda x: torch.softmax(x, -1).mul(1), torch.randn(1, 2, 23, 41))
    page = browser.new_page()
    page.set_content(html.page(even, "even"))
    page.wait_for_selector("td.chosen")
    shown = page.evaluate(
        "async () => { const { session, scaleOf, heat } = pencil, { tensor, source } = session; "
        "const slice = await source.slice('file', tensor.name, [0, 0, null, null]); "
        "const s = scaleOf(slice.low, slice.high, tensor), v = source.graph.values(source.graph.names[tensor.name]); "
        "const top = Math.max(...v); return [s.top, top, heat(top, s).strength, "
        "document.querySelector('.legend').textContent.trim()]; }"
    )
    assert shown[0] == shown[1] < 0.5
    assert shown[2] == 1
    assert shown[3].startswith("0")
    assert f"{float(shown[1]):.3g}" in shown[3]
    assert "the largest here" in shown[3]
    page.close()


def test_a_page_within_a_notebook(browser):
    page = browser.new_page()
    page.set_content(html.frame(example("vit-4x4")))
    inside = page.frame_locator("iframe")
    inside.locator("td[data-r='1'][data-c='3']").click()
    assert inside.locator("#receipt h3 code").inner_text() == "attn.pattern[0,0,1,3]"
    inside.locator("#receipt .chip").first.click()
    assert inside.locator("#receipt h3 code").inner_text() == "attn.scores[0,0,1,0]"
    inside.locator(".trail button").click()
    inside.locator("td.chosen[data-r='1'][data-c='3']").wait_for()
    page.close()


def test_the_page_in_the_docs_is_made_of_the_present_assets():
    docs = (Path(__file__).parents[2] / "docs" / "vit-4x4.html").read_text(encoding="utf-8")
    for asset in (Path(__file__).parents[2] / "src" / "pencil" / "page").iterdir():
        assert asset.read_text(encoding="utf-8").strip() in docs, f"write docs/vit-4x4.html again: {asset.name} changed"
