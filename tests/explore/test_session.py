"""What the page shows, as data: of every family, of the right shape, and the same numbers as computed apart."""

import base64
import hashlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from json_shapes import (
    ANSWER,
    ATTENTION,
    CHANGED,
    DIFFERENCE,
    MODEL,
    OUT_TOKEN,
    OUTLINE,
    RECEIPT,
    SLICE,
    check,
)  # fmt: skip
from PIL import Image
from safetensors.torch import load_file
from small_runs import FIRST, RUNS, write_run

import pencil
from conftest import call
from pencil import predict
from pencil.api.loading import load
from pencil.api.verifying import verify_run
from pencil.config import UserError
from pencil.data.images.decoding import FITTED
from pencil.explore.ablations import ablations
from pencil.explore.answers import Listener, Stopped
from pencil.explore.attention_views import attention as attention_of
from pencil.explore.attention_views import shrunk
from pencil.explore.cells import compare, compare_edit, tensor_slice
from pencil.explore.cells import receipt as receipt_of
from pencil.explore.outline import outline as outline_of
from pencil.explore.session import Session
from pencil.explore.training import along, training
from pencil.explore.uploads import plain_png
from pencil.learn.heads.kept import score_heads
from pencil.runs import snapshots
from pencil.train.loop import checkpoint

EVERY = [name if name in FIRST else pytest.param(name, marks=pytest.mark.long) for name in RUNS]


def long(*values):
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def get(name):
        if name not in made:
            made[name] = write_run(name, folder)
        return made[name]

    return get


@pytest.fixture(scope="module")
def sessions(runs):
    made = {}

    def get(name):
        if name not in made:
            made[name] = Session.open(runs(name))
        return made[name]

    return get


def first(session, **options):
    """The state of the first example; short, since many are recorded."""
    given = session.profile.examples(session.loaded)[0][1]
    if session.profile.draws:
        options = {"steps": 3, "step": 2, **options}
    elif session.profile.writes:
        options = {"tokens": 4, **options}
    return {"model": session.id, "input": {**given, "options": options}, "edits": []}


def floats(text, dtype, *shape):
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def softmax(z):
    z = np.exp(np.asarray(z, np.float64) - np.max(z))
    return z / z.sum()


def pixels(address):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))))


# ---- every view of every family


@pytest.mark.parametrize("name", EVERY)
def test_every_view_has_its_shape(sessions, name):
    session = sessions(name)
    about, state = session.about(), first(session)
    check(about, MODEL, "model")
    events = []
    found = session.answer(state, Listener(lambda kind, content: events.append((kind, content))))
    check(found, ANSWER, "answer")
    kind = {"tokens": "tokens", "classes": "classes", "picture": "frames", "vector": "vector"}[about["output"]]
    assert found[kind]
    for kind, content in events:
        assert kind in ("progress", "token", "frame")
        if kind == "token":
            check(content, OUT_TOKEN)
    assert [c for k, c in events if k == "token"] == (found["tokens"] if session.profile.writes else [])
    assert [c for k, c in events if k == "frame"] == found.get("frames", [])
    key, trace = session.state(state).key, session.record(state)
    outline = outline_of(session, key)
    check(outline, OUTLINE, "outline")
    assert outline["labels"]["T"] == found["words"]
    receipt = receipt_of(session, key, outline["start"])
    check(receipt, RECEIPT, "receipt")
    assert receipt["agrees"]
    attention = attention_of(session, key)
    check(attention, ATTENTION, "attention")
    for group in attention["groups"]:
        for layer in group["layers"]:
            assert len(layer["heads"]) == about["heads"]
            floats(layer["heads"][0]["thumbnail"], np.uint8, *layer["thumb"])
    pattern = attention["groups"][0]["layers"][0]["name"]
    part = tensor_slice(session, key, pattern)
    check(part, SLICE, "slice")
    np.testing.assert_array_equal(floats(part["values"], "<f8", *part["shape"]), trace.array(pattern)[0, 0])
    edit = pattern.replace("pattern", "z") + "[:,1]=0"
    changed = compare_edit(session, state, edit)
    check(changed, CHANGED, "changed")
    assert changed["first"] == edit.partition("[")[0]
    assert changed["after"]["state"]["edits"] == [edit]
    json.dumps([outline, changed], allow_nan=False)


