"""Workbooks of live formulas: reckoned again by LibreOffice they give what the model gave, also after a change."""

import copy
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import AdamW
from xlsxwriter.utility import xl_rowcol_to_cell

import spreadsheet
from pencil.config import UserError
from pencil.families import configure, create
from pencil.learn.worked.examples import EXAMPLES, example
from pencil.tracing import file
from pencil.tracing import trace as opened
from pencil.tracing.live_trace import trace
from pencil.tracing.optimizer_settings import settings_in
from pencil.tracing.step import trace_step
from pencil.tracing.xlsx import write
from pencil.train.optim import Muon
from traced import unchecked

CLOSE = 1e-12
BIG = 1e307  # how a sheet holds an infinity


def _model(family, seed, **values):
    torch.manual_seed(seed)
    model = create(family, configure(family, None, **values)).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.eval()


def _gpt(**values):
    sizes = dict(vocab=11, context=4, width=8, depth=1, heads=2)
    return _model("gpt", 0, **sizes | values), torch.tensor([[3, 1, 4, 1]])


def _vit(batch=1, channels=1, **values):
    sizes = dict(image_size=(4, 6), patch=(2, 3), classes=3, width=8, depth=1, heads=2, hidden=5)
    model = _model("vit", 1, channels=channels, **sizes | values)
    return model, torch.rand(batch, channels, 4, 6, dtype=torch.float64)


def _captioner(**values):
    sizes = dict(image_size=(4, 4), channels=1, patch=(2, 2), vocab=7, context=3, width=8, depth=1, heads=2, hidden=6)
    model = _model("captioner", 2, **sizes | values)
    return model, torch.tensor([[1, 5, 2]]), torch.rand(1, 1, 4, 4, dtype=torch.float64)


def _foreign():
    torch.manual_seed(3)
    model = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dtype=torch.float64)
    return model, torch.rand(1, 3, 8, dtype=torch.float64)


