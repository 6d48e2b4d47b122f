"""The views inside a model, in the built page over the real server: heads, why, change, compare, katas, share."""

import base64
import json
import os
import re
import shutil
from contextlib import contextmanager
from urllib.parse import quote, unquote

import numpy as np
import pytest
from PIL import Image

from conftest import unchecked
from explore.served import serving
from explore.small_runs import write_run
from page.answer_server import until
from page.blank import blank_page
from page.mock import Events, axe, mocked, turn_to
from pencil.explore.ablations import ablations
from pencil.explore.session import Session
from pencil.explore.training import along
from pencil.learn.katas import kata, progress
from pencil.runs import snapshots

ATTENTION = "blocks.1.attn.pattern"


@pytest.fixture(scope="module", autouse=True)
def quickly():
    """The models are proved elsewhere; here their shapes need no checking."""
    with unchecked():
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def runs(home, quickly):
    (home / "runs").mkdir()
    (home / "other").mkdir()
    gpt = write_run("gpt", home / "runs", context=19, depth=2)
    other = write_run("gpt", home / "other", seed=7, context=19, depth=2)
    return {"gpt": gpt, "other": other, "captioner": write_run("captioner", home / "runs", depth=2)}


@pytest.fixture(scope="module")
def texts(runs, home):
    before = os.environ.get("PENCIL_DATA")
    os.environ["PENCIL_DATA"] = str(home / "data")
    with serving(Session.open(runs["gpt"]), Session.open(runs["other"], "b")) as found:
        yield found
    os.environ.pop("PENCIL_DATA") if before is None else os.environ.update(PENCIL_DATA=before)


@pytest.fixture(scope="module")
def pictures(runs):
    with serving(Session.open(runs["captioner"])) as found:
        yield found


@contextmanager
def opened(browser, served, where="", refused=False, **how):
    """The page of a server; afterwards its console is empty unless a request was refused, and it asked nobody else."""
    origin = f"http://127.0.0.1:{served.port}"
    console: list[str] = []
    with blank_page(browser, console, **how) as (page, requested):
        page.goto(served.address(where))
        yield page
    assert [url for url in requested if not url.startswith((origin, "data:", "blob:"))] == []
    assert refused or console == []


def session(served, id="a"):
    return served.explorer.sessions[id]


def asked(text="the cat", model="a", edits=(), tokens=3):
    return {"model": model, "input": {"text": text, "options": {"tokens": tokens}}, "edits": list(edits)}


def address(view, text="the cat", **more):
    rest = "".join(f"&{name}={quote(str(value))}" for name, value in more.items())
    return f"#view={view}&text={quote(text)}&o.tokens=3{rest}"


def signed(word):
    return float(word.replace("−", "-"))


def numbers(page, where):
    return [signed(word) for word in page.locator(where).all_inner_texts()]


def cell_of(page):
    """The cell whose receipt is open, from the address."""
    return unquote(page.url).rpartition("cell=")[2]


# ---- heads


def test_every_head_has_a_picture_and_one_opens_down_to_a_receipt(browser, texts):
    one = session(texts)
    cell = one.answer(asked())["tokens"][0]["cell"]
    parts = {part.label: part.value for part in one.record(asked()).contributions(cell).parts if part.kind == "head"}
    added = [parts[f"block {layer} · head {head}"] for layer in (1, 2) for head in (1, 2, 3)]
    found = ablations(one, asked(), cell)
    with opened(browser, texts, address("heads")) as page:
        page.wait_for_selector(".thumb")
        assert page.locator(".thumb").count() == 2 * 3
        assert "the run does not record where its data is" in page.inner_text(".measuring")
        # what each head added to the chosen token, and how that changes without it
        until(page, lambda: numbers(page, ".added .number") == pytest.approx(added, abs=6e-3))
        page.click("text=What does “")
        page.locator(".off td button").nth(5).wait_for()
        changes = [head["change"] for head in found["heads"]]
        assert numbers(page, ".off td button") == pytest.approx(changes, abs=6e-3)
        largest = max(found["heads"], key=lambda head: abs(head["change"]))
        assert (
            page.locator(".off li button").first.inner_text()
            == f"block {largest['layer'] + 1} · head {largest['head'] + 1}"
        )
        page.locator(".off li button").first.click()
        page.wait_for_selector(".knobs .edit code")
        assert page.inner_text(".knobs .edit code") == largest["edit"]
        page.go_back()
        page.click(f'[data-head="{ATTENTION}:2"]')
        page.wait_for_selector(".keys .key")
        pattern = session(texts).record(asked()).array(ATTENTION)[0, 2]
        row = 3
        page.locator(".words .word").nth(row).hover()
        shown = [float(word) for word in page.locator(".keys .p").all_inner_texts()]
        # a causal head: the fourth token sees four, and no key that it cannot see is listed
        attended = pattern[row][pattern[row] >= 0.01]
        assert len(attended) <= 4
        np.testing.assert_allclose(shown, np.sort(attended)[::-1], atol=6e-4)
        page.locator(".keys .key").first.click()
        page.wait_for_selector("#receipt h3")
        assert cell_of(page) == f"{ATTENTION}[0,2,{row},{int(pattern[row].argmax())}]"


