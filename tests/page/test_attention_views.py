"""Attention over pictures and words, diffusion, and every answer by keyboard, on a telephone and for a screen reader."""

import base64
from typing import Any

import numpy as np
import pytest

from page import answer_data as data
from page.answer_server import Server, opened, receipt_of, rows_of, shown, until
from page.mock import axe

# ---- attention


def lit(page: Any) -> list[float]:
    return page.locator("[role=gridcell]").evaluate_all(
        "all => all.map((one) => Number(one.style.getPropertyValue('--lit')))"
    )


def test_a_word_lights_the_patches_it_attended_to(browser):
    server = Server()
    with opened(browser, server) as page:
        for word in (1, 0):
            page.locator(".tokens button").nth(word).hover()
            page.wait_for_function(
                "() => document.querySelector('[role=gridcell]').getAttribute('aria-label').includes('attention')"
            )
            light = server.light()
            rows = rows_of(light)
            assert np.allclose(lit(page), np.sqrt(rows[word]), atol=1e-5)  # from 0 to 1, whatever the input
            named = page.locator("[role=gridcell]").nth(4).get_attribute("aria-label")
            text = server.answer(server.states[-1])["tokens"][word]["text"]
            assert named == f"patch, row 2, column 2: attention {shown(rows[word, 4])} from “{text}”"
        assert server.asked == ["record", "light mean"]  # once for all words
        assert page.inner_text(".scale").split("\n")[:2] == ["0", "1"]
        assert "square root" in page.inner_text(".scale")


def test_the_attention_of_the_chosen_word_is_lit_on_opening(browser):
    server = Server()
    server.leading = [[2, 0], [0, 1], [1, 1]]
    with opened(browser, server, "#token=1") as page:
        page.wait_for_selector("[role=gridcell][aria-label*=attention]")
        light = server.light("head", 0, 1)  # the head that attends most to the patches from this word
        assert np.allclose(lit(page), np.sqrt(rows_of(light)[1]), atol=1e-5)
        assert server.asked == ["record", "light mean", "light head"]
        assert page.get_by_label("one head").is_checked()
        page.locator(".tokens button").nth(0).click()
        page.wait_for_selector(".attended :text('Recorded weights of block 3, head 1')")


def test_a_large_model_is_recorded_only_when_something_is_pointed_at(browser):
    server = Server(data.model(live=False))
    with opened(browser, server) as page:
        page.wait_for_timeout(300)
        assert server.asked == []
        assert lit(page) == [0] * 6
        page.locator(".tokens button").nth(1).hover()
        until(page, lambda: "light mean" in server.asked)


def test_a_patch_lights_the_words_that_attended_to_it(browser):
    server = Server()
    with opened(browser, server) as page:
        page.locator("[role=gridcell]").nth(4).hover()
        page.wait_for_selector(".tokens .value")
        light = server.light()
        rows = rows_of(light)
        assert page.locator(".tokens .value").all_inner_texts() == [shown(v) for v in rows[:, 4]]
        assert page.inner_text(".attended .now").endswith(f"to patch 2,2: {shown(rows[0, 4])}")
        page.mouse.move(0, 0)
        page.wait_for_selector(".tokens .value", state="detached")


def test_one_head_opens_its_weights_and_derived_ones_are_marked(browser):
    server = Server()
    with opened(browser, server) as page:
        page.locator(".tokens button").nth(1).click()
        page.get_by_label("rollout").check()
        page.wait_for_selector(".attended :text('Derived: attention rollout')")
        page.locator("[role=gridcell]").nth(5).click()
        page.get_by_label("one head").check()
        page.get_by_label("block", exact=True).select_option(label="2")
        page.get_by_label("head", exact=True).select_option(label="2")
        until(page, lambda: server.asked[-1] == "light head")
        assert not any(asked.startswith("receipt") for asked in server.asked)
        assert "attention=head:1:1" in page.url
        page.wait_for_selector("[role=gridcell][aria-label*=attention]")
        page.locator("[role=gridcell]").nth(5).click()
        # the word was written at position 7, and the patches begin at key 2
        assert receipt_of(page, "blocks.1.attn.pattern[0,1,7,7]")


