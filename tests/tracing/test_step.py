"""A training step on the tape: its gradients and new weights are torch's own, and each is what its receipt says."""

import copy
import inspect
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from pencil.config import UserError
from pencil.core.probe import Probe
from pencil.learn.worked.examples import example
from pencil.tracing import rules
from pencil.tracing.live_trace import trace as live
from pencil.tracing.step import trace_step
from pencil.tracing.trace import read
from pencil.train.optim import make_optimizers
from pencil.train.settings import TrainConfig
from small_models import KINDS, conditions, noised, pictures, tiny, tokens
from traced import LEAVES, disagreeing, theirs, unchecked, wrong

SHORT = {"gpt": ["gpt2", "llama"], "vit": ["class"], "captioner": ["seed"], "reader": ["bert"], "seq2seq": ["separate"],
         "dit": ["windowed"]}  # fmt: skip
OURS = [
    pytest.param(family, kind, id=f"{family} {kind}", marks=[] if kind in SHORT[family] else [pytest.mark.long])
    for family, kinds in KINDS.items()
    for kind in kinds
]
THEIRS = ["gpt2", "bert", "vit", "t5", "llama"]


def inputs_of(family, c):
    if family == "gpt" or family == "reader":
        return (tokens(2, 7, vocab=c.vocab),)
    if family == "vit":
        return (pictures(2, c.channels, *c.image_size),)
    if family == "captioner":
        return tokens(2, 5, vocab=c.vocab), pictures(2, c.channels, *c.image_size)
    if family == "seq2seq":
        return tokens(2, 5, vocab=c.vocab), tokens(2, 7, vocab=c.source_vocab or c.vocab, seed=5)
    picture, time = noised(c, 2)
    return picture, time, *(value for value in conditions(c, 2)[:2] if value is not None)


def mean_loss(model, *inputs, **keywords):
    """Cross-entropy over classes, or the squared distance to a number where there are none."""
    out = model(*inputs, **keywords)
    out = out if torch.is_tensor(out) else out.logits
    if out.ndim > 3 or out.shape[-1] == 1:
        return F.mse_loss(out, torch.full_like(out, 0.3))
    flat = out.flatten(0, -2)
    return F.cross_entropy(flat, torch.arange(len(flat)) % flat.shape[-1])


def case(family, kind):
    """A model, the loss of a batch, and the batch."""
    if family == "theirs":
        model, _, keywords = theirs(kind)
        return (
            model,
            lambda model, *given: mean_loss(model, **dict(zip(keywords, given, strict=True))),
            (*keywords.values(),),
        )
    model = tiny(family, **KINDS[family][kind])
    return model, mean_loss, inputs_of(family, model.config)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)


def own_step(model, loss, batches, optimizers, clip=None):
    """The same step without the tape, by the plain route of attention."""
    if "probe" in inspect.signature(model.forward).parameters:  # a probe asks for that route
        model.register_forward_pre_hook(lambda _, args, given: (args, {**given, "probe": Probe()}), with_kwargs=True)
    with sdpa_kernel(SDPBackend.MATH):
        for batch in batches:
            (loss(model, *batch) / len(batches)).backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    for optimizer in optimizers:
        optimizer.step()
    return dict(model.named_parameters())


def differing(trace, parameters):
    """The parameters whose new values are not these, to the last bit."""
    return [
        name
        for name, p in parameters.items()
        if p.grad is not None and not np.array_equal(trace.new[name].value, p.detach().numpy())
    ]


@unchecked()
def check(family, kind, cells):
    model, loss, batch = case(family, kind)
    other = copy.deepcopy(model)
    trace = trace_step(model, loss, batch, adamw(model), clip=0.1)
    graph = trace.graph
    assert not graph.undescribed
    assert all(n.plan is not None or n.kind in LEAVES for n in graph.nodes if n.size)
    worked, bad = wrong(graph, cells)
    assert worked > 10 * cells
    assert not bad
    assert not disagreeing(trace, 150 if cells > 100 else 40)
    assert not differing(trace, own_step(other, loss, [batch], [adamw(other)], clip=0.1))


@pytest.mark.parametrize(("family", "kind"), OURS)
def test_every_cell_of_a_step_is_reworked(family, kind):
    check(family, kind, 100)


