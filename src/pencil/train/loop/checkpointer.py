"""What a training writes into its run: checkpoints, the weights to be used, and the card that describes them.

A run is resumed from its newest checkpoint: the run is verified, then tensors and state are loaded.

The card describes the file beside it. README.md of a run is written with the weights, from the facts in the weights'
own file: their step, and their metrics if they were evaluated. Where an interrupted run is used with its last weights,
and its best are still the untrained ones, resuming puts those back: the run ends as one that was never interrupted.
"""

import errno
import math
import platform
import threading
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import __version__
from ...collectives.processes import all_reduce_any, on_all_ranks, on_rank0, world
from ...config import UserError
from ...files import beside, write_aside
from ...runs import snapshots
from ...runs.files import SHARED, WEIGHTS
from ...runs.run import Run
from ...tensors import in_file_order, rename, write_tensors
from ..model_selection import describe_highest
from ..optim import load_state_tensors, state_tensors
from ..parallel.dtensor_files import HostCopy, Pieces, is_dtensor, own_pieces, piece_of
from ..settings import TrainConfig
from ..task import Preview, Task, why_last
from . import checkpoint
from .ema import ExponentialMovingAverage, averaged
from .nonfinite import require_finite
from .report import ProgressBar, model_card
from .resume_changes import (
    Change,
    check_start,
    check_weights,
    identity,
    record_changes,
    records_all_settings,
    review_changes,
)
from .state import TrainState

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BackgroundWriter:
    """A thread that writes beside the training, one piece of work at a time; `wait` raises what the work raised.

    As a context it ends with its work: a training never ends while a file of it is being written. Each piece has a
    thread of its own: one that stayed would outlive the process group that it has used.
    """

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def start(self, work: Callable[[], object]) -> None:
        """Begin some work, after the one before it."""
        self.wait()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # raised by `wait`
                self.error = error

        self.thread = threading.Thread(target=run, name="pencil-checkpoint")
        self.thread.start()

    @property
    def busy(self) -> bool:
        """Whether the work still goes on."""
        return self.thread is not None and self.thread.is_alive()

    def settle(self) -> None:
        """Wait for the end of the work."""
        if self.thread is not None:
            self.thread.join()

    def wait(self) -> None:
        """Wait for the end of the work, and raise what it raised."""
        self.settle()
        self.thread, error, self.error = None, self.error, None
        if error is not None:
            raise error

    def __enter__(self) -> "BackgroundWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.wait()
        else:  # what went wrong here would only hide the first error
            self.settle()


