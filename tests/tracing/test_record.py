"""Tracing a model: names, lookups, edits, and blocks that are opened only when needed."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from pencil.config import UserError
from pencil.core.notation import Notation
from pencil.core.probe import Probe, declared
from pencil.learn.worked.examples import EXAMPLES
from pencil.tracing import live_trace, recording
from pencil.tracing.live_trace import LiveTrace, trace
from pencil.tracing.step import StepTrace
from traced import OURS, disagreeing, holds, ours, stirred, theirs, traced, unchecked, words


@pytest.fixture(scope="module")
def gpt():
    """A gpt in double precision, and its input."""
    model, inputs = ours("gpt learned")
    return model.double(), inputs


@pytest.fixture(scope="module")
def plain(gpt):
    model, inputs = gpt
    return trace(model, *inputs)


@pytest.fixture(scope="module")
def gpt2():
    model, _, given = theirs("gpt2")
    return model, given, trace(model, **given)


# names


@pytest.mark.parametrize("name", OURS)
def test_what_a_model_declares_is_what_its_trace_holds(name):
    model, inputs = ours(name)
    probe = Probe()
    with torch.no_grad():
        model(*inputs, probe=probe)
    found = trace(model, *inputs)
    names = Notation(model, probe.values).names
    assert set(probe.values) == set(names)
    for one, value in probe.values.items():
        assert one in found
        assert np.array_equal(found[one].value, value.detach().numpy()), one
    nodes = [found[one].id for one in names]
    for one in names:
        node = found[one].node
        if nodes.count(found[one].id) == 1:
            assert (node.axes, node.symbol, node.formula) == names[one][:3]
    assert len(found.names) == len(set(found.names))
    assert {n for n, _ in model.named_parameters()} <= set(found.names)


@pytest.mark.parametrize("name", OURS)
def test_every_name_a_model_declares_is_listed(name):
    model, _ = ours(name)
    assert {one for one, entry in declared(model).items() if not entry.optional} <= set(traced(name).names)


def test_a_tensor_of_two_names_has_the_symbol_of_the_first():
    """Four models, of which each would be right by chance half the time."""
    for name in ("gpt llama", "gpt grouped", "vit mean", "vit rotated"):
        model, inputs = ours(name)
        found = trace(model, *inputs)
        names = Notation(model, [one for one in found.names if one in declared(model)]).names
        for one in names:
            assert names[one].symbol in found[one].node.symbol.split(" = ")
            if found[one].node.name == one:
                assert found[one].node.symbol.split(" = ")[0] == names[one].symbol


def test_names_come_in_the_order_of_computing(plain):
    order = [n for n in plain.names if n in ("embed", "input", "blocks.0.attn.q", "blocks.0.attn.scores", "blocks.0.attn.pattern",
             "blocks.0.attn.z", "blocks.0.mid", "blocks.0.post", "blocks.1.post", "norm", "logits")]  # fmt: skip
    assert order == ["embed", "input", "blocks.0.attn.q", "blocks.0.attn.scores", "blocks.0.attn.pattern",
                     "blocks.0.attn.z", "blocks.0.mid", "blocks.0.post", "blocks.1.post", "norm", "logits"]  # fmt: skip


def test_what_the_model_was_given_has_the_name_of_its_argument(plain, gpt):
    assert np.array_equal(plain["tokens"].value, gpt[1][0].numpy())
    assert plain["tokens"].node.kind == "input"
    assert "given" in str(plain["tokens[0,0]"].why())


def test_other_peoples_names_are_the_paths_of_their_modules(gpt2):
    model, given, found = gpt2
    kept = {}
    handles = [
        m.register_forward_hook(lambda m, a, out, path=path: kept.update({path: out}))
        for path, m in model.named_modules()
        if path.endswith(("ln_1", "mlp", "c_attn", "ln_f", "lm_head"))
    ]
    with torch.no_grad():
        model(**given)
    for handle in handles:
        handle.remove()
    assert len(kept) == 8
    for path, value in kept.items():
        assert path in found
        np.testing.assert_allclose(found[path].value, value.numpy(), atol=1e-4, rtol=1e-4)
    assert {n for n, _ in model.named_parameters()} <= set(found.names)
    assert "logits" in found
    assert np.array_equal(found["input_ids"].value, given["input_ids"].numpy())


def test_unnamed_values_have_the_place_and_the_operation_as_a_name(gpt2):
    _, _, found = gpt2
    inside = [n for n in found.graph.names if n.startswith("transformer.h.0.attn:")]
    assert any("softmax" in n for n in inside)
    assert not set(inside) & set(found.names)
    name = next(n for n in inside if "softmax" in n)
    assert found[f"{name}[0,0,3,1]"].why().agrees


def test_a_module_used_twice_has_two_values():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(3, 3)

        def forward(self, x):
            return self.one(self.one(x))

    found = trace(stirred(Twice()), torch.ones(1, 3))
    assert {"one", "one#2"} <= set(found.names)
    assert np.array_equal(found["one#2"].value, found.output.numpy())
    assert not np.array_equal(found["one"].value, found["one#2"].value)


def test_a_function_of_tensors_can_be_traced():
    found = trace(lambda a, b: {"sum": a + b, "parts": (a * 2, b)}, torch.ones(2), torch.zeros(2))
    assert {"a", "b", "sum", "parts.0"} <= set(found.graph.names)
    assert found["sum"].value.tolist() == [1, 1]
    with pytest.raises(UserError, match="gives no logits"):
        _ = found.logits


def test_from_the_top_of_the_library():
    import pencil

    found = pencil.trace(lambda x: x * 2, torch.ones(3))
    assert isinstance(found, LiveTrace)


def test_a_model_with_an_argument_called_labels():
    model, _, given = theirs("gpt2")
    found = trace(model, **given, labels=given["input_ids"])
    assert found.output.loss is not None


# names


@pytest.mark.parametrize("where, shown", [
    ("blocks.0.attn.patern", "nothing in the trace is called blocks.0.attn.patern; did you mean blocks.0.attn.pattern?"),
    ("nonsense", "nothing in the trace is called nonsense"),
    ("blocks.0.attn.pattern[0,9,0,0]", "has no cell [0, 9, 0, 0]: its shape is 2×2×7×7 (B h T S)"),
    ("blocks.0.attn.pattern[0,0,0,7]", "its shape is 2×2×7×7"),
    ("blocks.0.attn.pattern[0,0,-8,0]", "has no cell [0, 0, -8, 0]: its shape is 2×2×7×7"),
    ("blocks.0.attn.pattern[0,0,0,0,0]", "its shape is 2×2×7×7"),
    ("blocks.0.attn.pattern[::0]", "has no cell [::0]"),
    ("blocks.0.attn.pattern[a]", "B of blocks.0.attn.pattern has no labels: give an index from 0 to 1 instead of a"),
    ("blocks.0.attn.pattern[0", "is not a name with an index"),
    ("blocks.0.attn.pattern]", "is not a name with an index"),
    ("", "is not a name with an index"),
    ("blocks.0.attn.pattern[1,,2]", "an index is missing in blocks.0.attn.pattern[1,,2]"),
    ("blocks.0.attn.pattern[-]", "B of blocks.0.attn.pattern has no labels: give an index from 0 to 1 instead of -"),
    ("blocks.0.attn.pattern[1 2]", "has no labels: give an index from 0 to 1 instead of 1 2"),
])  # fmt: skip
def test_lookups_that_fail(plain, where, shown):
    with pytest.raises(UserError, match=re.escape(shown)) as refusal:
        plain[where]
    assert "\n" not in str(refusal.value)


def test_lookups(plain):
    whole = plain["blocks.0.attn.pattern"]
    assert whole.shape == (2, 2, 7, 7)
    assert whole.value.dtype == np.float64
    assert np.array_equal(plain["blocks.0.attn.pattern[1, :, 2:5, -1]"].value, whole.value[1, :, 2:5, -1])
    assert np.array_equal(whole[1, :, 2:5, -1].value, whole.value[1, :, 2:5, -1])
    assert np.array_equal(whole[1][0].value, whole.value[1, 0])
    assert np.array_equal(np.asarray(whole[..., ::2]), whole.value[..., ::2])
    assert float(whole[0, 0, -1, -1]) == whole.value[0, 0, 6, 6]
    assert whole[0, 1, -1, -2].why().index == (0, 1, 6, 5)
    assert plain[" blocks.0.attn.pattern [0] "].shape == (2, 7, 7)


@pytest.mark.parametrize("where, count", [("blocks.0.attn.pattern", 196), ("logits[0,0]", 29), ("logits[0:0]", 0)])
def test_a_receipt_is_of_one_cell(plain, where, count):
    with pytest.raises(UserError, match=f"a receipt is of one cell, and .* here has {count}; its shape is"):
        plain[where].why()


def test_keep_is_one_of_three_words(gpt):
    with pytest.raises(UserError, match="keep must be auto, all or blocks, not some"):
        trace(gpt[0], *gpt[1], keep="some")


# edits


def edited_by_a_probe(gpt, **edits):
    model, inputs = gpt
    with torch.no_grad():
        return model(*inputs, probe=Probe(edit={name.replace("__", "."): change for name, change in edits.items()}))


def test_a_head_taken_out(gpt, plain):
    found = plain.edit("blocks.0.attn.pattern[:, 1]", 0)
    expected = edited_by_a_probe(
        gpt, blocks__0__attn__pattern=lambda v: v.index_fill(1, torch.tensor([1]), 0.0)
    )  # fmt: skip
    torch.testing.assert_close(found.logits, expected, atol=1e-9, rtol=0)
    assert (found.logits - plain.logits).abs().max() > 0.1
    pattern = found["blocks.0.attn.pattern"].value
    assert not pattern[:, 1].any()
    assert np.array_equal(pattern[:, 0], plain["blocks.0.attn.pattern"].value[:, 0])
    assert found.names.count("blocks.0.attn.pattern") == 1
    assert "(changed by an edit)" in str(found["blocks.0.attn.pattern[0,1,2,0]"].why())


def test_what_comes_after_an_edit_is_worked_from_it(plain):
    found = plain.edit("blocks.0.attn.pattern[:, 1]", 0)
    holds(found)
    assert not disagreeing(found)
    shown = found["blocks.0.attn.z[0,1,4,2]"].why()
    assert shown.recorded == 0
    assert shown.agrees
    assert {t.name for t in shown.terms} == {"blocks.0.attn.pattern", "blocks.0.attn.v"}
    assert found["blocks.0.attn.scores[0,1,3,2]"].why().agrees
    np.testing.assert_array_equal(found["blocks.0.attn.scores"].value, plain["blocks.0.attn.scores"].value)


def test_the_first_trace_is_as_it_was(gpt):
    model, inputs = gpt
    first = trace(model, *inputs)
    logits = first.logits.clone()
    first.edit("input", 0)
    assert torch.equal(first.logits, logits)
    assert torch.equal(trace(model, *inputs).logits, logits)


@pytest.mark.parametrize("value, change", [
    (0.25, lambda v: torch.full_like(v, 0.25)), (2, lambda v: torch.full_like(v, 2)),
    (torch.linspace(-1, 1, 26), lambda v: torch.linspace(-1, 1, 26).to(v).expand_as(v)),
    (lambda v: v * 3 - 1, lambda v: v * 3 - 1),
])  # fmt: skip
def test_a_number_a_tensor_and_a_function(gpt, plain, value, change):
    found = plain.edit("blocks.1.mlp.out", value)
    torch.testing.assert_close(found.logits, edited_by_a_probe(gpt, blocks__1__mlp__out=change), atol=1e-9, rtol=0)


def test_a_function_of_a_part(gpt, plain):
    found = plain.edit("blocks.0.attn.z[:, 0, 2:4]", lambda v: v * 5)

    def change(z):
        z = z.clone()
        z[:, 0, 2:4] *= 5
        return z

    torch.testing.assert_close(found.logits, edited_by_a_probe(gpt, blocks__0__attn__z=change), atol=1e-9, rtol=0)


def test_a_value_of_another_trace(gpt, plain):
    model, _ = gpt
    other = trace(model, words(7, 29, rows=2, seed=8))
    assert torch.equal(plain.edit("input", other).logits, other.logits)  # all that follows is the other's
    found = plain.edit("blocks.0.attn.z[:, 1]", other)
    z = found["blocks.0.attn.z"].value
    assert np.array_equal(z[:, 1], other["blocks.0.attn.z"].value[:, 1])
    assert np.array_equal(z[:, 0], plain["blocks.0.attn.z"].value[:, 0])
    assert not disagreeing(found, 40)


def test_an_input(gpt, plain):
    model, (tokens,) = gpt
    changed = tokens.clone()
    changed[:, 3] = 5
    found = plain.edit("tokens[:, 3]", 5)
    assert torch.equal(found.logits, trace(model, changed).logits)
    assert tokens[0, 3] == gpt[1][0][0, 3]
    assert found["tokens"].value[0, 3] == 5
    holds(found)


def test_two_edits(gpt, plain):
    found = plain.edit("blocks.0.attn.pattern[:, 1]", 0).edit("blocks.1.mlp.out", lambda v: v * 2)
    expected = edited_by_a_probe(
        gpt,
        blocks__0__attn__pattern=lambda v: v.index_fill(1, torch.tensor([1]), 0.0),
        blocks__1__mlp__out=lambda v: v * 2,
    )
    torch.testing.assert_close(found.logits, expected, atol=1e-9, rtol=0)
    both = plain.edit("blocks.0.attn.pattern[:, 1]", 0).edit("blocks.0.attn.pattern[:, 0]", 0)
    assert not both["blocks.0.attn.pattern"].value.any()
    assert not disagreeing(both, 40)


@unchecked()
def test_an_edit_of_other_peoples_models(gpt2):
    model, given, found = gpt2
    handle = model.transformer.h[0].mlp.register_forward_hook(lambda m, a, out: out * 0)
    with torch.no_grad():
        expected = model(**given).logits
    handle.remove()
    edited = found.edit("transformer.h.0.mlp", 0)
    torch.testing.assert_close(edited.logits, expected, atol=1e-4, rtol=1e-4)
    assert (edited.logits - found.logits).abs().max() > 0.1
    assert not edited["transformer.h.0.mlp"].value.any()
    holds(edited, 200)
    assert not disagreeing(edited, 40)
    assert not list(model.transformer.h[0].mlp._forward_hooks)


@unchecked()
def test_an_edit_of_a_value_nobody_named(gpt2):
    _, _, found = gpt2
    name = next(n.name for n in found.graph.nodes if n.kind == "softmax")
    edited = found.edit(f"{name}[:, 1]", 0)
    assert (edited.logits - found.logits).abs().max() > 0.01
    assert not disagreeing(edited, 40)


def test_an_edited_value_nobody_named_is_found_by_its_name():
    found = trace(lambda x: x * 2 + 1, torch.ones(2)).edit("mul", 5)
    assert found.output.tolist() == [6, 6]
    assert found["mul"].value.tolist() == [5, 5]


def test_an_edit_of_one_of_several_outputs(gpt2):
    _, _, found = gpt2
    assert "transformer.h.0.attn.0" in found
    assert (found.edit("transformer.h.0.attn.0", 0).logits - found.logits).abs().max() > 0.01


def test_an_edit_by_an_array(plain):
    found = plain.edit("blocks.0.attn.z", np.zeros((2, 2, 7, 13)))
    assert not found["blocks.0.attn.z"].value.any()


@pytest.mark.parametrize("where, shown", [
    ("blocks.0.attn.patern", "did you mean blocks.0.attn.pattern?"),
    ("blocks.0.attn.pattern[", "is not a name with an index"),
])  # fmt: skip
def test_edits_that_fail(plain, where, shown):
    with pytest.raises(UserError, match=re.escape(shown)):
        plain.edit(where, 0)


@pytest.mark.parametrize("where, value", [
    ("blocks.0.attn.pattern[:,99]", 0), ("blocks.0.attn.pattern[0,0,0,0,0]", 0),
    ("blocks.0.attn.pattern", torch.zeros(3, 3)), ("blocks.0.attn.pattern[::-1]", 0),
])  # fmt: skip
def test_edits_that_do_not_fit(plain, where, value):
    with pytest.raises(UserError, match="2×2×7×7"):
        plain.edit(where, value)


def test_an_edit_of_a_weight_works_or_gives_the_reason(plain):
    shown = ""
    try:
        found = plain.edit("blocks.1.mlp.down.weight", 0)
    except UserError as refusal:
        shown = str(refusal)
    else:
        assert not found["blocks.1.mlp.down.weight"].value.any()
    assert "nothing was called" not in shown


def test_an_edit_of_a_nested_input():
    found = trace(lambda batch: batch["a"] + batch["b"], {"a": torch.ones(3), "b": torch.ones(3) * 2})
    assert "batch.a" in found.names
    assert found.edit("batch.a", 0).output.tolist() == [2, 2, 2]


def test_an_edit_of_a_model_that_writes_into_its_input():
    found = trace(lambda x: x.add_(1) * 2, torch.zeros(2))
    assert found.output.tolist() == [2, 2]
    assert found.edit("x", lambda v: v).output.tolist() == [2, 2]


def test_an_edited_trace_can_be_kept(plain, tmp_path):
    from pencil.tracing.file import write
    from pencil.tracing.trace import read

    found = plain.edit("blocks.0.attn.pattern[:, 1]", 0)
    write(found, tmp_path / "a.safetensors")
    back = read(tmp_path / "a.safetensors")
    assert back.names == found.names
    assert [*back["blocks.0.attn.pattern[0,1,2,0]"].why().lines()] == ["A[2,0] = 0   (changed by an edit)"]
    assert not disagreeing(back, 40)


# unusual calls


def test_tracing_inside_inference_mode():
    model, inputs = ours("gpt learned")
    with torch.inference_mode():
        found = trace(model, *inputs)
    holds(found, 200)


def test_one_tensor_for_two_arguments():
    x = torch.arange(3.0)
    found = trace(lambda a, b: a * b + a, x, x)
    assert found["b"].value.tolist() == [0, 1, 2]
    assert found["a"].value.tolist() == [0, 1, 2]


def test_what_is_not_a_tensor_is_a_number_in_the_arithmetic():
    found = trace(lambda a, k, flag=True: a * k if flag else a, torch.arange(3.0), 3)
    assert str(found["output[1]"].why()) == "output[1] = 3·1 = 3\nrecorded 3 ✓"
    assert trace(lambda a: None, torch.ones(2)).names == []


# blocks opened when needed


@pytest.mark.parametrize(
    "name", ["gpt learned", *(pytest.param(name, marks=pytest.mark.long) for name in ("gpt sinusoidal", "vit class"))]
)
@unchecked()
def test_a_trace_of_blocks_holds_the_same_as_a_trace_of_all(name):
    model, inputs = ours(name)
    full, lazy = trace(model, *inputs, keep="all"), trace(model, *inputs, keep="blocks")
    assert len(lazy.graph.nodes) < len(full.graph.nodes) / 2
    assert torch.equal(full.output, lazy.output)
    assert np.array_equal(full["logits"].value, lazy["logits"].value)
    shut = len(lazy.graph.nodes)
    rng = np.random.default_rng(5)
    with unchecked():
        for one in full.names:
            assert np.array_equal(full[one].value, lazy[one].value), one
            cell = tuple(int(rng.integers(n)) for n in full[one].shape)
            assert [*full[one][cell].why().lines()] == [*lazy[one][cell].why().lines()]
    assert len(lazy.graph.nodes) > shut
    holds(lazy, 300)
    assert not disagreeing(lazy, 60)


@pytest.mark.parametrize(
    "name", ["gpt2", *(pytest.param(name, marks=pytest.mark.long) for name in ("bert", "t5", "llama"))]
)
@unchecked()
def test_other_peoples_blocks_are_opened_too(name):
    model, _, given = theirs(name)
    full, lazy = trace(model, **given, keep="all"), trace(model, **given, keep="blocks")
    assert len(lazy.graph.nodes) < len(full.graph.nodes)
    for one in full.names:
        assert np.array_equal(full[one].value, lazy[one].value), one
    holds(lazy, 300)


@unchecked()
def test_opening_a_block_leaves_no_second_names(gpt2):
    model, given, full = gpt2
    lazy = trace(model, **given, keep="blocks")
    for one in full.names:
        _ = lazy[one].value
    assert not [n for n in lazy.names if "#" in n]


def test_what_a_block_gave_is_explained_without_naming_its_inside():
    model, inputs = ours("gpt learned")
    lazy = trace(model, *inputs, keep="blocks")
    assert "blocks.1" in lazy.names
    shown = lazy["blocks.1[0,2,3]"].why()
    full = trace(model, *inputs)["blocks.1.post[0,2,3]"].why()
    assert shown.reworked == full.reworked
    assert shown.formula == full.formula
    assert shown.agrees


def test_only_the_requested_block_is_opened():
    model, inputs = ours("gpt learned")
    lazy = trace(model, *inputs, keep="blocks")
    assert lazy["blocks.1.attn.pattern[0,1,3,2]"].why().agrees
    assert "blocks.1.attn.q" in lazy.graph.names
    assert "blocks.0.attn.q" not in lazy.graph.names
    with pytest.raises(UserError, match="nothing in the trace is called blocks.1.attn.patern"):
        lazy["blocks.1.attn.patern"]


def test_a_trace_of_blocks_can_be_edited(gpt, plain):
    model, inputs = gpt
    lazy = trace(model, *inputs, keep="blocks").edit("blocks.0.attn.pattern[:, 1]", 0)
    full = plain.edit("blocks.0.attn.pattern[:, 1]", 0)
    assert torch.equal(lazy.logits, full.logits)
    assert str(lazy["blocks.1.mid[0,1,2]"].why()) == str(full["blocks.1.mid[0,1,2]"].why())


class Fickle(nn.Module):
    """Gives another output each time it is called."""

    def __init__(self, reason):
        super().__init__()
        self.reason, self.count, self.inner = reason, 0, nn.Linear(3, 3)

    def forward(self, x):
        self.count += 1
        return self.inner(x) + (self.count if self.reason == "counts" else torch.rand(3) + 1)


@pytest.mark.parametrize("reason", ["counts", "draws"])
def test_a_block_that_gives_other_values_the_second_time_is_refused_by_name(reason):
    model = nn.ModuleDict({"stack": nn.Sequential(Fickle(reason), Fickle(reason))})
    model.forward = lambda x: model.stack(x)
    lazy = trace(model, torch.ones(1, 3), keep="blocks")
    with pytest.raises(UserError, match=r"^stack\.1 gave other values when it was run again"):
        lazy["stack.1.inner"]


def test_a_model_that_is_itself_a_list_of_blocks():
    model = nn.Sequential(*(stirred(nn.TransformerEncoderLayer(6, 1, 5, batch_first=True)) for _ in range(3)))
    lazy = trace(model, torch.ones(1, 2, 6), keep="blocks")
    assert len(lazy.graph.nodes) < 10


class InPlace(nn.Module):
    """Adds to what it is given, where it lies."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        x += self.inner(x)
        return x


