"""Contributions: terms that sum to an output in every family and variant, at every depth; and what is held."""

import functools
import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conftest import call
from pencil.config import UserError
from pencil.core.layers import gelu
from pencil.families import create, family
from pencil.learn.worked.examples import example
from pencil.tracing import contributions as held_rules
from pencil.tracing.contributions import Contributions
from pencil.tracing.live_trace import trace
from pencil.tracing.trace import read
from traced import CAPTIONERS, GPTS, PICTURE, VITS, pictures, stirred, unchecked, words

GPT = dict(vocab=29, context=11, width=22, depth=2, heads=1, hidden=17, bias=True)
READER = dict(vocab=23, context=7, width=26, depth=2, heads=2, hidden=19)
SEQ2SEQ = dict(vocab=23, context=7, source_context=5, width=26, depth=2, heads=2, hidden=19)
DIT = dict(image_size=(6, 4), channels=1, patch=(2, 2), width=14, depth=2, heads=1, hidden=19, positions="sinusoidal")
SOURCED = "learned", "sinusoidal", "rope", "alibi", "shaw", "t5", "none"

VARIANTS = {
    **{name: ("gpt", some) for name, some in GPTS.items()},
    **{f"gpt {one}": ("gpt", GPT | dict(positions=one)) for one in SOURCED[3:]},
    "gpt q and k norms": ("gpt", GPT | dict(qk_norm=True, positions="rope", heads=11, kv_heads=1, bias=False)),
    "gpt relu": ("gpt", GPT | dict(positions="none", activation="relu", window=3)),
    "gpt silu": ("gpt", GPT | dict(positions="none", activation="silu", tie_embeddings=False)),
    "gpt geglu": ("gpt", GPT | dict(positions="learned", activation="geglu-tanh")),
    **{name: ("vit", PICTURE | some) for name, some in VITS.items()},
    "vit t5": ("vit", PICTURE | dict(classes=11, positions="t5", pool="mean", class_token=True, registers=2)),
    "vit distilled": ("vit", PICTURE | dict(classes=11, registers=1, distilled=True, token_positions=False)),
    "vit pooled norm": ("vit", PICTURE | dict(classes=11, norm_pooled=True, embed_norm=True, positions="shaw")),
    **{name: ("captioner", PICTURE | some) for name, some in CAPTIONERS.items()},
    "captioner widths": (
        "captioner",
        PICTURE | dict(vocab=19, context=5, text_width=11, image_width=13, delimiter_positions=True,
                       positions="sinusoidal", image_positions="learned", heads=4, kv_heads=2),
    ),
    "captioner own head": ("captioner", PICTURE | dict(vocab=19, context=5, text_width=11, tie_embeddings=False)),
    "reader words": ("reader", READER | dict(width=28, kv_heads=1)),
    "reader post": (
        "reader", READER | dict(norm_position="post", embed_norm=True, positions="learned", token_types=2),
    ),
    "reader tanh": ("reader", READER | dict(classes=5, positions="t5", norm="rms", activation="swiglu")),
    "reader mean": ("reader", READER | dict(classes=5, pool="mean", positions="sinusoidal", norm_position="post")),
    "reader vector": ("reader", READER | dict(head="pool", positions="alibi")),
    "reader states": ("reader", READER | dict(head="states", positions="none", norm_position="post", norm="rms")),
    "seq2seq": ("seq2seq", SEQ2SEQ | dict(width=28, decoder_depth=1, kv_heads=1)),
    "seq2seq post": (
        "seq2seq",
        SEQ2SEQ | dict(norm_position="post", activation="relu", bias=True, positions="sinusoidal",
                       scale_embeddings=True, share_embeddings=False, source_vocab=17, head_bias=True),
    ),
    "seq2seq t5": (
        "seq2seq",
        SEQ2SEQ | dict(positions="t5", norm="rms", activation="geglu-tanh", scale_logits=True, tie_embeddings=False),
    ),
    "dit": ("dit", DIT | dict(classes=3)),
    "dit plain": ("dit", DIT | dict(adaln="plain", positions="rope", width=20)),
    "dit text": ("dit", DIT | dict(vocab=13, context=5, text_encoder_depth=1, positions="learned")),
    "dit factored": ("dit", DIT | dict(attention="factored", frames=3, positions="learned", classes=3)),
    "dit windowed": ("dit", DIT | dict(attention="windowed", window=2, image_size=(8, 12), adaln="plain")),
    "dit variance": ("dit", DIT | dict(learned_variance=True, noise_schedule="linear", positions="none")),
}  # fmt: skip
QUICK = "gpt geglu", "reader tanh", "seq2seq t5", "dit text"  # beside one of each family; the others are long
FAMILIES = "gpt llama", "vit class", "captioner prefix", "reader post", "seq2seq post", "dit"