def coloured(values):
    return base64.b64encode(bytes(values)).decode()


def heads_seen():
    """Two heads: in the second all weights are half of the first's."""
    thumbs = ([255, 0, 128, 127], [128, 0, 64, 64], [0, 0, 0, 0])
    heads = [
        {
            "head": i,
            "names": ["previous token"] if score == 0.9 else [],
            "scored": "previous token",
            "score": score,
            "baseline": 0.25,
            "thumbnail": coloured(thumb),
        }
        for i, (thumb, score) in enumerate(zip(thumbs, (0.3, 0.9, 0.6), strict=True))
    ]
    layers = [{"name": "blocks.0.attn.pattern", "layer": 0, "heads": heads, "thumb": [2, 2]}]
    return {"groups": [{"name": "", "layers": layers, "queries": ["a", "b"], "keys": ["a", "b"]}]}


def model_of(id="a"):
    return {
        "id": id, "name": "small", "family": "gpt", "summary": "", "parameters": 9, "step": None, "depth": 1, "heads": 3,
        "live": True, "input": {"text": {"label": "Text", "longest": 9, "optional": False}}, "output": "tokens",
        "controls": [], "example": {"text": "ab"}, "examples": [],
    }  # fmt: skip


def outline_of():
    nothing = {"path": "", "title": "small", "kind": "model", "parameters": 9, "tensors": [], "children": []}
    return {"trace": "0" * 24, "tensors": [], "labels": {}, "facts": {}, "map": nothing, "start": ""}


def replies(**more):
    answer = {"state": {}, "milliseconds": 1, "words": ["a", "b"], "text": "c", "tokens": [], "notes": []}
    return {
        "GET models": {"models": [model_of()], "version": "0"}, "POST answer": answer, "POST record": outline_of(),
        "GET attention": heads_seen(),
        "GET picture": {"stacks": [], "columns": [], "graph": {"nodes": [], "edges": []}}, **more,
    }  # fmt: skip


def test_all_heads_have_one_scale_and_are_sorted_by_what_they_do_above_chance(browser):
    first = "canvas => [...canvas.getContext('2d').getImageData(0, 0, 1, 1).data].slice(0, 3).join()"
    with mocked(browser, replies(), "#view=heads") as page:
        page.wait_for_selector(".thumb canvas")
        colours = [page.locator(".thumb canvas").nth(i).evaluate(first) for i in range(3)]
        assert len(set(colours)) == 3  # the largest weight of each head has a colour of its own
        page.select_option(".controls select", "score")
        order = page.locator(".thumb").evaluate_all("all => all.map(one => one.dataset.head.at(-1))")
        assert order == ["1", "2", "0"]
        # named only where the score is clear; how far above chance stands beside the name
        assert page.locator(".caption strong").all_inner_texts() == ["previous token"]
        assert page.get_attribute(".caption strong", "title") == "previous token 90\xa0%; by chance 25\xa0%"


# ---- why


def contributions(total, allowed=1e-6):
    part = {"id": "x", "label": "block 1 · MLP", "kind": "mlp", "value": total, "share": 1.0, "cell": None, "parts": 0}
    return {
        "cell": "logits[0,1,2]", "against": None, "value": 2.5, "total": total, "allowed": allowed,
        "held": ["Every norm's 1/σ is held."], "parts": [part],
    }  # fmt: skip


