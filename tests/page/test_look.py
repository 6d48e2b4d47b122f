"""The picture of the model on the page, diffusion, and every answer by keyboard, on a telephone and for a screen reader."""

import base64
import re
from typing import Any

import numpy as np
import pytest

from page import answer_data as data
from page.answer_server import Server, opened, receipt_of, shown, until
from page.blank import blank_page
from page.mock import axe
from pencil.tracing import html

# ---- where everything stands

LAYOUT = """([lanes, blocks, heads, specials, query, encoder, seed]) => {
    let state = seed;
    const random = () => (state = (state * 16807) % 2147483647) / 2147483647;
    const stack = (id, n) => ({ id, title: id, stream: "", lanes: Array.from({ length: n }, (_, i) => ({ label: String(i), kind: i < specials ? "special" : "token", written: false })) });
    const stacks = [...(encoder ? [stack("encoder", encoder)] : []), stack("own", lanes)], columns = [], rows = [];
    const column = (of, keys, kind, block, count) => {
        columns.push({ path: `${of}.${block}.${kind}`, kind, stack: of, keys, block, heads: kind === "mlp" ? 1 : heads, pattern: kind === "mlp" ? "" : "p", stream: "", normed: "before", thumb: [0, 0], thumbs: "" });
        if (kind === "mlp" || of !== "own") return rows.push(null);
        const weights = Float32Array.from({ length: heads * count }, () => random() ** 6);
        for (let h = 0; h < heads; h++) {
            const own = weights.subarray(h * count, (h + 1) * count), sum = own.reduce((a, b) => a + b, 0);
            own.forEach((one, i) => (own[i] = one / sum));
        }
        rows.push(weights);
    };
    for (let b = 0; encoder && b < blocks; b++) { column("encoder", "encoder", "attn", b, encoder); column("encoder", "encoder", "mlp", b); }
    for (let b = 0; b < blocks; b++) {
        column("own", "own", "attn", b, lanes);
        if (encoder) column("own", "encoder", "cross", b, encoder);
        column("own", "own", "mlp", b);
    }
    const picture = { stacks, columns }, chosen = { stack: "own", query, rows, added: columns.map(() => null) };
    const { layout, curvesOf, weightsOf, rowAt, boxAt } = pencil.picture, wrong = [];
    const say = (what) => wrong.push(what);
    for (const only of [null, { stack: "own", block: 0 }]) {
        const plan = layout(picture, chosen, { width: 640, only });
        for (const band of plan.bands) {
            if (band.rows.flatMap((row) => row.lanes).join() !== band.stack.lanes.map((_, i) => i).join()) say("a line is lost");
            const high = (row) => (row.lanes.length > 1 ? 12 : 17);
            band.rows.forEach((row, i) => {
                const next = band.rows[i + 1];
                if (next && row.y + high(row) / 2 > next.y - high(next) / 2 + 1e-9) say("lines overlap");
                if (rowAt(plan, row.y) !== row) say("a line is not found where it stands");
                if (row.y < band.top || row.y > band.bottom) say("a line is outside its stack");
            });
        }
        for (const [i, band] of plan.bands.entries()) if (i && band.top < plan.bands[i - 1].bottom) say("stacks overlap");
        const boxes = plan.blocks.flatMap((block) => block.boxes).sort((a, b) => a.x - b.x);
        boxes.forEach((box, i) => {
            if (box.width <= 0 || (i && box.x < boxes[i - 1].x + boxes[i - 1].width - 1e-9)) say("columns overlap");
            if (boxAt(plan, box.x + box.width / 2) !== box) say("a column is not found where it stands");
            const weights = weightsOf(rows[box.column], heads, box.head ?? "mean"), band = plan.bands.find((one) => one.stack.id === columns[box.column].keys);
            if (!weights) return;
            const { curves, elsewhere } = curvesOf(band, weights), sum = curves.reduce((a, one) => a + one.weight, elsewhere);
            if (Math.abs(sum - weights.reduce((a, b) => a + b, 0)) > 1e-6) say(`curves of ${sum}`);
            if (curves.some((one) => one.weight < 0.01)) say("a curve nobody sees");
        });
        const own = plan.bands.find((band) => band.stack.id === "own"), alone = (i) => i < 0 || i >= lanes || own.rows[own.rowOf[i]].lanes.length === 1;
        if (query.length === 1 && ![-1, 0, 1].every((by) => alone(query[0] + by))) say("the chosen line is folded");
        if (own.rows.length > 60) say("nothing is folded");
    }
    return wrong;
}"""


