"""Claims of an author's file: each verdict, what is refused with its line, and that no formula leaves its language."""

import json
import math
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import call, unchecked
from pencil.config import UserError
from pencil.cost.count import count
from pencil.families import FAMILIES
from pencil.learn.check import preset_costs  # noqa: F401  (imported before the watch)
from pencil.learn.check.check import check_text
from pencil.learn.check.claims import SHOWN, WRONG
from pencil.learn.check.formula import read, work_out
from pencil.learn.check.functions import COUNT
from pencil.learn.check.resource_limits import WORK, limited

CLAIM = '[inputs]\nx = [1, 2]\n\n[[claim]]\ntext = "The sum is {}."\nformula = "sum(x) == {}"\nline = 7\n'


@pytest.fixture
def judge(tmp_path, monkeypatch):
    def run(content, *words, code):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "post.toml").write_text(content, encoding="utf-8")
        return call("check", "post.toml", *words, code=code)

    return run


def test_shown(judge):
    said = judge(CLAIM.format(3, 3) + 'command = "pencil kata match"\n', code=0).stdout
    assert said.splitlines()[1:] == [
        "  line 7    shown      The sum is 3.",
        "                       Measured: 3 = 3.",
        "                       pencil kata match",
        "",
        "claims: 1 shown, 0 not shown, 0 wrong",
    ]


def test_wrong_says_what_is_right_and_is_exit_1(judge):
    content = CLAIM.format(4, 4) + 'instead = "It is 3."\nright = "sum(x) == 3"\n'
    said = judge(content, code=1).stdout
    assert said.splitlines()[1:4] == [
        "  line 7    wrong      The sum is 4.",
        "                       Right: It is 3.",
        "                       Measured: 3 ≠ 4.",
    ]
    told = json.loads(judge(content, "--json", code=1).stdout)
    assert told["claim_counts"] == told["files"][0]["claim_counts"] == {"shown": 0, "not shown": 0, "wrong": 1}
    (claim,) = told["files"][0]["claims"]
    assert claim == {
        "text": "The sum is 4.", "line": 7, "label": "", "formula": "sum(x) == 4", "verdict": "wrong",
        "note": "It is 3.", "values": "Measured: 3 ≠ 4.", "command": "",
    }  # fmt: skip


def test_wrong_without_a_correction_is_wrong_all_the_same(judge):
    assert "Right" not in judge(CLAIM.format(4, 4), code=1).stdout


def test_not_shown_says_why_and_is_exit_0(judge):
    said = judge('[[claim]]\ntext = "It trains."\nwhy = "Training decides it."\n', code=0).stdout
    assert "not shown  It trains.\n" + " " * 23 + "Training decides it.\n" in said
    assert said.endswith("claims: 0 shown, 1 not shown, 0 wrong\n")


def test_numbers_and_claims_are_counted_apart(judge):
    said = judge(
        '[[step]]\nformula = "3"\nprinted = "3"\n' + '[[claim]]\ntext = "a"\nformula = "1 < 2"\n', code=0
    ).stdout
    assert said.endswith("numbers: 1 right, 0 rounded along the way, 0 wrong\nclaims: 1 shown, 0 not shown, 0 wrong\n")