@pytest.mark.parametrize(("total", "sign"), [(2.5, "✓ within rounding"), (2.4, "✗ they differ by 0.10")])
def test_a_sum_that_does_not_hold_is_said(browser, total, sign):
    where = "#view=why&why=logits[0,1,2]"
    with mocked(browser, replies(**{"GET contributions": contributions(total)}), where) as page:
        assert sign in page.inner_text(".sum")
        page.click("text=What was held")
        assert "Every norm's 1/σ is held." in page.inner_text(".held")


def test_from_the_answer_to_the_receipt_of_a_pixel_in_four_clicks(browser, pictures):
    with opened(browser, pictures) as page:
        clicks = []

        def click(where):
            page.locator(where).first.click()
            clicks.append(where)

        click("button.why")
        page.wait_for_selector("[data-kind=patch]")
        # any head, not only the one that is open
        head = page.locator("[data-kind=head][aria-expanded=false]").first.get_attribute("data-part")
        click(f'[data-part="{head}"]')
        click(f'[data-kind=patch][data-part^="{head}/"]')
        click(f'[data-kind=pixel][data-part^="{head}/"]')
        page.wait_for_function("() => document.querySelector('#receipt h3 code, #receipt code')")
        page.wait_for_function("() => location.hash.includes('cell=given.picture')")
        assert len(clicks) <= 4
        cell = cell_of(page)
        one = session(pictures)
        state = {"model": "a", "input": one.about()["example"], "edits": []}
        pixel = float(one.record(state)[cell].value)
        page.wait_for_function("() => document.querySelector('#receipt').innerText.includes('given')")
        assert f"{pixel:.4g}".rstrip("0").replace("-", "−")[:5] in page.inner_text("#receipt")


def test_the_parts_on_screen_sum_to_the_logit_and_to_a_difference(browser, texts):
    one = session(texts)
    answer = one.answer(asked())
    token = answer["tokens"][0]
    with opened(browser, texts, address("why", why=token["cell"])) as page:

        def summed():
            page.wait_for_selector(".sum .right")
            page.wait_for_selector(".why [aria-busy=false]")
            top = page.locator('.why ul[aria-label^="Parts of “"]')
            if top.locator("> li > .more").count():
                top.locator("> li > .more").click()
            values = top.locator("> li > .row .value").all_inner_texts()
            return sum(float(value.replace("−", "-")) for value in values), len(values)

        total, count = summed()
        logit = float(one.record(asked())[token["cell"]].value)
        assert abs(total - logit) < 0.006 * count
        other = next(bar for bar in token["top"] if bar["id"] != token["id"])
        page.select_option(".controls select", str(other["id"]))
        page.wait_for_function("() => document.querySelector('.sum')?.innerText.includes('against')")
        total, count = summed()
        assert abs(total - (logit - other["logit"])) < 0.006 * count


def test_every_term_of_a_sum_that_is_cut_short_is_shown(browser, texts):
    one = session(texts)
    cell = one.answer(asked())["tokens"][0]["cell"]
    with opened(browser, texts, address("look", cell=cell)) as page:
        page.click("text=/Show all \\d+/")
        rows = page.locator("[aria-label='all terms, the largest first'] tbody tr")
        said = [[cell.replace("−", "-") for cell in row.locator("td").all_inner_texts()] for row in rows.all()]
        values = [float(row[1]) for row in said]
        assert [abs(value) for value in values] == sorted((abs(value) for value in values), reverse=True)
        recorded = one.record(asked())
        assert len(values) == 24  # as many as the model is wide
        assert float(said[-1][3]) == pytest.approx(float(recorded[cell].value), rel=1e-3)
        assert sum(values) == pytest.approx(float(recorded[cell].value), abs=0.001 * len(values))
        left, right = (float(number) for number in said[0][0].split(" · "))
        assert left * right == pytest.approx(values[0], rel=2e-3)


# ---- change


