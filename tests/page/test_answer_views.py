"""The answer in the page: tokens and how they were sampled, live input, and what a slow or failing server leaves."""

from typing import Any

import numpy as np
import pytest

from page import answer_data as data
from page.answer_server import Server, given, opened, receipt_of, shown, until
from page.mock import Events, mocked
from pencil.explore import uploads

# ---- the answer and how it was sampled


def test_the_answer_stands_first_with_its_probabilities(browser):
    server = Server()
    with opened(browser, server) as page:
        answer = data.captioned(server.states[0])
        written = page.locator(".tokens button").evaluate_all("all => all.map((one) => one.firstChild.data)")
        assert written == [one["text"] for one in answer["tokens"]]
        for i, token in enumerate(answer["tokens"]):
            page.locator(".tokens button").nth(i).click()
            bars = page.locator("ol[aria-label='Most likely tokens'] a")
            assert bars.evaluate_all("all => all.map((one) => one.dataset.cell)")[:5] == [
                b["cell"] for b in token["top"]
            ]
            assert bars.locator(".p").all_inner_texts()[:5] == [shown(b["probability"]) for b in token["top"]]
            wide = bars.locator(".fill").evaluate_all("all => all.map((one) => parseFloat(one.style.width))")
            assert np.allclose(wide[:5], [100 * b["probability"] for b in token["top"]])


def test_a_probability_opens_the_receipt_of_its_logit(browser):
    server = Server()
    with opened(browser, server) as page:
        bar = page.locator("ol[aria-label='Most likely tokens'] a").nth(1)
        cell = bar.get_attribute("data-cell")
        bar.click()
        assert receipt_of(page, cell)
        assert server.asked.count("record") == 1
        assert f"receipt {cell}" in server.asked


@pytest.mark.long
def test_the_first_word_that_is_not_sure_is_chosen(browser):
    def answered(probabilities):
        def answer(state):
            found = data.captioned(state)
            for one, p in zip(found["tokens"], probabilities, strict=True):
                one["probability"] = p
            return found

        return answer

    for probabilities, chosen in (((0.9999, 0.9998, 0.3), 1), ((0.9999, 0.7, 0.3), 1), ((0.5, 0.4, 0.3), 0)):
        with opened(browser, Server(answer=answered(probabilities))) as page:
            pressed = page.locator(".tokens button").evaluate_all("all => all.map((one) => one.ariaPressed)")
            assert pressed.index("true") == chosen, probabilities  # the last is the end, no word


def test_options_alone_are_of_the_example(browser):
    server = Server()
    with opened(browser, server, "#o.temperature=0.5"):
        assert server.states[0]["input"] == {"picture": data.scene(), "options": {"temperature": 0.5}}


def test_the_way_from_logits_to_the_token(browser):
    server = Server()
    with opened(browser, server, given("o.temperature=0.8&o.top_k=3")) as page:
        token = data.captioned(server.states[0])["tokens"][0]
        assert server.states[0]["input"]["options"] == {"temperature": 0.8, "top_k": 3}
        rows = page.locator("section[aria-label*=sampled] tbody tr")
        for i, row in enumerate(token["chosen"]["rows"]):
            said = [text.replace("−", "-") for text in rows.nth(i).locator("td").all_inner_texts()]
            assert float(said[0]) == pytest.approx(row["logit"], abs=0.0051)
            assert float(said[1]) == pytest.approx(row["logit"] / 0.8, abs=0.0051)
            assert said[2] == shown(row["probability"])
            assert said[3:] == (
                ["✓", f"{row['final']:.3f}", f"{row['from']:.3f} … {row['to']:.3f}"]
                if row["kept"]
                else ["✗ top-k", "0", ""]
            )
        assert sum(row["kept"] for row in token["chosen"]["rows"]) == 3
        mark = page.locator(".line .mark").bounding_box()
        piece = page.locator(".line .piece.drawn").bounding_box()
        assert piece["x"] <= mark["x"] + mark["width"] / 2 <= piece["x"] + piece["width"]
        assert page.locator(".line .piece").count() == 3
        assert "The random number is 0.5000." in page.inner_text("section[aria-label*=sampled]")


def test_without_a_temperature_the_largest_is_taken(browser):
    with opened(browser, Server(), given("o.temperature=0")) as page:
        assert "the token with the largest logit is taken" in page.inner_text("section[aria-label*=sampled]")
        assert page.locator(".line").count() == 0


def test_a_slider_computes_again(browser):
    server = Server()
    with opened(browser, server) as page:
        page.get_by_label("temperature").fill("0.5")
        until(page, lambda: len(server.states) > 1)
        assert server.states[-1]["input"]["options"] == {"temperature": 0.5}
        page.wait_for_selector("th:text-is('÷ 0.50')")
        page.get_by_label("top-k").focus()
        page.keyboard.press("ArrowRight")
        until(page, lambda: server.states[-1]["input"]["options"].get("top_k") == 1)
        assert "o.temperature=0.5" in page.url  # a link has it


