"""The removal lab: its statistics, its verdicts, its reports; that each removal really removes."""

import dataclasses
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from pencil import draw
from pencil.cli.main import main
from pencil.core.cache import Cache
from pencil.core.probe import Probe
from pencil.learn.lab import claim_of, claims
from pencil.learn.lab import claims_blocks as residual
from pencil.learn.lab import claims_positions as order
from pencil.learn.lab.ablations import post_norm, without_norms, without_positions, without_skips
from pencil.learn.lab.claim import Claim, Curve, Prediction
from pencil.learn.lab.claims_attention import pattern_of, time_next_token
from pencil.learn.lab.claims_blocks import scaled_gpt
from pencil.learn.lab.report import _logarithmic, table, write_all, write_claim
from pencil.learn.lab.runner import FIRST, Plan, append, as_json, run
from pencil.learn.lab.training import (
    generator,
    grammar,
    grammatical,
    lowest_loss,
    mean_of_last,
    sample_texts,
    seeded,
    train,
)
from pencil.learn.lab.verdict import find, interval, number, two_sided_quantile, verdict
from pencil.models.gpt import GPT, GPTConfig

MINE = "scaling residual layernorm pre-norm positions causal-mask warm-up embedding-scale kv-cache".split()
DOCS = Path(__file__).parents[2] / "docs" / "explain" / "ablations.md"
HANGS = 900  # seconds: only a process that never ends reaches this
MODEL = dict(vocab=7, context=5, width=6, heads=3, depth=2, bias=True)


# statistics


@pytest.fixture
def stats():
    """The reference for Student's t."""
    return pytest.importorskip("scipy.stats", reason="scipy is not installed: no reference for Student's t")


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9, 0.95, 0.99, 0.999])
def test_quantiles_of_students_t_are_scipys(stats, confidence):
    for degrees in (*range(1, 101), 127, 200, 293, 500, 999, 1000, 4999, 10_000):
        wanted = stats.t.ppf((1 + confidence) / 2, degrees)
        assert two_sided_quantile(confidence, degrees) == pytest.approx(wanted, rel=1e-9), degrees


def test_quantiles_of_students_t_in_closed_form():
    """One degree of freedom is Cauchy's distribution; two have an algebraic quantile."""
    for confidence in (0.1, 0.5, 0.95, 0.99):
        assert two_sided_quantile(confidence, 1) == pytest.approx(math.tan(math.pi * confidence / 2), rel=1e-12)
        wanted = confidence * math.sqrt(2 / (1 - confidence**2))
        assert two_sided_quantile(confidence, 2) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("confidence, degrees", [(0.95, 0), (0.0, 3), (1.0, 3), (math.nan, 3)])
def test_quantiles_that_do_not_exist(confidence, degrees):
    with pytest.raises(ValueError, match="no quantile"):
        two_sided_quantile(confidence, degrees)


def test_the_interval_is_students(stats):
    values = [0.31, 0.17, 0.59, 0.23, 0.41]
    mean, low, high = interval(values)
    wanted = stats.t.interval(0.95, 4, loc=sum(values) / 5, scale=stats.sem(values))
    assert (low, high) == pytest.approx(wanted, rel=1e-12)
    assert mean == pytest.approx(sum(values) / 5)
    # 1, 2, 3: the tables' 4.30265 for two degrees of freedom, over √3
    assert interval([1, 2, 3])[2] - 2 == pytest.approx(4.30265 / math.sqrt(3), abs=5e-6 / math.sqrt(3))


def test_one_seed_has_no_interval():
    with pytest.raises(ValueError, match="two values"):
        interval([1.0])


MORE = Prediction("a is larger", "m", "m (units)", "a", "b")


@pytest.mark.parametrize(
    ("change", "a", "b", "wanted"),
    [
        ({}, [5, 6, 7], [1, 2, 3.1], "shown"),
        ({}, [1, 2, 3.1], [5, 6, 7], "the opposite"),
        ({}, [1, 5, 3], [2, 3, 4], "not shown at this size"),
        # all larger, but by less than predicted
        (dict(by=5.0), [5, 6, 7], [1, 2, 3.1], "not shown at this size"),
        (dict(times=3.0), [10, 20, 41], [2, 4, 8], "shown"),
        (dict(times=9.0), [10, 20, 41], [2, 4, 8], "not shown at this size"),
        (dict(times=3.0), [2, 4, 8], [10, 20, 41], "the opposite"),
        (dict(times=3.0), [1, 1.1, 1.2], [0, 0, 0], "shown"),
        (dict(near=0.5, by=0.1, less=""), [0.49, 0.5, 0.52], [9, 9, 9], "shown"),
        (dict(near=0.5, by=0.1, less=""), [0.1, 0.5, 0.9], [9, 9, 9], "not shown at this size"),
        (dict(near=0.5, by=0.1, less=""), [0.9, 0.91, 0.92], [9, 9, 9], "the opposite"),
        (dict(near=1.0, less=""), [1, 1, 1], [9, 9, 9], "shown"),
    ],
)
def test_verdicts(change, a, b, wanted):
    assert find(dataclasses.replace(MORE, **change), {"a": a, "b": b}).verdict == wanted