def test_a_head_is_switched_off_and_on_and_the_address_reproduces_it(browser, texts):
    edit = "blocks.0.attn.z[:,1]=0"
    one = session(texts)
    before, after = one.answer(asked()), one.answer(asked(edits=[edit]))
    with opened(browser, texts, address("heads")) as page:
        page.click("button[aria-label='block 1 · head 2 off']")
        turn_to(page, "Change")
        page.wait_for_selector(".reply >> nth=1")
        shown = page.locator(".reply .text").all_inner_texts()
        assert shown == [before["text"], after["text"]]
        assert page.locator(".edit code").all_inner_texts() == [edit]
        page.wait_for_selector("text=/First:/")
        assert page.inner_text(".first .link") == "blocks.0.attn.z"  # nothing before the edit differs
        # cell by cell, on the tokens that both answers have in common
        page.wait_for_selector("section[aria-label='The difference of one tensor'] td")
        same = next(
            i for i, (x, y) in enumerate(zip(before["tokens"], after["tokens"], strict=False)) if x["id"] != y["id"]
        )
        assert f"up to where token {same + 1} is chosen" in page.inner_text(".knobs")
        link = page.url
        page.click("text=Undo")
        assert page.locator(".edit").count() == 0
        page.click("text=Redo")
        assert page.locator(".edit").count() == 1
        page.go_back()
        page.go_back()
        page.wait_for_selector(".edit")
        page.click(f"button[aria-label='Remove {edit}']")
        assert page.locator(".edit").count() == 0
    with opened(browser, texts, "#" + link.partition("#")[2]) as page:
        page.wait_for_selector(".reply >> nth=1")
        assert page.locator(".edit code").all_inner_texts() == [edit]
        assert page.locator(".reply .text").all_inner_texts() == shown


def test_a_change_is_named_in_every_view_until_it_is_undone(browser, texts):
    edit = "blocks.1.attn.z[:,2]=0"
    with opened(browser, texts, address("answer")) as page:
        page.wait_for_selector(".tokens button")
        assert page.locator(".edited").count() == 0
        turn_to(page, "Heads")
        page.click("button[aria-label='block 2 · head 3 off']")
        turn_to(page, "Change")
        assert page.inner_text(".edit span").split(" blocks.")[0] == "block 2 · head 3 off"
        assert page.locator(".edited").count() == 0  # the view has the list itself
        for view in ("Look", "Heads", "Numbers", "Compare", "Tour", "Documents", "Katas", "Share"):
            turn_to(page, view)
            page.get_by_text("The model is changed: block 2 · head 3 off", exact=True).wait_for()
            assert page.get_attribute(".edited span", "title") == edit
        turn_to(page, "Numbers")
        page.wait_for_selector("#tensor td")
        assert axe(page) == []
        page.evaluate("scrollTo(0, 300)")
        assert page.locator(".edited").bounding_box()["y"] >= 0  # it stays on screen
        page.click(".edited >> text=Open Change")
        assert page.locator(".edit code").all_inner_texts() == [edit]
        turn_to(page, "Look")
        page.click(".edited >> text=Undo")
        assert page.locator(".edited").count() == 0
        assert "edit=" not in page.url


SAID = {
    "blocks.0.attn.z[:,1]=0": "block 1 · head 2 off",
    "blocks.1.attn.scores[:,:,3,2]=-inf": "block 2 · attention: token 4 cannot see token 3",
    "blocks.0.mlp.out=mean": "all of block 1 · MLP · out set to the mean over the positions",
    "blocks.0.attn.pattern[0,1,2,1]=0.5": "block 1 · attention · pattern[0,1,2,1] set to 0.5",
}


def test_each_change_is_in_words_and_of_many_the_last_are_shown(browser):
    edits = "".join(f"&edit={quote(one)}" for one in SAID)
    with mocked(browser, replies(), f"#view=heads{edits}") as page:
        words = list(SAID.values())
        listed = lambda: page.inner_text(".edited p").partition(": ")[2]  # noqa: E731
        assert listed() == f"{'; '.join(words[1:])}; and 1 more"
        page.click(".edited >> text=Undo the last")
        assert listed() == "; ".join(words[:3])
        page.click(".edited >> text=Undo all")
        assert page.locator(".edited").count() == 0


