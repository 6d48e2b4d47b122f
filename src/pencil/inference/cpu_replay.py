"""A function of tensors recorded on a CPU: its operations, replayed by later calls without the Python around them.

What a CUDA graph is on a GPU. A step of a small model is some three hundred operations of a few microseconds each, and
PyTorch's modules take longer to call them than they take. Here they are recorded once, below the modules and below
autograd, with every tensor that they read or write as an input; later calls run the same kernels in the same order on
the same shapes, so they give the same numbers to the last bit. TorchScript's interpreter runs them, without its
optimisations, which would join products: it is twice as fast as Python, and other threads run meanwhile. PyTorch keeps
it without developing it further; where it is missing, Python calls the operations one by one.
"""

import operator
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

Program = Callable[..., Tensor]

_tracing = threading.Lock()  # PyTorch's tracer has state of the whole process


class Replayed:
    """The first call runs as it is and is recorded; later ones replay it.

    Later calls have the shapes of the first. The other tensors that `function` reads and writes keep their addresses,
    and no number that it takes from a tensor may change what it computes. `programs` are shared by functions that do
    the same with other tensors: it is compiled for the first of them.
    """

    def __init__(self, function: Callable[..., Tensor], programs: dict[str, Program]):
        self.function, self.programs = function, programs
        self.program: Program | None = None
        self.inputs: list[Tensor] = []  # copies of those of the first call
        self.tensors: list[Tensor] = []  # all that the operations read and write

    @torch.no_grad()
    def __call__(self, *inputs: Tensor) -> Tensor:
        if self.program is not None:
            for buffer, new in zip(self.inputs, inputs, strict=True):
                buffer.copy_(new)
            return self.program(*self.tensors)
        self.inputs = [one.clone() for one in inputs]
        with _Recorder() as recorder:
            output = self.function(*self.inputs)
        module = recorder.module(output)
        self.tensors = recorder.inputs
        if module.code not in self.programs:
            self.programs[module.code] = _compiled(module, recorder)
        self.program = self.programs[module.code]
        return output


class _Recorder(TorchDispatchMode):
    """Records operations as a graph. A view of an input is an input too: it stays where it is."""

    def __init__(self):
        super().__init__()
        self.graph = fx.Graph()
        self.inputs: list[Tensor] = []
        self.written: list[Tensor] = []  # inputs that the operations write to
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Tensor] = []  # so that no other tensor gets the id of one of these

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        made = [one for one in tree_leaves(output) if isinstance(one, Tensor)]
        if func.is_view and all(self._is_input(one) for one in given):
            for one in made:
                self._node(one)
        elif made:
            self._record(func, args, kwargs, output)
        return output

    def _record(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        node = self.graph.call_function(func, *tree_map_only(Tensor, self._node, (args, kwargs)))
        for argument, value in zip(func._schema.arguments, args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            self.written += [one for one in tree_leaves(value) if written and self._is_input(one)]
        if isinstance(output, Tensor):
            self._keep(output, node)
            return
        for i, one in enumerate(output):
            if isinstance(one, Tensor):
                self._keep(one, self.graph.call_function(operator.getitem, (node, i)))

    def _keep(self, value: Tensor, node: fx.Node) -> None:
        if id(value) not in self._nodes or not self._is_input(value):  # one that was written in place stays itself
            self._nodes[id(value)] = node
            self._alive.append(value)

    def _is_input(self, value: Tensor) -> bool:
        return self._nodes.get(id(value), None) is None or self._nodes[id(value)].op == "placeholder"

    def _node(self, value: Tensor) -> fx.Node:
        if id(value) not in self._nodes:
            self._keep(value, self.graph.placeholder(f"input_{len(self.inputs)}"))
            self.inputs.append(value)
        return self._nodes[id(value)]

    def module(self, output: Tensor) -> fx.GraphModule:
        self.graph.output(self._node(output))
        self.graph.eliminate_dead_code()
        return fx.GraphModule(torch.nn.Module(), self.graph)


def _compiled(module: fx.GraphModule, recorder: _Recorder) -> Program:
    """The operations as a program of TorchScript; by Python where there is none."""
    trace = getattr(torch.jit, "trace", None)
    if trace is None:
        return module.forward
    before = [one.clone() for one in recorder.written]
    with _tracing, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not developed further
        program = trace(module, tuple(recorder.inputs), check_trace=False)
    for one, old in zip(recorder.written, before, strict=True):  # the operations ran once more
        one.copy_(old)

    def run(*tensors: Tensor) -> Tensor:
        with torch.jit.optimized_execution(False):  # pyright: ignore[reportPrivateImportUsage]
            return program(*tensors)

    return run
