"""The lab goes on after an interruption with the same measurements and no others; its words are what was measured."""

import json
import signal
import subprocess
import sys
import time

import pytest

from conftest import call
from pencil.learn.lab import claim_of, resume
from pencil.learn.lab import claims_blocks as residual
from pencil.learn.lab.ablations import without_norms, without_skips
from pencil.learn.lab.claim import Claim, Curve, Prediction
from pencil.learn.lab.claims_attention import measure_scaling
from pencil.learn.lab.runner import Plan

WORDS = ("lab", "all", "--quick", "--seeds", "3", "--out", "out")


class Measure:
    """Counts what it measures; raises before one measurement."""

    def __init__(self):
        self.made, self.stop = [], None

    def __call__(self, arm, seed, size):
        if (arm, seed) == self.stop:
            raise KeyboardInterrupt
        self.made.append((arm, seed))
        return {"m": seed / 7 + (arm == "with"), "by x": [(1.0, 2.0), (2.0, seed / 3)]}


@pytest.fixture
def known(monkeypatch, tmp_path):
    """Three claims, the last of which measures time; in this process, and without figures."""
    found = {}
    for name, alone in (("one", False), ("two", False), ("timed", True)):
        prediction = Prediction("it falls", "m", "m", "with", "without")
        size = dict(steps=(2, 3))
        found[name] = Claim(
            name, name.title(), "It is.", "it", ("with", "without"), Measure(), (prediction,), size, size, size,
            (Curve("by x", "x", "y"),), alone,
        )  # fmt: skip
    monkeypatch.setattr("pencil.learn.lab.claims", lambda: found)
    monkeypatch.setattr("pencil.learn.lab.claim_of", found.get)
    monkeypatch.setattr("pencil.learn.lab.runner.WORKERS", 0)
    monkeypatch.setattr("pencil.learn.lab.report.figure", lambda result: b"")
    monkeypatch.chdir(tmp_path)
    return found


def made(known):
    """How many measurements each claim made since the last call."""
    counts = [len(claim.measure.made) for claim in known.values()]
    for claim in known.values():
        claim.measure.made.clear()
    return counts


def interrupted(known, name, at, *words):
    known[name].measure.stop = at
    shown = call(*(words or WORDS), code=130)
    known[name].measure.stop = None
    return shown.stdout


def findings(path):
    return [(claim["name"], claim["findings"]) for claim in json.loads((path / "results.json").read_text())["claims"]]


def test_the_same_command_goes_on(known, tmp_path):
    shown = interrupted(known, "two", ("without", 102))
    assert "Interrupted: 9 of 18 measurements are kept in out; the same command goes on." in shown
    assert made(known) == [6, 3, 0]
    shown = call(*WORDS).stdout
    assert "Going on: 9 of 18 measurements in out are kept, 1 of 3 claims finished; --force starts anew." in shown
    assert made(known) == [0, 3, 6]
    call(*WORDS[:-1], "whole")
    assert findings(tmp_path / "out") == findings(tmp_path / "whole")
    facts = json.loads((tmp_path / "out" / "results.json").read_text())["facts"]
    assert facts["time"].endswith("seconds after 9 measurements from before")
    made(known)
    assert "has the results of this command already; --force" in call(*WORDS, code=2).stderr
    call(*WORDS, "--force")
    assert made(known) == [6, 6, 6]


def test_what_measures_time_is_measured_in_one_go(known, tmp_path):
    interrupted(known, "timed", ("with", 103))
    assert made(known) == [6, 6, 4]
    shown = call(*WORDS).stdout
    assert "Going on: 12 of 18 measurements" in shown
    assert made(known) == [0, 0, 6]
    assert len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == 18


def test_one_claim_goes_on_too(known):
    words = ("lab", "one", "--quick", "--seeds", "3")
    interrupted(known, "one", ("with", 103), *words)
    assert "Going on: 4 of 6 measurements in lab/one are kept; --force" in call(*words).stdout
    assert made(known) == [6, 0, 0]


def test_a_claim_that_failed_is_measured_again(known, monkeypatch):
    def broken(arm, seed, size):
        raise ValueError("no memory")

    good = known["two"]
    known["two"] = Claim(**(vars(good) | {"measure": broken}))
    assert "two could not be measured" in call(*WORDS, code=1).stdout
    known["two"] = good
    made(known)
    assert "2 of 3 claims finished" in call(*WORDS).stdout
    assert made(known) == [0, 6, 0]


def test_a_line_cut_short_by_a_kill_is_measured_again(known, tmp_path):
    interrupted(known, "two", ("without", 102))
    path = tmp_path / "out" / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-17])
    made(known)
    assert "Going on: 8 of 18" in call(*WORDS).stdout
    assert made(known) == [0, 4, 6]


