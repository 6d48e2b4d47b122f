"""Reports of a training: the progress bar, metrics.jsonl and its loggers, the loss plot, and the model card."""

import io
import json
import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.status import Status

from ...config import UserError, install
from ...console import Console, visible
from ...data.in_memory import is_token
from ...files import write_aside
from ...progress import duration, watched
from ...runs.files import DATA_COPY, Fault
from ..tasks.metrics import class_rows, describe_accuracy, is_detail

# where there is no terminal to draw a bar in, progress is reported as lines
FIRST_REPORT_SECONDS = 2.0
REPORT_INTERVAL_SECONDS = 30.0
# the time that is left is shown after so many turns of a loop, and so many seconds
LEAST_TURNS = 3
LEAST_SECONDS = 3.0
NAMED_LINES = 5  # how many damaged lines one sentence names
LARGEST_VALUE = 1 << 63  # a whole number of hundreds of digits is a measurement of nothing, and cannot be drawn
NO_METRICS = ("format", "family", "weights", "pencil", "step")  # entries of the weights' file that are no metrics


def read_metrics(run: Path) -> tuple[list[dict[str, Any]], Fault | None]:
    """The lines of metrics.jsonl that can be read, and which are damaged; a last line cut short by a kill is not."""
    path = run / "metrics.jsonl"
    lines, damaged = [], []
    *ended, last = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    for number, content in enumerate([*ended, last] if last else ended, 1):
        line = _measurements(content)
        if line is not None:
            lines.append(line)
        elif number <= len(ended) or b"}" in last[-2:]:
            damaged.append(number)
    if not damaged:
        return lines, None
    named = f"line{'s' if len(damaged) > 1 else ''} {', '.join(map(str, damaged[:NAMED_LINES]))}"
    more = f" and {len(damaged) - NAMED_LINES} more" if len(damaged) > NAMED_LINES else ""
    return lines, Fault(path, "damaged", f"is damaged in {named}{more}: what was measured there cannot be read")