@pytest.mark.parametrize("name", EVERY)
def test_the_map_has_every_parameter_and_every_value_once(sessions, name):
    session = sessions(name)
    state = first(session)
    session.record(state)
    outline = outline_of(session, session.state(state).key)
    leaves, values, blocks = {}, [], []

    def walk(node):
        for child in node["children"]:
            walk(child)
        if "shape" in node:
            leaves[node["path"]] = node["parameters"]
        else:
            values.extend(node["tensors"])
        if node["kind"] == "block":
            blocks.append(node["path"])
            assert {"attention", "mlp"} <= {child["kind"] for child in node["children"]}

    walk(outline["map"])
    model = session.loaded.model
    assert leaves == {path: p.numel() for path, p in model.named_parameters()}
    assert outline["map"]["parameters"] == session.about()["parameters"] == sum(leaves.values())
    named = [one["name"] for one in outline["tensors"] if one["named"] and one["kind"] != "weight"]
    assert sorted(values) == sorted(named)
    assert "logits" in named or "patches_out" in named or "encoder.out" in named
    assert [path for path in blocks if path.startswith("blocks.")] == [
        f"blocks.{i}" for i in range(model.config.depth)
    ] or blocks
    assert not any(set("⟨⟩{}|") & set(node_formula) for node_formula in _formulas(outline["map"]))


def _formulas(node):
    yield node.get("formula", "")
    for child in node["children"]:
        yield from _formulas(child)


# ---- the answer is that of `pencil sample`


def test_a_text_is_the_one_that_sample_writes(sessions, runs):
    session = sessions("gpt")
    for options, words in (
        ({"temperature": 0.8}, []),
        ({"temperature": 1.3, "top_k": 7, "seed": 5}, ["--temperature", "1.3", "--top-k", "7", "--seed", "5"]),
        ({"temperature": 1.5, "top_p": 0.7, "seed": 2}, ["--temperature", "1.5", "--top-p", "0.7", "--seed", "2"]),
        ({"temperature": 1.1, "min_p": 0.05}, ["--temperature", "1.1", "--min-p", "0.05"]),
        ({"temperature": 0}, ["--temperature", "0"]),
    ):
        found = session.answer({"input": {"text": "the cat", "options": {"tokens": 11, **options}}})
        printed = call("sample", runs("gpt"), "--prompt", "the cat", "--max-new-tokens", "11", *words).stdout
        assert printed.rstrip("\n") == "the cat" + found["text"].rstrip("\n")
        assert len(found["tokens"]) == 11


def test_a_description_and_a_translation_are_those_of_sample(sessions, runs, tmp_path):
    session = sessions("captioner")
    given = session.about()["example"]
    path = tmp_path / "one.png"
    path.write_bytes(base64.b64decode(given["picture"].partition(",")[2]))
    found = session.answer({"input": {**given, "options": {"tokens": 9}}})
    assert found["text"] == predict(runs("captioner"), path, max_new_tokens=9).new
    np.testing.assert_array_equal(pixels(found["picture"]), pixels(given["picture"]))
    # a photo of more pixels than the model reads, as it comes by the server
    photo = np.kron(np.random.default_rng(0).integers(256, size=(31, 37, 3)), np.ones((41, 43, 1))).astype(np.uint8)
    path = tmp_path / "photo.jpeg"
    Image.fromarray(photo).save(path)
    sent = FITTED + base64.b64encode(plain_png(path.read_bytes(), session.transform)).decode()
    found = session.answer({"input": {"picture": sent, "options": {"tokens": 9}}})
    assert found["text"] == predict(runs("captioner"), path, max_new_tokens=9).new
    source = sessions("seq2seq").about()["example"]["source"]
    found = sessions("seq2seq").answer({"input": {"source": source, "options": {"temperature": 0.9, "seed": 3}}})
    assert found["text"] == predict(runs("seq2seq"), source, temperature=0.9, seed=3).new


@pytest.mark.parametrize("name", ["dit", "dit-text", "dit-video", "dit-none"])
def test_a_picture_is_the_one_that_sample_draws(sessions, runs, name):
    session = sessions(name)
    given = session.about()["example"]
    guided = session.loaded.model.config.null_condition
    found = session.answer({"input": {**given, "options": {"steps": 4, "seed": 6}}})
    drawn = predict(
        runs(name), next(iter(given.values()), None), steps=4, seed=6, **({"guidance": 3.0} if guided else {})
    )
    drawn = np.concatenate([np.asarray(one) for one in drawn], 1) if isinstance(drawn, list) else np.asarray(drawn)
    np.testing.assert_array_equal(pixels(found["picture"]), drawn)
    assert [one["step"] for one in found["frames"]] == [0, 1, 2, 3, 4]
    # the step whose numbers are opened is one of these
    assert session.state({"input": {**given, "options": {"steps": 4}}}).options["step"] == 4
    with pytest.raises(UserError, match="step must be at most steps, 4, not 7"):
        session.state({"input": {**given, "options": {"steps": 4, "step": 7}}})
    assert found["frames"][-1]["picture"] == found["picture"]
    assert found["frames"][0]["picture"] != found["frames"][0]["clean"]


