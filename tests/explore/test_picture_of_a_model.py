"""The picture of a model: its lines, what each part and each input added, and what the model would say after a block.

Each is compared with another computation: the patterns with those of a plain run under a probe, the lens with the model
whose later blocks are taken out, an input's total with the held model run on that input alone.
"""

import base64
import copy
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from json_shapes import PICTURE, PICTURE_OF, check
from shared_page import views_of
from small_runs import RUNS, write_run

from pencil.config import UserError
from pencil.core.attention import Attention
from pencil.core.blocks import Block
from pencil.core.layers import MLP
from pencil.core.probe import Probe
from pencil.explore.outline import outline, residual_edges
from pencil.explore.picture import picture, picture_of
from pencil.explore.session import Session
from pencil.tracing import html
from pencil.tracing.contributions import CONSTANT, Hold, Keep, _plain_gelu, double
from pencil.tracing.lens import Lens
from pencil.tracing.live_trace import trace as trace_model
from pencil.tracing.recording import EveryValue, mapped

# every family, and what differs most from the plain forms of blocks
POST = dict(norm_position="post")
LLAMA = dict(norm="rms", activation="swiglu", kv_heads=1, tie_embeddings=False, bias=True, positions="learned")
CASES = {name: (name, {}) for name in RUNS} | {
    "gpt-llama": ("gpt", LLAMA),
    "seq2seq-post": ("seq2seq", POST | dict(scale_embeddings=True, scale_logits=True, tie_embeddings=False, head_bias=True)),
    "reader-post": ("reader-label", POST | dict(embed_norm=True, token_types=2, pool="class")),
    "vit-clip": ("vit", dict(embed_norm=True, norm_pooled=True, registers=2)),
    "vit-deit": ("vit", dict(registers=1, distilled=True)),
    "captioner-rms": ("captioner", dict(norm="rms", image_width=14, text_width=10, delimiters="begin")),
    "dit-plain": ("dit", dict(adaln="plain", noise_schedule="cosine", prediction="v")),
    "dit-windows": ("dit", dict(attention="windowed", window=2)),
}  # fmt: skip


def decoded(text, dtype="<f4"):
    return np.frombuffer(base64.b64decode(text), dtype)


