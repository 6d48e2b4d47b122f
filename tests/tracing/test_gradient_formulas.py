"""Every formula printed over a gradient computes that gradient, whatever the family, position scheme and variant."""

from functools import cache

import pytest
import torch
from test_step import OPTIMIZERS, case, own_step
from torch import nn

from gradient_formulas import GradientFormula, Values
from pencil.core.layers import RMSNorm
from pencil.tracing import gradient_formulas
from pencil.tracing.step import trace_step
from small_models import KINDS
from traced import unchecked


@pytest.fixture(autouse=True)
def without_shape_checks():
    with unchecked():
        yield


def in_double(family, kind):
    model, loss, batch = case(family, kind)
    real = [torch.is_tensor(one) and one.is_floating_point() for one in batch]
    return model.double(), loss, tuple(one.double() if yes else one for one, yes in zip(batch, real, strict=True))


def values_of(model, batch, trace, settings=None):
    ids = dict(zip("ts", [one for one in batch if torch.is_tensor(one) and not one.is_floating_point()], strict=False))
    rows, classes = trace["probabilities"].shape if "probabilities" in trace.names else (1, 1)
    return Values(trace, dict(model.named_parameters()), ids, torch.arange(rows) % classes, settings or {})


def check(values, begin="grad:"):
    """All formulas of a step; the names that have one, and those that have none."""
    having, lacking = [], []
    for name in [name for name in values.trace.names if name.startswith(begin)]:
        n = values.trace.graph.nodes[values.trace.graph.names[name]]
        (having if n.formula else lacking).append(name)
        if n.formula:
            found, expected = GradientFormula(values, name, n.formula).result(), torch.tensor(values.trace[name].value)
            assert torch.broadcast_shapes(found.shape, expected.shape) == expected.shape, f"{name} = {n.formula}"
            scale = float(expected.abs().max())
            off = float((found - expected).abs().max())
            # numbers are printed to six digits; the bias of keys has a gradient of rounding alone
            assert off <= 2e-6 * scale or off < 1e-14, f"{name} = {n.formula}: off by {off:.2g} of {scale:.2g}"
    return having, lacking


FAST = {"gpt": ["gpt2", "llama", "t5"], "vit": ["class"], "captioner": ["seed"], "reader": ["bert"],
        "seq2seq": ["separate"], "dit": ["windowed"]}  # fmt: skip
CASES = [
    pytest.param(family, kind, id=f"{family} {kind}", marks=[] if kind in FAST[family] else [pytest.mark.long])
    for family, kinds in KINDS.items()
    for kind in kinds
]


@cache
def recorded(family, kind):
    model, loss, batch = in_double(family, kind)
    return values_of(model, batch, trace_step(model, loss, batch))


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_formulas_of_gradients(family, kind):
    having, lacking = check(recorded(family, kind))
    assert len(having) > 5 * len(lacking)
    # the matrices of attention and of the MLP, the softmax and the residuals have one in every family
    for name in ("attn.pattern", "attn.scores", "attn.v", "attn.out.weight", "mlp.pre", "mlp.gate", "mlp.act"):
        assert not [one for one in lacking if one.endswith(f".{name}")]


def test_formulas_of_one_picture():
    """A sum over the examples of a batch has one term: it is that term, and a bias has no sum sign without a letter."""
    model, loss, (pictures,) = in_double("vit", "class")
    trace = trace_step(model, loss, (pictures[:1],))
    having, _ = check(values_of(model, (pictures[:1],), trace), "grad:head.")
    assert having == ["grad:head.bias", "grad:head.weight"]
    assert not [n.name for n in trace.graph.nodes if "Σ_ " in n.formula]


NESTEROV = {"sgd, nesterov, decay": dict(nesterov=True, momentum=0.9), "sgd, decay": {}}
UPDATES = {name: OPTIMIZERS[name] for name in ("adam fused", "muon")} | {
    name: lambda m, given=given: [torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.01, **given)]
    for name, given in NESTEROV.items()
}


