"""A function of tensors captured in a CUDA graph: the kernels of one call, replayed by later ones without Python."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Capture kernels into a graph, with a workspace of cuBLAS that no other graph has.

    PyTorch keeps the workspace of a stream, and all captures share a stream: it would be in the memory of whichever
    graph was captured first, and be freed with it.

    Python's garbage collector may start at any allocation and destroy an older graph, which CUDA does not permit while
    a stream is capturing: nothing is collected until the capture has ended.
    """
    _clear_workspaces()
    collects = gc.isenabled()
    gc.disable()
    try:
        # other threads may go on using the device
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield
    finally:
        if collects:
            gc.enable()
    _clear_workspaces()


def _clear_workspaces() -> None:
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # PyTorch without CUDA has none
    if clear is not None:
        clear()


class Captured:
    """The same kernels in the same order as `function`, so the same numbers to the last bit.

    The first call runs as it is: it compiles what is compiled, and prepares the libraries of the device. The second is
    captured, and replayed from then on: later calls have the shapes of the first, and the weights stay where they are.
    """

    def __init__(self, function: Callable[..., Tensor]):
        self.function, self.calls = function, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor] = []
        self.output = torch.empty(0)

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 1:
            return self.function(*inputs)
        if self.graph is None:
            self._capture(inputs)
        assert self.graph is not None
        for buffer, new in zip(self.inputs, inputs, strict=True):
            buffer.copy_(new)
        self.graph.replay()
        return self.output.clone()  # the next replay writes over it

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs, self.graph = [one.clone() for one in inputs], torch.cuda.CUDAGraph()
        with capture(self.graph):
            self.output = self.function(*self.inputs)