@pytest.mark.parametrize("name", THEIRS)
def test_every_cell_of_a_step_of_other_peoples_models_is_reworked(name):
    check("theirs", name, 100)


@pytest.mark.long
@pytest.mark.parametrize("family", KINDS)
def test_a_thousand_cells_of_each_operation_are_reworked(family):
    check(family, SHORT[family][0], 1000)


def slopes(model, loss, batch, names, cells, h=1e-5, seed=0):
    """Central differences of the loss at random cells of parameters: (name, place, slope)."""
    rng, parameters = np.random.default_rng(seed), dict(model.named_parameters())
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        for _ in range(cells):
            name = names[rng.integers(len(names))]
            flat = parameters[name].view(-1)
            place = int(rng.integers(len(flat)))
            before = float(flat[place])
            flat[place] = before + h
            above = float(loss(model, *batch))
            flat[place] = before - h
            below = float(loss(model, *batch))
            flat[place] = before
            yield name, place, (above - below) / (2 * h)


@pytest.mark.parametrize("cells", [60, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("family", KINDS)
@unchecked()
def test_gradients_are_central_differences(family, cells):
    model, loss, batch = case(family, SHORT[family][0])
    model = model.double()
    batch = tuple(t.double() if t.is_floating_point() else t for t in batch)
    trace = trace_step(model, loss, batch)
    gradients = {name: trace.grad[name].value for name in trace.grad if name in dict(model.named_parameters())}
    # some gradients are 0 but for rounding, as those of the keys' bias
    least = 1e-3 * max(np.abs(g).max() for g in gradients.values())
    for name, place, slope in slopes(model, loss, batch, list(gradients), cells):
        g = gradients[name]
        assert abs(g.reshape(-1)[place] - slope) <= 1e-6 * max(np.abs(g).max(), least), name


OPTIMIZERS = {
    "sgd": lambda m: [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False)],
    "sgd foreach": lambda m: [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=True)],
    "adam": lambda m: [torch.optim.Adam(m.parameters(), lr=1e-3, foreach=False)],
    "adam fused": lambda m: [torch.optim.Adam(m.parameters(), lr=1e-3, weight_decay=0.1, fused=True)],
    "adamw": lambda m: [torch.optim.AdamW(m.parameters(), lr=1e-3, foreach=False, fused=False)],
    "adamw foreach": lambda m: [torch.optim.AdamW(m.parameters(), lr=1e-3, foreach=True)],
    "muon": lambda m: list(make_optimizers(m, TrainConfig(optimizer="muon", device="cpu")).values()),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@unchecked()
def test_an_optimizers_second_step_is_its_own(name):
    """The second step has moments to begin with; it is accumulated over two batches."""
    model, loss, batch = case("gpt", "gpt2")
    batches = [batch, (tokens(2, 7, vocab=101, seed=11),)]
    other = copy.deepcopy(model)
    optimizers, others = OPTIMIZERS[name](model), OPTIMIZERS[name](other)
    for one, its_optimizers in ((model, optimizers), (other, others)):
        own_step(one, loss, [batch], its_optimizers)
        one._forward_pre_hooks.clear()
        one.zero_grad()
    trace = trace_step(model, loss, batches, optimizers, clip=0.1)
    worked, bad = wrong(trace.graph, 50)
    assert worked > 1000
    assert not bad
    assert not trace.graph.undescribed
    assert not disagreeing(trace, 100)
    assert not differing(trace, own_step(other, loss, batches, others, clip=0.1))
    assert any(name.startswith("old:") for name in trace.names)


@unchecked()
def test_muons_matrices_and_the_norms_have_names_from_a_new_weight_to_its_gradient():
    """The names lead on: new weight, X₅ … X₀, G, clipped gradient; each matrix is that of a Muon written out here."""
    model, loss, batch = case("gpt", "gpt2")
    optimizers = list(make_optimizers(model, TrainConfig(optimizer="muon", device="cpu", weight_decay=0.1)).values())
    trace, name = trace_step(model, loss, batch, optimizers, clip=0.1), "blocks.0.mlp.up.weight"
    g = torch.from_numpy(trace["clipped:" + name].value).double()
    x = (g * 0.05).lerp(g, 0.05).T  # momentum begins at 0
    np.testing.assert_allclose(trace[f"muon:{name}.G"].value, x.T, rtol=1e-5, atol=1e-9)
    x = x / x.norm()
    for i in range(6):
        np.testing.assert_allclose(trace[f"muon:{name}.X{i}"].value, x, rtol=1e-4, atol=1e-5)
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    receipt = trace.new[name][2, 3].why()
    assert [term.where for term in receipt.terms] == [f"{name}[2,3]", f"muon:{name}.X5[3,2]"]
    assert "(Muon)" in receipt.meaning
    assert "where 1 − η_Muon·λ_Muon = 1 − 0.02·0.1 = 0.998" in str(receipt)
    assert "where η_Muon·√(rows/columns) = 0.02·√(120/30) = 0.04" in str(receipt)
    assert "where η_Muon = 0.02, λ_Muon = 0.1" in str(receipt)
    assert "where η_AdamW = 0.003, β₁ = 0.9" in str(trace.new["norm.weight"][3].why())
    assert "where a = 3.445" in str(trace[f"muon:{name}.X5"][3, 2].why())
    assert f"muon:{name}.X4[0,2]" in {term.where for term in trace[f"muon:{name}.X5"][3, 2].why().terms}
    joined = trace.new["blocks.1.attn.qkv.weight"]
    third = joined.shape[0] // 3
    for row, part in ((1, "q"), (third + 1, "k"), (2 * third + 1, "v")):
        assert joined[row, 2].why().terms[1].where == f"muon:blocks.1.attn.qkv.weight.{part}.X5[1,2]"
    norms = {term.name for term in trace["grad_norm"].why().terms}
    assert norms == {f"norm:{parameter}" for parameter in dict(model.named_parameters())}
    assert trace[f"norm:{name}"].value == pytest.approx(np.linalg.norm(trace.grad[name].value), rel=1e-6)
    assert "where clip = 0.1" in str(trace["clipped:" + name][2, 3].why())


@pytest.mark.parametrize("family", [*(pytest.param(f, marks=pytest.mark.long) for f in KINDS if f != "gpt"), "gpt"])
@unchecked()
def test_blocks_left_closed_open_in_both_directions(family):
    """Closed, a block's inside is not there; opened, everything is what it is where nothing was closed, to the bit."""
    model, loss, batch = case(family, SHORT[family][0])
    optimizer = adamw(model)
    batches = [batch, batch]
    whole = trace_step(model, loss, batches, optimizer, clip=0.1, keep="all")
    closed = trace_step(model, loss, batches, optimizer, clip=0.1, keep="blocks")
    assert closed.graph.blocks
    assert len(closed.graph.nodes) < len(whole.graph.nodes)
    assert {"grad:loss"} | set(closed.names) <= {*whole.names, *closed.names}
    inner = [name for name in whole.names if name not in closed.graph.names]
    assert any(name.startswith("grad:") for name in inner)
    for name in [name for name in whole.names if name in closed.graph.names]:
        np.testing.assert_array_equal(closed[name].value, whole[name].value, err_msg=name)
    worked, bad = wrong(closed.graph, 20)
    assert not bad
    for name in inner:
        np.testing.assert_array_equal(closed[name].value, whole[name].value, err_msg=name)
    assert not closed.graph.undescribed
    assert all(n.plan is not None or n.kind in LEAVES for n in closed.graph.nodes if n.size)
    assert len(closed.graph.opened) == len(closed.graph.blocks)
    now, bad = wrong(closed.graph, 20)
    assert now > worked
    assert not bad
    assert not disagreeing(closed, 40)


def test_the_model_and_its_optimizer_are_as_they_were():
    model, loss, batch = case("gpt", "llama")
    optimizer = adamw(model)
    loss(model, *batch).backward()
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]))
    model.train()
    trace = trace_step(model, loss, batch, optimizer, clip=0.1)
    after = model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert model.training
    # the trace keeps its own, whatever the model does next
    new, old = trace.new["norm.weight"].value.copy(), trace["norm.weight"].value.copy()
    assert not np.array_equal(new, old)
    np.testing.assert_array_equal(old, before[0]["norm.weight"].numpy())


