"""The view Learn: the numbers are those of a recorded step, steps are taken by a copy, and the run stays as it is."""

import base64

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from json_shapes import LEARNING, MODEL, TAKEN, check
from served import serving
from small_runs import write_run

from conftest import call, unchecked
from pencil import trace_step
from pencil.api.loading import load
from pencil.config import UserError
from pencil.explore.learning import learning
from pencil.explore.outline import outline
from pencil.explore.session import Session
from pencil.tracing.receipt import format_number
from pencil.train.optim import make_optimizers
from pencil.train.settings import TrainConfig

TEXT = "a dog sat"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def get(name):
        if name not in made:
            made[name] = write_run(name, folder, depth=2 if name == "gpt" else 1)
        return made[name]

    with unchecked():
        yield get


@pytest.fixture(scope="module")
def session(runs):
    return Session.open(runs("gpt"))


def checked(value, shape):
    check(value, shape)
    return value


def asked(target="", steps=0, text=TEXT, rate=1, **more):
    lessons = [{"input": {"text": text}, "target": target, "steps": steps, "rate": rate}] if steps else []
    return {"model": "a", "input": {"text": text}, "edits": [], "lessons": lessons, "step": target, **more}


def seen(session, raw):
    state = session.state(raw)
    session.record_step(state)
    return learning(session, state.key)


def by_hand(run, steps):
    """The run's model after plain steps on the text: without a recording, by the model's own route."""
    loaded = load(run)
    model = loaded.model.requires_grad_(True)
    ids = torch.as_tensor(loaded.tokenizer.encode(TEXT)).long()[None]
    optimizers = make_optimizers(model, TrainConfig()).values()

    def loss(model, ids):
        return F.cross_entropy(model(ids)[0, :-1], ids[0, 1:])

    for _ in range(steps):
        loss(model, ids).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), TrainConfig().clip)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
    return model, loss, ids, list(optimizers)


def test_the_numbers_are_those_of_a_recorded_step(session, runs):
    model, loss, ids, optimizers = by_hand(runs("gpt"), 0)
    t = trace_step(model, loss, (ids,), optimizers, clip=TrainConfig().clip)
    found = checked(seen(session, asked()), LEARNING)
    assert found["loss"] == pytest.approx(t.loss, rel=1e-6)
    right = ids[0, 1:].tolist()
    likely = t["probabilities"].value[range(len(right)), right]
    np.testing.assert_allclose([one["probability"] for one in found["targets"]], likely, rtol=1e-5)
    assert [one["label"] for one in found["targets"]] == [one.replace(" ", "␣") for one in TEXT[1:]]
    assert found["norm"] == pytest.approx(float(t["grad_norm"].value), rel=1e-5)
    assert found["rates"] == {"AdamW": TrainConfig().lr, "Muon": TrainConfig().muon_lr}
    sizes = {name: np.linalg.norm(t.grad[name].value) for name, _ in model.named_parameters()}
    for part in found["parts"]:
        inside = [size for name, size in sizes.items() if name.startswith(part["id"] + ".")]
        assert part["norm"] == pytest.approx(np.linalg.norm(inside), rel=1e-5), part["id"]
    block = next(part for part in found["parts"] if part["id"] == "blocks.1")
    joined = [t.grad[f"blocks.1.attn.w_{one}"].value for one in "qkv"]
    expected = [np.linalg.norm([one[head] for one in joined]) for head in range(3)]
    assert [one["name"] for one in block["heads"]] == ["attn"]
    np.testing.assert_allclose(block["heads"][0]["norms"], expected, rtol=1e-5)
    pair = next(one for one in block["pairs"] if one["name"] == "blocks.1.attn.w_k")
    drawn = np.frombuffer(base64.b64decode(pair["gradient"]), "<f4").reshape(pair["thumb"])
    np.testing.assert_allclose(drawn, np.concatenate(list(joined[1]), -1), rtol=1e-4, atol=1e-7)
    for change in found["changes"]:
        assert change["before"] == t[change["cell"]].value
        assert change["after"] == pytest.approx(float(t.new[change["cell"]].value), rel=1e-5)
        assert change["gradient"] == pytest.approx(float(t.grad[change["cell"]].value), rel=1e-3, abs=1e-7)
    moved = {name: abs(t.new[name].value - t[name].value).max() for name in sizes}
    largest = sorted(moved, key=lambda name: -moved[name])[: len(found["changes"])]
    assert {change["cell"].partition("[")[0] for change in found["changes"]} == set(largest)


