"""Receipts: numbers as they are rounded, the arithmetic as it is written, the links."""

import math
import re
from decimal import ROUND_HALF_UP, Decimal, localcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from pencil.tracing.live_trace import trace
from pencil.tracing.receipt import format_number, receipt
from traced import OURS, disagreeing, traced, unchecked

# numbers


def read(written):
    return Decimal(written.replace("−", "-"))


@given(
    value=st.floats(allow_nan=False, allow_infinity=False),
    digits=st.integers(1, 17),
)
@example(0.99995, 4)
@example(9999.5, 4)
@example(0.00012345, 4)
@example(-2.5e-5, 1)
@example(2.5, 1)
@example(1e-5, 4)
@example(9.9999e-5, 4)
@example(5e-324, 4)
@example(123456.5, 4)
@example(1e15, 4)
@example(0.1 + 0.2, 17)
def test_numbers_are_rounded_half_up_from_their_exact_value(value, digits):
    written = format_number(value, digits)
    exact = Decimal(value)
    with localcontext() as context:
        context.prec = 1200
        # below 1e15 whole digits are never taken away
        last = exact.adjusted() - digits + 1
        last = min(last, 0) if abs(exact) < 10**15 else last
        expected = exact.quantize(Decimal(1).scaleb(last), ROUND_HALF_UP)
        assert read(written) == expected
    assert "-" not in written
    assert not re.search(r"\.\d*0(e|$)", written)
    assert ("e" in written) == (exact != 0 and not -4 <= exact.adjusted() < 15)


@pytest.mark.parametrize("value, written", [
    (1.98, "1.98"), (0, "0"), (-0.0, "0"), (3.0, "3"), (-7, "−7"), (0.1 + 0.2, "0.3"), (12345.678, "12346"),
    (1e-5, "1e−5"), (-1.23456e-7, "−1.235e−7"), (0.0001234, "0.0001234"), (math.inf, "∞"), (-math.inf, "−∞"),
    (math.nan, "not a number"), (1.5 + 2j, "1.5 + 2i"), (1.5 - 0.25j, "1.5 − 0.25i"), (1e15, "1e15"), (-1.23456e20, "−1.235e20"),
    (999999999999999.0, "999999999999999"),
    (True, "1"),
])  # fmt: skip
def test_numbers_as_they_are_written(value, written):
    assert format_number(value) == written


def test_the_number_masks_are_made_of():
    """Nothing float32 holds is less; transformers adds it to what may not be seen."""
    assert format_number(-3.4028234663852886e38) == "−3.403e38"


# exact texts


@pytest.fixture(scope="module")
def vit():
    return traced("example:vit-4x4")


@pytest.fixture(scope="module")
def gpt():
    return traced("example:nanogpt-block")


@pytest.mark.parametrize("where, lines", [
    ("attn.scores[0,0,0,2]", ["S[0,2] = (0.6·3 + 0.5·2)/√2 = 1.98", "recorded 1.98 ✓"]),
    ("attn.q[0,1,2,0]", ["Q[2,0] = 3·0 + 2·0 + 2.1·1 + 2.2·0 = 2.1", "recorded 2.1 ✓"]),
    ("input[0,0,0]", ["Z⁰[0,0] = 0.5 + 0.1 = 0.6", "recorded 0.6 ✓"]),
    ("input[0,1,1]", ["Z⁰[1,1] = 1 + 0.1 = 1.1", "recorded 1.1 ✓"]),
    ("patches.out[0,2,3]", ["z[2,3] = 9·0.1 + 10·0.1 + 13·0.1 + 14·0.1 = 4.6", "recorded 4.6 ✓"]),
    ("patches.flat[0,1,0]", ["X_patch[1,0] = patches.swap[0,0,1,0,0,0] = 3", "recorded 3 ✓"]),
    ("out[0,1,2]", ["Z′[1,2] = 1.5 + 3.924 = 5.424", "recorded 5.424 ✓"]),
    ("attn.pattern[0,0,0,2]", [
        "A[0,2] = e^(1.98 − 6.827)/1.301 = 0.006034",
        "  where max = max(0.4313, 0.8132, 1.98, 5.586, 6.827) = 6.827",
        "  where total = e^(0.4313 − 6.827) + e^(0.8132 − 6.827) + e^(1.98 − 6.827) + e^(5.586 − 6.827) "
        "+ e^(6.827 − 6.827) = 1.301",
        "recorded 0.006034 ✓",
    ]),
    ("picture[0,0,1,1]", ["picture[0,0,1,1] = 6   (given to the model)"]),
    ("cls[0,0,0]", ["cls[0,0,0] = 0.5   (learned)"]),
])  # fmt: skip
def test_the_worked_example_reads_as_on_paper(vit, where, lines):
    found = vit[where].why()
    assert list(found.lines()) == lines
    assert found.where == where
    assert found.agrees