class Stack(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.blocks = nn.ModuleList([block(), block()])

    def forward(self, x):
        x = x * 1
        for block in self.blocks:
            x = block(x)
        return x


def test_blocks_that_write_into_their_input_when_all_is_kept():
    found = trace(stirred(Stack(InPlace)), torch.ones(1, 3), keep="all")
    holds(found)
    assert not disagreeing(found, 30)


def test_blocks_that_write_into_their_input_when_they_are_not_opened():
    with pytest.raises(UserError, match="blocks.0 writes into its input"):
        trace(stirred(Stack(InPlace)), torch.ones(1, 3), keep="blocks")


def test_a_stream_written_in_place_around_its_blocks():
    class Added(Stack):
        def forward(self, x):
            x = x * 1
            for block in self.blocks:
                x += block(x)
            return x

    model = stirred(Added(lambda: nn.Linear(3, 3)))
    full, lazy = (trace(model, torch.ones(1, 3), keep=keep) for keep in ("all", "blocks"))
    assert str(lazy["blocks.0[0,1]"].why()) == str(full["blocks.0[0,1]"].why())


def test_what_is_kept_follows_from_the_budget(monkeypatch):
    model, inputs = ours("gpt learned")
    assert "blocks.0.attn.pattern" in trace(model, *inputs).graph.names
    for module in (live_trace, recording):
        monkeypatch.setattr(module, "BUDGET", 20_000)
    small = trace(model, *inputs)
    assert "blocks.0.attn.pattern" not in small.graph.names
    assert small["blocks.0.attn.pattern[0,1,3,2]"].why().agrees
    assert "blocks.0.attn.pattern" in trace(model, *inputs, keep="all").graph.names


@pytest.mark.long
@unchecked()
def test_every_example_can_be_edited():
    for name in EXAMPLES:
        found = traced(f"example:{name}")
        pattern = next((n for n in found.names if n.endswith("pattern")), None)
        if pattern is None or isinstance(found, StepTrace):  # a training step is recorded as it is
            continue
        edited = found.edit(f"{pattern}[:, 0]", 0)
        assert not np.asarray(edited[pattern].value)[:, 0].any()
        assert not disagreeing(edited, 20)


LARGE = """
import resource, sys, time
import torch
torch.set_num_threads(1)
from pencil.families import configure, create
from pencil.tracing.live_trace import trace
{build}
t = trace(model, *inputs, **given)
for where in {cells}:
    assert t[where].why().agrees, where
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
OURS_LARGE = """
torch.manual_seed(0)
model = create("gpt", configure("gpt", "gpt2")).eval()
inputs, given = (torch.randint(0, 50257, (1, 1024)),), {}
"""
HF_LARGE = """
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config()).eval()
inputs, given = (), {"input_ids": torch.randint(0, 50257, (1, 1024))}
"""


@pytest.mark.long
@pytest.mark.parametrize("build, cells", [
    (OURS_LARGE, ["blocks.7.attn.pattern[0,3,1000,17]", "blocks.7.mlp.act[0,1000,17]", "logits[0,1023,5]"]),
    (HF_LARGE, ["transformer.h.7.mlp.c_fc[0,1000,17]", "lm_head[0,1023,5]"]),
])  # fmt: skip
def test_a_gpt2_at_its_full_context_opens_in_less_than_four_gigabytes(build, cells):
    done = subprocess.run(
        [sys.executable, "-c", LARGE.format(build=build, cells=cells)],
        capture_output=True, text=True, timeout=550, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 4096


class WithGradients(nn.Module):
    """Modules that work, and whose forward pass asks autograd for something."""

    def __init__(self, backward):
        super().__init__()
        self.weight, self.backward = nn.Parameter(torch.ones(5, 3)), backward

    def forward(self, x):
        total = (x @ self.weight).sum()
        if not self.backward:
            return torch.autograd.grad(total, [self.weight])[0]
        total.backward()
        return self.weight.grad


@pytest.mark.parametrize("backward", [False, True])
def test_a_forward_pass_that_asks_for_gradients(backward):
    """It is run again with them: a trace is otherwise without."""
    model, given = WithGradients(backward), torch.randn(2, 5)
    found = trace(model, given)
    np.testing.assert_allclose(found["output"].value, np.repeat(given.sum(0).numpy()[:, None], 3, 1), rtol=1e-6)
    assert not found.output.requires_grad
    assert found["output"][3, 1].why().agrees
    assert found.edit("x[0,3]", 2.0).output[3, 1] == 2 + given[1, 3]
    assert model.weight.grad is None


class WithFlexAttention(nn.Module):
    def forward(self, x):
        return flex_attention(x, x, x)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "model, shape, words",
    [(WithFlexAttention(), (1, 2, 7, 16), "it calls flex_attention, which PyTorch runs as one operation")],
)  # fmt: skip
def test_what_cannot_be_recorded_is_one_sentence(model, shape, words):
    given = torch.randn(shape)
    model(given)
    with pytest.raises(UserError, match=f"^this model cannot be recorded: {words}") as refused:
        trace(model, given)
    assert "0x" not in str(refused.value)
    assert "\n" not in str(refused.value)