def test_long_claims_fit_a_narrow_terminal(judge, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    said = judge(CLAIM.format("three, " * 20, 3), code=0).stdout
    assert max(map(len, said.splitlines())) <= 60
    assert said.count("three,") == 20


CONTROL = '[[claim]]\ntext = "\\u001b[2J hidden"\nformula = "1 < 2"\ncommand = "a\\nb"\n'


def test_control_characters_are_not_printed(judge):
    said = judge(CONTROL, code=0).stdout
    assert "\x1b" not in said
    assert "a b" in said


def claim(formula="1 < 2", *lines, text='text = "a"'):
    return "\n".join(["[inputs]", "x = [1, 2]", "[[claim]]", text, f'formula = "{formula}"', *lines])


@pytest.mark.parametrize("content, said", [
    ("[claim]\ntext = 'a'", "line 1: each claim must be a table, [[claim]]"),
    ("[[claim]]\nformula = '1'", "line 1: this claim has no text"),
    ("[[claim]]\ntext = 'a'", "line 1: this claim has no formula; add one, or say why it is not shown"),
    ("[[claim]]\ntext = 'a'\nwhy = 'b'\ninstead = 'c'", "line 1: instead is for a claim with a formula that is false"),
    (claim("1 < 2", "why = 'b'"), "line 3: why is for a claim without a formula"),
    (claim("2 < 1", "right = '1 < 2'"), "line 3: this claim has the formula of what is right; say it in words"),
    (claim("1 < 2", "instead = 'b'"), "line 6: this claim holds, so there is nothing to say instead"),
    (claim("2 < 1", "instead = 'b'", "right = '3 < 1'"), "line 7: the formula of what is right does not hold either"),
    (claim("2 < 1", "instead = 'b'", "right = 'z'"), "line 7: nothing above is named z"),
    (claim("1 < 2", "measured = 'It is 1.'"), "line 6: measured has {a} where the number on the left"),
    (claim("all(x > 0)", "measured = 'It is {a}.'"), "line 6: measured is for a formula that compares two numbers"),
    ("[[claim]]\ntext = 'a'\nwhy = 'b'\nmeasured = 'c'", "line 1: measured is for a claim with a formula"),
    (claim("x"), "line 5: the formula gives 2 numbers, and a claim is true or false; use all(…)"),
    (claim("x > 1"), "line 5: the formula gives 2 numbers, and a claim is true or false"),
    (claim("sum(x)"), "line 5: the formula gives 3, and a claim is true (1) or false (0); compare it"),
    (claim("0 * inf"), "line 5: the formula gives nan, and a claim is true (1) or false (0)"),
    (claim("0 * inf < 1"), "line 5: one side of the comparison is not a number, so that it decides nothing"),
    (claim("x +"), "line 5: the formula x + is not understood"),
    (claim("x < [1, 2, 3]"), "line 5: in x < [1, 2, 3] the shapes 2 and 3 do not fit"),
    (claim("printed(y) < 1"), "line 5: printed(y) is not known: printed(x) is for claims"),
    (claim("printed(x + 1) < 1"), "line 5: printed is not a function of formulas"),
    (claim("1 < 2", "lien = 3"), "line 6: lien is not understood here; did you mean line?"),
    (claim("1 < 2", "line = '3'"), "line 6: line must be a whole number"),
    (claim("1 < 2", "command = 3"), "line 6: command must be text in quotes"),
    (claim(text="text = 3"), "line 4: text must be text in quotes"),
    (claim("flops(x) > 1"), "line 5: flops(x) must begin with the name of a preset in quotes"),
    (claim("flops() > 1"), "line 5: flops() must begin with the name of a preset in quotes"),
    (claim("flops('gpt3') > 1"), "line 5: gpt3 is not a preset; did you mean gpt2?"),
    (claim("flops('nano') > 1"), "line 5: nano is a preset of several families; use one of gpt:nano"),
    (claim("flops('gpt:nano', 64, 3) > 1"), "line 5: flops('gpt:nano', 64, 3) is not understood; write flops("),
    (claim("flops('gpt:nano', 0) > 1"), "line 5: the number of tokens must be at least 1, not 0"),
    (claim("flops('gpt:nano', 0.5) > 1"), "line 5: flops('gpt:nano', 0.5) cannot be worked out: 0.5 is not a whole"),
    (claim("flops('gpt:nano', heads=3) > 1"), "line 5: model.heads 3 does not divide model.width 128"),
    (claim("flops('gpt:nano', head=3) > 1"), "line 5: head is not a size that can be changed here; did you mean heads?"),
    (claim("kv_cache_bytes('vit:nano') > 1"), "line 5: vit:nano has no KV cache"),
    (claim("flops('vit:nano', 7) > 1"), "line 5: the number of tokens of this model follows from its picture"),
    (claim("sqrt('gpt2') > 1"), "line 5: 'gpt2' is not understood in a formula"),
    (claim("flops('gpt:nano', 'x') > 1"), "line 5: 'x' is not understood in a formula"),
    (claim("sinusoids(x, 3) > 1"), "line 5: sinusoids(x, 3) cannot be worked out: sines and cosines come in pairs"),
    (claim("unfold(ones(1, 4, 4), 3) > 1"), "line 5: unfold(ones(1, 4, 4), 3) cannot be worked out: 4×4 is not cut"),
])  # fmt: skip
def test_a_claim_that_cannot_be_decided_is_refused_with_its_line(judge, content, said):
    shown = judge(content, code=2)
    assert not shown.stdout
    assert shown.stderr.startswith("pencil: post.toml, " + said), shown.stderr
    assert shown.stderr.count("\n") == 1


# ---- the functions that claims use, against other libraries


def worked(formula, **values):
    return work_out(read(formula), {name: np.asarray(value, dtype=float) for name, value in values.items()})


def test_functions_of_models_agree_with_torch():
    random = np.random.default_rng(3)
    q, k, v = random.normal(size=(3, 2, 5, 7))
    a, b, c = (torch.tensor(part) for part in (q, k, v))
    whole, causal = (F.scaled_dot_product_attention(a, b, c, is_causal=how).numpy() for how in (False, True))
    np.testing.assert_allclose(worked("attend(q, k, v)", q=q, k=k, v=v), whole, atol=1e-12)
    np.testing.assert_allclose(worked("attend(q, k, v, causal(5))", q=q, k=k, v=v), causal, atol=1e-12)
    image, kernels = random.normal(size=(2, 3, 6, 10)), random.normal(size=(5, 3, 2, 2))
    for stride in (1, 2, 3):
        convolved = F.conv2d(torch.tensor(image), torch.tensor(kernels), stride=stride).numpy()
        np.testing.assert_allclose(worked(f"conv(x, w, {stride})", x=image, w=kernels), convolved, atol=1e-12)
    unfolded = F.unfold(torch.tensor(image), 2, stride=2).mT.numpy()
    np.testing.assert_array_equal(worked("unfold(x, 2)", x=image), unfolded)
    np.testing.assert_array_equal(worked("unfold(x, 2)", x=image[0]), unfolded[0])


def test_functions_of_positions_by_their_definition():
    rows = worked("sinusoids([0, 3, 11], 6)")
    expected = [[f(p / 10000 ** (2 * i / 6)) for i in range(3) for f in (math.sin, math.cos)] for p in (0, 3, 11)]
    np.testing.assert_allclose(rows, expected, atol=1e-15)
    x = np.random.default_rng(4).normal(size=(3, 6))
    turned = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * np.outer([0, 3, 11], 100.0 ** (-np.arange(3) / 3)))
    got = worked("rotate(x, [0, 3, 11], base=100)", x=x)
    np.testing.assert_allclose(got[:, 0::2] + 1j * got[:, 1::2], turned, atol=1e-12)
    seen = [[0 if key <= query or (key < 3 and query < 3) else -math.inf for key in range(7)] for query in range(7)]
    np.testing.assert_array_equal(worked("prefix(3, 7)"), seen)
    np.random.seed(11)
    np.testing.assert_array_equal(worked("normal(11, 3, 5)"), np.random.randn(3, 5))
    assert worked("rank(ones(5, 3))") == 1
    np.testing.assert_array_equal(worked("[all([1, 1]), all([1, 0]), any([0, 0]), isfinite(inf)]"), [1, 0, 0, 0])


