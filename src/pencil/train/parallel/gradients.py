"""The gradients of one update: in one process, in several that each have the model (DDP) or a part of it (FSDP2).

Each process takes its rows of every micro-batch, and the loss of its rows is weighted by their targets among those of
the whole update. So the sum over the processes is the gradient of one process, but for rounding.

Exact mode gives the same bits on 1, 2, 4, … processes. A micro-batch is cut into slots, a power of two. Each slot is
run by itself, with random numbers of its own, so that it is the same wherever it runs; the gradients of the slots are
summed by one binary tree: neighbours, then pairs of neighbours, and so on. A process sums its own slots; the rest of
the tree is summed from the parts of all processes.

Several processes train as one. `train.batch` is that of the whole run; each process takes its rows of every
micro-batch, and weighs its loss by its targets among those of the update, so the summed gradient is that of one process
but for rounding ( one class per mode, DDP or FSDP2). FSDP2 cuts each block by itself. Its model is built without
memory: each parameter is made whole once, in the order of one process, and each process keeps its rows
(`train/parallel/fsdp.py`). Muon needs whole matrices: two messages bring the rows of each to the process that works it,
and the rows of its update back (`train/optim.py`). An evaluation is shared out by batches; their results are added in
the order of the batches, so it has the bits of one process (`collectives/distributed_map.py`). Under FSDP2 they gather
block by block, whatever each of them runs (`collectives/distributed_map.py`).
"""

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ...collectives.distributed_map import BlockGathering
from ...collectives.processes import RankError, World, all_reduce_any, all_reduce_sum, broadcast
from ...config import UserError
from ...device import seed_generators, sync_of, total_memory, without_fallback_warnings
from ..settings import TrainConfig, slots_of
from ..task import Batch, Task, one_number, random_of
from .dtensor_files import to_local

Mode = Literal["alone", "ddp", "fsdp", "exact"]
MAX_BATCHES_WITHOUT_TARGETS = 1000  # so many are made in search of one with targets


def own_rows(batch: int, here: World) -> slice:
    """The rows of a micro-batch that this process has."""
    each = batch // here.size
    return slice(here.rank * each, (here.rank + 1) * each)


def own_batch(task: Any, step: int, micro: int, here: World) -> Batch:
    """What this process has of a micro-batch; a task that can make some rows alone makes only those."""
    if here.size == 1:
        return task.batch(step, micro)
    rows = own_rows(task.train.batch, here)
    if "rows" in inspect.signature(task.batch).parameters:
        return task.batch(step, micro, rows)
    return cut_rows(task.batch(step, micro), rows, task.train.batch)


def cut_rows(batch: Batch, rows: slice, size: int) -> Batch:
    """Some rows of a batch; a single number belongs to all of them."""
    for tensor in batch:
        if tensor.ndim and len(tensor) != size:
            raise UserError(
                f"a tensor of the batch has {len(tensor)} rows, not the {size} of train.batch, so it cannot be divided "
                "among processes: give every tensor one row for each example"
            )
    return tuple(tensor[rows] if tensor.ndim else tensor for tensor in batch)


def mode_of(config: TrainConfig, size: int) -> Mode:
    """How the processes share an update."""
    if config.exact:
        return "exact"
    if config.parallel == "auto":
        return "ddp" if size > 1 else "alone"
    return config.parallel


class LossAndNorm(NamedTuple):
    """What an update is decided by; the gradients themselves are where torch keeps them, clipped."""

    loss: Tensor
    norm: Tensor  # before clipping
    units: int  # in the batches of all processes