def test_what_the_model_had_before_it_was_changed_is_not_read_as_if_it_were_now():
    model, loss, batch = case("gpt", "llama")
    traces = trace_step(model, loss, batch), live(model, *batch)
    trace_step(model, loss, batch, adamw(model))  # which gives every weight back
    assert traces[1]["norm.weight"][3].value == model.norm.weight[3]
    with torch.no_grad():
        model.norm.weight.mul_(2)
    for trace in traces:
        with pytest.raises(UserError, match=r"norm.weight was changed after this was recorded: record it again"):
            trace["norm.weight"][3].why()
        assert trace["logits"][0, 1, 2].value == trace["logits"].value[0, 1, 2]


@pytest.mark.parametrize("family", ["gpt", "vit", pytest.param("seq2seq", marks=pytest.mark.long)])
@unchecked()
def test_the_examples_of_a_batch_sum_to_a_gradient(family):
    """By their tokens; each example's share is the gradient of the loss of its own rows."""
    model, loss, batch = case(family, SHORT[family][0])
    model, batch = model.double(), tuple(t.double() if t.is_floating_point() else t for t in batch)
    trace = trace_step(model, loss, batch, clip=1e9)
    parameters, rng = dict(model.named_parameters()), np.random.default_rng(3)
    out = model(*batch)
    rows = F.cross_entropy(out.flatten(0, -2), torch.arange(out[..., 0].numel()) % out.shape[-1], reduction="none")
    shares = [
        torch.autograd.grad(one, list(parameters.values()), retain_graph=True, allow_unused=True)
        for one in rows.view(2, -1).sum(1) / len(rows)
    ]
    compared = 0
    for i, (name, p) in enumerate(parameters.items()):
        index = tuple(int(rng.integers(n)) for n in p.shape)
        right = [float(share[i][index]) for share in shares]
        if min(map(abs, right)) < 1e-9:
            continue  # a bias of keys, or a token that is not in both
        found = trace.contributions(f"grad:{name}[{','.join(map(str, index))}]")
        parts = {part.label: part.value for part in found.parts}
        assert abs(found.total - found.value) <= found.allowed, name
        assert parts["example 1"] == pytest.approx(right[0], rel=1e-6), name
        assert parts["example 2"] == pytest.approx(right[1], rel=1e-6), name
        assert all(sum(one.value for one in part.parts) == pytest.approx(part.value) for part in found.parts)
        compared += 1
    assert compared > len(parameters) / 2