class _Shuffled(nn.Module):
    """A sum over scattered cells: they are gathered first."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(60, 2, dtype=torch.float64)

    def forward(self, x):
        return self.mix(x.view(2, 20, 3).transpose(1, 2).reshape(2, 60))


def _many_kinds(x, weight, target):
    """Kinds of operation the models do not have."""
    return {
        "running": x.cumsum(-1), "largest": x.amax(0), "place": x.argmax(-1), "best": x.topk(2).values,
        "loss": F.cross_entropy(x, target), "clamped": x.clamp(-0.3, 0.3), "bent": F.elu(x), "leaky": F.leaky_relu(x),
        "picked": torch.where(x > 0, x, -2 * x), "all": (x > -1).all(-1), "norm": x.norm(), "product": x.prod(-1),
        "padded": F.conv2d(x[None, None], weight, padding=1), "spread": x.std(0), "log": (x * x).logsumexp(-1),
        "squares": (x * x - x.abs()).amax(-1), "floor": (3 * x).floor(), "rest": x.remainder(0.4), "power": x**3,
        "either": (x > 0) ^ (x < 0.5), "masked": x.masked_fill(x < 0, -torch.inf).softmax(-1), "negated": -((-x) ** 2),
        "middle": ((5 * x).round() / 2).round(),
    }  # fmt: skip


def _kinds():
    torch.manual_seed(4)
    x, weight = torch.randn(4, 5, dtype=torch.float64), torch.randn(2, 1, 3, 3, dtype=torch.float64)
    return _many_kinds, x, weight, torch.tensor([0, 4, 2, 2])


MODELS = {
    "gpt": lambda: _gpt(),
    "gpt-llama": lambda: _gpt(norm="rms", activation="swiglu", heads=4, kv_heads=2, tie_embeddings=False),
    "gpt-tanh": lambda: _gpt(positions="sinusoidal", activation="gelu-tanh", bias=True, depth=2, hidden=6),
    "vit": lambda: _vit(batch=2, channels=2),
    "vit-mean": lambda: _vit(pool="mean", positions="rope", norm="rms"),
    "captioner": lambda: _captioner(),
    "foreign": _foreign,
    "shuffled": lambda: (_Shuffled(), torch.rand(2, 60, dtype=torch.float64)),
    "kinds": _kinds,
}
# one typed number of each, changed: the tensor, the place and the new number
CHANGES = {
    "vit-4x4": ("picture", (0, 0, 1, 2), 9.25),
    "gpt": ("tokens.weight", (1, 3), -1.75),
    "gpt-llama": ("blocks.0.attn.qkv.weight", (9, 5), 0.875),
    "vit": ("picture", (1, 1, 2, 4), -0.5),
    "captioner": ("given.picture", (0, 0, 3, 1), 2.5),
    "shuffled": ("x", (1, 37), 4.0),
    "kinds": ("x", (2, 3), 0.45),
    "foreign": ("self_attn.in_proj_weight", (4, 4), 1.5),
}


def _again(t, name, index, value):
    """The same run of the model with one number of an input or a weight changed."""
    traced = t.traced_model
    model, inputs = copy.deepcopy(traced.model), list(traced.inputs)
    parameters = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
    with torch.no_grad():
        if name in parameters:
            parameters[name][index] = value
        else:
            at = list(traced.takes).index(name.removeprefix("given."))
            inputs[at] = inputs[at].clone()
            inputs[at][index] = value
    return trace(model, *inputs, **traced.keywords)


# too large for a workbook as a whole: a part of it
PARTS = {"english-sentence": ("blocks.1.attn.*",)}
# recalculated in every run of the suite; the others by the long form
FAST = {"vit-4x4", "gpt", "kinds", "shuffled"}


def _named(names):
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.long) for name in names]


@unchecked()
def _books(names, folder):
    """Workbooks with their formulas' values corrupted, as they are and with a number changed, recalculated at once."""
    makes = {name: lambda name=name: example(name) for name in EXAMPLES}
    makes |= {name: lambda make=make: trace(*make()) for name, make in MODELS.items()}
    written, expected, paths = {}, {}, []
    for name in names:
        t = makes[name]()
        write(t, folder / "whole.xlsx", PARTS.get(name, ()))
        sheets = written[name] = spreadsheet.read(folder / "whole.xlsx")
        paths.append(spreadsheet.poisoned(folder / "whole.xlsx", folder / f"{name}.xlsx"))
        expected[f"{name}.xlsx"] = t
        if name in CHANGES:
            tensor, index, value = CHANGES[name]
            sheet, row, column = spreadsheet.located(sheets)[tensor]
            lead = int(np.ravel_multi_index(index[:-1], t.array(tensor).shape[:-1]))
            cell = xl_rowcol_to_cell(row + lead, column + index[-1])
            changed = folder / f"{name} changed.xlsx"
            paths.append(spreadsheet.changed(paths[-1], changed, sheets[sheet].file, {cell: value}))
            expected[f"{name} changed.xlsx"] = _again(t, tensor, index, value)
    return written, expected, spreadsheet.recalculated(paths, folder)


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """The workbooks a name belongs to: the fast ones, or the others."""
    if spreadsheet.OFFICE is None:
        pytest.skip("LibreOffice (soffice) is not installed")
    made = {}

    def find(name):
        fast = name in FAST
        if fast not in made:
            names = [one for one in (*EXAMPLES, *MODELS) if (one in FAST) == fast]
            made[fast] = _books(names, tmp_path_factory.mktemp("xlsx"))
        return made[fast]

    return find