def test_a_token_is_set_by_its_text_or_its_id(browser, texts):
    one = session(texts)
    words = one.record(asked()).labels["V"]
    at = next(i for i, word in enumerate(words) if len(word) == 1 and word.isalpha())
    with opened(browser, texts, address("change", cell="tokens[0,3]")) as page:
        page.fill("form input", words[at])
        assert page.inner_text("form span.faint") == f"“{words[at]}”, id {at}"
        page.click("text=Set this token")
        assert page.locator(".edit code").all_inner_texts() == [f"tokens[0,3]={at}"]
        page.wait_for_selector(".first .link")  # the edited trace is there
        assert page.inner_text(".edit span").startswith(f"token 4 is “{words[at]}”")
        page.fill("form input", "9999")
        page.locator(".knobs [role=alert]", has_text=f"a whole number from 0 to {len(words) - 1}.").wait_for()
        assert page.locator("text=Set this token").is_disabled()
    with opened(browser, texts, address("change", edit="tokens[0,3]=9999"), refused=True) as page:
        # a refusal would be the same again, so the sentence stands alone: of the comparison, then of the recording
        said = f"tokens[0,3] is the id of a token: give a whole number from 0 to {len(words) - 1}, not 9999"
        alone = page.locator(".knobs").get_by_text(said, exact=True)
        alone.wait_for()
        page.wait_for_function("() => pencil.session.recordProblem")
        alone.wait_for()
        assert page.inner_text(".knobs [role=alert]").strip() == said


def test_a_part_becomes_its_mean_noise_or_what_the_other_input_has(browser, texts):
    one, tops = session(texts), {}
    for edit in ("mean", "noise:0.5:7", "patch"):
        state = {**asked(edits=[f"blocks.0.attn.z[:,1]={edit}"]), "other": {"text": "the dog"}}
        tops[edit] = one.answer(state)["tokens"][0]["top"][0]
    assert len({top["probability"] for top in tops.values()}) == 3
    where = address("change", cell="blocks.0.attn.z[0,1,2,0]", **{"b.input": '{"text":"the dog"}'})
    with opened(browser, texts, where) as page:
        for kind, edit in (
            ("mean", "blocks.0.attn.z[:,1]=mean"),
            ("noise", "blocks.0.attn.z[:,1]=noise:0.5:7"),
            ("patch", "blocks.0.attn.z[:,1]=patch"),
        ):
            page.select_option("form select >> nth=0", "blocks.0.attn.z[:,1]")
            page.select_option("form select >> nth=1", kind)
            if kind == "noise":
                page.get_by_label("deviation").fill("0.5")
                page.get_by_label("seed", exact=True).fill("7")
            page.click("text=Set it >> nth=-1")
            page.wait_for_function("edit => document.querySelector('.edit code')?.textContent === edit", arg=edit)
            top = tops[edit.partition("=")[2]]
            page.wait_for_function(
                "([label, p]) => { const reply = [...document.querySelectorAll('.reply')].at(-1); return reply"
                " && !document.querySelector('[aria-busy=true]') && reply.querySelector('.p').textContent === p; }",
                arg=[top["label"], "<0.001" if top["probability"] < 5e-4 else f"{top['probability']:.3f}"],
            )


@pytest.fixture(scope="module")
def watched(home, quickly):
    """A run with weights of five steps, of which no two are the same."""
    run = write_run("gpt", home / "watched", context=19, depth=2)
    for step in (0, 1, 2, 3, 4):
        other = Session.open(write_run("gpt", home / f"step-{step}", seed=step + 1, context=19, depth=2))
        shutil.copy(other.folder / "model.safetensors", home / "weights")
        snapshots.add(run, step, 24, lambda path: shutil.copy(home / "weights", path))
    (run / "metrics.jsonl").write_text("".join(
        json.dumps({"step": step, "train_loss": 5 - step, "val_loss": 6 - step}) + "\n" for step in (0, 2, 4)
    ))  # fmt: skip
    with serving(Session.open(run)) as found:
        yield found


