"""A model that is cut among processes (FSDP2), run where they do not run it alike: in evaluations and previews.

All processes gather the weights of a block together. So before each block a process says which it needs; all gather
those that any of them needs, and each keeps its own. One that has nothing left to run takes part until all have ended.
The weights outside blocks stay gathered meanwhile.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch

NOTHING = -1


class Gathering:
    """The parts of a model that FSDP gathers, the whole model first; `running` are those that this process runs."""

    def __init__(self, parts: list[Any]):
        self.root, *self.parts = parts
        self.running: set[int] = set()

    @contextmanager
    def __call__(self, size: int) -> Iterator[None]:
        """A context in which the model can be run by each process as it likes."""
        self.root._get_fsdp_state()._lazy_init()  # else a block that runs first is taken for the whole model
        with ExitStack() as stack:
            stack.callback(self._end)
            self.root.unshard()
            if size > 1:
                for number, part in enumerate(self.parts):
                    stack.enter_context(self._asking(part, number))
                token = _serving.set(self.serve)
                stack.callback(_serving.reset, token)
            yield

    def _end(self) -> None:
        for part in (self.root, *self.parts):
            part.reshard()
        # what ran last is gathered ahead in the backward pass: of an evaluation it is not the same everywhere
        self.root._get_fsdp_state()._comm_ctx.post_forward_order.clear()
        self.running.clear()

    @contextmanager
    def _asking(self, part: Any, number: int) -> Iterator[None]:
        """Make a part ask for its weights before it runs."""

        def before(*_: Any) -> None:
            self.running.add(number)
            self._gather(number)

        def after(*_: Any) -> None:
            self.running.discard(number)

        hooks = [part.register_forward_pre_hook(before, prepend=True), part.register_forward_hook(after)]
        read = vars(part).get("read")  # of a cross-attention: it reads the source before its block runs
        if read is not None:

            @wraps(read)
            def asked(*args: Any, **kwargs: Any) -> Any:
                before()
                try:
                    return read(*args, **kwargs)
                finally:
                    after()

            part.read = asked
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

        asked = [torch.tensor([NOTHING]) for _ in range(dist.get_world_size())]
        dist.all_gather(asked, torch.tensor([number]))
        wanted = sorted({int(one) for one in asked} - {NOTHING})
        for one in wanted:
            part = self.parts[one]
            part.reshard()  # also where it is there: all of them take part
            part.unshard()
            if one not in self.running:
                part.reshard()
        return bool(wanted)

    def serve(self) -> None:
        """Take part in what the others run, until all have ended."""
        while self._gather(NOTHING):
            pass


_serving: ContextVar[Callable[[], None] | None] = ContextVar("serving", default=None)


def serve_others() -> None:
    """Where a cut model is run: wait for the others, and take part in what they run."""
    serve = _serving.get()
    if serve is not None:
        serve()
