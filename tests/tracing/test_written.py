"""Receipts read as one writes them on paper, and what is written has the value of the cell."""

import math
import re
from base64 import b64encode
from functools import cache

import numpy as np
import pytest
import torch

from pencil.families import configure, create
from pencil.learn.worked.examples import EXAMPLES, example
from pencil.tracing import html
from pencil.tracing.live_trace import trace
from pencil.tracing.receipt import receipt

EIGHT = torch.full((5, 4), 8.0, dtype=torch.float64)
SIZES = dict(vocab=7, context=11, width=16, depth=1, heads=2)


def gpt(positions: str, **changes):
    torch.manual_seed(5)
    model = create("gpt", configure("gpt", None, **SIZES, positions=positions, **changes)).double()
    return trace(model, torch.tensor([[1, 2, 3, 4, 5]]))


def dit():
    torch.manual_seed(5)
    config = configure("dit", None, width=16, depth=1, heads=2, image_size=(4, 4), channels=1, patch=(2, 2), classes=3)
    model = create("dit", config).double()
    return trace(model, torch.randn(1, 1, 4, 4).double(), torch.tensor([500.0]), torch.tensor([1]))


def angles(x):
    """Frequencies as the papers write them, and as libraries compute them."""
    paper = 10000.0 ** -(2 * torch.arange(4.0, dtype=torch.float64) / 8)
    library = 1 / (500.0 ** (torch.arange(0, 8, 2, dtype=torch.int64).double() / 8))
    at = torch.arange(3, 8, dtype=torch.float64)[:, None]
    return {
        "paper": (at * paper).sin(), "library": at * library / 4, "inverse": x * torch.rsqrt(x + 1),
        "minus": x * -at.abs(), "roots": x * math.sqrt(48) / math.sqrt(3), "seen": ~(at <= torch.arange(4)),
    }  # fmt: skip


MADE = {"transformer": lambda: example("original-transformer"), "dit": dit, "angles": lambda: trace(angles, EIGHT)}


@cache
def made(name: str):
    """A trace by name: one of these, or a gpt with positions of that name."""
    return MADE[name]() if name in MADE else gpt(name)


# the frequencies of a model of width 8 may be written 1/4 or 2·1/8
CELLS = [
    ("transformer", "positions.embedding[0,1,2]", r"sin\(1/10000\^\((2·1/8|1/4)\)\)"),
    ("transformer", "positions.embedding[0,2,7]", r"cos\(2/10000\^\((2·3/8|3/4)\)\)"),
    ("transformer", "encoder.positions.embedding[0,0,0]", r"sin\(0/10000\^\((2·0/8|0/4)\)\)"),
    ("transformer", "embed[0,1,2]", r"√8·0\.2"),
    ("rope", "positions.angles[0,3,2]", r"3/10000\^\((2·2/8|2/4)\)"),
    ("alibi", "positions.bias[0,1,4,1]", r"−0\.003906·\|1 − 4\|"),
    ("shaw", "positions.distance[0,1,4,0]", r"min\(max\(4 − 1, −16\), 16\)"),
    ("sinusoidal", "positions.embedding[0,3,14]", r"sin\(3/10000\^\((2·7/16|7/8)\)\)"),
    ("dit", "time.sinusoids[0,3]", r"cos\(500/10000\^\((2·3/256|3/128)\)\)"),
    ("dit", "time.sinusoids[0,131]", r"sin\(500/10000\^\((2·3/256|3/128)\)\)"),
    ("angles", "paper[1,3]", r"sin\(4/10000\^\(2·3/8\)\)"),
    ("angles", "library[1,3]", r"4/500\^\(2·3/8\)/4"),
    ("angles", "inverse[1,3]", r"8/√\(8 \+ 1\)"),
    ("angles", "minus[1,3]", r"−8·\|4\|"),
    ("angles", "roots[1,3]", r"√48·8/√3"),
    ("angles", "seen[1,2]", "4 > 2"),
]  # fmt: skip


