"""Loggers: each line of metrics is sent to TensorBoard, trackio or Weights & Biases as well."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...config import UserError, install


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