def test_counts_are_those_of_the_cost_report():
    record = FAMILIES["gpt"]
    counts = count(record.create, record.cost, record.configure("nano", heads=2, depth=3), 64)
    asked = {
        name: worked(f"{name}('gpt:nano', 64, heads=2, depth=3)") for name in ("flops", "parameters", "decode_flops")
    }
    assert asked == {
        "flops": counts.forward.flops, "parameters": counts.total_parameters, "decode_flops": counts.decode and counts.decode.flops
    }  # fmt: skip
    assert worked("score_flops('gpt:nano', 64, depth=1)") == 4 * 64**2 * 128
    assert worked("attention_flops('gpt:nano', 64, depth=1)") == 8 * 64 * 128**2 + 4 * 64**2 * 128
    assert worked("kv_cache_bytes('llama2-70b', 4096)") == 1.25 * 2**30


# ---- limits


def test_a_file_counts_some_models_and_each_once(monkeypatch):
    monkeypatch.setattr("pencil.learn.check.functions.COUNT", WORK // 2 - 100_000)
    with limited():
        for heads in (1, 2, 1, 2, 1, 2):
            work_out(read(f"flops('gpt:nano', 1, heads={heads}, depth=1)"), {})
        with pytest.raises(UserError, match="more than the 24,000,000 numbers"):
            work_out(read("flops('gpt:nano', 1, heads=4, depth=1)"), {})
    assert WORK // COUNT <= 20


def test_a_formula_opens_no_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="mine is not a preset"):
        work_out(read("flops('mine')"), {})