@pytest.mark.parametrize("name", UPDATES)
def test_formulas_of_new_weights(name):
    """Of a second step, where moments are not 0; with the new moments, as the formulas have them."""
    model, loss, batch = in_double("gpt", "plain")
    optimizers = UPDATES[name](model)
    own_step(model, loss, [batch], optimizers)
    model._forward_pre_hooks.clear()
    model.zero_grad()
    trace = trace_step(model, loss, batch, optimizers, clip=0.1)
    clipped, lacking = check(values_of(model, batch, trace, {"clip": 0.1}), "clipped:")
    assert clipped
    assert not lacking
    seen = 0
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        for p in group["params"]:
            found = next(name for name, one in model.named_parameters() if one is p)
            formula, _, kind = trace.graph.nodes[trace.graph.names[f"new:{found}"]].formula.rpartition(" (")
            if kind == "Muon)" and f"muon:{found}.X5" not in trace.names:
                continue  # queries, keys and values have a matrix each
            if kind == "Muon)":
                x0 = trace[f"muon:{found}.X0"]
                assert x0.node.formula == ("G/‖G‖" if tuple(p.shape) == x0.shape else "Gᵀ/‖G‖")
            known = {
                "w": p.detach(),
                "W": p.detach(),
                "g": trace[f"clipped:{found}"].value,
                "η": group["lr"],
                "λ": group["weight_decay"],
                "μ": group.get("momentum"),
                "ε": group.get("eps"),
                "rows": len(p),
                "columns": p[0].numel(),
            }
            known |= {f"β{i}ᵗ": beta**2 for i, beta in zip("₁₂", group.get("betas", ()), strict=False)}
            known |= {
                symbol: trace[name].value
                for symbol, name in {
                    "m": f"new:{found}.exp_avg",
                    "v": f"new:{found}.exp_avg_sq",
                    "b": f"new:{found}.momentum_buffer",
                    "X₅": f"muon:{found}.X5",
                }.items()
                if name in trace
            }
            if kind in ("AdamW)", "Muon)"):  # of norms and biases λ is 0
                assert ("λ" in formula) == bool(group["weight_decay"])
            worked = GradientFormula(Values(trace, {}, {}, None, known), f"new:{found}", formula).value()[0]
            torch.testing.assert_close(worked, torch.tensor(trace[f"new:{found}"].value), rtol=1e-9, atol=1e-12)
            known |= dict(zip(("β₁", "β₂"), group.get("betas", ()), strict=False))
            for symbol, key in (("m", "exp_avg"), ("v", "exp_avg_sq"), ("b", "momentum_buffer")):
                if f"new:{found}.{key}" in trace:
                    remembered, before = (
                        trace[f"new:{found}.{key}"],
                        {f"{symbol}ₜ₋₁": trace[f"old:{found}.{key}"].value},
                    )
                    values = Values(trace, {}, {}, None, known | before)
                    worked = GradientFormula(values, remembered.node.name, remembered.node.formula).value()[0]
                    torch.testing.assert_close(worked, torch.tensor(remembered.value), rtol=1e-9, atol=1e-12)
            seen += 1
    assert seen > 5


def formulas(trace):
    nodes = [trace.graph.nodes[trace.graph.names[name]] for name in trace.names]
    return {n.name: f"{n.symbol} = {n.formula}" for n in nodes if n.formula}


def test_what_formulas_say():
    said = formulas(recorded("gpt", "gpt2").trace)
    assert said["grad:logits"] == "∂L/∂Z = (p − onehot(targets))/14"
    assert said["grad:tokens.weight"] == "∂L/∂E = Σ_B ∂L/∂Zᵀ X_f + Σ_B onehot(t)ᵀ ∂L/∂E[t]"
    assert said["grad:blocks.0.attn.w_q"] == "∂L/∂W_Q = Σ_B X̃ᵀ ∂L/∂Q"
    assert said["grad:blocks.0.attn.scores"] == "∂L/∂S = (∂L/∂A − Σ_j ∂L/∂A·A)·A"
    assert said["grad:blocks.0.attn_norm"] == "∂L/∂X̃ = [∂L/∂Q ∂L/∂K ∂L/∂V] [W_Q W_K W_V]ᵀ"
    norm = "(ĝ − mean(ĝ) − x̂·mean(ĝ·x̂))/σ"
    assert said["grad:blocks.0.mid"] == (
        f"∂L/∂X′ = ∂L/∂X¹ + {norm}, ĝ = ∂L/∂X̂·γ_mlp, x̂ = (X′ − mean(X′))/σ, σ = √(var(X′) + 1e−5)"
    )
    # what belongs to another block has its number
    assert "∂L/∂X′⁽²⁾ + " in said["grad:blocks.0.post"]


@pytest.mark.parametrize("operation", ["mul", "sub", "sum"])
def test_a_formula_that_is_wrong_is_caught(operation, monkeypatch):
    """A line of the composer is changed: a factor is left out, a difference is a sum, a sum over cells is doubled."""
    text = gradient_formulas.Composer._text

    def changed(self, e, order):
        match e:
            case "mul", _, right if operation == "mul":
                return text(self, right, order)
            case "sub", left, right if operation == "sub":
                return text(self, ("add", left, right), order)
            case "sum", *_ if operation == "sum":
                return f"2·({text(self, e, order)[0]})", 1
        return text(self, e, order)

    monkeypatch.setattr(gradient_formulas.Composer, "_text", changed)
    values = recorded("gpt", "llama")
    graph = values.trace.graph
    composer = gradient_formulas.Composer(graph, gradient_formulas.symbols_of(graph))
    for node in {graph.names[name] for name in values.trace.names if name.startswith("grad:")}:
        if graph.nodes[node].formula:
            monkeypatch.setattr(graph.nodes[node], "formula", composer.formula(node))
    with pytest.raises((AssertionError, RuntimeError)):
        check(values)


def test_where_there_is_no_symbol_there_is_no_formula():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), RMSNorm(7), nn.Linear(7, 3))
    trace = trace_step(model, lambda model, x: model(x).square().mean(), (torch.randn(11, 5),))
    assert set(formulas(trace)) == {"grad:loss"}


def test_a_closed_block_says_the_same_when_it_is_opened():
    model, loss, batch = in_double("gpt", "llama")
    whole = formulas(recorded("gpt", "llama").trace)
    closed = trace_step(model, loss, batch, keep="blocks")
    before = formulas(closed)
    assert "grad:blocks.0.attn.w_q" not in before
    assert closed["grad:blocks.0.attn.w_q"].shape == (3, 30, 10)  # which opens the block
    said = formulas(closed)
    assert set(said) > set(before)
    inside = [name for name in whole if name.startswith(("grad:blocks.0.attn.", "grad:blocks.0.mlp."))]
    missing = [name for name in inside if said.get(name) != whole[name] and "weight" not in name]
    assert not missing