def test_a_copy_takes_steps_with_its_moments_and_the_run_stays_as_it_is(session, runs):
    files = {path: path.read_bytes() for path in runs("gpt").rglob("*") if path.is_file()}
    before = session.answer(asked(step=None))
    weights = {name: p.clone() for name, p in session.loaded.model.named_parameters()}
    model, loss, ids, _ = by_hand(runs("gpt"), 2)
    found = seen(session, asked(steps=2))
    assert found["loss"] == pytest.approx(float(loss(model, ids).detach()), rel=1e-5)
    copy = session.trained(session.state(asked(steps=2))).loaded.model
    for (name, one), other in zip(copy.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-4, atol=1e-6, msg=name)
    # the step that is shown is the one that is taken, to the last bit
    shown = session.record_step(session.state(asked(steps=2)))
    third = session.trained(session.state(asked(steps=3))).loaded.model
    assert all((shown.new[name].value == p.detach().numpy()).all() for name, p in third.named_parameters())
    history = checked(seen(session, asked(steps=3))["history"], [TAKEN])
    assert history[2] == {"loss": found["loss"], "probabilities": [one["probability"] for one in found["targets"]]}
    assert history[0]["loss"] > history[1]["loss"] > history[2]["loss"]
    # a tenth of the learning rate is a tenth of the step
    whole, tenth = (
        session.trained(session.state(asked(steps=1, rate=rate))).loaded.model.state_dict() for rate in (1, 0.1)
    )
    for name, old in weights.items():
        torch.testing.assert_close(tenth[name] - old, 0.1 * (whole[name] - old), rtol=1e-3, atol=1e-6, msg=name)
    # a copy that is no longer kept is made again
    fresh = Session.open(runs("gpt"))
    again = fresh.trained(fresh.state(asked(steps=3))).loaded.model
    assert all((one == other).all() for one, other in zip(again.parameters(), third.parameters(), strict=True))
    # every other view of that state is of the copy, and one without lessons of the run
    state = session.state(asked(steps=3, step=None))
    assert session.record(state).array("tokens.weight") == pytest.approx(third.tokens.weight.detach().numpy())
    assert outline(session, state.key)["tensors"]
    assert all((p == weights[name]).all() for name, p in session.loaded.model.named_parameters())
    assert session.answer(asked(step=None))["tokens"] == before["tokens"]
    assert session.answer(state)["tokens"][0]["top"] != before["tokens"][0]["top"]
    assert files == {path: path.read_bytes() for path in runs("gpt").rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("vit", "7"),
        pytest.param("captioner", "a cat above", marks=pytest.mark.long),
        pytest.param("seq2seq", "2026-07-01", marks=pytest.mark.long),
        ("reader", None),
        pytest.param("reader-label", "glad", marks=pytest.mark.long),
    ],
)
def test_each_family_learns_its_target(runs, name, target):
    session = Session.open(runs(name))
    example = session.about()["example"]
    given = {key: value for key, value in example.items() if key != "options"}
    target = given["text"].replace("[mask]", "t") if target is None else target
    raw = {"model": "a", "input": given, "edits": [], "step": target}
    before = checked(seen(session, raw), LEARNING)
    state = session.state({**raw, "lessons": [{"input": given, "target": target, "steps": 3}]})
    history = session.trained(state).history
    assert history[0]["loss"] > history[1]["loss"] > history[2]["loss"]
    assert history[0]["loss"] == before["loss"]
    assert history[0]["probabilities"] == [one["probability"] for one in before["targets"]]