def test_a_training_is_watched_over_its_steps(browser, watched):
    one = session(watched)
    first = one.answer(asked())["tokens"][0]["cell"]
    points, at_two = along(one, asked(), first)["points"], one.answer({**asked(), "at": 2})["text"]
    with opened(browser, watched, address("training")) as page:
        page.locator("circle.on, [aria-label='One number'] circle").nth(4).wait_for()
        page.click("[aria-label='One number'] summary")
        expected = [point["probability"] for point in points]
        until(page, lambda: numbers(page, "[aria-label='One number'] td") == pytest.approx(expected, rel=6e-3))
        assert "training loss: from 5 to 1" in page.get_attribute("[aria-label='The loss'] svg", "aria-label")
        slider = page.locator("#over-training")
        slider.focus()
        for _ in range(3):  # from the run's own weights back to those after step 2
            page.keyboard.press("ArrowLeft")
        assert page.inner_text(".slide label >> nth=0") == "after step 2"
        until(page, lambda: page.locator(".reply .text").all_inner_texts() == [at_two])
        page.get_by_role("button", name="its heads").click()
        page.wait_for_selector(".edited >> text=After step 2 of its training")
        page.click("text=Back to the run's weights")
        assert page.locator(".edited").count() == 0
        # a run that goes on is looked at again: what it keeps meanwhile can be chosen, and is followed
    config = one.folder / "config.toml"
    before = config.read_text()
    config.write_text(before.replace("[train]", "[train]\nsteps = 9"))
    with opened(browser, watched, address("training")) as page:
        page.get_by_label("follow the training").check()
        page.wait_for_function("() => document.querySelector('.slide label').textContent === 'after step 4'")
        snapshots.add(one.folder, 6, 24, lambda path: shutil.copy(home_weights(one), path))
        page.wait_for_function("() => document.querySelector('.slide label').textContent === 'after step 6'")
    config.write_text(before)


def home_weights(one):
    return one.folder / "model.safetensors"


@pytest.mark.long
def test_a_number_a_mask_and_an_input_are_set_from_a_cell(browser, texts):
    with opened(browser, texts, address("change", cell=f"{ATTENTION}[0,1,3,2]")) as page:
        page.fill("form input", "0,25")
        page.click("text=Set this number")
        page.click("button:has-text('mask:')")
        page.wait_for_function("() => document.querySelectorAll('.edit').length === 2")
        assert page.locator(".edit code").all_inner_texts() == [
            f"{ATTENTION}[0,1,3,2]=0.25",
            "blocks.1.attn.scores[:,:,3,2]=-inf",
        ]
        page.fill("form input", "three")
        assert page.locator("text=Set this number").is_disabled()
        assert "Write a number" in page.inner_text("[role=alert]")
        page.wait_for_selector(".reply >> nth=1")
    # a token of the input
    tokens = session(texts).record(asked()).array("tokens")
    with opened(browser, texts, address("change", cell="tokens[0,4]")) as page:
        page.fill("form input", str(int(tokens[0, 0])))
        page.click("text=Set this token")
        page.wait_for_selector(".first .link")
        assert page.inner_text(".first .link") == "tokens"


def test_an_edit_that_is_refused_can_be_taken_back_and_is_never_called_a_change(browser, texts):
    edit = "blocks.0.attn.z[:,99]=0"  # of a head that is not there
    with opened(browser, texts, address("change", edit=edit), refused=True) as page:
        page.locator(".knobs [role=alert]", has_text="blocks.0.attn.z").wait_for()
        page.locator(".edits", has_text="Refused, so the model is not changed").wait_for()
        turn_to(page, "Heads")
        page.locator(".edited", has_text="Refused, the model is not changed: block 1 · head 100 off").wait_for()
        assert "The model is changed" not in page.inner_text("body")
        page.get_by_role("button", name="Open Change").click()
        page.click(f"button[aria-label='Remove {edit}']")
        page.wait_for_selector("text=Set this number")


# ---- compare


@pytest.mark.long
def test_two_models_differ_from_the_first_tensor_that_is_named(browser, texts):
    one, other = session(texts), session(texts, "b")
    lengths = {len(each.answer(asked(model=id))["tokens"]) for each, id in ((one, "a"), (other, "b"))}
    tokens = 1 if len(lengths) > 1 else 3  # answers of two lengths are compared before their first token
    a, b = (each.record(asked(model=id, tokens=tokens)) for each, id in ((one, "a"), (other, "b")))
    with opened(browser, texts, address("compare", b="b")) as page:
        page.wait_for_selector("section[aria-label='The difference of one tensor'] td")
        first = page.inner_text(".first .link")
        known = [name for name in a.names if name in b and np.shape(a.array(name)) == np.shape(b.array(name))]
        assert first == next(name for name in known if not np.array_equal(a.array(name), b.array(name)))
        page.click("text=/Show all/")
        page.locator(".link:text-is('blocks.0.attn_norm')").first.click()
        page.wait_for_selector("h3 code:text-is('blocks.0.attn_norm')")
        shown = page.locator("section[aria-label='The difference of one tensor'] td[data-cell]").all_inner_texts()
        expected = (a.array("blocks.0.attn_norm") - b.array("blocks.0.attn_norm"))[0].ravel()
        numbers = [float(value.replace("−", "-")) for value in shown]
        np.testing.assert_allclose(numbers, expected, atol=6e-3)