@pytest.mark.parametrize("formula", [
    "normal(1, 1e4, 1e4)", "normal(-1, 2)", "normal(1e99)", "attend(ones(2000, 1), ones(2000, 1), ones(2000, 1))",
    "sinusoids(arange(1e4), 1e4)", "sinusoids(1, 1e99)", "rotate(ones(4), 1)", "rotate(ones(3, 4), 1)", "prefix(1, 1e6)",
    "unfold(ones(4), 2)", "unfold(ones(1, 4, 4), 0)", "conv(ones(1, 9, 9), ones(9), 1)", "rank(3)", "rank(ones(2, 2, 2))",
    "conv(ones(1, 900, 900), ones(900, 1, 2, 2), 1)", "conv(ones(1, 999, 999), ones(1, 1, 500, 500), 1)",
    "conv(ones(1, 9, 9), ones(1, 1, 2, 2), 0)", "rank(ones(1000, 1000))", "flops('gpt:nano', 1e9)",
    "flops('gpt:nano', width=2e9, heads=1)", "flops('llama2-70b', 2147483648)", "kv_cache_bytes('gpt:nano', 1, depth=0)",
    "flops('gpt:nano', **x)", "flops(*x)", "flops(model='gpt:nano')", "flops('a' 'b' + 'c')", "flops(f'{x}')",
])  # fmt: skip
def test_functions_refuse_what_is_too_large_or_does_not_fit(formula):
    with limited(), pytest.raises(UserError) as refused:
        work_out(read(formula), {"x": np.ones(2)})
    assert len(str(refused.value)) < 600


WATCHED = {"open", "exec", "os.system", "os.remove", "os.mkdir", "subprocess.Popen", "socket.connect", "ctypes.dlopen"}
SEEN: list[str] | None = None


def _watch(event, _):
    """What the shape checking of the suite executes does not count."""
    if SEEN is not None and event in WATCHED:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not caller.startswith(("jaxtyping", "beartype")):
            SEEN.append(f"{event} by {caller}")


sys.addaudithook(_watch)  # for good: Python removes none; it writes only while SEEN is a list

NAMES = st.sampled_from([
    "x", "sum", "all", "__import__('os').mkdir('a')", "open('a', 'w')", "().__class__", "x.__class__", "eval", "exec",
    "printed", "printed(x)", "'os'", "globals()", "lambda: 1", "x.T", "1", "0.5", "inf", "None", "...", "breakpoint()",
])  # fmt: skip
JOINS = st.sampled_from(["{} + {}", "{}({})", "{}[{}]", "{}.{}", "{} < {}", "{} == {}", "[{}, {}]", "{} @ {}", "{} if {} else 1",
                         "[{} for y in {}]", "({} := {})", "flops({}, {})", "attend({}, {}, x)", "{}(axis={})", "f'{{{}}}{}'"])  # fmt: skip
FORMULAS = st.recursive(NAMES, lambda inner: st.builds(str.format, JOINS, inner, inner), max_leaves=6) | st.text(
    max_size=40
)


@settings(max_examples=100, deadline=None)
@given(FORMULAS)
def test_no_claim_leaves_the_language(formula):
    """Whatever stands in a formula, it is decided or refused, and nothing is opened, run or executed."""
    global SEEN
    content = f"[inputs]\nx = [[1, 2], [3, 4]]\n[[claim]]\ntext = 'a'\nformula = {json.dumps(formula)}\n"
    said = verdict = ""
    SEEN = []
    try:
        with unchecked():
            verdict = check_text(content).claims[0].verdict
    except UserError as refused:
        said = str(refused)
    finally:
        seen, SEEN = SEEN, None
    assert not seen
    assert "line" in said or "cannot be read" in said or verdict in (SHOWN, WRONG)