def _off(sheets, t, formulas):
    """The largest difference of the formulas' cells to a trace, and how many formulas that were."""
    worst, count = 0.0, 0
    for name, (sheet, row, column) in spreadsheet.located(sheets).items():
        values = t.array(name)
        width = values.shape[-1] if values.ndim else 1
        for i, value in enumerate(values.reshape(-1).tolist()):
            at = (row + i // width, column + i % width)
            computed = sheets[sheet].values[at]
            worst = max(worst, abs(computed - float(np.clip(value, -BIG, BIG))))
            count += at in formulas[sheet].formulas
    return worst, count


@pytest.mark.parametrize("name", _named([*EXAMPLES, *MODELS]))
def test_a_workbook_reckoned_again_gives_what_the_model_gave(books, name):
    written, expected, reckoned = books(name)
    worst, count = _off(reckoned[f"{name}.xlsx"], expected[f"{name}.xlsx"], written[name])
    print(f"{name}: {count} formulas, off by {worst:.1e}")
    assert count == sum(len(s.formulas) for s in written[name].values()) > 0
    assert worst <= CLOSE


@pytest.mark.parametrize("name", _named(CHANGES))
def test_a_number_changed_in_the_sheet_changes_what_follows_as_in_the_model(books, name):
    written, expected, reckoned = books(name)
    before, after = (expected[f"{name}{word}.xlsx"] for word in ("", " changed"))
    last = before.names[-1]
    assert np.abs(before.array(last).astype(float) - after.array(last)).max() > 1e-3
    worst, _ = _off(reckoned[f"{name} changed.xlsx"], after, written[name])
    print(f"{name} changed: off by {worst:.1e}")
    assert worst <= CLOSE


@pytest.mark.parametrize("name", _named(["vit-4x4", "vit"]))
def test_no_cell_is_an_error(books, name):
    for book, sheets in books(name)[2].items():
        for sheet in sheets.values():
            assert not sheet.errors, book


SHARED = set(
    [
        "SUM",
        "SUMPRODUCT",
        "ROUND",
        "TRUNC",
        "MMULT",
        "MAX",
        "MIN",
        "EXP",
        "LN",
        "SQRT",
        "SIN",
        "COS",
        "TANH",
        "ERF",
        "IF",
        "N",
        "AND",
        "OR",
        "ABS",
        "FLOOR",
        "MOD",
        "PRODUCT",
        "MATCH",
        "LARGE",
    ]
)


@pytest.mark.parametrize("name", _named(["vit-4x4", "vit"]))
def test_only_functions_every_spreadsheet_has(books, name):
    for book, sheets in books(name)[0].items():
        for sheet in sheets.values():
            for formula in sheet.formulas.values():
                assert set(re.findall(r"[A-Z.]+(?=\()", formula)) <= SHARED, f"{book}: {formula}"
                assert len(formula) < 8192
        assert all(len(sheet) <= 31 and not set(sheet) & set("[]:*?/\\") for sheet in sheets)


# ---- a training step


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.5, weight_decay=0.1, foreach=False),
}
SETTINGS = {
    "adamw": {"η": 0.05, "λ": 0.1, "β₁": 0.9, "β₂": 0.999, "ε": 1e-8, "clip": 0.5},
    "sgd": {"η": 0.3, "λ": 0.1, "μ": 0.5, "clip": 0.5},
}
OTHERS = {"η": 0.025, "λ": 0.3, "β₁": 0.7, "β₂": 0.9, "ε": 1e-5, "μ": 0.8, "clip": 0.2}


def _settings(sheets):
    """The cell of each setting of a workbook, and its number."""
    values = sheets["settings"].values
    return {values[row, 0]: ((row, 1), values[row, 1]) for row, column in values if column == 1 and row > 2}