def test_words_of_a_token_are_text(browser):
    def hostile(state):
        answer = data.captioned(state)
        answer["tokens"][0]["text"] = answer["tokens"][0]["top"][0]["label"] = "<img src=x onerror=alert(1)>"
        return answer

    with opened(browser, Server(answer=hostile)) as page:
        assert page.locator(".tokens button").first.inner_text() == "<img src=x onerror=alert(1)>"
        assert page.locator("img[src=x]").count() == 0


# ---- the input


def test_a_drawing_is_what_the_model_is_given(browser):
    server = Server()
    with opened(browser, server) as page:
        before = data.pixels(data.scene())
        page.wait_for_function(
            "() => document.querySelector('.pad canvas').getContext('2d').getImageData(6, 4, 1, 1).data[0] === 255"
        )
        box = page.locator(".pad canvas").bounding_box()

        def at(x, y):
            return (
                box["x"] + (x + 0.5) / data.WIDTH * box["width"],
                box["y"] + (y + 0.5) / data.HEIGHT * box["height"],
            )

        page.mouse.move(*at(1, 12))
        page.mouse.down()
        page.mouse.move(*at(20, 12), steps=4)
        page.mouse.up()
        until(page, lambda: len(server.states) > 1)
        page.wait_for_selector(".result:not(.stale)")
        drawn = data.pixels(server.states[-1]["input"]["picture"])
        assert drawn.shape == (data.HEIGHT, data.WIDTH, 3)
        assert (drawn[12, 2:20] > 200).all()  # white, since the model's pictures are black
        assert (drawn[:10] == before[:10]).all()
        page.get_by_role("button", name="eraser").click()
        page.mouse.click(*at(10, 12))
        until(page, lambda: data.pixels(server.states[-1]["input"]["picture"])[12, 10].max() == 0)
        page.get_by_role("button", name="clear").click()
        until(page, lambda: data.pixels(server.states[-1]["input"]["picture"]).max() == 0)


def test_keys_draw_too(browser):
    server = Server()
    with opened(browser, server) as page:
        page.locator(".sheet").focus()
        for key in ("ArrowLeft", "ArrowUp", "Space"):
            page.keyboard.press(key)
        until(page, lambda: len(server.states) > 1)
        row, column = data.HEIGHT // 2 - 1, data.WIDTH // 2 - 1
        assert data.pixels(server.states[-1]["input"]["picture"])[row, column].tolist() == [255, 255, 255]
        assert page.inner_text(".pad [aria-live]") == f"row {row + 1}, column {column + 1}: 255"


def test_a_file_goes_to_the_server_as_it_is(browser):
    server = Server()
    with opened(browser, server) as page:
        page.set_input_files(
            ".pad input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": b"no picture"}
        )
        server.wrong = Events(("error", {"error": "the picture cannot be read: it is no picture", "status": 415}))
        page.wait_for_selector("form [role=alert]:has-text('it is no picture')")
        assert server.states[-1]["input"]["picture"] == "data:image/png;base64,bm8gcGljdHVyZQ=="
        assert page.locator(".tokens button").count() == 3  # the answer from before stays
        assert page.locator(".result.stale").count() == 1
        server.wrong = None
        page.get_by_role("button", name="a scene").click()
        page.wait_for_selector(".result:not(.stale)")
        page.wait_for_selector("form [role=alert]", state="detached")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(browser):
    server = Server()
    with opened(browser, server) as page:
        page.evaluate("() => { FileReader.prototype.readAsDataURL = () => { throw new Error('it was read') } }")

        def choose(size):
            """A file of so many bytes, made inside the page."""
            page.evaluate(
                """(size) => {
                    const moved = new DataTransfer();
                    moved.items.add(new File([new Uint8Array(size)], "a.png", { type: "image/png" }));
                    document.querySelector(".sheet").dispatchEvent(new DragEvent("drop", { dataTransfer: moved, bubbles: true, cancelable: true }));
                }""",
                size,
            )

        choose(uploads.MOST_BYTES + 1)
        page.wait_for_selector(
            "form [role=alert]:has-text('This file has 10.1 MB, and a picture may have at most 10;')"
        )
        assert len(server.states) == 1
        choose(uploads.MOST_BYTES)  # what the server takes is read
        page.wait_for_selector("form [role=alert]:has-text('it was read')")