def evaluated(formula: str) -> float:
    """What a written formula gives, read as mathematics."""
    code = formula.replace("·", "*").replace("^", "**").replace("−", "-").replace("²", "**2").replace("∞", "inf")
    code = re.sub(r"\|([^|]*)\|", r"abs(\1)", re.sub(r"ln (\S+)", r"log(\1)", code))
    code = code.replace(" mod ", " % ")
    code = re.sub(r"nearest whole to (.+)", r"round(\1)", code)
    code = (
        re.sub(r"√(\d+(?:\.\d+)?(?:e[-−]?\d+)?)", r"√(\1)", code)
        .replace("√", "sqrt")
        .replace("≤", "<=")
        .replace("≥", ">=")
        .replace("≠", "!=")
    )
    names = {name: getattr(np, name) for name in ("sin", "cos", "sqrt", "tanh", "inf")}
    return float(
        eval(
            code,
            {
                **names,
                "e": math.e,
                "abs": abs,
                "min": min,
                "max": max,
                "erf": math.erf,
                "log": math.log,
                "round": round,
            },
        )
    )


@pytest.mark.parametrize("name, where, written", CELLS, ids=[where for _, where, _ in CELLS])
def test_a_cell_reads_as_on_paper(name, where, written):
    cell = made(name)[where]
    assert re.fullmatch(written, cell.why().formula), cell.why().formula
    assert evaluated(cell.why(17).formula) == pytest.approx(float(cell), rel=1e-12, abs=1e-15)
    assert cell.why().agrees


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_formula_of_the_examples_has_the_value_of_its_cell(name):
    """One cell of each tensor, evaluated by Python as it is written; sums that are cut short are left out."""
    t, random, count = example(name), np.random.default_rng(7), 0
    for node, n in enumerate(t.graph.nodes):
        if n.plan is None or not n.size or n.moves:
            continue
        found = receipt(t, node, int(random.integers(n.size)), 17)
        for formula, value in [(found.formula, found.reworked), *((s.formula, s.value) for s in found.steps)]:
            if "…" in formula or re.search(r"[A-Za-z]\w*[\[.]| of |not ", formula):
                continue
            count += 1
            with np.errstate(all="ignore"):
                assert evaluated(formula.replace(" = ", " == ")) == pytest.approx(value, rel=1e-9, abs=1e-12), formula
    assert count > 5


def test_scores_are_written_from_queries_and_keys_and_masks_are_named():
    t = made("learned")
    assert re.fullmatch(r"\(.+·.+\)/√8 \+ 0", t["blocks.0.attn.scores[0,1,3,2]"].why().formula)
    hidden = t["blocks.0.attn.scores[0,1,2,3]"].why()
    assert re.fullmatch(r"\S+/√8 − ∞", hidden.formula)
    assert str(hidden).split("\n")[2].endswith(" = −∞   (masked: it may not be seen)")


OPEN = """([meta, bytes, cells]) => {
  const kinds = { u8: Uint8Array, i32: Int32Array, f32: Float32Array, f64: Float64Array };
  const raw = Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0)).buffer, arrays = {};
  for (const [key, [kind, begin, count]] of Object.entries(meta.arrays)) arrays[key] = new kinds[kind](raw, begin, count);
  const graph = new pencil.Graph(meta, arrays);
  return cells.map(([node, place]) => pencil.receipt(graph, node, place).lines);
}"""


def test_the_page_writes_the_same(browser):
    """The cells above, and masked and unmasked scores, in the browser."""
    page = browser.new_page()
    page.add_script_tag(content=html._asset("app.js"))
    scores = [("learned", f"blocks.0.attn.scores[0,1,{at}]", "") for at in ("3,2", "2,3")]
    for name in {name for name, _, _ in CELLS} | {"learned"}:
        t, wanted = made(name), [where for one, where, _ in (*CELLS, *scores) if one == name]
        graph, body = html.data(t)
        place = {n["name"]: i for i, n in enumerate(graph["nodes"])}
        cells = []
        for where in wanted:
            tensor, index = t.locate(where)
            node = place[t.graph.nodes[t.find(tensor)].name]
            cells.append([node, int(np.ravel_multi_index(index, graph["nodes"][node]["shape"]))])
        found = page.evaluate(OPEN, [graph, b64encode(body).decode(), cells])
        assert found == [list(t[where].why().lines()) for where in wanted]
    page.close()