def _measurements(content: bytes) -> dict[str, Any] | None:
    """The object of one line; None where it is not one of a step and its losses."""
    try:
        line = json.loads(content.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        return None
    losses = [line[name] for name in ("train_loss", "val_loss") if name in line]
    whole = [value for value in line.values() if isinstance(value, int)]
    fine = all(isinstance(loss, int | float) for loss in losses) and all(abs(value) < LARGEST_VALUE for value in whole)
    return line if fine else None


class Logger(NamedTuple):
    """A receiver of metrics besides metrics.jsonl."""

    log: Callable[[dict[str, float], int], Any]  # numbers by name, and their step
    close: Callable[[], Any] = lambda: None


def open_logger(name: str, run: Path, settings: Mapping[str, Any] | None = None) -> Logger:
    """The logger of a run; `settings` are shown beside the curves where a logger can."""
    try:
        return _OPEN[name](run, settings or {})
    except ImportError:
        raise UserError(f"{name} is not installed; {install(name)}") from None


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The values that a curve can be drawn of: not the names of the samples of an update that was left out."""
    return {key: value for key, value in values.items() if key != "step" and isinstance(value, int | float)}


def _none(run: Path, settings: Mapping[str, Any]) -> Logger:
    return Logger(lambda values, step: None)


def _tensorboard(run: Path, settings: Mapping[str, Any]) -> Logger:
    from torch.utils.tensorboard import SummaryWriter

    board = SummaryWriter(str(run / "tensorboard"))

    def log(values: dict[str, float], step: int) -> None:
        for key, value in values.items():
            board.add_scalar(key, value, step)
        board.flush()

    return Logger(log, board.close)


def _trackio(run: Path, settings: Mapping[str, Any]) -> Logger:
    import trackio  # pyright: ignore[reportMissingImports]

    trackio.init(project=run.resolve().parent.name, name=run.name)
    return Logger(lambda values, step: trackio.log(values, step=step), getattr(trackio, "finish", lambda: None))


def _wandb(run: Path, settings: Mapping[str, Any]) -> Logger:
    import wandb  # pyright: ignore[reportMissingImports]

    if not hasattr(wandb, "init"):  # the folder wandb/ that it leaves behind can be imported as well
        raise ImportError
    # WANDB_MODE=offline, WANDB_PROJECT and the others are read by wandb itself; a resumed run goes on in its curve
    run_id = settings.get("run", {}).get("id")
    resumed = {"id": run_id, "resume": "allow"} if run_id else {}
    wandb.init(name=run.name, dir=str(run), config=dict(settings), **resumed)
    return Logger(lambda values, step: wandb.log(values, step=step), wandb.finish)


_OPEN = {"none": _none, "tensorboard": _tensorboard, "trackio": _trackio, "wandb": _wandb}


class Metrics:
    """metrics.jsonl: one object per line, flushed as written; resuming cuts off what came after the checkpoint."""

    def __init__(self, run: Path, after: int, logger: Logger | None = None, evaluated: bool = True):
        """Cut off what came after step `after`, and the evaluation of that step unless it is not made again."""
        self.path = run / "metrics.jsonl"
        lines, self.fault = read_metrics(run)
        content = "".join(
            json.dumps(line) + "\n"
            for line in lines
            if after and line["step"] <= after and (evaluated or line["step"] < after or "val_loss" not in line)
        ).encode()
        # a link is replaced, never written through: a run may come from somebody else
        whole = self.path.is_file() and not self.path.is_symlink()
        if not whole or self.path.read_bytes() != content:
            write_aside(self.path, content)
        self.file = self.path.open("a", encoding="utf-8")
        self.logger = logger or open_logger("none", run)

    @staticmethod
    def read(run: Path) -> list[dict[str, Any]]:
        return read_metrics(run)[0]

    def write(self, **values: Any) -> None:
        self.file.write(json.dumps(values) + "\n")
        self.file.flush()
        self.logger.log(numbers(values), values["step"])

    def close(self) -> None:
        self.file.close()
        self.logger.close()


class NoMetrics(Metrics):
    """The metrics of a process that writes none."""

    def __init__(self):
        self.fault = None

    def write(self, **values: Any) -> None:
        pass

    def close(self) -> None:
        pass


MOST_NAMED_CURVES = 8  # of more, deeper blocks are brighter, and none is named
CURVES = (  # of metrics.jsonl: the beginning of their names, and the axis
    ("grad_norm", "gradient norm, before clipping"),
    ("activation_scale.", "root mean square of each block's output"),
    ("attention_entropy.", "entropy of attention (nats)"),
)


def plot_losses(run: Path) -> Path:
    """Plot training and validation loss against the step as loss.png, and below them what was measured inside."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = Metrics.read(run)
    below = [(name, label, curves) for name, label in CURVES if (curves := _curves(lines, name))]
    figure = Figure(figsize=(7 if len(below) < 3 else 9, 7 if below else 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2 if below else 1, max(1, len(below)))
    axes = figure.add_subplot(grid[0, :])
    curves = (
        ("train_loss", "training", {"color": "#999999", "linewidth": 1}),
        ("val_loss", "validation", {"color": "#0072b2", "marker": "o", "markersize": 3}),
    )
    for key, label, style in curves:
        points = [(line["step"], line[key]) for line in lines if key in line]
        if points:
            axes.plot(*zip(*points, strict=True), label=f"{label} (last {points[-1][1]:.3f})", **style)
    axes.set(xlabel="step", ylabel="loss (nats)", title=visible(run.name, one_line=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    for at, (name, label, drawn) in enumerate(below):
        axes = figure.add_subplot(grid[1, at])
        colours = colormaps["viridis"].resampled(max(2, len(drawn)))
        for i, (key, points) in enumerate(drawn.items()):
            axes.plot(*zip(*points, strict=True), color=colours(i), linewidth=1, label=key.removeprefix(name))
        axes.set_title(label, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        if 1 < len(drawn) <= MOST_NAMED_CURVES:
            axes.legend(frameon=False, fontsize=6)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    path = run / "loss.png"
    write_aside(path, content.getvalue())  # replaces a link instead of writing through it
    return path


def _curves(lines: list[dict[str, Any]], name: str) -> dict[str, list[tuple[int, float]]]:
    """The curves whose names begin so, in the order they were first written."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        for key, value in line.items():
            if key.startswith(name) and isinstance(value, int | float) and math.isfinite(value):
                curves.setdefault(key, []).append((line["step"], value))
    return curves


def _how_to_use(run: Path, facts: Mapping[str, Any], usage: str, resumed: bool) -> str:
    """The commands of a run, that which resumes it where it can be; for a task of `pencil.fit`, the call for both."""
    path = visible(str(run), one_line=True)
    if "task" in facts:
        return f"""```python
import pencil
model = pencil.fit({facts["task"]}(), "{path}", resume=True).load()
```
"""
    quoted = shlex.quote(path)
    if is_token(str(facts.get("data_path", ""))) and not (run / DATA_COPY).is_file():
        return f"""The data was in the memory of a program, and the run has no copy of it (`keep_data=True`
keeps one): it is given again.

```
pencil sample {quoted}{usage and " "}{usage}
```

```python
import pencil
pencil.evaluate("{path}", data)
pencil.resume("{path}", data)
model, tokenizer, run = pencil.load("{path}")
```
"""
    return f"""```
pencil sample {quoted}{usage and " "}{usage}
pencil eval {quoted}
{f"pencil resume {quoted}" if resumed else f"pencil train {facts['family']} --from {quoted} --data DATA"}
```

```python
import pencil
model, tokenizer, run = pencil.load("{path}")
```
"""


def _describe_classes(metrics: Mapping[str, float], unit: str) -> str:
    """The confidence interval of the accuracy, and the figures of each class; nothing without classes."""
    if not (sentence := describe_accuracy(metrics, unit)):
        return ""
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in class_rows(metrics)]
    table = "".join([*rows[:1], "|---|---|---|---|---|\n", *rows[1:], "\n"]) if rows else ""
    return f"{sentence[0].upper()}{sentence[1:]}.\n\n{table}"


def model_card(
    run: Path,
    config: Mapping[str, Any],
    parameters: int,
    weights: Mapping[str, str],
    why_last: str,
    usage: str,
    highest: str = "",
    unit: str = "examples",
) -> str:
    """The text of a run's README.md; `weights` are the facts that the weights' file records of them.

    `highest` is a remark about another evaluation, `unit` the unit of the held-out examples.
    """
    facts, train = config["run"], config["train"]
    worded = f"tokenizer: {facts['tokenizer']}; " if "tokenizer" in facts else ""
    preset = f"preset: {facts['preset']}; " if "preset" in facts else ""
    source = ""
    if "from" in facts:
        step, licence = facts.get("from_step"), facts.get("from_licence")
        of, under = f" (step {step})" if step else "", f", whose licence is {licence}" if licence else ""
        first = f", which come from `{facts['from_origin']}`" if facts.get("from_origin") else ""
        source = f"\nIt started from the weights of `{facts['from']}`{of}{first}{under}.\n"
    frozen = f"; frozen: `{train['freeze']}`" if train.get("freeze") else ""
    minutes = train.get("minutes")
    budget = f" in a budget of {minutes:g} minute{'s' * (minutes != 1)}" if minutes else ""
    which = f"the last: {why_last}" if why_last else "the best by validation loss"
    which += f"; {highest}" if highest else ""
    if "val_loss" in weights:
        values = {name: float(value) for name, value in weights.items() if name not in NO_METRICS}
        names = sorted((name for name in values if not is_detail(name)), key=lambda name: (name != "val_loss", name))
        rows = "\n".join(f"| {name} | {values[name]:.4f} |" for name in names)
        measures = f"| measure on held-out data | value |\n|---|---|\n{rows}\n\n" + _describe_classes(values, unit)
    else:
        measures = ""
        which = "at which training was interrupted. They have not been evaluated"
        which += "" if "task" in facts else ": `pencil eval` does it"
    are = f"those of step {weights.get('step')}, {which}"
    if steps := config.get("average", {}).get("steps"):
        are = f"the mean of those of steps {', '.join(map(str, steps))} of `{config['average']['from']}`"
    return f"""# {visible(run.name, one_line=True)}

A {facts["family"]} of {parameters:,} parameters, trained by Pencil {facts["pencil"]} on `{facts["data"]}`
({preset}{worded}at most {train["steps"]} steps{budget}; seed {train["seed"]}{frozen}).
{source}
{measures}The weights in `model.safetensors` are {are}.

{_how_to_use(run, facts, usage, "average" not in config)}
`config.toml` has every setting, `metrics.jsonl` every measurement, `loss.png` the curve, `samples/` the outputs.
"""


class ProgressBar:
    """Loss, throughput and time left: a bar in a terminal, a line now and then elsewhere."""

    def __init__(self, total: int, start: int, unit: str, console: Console | None = None, quiet: bool = False):
        self.console = console or Console(stderr=True, quiet=quiet)
        self.total, self.unit = total, unit
        self.printed: float | None = None  # when the last line of progress came
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
        )
        self.task = self.progress.add_task("training", total=total, completed=start, note="")
        self.evaluation: Countdown | None = None

    def __enter__(self) -> "ProgressBar":
        if self.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.console.is_terminal:
            self.progress.stop()

    def due(self, trained: float) -> bool:
        """Whether it is time to show the progress; `trained` is for how many seconds there were steps."""
        if self.printed is None:
            return trained > FIRST_REPORT_SECONDS
        return time.monotonic() - self.printed > (1 if self.console.is_terminal else REPORT_INTERVAL_SECONDS)

    def update(self, step: int, loss: float, rate: float, left: float, trained: float) -> None:
        """Show the mean loss, the units per second, and the seconds that are left."""
        note = f"loss {loss:.4f}  {rate:,.0f} {self.unit}/s  {duration(left)} left"
        self.progress.update(self.task, completed=step, description="training", note=note)
        if self.due(trained):
            self.printed = time.monotonic()
            if not self.console.is_terminal:
                self.print(f"step {step}/{self.total}  {note}")

    def set_total(self, total: int) -> None:
        """Go on to this many steps."""
        self.total = total
        self.progress.update(self.task, total=total)

    def evaluating(self, done: int, total: int) -> None:
        """Show how far an evaluation is; elsewhere than in a terminal only if it takes long."""
        self.evaluation = self.evaluation or Countdown("evaluating")
        words = self.evaluation.words(done, total)
        self.progress.update(self.task, description=words)
        if done < total and not self.console.is_terminal and self.evaluation.due:
            self.print(words)

    def evaluated(self) -> None:
        """Show that an evaluation has ended."""
        self.evaluation = None
        self.progress.update(self.task, description="training")

    def print(self, line: str) -> None:
        self.console.print(visible(line, one_line=True), highlight=False, markup=False, soft_wrap=True)


class Countdown:
    """How far a loop of known length is, and the time that is left."""

    def __init__(self, what: str):
        self.what, self.started, self.printed = (
            what,
            time.monotonic(),
            time.monotonic() + FIRST_REPORT_SECONDS - REPORT_INTERVAL_SECONDS,
        )

    def words(self, done: int, total: int) -> str:
        spent = time.monotonic() - self.started
        measured = done >= LEAST_TURNS and spent > LEAST_SECONDS
        left = f", {duration(spent / done * (total - done))} left" if measured else ""
        return f"{self.what} {done}/{total}{left}"

    @property
    def due(self) -> bool:
        """Whether it is time for a line of it: the first soon, the others every half minute."""
        if time.monotonic() - self.printed < REPORT_INTERVAL_SECONDS:
            return False
        self.printed = time.monotonic()
        return True


@contextmanager
def shown_progress(what: str, console: Console | None = None) -> Iterator[None]:
    """Show how far the tracked loops inside are: a line that is overwritten in a terminal, elsewhere one at times."""
    console = console or Console(stderr=True)
    status, counts = Status("", console=console), None
    before = 0

    def watch(done: int, total: int) -> None:
        nonlocal counts, before
        if counts is None or done < before:  # the first loop, or the next
            counts = Countdown(what)
        before = done
        if not total or done == total:
            status.stop()  # whatever comes after the loop may have a bar of its own
            return
        words = counts.words(done, total)
        if console.is_terminal:
            status.update(words)
            status.start()
        elif done and counts.due:
            console.print(words, highlight=False, soft_wrap=True)

    try:
        with watched(watch):
            yield
    finally:
        status.stop()