def test_pairs_are_compared_not_groups(stats):
    # the seeds differ widely, the arms by one in each: only pairs show it
    found = find(MORE, {"a": [11, 101, 1001.1], "b": [10, 100, 1000]})
    assert found.verdict == "shown"
    wanted = stats.ttest_rel([11, 101, 1001.1], [10, 100, 1000]).confidence_interval()
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))


def test_what_is_not_finite_is_no_finding():
    with pytest.raises(ValueError, match="not finite"):
        find(MORE, {"a": [1, math.nan, 2], "b": [1, 1, 1]})


def test_a_claim_shown_in_part_says_so():
    yes, no = (find(MORE, {"a": [5, 6, 7], "b": [x, 2, 3.1]}) for x in (1, 40))
    assert verdict([yes, yes]) == "shown"
    assert verdict([yes, no]) == "partly shown"
    assert verdict([no, no]) == no.verdict == "not shown at this size"


def test_numbers_in_words():
    assert [number(x) for x in (0, 0.5, 1.0, 1.2345, 123.4, 2.5e-7, -3.0e8, 32)] == [
        "0", "0.500", "1", "1.23", "123", "2.5·10⁻⁷", "−3·10⁸", "32",
    ]  # fmt: skip


@pytest.mark.parametrize("high", [1.37, 3.1, 17.0])
def test_a_logarithmic_axis_has_several_numbers(high):
    axes = draw.canvas(3, 3).add_subplot()
    axes.scatter([0, 1], [1, high])
    _logarithmic(axes)
    low, top = axes.get_ylim()
    assert sum(low <= place <= top for place in axes.get_yticks()) >= 2


# the engine


def fake(arm, seed, size):
    lift = {"with": 2.0, "without": 0.0, "third": 1.0}[arm] * size["sign"]
    wobble = (1, -1, 0.3)[seed % 3] * size["noise"] * (1 if arm == "with" else -1)
    return {"m": 10 + lift + wobble, "curve": [(1, 1.0 + seed), (2, 2.0 + lift)]}