def _next_loss(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


@unchecked()
def test_a_step_is_reckoned_again_and_its_new_weights_train_on(tmp_path):
    """What is copied from the sheet of new weights to that of the old makes the next step, as the model makes it.

    That step is one with other settings, typed into their cells.
    """
    if spreadsheet.OFFICE is None:
        pytest.skip("LibreOffice (soffice) is not installed")
    paths, expected, written = [], {}, {}
    for name, optimizer_of in OPTIMIZERS.items():
        model, ids = _gpt(vocab=7, width=6, hidden=5, positions="learned")
        ids = ids % 7
        optimizer = optimizer_of(model.parameters())
        for _ in range(1 if name == "sgd" else 0):  # which remembers nothing before its first step
            _next_loss(model, ids).backward()
            optimizer.step()
            optimizer.zero_grad()
        t = expected[f"{name}.xlsx"] = trace_step(model, _next_loss, ids, optimizer, clip=0.5)
        write(t, tmp_path / "whole.xlsx")
        sheets = written[name] = spreadsheet.read(tmp_path / "whole.xlsx")
        assert any("paste" in str(v) for v in sheets["Map"].values.values())
        poisoned = spreadsheet.poisoned(tmp_path / "whole.xlsx", tmp_path / f"{name}.xlsx")
        again = spreadsheet.pasted(poisoned, tmp_path / "pasted.xlsx", sheets["after"], sheets["before"])
        cells = _settings(sheets)
        assert {symbol: number for symbol, (_, number) in cells.items()} == SETTINGS[name]
        others = {xl_rowcol_to_cell(*cell): OTHERS[symbol] for symbol, (cell, _) in cells.items()}
        again = spreadsheet.changed(again, tmp_path / f"{name} again.xlsx", sheets["settings"].file, others)
        paths += [poisoned, again]
        model = copy.deepcopy(model)
        optimizer, parameters = optimizer_of(model.parameters()), dict(model.named_parameters())
        settings = {"lr": OTHERS["η"], "weight_decay": OTHERS["λ"]}
        adam = name == "adamw"
        settings |= {"betas": (OTHERS["β₁"], OTHERS["β₂"]), "eps": OTHERS["ε"]} if adam else {"momentum": OTHERS["μ"]}
        optimizer.param_groups[0].update(settings)
        for parameter_name in parameters:
            parameters[parameter_name].data.copy_(torch.from_numpy(t.new[parameter_name].value))
            kept = optimizer.state[parameters[parameter_name]]
            for key in ("exp_avg", "exp_avg_sq", "step") if adam else ("momentum_buffer",):
                kept[key] = torch.from_numpy(t[f"new:{parameter_name}.{key}"].value.copy())
        expected[f"{name} again.xlsx"] = trace_step(model, _next_loss, ids, optimizer, clip=OTHERS["clip"])
    reckoned = spreadsheet.recalculated(paths, tmp_path)
    for name in OPTIMIZERS:
        first, second = expected[f"{name}.xlsx"], expected[f"{name} again.xlsx"]
        for book, t in ((f"{name}.xlsx", first), (f"{name} again.xlsx", second)):
            worst, count = _off(reckoned[book], t, written[name])
            print(f"{book}: {count} formulas, off by {worst:.1e}")
            assert count > 1000
            assert worst <= CLOSE
        assert second.loss < first.loss


def test_a_sheet_says_why_no_step_can_follow(tmp_path):
    model, ids = _gpt(vocab=7, width=6, hidden=5, positions="learned")
    for optimizer, why in (
        (torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5), "record a second step"),
        (torch.optim.AdamW(model.parameters(), foreach=False, fused=False), "give it fused=True"),
    ):
        write(trace_step(model, _next_loss, ids % 7, optimizer), tmp_path / "a.xlsx")
        assert any(why in str(v) for v in spreadsheet.read(tmp_path / "a.xlsx")["Map"].values.values())


