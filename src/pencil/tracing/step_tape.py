"""A tape that records a whole training step: forward, loss, backward, clipping and the optimizer's update.

On a CPU autograd runs in the thread that calls it, so the tape sees every operation of the backward pass as it sees
those of the forward pass. Names go along: where a value has a name, its gradient has the same one after "grad:".

    grad:NAME      ∂L/∂ of a named value or a parameter, summed over all that it was used for
    clipped:NAME   the gradient of a parameter after clipping, where that changed it
    old:NAME.KEY   what the optimizer remembers of a parameter before the step
    new:NAME       a parameter after the step; new:NAME.KEY what the optimizer remembers of it
    norm:NAME      the norm of the gradient of a parameter, of which the norm of all, `grad_norm`, is made
    muon:NAME.X5   a matrix on Muon's way from a parameter's gradient to its update

An operation after the loss that has no rule is a leaf: its value is recorded, and `undescribed` says which it was.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..config import UserError
from ..device import random_state
from .backward_rules import accumulated, adam, cells, first_moment, placed, second_moment
from .graph import Node, Plan
from .half_precision import HALF
from .optimizer_settings import (
    Numbers,
    Place,
    adam_settings,
    letters_of,
    muon_formula,
    numbers_of,
    state_formula,
    update_formula,
    with_settings,
)
from .plan_functions import FUNCTIONS
from .rules import row_major, step
from .tape import Tape, dtype_of, mapped, memory_of, off, tensors

GRADIENT, CLIPPED, OLD, NEW, NORM, MUON = "grad:", "clipped:", "old:", "new:", "norm:", "muon:"
PROBABILITIES, LOG_PROBABILITIES = "probabilities", "log_probabilities"


@dataclass
class ClosedBlock:
    """How a closed block ran, so that it can run again; its autograd nodes have the numbers from `first` to `end`."""

    first: int
    training: list[bool]
    restore_random: Callable[[], None]  # brings the state of the random numbers back
    end: int = 0
    wanted: set[str] = field(default_factory=set)  # the inputs that need gradients
    parameters: dict[str, int] = field(default_factory=dict)  # by their names inside -> the nodes of their values
    received: dict[int, int] = field(default_factory=dict)  # output -> the node of its gradient


class StepTape(Tape):
    """Records a step of these optimizers on this model, however the step is made.

    `parameters` are those that need gradients, by one name each.

    A block can be left closed in both directions. Then its inputs and parameters reach it as views, whose hooks hear of
    the gradients that it gives back, and so do its outputs on leaving; what autograd computes in between is known by
    the numbers of its nodes, and not recorded.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Iterable[torch.optim.Optimizer] = (),
        budget: int | None = None,
        opaque: bool = False,
    ):
        super().__init__(budget, opaque=opaque)
        self._after_loss = False
        self.parameters: dict[Tensor, str] = {p: name for name, p in model.named_parameters() if p.requires_grad}
        self.optimizers = list(optimizers)
        self.device = next((p.device for p in self.parameters if p.device.type != "cpu"), torch.device("cpu"))
        self._made_at: dict[int, str] = {}  # number of an autograd node -> the module in which it was made
        self._gradients: dict[Tensor, int] = {}  # parameter -> the node of its gradient, as it was last added to
        self._zeros: dict[str, int] = {}  # dtype -> the node of a zero
        self._first_number = 0
        self.inside: dict[str, ClosedBlock] = {}
        self._running = ""  # the block that runs, closed
        self._firsts: list[int] = []  # `first` of every closed block, which rise
        self._ends: list[int] = []
        self._replaced: list[tuple[nn.Module, str, Any]] = []  # parameters of the block that runs, and whose they are
        self._begun: dict[int, int] = {}  # memory -> the first node that was kept in it
        self._given: dict[Any, int] = {}  # where a gradient from a closed block lies in memory -> its node
        self._steps: torch.optim.Optimizer | None = None  # the optimizer that steps
        self._numbers: Mapping[Place, Numbers] = {}  # its numbers, as they are made of its settings
        self._letters: dict[Tensor, Mapping[str, str]] = {}  # parameter -> what the settings of its group are called
        self.not_finite = False  # whether the gradient of some parameter is not
        self.clip: float | None = None  # the largest norm of all gradients together

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which the tape hears of every gradient and of the optimizers' steps."""
        self._first_number = _next_number()
        handles = [p.register_post_accumulate_grad_hook(self._accumulated) for p in self.parameters]
        for optimizer in self.optimizers:
            handles.append(optimizer.register_step_pre_hook(self._before_update))
            handles.append(optimizer.register_step_post_hook(self._after_update))
        muons: list[Any] = [optimizer for optimizer in self.optimizers if hasattr(optimizer, "watch")]
        for muon in muons:
            muon.watch = partial(self._name_matrices, muon.parts)
        try:
            yield
        finally:
            for muon in muons:
                muon.watch = None
            for handle in handles:
                handle.remove()

    # ---- names

    def name(self, value: Tensor, name: str, named: bool = True) -> str | None:
        """Name a value, and its gradient when the backward pass reaches it."""
        full = super().name(value, name, named)
        if full is not None and named and torch.is_grad_enabled() and value.requires_grad and not value.is_leaf:
            value.register_hook(lambda gradient: self._name_gradient(gradient, full))
        return full

    def _name_gradient(self, gradient: Tensor, name: str) -> Tensor:
        """The gradient with its name: as a view, if it has one already.

        A sum passes one tensor on to all its operands, and each of their gradients is to have a node of its own.
        """
        if self.nodes[self.node_of(gradient)].named:
            gradient = gradient.view_as(gradient)
        super().name(gradient, GRADIENT + name)
        return gradient

    def _accumulated(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self._gradients[parameter] = self.node_of(parameter.grad)

    def name_parameter_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Name the gradients of parameters, as the backward pass left them, and as clipping did."""
        for parameter in parameters:
            node = self._gradients.pop(parameter, None)
            if node is None or parameter.grad is None:
                continue
            name = self.parameters[parameter]
            with off():
                self.not_finite |= not bool(parameter.grad.isfinite().all())
            self.name_node(node, GRADIENT + name)
            clipped = self.node_of(parameter.grad)
            if clipped != node:
                self.name_node(clipped, CLIPPED + name)

    def _own_parameters(self, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        own = {p for group in optimizer.param_groups for p in group["params"]}
        return [p for p in self.parameters if p in own]

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        own = self._own_parameters(optimizer)
        self.path = ""
        self.name_parameter_gradients(own)
        parts: Mapping[Tensor, Sequence[int]] = getattr(optimizer, "parts", {})
        shapes = [(rows, p.shape[1]) for p in own if p.ndim == 2 for rows in parts.get(p, p.shape[:1])]
        letters = [letters_of(self.optimizers, optimizer, group) for group in optimizer.param_groups]
        groups = zip(optimizer.param_groups, letters, strict=True)
        self._letters = {p: called for group, called in groups for p in group["params"]}
        with off():  # the number of the step is read here, which is no part of the update
            self._steps, self._numbers = optimizer, numbers_of(optimizer, letters, shapes)
        if isinstance(left_out := getattr(optimizer, "found_inf", None), Tensor):
            self.name(left_out, "left_out")  # 1 where an update is not made, since it is not finite
        for p in own:
            for key, value in state_tensors(optimizer, p).items():
                self.leaf_names.setdefault(id(value), ([f"{OLD}{self.parameters[p]}.{key}"], "weight"))

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._steps, self._numbers = None, {}
        groups = {p: group for group in optimizer.param_groups for p in group["params"]}
        for p in self._own_parameters(optimizer):
            self.name(p, NEW + self.parameters[p])
            if (n := self.nodes[self.node_of(p)]).name.startswith(NEW):
                n.formula = update_formula(optimizer, groups[p], p, self._letters[p])
            for key, value in state_tensors(optimizer, p).items():
                name = f"{self.parameters[p]}.{key}"
                # the number of the step is another for every parameter, always the same: found by name, but not listed
                self.name(value, NEW + name, named=key != "step")
                if (n := self.nodes[self.node_of(value)]).name == NEW + name:
                    n.formula = n.formula or state_formula(optimizer, groups[p], key, self._letters[p])
                # in a first step that is what the optimizer began with, such as zeros
                self.names.setdefault(OLD + name, self._begun[memory_of(value)])

    def _name_norm(self, norm: Tensor, of: Tensor) -> None:
        """Name the norm of a parameter's gradient; and that of all these norms together."""
        node = self.node_of(of)
        if parameters := [p for p, gradient in self._gradients.items() if gradient == node]:
            self.name(norm, NORM + self.parameters[parameters[0]])
            return
        sources = np.unique(self.resolve(node, np.arange(of.numel()), lambda n: n.named)[0])
        if of.ndim == 1 and len(sources) == of.numel() and all(self.nodes[i].name.startswith(NORM) for i in sources):
            self.name(norm, "grad_norm")

    def _name_matrices(
        self, parts: Mapping[Tensor, Sequence[int]], weights: list[Tensor], name: str, stack: Tensor
    ) -> None:
        """Name each matrix of a stack on Muon's way: it gets a node of its own, and the stack is made of these."""
        node = int(self.resolve(self.node_of(stack), np.arange(1))[0][0])
        n, strides = self.nodes[node], row_major(stack.shape)
        if n.shape != stack.shape or n.moves:
            return
        named = []
        for i, weight in enumerate(weights):
            # loaded weights may lie in one storage, so a weight is found by its place in memory
            p = next(p for p in self.parameters if 0 <= weight.data_ptr() - p.data_ptr() < p.nbytes)
            full = f"{MUON}{self.parameters[p]}"
            if len(weight) < len(p):  # a part of a joined matrix, of queries, keys or values
                which = list(accumulate(parts[p], initial=0)).index(
                    (weight.data_ptr() - p.data_ptr()) // (p.stride(0) * p.itemsize)
                )
                full += f".{'qkv'[which] if len(parts[p]) == 3 else which}"
            with off():
                own = self._add(stack[i], n.op, n.kind, of_one(n.plan, i), f"{full}.{name}")
            named.append([i, ["ref", own, 0, [0, *strides[1:]], []]])
            self.nodes[own].named, self.nodes[own].formula = (
                name[0] not in "AB",
                muon_formula(name, len(weight) > weight.shape[1], self._letters[p]),
            )
        n.kind, n.plan = "move", ("cat", 0, named)

    # ---- operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.paused or func.namespace != "aten":
            return super().__torch_dispatch__(func, types, args, kwargs)
        running = torch._C._current_autograd_node()
        if self._firsts and self._is_inside(running, args):
            return func(*args, **(kwargs or {}))
        if running is not None:
            self._after_loss, self.budget = True, None  # too much is noticed before the backward pass begins
            self.path = GRADIENT + self._made_at.get(running._sequence_nr(), "")  # pyright: ignore
        else:
            if self.path.startswith(GRADIENT):
                self.path = ""
            # the first operation after an autograd node was made is that node's own; later ones may have no gradient
            self._made_at.setdefault(_next_number() - 1, self.path)
        op = func._schema.name.split("::")[1]
        if op.startswith("_foreach_"):
            return self._one_by_one(op, args, kwargs or {})
        if op in ("_fused_adamw_", "_fused_adam_"):
            return self._fused_adam(func, args, kwargs or {})
        if op == "nll_loss_forward" and running is None and not self.path:
            self.name(args[1], "targets")
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if op == "linalg_vector_norm" and running is None and self._steps is None:
            with off():
                self._name_norm(out, args[0])
        if op == "_log_softmax" and running is None and not self.path:
            # of a loss outside the model: its steps have the names that they have in a trace with targets
            with self:
                self.name(out.exp(), PROBABILITIES)
            self.name(out, LOG_PROBABILITIES)
        return out

    def _is_inside(self, running: Any, args: Any) -> bool:
        """Whether an operation is of the backward pass of a closed block."""
        if running is not None:
            number = running._sequence_nr()
            which = bisect(self._firsts, number) - 1
            return which >= 0 and number < self._ends[which]
        # between autograd's nodes its engine adds up gradients: inside, where one of them is not known
        if torch._C._current_graph_task_id() < 0:  # pyright: ignore[reportAttributeAccessIssue]
            return False
        return any(id(x) not in self.of and _place(x) not in self._given for x in args if isinstance(x, Tensor))

    def _one_by_one(self, op: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operation on lists of tensors, tensor by tensor: on a CPU that is what the kernel does."""
        plain = op.removeprefix("_foreach_")
        each = getattr(torch.ops.aten, {"norm": "linalg_vector_norm"}.get(plain, plain))
        args, kwargs = list(args), dict(kwargs)
        if plain.startswith("addc") and len(args) == 4:
            kwargs["value"] = args.pop()  # by position only where it is a list's

        def one(argument: Any, i: int) -> Any:
            return argument[i] if isinstance(argument, list | tuple) else argument

        with self:
            results = [
                each(*(one(a, i) for a in args), **{name: one(value, i) for name, value in kwargs.items()})
                for i in range(len(args[0]))
            ]
        return None if op.endswith("_") else results

    def _fused_adam(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """AdamW or Adam in one kernel: three tensors are written for each parameter."""
        decoupled = func._schema.name == "aten::_fused_adamw_"
        arguments = func._schema.arguments
        options = {a.name: a.default_value for a in arguments} | kwargs
        options |= {a.name: value for a, value in zip(arguments, args, strict=False)}
        if options["amsgrad"] or options["maximize"] or not isinstance(options["lr"], float):
            raise UserError("Adam with amsgrad, with maximize or with a tensor as its rate has no receipt yet")
        lists = [options[name] for name in ("self", "grads", "exp_avgs", "exp_avg_sqs", "state_steps")]
        before = [[self.node_of(t) for t in tensors] for tensors in zip(*lists, strict=True)]
        if options.get("found_inf") is not None and float(options["found_inf"]):
            return  # an update that is left out changes nothing
        for tensor in (*lists[0], *lists[2], *lists[3]):
            self._set_aside(memory_of(tensor))
        with off():
            func(*args, **kwargs)
        for (p, _, m, v, _), nodes in zip(zip(*lists, strict=True), before, strict=True):
            single = p.device.type != "cpu" and p.dtype != torch.float64
            here, settings = row_major(p.shape), adam_settings(options, self._letters[p], single)
            weight, gradient, old_m, old_v = (cells(node, here) for node in nodes[:4])
            steps = cells(nodes[4], [0] * len(here))
            if options["weight_decay"] and not decoupled:
                gradient = step("g + λw", gradient + settings["weight_decay"] * weight)
            m_now, v_now = first_moment(old_m, gradient, settings), second_moment(old_v, gradient, settings)
            stored = cells(self._written(m, "adam.m", m_now), here), cells(self._written(v, "adam.v", v_now), here)
            if dtype_of(p) not in HALF:  # else the weight is made from the moments before they are rounded
                m_now, v_now = stored
            self._written(p, "adam", adam(weight, m_now, v_now, steps, settings, decoupled))

    @property
    def leaves_out(self) -> bool:
        return self.opaque or self._after_loss

    def _plan(self, node: int, func: Any, op: str, inputs: dict[str, Any], arguments: Any, i: int, me: int) -> None:
        n = self.nodes[node]
        if op in ("slice_backward", "select_backward") and arguments.get("step", 1) == 1:
            n.kind, n.plan = "move", self._placed(n, op, inputs, arguments)
        elif op in ("index_put", "_unsafe_index_put", "_index_put_impl") and arguments.get("accumulate"):
            n.kind, n.plan = "gradient", self._accumulated_at(n, inputs, arguments)
        else:
            super()._plan(node, func, op, inputs, arguments, i, me)
        if self._steps is not None:
            if any(op == one for one, _ in self._numbers):
                n.plan = with_settings(n.plan, self._numbers.get((op, self._changed_by(op, arguments)), {}))
        elif op == "mul" and self.clip is not None and "grad_norm" in self.names:
            n.plan = with_settings(n.plan, {float(self.clip): step("clip", float(self.clip))})

    def _changed_by(self, op: str, arguments: Mapping[str, Any]) -> str:
        """What an operation of an optimizer changes: a weight, what it remembers, or by a weight's decay a gradient."""
        assert self._steps is not None
        states = [value for state in self._steps.state.values() for value in state.values()]
        memory = {memory_of(t): "state" for t in states if isinstance(t, Tensor)}
        memory |= {memory_of(p): "weight" for p in self._letters}
        changed, other = (
            memory.get(memory_of(t), "") if isinstance(t := arguments.get(name), Tensor) else ""
            for name in ("self", "other")
        )
        return "decay" if op == "add" and other == "weight" else changed

    def _placed(self, n: Node, op: str, inputs: dict[str, Any], arguments: Any) -> Any:
        dim, one = arguments["dim"] % len(n.shape), op == "select_backward"
        begin = arguments["index"] if one else arguments["start"]
        begin = max(0, begin + n.shape[dim] if begin < 0 else begin)
        if n.dtype not in self._zeros:
            self._zeros[n.dtype] = self._add(torch.zeros((), dtype=getattr(torch, n.dtype)), "zero", "constant", 0)
        return placed(inputs["grad_output"], self._zeros[n.dtype], dim, begin, one, n.shape)

    def _accumulated_at(self, n: Node, inputs: dict[str, Any], arguments: Any) -> Any:
        indices, values = arguments["indices"], inputs["values"]
        axes = [axis for axis, index in enumerate(indices) if index is not None]
        indexed = slice(axes[0], axes[-1] + 1)
        if len(axes) != axes[-1] + 1 - axes[0] or any(
            index.dtype == torch.bool for index in indices if index is not None
        ):
            raise UserError("values added at places of axes that are not neighbours have no receipt yet")
        inside = n.shape[indexed]
        with off():
            at = tuple(index.cpu() for index in indices[indexed])
            places = torch.arange(prod(inside)).reshape(inside)[at]
        if values.shape != (*n.shape[: indexed.start], *places.shape, *n.shape[indexed.stop :]):
            raise UserError("one value added at several places has no receipt yet")
        node = self._add(places.contiguous(), "places", "constant", None)
        return tuple(accumulated(inputs["self"], node, places.numel(), values, n.shape, indexed))

    def _own(self, value: Tensor, node: int) -> None:
        super()._own(value, node)
        self._begun.setdefault(memory_of(value), node)

    # ---- blocks left closed in both directions

    def node_of(self, value: Tensor) -> int:
        if self._given and id(value) not in self.of and (node := self._given.get(_place(value))) is not None:
            self._own(value, node)
        return super().node_of(value)

    def close_block(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        calls = sum(call.split("#")[0] == path for call in self.blocks)
        self._running = path = f"{path}#{calls + 1}" if calls else path
        super().close_block(path, module, args, kwargs)
        modes = [m.training for m in module.modules()]
        self._versions += [(buffer, buffer._version) for buffer in module.buffers()]
        block = self.inside[path] = ClosedBlock(_next_number(), modes, random_state(self.device))
        views: dict[Tensor, Tensor] = {}

        def view(key: tuple[str, str], value: Tensor) -> Tensor:
            if not value.requires_grad:
                return value
            if value not in views:
                node, views[value] = self.node_of(value), value.view_as(value)
                self._own(views[value], node)
                views[value].register_hook(partial(self._gives_back, path, key))
            return views[value]

        for name, (owner, own_name, parameter) in parameters_inside(module).items():
            block.parameters[name] = self.node_of(parameter)
            self._replaced.append((owner, own_name, parameter))
            owner._parameters[own_name] = view(("parameter", name), parameter)  # pyright: ignore[reportArgumentType]

        def passed(name: str, value: Tensor) -> Tensor:
            if value.requires_grad:
                block.wanted.add(name)
            return view(("input", name), value)

        return mapped((args, kwargs), "", passed)

    def leave_block(self, path: str, out: Any) -> Any:
        path = self._running
        self.give_parameters_back()
        self.inside[path].end = _next_number()
        self._firsts.append(self.inside[path].first)
        self._ends.append(self.inside[path].end)
        out = super().leave_block(path, out)
        places = {id(tensor): i for i, (_, tensor) in enumerate(tensors(out, ""))}

        def passed(_: str, value: Tensor) -> Tensor:
            if not value.requires_grad:
                return value
            node, self.paused = self.node_of(value), True
            view = value.view_as(value)
            self.paused = False
            self._own(view, node)
            view.register_hook(partial(self._receives, path, places[id(value)], node))
            return view

        return mapped(out, "", passed)

    def give_parameters_back(self) -> None:
        """Put the parameters of the block that runs where views of them were."""
        for owner, name, parameter in self._replaced:
            owner._parameters[name] = parameter
        self._replaced.clear()

    def _receives(self, path: str, i: int, output: int, gradient: Tensor) -> Tensor:
        """The gradient of an output, with its name."""
        gradient = self._name_gradient(gradient, self.nodes[output].name)
        self.inside[path].received[i] = self.node_of(gradient)
        return gradient

    def _gives_back(self, path: str, key: tuple[str, str], gradient: Tensor) -> None:
        """A gradient that a closed block computed.

        Its own object is not kept: autograd makes a tensor that nobody else has the gradient of a parameter itself,
        and copies another.
        """
        with off():
            same = gradient.detach()
        kind, name = key
        name = f"{GRADIENT}{path}.{name}:part" if kind == "parameter" else f"{GRADIENT}{path}:input{name}"
        self._given[_place(same)] = self._closed(path, key, same, name)

    def again(self, node: int, needs_gradient: bool) -> Tensor:
        """The value of a node as a tensor that is known as that node."""
        with off():
            value, n = self.values[node], self.nodes[node]
            if value is None:
                value = torch.from_numpy(self.value(node)).to(self.device, getattr(torch, n.dtype))
            new = value.detach()
        self._own(new, node)
        return new.requires_grad_(needs_gradient)

    def run_again(self, path: str) -> dict[Any, Tensor]:
        """Run a closed block forward and backward, recorded this time: what it computed, as `block_opened` takes it."""
        module, args, kwargs = self.blocks[path]
        block, restore_random, self._after_loss = self.inside[path], random_state(self.device), False
        self.path = path.split("#")[0]
        leaves: dict[Any, Tensor] = {}

        def passed(name: str, value: Tensor) -> Tensor:
            leaf = leaves["input", name] = self.copied(value).requires_grad_(name in block.wanted)
            same = leaf.view_as(leaf)  # a leaf has no hook that would name its gradient
            self._own(same, self.node_of(leaf))
            return same

        self.paused = True
        args, kwargs = mapped((args, kwargs), "", passed)
        self.paused = False
        known: dict[Tensor, Tensor] = {}
        for name, (owner, own_name, parameter) in parameters_inside(module).items():
            self._replaced.append((owner, own_name, parameter))
            # as it was before the update
            needed = any(key == ("parameter", name) for _, key in self.results[path])
            if parameter not in known:
                known[parameter] = self.again(block.parameters[name], needed)
            leaves["parameter", name] = owner._parameters[own_name] = known[parameter]  # pyright: ignore
        modes = [(m, m.training) for m in module.modules()]
        try:
            for (m, _), mode in zip(modes, block.training, strict=True):
                m.training = mode
            block.restore_random()
            out = dict(enumerate(tensor for _, tensor in tensors(module(*args, **kwargs), "")))
        finally:
            self.give_parameters_back()
            restore_random()
            for m, mode in modes:
                m.training = mode
        wanted = {key: leaf for key, leaf in leaves.items() if leaf.requires_grad}
        received = {i: self.again(node, False) for i, node in block.received.items()}
        if not received:
            return out
        found = torch.autograd.grad(
            [out[i] for i in received], list(wanted.values()), list(received.values()), allow_unused=True
        )
        return out | {key: g for key, g in zip(wanted, found, strict=True) if g is not None}

    # ---- what came before, and after

    def check_graph(self, loss: Tensor) -> None:
        """Refuse a loss that was computed, in part, before the tape was on: its backward pass would begin unseen."""
        todo, seen = [loss.grad_fn], set()
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node.name() != "torch::autograd::AccumulateGrad" and node._sequence_nr() < self._first_number:
                raise UserError(
                    f"a part of the loss ({node.name()}) was computed before the trace began, so its gradients cannot "
                    "be followed: compute all of it inside `loss(model, …)`"
                )
            todo += [before for before, _ in node.next_functions]

    @contextmanager
    def restoring(self, tensors: Iterable[Tensor]) -> Iterator[None]:
        """A context after which every tensor that was written in it has its value from before; the tape keeps the new.

        These tensors have their version from before too: nothing that was read from them has become wrong.
        """
        with torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(tensors)):
            try:
                yield
            finally:
                restored = self._restore()
        self.versions |= {node: (tensor, tensor._version) for node, tensor in restored.items()}

    def _restore(self) -> dict[int, Tensor]:
        restored: dict[int, Tensor] = {}
        with off():
            for tensor in [t for t in self.alive if id(t) in self.leaf_names and memory_of(t) in self.changes]:
                node = next(self.names[name] for name in self.leaf_names[id(tensor)][0])
                self._set_aside(memory_of(tensor))
                old = self.values[node]
                if old is not None:
                    tensor.detach().copy_(old)
                    self.values[node] = tensor.detach()
                    restored[node] = tensor
        return restored


def _next_number() -> int:
    """The number that the next autograd node gets."""
    return torch.autograd._get_sequence_nr()  # pyright: ignore[reportPrivateImportUsage]


def _place(value: Tensor) -> tuple[Any, ...]:
    """Where a tensor lies in memory."""
    return memory_of(value), value.storage_offset(), value.shape, value.stride()


def parameters_inside(module: nn.Module) -> dict[str, tuple[nn.Module, str, nn.Parameter]]:
    """The parameters of a module by all their names, each with the module that has it and its name there."""
    return {
        f"{path}.{name}" if path else name: (owner, name, parameter)
        for path, owner in module.named_modules()
        for name, parameter in owner._parameters.items()
        if parameter is not None
    }


def of_one(plan: Plan, i: int) -> Plan:
    """The plan of one place along the first axis."""
    match plan:
        case "ref", node, offset, strides, steps:
            return ("ref", node, offset + i * strides[0], list(strides[1:]), steps)
        case "is", name, part:
            return step(name, of_one(part, i))
        case (head, *parts) if head in FUNCTIONS:
            return (head, *(of_one(part, i) for part in parts))
    return plan


def state_tensors(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """What an optimizer remembers of a parameter."""
    state: Mapping[str, Any] = optimizer.state.get(parameter, {})
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}