def claim_with(**size) -> Claim:
    prediction = Prediction("it falls", "m", "made up <m> (units)", "with", "without")
    size = dict(sign=1.0, noise=0.01) | size
    return Claim(
        "fake", "Made up & true", "With it m is larger.", "nothing", ("with", "without", "third"), fake, (prediction,),
        size, size, size, (Curve("curve", "x", "y", log_y=True),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("size", "wanted"),
    [({}, "shown"), (dict(sign=-1.0), "the opposite"), (dict(noise=50.0), "not shown at this size")],
)
def test_a_claim_through_the_engine(size, wanted):
    heard = []
    (result,) = run(Plan([claim_with(**size)], seeds=3, workers=0), heard.append)
    assert result.verdict == wanted
    assert [(row.arm, row.seed) for row in heard] == [
        (a, s) for s in range(FIRST, FIRST + 3) for a in ("with", "without", "third")
    ]


def test_what_is_written(tmp_path):
    (result,) = run(Plan([claim_with()], seeds=5, workers=0))
    for row in result.rows:
        append(tmp_path / "results.jsonl", row)
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(lines) == 15
    assert {(line["arm"], line["seed"]) for line in lines} == {(row.arm, row.seed) for row in result.rows}
    figure, report, numbers = write_claim(tmp_path, result, "pencil lab fake --seeds 5")
    assert figure.read_bytes().startswith(b"\x89PNG")
    page = report.read_text()
    # nothing is loaded from the network, and no name can break the page
    assert "data:image/png;base64," in page
    assert "http" not in page
    assert "made up &lt;m&gt;" in page
    assert "pencil lab fake --seeds 5" in page
    held = json.loads(numbers.read_text())
    assert held["claims"][0]["findings"][0]["low"] == result.findings[0].low
    assert "| `fake` Made up & true | it falls |" in table(held)
    paths = write_all(tmp_path, [result], "pencil lab all", "2 seconds")
    assert {"index.html", "table.md", "results.json", "fake.png"} == {path.name for path in paths}


def test_a_process_of_its_own_gives_the_same_numbers():
    small = dataclasses.replace(claim_of("swap"), quick=claim_of("swap").tiny)
    (here,), (there,) = (list(run(Plan([small], seeds=3, workers=workers))) for workers in (0, 1))
    assert as_json(here)["findings"] == as_json(there)["findings"]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_claim_that_cannot_be_measured_does_not_end_the_others(workers):
    small = dataclasses.replace(claim_of("scaling"), quick=claim_of("scaling").tiny)
    broken = dataclasses.replace(small, name="broken", quick=small.quick | dict(rows="many"))
    lost = []
    results = run(Plan([broken, small], seeds=3, workers=workers), failed=lambda claim, error: lost.append(claim.name))
    assert [result.claim.name for result in results] == ["scaling"]
    assert lost == ["broken"]
    with pytest.raises(TypeError):
        list(run(Plan([small, broken], seeds=3, workers=workers)))


def test_numbers_that_are_not_finite_lose_their_claim_only():
    claim = claim_of("layernorm")
    endless = dataclasses.replace(
        claim, name="endless", measure=lambda arm, seed, size: dict(drift=math.inf, loss=1.0), quick=claim.tiny
    )
    whole = dataclasses.replace(endless, name="whole", measure=lambda arm, seed, size: dict(drift=2.0, loss=1.0))
    said = {}
    results = run(
        Plan([endless, whole], seeds=3, workers=0), failed=lambda claim, error: said.update({claim.name: error})
    )
    assert [result.claim.name for result in results] == ["whole"]
    assert list(said) == ["endless"]
    assert "not finite" in str(said["endless"])


@pytest.mark.parametrize("arm", ["with", "without"])
def test_the_gradient_and_scale_of_96_blocks_are_numbers(arm):
    size = claim_of("layernorm").tiny | dict(width=32, length=7, depths=(96,), depth=1)
    drift = claim_of("layernorm").measure(arm, 3, size)["drift"]
    assert math.isfinite(drift)
    assert (drift > 1e6) == (arm == "without")
    ratio = claim_of("residual").measure(arm, 3, size)["ratio"]
    assert ratio > 0
    assert (ratio < 1e-40) == (arm == "without")


@pytest.mark.long
def test_the_verb_names_what_could_not_be_measured(tmp_path, capsys, monkeypatch):
    small = dataclasses.replace(claim_of("scaling"), quick=claim_of("scaling").tiny)
    broken = dataclasses.replace(small, name="broken", quick=small.quick | dict(rows="many"))
    known = {"broken": broken, "scaling": small}
    monkeypatch.setattr("pencil.learn.lab.claims", lambda: known)
    monkeypatch.setattr("pencil.learn.lab.claim_of", known.get)
    monkeypatch.chdir(tmp_path)
    status, text = said(["lab", "all", "--quick", "--seeds", "3"], capsys)
    assert status == 1
    assert "broken could not be measured: " in text
    assert "Not measured: broken." in text
    assert "`scaling`" in (tmp_path / "lab" / "all" / "table.md").read_text()
    status, text = said(["lab", "broken", "--quick"], capsys)
    assert status == 2
    assert text.count("broken could not be measured: ") == 1


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="only Linux says whose child a process is")
@pytest.mark.parametrize(
    "how", [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGTERM, signal.SIGKILL))]
)
@pytest.mark.long
def test_an_interrupted_lab_leaves_no_process_and_no_traceback(tmp_path, how):
    words = [sys.executable, "-m", "pencil", "lab", "residual", "--quick", "--seeds", "3", "--out", "out"]
    lab = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where the suite runs in the background
    )  # fmt: skip

    def children():
        return [int(n) for n in Path(f"/proc/{lab.pid}/task/{lab.pid}/children").read_text().split()]

    def read(pid, name):
        try:
            return Path(f"/proc/{pid}/{name}").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return ""

    def alive(pid):
        return read(pid, "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"])

    def wait(condition):
        begun = time.monotonic()
        while not condition():
            assert time.monotonic() - begun < HANGS
            time.sleep(0.05)

    try:
        # both workers import torch, or have begun to measure; before it starts its program, a child looks like its parent,
        # and one that has not read its task yet cannot end quietly when its parent is killed
        def at_work(pid):
            return "spawn_main" in read(pid, "cmdline") and "libtorch" in read(pid, "maps")

        wait(lambda: lab.poll() is not None or sum(map(at_work, children())) >= 2)
        assert lab.poll() is None
        found = children()
        assert len(found) >= 2
        os.killpg(lab.pid, how) if how == signal.SIGINT else lab.send_signal(how)  # Ctrl-C reaches all of them
        text = "".join(lab.communicate(timeout=HANGS))
        assert lab.returncode == (130 if how == signal.SIGINT else -how)
        assert "Traceback" not in text
        wait(lambda: not any(map(alive, found)))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(lab.pid, signal.SIGKILL)