def inputs_of(kind, c, rows):
    if kind in ("gpt", "reader"):
        types = (None, words(5, 2, rows, seed=4)) if getattr(c, "token_types", 0) else ()
        return words(5, c.vocab, rows), *types
    if kind == "vit":
        return (pictures(rows),)
    if kind == "captioner":
        return words(3, c.vocab, rows), pictures(rows)
    if kind == "seq2seq":
        return words(5, c.vocab, rows), words(3, c.source_vocab or c.vocab, rows, seed=6)
    given = [words(1, c.classes, rows)[:, 0]] if c.classes else [words(3, c.vocab, rows, seed=8)] if c.vocab else []
    return pictures(rows, (c.channels, *c.sides)), torch.linspace(37.0, 911.0, rows), *given


@functools.cache
@unchecked()
def traced(name, double=True, rows=1):
    kind, settings = VARIANTS[name]
    config = family(kind).config(**settings)
    model, inputs = stirred(create(kind, config)), inputs_of(kind, config, rows)
    if double:
        model = model.double()
        inputs = tuple(one.double() if torch.is_tensor(one) and one.is_floating_point() else one for one in inputs)
    return trace(model, *inputs)


def output_of(t):
    """The name of the last value that is a number for each class, word or pixel."""
    return next(
        name for name in ("logits", "patches_out", "head.pooled", "encoder.out") if name in t.traced_model.declared
    )


def address(name, index):
    return f"{name}[{','.join(map(str, index))}]"


def cells(t, count, seed=0):
    rng, name = np.random.default_rng(seed), output_of(t)
    shape = t.array(name).shape
    places = rng.choice(math.prod(shape), min(count, math.prod(shape)), replace=False)
    index = [tuple(map(int, np.unravel_index(one, shape))) for one in places]
    return [(address(name, one), (one[-1] + int(rng.integers(1, shape[-1]))) % shape[-1]) for one in index]


def sums(parts):
    return sum(one.value for one in parts)


def largest(parts):
    return max(abs(one.value) for one in parts)