def test_the_tokens_of_a_gradient_are_products_of_their_own():
    """Of a linear layer: what came in at a token times the gradient of what went out."""
    trace = example("training-step")
    x, g = trace["blocks.0.mlp_norm"].value[0], trace.grad["blocks.0.mlp.pre"].value[0]
    found = trace.contributions("grad:blocks.0.mlp.up.weight[2,1]")
    assert {part.label: part.value for part in found.parts} == pytest.approx(
        {"the": g[0, 2] * x[0, 1], "cat": g[1, 2] * x[1, 1]}
    )
    assert "2 tokens, which sum to" in str(found)
    with pytest.raises(UserError, match="are of gradients, grad:NAME, and not of blocks.0.mid"):
        trace.contributions("blocks.0.mid[0,1,2]")
    with pytest.raises(UserError, match="leave --against out"):
        trace.contributions("grad:blocks.0.mlp.up.weight[2,1]", against="cat")


@pytest.mark.parametrize("prefix", ["new", "clipped"])
def test_a_view_of_a_weight_names_its_cell_after_the_step(prefix, tmp_path):
    """The gradient has the view; of the step there is the weight as it is stored, in a file too."""
    trace = example("training-step")
    trace.save(tmp_path / "step.trace.safetensors")
    before, gradient = trace["blocks.0.attn.w_k"].value, trace.grad["blocks.0.attn.w_k"].value
    for one in (trace, read(tmp_path / "step.trace.safetensors")):
        with pytest.raises(UserError, match=r"w_k is a view of blocks\.0\.attn\.qkv\.weight") as refused:
            one[f"{prefix}:blocks.0.attn.w_k[0,3,1]"]
        there = str(refused.value).rpartition(" is ")[2]
        assert there.startswith(f"{prefix}:blocks.0.attn.qkv.weight[")
        assert float(one[there.removeprefix(f"{prefix}:")]) == before[0, 3, 1]
        assert float(one[there.replace(f"{prefix}:", "grad:")]) == gradient[0, 3, 1]
        assert one[there].why().agrees
        with pytest.raises(UserError, match=r"its cell \[0,0,0\] there is"):
            one[f"{prefix}:blocks.0.attn.w_k"]


