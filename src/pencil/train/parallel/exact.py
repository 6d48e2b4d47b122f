"""Exact mode: the same bits on 1, 2, 4, … processes.

A micro-batch is cut into slots, a power of two. Each slot is run by itself, with random numbers of its own, so that it
is the same wherever it runs; the gradients of the slots are summed by one binary tree: neighbours, then pairs of
neighbours, and so on. A process sums its own slots; the rest of the tree is summed from the parts of all processes.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ...collectives.processes import all_reduce_sum
from ...device import seed_generators
from ..settings import slots_of
from ..task import Batch, one_number, random_of
from .gradients import Alone, Gradients
from .rows import cut


class Exact(Alone):
    """The gradients of an update, slot by slot."""

    def __call__(self, step: int, batches: Sequence[Batch]) -> Gradients:
        _, all_targets, units = self.count(batches)
        targets, slots = sum(all_targets), slots_of(self.config)
        own = slots // self.here.size
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        has = torch.zeros(len(parameters), dtype=torch.int64)
        losses = torch.zeros(slots, device=self.device)
        sums = Tree()
        for slot in range(self.here.rank * own, (self.here.rank + 1) * own):
            for micro, batch in enumerate(batches):
                part = self._slot(batch, slot % own, own)
                if not (many := self.task.targets(part)):
                    continue
                drawn = random_of(self.config.seed, step, micro, 1 + slot).integers(1 << 62)
                seed_generators(int(drawn), self.device)
                with self.autocast():
                    loss = one_number(self.loss(self.to_device(part)), self.task) * (many / targets)
                loss.backward()
                losses[slot] += loss.detach()
            has += torch.tensor([p.grad is not None for p in parameters])
            sums.add(_taken(parameters))
        gradient = tree_sum_of_all(sums.value(), self.here.size)
        has = all_reduce_sum(has).tolist()
        for parameter, part, there in zip(
            parameters, gradient.split([p.numel() for p in parameters]), has, strict=True
        ):
            parameter.grad = part.view_as(parameter).clone() if there else None
        loss = tree_sum(list(all_reduce_sum(losses)))  # every slot is zero but on one process
        return Gradients(*self.finish(loss), units)

    def _slot(self, batch: Batch, number: int, own: int) -> Batch:
        each = self.config.batch // slots_of(self.config)
        rows = slice(number * each, (number + 1) * each)
        # copies: kernels may compute otherwise where the memory is aligned otherwise
        return tuple(t.clone() for t in cut(batch, rows, own * each))


def _taken(parameters: Sequence[nn.Parameter]) -> Tensor:
    """All gradients one after the other; there are none afterwards."""
    flat = torch.cat([torch.zeros_like(p).view(-1) if p.grad is None else p.grad.reshape(-1) for p in parameters])
    for parameter in parameters:
        parameter.grad = None
    return flat


class Tree:
    """A sum by a binary tree of 2ⁿ values that come one by one; at most n + 1 are held."""

    def __init__(self):
        self.sums: list[tuple[int, Tensor]] = []  # how many values each is of, and their sum

    def add(self, value: Tensor) -> None:
        count = 1
        while self.sums and self.sums[-1][0] == count:
            value, count = self.sums.pop()[1] + value, 2 * count
        self.sums.append((count, value))

    def value(self) -> Tensor:
        ((_, value),) = self.sums
        return value


def tree_sum(values: Sequence[Tensor]) -> Tensor:
    tree = Tree()
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


def make_gradients(mode: str) -> Callable[..., Alone]:
    """The class for a mode."""
    from .gradients import Replicated, Sharded

    return {"alone": Alone, "ddp": Replicated, "fsdp": Sharded, "exact": Exact}[mode]
