"""Reports of a training: the progress bar, metrics.jsonl, the loss plot, the model card, and a logger if configured."""

import io
import json
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..config import UserError
from ..console import Console, visible
from ..files import write_aside


class Metrics:
    """One object a line, flushed as it is written; on resume, what came after the checkpoint is cut off."""

    def __init__(self, run: Path, after: int, logger: str = "none"):
        self.path = run / "metrics.jsonl"
        kept = "".join(json.dumps(line) + "\n" for line in self.read(run) if after and line["step"] <= after)
        # a link is replaced, never written through: a run may come from somebody else
        whole = self.path.is_file() and not self.path.is_symlink()
        if not whole or self.path.read_text(encoding="utf-8") != kept:
            write_aside(self.path, kept.encode())
        self.file = self.path.open("a", encoding="utf-8")
        self.log = open_logger(logger, run)

    @staticmethod
    def read(run: Path) -> list[dict[str, Any]]:
        path = run / "metrics.jsonl"
        lines = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                lines.append(json.loads(line))
            except ValueError:
                break  # a line cut short by a kill is the last
        return lines

    def write(self, **values: Any) -> None:
        self.file.write(json.dumps(values) + "\n")
        self.file.flush()
        self.log(values)

    def close(self) -> None:
        self.file.close()


def open_logger(name: str, run: Path):
    """A function that takes one line of metrics and hands it to TensorBoard or trackio."""
    if name == "none":
        return lambda values: None
    try:
        if name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            board = SummaryWriter(str(run / "tensorboard"))

            def to_board(values: Mapping[str, Any]) -> None:
                for key, value in values.items():
                    if key != "step":
                        board.add_scalar(key, value, values["step"])
                board.flush()

            return to_board
        import trackio  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f"{name} is not installed; pip install 'pencil-transformers[{name}]'") from None
    trackio.init(project=run.parent.name, name=run.name)
    return lambda values: trackio.log({k: v for k, v in values.items() if k != "step"}, step=values["step"])


def plot_losses(run: Path) -> Path:
    """loss.png: training and validation loss against the step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = Metrics.read(run)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    curves = (
        ("train_loss", "training", {"color": "#999999", "linewidth": 1}),
        ("val_loss", "validation", {"color": "#0072b2", "marker": "o", "markersize": 3}),
    )
    for key, label, style in curves:
        points = [(line["step"], line[key]) for line in lines if key in line]
        if points:
            axes.plot(*zip(*points, strict=True), label=f"{label} (last {points[-1][1]:.3f})", **style)
    axes.set(xlabel="step", ylabel="loss (nats)", title=run.name)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=130)
    path = run / "loss.png"
    write_aside(path, drawn.getvalue())  # replaces a link instead of writing through it
    return path


def model_card(
    run: Path, config: Mapping[str, Any], parameters: int, best: Mapping[str, Any], chosen: bool, usage: str
) -> str:
    """README.md of a run: what it is, how good it is, how to use it."""
    facts, train = config["run"], config["train"]
    worded = f"tokenizer: {facts['tokenizer']}; " if "tokenizer" in facts else ""
    which = "the best by validation" if chosen else "the last: a test set does not select weights"
    measures = "\n".join(f"| {key} | {value:.4f} |" for key, value in best.items() if isinstance(value, float))
    return f"""# {run.name}

A {facts["family"]} of {parameters:,} parameters, trained by Pencil {facts["pencil"]} on `{facts["data"]}`
(preset: {facts["preset"]}; {worded}{train["steps"]} steps; seed {train["seed"]}).

| measure on held-out data | value |
|---|---|
{measures}

The weights in `model.safetensors` are those of step {best.get("step")}, {which}.

```
pencil sample {shlex.quote(str(run))}{usage and " "}{usage}
pencil eval {shlex.quote(str(run))}
pencil resume {shlex.quote(str(run))}
```

```python
import pencil
model, tokenizer, run = pencil.load("{run}")
```

`config.toml` has every setting, `metrics.jsonl` every measurement, `loss.png` the curve, `samples/` the outputs.
"""


class ProgressBar:
    """Loss, throughput and time left: a bar in a terminal, a line now and then elsewhere."""

    def __init__(self, total: int, start: int, unit: str, console: Console | None = None):
        self.console = console or Console(stderr=True)
        self.total, self.unit, self.start, self.started = total, unit, start, time.monotonic()
        self.printed = self.started
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"), TimeRemainingColumn(), console=self.console, transient=True,
        )  # fmt: skip
        self.task = self.progress.add_task("training", total=total, completed=start, note="")

    def __enter__(self) -> "ProgressBar":
        if self.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.console.is_terminal:
            self.progress.stop()

    def update(self, step: int, loss: float, rate: float) -> None:
        note = f"loss {loss:.4f}  {rate:,.0f} {self.unit}/s"
        self.progress.update(self.task, completed=step, note=note)
        now = time.monotonic()
        if not self.console.is_terminal and now - self.printed > 30:
            self.printed = now
            left = (now - self.started) / max(1, step - self.start) * (self.total - step)
            self.print(f"step {step}/{self.total}  {note}  {left:.0f} s left")

    def print(self, line: str) -> None:
        self.console.print(visible(line), highlight=False, markup=False, soft_wrap=True)