@unchecked()
def test_the_bias_of_keys_has_no_gradient_but_rounding_and_adam_makes_a_step_of_it():
    """It shifts all scores of a query alike; where positions rotate the keys after it, it has one."""
    model, loss, batch = case("gpt", "gpt2")
    trace = trace_step(model, loss, batch, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True))
    gradient = trace.grad["blocks.0.attn.qkv.bias"].value.reshape(3, -1)
    assert np.abs(gradient[1]).max() < 1e-6 * np.abs(gradient[[0, 2]]).max()
    moved = np.abs(trace.new["blocks.0.attn.qkv.bias"].value - trace["blocks.0.attn.qkv.bias"].value).reshape(3, -1)
    assert moved[1].max() > 1e-6


def test_gradients_meet_where_values_branch():
    """A residual's sum passes its gradient to both sides; a tied table has that of the lookup and of the head."""
    model, loss, batch = case("gpt", "gpt2")
    trace = trace_step(model, loss, batch)
    names = set(trace.grad)
    assert {"blocks.0.mid", "blocks.0.attn.pattern", "blocks.1.attn.w_q", "logits", "tokens.weight"} <= names
    mid, post = trace.grad["blocks.1.mid"].value, trace.grad["blocks.1.post"].value
    assert mid.shape == post.shape
    assert not np.array_equal(mid, post)
    summed = trace.grad["tokens.weight"][3, 5].why()
    assert len(summed.terms) >= 2
    assert summed.agrees


def test_softmax_minus_one_hot():
    model, loss, batch = case("gpt", "gpt2")
    trace = trace_step(model, loss, batch)
    logits = trace["logits"].value.reshape(14, 101).astype(float)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    p[np.arange(14), np.arange(14)] -= 1
    np.testing.assert_allclose(trace.grad["logits"].value.reshape(14, 101), p / 14, atol=1e-7)


def test_settings_of_optimizers_and_of_groups_have_letters_of_their_own():
    model = nn.Linear(5, 3)
    groups = [{"params": [model.weight], "lr": 0.2}, {"params": [model.bias], "weight_decay": 0.1}]
    for optimizers, said in (
        ([torch.optim.SGD(groups, lr=0.3)], ["w − η_1·g (SGD)", "w − η_2·(g + λ·w) (SGD)"]),
        (
            [torch.optim.SGD([p], lr=rate) for p, rate in ((model.weight, 0.3), (model.bias, 0.2))],
            ["w − η_SGD1·g (SGD)", "w − η_SGD2·g (SGD)"],
        ),
    ):
        trace = trace_step(model, lambda model, x: model(x).square().mean(), torch.ones(2, 5), optimizers)
        assert [trace.new[name].node.formula for name in ("weight", "bias")] == said
        words = [
            step.word for name, at in (("weight", (2, 3)), ("bias", 1)) for step in trace.new[name][at].why().steps
        ]
        assert [word for word in words if word.startswith("η")] == [text.split("·")[0][4:] for text in said]


def test_without_an_optimizer_it_ends_with_the_gradients():
    model, loss, batch = case("gpt", "llama")
    trace = trace_step(model, loss, batch)
    assert not list(trace.new)
    assert len(list(trace.grad)) > 30


def test_a_wrong_rule_is_caught(monkeypatch):
    kind, right = rules.RULES["_softmax_backward_data"]
    monkeypatch.setitem(rules.RULES, "_softmax_backward_data", (kind, lambda call: right(call) * 1.001))
    model, loss, batch = case("gpt", "gpt2")
    _, bad = wrong(trace_step(model, loss, batch).graph, 50)
    assert {op for op, _, _ in bad} == {"_softmax_backward_data"}