def test_a_picture_is_dropped_and_pasted(browser):
    server = Server()
    with opened(browser, server) as page:
        for event, where in (("drop", "dataTransfer"), ("paste", "clipboardData")):
            page.evaluate(
                """([event, where, address]) => {
                    const moved = new DataTransfer(), bytes = Uint8Array.from(atob(address.split(",")[1]), (c) => c.charCodeAt(0));
                    moved.items.add(new File([bytes], event + ".png", { type: "image/png" }));
                    const made = event === "drop" ? new DragEvent("drop", { dataTransfer: moved, bubbles: true, cancelable: true })
                        : new ClipboardEvent("paste", { clipboardData: moved, bubbles: true, cancelable: true });
                    document.querySelector(".sheet").dispatchEvent(made);
                }""",
                [event, where, data.png(np.full((5, 7), 77 if event == "drop" else 99))],
            )
            value = 77 if event == "drop" else 99
            until(page, lambda value=value: data.pixels(server.states[-1]["input"]["picture"]).shape == (5, 7, 3)
                  and data.pixels(server.states[-1]["input"]["picture"])[0, 0, 0] == value)  # fmt: skip


def test_text_is_answered_as_it_is_typed(browser):
    server = Server(data.gpt(), data.continued)
    with opened(browser, server) as page:
        page.get_by_label("text").fill("two five nine")
        until(page, lambda: server.states[-1]["input"]["text"] == "two five nine")
        page.wait_for_selector(".painted span:has-text('nine')")
        assert "text=two%20five%20nine" in page.url


@pytest.mark.long
def test_nothing_moves_while_an_answer_is_computed(browser):
    server = Server(data.gpt(live=False), data.continued)
    held: list[Any] = []
    with mocked(browser, server.replies()) as page:
        page.wait_for_selector(".state:has-text('computed')")

        def where():
            return [page.locator(s).bounding_box() for s in (".tokens", "ol[aria-label='Most likely tokens']", ".plan")]

        before = where()
        page.route("**/api/answer", lambda route: held.append(route))  # it takes long
        page.get_by_label("text").fill("two five")
        page.get_by_role("button", name="Cancel").wait_for()
        assert page.locator(".result.stale[aria-busy=true]").count() == 1
        assert where() == before
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Compute it again").wait_for()
        page.unroute("**/api/answer")
        page.get_by_role("button", name="Compute it again").click()
        page.wait_for_selector(".painted span:has-text('five')")
    assert len(held) == 1


@pytest.mark.long
def test_what_has_arrived_of_a_slow_answer_is_shown(browser):
    server = Server(data.model(live=False))
    with opened(browser, server) as page:
        token = {**data.captioned(server.states[0])["tokens"][0], "text": "first"}
        arrived = "t => Object.assign(pencil.session, { answering: true, partial: { tokens: [t], frames: [] } })"
        page.evaluate(arrived, token)
        until(page, lambda: page.locator(".tokens button").all_inner_texts() == ["first"])
        page.evaluate("() => (pencil.session.answering = false)")
        until(page, lambda: page.locator(".tokens button").count() == 3)


@pytest.mark.long
def test_an_answer_that_breaks_off_is_asked_for_again(browser):
    server = Server()
    with opened(browser, server) as page:
        server.wrong = Events(("progress", {"done": 1, "total": 3, "text": "writing"}))  # and no answer
        page.get_by_label("the caption begins with").fill("a")
        page.wait_for_selector("main [role=alert]:has-text('The server has stopped')")
        server.wrong = None
        page.wait_for_selector(".result:not(.stale)")
        page.wait_for_selector("main [role=alert]", state="detached")


# ---- diffusion


def test_a_picture_comes_out_of_the_noise(browser):
    server = Server(data.dit(), data.denoised)
    with opened(browser, server, reduced_motion="reduce") as page:
        frames = data.denoised(server.states[0])["frames"]

        def large():
            return page.get_attribute(".diffusion figure img", "src")

        assert large() == frames[-1]["picture"]
        page.get_by_label("Step", exact=True).fill("1")
        assert large() == frames[1]["picture"]
        assert page.locator(".diffusion figure img").nth(1).get_attribute("src") == frames[1]["clean"]
        page.get_by_role("button", name="next frame").click()  # nothing moves by itself
        assert large() == frames[2]["picture"]
        page.get_by_role("button", name="Frame 4").click()
        assert large() == frames[3]["picture"]
        until(page, lambda: server.states[-1]["input"].get("options") == {"step": 13})
        page.get_by_label("class").select_option("dog")
        until(page, lambda: server.states[-1]["input"]["label"] == "dog")


def test_the_step_on_screen_is_the_one_recorded_within_the_number_of_steps(browser):
    about = data.dit()
    about["controls"][-1] |= {"value": 8, "least": 1, "most": 50, "within": "steps"}
    server = Server(about, data.denoised)
    with opened(browser, server) as page:
        steps = page.get_by_label("denoising steps")
        assert page.get_by_label("recorded step").count() == 0  # the scrubber chooses it
        assert "now they are of step 8 of 16" in page.inner_text(".diffusion")
        page.get_by_role("button", name="Frame 4").click()
        until(page, lambda: server.states[-1]["input"].get("options") == {"step": 13})
        steps.fill("5")
        until(page, lambda: server.states[-1]["input"].get("options") == {"steps": 5, "step": 5})