def test_every_setting_has_a_cell_that_says_whose_it_is(tmp_path):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    weights, biases = [model[0].weight, model[2].weight], [model[0].bias, model[2].bias]
    optimizers = [AdamW(biases, lr=0.003, weight_decay=0.1, fused=True), Muon(weights, lr=0.02, weight_decay=0.1)]
    t = trace_step(model, lambda model, x: model(x).square().mean(), torch.rand(7, 3), optimizers, clip=0.125)
    write(t, tmp_path / "a.xlsx")
    sheets = spreadsheet.read(tmp_path / "a.xlsx")
    values = sheets["settings"].values
    assert [(values[row, 0], values[row, 1], values.get((row, 3))) for row in range(3, 15)] == [
        ("η_AdamW", 0.003, "AdamW"),
        ("η_Muon", 0.02, "Muon"),
        ("λ_AdamW", 0.1, "AdamW"),
        ("λ_Muon", 0.1, "Muon"),
        ("β₁", 0.9, "AdamW"),
        ("β₂", 0.999, "AdamW"),
        ("ε", 1e-8, "AdamW"),
        ("μ", 0.95, "Muon"),
        ("a", 3.4445, "Muon"),
        ("b", -4.775, "Muon"),
        ("c", 2.0315, "Muon"),
        ("clip", 0.125, "AdamW, Muon"),
    ]
    # of plain numbers are left those that keep from dividing by 0, and the shape of the taller matrix
    formulas = " ".join(formula for sheet in sheets.values() for formula in sheet.formulas.values())
    assert set(re.findall(r"\d+\.\d+|\d+E-\d+", formulas)) == {"1E-06", "1E-07", repr((5 / 3) ** 0.5)}


@pytest.mark.parametrize(
    ("kind", "given", "settings"),
    [
        # in its second step, with λ and μ, or 1 − η·λ and β₂, that are one number
        ("SGD", dict(lr=0.3, momentum=0.1, weight_decay=0.1), {"η": 0.3, "μ": 0.1, "λ": 0.1}),
        ("SGD", dict(lr=0.3, momentum=0.1, weight_decay=0.1, nesterov=True), {"η": 0.3, "μ": 0.1, "λ": 0.1}),
        ("AdamW", dict(lr=0.01, weight_decay=0.1), {"η": 0.01, "λ": 0.1, "β₁": 0.9, "β₂": 0.999, "ε": 1e-8}),
        ("AdamW", dict(lr=0.01, weight_decay=0.1, foreach=True),
         {"η": 0.01, "λ": 0.1, "β₁": 0.9, "β₂": 0.999, "ε": 1e-8}),
    ],
)  # fmt: skip
def test_settings_that_are_one_number_are_told_apart(kind, given, settings):
    weight = nn.Linear(3, 5, bias=False)
    optimizer = getattr(torch.optim, kind)(weight.parameters(), **given)
    for _ in range(2):
        t = trace_step(weight, lambda model, x: model(x).square().mean(), torch.ones(2, 3), optimizer)
        weight.weight.grad = torch.from_numpy(t.grad["weight"].value).float()
        optimizer.step()
    graph = t.graph
    assert {setting for n in graph.nodes for setting in settings_in(n.plan)} == set(settings.items())
    plain = [n for n in graph.nodes if n.op == "update" or "_" in n.op]
    assert not [n for n in plain if any(number in settings.values() for number in _bare(n.plan))]


def _bare(plan):
    """The numbers of a plan that have no name."""
    if isinstance(plan, float):
        yield plan
    elif isinstance(plan, tuple | list) and plan[0] not in ("ref", "list", "is"):
        for part in plan[1:]:
            yield from _bare(part)


# ---- what a workbook holds, without LibreOffice


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt") / "gpt.xlsx"
    t = trace(*_gpt(), words={"T": ["the", "cat", "sat", "on"]})
    write(t, path)
    return t, spreadsheet.read(path)


def _cell(sheets, name, row, column):
    sheet, r, c = spreadsheet.located(sheets)[name]
    return sheets[sheet], (r + row, c + column)


def test_recorded_values_are_beside_the_formulas(gpt):
    t, sheets = gpt
    worst, count = _off(sheets, t, sheets)
    assert worst == 0
    assert count > 800