def test_what_a_receipt_holds(vit):
    found = vit["attn.scores[0,0,0,2]"].why()
    assert found.formula == "(0.6·3 + 0.5·2)/√2"
    assert found.reworked == pytest.approx(2.8 / math.sqrt(2), abs=1e-15)
    assert found.recorded == pytest.approx(found.reworked, abs=1e-15)
    assert found.index == (0, 0, 0, 2)
    assert found.label == "S[0,2]"
    assert [(t.where, t.value) for t in found.terms] == [
        ("attn.q[0,0,0,0]", pytest.approx(0.6)), ("attn.k[0,0,2,0]", 3.0),
        ("attn.q[0,0,0,1]", pytest.approx(0.5)), ("attn.k[0,0,2,1]", 2.0),
    ]  # fmt: skip
    assert found.meaning == "Q Kᵀ/√d"
    assert 0 < found.allowed < 1e-14


def test_the_numbers_are_those_of_the_corrected_example(vit, golden):
    for head in (1, 2):
        expected = golden[f"004-head{head}-scores"]["expected"]["scores"]
        shares = golden[f"004-head{head}-attn"]["expected"]["attn"]
        for i in range(5):
            for j in range(5):
                score = vit[f"attn.scores[0,{head - 1},{i},{j}]"].why()
                assert score.reworked == pytest.approx(expected[i][j], abs=1e-8)
                share = vit[f"attn.pattern[0,{head - 1},{i},{j}]"].why()
                assert share.reworked == pytest.approx(shares[i][j], abs=1e-8)
    row = golden["004-head1-softmax-row0"]["expected"]
    steps = {s.word: s.value for s in vit["attn.pattern[0,0,0,4]"].why().steps}
    assert steps == {"max": pytest.approx(row["max"], abs=1e-8), "total": pytest.approx(row["sum"], abs=1e-8)}


def test_a_norm_shows_its_steps_and_its_epsilon(gpt):
    heading, axes, *lines = str(gpt["blocks.0.attn_norm[0,1,2]"].why()).split("\n")
    assert heading == "blocks.0.attn_norm[0,1,2]   LN_attn(X⁰)"
    assert axes == "B 0  T 'cat'  D 2"
    assert lines[0] == "X̃[1,2] = (0.9 − 0.3625)/0.4689·1 − 0.1 = 1.046"
    assert lines[1] == "  where mean = (0.2 + 0.7 + 0.9 − 0.7 + 0.3 + 0.8 + 0.3 + 0.4)/8 = 0.3625"
    assert lines[2].startswith(
        "  where variance = ((0.2 − 0.3625)² + (0.7 − 0.3625)² + (0.9 − 0.3625)² + (−0.7 − 0.3625)²"
    )
    assert lines[2].endswith("/8 = 0.2198")  # divided by all eight, not by seven
    assert lines[3] == "  where √(variance + ε) = √(0.2198 + 1e−5) = 0.4689"
    assert lines[4] == "recorded 1.046 ✓"


