"""Every formula printed over a gradient computes that gradient, whatever the family, position scheme and variant."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from test_step import OPTIMIZERS, case, own_step
from torch import nn

from gradient_formulas import GradientFormula, Values
from pencil.core.layers import RMSNorm
from pencil.tracing import gradient_formulas
from pencil.tracing.step import trace_step
from pencil.train.optim import Muon
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
    graph = trace.graph
    ids = {graph.nodes[i].symbol: graph.value(i) for i in {*graph.names.values()} if "int" in graph.nodes[i].dtype}
    ids = {symbol: torch.tensor(value) for symbol, value in ids.items() if symbol}
    targets = torch.tensor(trace["targets"].value).long() if "targets" in trace.graph.names else None
    return Values(trace, dict(model.named_parameters()), ids, targets, settings or {})


def check(values, begin=("grad:", "norm:", "loss")):
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


def test_formulas_where_targets_are_left_out():
    """As of padding, and of the last token of a text: their rows have no gradient, and are not counted."""
    model, _, batch = in_double("gpt", "gpt2")
    targets = torch.arange(14).where(torch.arange(14) % 5 > 0, -100)
    trace = trace_step(model, lambda model, ids: F.cross_entropy(model(ids).flatten(0, 1), targets), batch)
    having, _ = check(values_of(model, batch, trace), ("grad:logits", "loss"))
    assert having == ["loss", "grad:logits"]
    said = formulas(trace)
    assert said["grad:logits"] == "∂L/∂Z = [targets ≠ −100]·(p − onehot(targets))/11"
    assert said["loss"] == "L = −Σ onehot(targets)·ln p/11"


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
            known = {
                "w": p.detach(),
                "W": p.detach(),
                "g": trace[f"clipped:{found}"].value,
                "ε": group.get("eps"),
                "μ": group.get("momentum"),
                "rows": len(p),
                "columns": p[0].numel(),
            }
            # of two optimizers each has its own
            whose = f"_{kind[:-1]}" if len(optimizers) > 1 else ""
            known |= {f"η{whose}": group["lr"], f"λ{whose}": group["weight_decay"]}
            known |= {f"β{i}^step": beta**2 for i, beta in zip("₁₂", group.get("betas", ()), strict=False)}
            remembered = {"exp_avg": "m", "exp_avg_sq": "v", "momentum_buffer": "b", "momentum": "m"}
            remembered = {key: symbol for key, symbol in remembered.items() if f"new:{found}.{key}" in trace}
            assert remembered or not group.get("momentum", 1)
            for key, symbol in remembered.items():
                known |= {f"{symbol}_{when}": trace[f"{when}:{found}.{key}"].value for when in ("old", "new")}
            if kind == "Muon)":
                known |= muons_way(trace, found, known)
            if kind in ("AdamW)", "Muon)"):  # of norms and biases λ is 0
                assert ("λ" in formula) == bool(group["weight_decay"])
            worked = GradientFormula(Values(trace, {}, {}, None, known), f"new:{found}", formula).value()[0]
            torch.testing.assert_close(worked, torch.tensor(trace[f"new:{found}"].value), rtol=1e-9, atol=1e-12)
            known |= dict(zip(("β₁", "β₂"), group.get("betas", ()), strict=False))
            for key in remembered:
                new = trace[f"new:{found}.{key}"]
                worked = GradientFormula(Values(trace, {}, {}, None, known), new.node.name, new.node.formula).value()[0]
                torch.testing.assert_close(worked, torch.tensor(new.value), rtol=1e-9, atol=1e-12)
            seen += 1
    assert seen > 5


def muons_way(trace, name, known):
    """The matrices of a weight from its gradient to X₅, each as its formula gives it from those before; the last."""
    made = dict(zip("abc", Muon.coefficients, strict=True))
    for key in ("G", "norm", "X0", *(f"{letter}{i}" for i in range(1, 6) for letter in "ABX")):
        n, found = trace.graph.nodes[trace.graph.names[f"muon:{name}.{key}"]], trace[f"muon:{name}.{key}"].value
        worked = GradientFormula(Values(trace, {}, {}, None, {**known, **made}), n.name, n.formula).value()[0]
        # the products are in single precision
        torch.testing.assert_close(worked, torch.tensor(found).double().reshape(worked.shape), rtol=1e-4, atol=1e-6)
        symbol = {"G": "G_μ", "norm": "‖G_μ‖"}.get(key, key.translate(str.maketrans("012345", "₀₁₂₃₄₅")))
        made[symbol] = torch.tensor(found).double()
    return {"X₅": made["X₅"]}


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