def test_classes_and_masked_words_are_the_softmax_of_their_logits(sessions):
    for name in ("vit", "reader-label"):
        session = sessions(name)
        state = first(session)
        bars, logits = session.answer(state)["classes"], np.asarray(session.record(state).logits[0])
        assert sorted(bar["id"] for bar in bars) == list(range(len(logits)))
        p = softmax(logits)
        for bar in bars:
            assert bar["probability"] == pytest.approx(p[bar["id"]], rel=1e-5)
            assert bar["cell"] == f"logits[0,{bar['id']}]"
            assert bar["label"] == session.loaded.classes[bar["id"]]
        assert bars[0]["id"] == int(logits.argmax())
    session = sessions("reader")
    found = session.answer({"input": {"text": "th[mask] cat s[mask]t"}})
    assert [one["position"] for one in found["tokens"]] == [2, 9]
    for one in found["tokens"]:
        logits = np.asarray(session.record({"input": {"text": "th[mask] cat s[mask]t"}}).logits[0, one["position"]])[
            :-1
        ]
        assert one["id"] == int(logits.argmax())
        assert one["probability"] == pytest.approx(softmax(logits)[one["id"]], rel=1e-5)


def test_a_vector_is_that_of_embed_and_the_nearest_comes_first(sessions, runs):
    session = sessions("reader-vector")
    texts = ["the cat sat", "a dog ran", "the cat sat.", "1999"]
    found = session.answer({"input": {"text": "\n".join(texts)}})
    from pencil.api.predict import embed

    vectors = embed(runs("reader-vector"), texts).double().numpy()
    np.testing.assert_allclose(found["vector"], vectors[0], rtol=1e-6)
    alike = {
        t: v @ vectors[0] / np.linalg.norm(v) / np.linalg.norm(vectors[0])
        for t, v in zip(texts[1:], vectors[1:], strict=True)
    }
    assert [one["text"] for one in found["nearest"]] == sorted(alike, key=alike.get, reverse=True)
    for one in found["nearest"]:
        assert one["similarity"] == pytest.approx(alike[one["text"]], abs=1e-6)


# ---- cells of the answer are cells of the trace


@pytest.mark.parametrize("name", ["gpt", "captioner", "seq2seq"])
def test_each_tokens_cell_holds_its_logit_and_its_place(sessions, name):
    session = sessions(name)
    state = first(session, temperature=0.9, tokens=7)
    found, trace = session.answer(state), session.record(state)
    shift = trace.facts.get("first_word", 0) if name == "captioner" else 0
    for i, one in enumerate(found["tokens"]):
        for bar in one["top"]:
            assert float(trace[bar["cell"]]) == pytest.approx(bar["logit"], abs=2e-5)
        at = trace.locate(one["cell"])[1]
        assert one["position"] == at[1] + shift
        assert at[2] == one["id"]
        p = softmax(trace.array("logits")[0, at[1]])
        assert one["probability"] == pytest.approx(p[one["id"]], rel=1e-4)
        # the next token read is the one that was written here
        if i + 1 < len(found["tokens"]):
            assert int(trace.array("tokens")[0, at[1] + 1]) == one["id"]


# ---- attention