def test_a_root_of_the_mean_of_squares_shows_its_epsilon():
    written = str(traced("gpt grouped")["blocks.0.attn_norm[0,1,2]"].why())
    assert re.search(r"/√\(.*/36 \+ 1e−5\)", written)
    fused = trace(lambda x: F.rms_norm(x, (3,), eps=1e-3), torch.tensor([[1.0, 2.0, 2.0]]))["output[0,1]"].why()
    assert str(fused).endswith("recorded 1.155 ✓")
    assert "1e−3" in str(fused) or "0.001" in str(fused)


def test_what_may_not_be_seen(gpt):
    assert (
        "\n".join(gpt["blocks.0.attn.scores[0,0,1,3]"].why().lines())
        == "S[1,3] = 13.92/√8 − ∞ = −∞   (masked: it may not be seen)\nrecorded −∞ ✓"
    )
    share = gpt["blocks.0.attn.pattern[0,0,1,3]"].why()
    assert share.recorded == share.reworked == 0
    assert "\n".join(share.lines()).startswith("A[1,3] = e^(−∞ − 2.985)/1.473 = 0\n")
    assert "−∞, −∞) = 2.985" in str(share)
    assert "max = max(2.236, 2.985, −∞, −∞)" in str(share)


def test_activations(gpt):
    written = "\n".join(gpt["blocks.0.mlp.act[0,1,1]"].why().lines())
    assert written == (
        "G[1,1] = (−0.7655)·0.222 = −0.1699\n  where Φ = (1 + erf((−0.7655)/√2))/2 = 0.222\nrecorded −0.1699 ✓"
    )
    written = "\n".join(traced("gpt sinusoidal")["blocks.0.mlp.act[0,1,1]"].why().lines())
    assert "where inner = 0.7979·(" in written
    assert "where tanh = tanh(" in written


def test_lookups_and_moves_name_where_the_number_came_from(gpt):
    found = gpt["embed[0,1,1]"].why()
    assert list(found.lines()) == ["E[t][1,1] = tokens.weight[1,1] = 0.4", "recorded 0.4 ✓"]
    assert found.allowed >= 0
    assert [t.where for t in found.terms] == ["tokens.weight[1,1]"]
    assert str(gpt["tokens[0,1]"].why()) == "tokens[0,1] = 1   (given to the model)"


X = torch.tensor([1.5, -2.0, 0.25])


@pytest.mark.parametrize("program, where, written", [
    (lambda x: -x, "output[1]", "output[1] = −(−2) = 2"),
    (lambda x: (x - (-x)) * 2, "output[1]", "output[1] = 2·(−2 − 2) = −8"),
    (lambda x: x / (x * 2), "output[1]", "output[1] = (−2)/(2·(−2)) = 0.5"),
    (lambda x: x**3 / (x + 1), "output[1]", "output[1] = (−2)^3/(−2 + 1) = 8"),
    (lambda x: 2 - (x - 3), "output[0]", "output[0] = 2 − (1.5 − 3) = 3.5"),
    (lambda x: (x - 3) * (x + 2), "output[0]", "output[0] = (1.5 − 3)·(1.5 + 2) = −5.25"),
    (lambda x: torch.exp(x) ** 2, "output[0]", "output[0] = (e^1.5)² = 20.09"),
    (lambda x: x * 0.5**0.5, "output[0]", "output[0] = 1.5/√2 = 1.061"),
    (lambda x: x * 0.125, "output[0]", "output[0] = 1.5/8 = 0.1875"),
    (lambda x: x.clamp(0, 1), "output[1]", "output[1] = min(max(−2, 0), 1) = 0"),
    (lambda x: x.max(), "output", "output = max(1.5, −2, 0.25) = 1.5"),
    (lambda x: x.argmax(), "output", "output = place of the largest of (1.5, −2, 0.25) = 0"),
    (lambda x: x.sum() / 4, "output", "output = (1.5 − 2 + 0.25)/4 = −0.0625"),
    (lambda x: x.cumsum(0), "output[2]", "output[2] = −0.5 + 0.25 = −0.25"),
    (lambda x: F.mse_loss(x, x.flip(0)), "output", "output = ((1.5 − 0.25)² + (−2 − (−2))² + (0.25 − 1.5)²)/3 = 1.042"),
])  # fmt: skip
def test_small_sums_as_they_are_written(program, where, written):
    assert str(trace(program, X)[where].why()).split("\n")[0] == written