def test_a_diffusion_model_learns_a_noised_image(runs, tmp_path):
    """The numbers are those of the command line, from the same image, time and seed."""
    session = Session.open(runs("dit"))
    about = checked(session.about(), MODEL)
    seven = next(one["picture"] for one in about["target"]["examples"] if one["name"] == "7")
    raw = {"model": "a", "input": {"label": "7"}, "edits": [], "step": f"0.25 3 {seven}"}
    before = checked(seen(session, raw), LEARNING)
    assert before["targets"] == []
    assert len(before["parts"]) > 2
    path = tmp_path / "seven.png"
    path.write_bytes(base64.b64decode(seven.partition(",")[2]))
    shown = call(
        "show", runs("dit"), "grad:head.weight", "--label", "7", "--target", path, "--time", "0.25", "--seed", "3"
    )
    pair = next(one for part in before["parts"] for one in part["pairs"] if one["name"] == "head.weight")
    first = np.frombuffer(base64.b64decode(pair["gradient"]), "<f4")[0]
    assert format_number(float(first), 4) in shown.stdout
    state = session.state({**raw, "lessons": [{"input": {"label": "7"}, "target": raw["step"], "steps": 3}]})
    losses = [one["loss"] for one in session.trained(state).history]
    assert losses[0] == before["loss"] > losses[1] > losses[2]


@pytest.mark.parametrize(
    ("name", "raw", "sentence"),
    [
        ("gpt", asked(text="a"), "write one more"),
        ("gpt", asked(edits=["blocks.0.attn.z[:,1]=0"]), "undo them first"),
        ("vit", asked("a bird", text=None), "a bird is not a class of this run"),
        ("dit", asked("a bird", text=None), "is a time, a seed and a picture"),
        ("dit", asked("0.5 3 data:,", text=None), "a picture is given as data:image/png;base64"),
        ("dit", asked("2 3 data:,", text=None), "--time must be from 0 to 1, not 2"),
        ("dit-video", asked(text=None), "was trained on videos"),
    ],
)
def test_a_step_that_cannot_be_made_is_a_sentence(runs, name, raw, sentence):
    session = Session.open(runs(name))
    given = raw["input"] if raw["input"]["text"] else session.about()["example"]
    with pytest.raises(UserError, match=sentence):
        session.record_step({**raw, "input": given})


def test_over_http_a_step_has_receipts_and_its_lessons_come_one_by_one(session):
    with serving(session) as served:
        raw = asked(steps=4)
        with served.stream("/api/record", raw) as events:
            found = list(events)
        taken = [data for name, data in found if name == "lesson"]
        name, made = found[-1]
        assert (name, made["start"]) == ("outline", "loss")
        view = served.get(f"/api/trace/{made['trace']}/learning").data
        assert checked(view["history"], [TAKEN])[-len(taken) :] == taken != []
        cell = view["changes"][0]["cell"]
        for prefix in ("grad:", "new:"):
            reply = served.get(f"/api/trace/{made['trace']}/receipt?cell={prefix}{cell}").data
            assert reply["agrees"]
            assert reply["terms"]
        assert reply["recorded"] == view["changes"][0]["after"]
        answered = served.post("/api/record", {**raw, "step": None}).data["trace"]
        assert "open the view Learn" in served.get(f"/api/trace/{answered}/learning").error
        for path in ("attention", "picture"):
            assert "training step" in served.get(f"/api/trace/{made['trace']}/{path}").error
        for wrong, sentence in (
            ({"lessons": [{"input": {"text": "a"}, "target": "", "steps": 0}]}, "whole number from 1 to 1000"),
            ({"lessons": [{"input": {"sound": "a"}, "target": "", "steps": 1}]}, "not a part of an input"),
            ({"lessons": asked(steps=700)["lessons"] * 2}, "at most 1000 training steps"),
            ({"step": 7}, "a target must be a text"),
            ({"rate": 0}, "rate must be from 1e-06 to 1000"),
        ):
            assert sentence in served.post("/api/record", {**raw, **wrong}).error


def test_a_picture_of_a_lesson_is_read_as_that_of_the_input(runs):
    session = Session.open(runs("vit"))
    with serving(session) as served:
        given = {"picture": session.about()["example"]["picture"]}
        raw = {"model": "a", "input": given, "lessons": [{"input": given, "target": "3", "steps": 1}]}
        likely = [
            {one["label"]: one["probability"] for one in served.post("/api/answer", state).data["classes"]}
            for state in ({**raw, "lessons": []}, raw)
        ]
        assert likely[1]["3"] > likely[0]["3"]
        raw["lessons"][0]["input"] = {"picture": "data:image/png;base64,AAAA"}
        assert "picture" in served.post("/api/answer", raw).error