def test_no_line_or_column_overlaps_another_and_bundles_keep_the_sums(browser):
    with blank_page(browser, []) as (page, _):
        page.add_script_tag(content=html._asset("app.js"))
        for seed, made in enumerate(
            [
                (7, 3, 2, 0, [5], 0),
                (26, 2, 5, 3, [19], 0),
                (127, 12, 11, 1, [126], 0),
                (257, 5, 3, 1, [0], 0),
                (29, 3, 2, 1, [11], 71),
                (16, 2, 3, 0, list(range(16)), 0),
                (1, 1, 1, 0, [0], 0),
            ]
        ):
            assert page.evaluate(LAYOUT, [*made, 31 + seed]) == [], made


# ---- the picture


def picture(page: Any) -> Any:
    page.wait_for_selector(".plan svg .curves path", state="attached")
    return page.locator(".plan")


def chosen_of(server: Server, i: int) -> tuple[dict[str, Any], dict[str, Any], int]:
    answer = server.answer(server.states[-1])
    token = answer["tokens"][i]
    return answer, data.picture_of(answer, token["cell"]), token["position"]


def parts(of: dict[str, Any]) -> list[np.ndarray]:
    return [np.frombuffer(base64.b64decode(one["added"]), "<f4") for one in of["columns"]]


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", ""))


def test_every_curve_bar_and_colour_is_a_number_of_the_model(browser):
    server = Server()
    with opened(browser, server, "#token=1") as page:
        picture(page)
        answer, of, query = chosen_of(server, 1)
        # one line a token, the chosen one marked
        assert page.locator(".labels button.label").count() == len(answer["words"])
        assert page.get_attribute(".label.read", "aria-label").endswith(", the line that is read")
        # each block shows the head that added most, curves as broad as the weights
        drawn, expected = (
            page.locator(".curves path").evaluate_all(
                "all => all.map((one) => Number(one.getAttribute('stroke-width')))"
            ),
            [],
        )
        for block in range(data.DEPTH):
            row = data.rows_of_heads(answer, block, query)[int(np.argmax(np.abs(parts(of)[2 * block])))]
            expected += [max(0.75, 10 * weight) for weight in row if weight >= 0.01]
        assert drawn == pytest.approx(expected, abs=1e-5)
        # the bars, with what no column added, sum to the number
        said = page.locator(".bars title").evaluate_all("all => all.map((one) => one.textContent)")
        assert sum(number(one.rpartition(": ")[2]) for one in said) == pytest.approx(of["value"], abs=0.006 * len(said))
        assert len(said) == 1 + data.DEPTH * (data.HEADS + 1)
        # what the inputs added, with what belongs to none, is the number too
        sums = [number(one) for one in page.locator(".paint dl .value").all_inner_texts()]
        assert sum(sums[:-1]) == pytest.approx(sums[-1], abs=0.02)
        assert sums[-1] == pytest.approx(of["value"], abs=0.006)
        # and is painted over the picture, each patch as strongly as its share of the largest
        values = {one["lane"]: one["value"] for one in of["inputs"]}
        top, first = max(abs(v) for v in values.values()), answer["first_patch"]
        painted = page.locator(".over span").evaluate_all("all => all.map((one) => one.style.backgroundColor)")
        alpha = [float(re.findall(r"[\d.]+", one)[-1]) if one.startswith("rgba") else 1.0 for one in painted]
        assert alpha == pytest.approx([round(78 * abs(values[first + i]) / top) / 100 for i in range(6)], abs=0.006)
        # another token is another picture
        page.locator(".tokens button").nth(0).click()
        until(page, lambda: server.asked[-1] == f"of {answer['tokens'][0]['cell']}")
        assert server.asked.count("record") == server.asked.count("picture") == 1


