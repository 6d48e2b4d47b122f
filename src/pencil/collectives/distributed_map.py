"""An evaluation that is divided among the processes of a training.

Each takes its share of the batches. The results of all batches come to all processes and are added up in the order of
the batches, so that they are those of one process, to the bit.

Under FSDP2 the processes then run the model differently, and yet all gather the weights of a block together. So before
each block a process sends the number of the one that it needs; all gather those that any of them needs, and each keeps
its own. A process that has nothing left to run takes part until all have ended. The weights outside blocks stay
gathered meanwhile.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import reduce, wraps
from itertools import islice
from operator import add
from typing import Any, TypeVar

import torch

from ..progress import track
from .processes import on_all_ranks, world

T = TypeVar("T")
R = TypeVar("R")

_distributed: ContextVar[bool] = ContextVar("distributed", default=False)


class StopEverywhere(Exception):
    """Ends an evaluation on all processes when it is raised on one; subclasses give the reason."""


@contextmanager
def distributed_evaluation() -> Iterator[None]:
    """A context in which all processes evaluate together."""
    before = _distributed.set(world().size > 1)
    try:
        yield
    finally:
        _distributed.reset(before)


def distributed_map(items: Iterable[T], work: Callable[[T], R]) -> list[R]:
    """Map `work` over the items, in order; in `distributed_evaluation` JSON must be able to express its results."""
    if not _distributed.get():
        return [work(item) for item in (track(items) if isinstance(items, Sequence) else items)]
    rank, size = world().rank, world().size
    indices = track(range(rank, len(items), size)) if isinstance(items, Sequence) else None
    own_items = islice(items, rank, None, size) if indices is None else (items[i] for i in indices)  # pyright: ignore
    answers = gather_results(lambda: [work(item) for item in own_items])
    count = sum(map(len, answers))
    return [answers[number % size][number // size] for number in range(count)]


def ordered_sum(values: Iterable[float]) -> float:
    """The sum of floats from the first to the last; Python's own `sum` compensates for rounding since 3.12."""
    return reduce(add, values, 0.0)


def gather_results(work: Callable[[], Any]) -> list[Any]:
    """Call `work` on each process; returns the results by rank. If one process raises `StopEverywhere`, so do all."""

    def attempt() -> dict[str, Any]:
        try:
            return {"value": work()}
        except StopEverywhere as reason:
            return {"ended": type(reason).__name__}
        finally:
            serve_others()

    if world().size == 1:
        return [work()]
    answers = on_all_ranks(attempt)
    for answer in answers:
        if "ended" in answer:
            raise next(kind for kind in StopEverywhere.__subclasses__() if kind.__name__ == answer["ended"])
    return [answer["value"] for answer in answers]


NO_PART = -1  # what a process sends that needs no more weights


class BlockGathering:
    """The parts of a model that FSDP gathers, the whole model first; `running` are those that this process runs."""

    def __init__(self, parts: list[Any]):
        self.root, *self.parts = parts
        self.running: set[int] = set()

    @contextmanager
    def __call__(self, size: int) -> Iterator[None]:
        """A context in which the model can be run by each process as it likes."""
        self.root._get_fsdp_state()._lazy_init()  # else a block that runs first is taken for the whole model
        with ExitStack() as stack:
            stack.callback(self._reshard_all)
            self.root.unshard()
            if size > 1:
                for number, part in enumerate(self.parts):
                    stack.enter_context(self._gather_before_running(part, number))
                token = _serve_current.set(self.serve)
                stack.callback(_serve_current.reset, token)
            yield

    def _reshard_all(self) -> None:
        for part in (self.root, *self.parts):
            part.reshard()
        # FSDP prefetches in the backward pass what ran last, and after an evaluation that differs between the ranks
        self.root._get_fsdp_state()._comm_ctx.post_forward_order.clear()
        self.running.clear()

    @contextmanager
    def _gather_before_running(self, part: Any, number: int) -> Iterator[None]:
        """A context in which a part has its weights gathered before it runs."""

        def before(*_: Any) -> None:
            self.running.add(number)
            self._gather(number)

        def after(*_: Any) -> None:
            self.running.discard(number)

        hooks = [part.register_forward_pre_hook(before, prepend=True), part.register_forward_hook(after)]
        read = vars(part).get("read")  # of a cross-attention: it reads the source before its block runs
        if read is not None:

            @wraps(read)
            def gathered_read(*args: Any, **kwargs: Any) -> Any:
                before()
                try:
                    return read(*args, **kwargs)
                finally:
                    after()

            part.read = gathered_read
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            if read is not None:
                part.read = read

    def _gather(self, number: int) -> bool:
        """Gather the parts that the processes need now; whether there are any."""
        import torch.distributed as dist

        requests = [torch.tensor([NO_PART]) for _ in range(dist.get_world_size())]
        dist.all_gather(requests, torch.tensor([number]))
        wanted = sorted({int(request) for request in requests} - {NO_PART})
        for needed in wanted:
            part = self.parts[needed]
            part.reshard()  # also where it is gathered already, since all processes must take part
            part.unshard()
            if needed not in self.running:
                part.reshard()
        return bool(wanted)

    def serve(self) -> None:
        """Take part in what the others run, until all have ended."""
        while self._gather(NO_PART):
            pass


_serve_current: ContextVar[Callable[[], None] | None] = ContextVar("serving", default=None)


def serve_others() -> None:
    """Take part in what the other processes run, if the model is cut among them, until all have ended."""
    serve = _serve_current.get()
    if serve is not None:
        serve()