def test_digits_can_be_chosen(vit):
    node, place = vit.graph.names["attn.pattern"], 2
    assert receipt(vit, node, place, 3).formula == "e^(1.98 − 6.83)/1.3"
    assert receipt(vit, node, place, 8).formula == "e^(1.979899 − 6.827116)/1.3010662"
    assert next(receipt(vit, node, place, 8).lines()).startswith(
        "A[0,2] = e^(1.979899 − 6.827116)/1.3010662 = 0.0060336627"
    )


# many terms


def test_of_many_terms_the_largest_and_the_sum_of_the_rest():
    found = traced("gpt learned")["blocks.0.mlp.out[0,1,1]"].why()
    shown = re.fullmatch(r"(.*) \+ … \((\d+) more sum to (\S+)\)( [+−] \S+)?", found.formula)
    assert shown, found.formula
    factors = re.findall(r"(\(?−?[\d.e−]+\)?)·(\(?−?[\d.e−]+\)?)", shown[1])
    assert len(factors) == 8
    assert int(shown[2]) == 37 - 8

    def number(word):
        return float(word.strip("()").replace("−", "-"))

    products = [number(a) * number(b) for a, b in factors]
    pairs = [t for t in found.terms if not t.name.endswith("bias")]
    exact = [a.value * b.value for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
    assert len(exact) == 37
    largest = sorted(exact, key=lambda v: -abs(v))
    assert sorted(products, key=lambda v: -abs(v)) == pytest.approx(largest[:8], rel=2e-3)
    assert number(shown[3]) == pytest.approx(sum(largest[8:]), rel=1e-3, abs=1e-3)
    assert sum(exact) + next(t.value for t in found.terms if t.name.endswith("bias")) == pytest.approx(found.reworked)


@pytest.mark.parametrize("count, cut", [(1, False), (16, False), (17, True), (64, True), (65, True), (500, True)])
def test_sixteen_terms_are_written_out_and_no_more(count, cut):
    found = trace(lambda x: x.sum(), torch.arange(1.0, count + 1))["output"].why()
    assert ("…" in found.formula) == cut
    assert len(found.terms) == count
    if cut:
        first = " + ".join(str(count - 7 + i) for i in range(8))
        assert found.formula == f"{first} + … ({count - 8} more sum to {sum(range(1, count - 7))})"
    else:
        assert found.formula == " + ".join(map(str, range(1, count + 1)))


# what is written is what is computed


def evaluated(written):
    """The value of a formula as it is written, by Python's rules of arithmetic."""
    code = re.sub(r"\+ … \(\d+ more sum to ([^)]*)\)", r"+ (\1)", written)
    code = code.replace("−", "-").replace("·", "*").replace("²", "**2").replace("∞", "inf")
    code = re.sub(r"√(\d[\d.]*(e-\d+)?)", r"sqrt(\1)", code).replace("√(", "sqrt(")
    code = re.sub(r"(?<![\w.])e\^", "E**", code).replace("^", "**")
    code = re.sub(r"\|([^|]*)\|", r"abs(\1)", code)
    names = {f: getattr(math, f) for f in ("sqrt", "sin", "cos", "tanh", "erf", "inf")} | {"E": math.e}
    return eval(code, {"__builtins__": {}}, names | {"max": max, "min": min, "abs": abs})


SAYABLE = re.compile(r"[\d.e\s+−·/²()^√,∞|]|sin|cos|tanh|erf|max|min|… \(\d+ more sum to")


WRITTEN = ("gpt llama", "vit class", "captioner prefix")


@pytest.mark.parametrize(
    "name",
    [
        *(one if one in WRITTEN else pytest.param(one, marks=pytest.mark.long) for one in OURS),
        *("example:nanogpt-block", "example:vit-4x4", "example:vit-text", "example:kv-cache"),
    ],
)
def test_the_formula_as_written_gives_the_number(name):
    """Read with the eyes of someone who knows precedence only: every bracket that is needed is there."""
    found, rng, read_ = traced(name), np.random.default_rng(6), 0
    nodes = [i for i, n in enumerate(found.graph.nodes) if n.size and n.plan is not None]
    for _ in range(120):
        node = int(rng.choice(nodes))
        with unchecked():
            one = receipt(found, node, int(rng.integers(found.graph.nodes[node].size)), digits=16)
        if one.reworked is None or SAYABLE.sub("", one.formula).strip() or not math.isfinite(one.reworked):
            continue
        size = max((abs(t.value) for t in one.terms if math.isfinite(t.value)), default=1)
        assert evaluated(one.formula) == pytest.approx(one.reworked, rel=1e-9, abs=1e-10 * max(size, 1)), one.formula
        for step in one.steps:
            if not SAYABLE.sub("", step.formula).strip() and math.isfinite(step.value):
                assert evaluated(step.formula) == pytest.approx(step.value, rel=1e-9, abs=1e-9), step.formula
        read_ += 1
    assert read_ > 25


def test_a_sum_of_comparisons_is_bracketed():
    found = trace(lambda x: (x > 0).sum(), X)["output"].why()
    assert found.formula == "(1.5 > 0) + (−2 > 0) + (0.25 > 0)"


# failing aloud


def test_a_receipt_that_does_not_agree_gives_the_difference():
    found = trace(lambda x: x * 2, X)
    graph = found.graph
    graph.values[graph.names["output"]] = torch.tensor([3.0, -4.0, 0.75])
    written = found["output[2]"].why()
    assert not written.agrees
    assert (
        str(written)
        == f"output[2] = 2·0.25 = 0.5\nrecorded 0.75 ✗ (off by 0.25, {format_number(written.allowed, 2)} allowed)"
    )
    assert 0 < written.allowed < 1e-6
    assert found["output[1]"].why().agrees
    assert disagreeing(found, 30)


def test_not_a_number_agrees_with_itself_only():
    found = trace(lambda x: x / x, torch.tensor([0.0, 1.0]))
    written = found["output[0]"].why()
    assert written.agrees
    assert "recorded not a number ✓" in str(written)
    found.graph.values[found.graph.names["output"]] = torch.tensor([1.0, math.nan])
    again = trace(lambda x: x / x, torch.tensor([0.0, 1.0]))
    again.graph.values[again.graph.names["output"]] = torch.tensor([1.0, math.nan])
    assert not again["output[0]"].why().agrees
    assert not again["output[1]"].why().agrees


def test_infinity_agrees_with_itself_only():
    program = lambda x: 1 / x  # noqa: E731
    assert trace(program, torch.tensor([0.0]))["output[0]"].why().agrees
    wrong = trace(program, torch.tensor([0.0]))
    wrong.graph.values[wrong.graph.names["output"]] = torch.tensor([1e30])
    assert not wrong["output[0]"].why().agrees


def test_a_receipt_in_a_notebook(vit):
    shown = vit["attn.scores[0,0,0,2]"].why()._repr_html_()
    assert "(0.6·3 + 0.5·2)/√2" in shown
    assert "attn.q[0,0,0,0]" in shown
    assert "<script" not in shown
    odd = trace(lambda x: (x < 1) * 1, X)["output[0]"].why()._repr_html_()
    assert "&lt;" in odd


def test_links_lead_back_to_the_input():
    """From a logit to the picture, by the terms alone."""
    found, where = traced("example:vit-4x4"), "out[0,3,1]"
    seen, todo = set(), [where]
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        todo += [t.where for t in found[one].why().terms]
    kinds = {found[one].node.kind for one in seen if not found[one].why().terms}
    assert kinds == {"input", "weight"}
    assert {one.partition("[")[0] for one in seen} >= {
        "picture",
        "patches.flat",
        "attn.pattern",
        "attn.scores",
        "input",
    }
    assert sum(one.startswith("picture[") for one in seen) == 16