@pytest.mark.proof("the parts of an output sum to it, at every depth", "gpt")
@pytest.mark.proof("the parts of an output sum to it, at every depth", "vit")
@pytest.mark.proof("the parts of an output sum to it, at every depth", "captioner")
@pytest.mark.proof("the parts of an output sum to it, at every depth", "reader")
@pytest.mark.proof("the parts of an output sum to it, at every depth", "seq2seq")
@pytest.mark.proof("the parts of an output sum to it, at every depth", "dit")
@pytest.mark.parametrize(
    "name",
    [one if one in (*FAMILIES, *QUICK) else pytest.param(one, marks=pytest.mark.long) for one in VARIANTS],
)
def test_the_parts_sum_to_the_output_in_double_precision(name):
    """To 1e-12 of the largest term, and so do the parts of each part, three levels down."""
    t = traced(name)
    for cell, other in cells(t, 2):
        found = t.contributions(cell, other)
        assert abs(found.total - found.value) <= 1e-12 * largest(found.parts)
        assert abs(found.total - found.value) <= found.allowed <= 1e-10 * largest(found.parts)
        assert abs(sums(found.blocks) - found.total) <= 1e-13 * largest(found.parts)
        level = found.parts
        for _ in range(3):
            dividing = [one for one in level if one.count]
            if not dividing:
                break
            one = dividing[len(dividing) // 2]
            assert one.parts
            assert abs(sums(one.parts) - one.value) <= 1e-12 * largest(one.parts)
            assert sum(part.share for part in one.parts) == pytest.approx(1)
            level = one.parts


def within_rounding(name, count, rows):
    """`count` different cells of the output of `rows` inputs."""
    t = traced(name, double=False, rows=rows)
    tried = cells(t, count, seed=3)
    assert len({cell for cell, _ in tried}) == count
    for cell, other in tried:
        found = t.contributions(cell, other)
        assert abs(found.total - found.value) <= found.allowed
        assert found.allowed <= 1e-3 * largest(found.parts)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_parts_sum_to_the_recorded_output_within_rounding(name):
    within_rounding(name, 7, 1)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_the_parts_of_a_thousand_cells_sum_to_the_recorded_output_within_rounding(name):
    within_rounding(name, 1000, 97)


# ---- against arithmetic of the test's own


def normed(rows, norm, of):
    """Rows through a norm whose σ is that of the recorded values `of`: centred, divided, scaled, without its β."""
    deviation = np.sqrt(of.var(-1) + norm.eps)[..., None]
    return (rows - rows.mean(-1, keepdims=True)) / deviation * norm.weight.detach().numpy()


def written_by(t, attn, head, place, query):
    """What a head writes into the stream at a query: Σ_s pattern·v, through its rows of W_O."""
    groups = attn.heads // attn.kv_heads
    value = t.array(f"{place}.pattern")[0, head, query] @ t.array(f"{place}.v")[0, head // groups]
    d = attn.head_width
    return attn.out.weight.detach().numpy()[:, head * d : (head + 1) * d] @ value


def test_a_head_of_a_gpt_is_its_pattern_values_and_output_matrix():
    t, query, word = traced("gpt learned"), 3, 17
    model = t.traced_model.model
    found = t.contributions(f"logits[0,{query},{word}]")
    for block, head in ((0, 1), (1, 0)):
        row = written_by(t, model.blocks[block].attn, head, f"blocks.{block}.attn", query)
        row = normed(row, model.norm, t.array("blocks.1.post")[0, query])
        part = found.part(f"blocks.{block}.attn.z:{head}")
        assert (part.label, part.kind) == (f"block {block + 1} · head {head + 1}", "head")
        assert part.value == pytest.approx(row @ model.tokens.weight.detach().numpy()[word], rel=1e-12)


def test_a_head_of_a_post_norm_reader_is_carried_through_every_later_norm():
    t, query, word = traced("reader post"), 2, 13
    model = t.traced_model.model
    first, last = model.encoder.blocks
    before, name = t.array("encoder.input")[0, query], "encoder.blocks"
    row = written_by(t, first.attn, 1, f"{name}.0.attn", query)
    row = normed(row, first.attn_norm, before + t.array(f"{name}.0.attn.out")[0, query])
    middle = t.array(f"{name}.0.mid")[0, query] + t.array(f"{name}.0.mlp.out")[0, query]
    row = normed(row, first.mlp_norm, middle)
    row = normed(row, last.attn_norm, t.array(f"{name}.0.post")[0, query] + t.array(f"{name}.1.attn.out")[0, query])
    row = normed(row, last.mlp_norm, t.array(f"{name}.1.mid")[0, query] + t.array(f"{name}.1.mlp.out")[0, query])
    weight, bias = (one.detach().numpy() for one in (model.head.map.weight, model.head.map.bias))
    pre = weight @ t.array("encoder.out")[0, query] + bias
    act = F.gelu(torch.from_numpy(pre)).numpy()
    row = normed(weight @ row * act / pre, model.head.norm, act)
    part = t.contributions(f"logits[0,{query},{word}]").part("encoder.blocks.0.attn.z:1")
    assert part.label == "encoder block 1 · head 2"
    assert part.value == pytest.approx(row @ model.tokens.weight.detach().numpy()[word], rel=1e-12)


def test_removing_a_head_of_the_last_block_removes_its_part():
    t, query, word = traced("gpt learned"), 4, 11
    model = t.traced_model.model
    without = t.edit("blocks.1.attn.z[:,1]", 0).edit("blocks.1.mlp.out", t["blocks.1.mlp.out"].value)
    change = t.array("blocks.1.post")[0, query] - without.array("blocks.1.post")[0, query]
    row = normed(change, model.norm, t.array("blocks.1.post")[0, query])
    part = t.contributions(f"logits[0,{query},{word}]").part("blocks.1.attn.z:1")
    assert part.value == pytest.approx(row @ model.tokens.weight.detach().numpy()[word], rel=1e-12)


LABELS = {
    "T": ["class", *(f"patch {y},{x}" for y in range(1, 4) for x in range(1, 6))],
    "N": [f"patch {y},{x}" for y in range(1, 4) for x in range(1, 6)],
    "K": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
}


@functools.cache
@unchecked()
def labelled():
    """A ViT of one block, whose tokens and classes have labels."""
    model = stirred(create("vit", family("vit").config(**PICTURE | dict(classes=11)))).double()
    return trace(model, pictures().double(), words=LABELS, facts={"first_patch": 1, "grid": [3, 5]})


def test_from_an_answer_to_a_pixel_in_four_steps():
    """Answer, head, patch, its embedding: then the pixels, each the product of all that its value went through."""
    t = labelled()
    found = t.contributions("logits[0,seven]", against="eight")
    head = next(one for one in found.parts if one.kind == "head")
    patch = next(one for one in head.parts if one.kind == "patch" and one.label == "patch 2,3")
    embedding = next(one for one in patch.parts if one.label == "embedding of patch 2,3")
    pixel = next(one for one in embedding.parts if one.kind == "pixel" and one.label == "pixel 4,12, channel 2")
    assert pixel.cell == "picture[0,1,3,11]"
    assert found.part(pixel.id).value == pixel.value
    assert (embedding.kind, pixel.count, pixel.parts) == ("embedding", 0, [])
    model, number = t.traced_model.model, int(head.id.split(":")[1])
    block, d = model.blocks[0], model.blocks[0].attn.head_width
    with torch.no_grad():
        channel = 1 * 2 * 5 + 1 * 5 + 1  # of a patch of 2×5: second channel, second row, second column
        row = float(t["picture[0,1,3,11]"]) * model.patches.proj.weight[:, channel].numpy()
        row = normed(row, block.attn_norm, t.array("input")[0, 8])
        value = block.attn.w_v[number * d : (number + 1) * d].numpy() @ row
        value = t.array("blocks.0.attn.pattern")[0, number, 0, 8] * value
        row = block.attn.out.weight[:, number * d : (number + 1) * d].numpy() @ value
        row = normed(row, model.norm, t.array("blocks.0.post")[0, 0])
        expected = row @ (model.head.weight[7] - model.head.weight[8]).numpy()
    assert pixel.value == pytest.approx(expected, rel=1e-11)


# ---- what is held


@pytest.mark.parametrize(
    "name, function",
    [("gpt learned", F.layer_norm), ("gpt llama", F.rms_norm), ("gpt learned", F.gelu), ("gpt silu", F.silu),
     ("reader tanh", torch.tanh), ("dit", F.silu)],
)  # fmt: skip
def test_a_function_that_is_not_held_leaves_a_remainder(name, function, monkeypatch):
    t = traced(name)
    cell, _ = cells(t, 1)[0]

    def parts_of_all():
        found = Contributions(fresh(t), cell)
        return [part.parts for part in found.parts if part.kind in ("mlp", "condition")]

    parts_of_all()
    sentence, _ = held_rules.RULES[function]
    as_it_is = sentence, lambda seen, out, *args, **given: function(*args, **given)
    monkeypatch.setitem(held_rules.RULES, function, as_it_is)
    with pytest.raises(UserError, match="sum to .* and it is"):
        parts_of_all()


@pytest.mark.parametrize(
    "name, value",
    [("gpt learned", "pattern"), ("gpt llama", "gate"), ("dit", "scale_attn"), ("dit", "scale_mlp"),
     ("dit", "gate_attn"), ("dit", "gate_mlp"), ("dit", "last_scale"), ("dit plain", "scale_mlp")],
)  # fmt: skip
def test_a_value_that_is_not_held_leaves_a_remainder(name, value, monkeypatch):
    t = traced(name)
    cell, _ = cells(t, 1)[0]
    monkeypatch.delitem(held_rules.CONSTANT, value)
    with pytest.raises(UserError, match="the parts of .* sum to"):
        list(everything(Contributions(fresh(t), cell).parts, 2))


def fresh(t):
    """The same trace, whose linearized model is not made yet."""
    t.linearized = None
    return t


def everything(parts, depth):
    for one in parts:
        yield one
        if depth:
            yield from everything(one.parts, depth - 1)


@pytest.mark.parametrize("function", [F.gelu, F.silu, F.relu, torch.tanh])
def test_at_zero_the_ratio_of_an_activation_is_its_limit(function):
    u = torch.tensor([1e-9, 0.0], dtype=torch.float64)
    x = torch.tensor([3.0, 3.0], dtype=torch.float64)
    near, at = held_rules.RULES[function][1](u, function(u), x).tolist()
    assert at == pytest.approx(0 if function is F.relu else near, rel=1e-6)


def test_it_says_what_was_held():
    assert [line.split(" is held")[0] for line in t_held("gpt llama")] == [
        "Every attention pattern", "The activation of the gate in every gated MLP", "1/σ of every norm",
    ]  # fmt: skip
    assert any("adaLN" in line for line in t_held("dit"))
    assert any("tanh(u)/u" in line for line in t_held("reader tanh"))
    assert not any("tanh" in line or "adaLN" in line for line in t_held("reader post"))


def t_held(name):
    t = traced(name)
    return t.contributions(cells(t, 1)[0][0]).held


# ---- edits, large models, other traces


def test_contributions_of_an_edited_run():
    t = traced("gpt learned")
    model = t.traced_model.model
    head = t.edit("blocks.1.attn.z[:,1]", 0).contributions("logits[0,3,5]").part("blocks.1.attn.z:1")
    assert head.value == 0
    assert [(one.kind, one.value) for one in head.parts if one.value] == []
    for where, value in (
        ("blocks.0.attn.pattern[:,1]", 0), ("blocks.0.attn.w_v[0]", 0.5), ("blocks.0.mlp.down.bias[3]", 7.0),
        ("blocks.0.post[0,2]", lambda row: row.relu()), ("tokens[0,3]", 5), ("positions.embedding[0,1]", 0.25),
    ):  # fmt: skip
        other = t.edit(where, value)
        found = other.contributions("logits[0,3,5]")
        assert found.value != float(t["logits[0,3,5]"])
        assert abs(found.total - found.value) <= 1e-12 * largest(found.parts)
        assert (where.startswith("blocks.0.post")) == any(one.kind == "rest" for one in everything(found.parts, 2))
    assert all(p.grad is None for p in model.parameters())


def test_contributions_of_blocks_that_are_closed():
    t = traced("gpt learned")
    closed = trace(t.traced_model.model, *t.traced_model.inputs, keep="blocks")
    one, other = (some.contributions("logits[0,3,5]", 7) for some in (closed, t))
    assert [(a.id, a.value) for a in one.parts] == [(b.id, b.value) for b in other.parts]
    assert not closed.graph.opened


def test_the_model_stays_as_it_was():
    t = traced("reader tanh", double=False)
    model = t.traced_model.model
    before = {name: (p.dtype, p.requires_grad, p.clone()) for name, p in model.named_parameters()}
    model.train()
    t.contributions("logits[0,1]")
    assert model.training
    model.eval()
    for name, p in model.named_parameters():
        dtype, grad, value = before[name]
        assert (p.dtype, p.requires_grad) == (dtype, grad)
        assert torch.equal(p, value)
    x = torch.randn(3, requires_grad=True)
    assert "Gelu" in type(gelu(x).grad_fn).__name__  # the fast gradient is back


def test_any_named_value_has_contributions():
    t = traced("vit class")
    found = t.contributions("blocks.0.post[0,3,5]")
    assert abs(found.total - found.value) <= 1e-12 * largest(found.parts)
    assert {block.label for block in found.blocks if block.kind == "block"} == {"block 1"}
    block = next(one for one in found.blocks if one.kind == "block")
    assert found.part(block.id).value == pytest.approx(sums(block.parts))
    assert sum(one.share for one in found.parts) == pytest.approx(1)


def test_a_dit_divides_its_condition():
    t = traced("dit")
    found = t.contributions("patches_out[0,2,3]")
    condition = next(one for one in found.parts if one.label == "condition")
    assert {"timestep", "label"} <= {one.label for one in condition.parts}
    exact = t.contributions("output[0,0,2,3]")
    assert abs(exact.total - exact.value) <= 1e-12 * largest(exact.parts)


def test_a_decoder_reaches_the_source_through_the_values_of_cross_attention():
    t = traced("seq2seq")
    found = t.contributions("logits[0,2,5]")
    head = next(one for one in found.parts if "cross-attention" in one.label)
    below = [one.label for one in everything(head.parts, 1)]
    assert "encoder block 2 · head 1" in below
    assert "embedding of token 1" in below


@pytest.mark.parametrize("name", ["dit factored", "dit windowed"])
def test_patches_in_groups(name):
    t = traced(name)
    head = next(one for one in t.contributions("patches_out[0,2,3]").parts if one.kind == "head")
    kinds = {below.kind for one in head.parts for below in one.parts}
    assert {"embedding", "position"} <= kinds


# ---- errors and tables


def test_what_cannot_be_asked_is_said(tmp_path):
    t = labelled()
    for cell, against, why in (
        ("logits[0]", None, "one number"),
        ("logits[0,seven]", "seven", "itself the cell of seven"),
        ("logits[0,seven]", "elephant", "no label along K of logits is elephant"),
        ("logits[0,seven]", 99, "has no cell"),
        ("blocks.0.attn.pattern[0,0,0,0]", None, "is held"),
        ("blocks.0.attn.q_unnormed[0]", None, "nothing in the trace is called"),
        ("picture[0,0,0,0]", None, "not of picture"),
    ):
        with pytest.raises(UserError, match=why):
            t.contributions(cell, against)
    with pytest.raises(UserError, match="has no part nothing"):
        t.contributions("logits[0,seven]").part("nothing")
    t.save(tmp_path / "a.trace.safetensors")
    with pytest.raises(UserError, match="read from a file.*pencil.trace"):
        read(tmp_path / "a.trace.safetensors").contributions("logits[0,seven]")
    with pytest.raises(UserError, match="names its values with a probe"):
        trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).contributions("output[0,0]")


def test_the_table_of_contributions():
    found = labelled().contributions("logits[0,seven]", against="eight")
    lines = repr(found).splitlines()
    assert lines[0].startswith("logits[0,seven] − logits[0,eight] = ")
    shares = [line.split()[:2] for line in lines if "%" in line]
    assert len(shares) == min(13, len(found.parts))
    absolute = sum(abs(one.value) for one in found.parts)
    assert float(shares[0][1].rstrip("%")) == pytest.approx(100 * abs(found.parts[0].value) / absolute, abs=0.051)
    head = next(one for one in found.parts if one.kind == "head")
    for shown in (repr(found), found._repr_html_(), repr(head), head._repr_html_()):
        assert "percentages are of the sum of the absolute contributions" in shown
    assert found.largest(3) == sorted(found.parts, key=lambda one: -abs(one.value))[:3]
    assert found._repr_html_().count("<tr>") == len(found.parts)
    assert found.parts[0].label in found._repr_html_()
    assert "head" in repr(next(one for one in found.parts if one.kind == "head"))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_part_has_a_number_with_a_receipt(name):
    """Of each kind of part, at three levels."""
    t = traced(name)
    found = {}
    for cell, _ in cells(t, 1):
        for one in everything(t.contributions(cell).largest(8), 2):
            assert one.cell, one.label
            assert one.kind == "rest" or not re.search(r'_|[₀-₉"]', one.label), one.label  # words, not symbols
            found.setdefault((one.kind, one.cell.split("[")[0]), one)
    assert len({kind for kind, _ in found}) > 3
    for one in found.values():
        assert t[one.cell].why().agrees, one.cell
        assert t[one.cell].value.size == 1


@pytest.mark.parametrize("name, cell", [("vit-4x4", "out[0,0,0]"), ("kv-cache", "next.logits[0,0,2]")])
def test_contributions_of_other_models_with_probes(name, cell):
    """An example written by hand; and a token whose head reads a cache, where its parts end."""
    t = example(name)
    found = t.contributions(cell)
    assert abs(found.total - found.value) <= found.allowed
    head = next(one for one in found.parts if one.kind == "head")
    assert sums(head.parts) == pytest.approx(head.value, rel=1e-12)
    if name == "kv-cache":
        assert {one.label for one in head.parts} == {"“the”", "“cat”", "“sat”", "“on”"}


def test_contributions_on_the_command_line():
    words = "why", "example:nanogpt-block", "logits[0,sat,on]", "--against", "the"
    out = call(*words, "--contributions").stdout
    assert "logits[0,sat,on] − logits[0,sat,the] = 0.55: 7 parts, which sum to 0.55" in out
    assert re.search(r"2\.63 +45\.6% +block 1 · head 1 +blocks\.0\.attn\.z\[0,0,2,6\]", out)
    assert "percentages are of the sum of the absolute contributions" in out
    assert "Every attention pattern is held" in out
    assert "\x1b" not in out
    assert "give --contributions too" in call(*words, code=2).stderr


def test_the_rest_of_a_long_table_is_one_line():
    found = traced("vit mean").contributions("logits[0,3]")
    assert len(found.parts) > 13
    last = found.rows()[-1]
    assert last[2] == f"{len(found.parts) - 12} more, together"
    assert float(last[0].replace("−", "-")) == pytest.approx(sums(found.parts[12:]), rel=1e-3)
