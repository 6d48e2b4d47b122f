"""The tour of a model: every number of every sentence is a number of the trace, and no sentence has one of its own."""

import math
import re

import pytest

from explore.small_runs import FIRST, write_run
from pencil.explore.session import Session
from pencil.explore.tour import needs, pieces, steps, tour
from pencil.tracing.receipt_text import format_number

TEN = ["input", "vector", "query", "softmax", "values", "heads", "residual", "mlp", "logits", "drawn"]
# models whose blocks are built otherwise: the tour tells of them in other words
OTHERS = {
    "post-norm": ("reader", dict(norm_position="post")),
    "grouped": ("gpt", dict(kv_heads=1, activation="swiglu", norm="rms", positions="alibi")),
    "mean": ("vit-mean", {}),
    "label": ("reader-label", {}),
    "vector": ("reader-vector", {}),
    "drawn from words": ("dit-text", {}),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The tours of small runs, each with the trace and the answer it was made from."""
    made, folder = {}, tmp_path_factory.mktemp("runs")

    def open_(name):
        if name not in made:
            kind, changed = OTHERS.get(name, (name, {}))
            session = Session.open(write_run(kind, folder / name.replace(" ", "-"), **changed))
            state = session.state({"input": session.about()["example"]})
            made[name] = (tour(session, state.key) if session.record(state) else None, session, state)
        return made[name]

    return open_


def slots(value):
    """Everything with a kind, however deep."""
    if isinstance(value, dict):
        if "kind" in value and value["kind"] in ("cell", "size", "place", "answer", "derived", "word"):
            yield value
        for inner in value.values():
            yield from slots(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from slots(inner)


def at(answer, way):
    for part in way.split("."):
        answer = answer[int(part)] if part.isdecimal() else answer[part]
    return answer


@pytest.mark.parametrize("name", [*FIRST, *OTHERS])
def test_every_number_is_one_of_the_trace(opened, name):
    made, session, state = opened(name)
    trace, answer = session.trace(state.key), session.answer(state)
    assert [step["id"] for step in made["steps"]] == TEN
    kinds = set()
    for slot in slots(made):
        kinds.add(slot["kind"])
        if slot["kind"] == "cell":
            assert slot["value"] == float(trace[slot["cell"]].value)
        elif slot["kind"] == "size":
            shape = trace.graph.nodes[trace.find(slot["cell"])].shape
            products = {math.prod(shape[i:j]) for i in range(len(shape)) for j in range(i + 1, len(shape) + 1)}
            assert slot["value"] in products
        elif slot["kind"] == "answer":
            assert slot["value"] == at(answer, slot["cell"])
    assert {"cell", "size"} <= kinds
    for step in made["steps"]:
        if step["address"]["cell"]:
            assert trace[step["address"]["cell"]].flat.size == 1


@pytest.mark.parametrize("name", [*FIRST, *OTHERS])
def test_every_question_has_one_answer_and_a_reason_for_each_mistake(opened, name):
    for step in opened(name)[0]["steps"]:
        question = step["question"]
        assert question["why"]
        if question["kind"] == "choice":
            assert sum(choice["right"] for choice in question["choices"]) == 1
            assert all(choice["why"] for choice in question["choices"])
            shown = [str(choice["text"]) for choice in question["choices"]]
            assert len(set(shown)) == len(shown)
            continue
        answer, allowed = question["answer"]["value"], question["allowed"]
        assert math.isfinite(answer)
        assert len({one["value"] for one in question["mistakes"]}) == len(question["mistakes"])
        assert all(one["value"] != answer and one["why"] for one in question["mistakes"])
        # whoever computes with the four digits that are shown is right
        assert abs(float(format_number(answer).replace("−", "-")) - answer) <= allowed or allowed == 0


def test_what_is_derived_follows_from_the_numbers_beside_it(opened):
    made, _, _ = opened("captioner")
    by_id = {step["id"]: step for step in made["steps"]}

    def numbers(pieces):
        return [one["value"] for one in pieces if isinstance(one, dict) and one["kind"] in ("cell", "answer", "size")]

    one, two = numbers(by_id["softmax"]["question"]["ask"])
    assert by_id["softmax"]["question"]["answer"]["value"] == pytest.approx(1 - one - two)
    value, weight = numbers(by_id["values"]["question"]["ask"])
    assert by_id["values"]["question"]["answer"]["value"] == pytest.approx(value * weight)
    before, added = numbers(by_id["residual"]["question"]["ask"])
    assert by_id["residual"]["question"]["answer"]["value"] == pytest.approx(before + added, abs=1e-5)
    raw, width = numbers(by_id["query"]["question"]["ask"])
    assert by_id["query"]["question"]["answer"]["value"] == pytest.approx(raw / width**0.5, rel=1e-5)


def test_the_tour_tells_of_the_model_and_not_of_its_family(opened):
    def told(name):
        return {step["id"]: step["title"] for step in opened(name)[0]["steps"]}

    assert told("captioner")["input"] == told("vit")["input"] != told("gpt")["input"]
    assert told("seq2seq")["query"] == "A query meets the keys of the source"
    assert told("dit")["residual"] == told("drawn from words")["residual"] != told("gpt")["residual"]
    assert told("post-norm")["residual"] == "Added, then normalised"
    assert told("reader")["drawn"] == "The likeliest token fills the gap"


def test_no_step_has_a_number_of_its_own():
    def texts(value, name=""):
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict):
            for key, inner in value.items():
                yield from texts(inner, key)
        elif isinstance(value, list):
            for inner in value:
                yield from texts(inner, name)

    for step in steps():
        for name, text in texts(step):
            assert not re.search(r"\d", text), (step["id"], name, text)
        assert step["minutes"] > 0
    # a step without a way for some model would be missing from its tour
    assert {step["id"] for step in steps()} == set(TEN)
    assert all(needs(step) for step in steps())


def test_a_sentence_is_cut_at_its_slots():
    from pencil.explore.tour import Slot

    slots = {"a": Slot("word", text="x"), "b": Slot("cell", value=0.5, cell="t[0]")}
    assert pieces("{a} is {b}.", slots) == [
        {"kind": "word", "text": "x"},
        " is ",
        {"kind": "cell", "value": 0.5, "cell": "t[0]"},
        ".",
    ]