def test_pointing_lights_the_path_and_a_click_opens_the_weight(browser):
    server = Server()
    with opened(browser, server, "#token=1", reduced_motion="reduce") as page:
        sheet = picture(page)
        answer, of, query = chosen_of(server, 1)
        assert page.evaluate("document.getAnimations().length") == 0
        rows = [data.rows_of_heads(answer, block, query) for block in range(data.DEPTH)]
        head = int(np.argmax(np.abs(parts(of)[2])))  # of the second block
        key = int(np.argmax(rows[1][head, :query]))
        box = page.locator(".column.attn rect").nth(1).bounding_box()
        line = page.locator(".labels button.label").nth(key).bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, line["y"] + line["height"] / 2)
        page.wait_for_selector(".tip")
        assert f"{rows[1][head, key]:.3f} · block 2, head {head + 1}" in page.inner_text(".tip")
        assert page.locator(".line.pointed").count() == 1
        lit = page.locator(".curves path.on").count()
        assert lit == sum(rows[b][int(np.argmax(np.abs(parts(of)[2 * b]))), key] >= 0.01 for b in range(data.DEPTH))
        # the input is painted with that head's attention
        assert f"what block 2, head {head + 1} looks at" in page.inner_text(".paint .what")
        page.mouse.down()
        page.mouse.up()
        assert receipt_of(page, f"blocks.1.attn.pattern[0,{head},{query},{key}]")
        page.keyboard.press("Escape")
        page.wait_for_selector("#receipt", state="detached")
        assert sheet.count() == 1


def test_zooming_goes_to_a_block_to_a_head_and_back_and_the_address_has_the_place(browser):
    server = Server()
    with opened(browser, server, "#token=1") as page:
        picture(page)
        page.click(".block >> nth=1")
        assert "at=blocks.1" in page.url
        assert page.locator(".column.attn").count() == data.HEADS  # a column a head
        page.mouse.move(1, 1)
        where = page.locator(".column.attn rect").nth(1).bounding_box()
        page.mouse.click(where["x"] + where["width"] / 2, where["y"] + 8)
        until(page, lambda: "at=blocks.1.attn/2" in page.url)
        assert page.locator(".crumbs li").all_inner_texts() == ["the model", "block 2", "head 2"]
        assert "what block 2, head 2 looks at" in page.inner_text(".paint .what")
        for place in ("at=blocks.1", ""):
            page.keyboard.press("Escape")
            until(page, lambda place=place: page.url.partition("at=")[2] == place.removeprefix("at="))
        page.wait_for_selector(".plan")
        page.go_back()
        until(page, lambda: page.url.endswith("at=blocks.1"))