class Checkpointer:
    """Writes a training into its run.

    A checkpoint is copied to the host's memory, and written by a thread while training goes on.
    """

    def __init__(
        self,
        task: Task,
        run: Run,
        state: TrainState,
        model: nn.Module,
        optimizers: dict[str, torch.optim.Optimizer],
        ema: ExponentialMovingAverage | None,
        device: torch.device,
    ):
        self.task, self.run, self.state, self.device = task, run, state, device
        self.model, self.optimizers, self.ema = model, optimizers, ema
        self.writer, self.host = BackgroundWriter(), HostCopy()
        parameters = sum(p.numel() for p in model.parameters())
        self.takes_snapshots = bool(state.config.snapshots) and parameters <= snapshots.MOST_PARAMETERS
        self.saving_step = 0  # that of the checkpoint that is written now, or was written last
        self._thread_group: torch.distributed.ProcessGroup | None = None

    def keep_best(self, results: dict[str, float]) -> None:
        """Save the weights that sample and eval use: the best by validation; the last where a test set is held out."""
        if not self.task.select_best or results["val_loss"] < self.state.best.get("val_loss", math.inf):
            best = {"step": self.state.step, **results}
            self.write_weights(best)
            self.state.best = best

    def save_interrupted_weights(self) -> None:
        """An interrupted run is used with its last weights, unless better ones were kept; random ones are not."""
        step, best = self.state.step, self.state.best
        has_trained_best = best.get("step") or (best and "from" in self.run.config["run"])
        use_last = not self.task.select_best or not has_trained_best
        if step and use_last and step != on_rank0(lambda: self.run.weights_step):
            self.write_weights({"step": step})

    def write_weights(self, facts: Mapping[str, Any]) -> None:
        """Write the weights with these facts about them, and the card that says the same."""
        weights = "ema" if self.ema else "model"
        facts = {"family": self.run.family, "weights": weights, "pencil": __version__, **facts}
        with averaged(self.ema):
            tensors = self.model.state_dict()
            self._require_finite(tensors, WEIGHTS)
            if any(map(is_dtensor, tensors.values())):
                write = partial(self.run.stream_weights, facts=facts)
                on_all_ranks(lambda: self._stream_weights(tensors, write))
            else:
                on_rank0(lambda: self.run.write_weights(self.model, facts))
        on_rank0(self.write_card)

    def _stream_weights(self, tensors: Mapping[str, Any], write: Callable[..., object]) -> None:
        """Gather the weights from all processes, one tensor at a time; rank 0 writes each before the next.

        `write` gets their shapes and dtypes by name, and the tensors as they come.
        """
        # one tensor at a time; every process takes part
        whole = ((name, t.full_tensor() if is_dtensor(t) else t) for name, t in tensors.items())
        try:
            if world().is_rank0:
                shapes = {name: tuple(tensors[name].shape) for name in in_file_order(tensors)}
                write(shapes, {name: tensors[name].dtype for name in shapes}, whole)
        finally:
            for _ in whole:  # the others send until all tensors are through, whatever happens to the file
                pass

    def take_snapshot(self) -> None:
        """Keep the weights of this step, if it is one of the series, so that the training can be watched afterwards."""
        step, most = self.state.step, self.state.config.snapshots
        if not self.takes_snapshots or step not in snapshots.SERIES:
            return
        if on_rank0(lambda: step in snapshots.listed(self.run.path)):
            return  # it goes on from here
        facts = {"format": "pt", "family": self.run.family, "pencil": __version__, "step": str(step)}

        def write(shapes: Any, dtypes: Any, whole: Any) -> None:
            snapshots.add(self.run.path, step, most, lambda path: write_tensors(path, shapes, dtypes, whole, facts))

        with averaged(self.ema):
            tensors = self.model.state_dict()
            on_all_ranks(lambda: self._stream_weights(tensors, write))

    def write_preview(self, preview: Preview) -> None:
        """Write a sample of this step into samples/."""
        (self.run.path / "samples").mkdir(exist_ok=True)
        write_aside(self.run.path / "samples" / f"step-{self.state.step:08d}{preview.suffix}", preview.content)

    def write_card(self) -> None:
        """Write README.md from what the weights' own file records, so that it describes those that are there."""
        if not world().is_rank0 or not (weights := self.run.weights_facts):
            return
        parameters = sum(p.numel() for p in self.model.parameters())
        last = why_last(self.task)
        highest = "" if last else describe_highest(self.state.highest, weights, self.task.headline)
        card = model_card(
            self.run.path, self.run.config, parameters, weights, last, self.task.usage, highest, self.task.unit
        )
        write_aside(self.run.path / "README.md", card.encode())

    def save(self) -> None:
        """Write a checkpoint of this step; it is complete when this returns."""
        try:
            self.writer.wait()
        except OSError as error:
            if error.errno not in DISK_FULL:  # if it is still full, this checkpoint fails too
                raise
        self._start_saving()
        self.writer.wait()

    def save_later(self, bar: ProgressBar) -> None:
        """Write a checkpoint of this step while training goes on; one that is still being written comes first."""
        self.raise_failure(bar, wait=True)
        self._start_saving()

    def raise_failure(self, bar: ProgressBar, wait: bool = False) -> None:
        """Raise what went wrong with a checkpoint that was written beside the training; all ranks at the same step.

        A full disk is reported, and training goes on.
        """
        if self.writer.thread is not None and (wait or not all_reduce_any(self.writer.busy)[0]):
            self.write_or_postpone(bar, "checkpoint", self.writer.wait, self.saving_step)

    def _start_saving(self) -> None:
        """Copy everything to the host's memory, and write it in a thread."""
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        if self.ema is not None:
            tensors |= {f"ema.{name}": t for name, t in self.ema.values.items()}
        tensors |= state_tensors(self.model, self.optimizers)
        self._require_finite(tensors, f"the checkpoint of step {self.state.step}")
        here = world()
        pieces = own_pieces(tensors, here.is_rank0)
        cuts = {name: piece.cut for name, piece in pieces.items() if piece.cut is not None}
        several = here.size > 1 and any(map(is_dtensor, tensors.values()))
        copies, copied = self.host.take({name: piece.tensor for name, piece in pieces.items()})
        recorded = deepcopy(self._record()) if here.is_rank0 else {}  # the training changes its lists
        run, step, keep, group = self.run, self.state.step, self.state.config.keep, self._group()

        def write() -> None:
            copied()
            try:
                checkpoint.write(run.path, step, copies, recorded, keep, cuts if several else None, group)
            except OSError:
                _ = run.path  # refused if it was renamed meanwhile
                raise

        self.saving_step = step
        self.writer.start(write)

    def _group(self) -> "torch.distributed.ProcessGroup | None":
        """The process group of the writing threads, which go on beside the collectives of the training."""
        if world().size > 1 and self._thread_group is None:
            self._thread_group = torch.distributed.new_group(backend="gloo")  # pyright: ignore[reportAttributeAccessIssue]
        return self._thread_group

    def _record(self) -> dict[str, Any]:
        """What a checkpoint records besides tensors."""
        size, budget = world().size, self.state.budget
        return {
            "of": identity(self.run),
            "optimizer": self.state.config.optimizer,
            **self.state.state_dict(),
            "threads": torch.get_num_threads(),
            "device": self.device.type,
            **({} if budget is None else {"plans": budget.plans, "budget": budget.state()}),
            **({"processes": size} if size > 1 else {}),
            "versions": {"pencil": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }

    def _require_finite(self, tensors: Mapping[str, Tensor], what: str) -> None:
        """Refuse to write what is not finite, on all ranks if it is so on one."""
        on_all_ranks(lambda: require_finite({name: piece_of(t).tensor for name, t in tensors.items()}, what))

    def save_before_stop(self) -> str:
        """Save the weights before a bad update; returns which checkpoint is kept, for the report of the stop."""
        self.writer.settle()
        if self.state.step and self.state.step not in on_rank0(lambda: checkpoint.saved_steps(self.run.path)):
            self.save()
            self.save_interrupted_weights()
        return self.describe_last()

    def describe_last(self) -> str:
        """Which checkpoint is the last one, for the report of a stop."""
        self.writer.settle()
        steps = checkpoint.saved_steps(self.run.path)
        return f"the checkpoint of step {steps[-1]} is kept" if steps else "no checkpoint had been written yet"

    def write_or_postpone(
        self, bar: ProgressBar, what: str, write: Callable[[], object], step: int | None = None
    ) -> None:
        """Write something that is written again later; a full disk is reported, and training goes on."""
        try:
            write()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            step = self.state.step if step is None else step
            bar.print(
                f"the disk is full: the {what} of step {step} could not be written; {self.describe_last()}; "
                "training goes on"
            )


SHARED_FOLDER_WAIT_SECONDS = (0, 0.1, 0.5, 1, 2, 4)  # other machines may see a file of rank 0 some seconds later


class Restored(NamedTuple):
    """A run that was restored: what the user should know about it, and the state of its checkpoint."""

    notes: list[str]
    state: Mapping[str, Any]  # empty where there is no checkpoint


def restore(
    checkpointer: Checkpointer, evaluate: Callable[[], dict[str, float]], allow_changes: bool = False
) -> Restored:
    """Verify the run and load its newest whole checkpoint into the model, the optimizers and the state of a training.

    With several processes rank 0 verifies, and each of them reads its own pieces. `evaluate` gives the metrics of the
    weights, for a run whose own weights were lost.
    """
    run, state, recorded_changes = checkpointer.run, checkpointer.state, []
    check_shared(run.path)
    # a large checkpoint is read whole, which takes long
    verified = on_rank0(lambda: _verify(checkpointer, allow_changes, recorded_changes), patient=True)
    notes, lost, loaded = verified["notes"], verified["lost"], None
    if verified["step"] is not None:
        opened: list[checkpoint.Checkpoint] = []  # every rank must see the one that rank 0 has verified
        on_all_ranks(lambda: opened.append(checkpoint.read(run.path, verified["step"], verified["sha256"])))
        (loaded,) = opened
        if verified["first"]:
            checkpointer.write_weights(loaded.state["best"])
        on_all_ranks(lambda: load(checkpointer, loaded))
        notes += differences_of_machine(checkpointer, loaded.state)
    on_rank0(lambda: snapshots.forget_after(run.path, state.step))
    if verified["changed"]:
        on_rank0(lambda: record_changes(run, state.step, recorded_changes, state.config))
        run.__dict__.pop("config", None)
    if lost is not None:
        notes.append(f"{lost}, and the weights of step {state.step} take its place")
        state.best = {}
        if state.step:
            checkpointer.keep_best(evaluate())
    return Restored(notes, {} if loaded is None else loaded.state)


def _verify(checkpointer: Checkpointer, allow_changes: bool, recorded_changes: list[Change]) -> dict[str, Any]:
    """Verify the run on rank 0; the result is sent to the other ranks, `recorded_changes` stay on this one.

    The result has the newest whole checkpoint, what the user should know, and whether there are changes to record.
    """
    run, task = checkpointer.run, checkpointer.task
    if allow_changes:
        for path, fault in run.check_files("tokenizer.json"):
            if fault is not None and path.is_file():
                run.accept(path.name)
    newest, notes = checkpoint.latest(run.path, foreign=allow_changes)
    changes, more = review_changes(
        run, task.family, allow_changes, None if newest is None else (newest.folder, newest.state)
    )
    lost = check_weights(run, allow_changes)
    notes += more if newest is not None else [*more, *check_start(run, allow_changes)]
    if newest is None and "from" in run.config["run"] and task.start is None:
        source = run.config["run"]["from"]
        raise UserError(
            f"{run.path} has no checkpoint with the weights of {source} that it starts from: train it anew with "
            f"--from {source} --out {run.path} --force"
        )
    chosen = chosen_changes(run, checkpointer.state.config)
    step = newest.step if newest else 0
    notes += [f"{change.name} is {change.now} from step {step} on; it was {change.was}" for change in chosen]
    recorded_changes += [*(change for change in changes if not change.free), *chosen]
    result = {"notes": notes, "lost": lost and f"{lost}; it was removed", "changed": bool(changes or chosen)}
    if newest is None:
        return {**result, "step": None}
    result |= {"step": newest.step, "sha256": newest.sha256, "first": _first_are_best(run, task, newest)}
    if result["first"] and "from" in run.config["run"]:
        # of a version that took them for untrained ones; they cannot be made again
        again = "the weights that the run began with, its best, were replaced when it was interrupted"
        result |= {"first": False, "lost": result["lost"] or again}
    return result


def check_shared(path: Path) -> None:
    """Refuse a rank that does not see the folder that rank 0 writes to."""
    if world().size == 1:
        return
    sign = path / on_rank0(lambda: _create_sign(path))
    try:
        on_all_ranks(lambda: _wait_for_sign(path, sign))
    finally:
        if world().is_rank0:
            sign.unlink(missing_ok=True)


def _create_sign(path: Path) -> str:
    sign = beside(path / SHARED)  # under a name that the next writer sweeps away, should this one be killed
    sign.touch()
    return sign.name


def _wait_for_sign(path: Path, sign: Path) -> None:
    """Wait for a file of rank 0."""
    for seconds in SHARED_FOLDER_WAIT_SECONDS:
        time.sleep(seconds)
        if sign.exists():
            return
    raise UserError(
        f"{platform.node()} does not see the folder {path} of rank 0: choose one that all machines share, with --out"
    )


def chosen_changes(run: Run, config: TrainConfig) -> list[Change]:
    """The training settings, of those that change the result, that are not as the run has them."""
    defaults, was, now = asdict(TrainConfig()), run.config["train"], asdict(config)
    changes = [
        Change(f"train.{name}", _as_toml(was.get(name, defaults[name])), _as_toml(value)) for name, value in now.items()
    ]
    return [change for change in changes if change.was != change.now and not change.free]


def _as_toml(value: Any) -> Any:
    """A value as config.toml gives it back: TOML has lists, and no tuples."""
    return list(value) if isinstance(value, tuple) else value


def load(checkpointer: Checkpointer, loaded: checkpoint.Checkpoint) -> None:
    """Load a checkpoint into the model, the optimizers, the average and the state: of each tensor this rank's part."""
    model, state, ema = checkpointer.model, checkpointer.state, checkpointer.ema
    tensors, current = _under_current_names(checkpointer, loaded), model.state_dict()
    weights = {n.removeprefix("model."): s for n, s in tensors.shapes.items() if n.startswith("model.")}
    if weights != {n: tuple(t.shape) for n, t in current.items()}:
        raise UserError(f"{loaded.folder} is a checkpoint of another model: its tensors have other names or shapes")
    try:
        optimizer = loaded.state["optimizer"]
        state.load_state_dict(loaded.state)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{loaded.folder / 'state.json'} is not the state of a training: {error}") from None
    if optimizer != state.config.optimizer and loaded.step:
        raise UserError(
            f"{checkpointer.run.path} was trained with {optimizer} and cannot be resumed with {state.config.optimizer}"
        )
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in current.items():
            tensor.copy_(tensors.like(f"model.{name}", tensor))
    moments = {}
    try:
        for name in (n for n in tensors if n.startswith("optim.")):
            parameter = parameters[name.split(".", 2)[2].rpartition(".")[0]]
            same = tensors.shapes[name] == tuple(parameter.shape)  # a moment has the shape of its parameter
            moments[name] = tensors.like(name, parameter) if same else tensors[name]
        load_state_tensors(model, checkpointer.optimizers, moments)
    except KeyError as error:
        raise UserError(f"{loaded.folder} is a checkpoint of another model: {error} is not in this one") from None
    if ema is not None:
        average = [n.removeprefix("ema.") for n in tensors if n.startswith("ema.")]
        ema.restore({n: tensors.like(f"ema.{n}", parameters[n]) for n in average if n in parameters})


def _first_are_best(run: Run, task: Task, newest: checkpoint.Checkpoint) -> bool:
    """Whether the untrained weights, the best so far, must be made the run's own again.

    An interrupted run is used with later weights; one that goes on ends as if it had never been interrupted.
    """
    best = newest.state.get("best")
    first = isinstance(best, dict) and best.get("step") == 0
    return bool(first and run.weights_step and task.select_best)


def differences_of_machine(checkpointer: Checkpointer, recorded: Mapping[str, Any]) -> list[str]:
    """What of this machine and its processes is otherwise than where a checkpoint with this state was saved."""
    now = {"threads": torch.get_num_threads(), "device": checkpointer.device.type}
    then = {"processes": 1, **recorded}
    if not checkpointer.state.config.exact:
        now["processes"] = world().size
    changed = {key: value for key, value in now.items() if then.get(key, value) != value}
    effect = dict.fromkeys(changed, "the result may differ in its last bits")
    if "processes" in changed and _has_dropout(checkpointer.model):
        effect["processes"] = "dropout draws other numbers, and the result differs (--train.exact true has the same)"
    return [f"{key} was {then[key]} and is {value} now: {effect[key]}" for key, value in changed.items()]


def _has_dropout(model: nn.Module) -> bool:
    """Whether a model has dropout, torch's or our own."""
    settings = (
        ("dropout" if isinstance(m, nn.Dropout) and k == "p" else k, v)
        for m in model.modules()
        for k, v in vars(m).items()
    )
    return any("dropout" in key and isinstance(value, float) and value > 0 for key, value in settings)


def _under_current_names(checkpointer: Checkpointer, loaded: checkpoint.Checkpoint) -> Pieces:
    """The tensors of a checkpoint under the names of this version."""
    if records_all_settings(loaded.state) or loaded.state["of"].get("model") == checkpointer.run.config["model"]:
        return loaded.tensors

    def current(name: str) -> str:
        # model.NAME, ema.NAME or optim.KIND.NAME.KEY
        cut = name.index(".", len("optim.") if name.startswith("optim.") else 0) + 1
        return name[:cut] + rename(name[cut:], checkpointer.task.family.renamed_tensors)

    return loaded.tensors.renamed(current)
