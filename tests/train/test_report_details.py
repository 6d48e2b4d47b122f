"""What a training shows: the progress bar, and the curves of the loss plot."""

import io
import json

import pytest
from matplotlib.axes import Axes

from pencil.console import Console
from pencil.train import report
from pencil.train.report import ProgressBar, plot_losses


@pytest.fixture
def clock(monkeypatch):
    """The time as the progress bar reads it."""
    now = [100.0]
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    return now


def shown(bar):
    return bar.console.file.getvalue()


def test_outside_a_terminal_a_line_comes_only_after_half_a_minute(clock):
    bar = ProgressBar(19, 3, "tokens", Console(file=io.StringIO(), width=200))
    for now, step in ((129.0, 5), (130.0, 6)):
        clock[0] = now
        bar.update(step, 2.5, 1234.5)
    assert shown(bar) == ""
    clock[0] = 130.5
    bar.update(7, 2.5, 1234.5)
    # 30.5 s for 4 steps, and 12 are left
    assert shown(bar) == "step 7/19  loss 2.5000  1,234 tokens/s  92 s left\n"
    clock[0] = 160.5
    bar.update(8, 2.25, 1234.5)
    assert shown(bar).count("\n") == 1
    clock[0] = 161.0
    bar.update(9, 2.25, 1234.5)
    assert shown(bar).count("\n") == 2


def test_the_time_left_after_one_step_is_that_of_one_step(clock):
    bar = ProgressBar(8, 3, "images", Console(file=io.StringIO(), width=200))
    clock[0] = 140.0
    bar.update(4, 1.0, 7.0)
    assert "160 s left" in shown(bar)  # 40 s for the one made, and 4 are left


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_is_drawn_in_a_terminal_only(terminal):
    bar = ProgressBar(8, 3, "images", Console(file=io.StringIO(), width=200, force_terminal=terminal))
    with bar:
        assert bar.progress.live.is_started == terminal
        assert bar.progress.tasks[0].completed == 3
        bar.update(5, 1.0, 7.0)
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