def test_the_whole_picture_is_reached_by_keys_and_as_a_table(browser):
    server = Server()
    with opened(browser, server, "#token=1") as page:
        picture(page)
        answer, of, query = chosen_of(server, 1)
        assert page.locator(".labels [tabindex='0']").count() == page.locator("button.head[tabindex='0']").count() == 1
        page.locator(".labels [tabindex='0']").focus()
        for key in ("Home", "ArrowDown", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowRight"):
            page.keyboard.press(key)
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == answer["words"][1]
        head = int(np.argmax(np.abs(parts(of)[2])))
        page.keyboard.press("Enter")
        assert receipt_of(page, f"blocks.1.attn.pattern[0,{head},{query},1]")
        page.click("text=As a table")
        cells = (
            page.locator("[aria-label='the picture as a table'] table")
            .first.locator("tbody tr")
            .nth(1)
            .locator("td")
            .all_inner_texts()
        )
        weights = [
            data.rows_of_heads(answer, b, query)[int(np.argmax(np.abs(parts(of)[2 * b]))), 1] for b in range(data.DEPTH)
        ]
        assert [float(one.strip("<>")) for one in cells] == pytest.approx(weights, abs=0.0011)
        assert axe(page) == []


def test_the_answer_forms_block_by_block(browser):
    server = Server()
    with opened(browser, server, "#token=1") as page:
        picture(page)
        _, of, _ = chosen_of(server, 1)
        assert page.locator(".pill b").all_inner_texts() == [f"“{one['top'][0]['label']}”" for one in of["lens"]]
        page.get_by_label("stop after block").fill("1")
        assert "after=1" in page.url
        likely = page.locator("ol[aria-label='Most likely there'] a")
        assert likely.get_attribute("data-cell") == of["lens"][1]["top"][0]["cell"]
        assert page.locator(".column.late").count() == 4  # two blocks have not been computed yet
        page.click(".pill >> nth=2")
        assert receipt_of(page, of["lens"][2]["top"][0]["cell"])


def test_an_address_of_the_old_views_leads_to_the_same(browser):
    moved = {
        "view=answer&token=1": ("look", {"token": "1"}),
        "view=why&why=logits[0,8,3]": ("look", {"open": "why", "why": "logits[0,8,3]"}),
        "view=map&at=blocks.1.attn": ("look", {"at": "blocks.1.attn"}),
        "view=heads&sort=score": ("heads", {"sort": "score"}),
    }
    with opened(browser, Server()) as page:
        for old, (view, more) in moved.items():
            page.evaluate("hash => (location.hash = hash)", old)
            until(page, lambda view=view: page.evaluate("pencil.session.address.view") == view)
            assert page.evaluate("pencil.session.address.more") == more


def test_running_text_goes_on_by_one_token_or_more(browser):
    about = data.gpt()
    about["controls"] = [data.control("tokens", 2, 1, 31, True), *data.SAMPLING[1:]]
    server = Server(about, data.continued)
    with opened(browser, server) as page:
        assert page.inner_text(".tokens .prompt") == "one two"
        assert page.locator("p.says").inner_text().startswith("The position of “two” predicts “")
        page.get_by_role("button", name="+1 token").click()
        until(page, lambda: server.states[-1]["input"].get("options") == {"tokens": 3})
        page.wait_for_selector(".result:not(.stale)")
        page.get_by_role("button", name="Continue").click()
        until(page, lambda: server.states[-1]["input"].get("options") == {"tokens": 26})


def test_the_line_under_a_token_is_explained_and_nothing_is_sampled_where_places_are_filled(browser):
    def filled(state):
        found = data.continued({**state, "input": {"text": "one two"}})
        for one in found["tokens"]:
            one["chosen"]["uniform"] = None
        return found

    with opened(browser, Server(data.gpt(controls=[]), filled)) as page:
        assert "as long as its probability" in page.inner_text(".result")
        assert page.locator(".tokens button").first.get_attribute("title").startswith("probability 0.")
        chosen = page.locator("section[aria-label*='was chosen']")
        assert "Temperature" not in chosen.inner_text()
        assert "sampled" not in page.inner_text("main")


def test_the_classes_of_a_picture(browser):
    server = Server(data.vit(), data.classified)
    with opened(browser, server) as page:
        picture(page)
        classes = data.classified(server.states[0])["classes"]
        assert page.inner_text(".best").split() == [classes[0]["label"], f"{classes[0]['probability']:.3f}"]
        bars = page.locator("ol[aria-label='Classes'] a")
        assert bars.locator(".p").all_inner_texts() == [shown(one["probability"]) for one in classes]
        assert page.inner_text(".label.read") == "class"
        page.get_by_role("button", name="Why").click()
        until(page, lambda: f"why={classes[0]['cell']}" in page.url)


# ---- diffusion


@pytest.mark.long
def test_frames_play(browser):
    with opened(browser, Server(data.dit(), data.denoised)) as page:
        first = data.denoised({})["frames"][0]["picture"]
        page.get_by_role("button", name="play").click()
        page.wait_for_function("src => document.querySelector('figure img').src === src", arg=first)
        page.wait_for_function("src => document.querySelector('figure img').src !== src", arg=first)
        page.get_by_role("button", name="pause").click()
        page.get_by_role("button", name="play").wait_for()


# ---- for everyone


@pytest.mark.parametrize(
    "kind, width, scheme",
    [
        ("captioner", 390, "dark"), ("gpt", 390, "light"),
        *(pytest.param(*how, marks=pytest.mark.long) for how in (
            ("captioner", 1280, "light"), ("gpt", 1280, "dark"), ("vit", 390, "light"), ("vit", 1280, "dark"),
            ("dit", 390, "light"), ("dit", 1280, "dark"),
        )),
    ],
)  # fmt: skip
def test_every_answer_is_accessible_and_fits_a_telephone(browser, kind, width, scheme):
    about, answer = {
        "captioner": (data.model(), data.captioned), "gpt": (data.gpt(), data.continued),
        "vit": (data.vit(), data.classified), "dit": (data.dit(), data.denoised),
    }[kind]  # fmt: skip
    with opened(browser, Server(about, answer), viewport={"width": width, "height": 844}, color_scheme=scheme) as page:
        picture(page)
        page.locator(".labels [tabindex='0']").focus()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert axe(page) == []
