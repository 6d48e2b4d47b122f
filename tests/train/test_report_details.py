"""What a training shows: the progress bar, and the curves of the loss plot."""

import io
import json

import pytest
from matplotlib.axes import Axes

from pencil.console import Console
from pencil.progress import track
from pencil.train.loop import report
from pencil.train.loop.report import ProgressBar, plot_losses


@pytest.fixture
def clock(monkeypatch, usual_seconds):
    """The time as the progress bar reads it."""
    now = [100.0]
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    return now


def shown(bar):
    return bar.console.file.getvalue()


def test_outside_a_terminal_a_line_comes_after_two_seconds_of_steps_and_every_half_minute(clock):
    bar = ProgressBar(19, 3, "tokens", Console(file=io.StringIO(), width=200))
    bar.update(5, 2.5, 1234.5, 92.0, trained=2.0)
    assert shown(bar) == ""
    assert not bar.due(2.0)
    assert bar.due(2.5)
    bar.update(6, 2.5, 1234.5, 92.0, trained=2.5)
    assert shown(bar) == "step 6/19  loss 2.5000  1,234 tokens/s  92 s left\n"
    clock[0] = 130.0
    assert not bar.due(32.0)
    bar.update(7, 2.25, 1234.5, 61.0, trained=32.0)
    assert shown(bar).count("\n") == 1
    clock[0] = 130.5
    assert bar.due(32.5)
    bar.update(8, 2.25, 1234.5, 61.0, trained=32.5)
    assert shown(bar).count("\n") == 2


def test_outside_a_terminal_an_evaluation_shows_itself_only_if_it_takes_long(clock):
    bar = ProgressBar(19, 3, "tokens", Console(file=io.StringIO(), width=200))
    for now, done in ((100.0, 0), (101.9, 2), (102.0, 3), (131.9, 30), (132.0, 31)):
        clock[0] = now
        bar.evaluating(done, 53)
    # no estimate after 2 s; then 32 s for 31
    assert shown(bar) == "evaluating 3/53\nevaluating 31/53, 23 s left\n"
    bar.evaluated()
    bar.evaluating(1, 53)  # the next one begins anew
    assert shown(bar).count("\n") == 2


def test_progress_of_an_evaluation_outside_training(clock):
    console = Console(file=io.StringIO(), width=200)
    with report.shown_progress("evaluating", console):
        for _ in range(2):
            for i in track(range(7)):
                clock[0] += 1.0
                assert i in range(7)
    # after two of seven, in each of the two loops: too few for an estimate
    assert console.file.getvalue() == "evaluating 2/7\n" * 2


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_is_drawn_in_a_terminal_only(terminal):
    bar = ProgressBar(8, 3, "images", Console(file=io.StringIO(), width=200, force_terminal=terminal))
    with bar:
        assert bar.progress.live.is_started == terminal
        assert bar.progress.tasks[0].completed == 3
        bar.update(5, 1.0, 7.0, 11.0, 13.0)
        assert bar.progress.tasks[0].fields["note"] == "loss 1.0000  7 images/s  11 s left"
        bar.evaluating(2, 5)
        assert bar.progress.tasks[0].description == "evaluating 2/5"
        assert bar.progress.tasks[0].completed == 5
    assert not bar.progress.live.is_started


@pytest.mark.parametrize("present", [("train_loss", "val_loss"), ("val_loss",)])
def test_the_plot_has_a_curve_of_each_loss_that_was_measured(tmp_path, monkeypatch, present):
    drawn, plot = [], Axes.plot

    def watched(self, x, y, **style):
        drawn.append((list(x), list(y), style["label"]))
        return plot(self, x, y, **style)

    monkeypatch.setattr(Axes, "plot", watched)
    lines = [{"step": 5, "train_loss": 4.0}, {"step": 7, "val_loss": 3.5}, {"step": 11, "train_loss": 2.0}]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines if set(present) & set(line))
    )
    curves = {"train_loss": ([5, 11], [4.0, 2.0], "training (last 2.000)"),
              "val_loss": ([7], [3.5], "validation (last 3.500)")}  # fmt: skip
    assert plot_losses(tmp_path).read_bytes().startswith(b"\x89PNG")
    assert drawn == [curves[name] for name in present]


def test_what_was_measured_inside_is_drawn_below_the_losses(tmp_path, monkeypatch):
    drawn, plot = [], Axes.plot

    def watched(self, x, y, **style):
        drawn.append((self, list(x), list(y), style["label"]))
        return plot(self, x, y, **style)

    monkeypatch.setattr(Axes, "plot", watched)
    blocks = {f"activation_scale.blocks.{i}": i + 0.5 for i in range(3)}
    attention = {f"attention_entropy.blocks.{i}.attn": 3.0 - i for i in range(2)}
    lines = [
        {"step": 5, "train_loss": 4.0, "grad_norm": 2.5},
        {"step": 7, "val_loss": 3.5, **blocks, **attention},
        {"step": 11, "train_loss": 2.0, "grad_norm": 1.25},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plot_losses(tmp_path)
    losses, inside = drawn[:2], drawn[2:]
    assert [one[3] for one in losses] == ["training (last 2.000)", "validation (last 3.500)"]
    assert [one[1:] for one in inside] == [
        ([5, 11], [2.5, 1.25], ""),
        *(([7], [i + 0.5], f"blocks.{i}") for i in range(3)),
        *(([7], [3.0 - i], f"blocks.{i}.attn") for i in range(2)),
    ]
    titles = [axes.get_title() for axes in dict.fromkeys(one[0] for one in inside)]
    assert titles == [
        "gradient norm, before clipping",
        "root mean square of each block's output",
        "entropy of attention (nats)",
    ]


def test_every_flipped_bit_in_the_metrics_costs_its_lines_only_and_a_cut_costs_nothing(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": 5, "train_loss": 4.0}, {"step": 7, "val_loss": 3.5}, {"step": 11, "train_loss": 2.0}]
    whole = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    ends = [at for at, byte in enumerate(whole) if byte == 10]
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
        number = sum(end < at for end in ends)  # of the line it is in, from 0
        kept, fault = report.read_metrics(tmp_path)
        assert kept == [line for i, line in enumerate(lines) if i not in (number, number + (at in ends))]
        assert f"is damaged in line {number + 1}:" in str(fault)
        path.write_bytes(whole[:at])
        kept, fault = report.read_metrics(tmp_path)
        assert fault is None
        assert kept == lines[: number + (at in ends)]


def test_lines_that_are_no_measurements_are_left_out(tmp_path):
    bad = ["[" * 100_003, "[]", "7", '{"step": "5"}', '{"train_loss": 1}', '{"step": 3, "val_loss": "x"}']
    good = '{"step": 2, "val_loss": 1.5}'
    (tmp_path / "metrics.jsonl").write_text("\n".join([good, *bad, ""]))
    metrics = report.Metrics(tmp_path, after=3)
    metrics.close()
    assert "is damaged in lines 2, 3, 4, 5, 6 and 1 more:" in str(metrics.fault)
    assert (tmp_path / "metrics.jsonl").read_text() == good + "\n"
    (tmp_path / "metrics.jsonl").write_text("\n".join([good, *bad, ""]))
    plot_losses(tmp_path)