def test_small_differences_have_three_digits(browser):
    def tensor(name, most, relative):
        return {"name": name, "shape": [3], "most": most, "relative": relative, "cell": f"{name}[0]", "counted": False}

    tensors = [tensor("x", 0.0000123456, 0.004567), tensor("y", 12.3456, "inf"), tensor("z", 1234.6, 0.5)]
    difference = {"tensors": tensors, "first": "x", "only_a": [], "only_b": [], "notes": []}
    with mocked(browser, replies(**{"POST compare": difference}), '#view=compare&b.input={"text":"c"}') as page:
        rows = page.locator("section[aria-label='What differs'] tbody tr")
        rows.nth(2).wait_for()
        cells = [row.locator("td").all_inner_texts() for row in rows.all()]
        assert cells == [["1.23e−5", "0.00457"], ["12.3", "∞"], ["1235", "0.5"]]


@pytest.mark.long
def test_two_inputs_are_compared(browser, texts):
    with opened(browser, texts, address("compare", b="a")) as page:
        page.wait_for_selector("text=Both are the same now")
        page.locator("details summary", has_text="Input: the same").click()
        page.fill(".compare textarea", "the dog")
        page.wait_for_selector("section[aria-label='The difference of one tensor'] td")
        assert page.inner_text(".first .link") == "tokens"
        assert [one.casefold() for one in page.locator(".reply h3").all_inner_texts()] == ["“the dog”", "“the cat”"]


# ---- katas


def test_a_kata_is_checked_by_the_server_and_counts_as_in_the_terminal(browser, texts):
    with opened(browser, texts, "#view=katas&kata=softmax&seed=5") as page:
        seen = []
        page.on("response", lambda one: "/api/katas" in one.url and seen.append(one))
        page.wait_for_selector(".blanks input")
        question = kata("softmax").make(5)
        inputs = page.locator(".blanks input")
        assert inputs.count() == len(question.blanks)
        check = page.locator("button:text-is('Check')")
        assert check.is_disabled()
        mistake = question.mistakes[0]
        for i, value in enumerate(mistake.values):
            inputs.nth(i).fill(f"{value:.3f}")
        check.click()
        page.wait_for_selector(".said .wrong")
        assert mistake.hint in page.inner_text(".said")
        inputs.first.fill("")
        assert check.is_disabled()
        for i, blank in enumerate(question.blanks):
            inputs.nth(i).fill(blank.written)
        check.click()
        page.wait_for_selector(".said .right")
        assert progress.read(progress.file())["softmax"].solved == 1
        assert not any(
            blank.written in one.text() for one in seen if one.request.method == "GET" for blank in question.blanks
        )
        page.click("text=New numbers")
        page.wait_for_function("() => !/seed=5(&|$)/.test(location.hash)")
        assert page.locator(".blanks input").first.input_value() == ""
        page.click("text=/Show the working/")
        page.wait_for_selector(".said pre")
        assert progress.read(progress.file())["softmax"].seen == 1
        assert page.locator("button:text-is('Check')").is_disabled()


# ---- share