@pytest.fixture(scope="module", params=CASES)
def drawn(request, tmp_path_factory):
    name, changed = CASES[request.param]
    session = Session.open(write_run(name, tmp_path_factory.mktemp("runs"), **changed))
    state = session.state({"input": session.about()["example"]})
    trace = session.record(state)
    cell = outline(session, state.key)["start"]
    answer = session.answer(state)
    if "tokens" in answer:  # one in the middle of what was written
        cell = answer["tokens"][len(answer["tokens"]) // 2]["cell"]
    shown, of = picture(session, state.key), picture_of(session, state.key, cell)
    check(shown, PICTURE)
    check(of, PICTURE_OF)
    return SimpleNamespace(
        name=request.param, session=session, key=state.key, trace=trace, cell=cell, shown=shown, of=of,
        whole=trace.contributions(cell),
    )  # fmt: skip


def exact(whole):
    """The number in double precision, of the model with its nonlinear parts held."""
    return float((whole.of.detach() * whole.weights).sum())


def test_bars_and_inputs_sum_to_the_number(drawn):
    of, whole = drawn.of, drawn.whole
    bars = sum(decoded(column["added"]).astype(float).sum() for column in of["columns"])
    rest = sum(part["value"] for part in of["rest"])
    inputs = sum(part["value"] for part in (*of["inputs"], *of["noInput"]))
    assert of["value"] == whole.value
    assert abs(whole.value - exact(whole)) <= of["allowed"] == whole.allowed
    assert inputs == pytest.approx(exact(whole), abs=1e-12, rel=1e-12)
    # the bars are sent in single precision, each rounded once
    size = sum(abs(decoded(column["added"])).sum() for column in of["columns"])
    assert abs(bars + rest - exact(whole)) <= 2**-24 * size + 1e-12
    parts = {part.id: part.value for part in whole.parts}
    for column in of["columns"]:
        assert [np.float32(parts.get(id, 0.0)) for id in column["ids"]] == list(decoded(column["added"]))
    if "pixels" in of:
        lanes = {stack["id"]: stack["lanes"] for stack in drawn.shown["stacks"]}
        of_patches = sum(p["value"] for p in of["inputs"] if lanes[p["stack"]][p["lane"]]["kind"] == "patch")
        assert decoded(of["pixels"]["values"]).astype(float).sum() == pytest.approx(of_patches, rel=1e-4, abs=1e-5)


def plain_run(drawn, model=None, probe=None):
    given = drawn.trace.traced_model
    keywords = {name: value for name, value in given.keywords.items() if name != "use_cache"}
    with torch.no_grad():
        return (model or given.model)(*given.inputs, **keywords, **({"probe": probe} if probe else {}))


def test_patterns_are_those_of_the_model(drawn):
    probe = Probe("*.pattern")
    plain_run(drawn, probe=probe)
    stack = drawn.of["stack"]
    for column, of in zip(drawn.shown["columns"], drawn.of["columns"], strict=True):
        if not column["pattern"]:
            assert (column["kind"], column["heads"], of["rows"]) == ("mlp", 1, "")
            continue
        pattern = probe.values[column["pattern"]].double().numpy()
        thumbs = decoded(column["thumbs"], "u1").reshape(column["heads"], *column["thumb"])
        lines = {one["id"]: len(one["lanes"]) for one in drawn.shown["stacks"]}
        if len(pattern) == 1 and max(pattern.shape[2:]) <= 24:
            assert np.array_equal(thumbs, np.rint(255 * pattern[0]))
        assert max(column["thumb"]) <= 24
        if column["stack"] != stack:
            assert of["rows"] == ""
            continue
        rows = decoded(of["rows"]).reshape(column["heads"], lines[column["keys"]])
        np.testing.assert_allclose(rows.sum(1), 1, atol=1e-5)
        if pattern.shape[2] == lines[column["stack"]]:
            expected = pattern[0][:, drawn.of["query"]].mean(1)
            np.testing.assert_allclose(rows, expected, atol=1e-6)


QUERIES = {"vit": [0], "vit-mean": [*range(10)], "vit-clip": [0], "vit-deit": [0, 1], "reader-post": [0]}


def test_lines_are_the_tokens_of_the_input(drawn):
    shown, of, trace = drawn.shown, drawn.of, drawn.trace
    stacks = {stack["id"]: stack for stack in shown["stacks"]}
    lanes = stacks[of["stack"]]["lanes"]
    patches = [lane["at"] for lane in lanes if lane["kind"] == "patch"]
    if grid := trace.facts.get("grid"):
        assert patches == [list(at) for at in np.ndindex(*grid)]
        assert stacks[of["stack"]]["grid"] == grid
    else:
        assert not patches
    # a number is read where it stands in its tensor: text after the delimiters and patches of its stack
    index = drawn.whole.index
    expected = QUERIES.get(drawn.name)
    if expected is None and len(index) == 3:
        expected = [len(lanes) - trace.graph.nodes[trace.find(drawn.whole.tensor)].shape[1] + index[1]]
    if expected is not None:
        assert of["query"] == expected
    for column in shown["columns"]:
        crosses = column["kind"] == "cross"
        assert (column["keys"] != column["stack"]) == crosses
        assert not crosses or column["keys"] == "encoder.blocks"
        assert ("condition" in column) == drawn.name.startswith("dit") or column["stack"].startswith("text_encoder")
        assert column["normed"] == ("after" if drawn.name.endswith("post") else "before")
    kinds = {kind: sum(lane["kind"] == kind for lane in lanes) for kind in ("class", "special")}
    expected = {"vit": (1, 0), "vit-mean": (0, 0), "vit-clip": (1, 2), "vit-deit": (1, 1), "captioner": (0, 3),
                "captioner-rms": (0, 2), "seq2seq": (0, 1), "reader": (0, 1), "gpt": (0, 0)}  # fmt: skip
    assert drawn.name not in expected or tuple(kinds.values()) == expected[drawn.name]


def cut_after(model, blocks):
    """The model as if it had that many blocks."""
    cut = copy.deepcopy(model)
    owner = cut if hasattr(cut, "blocks") else cut.encoder
    owner.blocks = owner.blocks[:blocks]
    return cut


def test_the_lens_is_the_model_without_its_later_blocks(drawn):
    of, trace, model = drawn.of, drawn.trace, drawn.session.loaded.model
    if drawn.name in ("dit-video", "dit-windows"):
        assert not of["lens"]
        assert "groups reorders" in of["unlensed"]
        return
    depth = len((model if hasattr(model, "blocks") else model.encoder).blocks)
    assert [one["after"] for one in of["lens"]] == [*range(depth + 1)]
    name, index = drawn.whole.tensor, drawn.whole.index
    for one in of["lens"]:
        probe = Probe(name)
        plain_run(drawn, cut_after(model, one["after"]), probe)
        values = probe.values[name].double()[index[:-1]]
        assert one["value"] == pytest.approx(float(values[index[-1]]), abs=2e-5, rel=2e-5)
        # the number has a receipt, and stands in a tensor that is recorded when it is asked for
        why = trace[one["cell"]].why()
        assert why.agrees
        assert float(trace[one["cell"]]) == pytest.approx(one["value"], abs=2e-5, rel=2e-5)
        if name == "logits":
            vocab = drawn.session.loaded.tokenizer.vocab if drawn.session.loaded.tokenizer else len(values)
            likely = values[:vocab].softmax(-1)
            assert one["probability"] == pytest.approx(float(likely[index[-1]]), rel=1e-4)
            assert [top["id"] for top in one["top"]] == likely.argsort(descending=True)[:5].tolist()
            assert one["rank"] == int((likely > likely[index[-1]]).sum())
    assert drawn.name.startswith("dit") == ("picture" in of["lens"][-1])


# ---- one input alone, through the held model


def alone(drawn, keep_only):
    """The number of the held model when all that is added is zero but what one input gives; by a pass of its own."""
    traced = drawn.trace.traced_model
    constants, calls = {}, Keep()
    held, found = copy.deepcopy(traced.model).double(), []

    def keep(name, value):
        if name.rsplit(".", 1)[-1] in CONSTANT:
            constants[name] = double(value)
        return value

    def hold(name, value):
        if name in constants:
            return constants[name]
        value = torch.zeros_like(value) if name == "positions.embedding" else keep_only(name, value)
        if name == drawn.whole.tensor:
            found.append(value[drawn.whole.index])
        return value

    for name, parameter in held.named_parameters():
        if name.endswith("bias") or name in ("types", "types.weight", "marks", "class_token"):
            parameter.data.zero_()
    with torch.no_grad():
        with calls:
            traced.model(*traced.inputs, **traced.keywords, probe=EveryValue(keep))
        with _plain_gelu(), Hold(calls.calls):
            inputs, keywords = (
                mapped(given, "", lambda _, value: double(value)) for given in (traced.inputs, traced.keywords)
            )
            held(*inputs, **keywords, probe=EveryValue(hold))
    return float(found[0])


# the values that hold the inputs of the first stack, each with the line that its first row begins
ALONE = {"gpt": {"embed": 0}, "gpt-llama": {"embed": 0}, "vit": {"patches.flat": 1}, "reader-post": {"embed": 0},
         "captioner": {"patches.flat": 1, "embed": 18}, "seq2seq": {"source": 0}, "seq2seq-post": {"source": 0}}  # fmt: skip


def test_an_input_is_what_the_held_model_makes_of_it_alone(drawn):
    if drawn.name not in ALONE:
        return
    stack = drawn.shown["stacks"][0]["id"]
    totals = {one["lane"]: one["value"] for one in drawn.of["inputs"] if one["stack"] == stack}
    largest = sorted(totals, key=lambda lane: -abs(totals[lane]))
    for lane in {*largest[:2], min(totals), max(totals)}:

        def keep_only(name, value, lane=lane):
            if name not in ("embed", "source", "patches.flat"):
                return value
            only, row = torch.zeros_like(value), lane - ALONE[drawn.name].get(name, lane + 1)
            if 0 <= row < value.shape[1]:
                only[:, row] = value[:, row]
            return only

        assert alone(drawn, keep_only) == pytest.approx(totals[lane], rel=1e-9, abs=1e-12)


def test_a_pixel_is_what_the_held_model_makes_of_it_alone(drawn):
    if drawn.name not in ("vit", "captioner"):
        return
    shape = drawn.of["pixels"]["shape"]
    totals = decoded(drawn.of["pixels"]["values"]).reshape(shape)
    at = np.unravel_index(np.abs(totals).argmax(), shape)
    patch = drawn.session.loaded.model.config.patch

    def keep_only(name, value):
        if name not in ("embed", "patches.fold"):
            return value
        only = torch.zeros_like(value)
        if name == "patches.fold":
            fold = (0, at[0], at[1] // patch[0], at[1] % patch[0], at[2] // patch[1], at[2] % patch[1])
            only[fold] = value[fold]
        return only

    assert alone(drawn, keep_only) == pytest.approx(float(totals[at]), rel=1e-6)
    assert prod(shape) == drawn.trace.array("given.picture" if drawn.name == "captioner" else "picture").size


# ---- where there is less


def test_patches_that_attend_in_groups_are_lines_of_one_stack(tmp_path):
    """Two frames of 2 × 2 patches: within a frame, then at one position across the frames."""
    session = Session.open(write_run("dit-video", tmp_path))
    state = session.state({"input": session.about()["example"]})
    trace = session.record(state)
    frames, places = (trace.array(f"blocks.{i}.attn.pattern") for i in range(2))
    for row, line in ((0, 5), (1, 2)):  # with the condition, and without
        of = picture_of(session, state.key, f"patches_out[{row},{line},3]")
        assert of["query"] == [line]
        within, across = (decoded(of["columns"][i]["rows"]).reshape(2, 8) for i in (0, 2))
        frame, place = line // 4, line % 4
        expected = np.zeros((2, 2, 8), np.float32)
        expected[0, :, 4 * frame : 4 * frame + 4] = frames[2 * row + frame, :, place]
        expected[1, :, place::4] = places[4 * row + place, :, frame]
        np.testing.assert_allclose([within, across], expected, rtol=1e-6)


def test_a_number_inside_the_model_and_a_closed_block(tmp_path):
    """A number of the first block is read from no stream; of closed blocks the lens needs the stream alone."""
    session = Session.open(write_run("gpt", tmp_path))
    state = session.state({"input": session.about()["example"]})
    trace = session.record(state)
    of = picture_of(session, state.key, "blocks.0.mid[0,7,3]")
    assert of["query"] == [7]
    assert "not read from the residual stream" in of["unlensed"]
    assert all(not id for column in of["columns"][1:] for id in column["ids"])
    closed = trace_model(session.loaded.model, *trace.traced_model.inputs, keep="blocks")
    assert np.array_equal(closed.lens.read("lens.1", "logits", 7)[0], trace.lens.read("lens.1", "logits", 7)[0])
    assert not closed.graph.opened
    assert closed["lens.0.logits[0,7,5]"].why().agrees
    with pytest.raises(UserError, match=r"there is no lens\.9: the lenses are lens\.input, lens\.0, lens\.1, lens\.2"):
        closed["lens.9.logits[0,7,5]"]


def test_the_outline_has_the_lens_and_the_edges_whatever_was_looked_at(tmp_path):
    session = Session.open(write_run("seq2seq", tmp_path))
    state = session.state({"input": session.about()["example"]})
    trace = session.record(state)
    before = outline(session, state.key)
    assert trace["lens.0.logits[0,0,5]"].why().agrees
    assert outline(session, state.key) == before
    listed = {one["name"]: one for one in before["tensors"]}
    n = trace.graph.nodes[trace.find("lens.0.logits")]
    for field in ("symbol", "formula", "kind", "named"):
        assert listed["lens.0.logits"][field] == getattr(n, field)
    assert (listed["lens.0.logits"]["shape"], n.symbol) == (list(n.shape), "Z⁽¹⁾")
    edges = [tuple(edge.values()) for edge in before["edges"] if ".1." not in edge["by"]]
    assert edges == [
        ("encoder.input", "encoder.blocks.0.attn", "encoder.blocks.0.mid"),
        ("encoder.blocks.0.mid", "encoder.blocks.0.mlp", "encoder.blocks.0.post"),
        ("input", "blocks.0.attn", "blocks.0.mid"),
        ("blocks.0.mid", "blocks.0.cross", "blocks.0.cross_mid"),
        ("blocks.0.cross_mid", "blocks.0.mlp", "blocks.0.post"),
    ]


def test_two_branches_that_add_at_one_place_begin_at_one_place():
    class Parallel(Block):
        BRANCHES = {"attn": "post", "mlp": "post"}

    parts = lambda: Attention(6, 2), lambda: MLP(6, 5), lambda: torch.nn.Identity()
    model = torch.nn.ModuleDict({"blocks": torch.nn.ModuleList(Parallel(*parts) for _ in range(2))})
    edges = [tuple(edge.values()) for edge in residual_edges(model)]
    assert edges == [
        ("input", "blocks.0.attn", "blocks.0.post"), ("input", "blocks.0.mlp", "blocks.0.post"),
        ("blocks.0.post", "blocks.1.attn", "blocks.1.post"), ("blocks.0.post", "blocks.1.mlp", "blocks.1.post"),
    ]  # fmt: skip


def test_an_edited_trace_is_drawn_as_it_ran(tmp_path):
    """The head that was switched off adds nothing, and every other number is that of the edited run."""
    session = Session.open(write_run("captioner", tmp_path))
    given = session.about()["example"] | {"options": {"tokens": 3}}
    state = session.state({"input": given, "edits": ["blocks.1.attn.z[:,2]=0"]})
    trace = session.record(state)
    cell = session.answer(state)["tokens"][1]["cell"]
    of, whole = picture_of(session, state.key, cell), trace.contributions(cell)
    added = {
        column["path"]: decoded(one["added"])
        for column, one in zip(picture(session, state.key)["columns"], of["columns"], strict=True)
    }
    assert added["blocks.1.attn"][2] == 0 != added["blocks.1.attn"][1]
    inputs = sum(part["value"] for part in (*of["inputs"], *of["noInput"]))
    assert inputs == pytest.approx(exact(whole), rel=1e-12)
    assert of["value"] == of["lens"][-1]["value"] == float(trace[cell])


def test_a_model_that_declares_no_stream_is_drawn_as_its_modules():
    class Skipped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def forward(self, x):
            return x + self.second(self.first(x).relu())

    trace = trace_model(Skipped(), torch.ones(2, 3))
    drawn = views_of(html.explorer(trace, "a"))["picture"]
    check(drawn, PICTURE)
    assert not drawn["stacks"]
    paths = [node["path"] for node in drawn["graph"]["nodes"]]
    edges = {(paths[a], paths[b]) for a, b in drawn["graph"]["edges"]}
    # of the skip connection, too
    assert edges == {("x", "first"), ("first", ""), ("", "second"), ("second", ""), ("x", "")}


def test_an_edit_of_a_weight_is_in_the_lens(tmp_path):
    session = Session.open(write_run("gpt", tmp_path, tie_embeddings=False))
    trace = session.record(session.state({"input": session.about()["example"]}))
    edited = trace.edit("head.weight[5]", 0.0)
    assert float(trace["lens.0.logits[0,3,5]"]) != 0 == float(edited["lens.0.logits[0,3,5]"])


def test_a_model_without_a_readout_has_no_lens():
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh())
    trace = trace_model(model, torch.ones(2, 3))
    with pytest.raises(UserError, match="this model has no readout"):
        Lens(trace.traced_model, trace.graph)