class Gradients:
    """Computes the gradients of an update in one process; the other modes differ from it where they communicate."""

    scale = 1  # the gradients are divided by it when they are summed

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        config: TrainConfig,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[Any]],
        here: World,
    ):
        self.task, self.model, self.config, self.device, self.here = task, model, config, device, here
        self.autocast = autocast
        self.loss: Callable[[Batch], Tensor] = self.make_loss()

    def make_loss(self) -> Callable[[Batch], Tensor]:
        def loss(batch: Batch) -> Tensor:
            return self.task.loss(self.model, batch)

        return torch.compile(loss) if compiles(self.config, self.device) else loss

    def __call__(self, step: int, batches: Sequence[Batch]) -> LossAndNorm:
        """Compute the gradients of these micro-batches, of which this process has its rows."""
        own, all_targets, units = self.count(batches)
        targets, losses = sum(all_targets), [torch.zeros((), device=self.device)]
        used = [micro for micro, count in enumerate(all_targets) if count]  # the mean over no targets is NaN
        for micro in used:
            batch = batches[micro] if own[micro] else self.filler(step)
            with self.summing(last=micro == used[-1]):
                with self.autocast():
                    loss = one_number(self.loss(self.to_device(batch)), self.task) * (self.scale * own[micro] / targets)
                loss.backward()
            losses.append(loss.detach())
        return LossAndNorm(*self.finish(torch.stack(losses).sum()), units)

    def count(self, batches: Sequence[Batch]) -> tuple[list[float], list[float], int]:
        """The targets of each micro-batch, in this process and in all, and the units of all."""
        own, units = list(map(self.task.targets, batches)), sum(map(self.task.count, batches))
        counts = all(isinstance(targets, int) for targets in own)  # else they are sums of weights
        *targets, units = all_reduce_sum(
            torch.tensor([*own, units], dtype=torch.int64 if counts else torch.float64)
        ).tolist()
        return own, targets, int(units)

    def filler(self, step: int) -> Batch:
        """A batch with targets, of weight zero: where this process has none, the others still wait for its part."""
        later = range(step + 1, step + 1 + MAX_BATCHES_WITHOUT_TARGETS)
        batches = (own_batch(self.task, at, 0, self.here) for at in later)
        batch = next((batch for batch in batches if self.task.targets(batch)), None)
        if batch is None:
            sentence = (
                f"its rows of {MAX_BATCHES_WITHOUT_TARGETS:,} batches have no targets: a larger --train.batch may help"
            )
            raise RankError(self.here.rank, sentence) if self.here.size > 1 else UserError(sentence)
        return batch

    def to_device(self, batch: Batch) -> Batch:
        if self.device.type == "cuda":
            batch = tuple(t.pin_memory() for t in batch)
        return tuple(t.to(self.device, non_blocking=True) for t in batch)

    def summing(self, last: bool) -> AbstractContextManager[Any]:
        """A context of a backward pass; only the last one sums gradients that are added up here over the processes."""
        return nullcontext()

    def finish(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Clip the gradient; returns the loss of all processes, and the norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip or math.inf)
        return loss, norm.detach().to(loss.device)  # where there are no gradients it is on the CPU

    def running(self) -> AbstractContextManager[Any]:
        """A context in which this process runs the model as it likes, whatever the others do."""
        return nullcontext()


class TaskLoss(nn.Module):
    """A task's loss as a module, for DDP."""

    def __init__(self, task: Task, model: nn.Module):
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Batch) -> Tensor:
        return self.task.loss(self.model, batch)