def test_a_view_is_downloaded_and_the_link_leads_back(browser):
    sent = []

    def export(request):
        sent.append(json.loads(request.post_data))
        return Events(("progress", {"done": 1, "total": 3, "text": "attention"}), ("file", {"html": "<!doctype html>"}))

    where = "#view=share&of=heads&text=abc"
    with mocked(browser, replies(**{"POST export": export}), where) as page:
        with page.expect_download() as found:
            page.click("text=Download the file")
        assert found.value.suggested_filename == "small-heads.html"
        shown = {"cell": "", "more": {}, "open": []}
        assert sent == [
            {"state": {"model": "a", "input": {"text": "abc"}, "edits": []}, "view": "heads", "shown": shown}
        ]
        assert "katas, whose grader is the server's" in page.inner_text(".share")
        page.click("text=Copy the link")
        assert page.inner_text("section[aria-label='A link'] pre").endswith("#view=heads&text=abc")
        page.get_by_label("The link opens on").select_option("katas")
        assert "Katas needs the server, so no file has it" in page.inner_text(".share")
        assert page.inner_text("section[aria-label='A link'] pre").endswith("#view=katas&text=abc")
        offered = page.get_by_label("The file opens on").locator("option").all_inner_texts()
        assert offered == ["Look", "Numbers", "Heads", "Tour"]
        assert page.get_by_label("The file opens on").input_value() == "look"


@pytest.mark.long
def test_a_large_picture_stands_in_the_link_as_the_model_sees_it(browser, pictures, tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(256, size=(211, 199, 3), dtype=np.uint8)).save(path)
    with opened(browser, pictures, "#o.tokens=3") as page:
        page.set_input_files("input[type=file]", path)
        page.wait_for_url(re.compile("fitted"))
        assert len(page.url) < 20_000 < path.stat().st_size
        text, link = page.inner_text(".tokens"), page.url
        page.reload()
        with page.expect_request("**/api/answer") as sent:
            page.get_by_label("tokens to write").press("ArrowRight")
        assert len(sent.value.post_data) > path.stat().st_size  # the page itself still has the whole picture
        page.get_by_role("link", name="Share").click()
        assert "as the model sees it" in page.inner_text("section[aria-label='A link']")
    with opened(browser, pictures, "#" + link.partition("#")[2]) as page:
        page.wait_for_selector(".tokens")
        assert page.inner_text(".tokens") == text


@pytest.mark.long
def test_two_pictures_make_two_files_in_the_python(browser, pictures):
    model = session(pictures).about()
    one, other = (input["input"]["picture"] for input in model["examples"][:2])
    rest = quote(json.dumps({"picture": other}))
    with opened(browser, pictures, f"#view=compare&picture={quote(one)}&b.input={rest}&o.tokens=1") as page:
        page.wait_for_selector(".first")
        page.click("text=Copy the Python")
        code = page.inner_text("pre")
    assert one.partition(",")[2] in code
    assert other.partition(",")[2] in code
    assert code.index("other-picture.png") < code.index("other = ")
    compile(code, "page", "exec")


VIEWS = {
    "why": {}, "heads": {"head": f"{ATTENTION}:1"}, "change": {"edit": "blocks.0.attn.z[:,1]=0"}, "compare": {"b": "a", "edit": "blocks.0.mlp.out=0"},
    "tour": {}, "documents": {"document": "003"}, "katas": {"kata": "softmax"}, "share": {},
}  # fmt: skip
READY = {
    "why": ".sum", "heads": ".keys .key", "change": ".first", "compare": ".first", "tour": "ol li", "documents": "article", "katas": ".blanks",
    "share": ".card",
}  # fmt: skip
SLOW, BRIEF = pytest.mark.long, ("why", "heads", "katas")


@pytest.mark.parametrize("view", [view if view in BRIEF else pytest.param(view, marks=SLOW) for view in VIEWS])
def test_every_view_is_accessible_and_fits_a_telephone(browser, texts, view):
    with opened(browser, texts, address(view, **VIEWS[view])) as page:
        page.wait_for_selector(READY[view])
        if view != "tour":  # its lines are those of the views that it opens
            page.locator("summary:text-is('Copy the Python')").last.click()
        assert axe(page) == []
        page.set_viewport_size({"width": 390, "height": 780})
        page.emulate_media(color_scheme="dark")
        page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
        assert axe(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.long
@pytest.mark.parametrize("view", [view for view in VIEWS if view != "tour"])
def test_the_python_of_a_view_runs(browser, texts, home, monkeypatch, capsys, view):
    with opened(browser, texts, address(view, **VIEWS[view])) as page:
        page.wait_for_selector(READY[view])
        page.locator("summary:text-is('Copy the Python')").last.click()
        code = page.locator(".copy pre").last.inner_text()
    monkeypatch.chdir(home)
    exec(compile(code, view, "exec"), {"__name__": "copied"})
    assert capsys.readouterr().out.strip()