def test_heads_are_measured_once_and_kept_beside_the_run(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    run = Path(shutil.copytree(run, tmp_path / "run"))
    of_run = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    state = {"input": {"text": "the", "options": {"tokens": 1}}, "edits": []}

    def measured(ask, folder=run):
        session = Session.open(folder)
        session.record(state)
        told = []
        found = attention_of(session, session.state(state).key, ask, Listener(lambda kind, data: told.append(data)))
        return [head for group in found["groups"] for layer in group["layers"] for head in layer["heads"]], told

    assert all(head["score"] is None for head in measured(False)[0])
    first, told = measured(True)
    loaded = load(run)
    report = score_heads(loaded)
    done = [data["done"] for data in told if data["text"] == "measuring what heads do"]
    assert done[: report.texts] == [*range(report.texts)]
    for head, own in zip(first, report.heads, strict=True):
        best = max(
            (one for name, one in own.scores.items() if name != "broad"), key=lambda one: one.mean - one.baseline
        )
        assert (head["score"], head["baseline"], head["names"]) == (best.mean, best.baseline, list(own.names))
    assert {path.name for path in run.iterdir() if path.is_file()} == {*of_run, "heads.json"}
    assert not [fault for _, fault in verify_run(run) if fault is not None]
    with monkeypatch.context() as patched:  # from here on nothing is measured
        patched.setattr("pencil.learn.heads.kept.measure", None)
        assert measured(False) == (first, [])
        (run / "heads.json").write_text((run / "heads.json").read_text()[:-9])  # a damaged file is none
        assert all(head["score"] is None for head in measured(False)[0])
    # a folder that cannot be written: the cache has them
    (run / "heads.json").unlink()
    (run / "heads.json").mkdir()
    measured(True)
    (kept,) = (tmp_path / "cache" / "heads").iterdir()
    assert (
        json.loads(kept.read_text())["weights"] == hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
    )
    with monkeypatch.context() as patched:
        patched.setattr("pencil.learn.heads.kept.measure", None)
        assert measured(False)[0] == first
        (run / "heads.json").rmdir()
        shutil.copy(kept, run / "heads.json")
        with torch.no_grad():
            next(loaded.model.parameters()).add_(1)
        loaded.run.write_weights(loaded.model, {"step": 7})
        assert all(head["score"] is None for head in measured(False)[0])


def test_a_thumbnail_is_the_mean_of_areas():
    rng = np.random.default_rng(0)
    values = rng.random((96, 144))
    np.testing.assert_allclose(shrunk(values), values.reshape(48, 2, 48, 3).mean((1, 3)))
    odd = rng.random((53, 101))
    whole = np.kron(odd, np.ones((48, 48))).reshape(48, 53, 48, 101).mean((1, 3))
    np.testing.assert_allclose(shrunk(odd), whole)
    np.testing.assert_array_equal(shrunk(values[:5, :7]), values[:5, :7])


# ---- slices, receipts, comparison


def test_slices_of_any_axes_with_their_labels(sessions):
    session = sessions("gpt")
    state = first(session, tokens=3)
    key, trace = session.state(state).key, session.record(state)
    whole = trace.array("blocks.1.attn.q")
    part = tensor_slice(session, key, "blocks.1.attn.q", "0,:,4,:")
    np.testing.assert_array_equal(floats(part["values"], "<f8", *part["shape"]), whole[0, :, 4])
    assert part["index"] == [0, None, 4, None]
    assert (part["low"], part["high"]) == (whole[0, :, 4].min(), whole[0, :, 4].max())
    part = tensor_slice(session, key, "blocks.1.attn.scores", [0, 2, None, None])
    assert part["rows"] == part["columns"] == trace.labels["T"]
    assert np.isinf(floats(part["values"], "<f8", *part["shape"])).any()
    assert np.isfinite(part["low"])
    part = tensor_slice(session, key, "logits", "0,:,3")
    assert part["shape"] == [whole.shape[2]]
    part = tensor_slice(session, key, "logits", "0,2,3")
    assert floats(part["values"], "<f8", 1)[0] == trace.array("logits")[0, 2, 3]
    other = session.record({**state, "edits": ["blocks.0.attn.z[:,1]=0"]})
    part = tensor_slice(session, key, "logits", "0,:,:", other)
    np.testing.assert_allclose(
        floats(part["values"], "<f8", *part["shape"]), trace.array("logits")[0].astype(float) - other.array("logits")[0]
    )
    for index in ("0,:,:,:", "0,:", "9,:,:", "x,:,:", "0,-1,:"):
        with pytest.raises(UserError):
            tensor_slice(session, key, "logits", index)


def test_a_receipts_terms_are_links_to_receipts(sessions):
    session = sessions("gpt")
    state = first(session, tokens=3)
    key, trace = session.state(state).key, session.record(state)
    found = receipt_of(session, key, "blocks.0.attn.scores[0,1,3,2]")
    assert found["cell"] == "blocks.0.attn.scores[0,1,3,2]"
    assert {one["cell"].partition("[")[0] for one in found["terms"]} == {
        f"blocks.0.attn.{x}" for x in ("q", "k", "mask")
    }
    for one in found["terms"]:
        assert one["value"] == pytest.approx(float(trace[one["cell"]]))
    q, k = trace.array("blocks.0.attn.q")[0, 1, 3], trace.array("blocks.0.attn.k")[0, 1, 2]
    assert found["recorded"] == pytest.approx(q @ k / np.sqrt(8), rel=1e-5)
    masked = receipt_of(session, key, "blocks.0.attn.scores[0,1,2,3]")
    assert masked["masked"]
    assert masked["recorded"] == "-inf"


@pytest.mark.long
def test_two_inputs_two_checkpoints_and_two_models_compared(sessions, runs, tmp_path):
    session = sessions("gpt")
    one = session.record({"input": {"text": "the cat sat", "options": {"tokens": 1}}})
    other = session.record({"input": {"text": "the dog sat", "options": {"tokens": 1}}})
    found = compare(one, other)
    check(found, DIFFERENCE)
    assert found["first"] == "tokens"
    for row in found["tensors"]:
        a, b = one.array(row["name"]).astype(float), other.array(row["name"]).astype(float)
        with np.errstate(invalid="ignore"):
            gap = np.nan_to_num(np.abs(a - b))
        assert row["counted"] == (row["name"] == "tokens")
        assert row["most"] == ((gap > 0).sum() if row["counted"] else gap.max())
        index = one.locate(row["cell"])[1]
        assert gap[index] == gap.max()
    assert found["only_a"] == found["only_b"] == []
    deeper = Session.open(write_run("gpt", tmp_path, depth=4, width=30), "b")
    found = compare(one, deeper.record({"input": {"text": "the cat sat", "options": {"tokens": 1}}}))
    check(found, DIFFERENCE)
    assert "blocks.3.attn.pattern" in found["only_b"]
    assert any("shapes differ" in note for note in found["notes"])
    assert "blocks.0.attn.pattern" in {row["name"] for row in found["tensors"]}


# ---- edits


@pytest.mark.parametrize(
    "name, edit",
    [
        long("gpt", "blocks.1.attn.z[:,2]=0"), ("gpt", "tokens[0,3]=5"), ("gpt", "tokens.weight[7]=0.5"),
        long("gpt", "blocks.0.attn.pattern[0,1,6,:4]=0.25"), ("gpt", "logits[0,5,9]=50"), long("gpt", "blocks.0.attn.w_q[1]=0"),
        ("captioner", "given.picture[0,0,3:9,4]=1"), ("captioner", "blocks.1.mlp.out[0,patch 2,3]=0"),
        long("captioner", "blocks.0.attn.mask[0,0,18:,1:17]=-1e9"),
        long("seq2seq", "blocks.0.cross.z[:,1]=0"), long("seq2seq", "encoder.blocks.1.post[0,2]=1"),
        long("vit", "blocks.0.attn.z[:,2]=0"), ("vit", "picture[0,0,2,3]=1"), ("vit", "head.bias[3]=9"),
        ("reader", "encoder.blocks.0.attn.z[:,2]=0"), long("reader-label", "encoder.blocks.0.attn.z[:,2]=0"),
        ("gpt", "blocks.1.attn.z[:,2]=mean"), ("gpt", "blocks.0.mlp.out=noise:0.5:7"), ("gpt", "blocks.1.post[0,2:]=patch"),
        ("captioner", "blocks.1.attn.z[:,1]=mean"), long("seq2seq", "encoder.blocks.0.attn.z[:,1]=mean"),
        long("seq2seq", "encoder.blocks.1.post=patch"), long("reader", "encoder.blocks.0.mlp.out=noise:0.5"),
    ],
)  # fmt: skip
def test_an_edited_answer_is_that_of_the_edited_trace(sessions, name, edit):
    """The untraced pass with an edit, token by token, gives the logits that the edited trace recorded."""
    session = sessions(name)
    state = first(session, **({"tokens": 6} if session.profile.writes else {}))
    changed = {**state, "edits": [edit]}
    if edit.endswith("patch"):  # from the second example, as it stands
        changed["other"] = {**session.profile.examples(session.loaded)[1][1], "options": state["input"]["options"]}
    before = {p: t.clone() for p, t in session.loaded.model.state_dict().items()}
    found = session.answer(changed)
    assert all(torch.equal(t, before[p]) for p, t in session.loaded.model.state_dict().items())
    trace = session.record(changed)
    plain = session.record(state)
    assert trace.array("logits").shape != plain.array("logits").shape or not np.allclose(
        trace.array("logits"), plain.array("logits")
    )
    for bar in [bar for one in found.get("tokens", ()) for bar in one["top"]] or found["classes"]:
        assert float(trace[bar["cell"]]) == pytest.approx(bar["logit"], abs=3e-5)


def test_a_mean_is_over_the_positions_seen_and_a_patch_is_what_the_other_input_has(sessions):
    session = sessions("gpt")
    options = {"tokens": 1}
    state = {"input": {"text": "the cat sat", "options": options}, "edits": []}
    plain = session.record(state)
    z = plain.array("blocks.1.attn.z")
    mean = session.record({**state, "edits": ["blocks.1.attn.z[:,2]=mean"]}).array("blocks.1.attn.z")
    for t in range(z.shape[2]):
        np.testing.assert_allclose(mean[0, 2, t], z[0, 2, : t + 1].mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.delete(mean, 2, 1), np.delete(z, 2, 1))
    noisy = [
        session.record({**state, "edits": [f"blocks.0.mlp.out=noise:0.5:{seed}"]}).array("blocks.0.mlp.out")
        for seed in (7, 7, 8)
    ]
    np.testing.assert_array_equal(*noisy[:2])
    for drawn in (noisy[0], noisy[2]):
        assert np.std(drawn - plain.array("blocks.0.mlp.out")) == pytest.approx(0.5, rel=0.15)
    assert np.corrcoef(noisy[0].ravel(), noisy[2].ravel())[0, 1] < 0.99
    # all of the stream after a block from a shorter input: what follows is computed from it where it has positions
    other = {"text": "the dog", "options": options}
    patched = session.record({**state, "edits": ["blocks.2.post=patch"], "other": other})
    source = session.record({"input": other})
    length = source.array("blocks.2.post").shape[1]
    assert length < z.shape[2]
    np.testing.assert_allclose(patched.array("logits")[:, :length], source.array("logits"), atol=1e-4)
    np.testing.assert_allclose(patched.array("logits")[:, length:], plain.array("logits")[:, length:], atol=1e-4)
    same = pencil.trace(str(session.folder), "the cat sat").edit("blocks.1.attn.z[:,2]", "mean")
    np.testing.assert_allclose(same.array("blocks.1.attn.z"), mean, atol=1e-6)
    assert same.edits == ("blocks.1.attn.z[:,2]=mean",)


def test_every_head_switched_off_in_turn(sessions, monkeypatch):
    """Each as the same model computes it when the head's part of the projection's input is set to 0 by a hook."""
    session = sessions("gpt")
    state = first(session, tokens=3)
    answer = session.answer(state)
    token, heads = answer["tokens"][1], session.about()["heads"]
    told = []
    found = ablations(session, state, token["cell"], listener=Listener(lambda kind, data: told.append(data)))
    trace, (row, column) = session.record(state), session.record(state).locate(token["cell"])[1][1:]
    (tokens,), model = trace.traced_model.inputs, session.loaded.model

    def run(layer=None, head=None):
        def off(module, given):
            rows = given[0].clone().unflatten(-1, (heads, -1))
            rows[..., head, :] = 0
            return (rows.flatten(-2), *given[1:])

        hook = None if layer is None else model.blocks[layer].attn.out.register_forward_pre_hook(off)
        with torch.no_grad():
            z = model(tokens)[0, row].double().numpy()
        if hook is not None:
            hook.remove()
        return z[column], softmax(z)[column]

    np.testing.assert_allclose((found["value"], found["probability"]), run(), atol=2e-5)
    assert [(one["layer"], one["head"]) for one in found["heads"]] == [(i, h) for i in range(3) for h in range(heads)]
    for one in found["heads"]:
        value, share = run(one["layer"], one["head"])
        np.testing.assert_allclose((one["value"], one["probability"]), (value, share), atol=2e-5)
        assert one["change"] == pytest.approx(one["value"] - found["value"])
    # the edit that the page then makes gives the same number on the same tokens
    last = found["heads"][-1]
    assert float(trace.edit(last["edit"].removesuffix("=0"), 0)[token["cell"]]) == pytest.approx(
        last["value"], abs=3e-5
    )
    done = [data["done"] for data in told if "one head off" in data.get("text", "")]
    assert done == [*range(len(found["heads"]))]
    stopped = iter([False, False, True])
    with pytest.raises(Stopped):
        ablations(session, state, token["cell"], listener=Listener(stopped=lambda: next(stopped)))
    for cell, to, words in (("logits[0,1]", "0", "not one number"), (token["cell"], "7", "0 or to its mean")):
        with pytest.raises(UserError, match=words):
            ablations(session, state, cell, to)


def test_edits_that_cannot_be_made_are_refused(sessions):
    session = sessions("gpt")
    state = first(session, tokens=3)
    for edit, words in (
        ("blocks.0.attn.z[:,2]", "is not an edit"),
        ("blocks.0.attn.zz[:,2]=0", "blocks.0.attn.z"),
        ("blocks.0.attn.z[:,9]=0", "no such cell"),
        ("blocks.0.attn.z[0,0,zebra]=0", "zebra"),
        ("tokens[0,1]=4000", r"id of a token: give a whole number from 0 to \d+, not 4000"),
        ("tokens[0,1]=1.5", "a whole number from 0"),
        ("blocks.0.mlp.up.weight=mean", "no axis of positions"),
        ("blocks.0.post=noise:-1", "is no noise"),
        ("blocks.0.post=patch", "a second input: name one"),
        ("tokens=mean", "which are no quantities"),
        ("blocks.0.attn.z[0,0,0,0]=1e39", r"as float32 it is at most 3\.4e\+38; give a smaller number, or inf"),
    ):
        with pytest.raises(UserError, match=words):
            session.answer({**state, "edits": [edit]})


def test_an_edit_that_changes_the_text_is_compared_on_the_text_before(sessions):
    session = sessions("gpt")
    state = first(session, tokens=5, temperature=0)
    found = compare_edit(session, state, "blocks.0.mlp.out=0")
    assert found["before"]["text"] != found["after"]["text"]
    assert any("differ in their tokens" in note for note in found["notes"])
    assert found["first"] == "blocks.0.mlp.out"
    assert {row["name"] for row in found["tensors"]} >= {"blocks.1.attn.pattern", "logits"}
    assert not any(row["name"] == "tokens" for row in found["tensors"])


# ---- states, keys, what is kept


def test_a_key_is_of_model_input_options_and_edits(sessions, runs):
    session = sessions("gpt")
    state = {"input": {"text": "a"}, "edits": []}
    same = {"model": "a", "input": {"text": "a", "options": {"tokens": 12}}}
    assert session.state(state).key == session.state(same).key
    others = [
        {"input": {"text": "b"}},
        {"input": {"text": "a", "options": {"seed": 1}}},
        {"input": {"text": "a"}, "edits": ["logits[0,0,0]=1"]},
    ]
    assert len({session.state(one).key for one in [state, *others]}) == 4
    assert Session.open(runs("gpt"), "b").state(state).key == session.state(state).key


def test_bad_states_are_refused_in_a_sentence(sessions):
    session = sessions("gpt")
    for raw, words in (
        ("x", "a state is"),
        ({"input": 3}, "the input of a state"),
        ({"input": {"picture": "data:"}}, "takes no picture"),
        ({"input": {"text": 3}}, "is a text"),
        ({"input": {"text": "a", "options": {"tokens": 0}}}, "from 1 to 31"),
        ({"input": {"text": "a", "options": {"tokens": 1.5}}}, "whole"),
        ({"input": {"text": "a", "options": {"tokens": float("nan")}}}, "is a number"),
        ({"input": {"text": "a", "options": {"token": 2}}}, "did you mean tokens"),
        ({"input": {"text": "a"}, "edits": "x=1"}, "a list of texts"),
        ({"input": {"text": "a"}, "edits": ["x=1"] * 100}, "at most"),
        ({"input": {"text": "ab" * 40}}, "shorten it"),
        ({"input": {"text": "é"}}, "not among"),
    ):
        with pytest.raises(UserError, match=words):
            session.answer(raw)
    picture = sessions("vit")
    for raw, words in (
        ({"input": {}}, "draw one"),
        ({"input": {"picture": "x"}}, "data:image/png"),
        ({"input": {"picture": "data:image/png;base64,!!"}}, "not base64"),
        ({"input": {"picture": "data:image/png;base64,AAAA"}}, "cannot be read"),
    ):
        with pytest.raises(UserError, match=words):
            picture.answer(raw)


def test_traces_are_dropped_and_recorded_again(runs, monkeypatch):
    monkeypatch.setattr("pencil.explore.session.MOST_TRACES", 2)
    session = Session.open(runs("vit"))
    states = [{"input": one["input"]} for one in session.about()["examples"][:4]]
    made = [session.record(state) for state in states]
    assert session.record(states[3]) is made[3]
    key = session.state(states[0]).key
    again = session.trace(key)
    assert again is not made[0]
    np.testing.assert_array_equal(again.array("logits"), made[0].array("logits"))
    with pytest.raises(UserError, match="another session"):
        outline_of(session, "0" * 24)


@pytest.mark.parametrize("name", ["gpt", "dit"])
def test_a_long_answer_stops_when_asked(sessions, name):
    session, events = sessions(name), []
    with pytest.raises(Stopped):
        session.answer(
            first(session, seed=77), Listener(lambda kind, content: events.append(kind), lambda: len(events) > 4)
        )
    assert 4 < len(events) < 9


# ---- runs at a checkpoint, the example


@pytest.mark.long
def test_a_run_at_a_checkpoint_has_its_weights(run):
    early, late = Session.open(run, "a", 20), Session.open(run, "b", 30)
    assert (early.about()["step"], late.about()["step"]) == (20, 30)
    assert early.name.endswith("@20")
    state = {"input": {"text": "line", "options": {"tokens": 1}}}
    assert early.state(state).key != late.state(state).key
    found = compare(early.record(state), late.record(state))
    assert "logits" in {row["name"] for row in found["tensors"]}
    with pytest.raises(UserError, match="no checkpoint of step 7"):
        Session.open(run, "a", 7)


def test_without_the_example_a_run_is_asked_for(monkeypatch, tmp_path, runs):
    monkeypatch.setattr("pencil.runs.files.EXAMPLE_RUNS", tmp_path)
    with pytest.raises(UserError, match="no example model"):
        Session.of_examples()
    (tmp_path / "scenes").symlink_to(runs("captioner"))
    (tmp_path / "english").symlink_to(runs("gpt"))
    first, second = Session.of_examples()
    assert [one.about()["family"] for one in (first, second)] == ["captioner", "gpt"]
    assert [one.id for one in (first, second)] == ["a", "b"]
    assert first.path == first.path_elsewhere == "example:scenes"


def test_runs_of_an_older_version_open_too():
    from pathlib import Path

    old = Path(__file__).parents[1] / "runs-0.6"
    for path in sorted(one for one in old.iterdir() if one.is_dir()):
        session = Session.open(path)
        check(session.about(), MODEL)
        check(session.answer(first(session, **({"tokens": 2} if session.profile.writes else {}))), ANSWER)
    assert load(old / "gpt").model is not None


@pytest.mark.long
def test_an_imported_run_is_explored_like_any_other(tmp_path):
    hf = pytest.importorskip("transformers", reason="transformers is not installed")
    from small_tokenizers import byte_level

    tokenizer = byte_level()
    sizes = dict(n_positions=31, n_embd=36, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0)
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=tokenizer.get_vocab_size(), **sizes)).eval()
    model.save_pretrained(tmp_path / "theirs")
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    call("import", tmp_path / "theirs", "--out", tmp_path / "run")
    session = Session.open(tmp_path / "run")
    check(session.about(), MODEL)
    state = {"input": {"text": "the cat sat", "options": {"tokens": 3, "temperature": 0}}}
    found = session.answer(state)
    check(found, ANSWER)
    ids = torch.tensor([tokenizer.encode("the cat sat").ids])
    made = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)[0, ids.shape[1] :].tolist()
    assert [one["id"] for one in found["tokens"]] == made
    session.record(state)
    outline = outline_of(session, session.state(state).key)
    check(outline, OUTLINE)
    assert receipt_of(session, session.state(state).key, outline["start"])["agrees"]