def test_keys_reach_every_patch(browser):
    server = Server()
    with opened(browser, server, "#attention=head:0:1") as page:
        page.locator("[role=gridcell]").first.focus()
        for key in ("ArrowDown", "End", "ArrowLeft", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        page.wait_for_selector("[role=gridcell][aria-label*=attention]")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith(
            "patch, row 2, column 3: attention 0."
        )
        assert page.locator("[role=gridcell][tabindex='0']").count() == 1
        page.keyboard.press("Enter")
        assert receipt_of(page, "blocks.0.attn.pattern[0,1,6,7]")


def test_words_light_words(browser):
    server = Server(data.gpt(), data.continued)
    with opened(browser, server, "#attention=head:2:0&token=1") as page:
        page.locator(".tokens button").nth(1).hover()
        page.wait_for_selector(".words button[aria-label*=attention]")
        light = server.light("head", 2, 0)
        rows = rows_of(light)
        said = page.locator(".words button").evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
        text = server.answer(server.states[-1])["tokens"][1]["text"]
        assert [one.split(": ")[1] for one in said] == [f"attention {shown(v)} from “{text}”" for v in rows[1]]
        page.locator(".words button").nth(1).hover()
        page.wait_for_selector(".tokens .value")
        assert page.locator(".tokens .value").all_inner_texts() == [shown(v) for v in rows[:, 1]]
        page.locator(".words button").nth(1).click()
        assert receipt_of(page, "blocks.2.attn.pattern[0,0,2,1]")


def test_only_what_is_attended_to_is_named(browser):
    """Not the tokens after a word, which it cannot see; nor weights that are nearly none."""
    server = Server(data.gpt(), data.continued)
    row = np.zeros(11, "<f4")

    def light(*how):
        found = Server.light(server, *how)
        rows = np.tile(row[: found["patches"]], (len(found["words"]), 1))
        return {**found, "rows": base64.b64encode(rows.tobytes()).decode()}

    server.light = light
    for weights, said in (
        ([0.9925, 0.0075], "attends most to {0} (0.993)"),
        ([0.0099] * 3, "attends to no word with a weight of 0.01 or more"),
    ):
        row[:] = 0
        row[: len(weights)] = weights
        with opened(browser, server, "#attention=head:1:1&token=0") as page:
            page.wait_for_selector(".words button[aria-label*=attention]")
            words = server.answer(server.states[-1])["words"]
            assert page.inner_text(".attended .now").endswith(said.format(*(f"“{one}”" for one in words)))


def test_equal_words_are_told_apart_and_one_head_is_remembered(browser):
    server = Server(data.gpt(), data.continued)
    with opened(browser, server, "#text=two%20two%20two&attention=head:1:1&token=0") as page:
        page.wait_for_selector(".words button[aria-label*=attention]")
        row = rows_of(server.light("head", 1, 1))[0]
        words = data.continued(server.states[-1])["words"]
        order = sorted(range(len(row)), key=lambda k: -row[k])[:3]
        names = [f"“two” #{k + 1}" if words[k] == "two" else f"“{words[k]}”" for k in order]
        said = ", ".join(f"{name} ({shown(row[k])})" for name, k in zip(names, order, strict=True))
        assert page.inner_text(".attended .now").endswith(f"attends most to {said}")
        for how in ("mean of a block", "rollout", "one head"):
            page.get_by_label(how).check()
        assert page.get_by_label("block", exact=True).input_value() == "1"
        assert page.get_by_label("head", exact=True).input_value() == "1"
        assert "layer" not in page.inner_text("main")


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
    with opened(browser, server, "#attention=head:0:0") as page:
        classes = data.classified(server.states[0])["classes"]
        assert page.inner_text(".best").split() == [classes[0]["label"], f"{classes[0]['probability']:.3f}"]
        bars = page.locator("ol[aria-label='Classes'] a")
        assert bars.locator(".p").all_inner_texts() == [shown(one["probability"]) for one in classes]
        page.locator("[role=gridcell]").nth(2).click()
        page.wait_for_selector("[role=gridcell][aria-label*=attention]")
        page.locator("[role=gridcell]").nth(2).click()
        assert receipt_of(page, "blocks.0.attn.pattern[0,0,0,3]")  # from the class token, which comes first
        page.get_by_role("button", name="Why").click()
        until(page, lambda: f"why={classes[0]['cell']}" in page.url)


# ---- diffusion


def test_a_picture_comes_out_of_the_noise(browser):
    server = Server(data.dit(), data.denoised)
    with opened(browser, server, reduced_motion="reduce") as page:
        frames = data.denoised(server.states[0])["frames"]

        def large():
            return page.get_attribute("figure img", "src")

        assert large() == frames[-1]["picture"]
        page.get_by_label("Step", exact=True).fill("1")
        assert large() == frames[1]["picture"]
        assert page.locator("figure img").nth(1).get_attribute("src") == frames[1]["clean"]
        page.get_by_role("button", name="next frame").click()  # nothing moves by itself
        assert large() == frames[2]["picture"]
        page.get_by_role("button", name="Frame 4").click()
        assert large() == frames[3]["picture"]
        page.get_by_role("button", name="Record the numbers of this step").click()
        until(page, lambda: server.states[-1]["input"].get("options") == {"step": 13})
        page.get_by_label("class").select_option("dog")
        until(page, lambda: server.states[-1]["input"]["label"] == "dog")


def test_a_step_is_chosen_within_the_number_of_steps(browser):
    about = data.dit()
    about["controls"][-1] |= {"value": 8, "least": 1, "most": 50, "within": "steps"}
    server = Server(about, data.denoised)
    with opened(browser, server) as page:
        step, steps = page.get_by_label("recorded step"), page.get_by_label("denoising steps")
        assert (step.get_attribute("max"), step.input_value()) == ("16", "8")
        step.fill("13")
        steps.fill("5")
        until(page, lambda: server.states[-1]["input"].get("options") == {"steps": 5, "step": 5})
        assert (step.get_attribute("max"), step.input_value()) == ("5", "5")
        assert "at step 5" in page.inner_text(".attended h3")
        steps.fill("23")
        until(page, lambda: server.states[-1]["input"].get("options") == {"steps": 23, "step": 5})
        assert step.get_attribute("max") == "23"


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
        pointed = page.locator("[role=gridcell], .words button").first
        pointed.focus()
        page.wait_for_selector("[aria-label*=attention]:is([role=gridcell], .words button)")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert axe(page) == []