def test_an_operation_of_the_backward_pass_without_a_rule_is_a_leaf():
    model = nn.Linear(5, 3)
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    trace = trace_step(model, lambda model, x: torch.cdist(model(x), x[:, :3]).square().mean(), (x,))
    assert list(trace.graph.undescribed) == ["_cdist_backward"]
    found = trace.grad["weight"][2, 3].why()
    assert found.agrees
    assert any("_cdist_backward is not described" in sentence for sentence in found.ends)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(loss=lambda model, x: model(x)), "the loss is of shape 2×3"),
        (dict(loss=lambda model, x: 1.0), "the loss is a float"),
        (dict(loss=lambda model, x: model(x).sum() / 0), "the loss is"),
        (dict(loss=lambda model, x: model(x).detach().sum()), "does not depend on any parameter"),
        (dict(optimizer=torch.optim.Rprop), "the update of Rprop is not described"),
        (dict(batch=[]), "there is no batch"),
        (dict(batch="the cat"), "'the cat' is a text: give the ids"),
        (
            dict(loss=lambda out, aim, more: out),
            r"called as loss\(model, \*batch\), here with the model and 1 more \(missing",
        ),
        (dict(loss=nn.CrossEntropyLoss(), batch=(torch.ones(2, 5), torch.ones(2))), "here with the model and 2 more"),
    ],
)
def test_what_has_no_step_is_refused(change, said):
    model = nn.Linear(5, 3)
    given = dict(loss=lambda model, x: model(x).square().mean(), batch=torch.ones(2, 5)) | change
    optimizer = given.pop("optimizer", None)
    with pytest.raises(UserError, match=said):
        trace_step(model, given["loss"], given["batch"], optimizer and optimizer(model.parameters(), lr=0.1))
    assert model.weight.grad is None


@pytest.mark.parametrize("clip", [0, -1, math.nan, math.inf])
def test_a_clipping_norm_that_clips_nothing_or_all_is_refused(clip):
    model = nn.Linear(5, 3)
    with pytest.raises(UserError, match=f"a number above 0, not {clip}"):
        trace_step(model, lambda model, x: model(x).square().mean(), torch.ones(2, 5), clip=clip)


def test_an_optimizer_of_another_model_is_refused():
    model, before = nn.Linear(5, 3), nn.Linear(5, 3)
    with pytest.raises(UserError, match=r"SGD, has no parameter of this model: make it of model\.parameters\(\)"):
        trace_step(
            model, lambda m, x: m(x).square().mean(), torch.ones(2, 5), torch.optim.SGD(before.parameters(), 0.1)
        )


def test_the_first_gradient_that_is_not_finite_is_named():
    """Of a root that is not chosen: the loss does not see it, and its gradient is 0 times what is not a number."""
    torch.manual_seed(2)
    model, x, lines = nn.Linear(5, 3), torch.randn(7, 5), []
    row, column = (model(x) < 0).nonzero()[0].tolist()

    def loss(model, x, least):
        z = model(x)
        return torch.where(z > 0, z.clamp(min=least).sqrt(), z).sum()

    for least in (1e-3, -9.0):
        t = trace_step(model, loss, (x, least), warn=lines.append)
    (line,) = lines
    assert f"but grad::mul[{row},{column}] is not a number: the first of the gradients that are not finite" in line
    assert t["grad::mul"][row, column].why().formula.startswith("2·√max(")


def test_a_new_weight_that_does_not_exist_is_explained():
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD([model.weight], 0.1)
    t = trace_step(model, lambda m, x: m(x).square().mean(), torch.ones(2, 5), optimizer)
    with pytest.raises(UserError, match="the step does not change bias: no optimizer has it"):
        t.new["bias"]


def test_a_model_without_parameters_that_need_gradients_is_refused():
    with pytest.raises(UserError, match="no parameters that need gradients"):
        trace_step(nn.Linear(5, 3).requires_grad_(False), lambda model, x: model(x).sum(), torch.ones(2, 5))


def test_a_graph_from_before_the_trace_is_refused():
    model = nn.Linear(5, 3)
    made_before = model(torch.ones(2, 5)).exp()
    with pytest.raises(UserError, match="computed before the trace began"):
        trace_step(model, lambda model, x: (model(x) * made_before).sum(), torch.ones(2, 5))