def test_a_step_of_a_diffusion_is_the_one_recorded_and_shows_what_the_condition_changes(sessions, monkeypatch):
    """The clean picture is linear in the prediction, so the two differ by a multiple of what the trace recorded."""
    session = sessions("dit")
    state = first(session, steps=3, step=2, guidance=2.5, seed=11)
    frames = session.answer(state)["frames"]
    recorded = session.record(state)
    conditional, unconditional = recorded.array("output").astype(np.float64)[:, 0]
    guide = frames[1]["guide"]
    shown = floats(guide["values"], np.int8, *guide["shape"]) * guide["top"] / 127
    difference = conditional - unconditional
    scale = (shown * difference).sum() / (difference**2).sum()
    np.testing.assert_allclose(shown, scale * difference, atol=guide["top"] / 127)
    assert abs(scale) > 0.01
    assert abs(shown).max() == pytest.approx(guide["top"])
    noisy = pixels(frames[1]["picture"])
    given = next(n.name for n in recorded.graph.nodes if n.kind == "input" and n.shape[1:] == (1, 8, 8))
    np.testing.assert_allclose((recorded.array(given)[0, 0].clip(-1, 1) + 1) * 127.5, noisy, atol=0.51)
    # another step is of the same picture, which is not drawn anew
    monkeypatch.setattr("pencil.explore.session.answer", None)
    again = session.answer({**state, "input": {**state["input"], "options": {**state["input"]["options"], "step": 3}}},
                           Listener(lambda kind, data: None))  # fmt: skip
    assert again["frames"] is frames
    assert again["state"]["input"]["options"]["step"] == 3