class DDPGradients(Gradients):
    """Each process has the whole model (DDP); gradients are summed while the backward pass goes on."""

    def make_loss(self) -> Callable[[Batch], Tensor]:
        from torch.nn.parallel import DistributedDataParallel

        self.scale = self.here.size  # DDP takes the mean of the gradients
        module = TaskLoss(self.task, self.model)
        batch = self.to_device(tuple(t[:1] if t.ndim else t for t in self.filler(-1)))
        # buffers are constants, the same on every process
        names = [name for name, _ in module.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)
        # a task of one's own may use other parameters for other rows
        (unused,) = all_reduce_any(self.task.family is None or has_unused(self.model, module(batch)))
        warnings.filterwarnings("ignore", "Warning: find_unused_parameters=True")  # that none was unused
        self.ddp = DistributedDataParallel(module, gradient_as_bucket_view=True, find_unused_parameters=unused)
        return torch.compile(self.ddp) if compiles(self.config, self.device) else self.ddp

    def summing(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.ddp.no_sync()

    def finish(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        return super().finish(all_reduce_sum(loss / self.scale))


class FSDPGradients(Gradients):
    """Each process has a part of every parameter (FSDP2); those of a block are gathered while it runs.

    Gradients are summed over the processes and cut up once an update, if there is room for whole ones until then;
    otherwise at every micro-batch.
    """

    model: Any

    def make_loss(self) -> Callable[[Batch], Tensor]:
        from torch.distributed.fsdp import FSDPModule

        trained = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.sync = broadcast(sync_of(self.config.sync, trained, total_memory(self.device)))

        def loss(batch: Batch) -> Tensor:
            return self.task.loss(self.model, batch)

        # what is gathered at once: the model, with what is outside blocks, and each block
        parts = [part for part in self.model.modules() if isinstance(part, FSDPModule)]
        for part in parts:
            part.set_gradient_divide_factor(1.0)  # a sum, not a mean
            part.set_force_sum_reduction_for_comms(True)  # which gloo has, too
        self.gathering = BlockGathering(parts)
        return loss  # compiled block by block

    def summing(self, last: bool) -> AbstractContextManager[Any]:
        self.model.set_requires_gradient_sync(last or self.sync == "batch")
        return nullcontext()

    def finish(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """As in one process; loss and norm are summed in one message."""
        if self.task.family is None:
            self.check_same_used()
        gradients = [to_local(p.grad) for p in self.model.parameters() if p.grad is not None]
        norms = torch._foreach_norm(gradients) if gradients else [torch.zeros_like(loss)]  # pyright: ignore
        both = all_reduce_sum(torch.stack([loss.double(), torch.stack(list(norms)).double().square().sum()]))
        loss, norm = both[0].float(), both[1].sqrt().float()
        if gradients:
            torch._foreach_mul_(gradients, ((self.config.clip or math.inf) / (norm + 1e-6)).clamp(max=1.0))  # pyright: ignore
        return loss, norm

    def check_same_used(self) -> None:
        """Refuse parameters that only some processes have used: their gradients are summed with those of others."""
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        used = [p.grad is not None for p in self.model.parameters() if p.requires_grad]
        counts = all_reduce_sum(torch.tensor(used, dtype=torch.int64, device=self.device)).tolist()
        if odd := [name for name, many in zip(names, counts, strict=True) if many % self.here.size]:
            raise UserError(
                f"{odd[0]} has a gradient on some processes only, and fsdp sums the same ones on all: use "
                "--train.parallel ddp"
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        # compiled blocks would be compiled again for other shapes, and with what asks for a cross-attention's weights;
        # blocks are gathered in the dtype of autocast
        with torch.compiler.set_stance("force_eager"), self.autocast(), self.gathering(self.here.size):
            yield


class ExactGradients(Gradients):
    """The gradients of an update, computed slot by slot."""

    def __call__(self, step: int, batches: Sequence[Batch]) -> LossAndNorm:
        _, all_targets, units = self.count(batches)
        targets, slots = sum(all_targets), slots_of(self.config)
        own = slots // self.here.size
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        has = torch.zeros(len(parameters), dtype=torch.int64)
        losses = torch.zeros(slots, device=self.device)
        sums = TreeSum()
        for slot in range(self.here.rank * own, (self.here.rank + 1) * own):
            for micro, batch in enumerate(batches):
                part = self._slot(batch, slot % own, own)
                if not (count := self.task.targets(part)):
                    continue
                drawn = random_of(self.config.seed, step, micro, 1 + slot).integers(1 << 62)
                seed_generators(int(drawn), self.device)
                with self.autocast():
                    loss = one_number(self.loss(self.to_device(part)), self.task) * (count / targets)
                loss.backward()
                losses[slot] += loss.detach()
            has += torch.tensor([p.grad is not None for p in parameters])
            sums.add(_take_gradients(parameters))
        gradient = tree_sum_of_all(sums.value(), self.here.size)
        has = all_reduce_sum(has).tolist()
        for parameter, part, there in zip(
            parameters, gradient.split([p.numel() for p in parameters]), has, strict=True
        ):
            parameter.grad = part.view_as(parameter).clone() if there else None
        loss = tree_sum(list(all_reduce_sum(losses)))  # every slot is zero but on one process
        return LossAndNorm(*self.finish(loss), units)

    def _slot(self, batch: Batch, number: int, own: int) -> Batch:
        each = self.config.batch // slots_of(self.config)
        rows = slice(number * each, (number + 1) * each)
        # copies: kernels may compute otherwise where the memory is aligned otherwise
        return tuple(t.clone() for t in cut_rows(batch, rows, own * each))


def _take_gradients(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Concatenate all gradients, and remove them from the parameters."""
    flat = torch.cat([torch.zeros_like(p).view(-1) if p.grad is None else p.grad.reshape(-1) for p in parameters])
    for parameter in parameters:
        parameter.grad = None
    return flat


class TreeSum:
    """A sum by a binary tree of 2ⁿ values that come one by one; at most n + 1 partial sums are held at once."""

    def __init__(self):
        self.sums: list[tuple[int, Tensor]] = []  # how many values each partial sum is of, and the sum

    def add(self, value: Tensor) -> None:
        count = 1
        while self.sums and self.sums[-1][0] == count:
            value, count = self.sums.pop()[1] + value, 2 * count
        self.sums.append((count, value))

    def value(self) -> Tensor:
        ((_, value),) = self.sums
        return value


def tree_sum(values: Sequence[Tensor]) -> Tensor:
    tree = TreeSum()
    for value in values:
        tree.add(value)
    return tree.value()


def tree_sum_of_all(own: Tensor, size: int) -> Tensor:
    """The sum of a vector over the processes, by a tree in the order of the ranks; the same bits on each.

    Each process gets one part of the vector from all, sums it, and hands the sum to all.
    """
    if size == 1:
        return own
    import torch.distributed as dist

    length = own.numel()
    each = -(-length // size)
    sent = torch.cat([own, own.new_zeros(each * size - length)])
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    summed = tree_sum(received.split(each))
    dist.all_gather(list(sent.split(each)), summed)
    return sent[:length]


GRADIENTS: dict[Mode, type[Gradients]] = {
    "alone": Gradients,
    "ddp": DDPGradients,
    "fsdp": FSDPGradients,
    "exact": ExactGradients,
}


def compiles(config: TrainConfig, device: torch.device) -> bool:
    """Whether the loss is compiled."""
    return config.compile == "on" or (config.compile == "auto" and device.type == "cuda")


def uses_bfloat16(config: TrainConfig, device: torch.device) -> bool:
    """Whether products are in bfloat16."""
    return config.dtype == "bfloat16" or (config.dtype == "auto" and device.type == "cuda")


def autocast_of(config: TrainConfig, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """The context in which the loss is computed."""
    if not uses_bfloat16(config, device):
        return nullcontext
    if device.type == "cpu":
        without_fallback_warnings()
    return partial(torch.autocast, device.type, torch.bfloat16)


def has_unused(model: nn.Module, loss: Tensor) -> bool:
    """Whether a parameter has no gradient of this loss: then DDP must look for such ones at every pass."""
    used, seen, rest = set(), set(), [loss.grad_fn]
    while rest:
        node = rest.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        used.add(getattr(node, "variable", None))
        rest += [following for following, _ in node.next_functions]
    return any(p.requires_grad and p not in used for p in model.parameters())