def test_formulas_read_as_the_mathematics_does(gpt):
    _, sheets = gpt
    patterns = {}
    for name in ("attn.pattern", "attn.z", "attn.out", "mid", "mlp.act"):
        sheet, at = _cell(sheets, f"blocks.0.{name}", 3, 1)
        patterns[name] = re.sub(r"[A-Z]+\d+", "x", sheet.formulas[at])
    assert patterns == {
        "attn.pattern": "EXP(x-MAX(x:x))/SUMPRODUCT(EXP(x:x-MAX(x:x)))",
        "attn.z": "SUM(MMULT(x:x,x:x))",
        "attn.out": "SUM(MMULT(x:x,x:x))",
        "mid": "begin!x+x",
        "mlp.act": "x*(0.5*(1+ERF(x/1.4142135623730951)))",
    }


def test_what_is_masked_is_held_as_a_very_small_number(gpt):
    sheet, at = _cell(gpt[1], "blocks.0.attn.mask", 0, 3)
    assert sheet.values[at] == -BIG
    assert at not in sheet.formulas
    sheet, at = _cell(gpt[1], "blocks.0.attn.scores", 0, 3)
    assert sheet.values[at] == -BIG


def test_the_map_tells_what_is_typed_and_what_computed(gpt):
    cells = gpt[1]["Map"].values
    rows = {cells[at[0], 1]: at[0] for at, value in cells.items() if at[1] == 1}
    assert cells[rows["tokens.weight"], 5] == "typed numbers"
    assert "looked up when written" in cells[rows["tokens"], 7]
    assert (rows["tokens.weight"], 7) not in cells
    assert [cells[rows["blocks.0.attn.scores"], j] for j in (0, 2, 3, 4, 5)] == [
        "S",
        "1×2×4×4",
        "B h T S",
        "Q Kᵀ/√d + M",
        "computed",
    ]
    assert cells[rows["blocks.0.attn:mm"], 5] == "unnamed step"


def test_rows_are_called_by_their_labels(gpt):
    sheet, (row, column) = _cell(gpt[1], "blocks.0.attn.scores", 0, 0)
    assert [sheet.values[row + i, column - 1] for i in range(5)] == [
        "h0 · the",
        "h0 · cat",
        "h0 · sat",
        "h0 · on",
        "h1 · the",
    ]


@pytest.mark.parametrize(
    "function, inputs, message",
    [
        (lambda x: torch.view_as_complex(x).abs(), torch.ones(3, 2), "complex numbers"),
        (lambda x: x * 2, torch.ones(1, 16_384), "16,384 columns"),
        (
            lambda x: x * 2,
            torch.ones(1001, 1000),
            "2,002,000 values, and a workbook that still opens holds no more than 1,000,000",
        ),
        (lambda x: x.int() & 3, torch.ones(3), "the operation bitwise_and (at output) has no form in a spreadsheet"),
        (lambda x: x.log(), -torch.ones(3), "not a number"),
        (lambda x: (x > 0).any(-1), torch.ones(1, 1200), "a longer formula than the 8,192 characters Excel takes"),
    ],
)
def test_what_no_sheet_can_hold_is_refused_in_a_sentence(tmp_path, function, inputs, message):
    with pytest.raises(UserError, match=re.escape(message)):
        write(trace(function, inputs.double()), tmp_path / "refused.xlsx")
    assert not list(tmp_path.iterdir())


def test_a_model_kept_by_its_blocks_is_opened(tmp_path):
    model, tokens = _gpt(depth=2)
    write(trace(model, tokens, keep="blocks"), tmp_path / "lazy.xlsx")
    sheets = spreadsheet.read(tmp_path / "lazy.xlsx")
    assert {"blocks.0", "blocks.1"} <= set(sheets)
    assert "blocks.1.attn.pattern" in spreadsheet.located(sheets)


def test_a_trace_file_gives_the_same_workbook(gpt, tmp_path):
    t, sheets = gpt
    file.write(t, tmp_path / "gpt.trace.safetensors")
    write(opened.read(tmp_path / "gpt.trace.safetensors"), tmp_path / "again.xlsx")
    assert spreadsheet.read(tmp_path / "again.xlsx") == sheets