# ---- the training watched


def test_every_view_shows_the_model_at_a_step_of_its_training(run):
    """As the same model computes it with the weights of the snapshot's own file."""
    session = Session.open(run)
    about = training(session)
    assert about["kept"] == [0, 1, 2, 3, 4, 6, 8, 11, 16, 20, 23, 30]  # snapshots, and checkpoints of 20 and 30
    assert (about["step"], about["steps"]) == (30, 30)
    assert [step for step, _ in about["val_loss"]] == [0, 15, 30]
    assert [step for step, _ in about["train_loss"]] == [10, 20, 30]
    state = {"input": {"text": "line", "options": {"tokens": 2, "temperature": 0}}, "edits": []}
    answer = session.answer(state)
    cell = answer["tokens"][1]["cell"]
    points = along(session, state, cell)["points"]
    own = {name: t.clone() for name, t in session.loaded.model.state_dict().items()}
    trace = session.record(state)
    (tokens,), (row, column) = trace.traced_model.inputs, trace.locate(cell)[1][1:]
    other = load(run).model.eval()
    for point in points:
        if point["step"] in snapshots.listed(run):
            other.load_state_dict(load_file(snapshots.path_of(run, point["step"])))
        elif point["step"] == 20:
            kept = checkpoint.read(run, 20).tensors
            other.load_state_dict(
                {name.removeprefix("model."): kept[name] for name in kept if name.startswith("model.")}
            )
        else:
            other.load_state_dict(own)
        with torch.no_grad():
            z = other(tokens)[0, row].double().numpy()
        assert point["value"] == pytest.approx(z[column], abs=2e-5)
        assert point["probability"] == pytest.approx(softmax(z)[column], abs=2e-6)
        assert point["top"] == trace.labels["V"][int(z.argmax())]
    assert all(torch.equal(t, own[name]) for name, t in session.loaded.model.state_dict().items())
    at = {**state, "at": 11}
    assert session.answer(at)["state"]["at"] == 11
    other.load_state_dict(load_file(snapshots.path_of(run, 11)))
    recorded = session.record(at)
    with torch.no_grad():
        np.testing.assert_allclose(recorded.array("logits"), other(recorded.traced_model.inputs[0]), atol=2e-5)
    assert session.record(state) is trace
    for raw, words in (
        ({"at": 5}, "has no checkpoint of step 5; it has those of steps 20, 30"),
        ({"at": 1.5}, "a whole number"),
        ({"at": 11, "lessons": [{"input": {"text": "a"}, "target": "", "steps": 1}]}, "from the run's own weights"),
    ):
        with pytest.raises(UserError, match=words):
            session.answer({**state, **raw})