@pytest.mark.parametrize("change", [
    lambda lines: [lines[0][:-9], *lines[1:]],
    lambda lines: ["[]", *lines[1:]],
    lambda lines: ["[" * 9999, *lines[1:]],
    lambda lines: [lines[0], lines[0], *lines[1:]],
    lambda lines: [lines[0].replace('"one"', '"three"'), *lines[1:]],
    lambda lines: [lines[0].replace('"seed": 101', '"seed": 7'), *lines[1:]],
    lambda lines: [lines[0].replace('"m"', '"n"'), *lines[1:]],
    lambda lines: [lines[0].replace('"m": ', '"m": NaN, "n": '), *lines[1:]],
    lambda lines: [lines[0].replace("[1.0, 2.0]", "[1.0]"), *lines[1:]],
    lambda lines: [lines[0].replace('"m": ', '"m": [], "n": '), *lines[1:]],
])  # fmt: skip
def test_a_damaged_line_is_refused_by_its_number(known, tmp_path, change):
    interrupted(known, "two", ("without", 102))
    path = tmp_path / "out" / "results.jsonl"
    lines = change(path.read_text().splitlines())
    path.write_text("".join(f"{line}\n" for line in lines))
    before = path.read_bytes()
    shown = call(*WORDS, code=2).stderr
    assert any(f"results.jsonl, line {n} is damaged; --force starts anew" in shown for n in (1, 2))
    assert shown.count("\n") == 1
    assert path.read_bytes() == before


def test_other_measurements_are_not_mixed_in(known, tmp_path):
    interrupted(known, "two", ("without", 102))
    path = tmp_path / "out" / "results.jsonl"
    before = path.read_bytes()
    for words, told in (
        (
            ("lab", "all", "--quick", "--seeds", "4", "--out", "out"),
            "another command (pencil lab all --quick --seeds 3,",
        ),
        (("lab", "one", "--quick", "--seeds", "3", "--out", "out"), "another command"),
        (("lab", "all", "--seeds", "3", "--out", "out"), "another command"),
    ):
        assert told in call(*words, code=2).stderr
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    for key in ("pencil", "source of pencil", "torch", "python", "machine", "sizes"):
        (tmp_path / "out" / "plan.json").write_text(json.dumps(plan | {key: "\x1b[31mother"}))
        shown = call(*WORDS, code=2).stderr
        assert f"has measurements of another {key.removesuffix('s')}" in shown
        assert "\x1b" not in shown
    for content in ("", "[]", "{", '{"format": 2}'):
        (tmp_path / "out" / "plan.json").write_text(content)
        assert "no plan.json that says of what" in call(*WORDS, code=2).stderr
    assert path.read_bytes() == before
    call(*WORDS, "--force")


def test_a_changed_size_is_another_plan(known, tmp_path):
    here, there = (
        Plan([claim], 3) for claim in (known["one"], Claim(**(vars(known["one"]) | {"quick": dict(steps=5)})))
    )
    resume.take_over(tmp_path, here, "pencil lab one")
    assert resume.take_over(tmp_path, here, "pencil lab one") == []
    with pytest.raises(ValueError, match="measurements of another size"):
        resume.take_over(tmp_path, there, "pencil lab one")


def test_two_labs_do_not_write_into_one_folder(known, tmp_path):
    pytest.importorskip("fcntl", reason="no locks on this system")
    (tmp_path / "out").mkdir()
    with resume.writing(tmp_path / "out"):
        assert "out is being written by another process" in call(*WORDS, code=2).stderr
    call(*WORDS)


@pytest.mark.long
def test_a_killed_lab_goes_on(tmp_path):
    words = [sys.executable, "-m", "pencil", "lab", "residual", "--quick", "--seeds", "3", "--out", "out"]
    lab = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL)
    rows = tmp_path / "out" / "results.jsonl"
    begun = time.monotonic()
    while not (rows.exists() and rows.read_bytes().count(b"\n")):
        assert lab.poll() is None
        assert time.monotonic() - begun < 900  # only a process that hangs takes that long
        time.sleep(0.1)
    lab.send_signal(signal.SIGKILL)
    lab.wait()
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "of 9 measurements in out are kept" in done.stdout
    assert "shown" in done.stdout
    assert len(rows.read_text().splitlines()) == 9


# what the claims' words say


def test_without_residuals_the_gradient_survives_a_few_blocks_and_not_tens():
    claim = claim_of("residual")
    assert "a few blocks, not tens" in claim.caveat
    found = {}
    for depth in (8, 16, 32):
        lengths = residual.block_gradients(without_skips(residual.small_gpt(claim.quick, 103, depth)), claim.quick, 103)
        found[depth] = lengths[0] / lengths[-1]
    assert found[8] == pytest.approx(0.38, abs=0.15)
    assert 1e-6 < found[16] < 1e-4
    assert 1e-22 < found[32] < 1e-17
    bare = without_skips(without_norms(residual.small_gpt(claim.quick, 103, 2)))
    lengths = residual.block_gradients(bare, claim.quick, 103)
    assert lengths[0] / lengths[-1] == pytest.approx(2e-5, rel=0.3)


def test_without_the_scale_less_gradient_passes_in_wide_heads_only():
    claim = claim_of("scaling")
    assert "vanish" not in claim.hypothesis
    assert "in wide heads only" in claim.caveat
    # as quick, but for the training, which is not looked at
    size = claim.tiny | {name: claim.quick[name] for name in ("widths", "tokens")} | dict(rows=2)
    with_, without = (dict(measure_scaling(arm, 103, size)["slope by width"]) for arm in claim.arms)
    ratios = {width: without[width] / with_[width] for width in with_}
    for width, ratio in ((4, 1.4), (16, 1.4), (64, 1.0), (256, 0.58), (1024, 0.33)):
        assert ratios[width] == pytest.approx(ratio, rel=0.3), width