def test_what_measures_time_comes_last():
    timed = dataclasses.replace(claim_with(), name="timed", alone=True)
    assert [result.claim.name for result in run(Plan([timed, claim_with()], workers=0))] == ["fake", "timed"]


# the claims


@pytest.mark.parametrize("name", MINE)
def test_every_claim_runs_and_measures_what_it_judges(name):
    claim = claim_of(name)
    for arm in claim.arms:
        found = claim.measure(arm, 1, claim.tiny)
        numbers = {key: value for key, value in found.items() if isinstance(value, float)}
        assert all(map(math.isfinite, numbers.values()))
        for p in claim.predictions:
            assert p.metric in numbers or arm not in (p.more, p.less)
            assert {p.more, p.less} <= {*claim.arms, "" if p.near is not None else p.more}
    assert {curve.name for curve in claim.curves} <= {
        key for arm in claim.arms for key in claim.measure(arm, 1, claim.tiny)
    }


@pytest.mark.parametrize("name", ["residual", "causal-mask"])
def test_the_same_seed_gives_the_same_numbers(name):
    claim = claim_of(name)
    assert claim.measure(claim.arms[1], 3, claim.tiny) == claim.measure(claim.arms[1], 3, claim.tiny)
    assert claim.measure(claim.arms[1], 3, claim.tiny) != claim.measure(claim.arms[1], 4, claim.tiny)


def test_names_are_known_and_documented():
    known = claims()
    assert set(MINE) <= set(known)
    text = DOCS.read_text()
    assert all(f"`{name}`" in text for name in known), [name for name in known if f"`{name}`" not in text]


# removing


def model_of(seed=0, **sizes) -> GPT:
    return seeded(lambda: GPT(GPTConfig(**(MODEL | sizes))), seed).eval()


TEXT = torch.tensor([[3, 1, 6, 2, 5]])


def test_without_the_scale_scores_are_larger_by_the_root_of_the_width():
    q, k = torch.randn(2, 1, 3, 5, 7, generator=generator(0))
    assert torch.allclose(pattern_of(q, k, 1.0)[0], pattern_of(q, k, None)[0] * math.sqrt(7), atol=1e-5)


def test_without_residuals_a_dead_block_passes_nothing_on():
    def last_of(model):
        for block in model.blocks:
            torch.nn.init.zeros_(block.mlp.down.weight)
            torch.nn.init.zeros_(block.mlp.down.bias)
        probe = Probe("blocks.1.post")
        model(TEXT, probe=probe)
        return probe.values["blocks.1.post"]

    assert last_of(model_of()).abs().max() > 0
    assert last_of(without_skips(model_of())).abs().max() == 0


def test_without_norms_each_part_reads_the_trunk():
    probe = Probe("input", "blocks.0.attn_norm")
    without_norms(model_of())(TEXT, probe=probe)
    assert torch.equal(probe.values["input"], probe.values["blocks.0.attn_norm"])


def test_post_norm_norms_the_trunk_and_keeps_the_matrices():
    plain_model, other = model_of(), post_norm(model_of())
    probe = Probe("blocks.*.post", "norm")
    other(TEXT, probe=probe)
    for name in ("blocks.0.post", "blocks.1.post", "norm"):
        assert torch.allclose(probe.values[name].mean(-1), torch.zeros(1, 5), atol=1e-5)
        assert torch.allclose(probe.values[name].var(-1, correction=0), torch.ones(1, 5), atol=0.05)
    before = dict(plain_model.named_parameters())
    for name, parameter in other.named_parameters():
        if parameter.ndim == 2:
            assert torch.equal(parameter, before[name])


def test_gradients_are_those_of_autograd():
    size = claim_of("residual").tiny
    model = residual.small_gpt(size, 0, 3)
    found = residual.block_gradients(model, size, 0)
    probe = Probe("blocks.*.post")
    text, targets = residual.text_batch(size, 0, 0)
    loss = residual.next_token(model(text, probe=probe), targets)
    wanted = torch.autograd.grad(loss, list(probe.values.values()))
    assert found == pytest.approx([float(grad.norm()) for grad in wanted], rel=1e-5)


def test_without_positions_order_changes_nothing():
    size = claim_of("positions").tiny | dict(length=5)
    text = torch.tensor([[0, 3, 1, 4, 2]])
    swapped = text[:, [2, 4, 1, 0, 3]]
    blind, sees = (order.order_classifier(arm, 0, size).double() for arm in ("without", "with"))
    assert torch.allclose(blind(text), blind(swapped), atol=1e-12)
    assert not torch.allclose(sees(text), sees(swapped), atol=1e-12)
    line = without_positions(model_of())
    assert type(line.positions).__name__ == "Positions"


def test_without_the_mask_the_future_is_looked_at():
    model, probe = model_of(), Probe("blocks.0.attn.pattern")
    model(TEXT, probe=probe)
    assert (probe.values["blocks.0.attn.pattern"].triu(1) == 0).all()
    model.mask = order.full
    model(TEXT, probe=probe)
    pattern = probe.values["blocks.0.attn.pattern"]
    assert (pattern > 0).all()


def test_the_label_is_which_word_comes_first():
    text, first = order.order_batch(dict(words=11, length=7), 0, 0, 101)
    for row, label in zip(text.tolist(), first.tolist(), strict=True):
        assert row.count(0) == row.count(1) == 1
        assert label == (row.index(0) < row.index(1))
    assert 0.3 < first.float().mean() < 0.7


def test_the_grammar_is_kept():
    words = grammar(11, 3, 5)
    assert lowest_loss(words) == pytest.approx(math.log(3))
    text = sample_texts(words, 13, 17, generator(2))
    assert grammatical(words, text) == 1.0
    assert grammatical(words, torch.randint(11, (101, 53), generator=generator(3))) == pytest.approx(3 / 11, abs=0.03)


def test_the_scale_of_the_words():
    size = dict(words=7, length=5, width=16, heads=2, depth=1)
    plain_model, times = (scaled_gpt(size, 0, 0.25, scaled) for scaled in (False, True))
    probes = Probe("embed"), Probe("embed")
    plain_model(TEXT, probe=probes[0])
    times(TEXT, probe=probes[1])
    assert torch.allclose(4 * probes[0].values["embed"], probes[1].values["embed"])


def test_one_more_word_is_the_same_word_with_a_cache():
    model = model_of()
    _, cache = time_next_token(model, TEXT[:, :3], True, 1)
    assert isinstance(cache, Cache)
    assert cache.filled == 5
    fresh = model.new_cache(1, 5)
    model(TEXT[:, :4], cache=fresh)
    assert torch.allclose(model(TEXT[:, 4:], cache=fresh, last=True), model(TEXT, last=True), atol=1e-6)
    assert fresh.nbytes == 2 * 5 * MODEL["width"] * MODEL["depth"] * 4


def test_a_training_learns_and_a_broken_one_ends():
    weight = torch.nn.Linear(3, 1)
    losses = train(weight, lambda step: (weight(torch.ones(2, 3)) - 5).square().mean(), 50, lr=0.3)
    assert losses[-1] < 0.1 * losses[0]
    broken = train(weight, lambda step: weight(torch.ones(1, 3)).sum() * (math.nan if step == 3 else 1), 11)
    assert len(broken) == 4
    assert mean_of_last(broken, 1, 7.0) == 7.0
    assert mean_of_last([9.0, 1.0], 2, 5.0) == 3.0


# the verb


def said(words, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    out = capsys.readouterr()
    return end.value.code, " ".join((out.out + out.err).split())


def test_bad_input_is_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, text = said(["lab", "residul"], capsys)
    assert status == 2
    assert all(name in text for name in claims())
    assert said(["lab", "residual", "--seeds", "2"], capsys)[0] == 2
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    assert said(["lab", "scaling", "--out", "full"], capsys)[0] == 2
    status, text = said(["lab", "scaling", "--out", "full", "--force"], capsys)
    assert status == 2
    assert "results.jsonl" in text
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


def test_the_list_names_every_claim(capsys):
    status, text = said(["lab"], capsys)
    assert status == 0
    assert all(name in text for name in claims())
    assert text.startswith("Claims about parts of a transformer")


def test_a_claim_about_gradients_names_a_command_that_shows_one(capsys):
    """The gradient, the step made of it, or a state's slope in an RNN; each agrees with what was recorded."""
    commands = {name: claim.by_hand for name, claim in claims().items() if claim.by_hand}
    assert [*commands] == ["scaling", "residual", "layernorm", "pre-norm", "warm-up", "rnn-gradient"]
    for name, command in commands.items():
        status, text = said(shlex.split(command)[1:], capsys)
        assert status == 0, name
        assert re.search(r" recorded \S+ ✓", text), name
        assert re.search(r" (∂L/∂|new |J\[)\S+ = ", text), name


def test_listing_imports_no_engine():
    code = "import sys, pencil.cli.lab; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "False"]
