"""A training step as a trace: `trace_step(model, loss, batch, optimizer)` for any module, loss and batch.

    t = trace_step(model, loss, (inputs, targets), torch.optim.AdamW(model.parameters()))
    t.grad["blocks.0.attn.pattern"][0, 1, 2, 0].why()
    t.new["head.weight"][3, 4].why()

Model and optimizer are afterwards as they were: the trace has the weights after the step.
"""

import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..config import UserError
from ..device import random_state
from .address import address
from .block_trace import BlockTrace
from .folding import fold_norms
from .gradient_contributions import GradientContributions
from .gradient_formulas import Composer, symbols_of
from .receipt_text import format_number, plain
from .recording import EveryValue, TracedModel, parameters_and_buffers
from .step_tape import CLIPPED, GRADIENT, LOG_PROBABILITIES, NEW, NORM, OLD, PROBABILITIES, StepTape
from .tape import BUDGET, TooMuch
from .trace import Trace, View

Loss = Callable[..., Tensor]
Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None
DESCRIBED = ("SGD", "Adam", "AdamW", "Muon")


class Named:
    """The tensors of a trace whose names begin alike, by the rest of the name."""

    def __init__(self, trace: Trace, prefix: str):
        self.trace, self.prefix = trace, prefix

    def __getitem__(self, name: str) -> View:
        return self.trace[self.prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.prefix) for name in self.trace.names if name.startswith(self.prefix))

    def __repr__(self) -> str:
        return f"<{len(list(self))} tensors whose names begin with {self.prefix}>"


class StepTrace(BlockTrace):
    """A trace of a training step: `t.grad[name]` is ∂L/∂ of a value or parameter, `t.new[name]` one after the step."""

    graph: StepTape
    prefix = re.compile(f"^{GRADIENT}")

    def __init__(self, tape: StepTape, traced: TracedModel, loss: float, labels: Any = None, facts: Any = None):
        super().__init__(tape, labels, facts)
        self.traced, self.loss = traced, loss

    @property
    def fault(self) -> str:
        """Where the first of the gradients is that are not finite, in one sentence; nothing where all are."""
        tape = self.graph
        made = [i for i, n in enumerate(tape.nodes) if n.name.startswith(GRADIENT)] if tape.not_finite else []
        computed = [i for i in made if not tape.nodes[i].moves and tape.values[i] is not None]
        for node in (*computed, *made):
            value, n = tape.value(node).reshape(-1), tape.nodes[node]
            if not np.isfinite(value).all():
                place = int(np.argmin(np.isfinite(value)))
                where, what = address(n.name, n.index(place)), format_number(plain(value[place]))
                return (
                    f"the loss is {format_number(self.loss)}, but {where} is {what}: the first of the gradients that "
                    "are not finite; its receipt says what it is made of"
                )
        return ""

    def open_block(self, path: str) -> None:
        """Run a closed block again, forward and backward, with the weights from before the update."""
        tape = self.graph
        while tape.opened and tape.bytes > BUDGET:
            tape.forget(next(iter(tape.opened)))
            tape.bytes = 0  # roughly, of what is open now
        begun = len(tape.nodes), len(tape.alive)
        with self.traced.taped(tape, lazy=False, gradients=True):
            computed = tape.run_again(path)
        tape.block_opened(path, computed, begun)
        self.traced.explain(tape)
        fold_norms(tape, begun[0])
        describe_gradients(tape)

    def find(self, name: str) -> int:
        """The node of a name; for a new weight that does not exist, those that do are named."""
        if name.startswith(NEW) and name not in self.graph.names:
            of = name.removeprefix(NEW)
            if of in self.graph.parameters.values():
                raise UserError(f"the step does not change {of}: no optimizer has it, or its gradient is missing")
        return super().find(name)

    def edit(self, where: str, value: Any) -> Trace:
        """Refused: other numbers would be another step."""
        raise UserError(f"{where} cannot be changed in a training step, which is recorded as it is: trace another one")

    def contributions(self, cell: str, against: str | int | None = None) -> Any:
        """Which tokens and examples of the batch made a gradient: `contributions("grad:norm.weight[3]")`."""
        if against is not None:
            raise UserError("a gradient is one number, compared with no other: leave --against out")
        name = self.locate(cell)[0]
        if not name.startswith((GRADIENT, CLIPPED)):
            raise UserError(f"contributions in a training step are of gradients, grad:NAME, and not of {name}")
        return GradientContributions(self, cell)

    @property
    def grad(self) -> Named:
        return Named(self, GRADIENT)

    @property
    def new(self) -> Named:
        return Named(self, NEW)


def trace_step(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    optimizer: Optimizers = None,
    *,
    clip: float | None = None,
    training: bool = False,
    labels: Any = None,
    keep: str = "auto",
    opaque: bool = False,
    warn: Callable[[str], object] | None = None,
) -> StepTrace:
    """Record one training step: every gradient and every new weight with its receipt.

    `loss(model, *batch)` is the loss of a batch, a tuple of tensors (or one tensor); a list of batches is accumulated,
    each with the same weight. `clip` is the largest norm of all gradients together. Dropout is off, unless `training`.
    Without an optimizer the trace ends with the gradients. `keep` is as for `trace`: "all", "blocks" (only what goes
    into them and out of them in both directions, each run again when it is opened) or "auto". With `opaque` an
    operation of the forward pass that is not described is a leaf, as one of the backward pass always is. `warn` is
    called, or a warning given, where gradients are not finite although the loss is: with the name of the first.
    """
    batches = batch if isinstance(batch, list) else [batch]
    if not batches:
        raise UserError("there is no batch: give a tuple of tensors, or a list of such tuples")
    batches = [one if isinstance(one, tuple) else (one,) for one in batches]
    for one in batches:
        check_call(loss, model, one)
    optimizers = [] if optimizer is None else list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    check_optimizers(optimizers)
    check_owned(optimizers, model)
    if clip is not None and not 0 < clip < math.inf:
        raise UserError(f"clip is the largest norm of the gradients, a number above 0, not {clip}")
    total = 0.0

    def step(tape: StepTape) -> None:
        nonlocal total
        total = 0.0
        for i, one in enumerate(batches):
            for j, tensor in enumerate(one):
                if isinstance(tensor, Tensor):
                    name = f"batch.{j}" if len(batches) == 1 else f"batch.{i}.{j}"
                    tape.leaf_names.setdefault(id(tensor), ([], "input"))[0].append(name)
        for one in batches:
            value = loss(model, *one)
            check_loss(value)
            value = value / len(batches) if len(batches) > 1 else value
            tape.check_graph(value)
            tape.name(value, "loss")
            value.backward()
            total += float(value.detach())
        tape.path = ""
        tape.clip = clip
        if clip is not None:
            reached = [p for p in tape.parameters if p.grad is not None]
            tape.name(nn.utils.clip_grad_norm_(reached, clip, foreach=False), "grad_norm")
        for one in optimizers:
            one.step()
        tape.name_parameter_gradients(tape.parameters)

    tape, traced = record_step(model, optimizers, step, training, keep, opaque)
    trace = StepTrace(tape, traced, total, labels)
    if fault := trace.fault:
        warnings.warn(fault, stacklevel=2) if warn is None else warn(fault)
    return trace


def record_step(
    model: nn.Module,
    optimizers: Sequence[Any],
    step: Callable[[StepTape], object],
    training: bool = False,
    keep: str = "auto",
    opaque: bool = False,
) -> tuple[StepTape, TracedModel]:
    """The tape of one step of these optimizers; model and optimizers are afterwards as they were.

    `step` makes it; where it keeps too much it is broken off before its backward pass, and made again.
    """
    if keep not in ("auto", "all", "blocks"):
        raise UserError(f"keep must be auto, all or blocks, not {keep}")
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError("this model has no parameters that need gradients")
    device = next((p.device for p in model.parameters() if p.device.type != "cpu"), torch.device("cpu"))
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"a step is recorded on a CPU or on CUDA, and this model is on {device}: give model.cpu()")
    traced = TracedModel(model, (), {}, {}, opaque)
    if keep != "blocks":
        restore = random_state(device)
        try:
            # a backward pass keeps about as much again
            return _recorded(traced, optimizers, step, training, BUDGET // 2 if keep == "auto" else None), traced
        except TooMuch:
            restore()
    return _recorded(traced, optimizers, step, training, closed=True), traced


def check_call(loss: Loss, model: nn.Module, batch: tuple[Any, ...]) -> None:
    """Refuse a loss that cannot be called with the model and a batch, such as one of outputs and targets."""
    try:
        inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).bind(model, *batch)
    except TypeError as error:
        raise UserError(
            f"the loss is called as loss(model, *batch), here with the model and {len(batch)} more ({error}): give a "
            f"function such as lambda model, x, y: F.cross_entropy(model(x), y)"
        ) from None
    except ValueError:  # a function in C may have no signature
        pass
    if words := [one for one in batch if isinstance(one, str)]:
        raise UserError(f"a batch is a tuple of tensors, and {words[0]!r} is a text: give the ids of its tokens")


def check_loss(loss: Any) -> None:
    """Refuse what has no gradient."""
    if not isinstance(loss, Tensor) or loss.ndim:
        given = f"of shape {'×'.join(map(str, loss.shape))}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise UserError(f"the loss is {given}, and gradients are of one number: give its mean or its sum")
    if not loss.requires_grad:
        raise UserError("the loss does not depend on any parameter that needs a gradient")
    if not bool(loss.detach().isfinite()):
        raise UserError(f"the loss is {float(loss.detach())}, so there is no gradient to follow")


def check_optimizers(optimizers: Sequence[Any]) -> None:
    """Refuse an optimizer whose update has no receipt."""
    for optimizer in optimizers:
        if not any(kind.__name__ in DESCRIBED for kind in type(optimizer).__mro__):
            known = f"{', '.join(DESCRIBED[:-1])} and {DESCRIBED[-1]}"
            raise UserError(f"the update of {type(optimizer).__name__} is not described: {known} are")
        for group in optimizer.param_groups:
            eps = group.get("eps", 0)
            if not group.get("fused") and any(eps and not torch.tensor(eps, dtype=p.dtype) for p in group["params"]):
                raise UserError(
                    f"the eps {eps:g} of {type(optimizer).__name__} is 0 in float16, so its step would divide by 0: "
                    "give eps=1e-4, fused=True, or weights in float32"
                )


def check_owned(optimizers: Sequence[Any], model: nn.Module) -> None:
    """Refuse an optimizer of another model, as of one that was built again after it: nothing here would be updated."""
    own = set(model.parameters())
    for optimizer in optimizers:
        if own.isdisjoint(p for group in optimizer.param_groups for p in group["params"]):
            raise UserError(
                f"the optimizer, {type(optimizer).__name__}, has no parameter of this model: make it of "
                f"model.parameters() after the model"
            )


def _recorded(
    traced: TracedModel,
    optimizers: Sequence[Any],
    step: Callable[[StepTape], object],
    training: bool,
    budget: int | None = None,
    closed: bool = False,
) -> StepTape:
    tape = StepTape(traced.model, optimizers, budget, traced.opaque)
    for name, leaf in parameters_and_buffers(traced.model).items():
        tape.leaf_names.setdefault(id(leaf), ([], "weight"))[0].append(name)
    gradients = {p: p.grad for p in tape.parameters}
    states = [(optimizer, {p: dict(state) for p, state in optimizer.state.items()}) for optimizer in optimizers]
    written = list(parameters_and_buffers(traced.model).values())
    written += [t for _, kept in states for state in kept.values() for t in state.values() if isinstance(t, Tensor)]
    try:
        with tape.restoring({id(t): t for t in written if not t.is_inference()}.values()):
            for p in tape.parameters:
                p.grad = None
            with _taped(traced, tape, training, closed):
                step(tape)
    finally:
        tape.give_parameters_back()
        for p, gradient in gradients.items():
            p.grad = gradient
        for optimizer, state in states:
            optimizer.state.clear()
            optimizer.state.update(state)
    traced.explain(tape)
    fold_norms(tape)
    describe_gradients(tape)
    return tape


@contextmanager
def _taped(traced: TracedModel, tape: StepTape, training: bool, closed: bool) -> Iterator[None]:
    """The tape on, with gradients; fused routes off, every module's path known; all as it was afterwards."""
    with ExitStack() as stack:
        probe = {"probe": EveryValue(tape.fire)} if traced.probed else {}

        def called(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
            _name_inputs(tape, traced, args, kwargs)
            return args, {**kwargs, **probe}

        stack.callback(traced.model.register_forward_pre_hook(called, with_kwargs=True).remove)
        stack.enter_context(tape.watching())
        stack.enter_context(traced.taped(tape, lazy=closed, gradients=True))
        if training:
            traced.model.train()  # until `taped` ends
        yield


def _name_inputs(tape: StepTape, traced: TracedModel, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Call what goes into the model as its forward pass calls it, but for inputs of one of several batches."""
    own = {*traced.declared, *traced.symbols}
    for name, value in (*zip(traced.takes, args, strict=False), *kwargs.items()):
        names, _ = tape.leaf_names.get(id(value), ([], ""))
        name = f"given.{name}" if name in own else name
        if not isinstance(value, Tensor) or (names and not re.fullmatch(r"batch\.\d+", names[-1])):
            continue
        if names and id(value) not in tape.of:
            names[:] = [name]
        elif name not in names:
            tape.name(value, name)


def describe_gradients(tape: StepTape) -> None:
    """The symbol and axes of each gradient and each new weight: those of what it is of."""
    _describe_loss(tape)
    described: list[int] = []
    for name, node in list(tape.names.items()):
        prefix, _, of = name.partition(":")
        n = tape.nodes[node]
        weight = tape.names.get(of.rpartition(".")[0])
        if f"{prefix}:" in (NEW, OLD) and weight is not None and tape.nodes[weight].shape == n.shape:
            n.axes = tape.nodes[weight].axes  # what an optimizer remembers of it
        # what nobody named has a name too, of the operation that made it
        if f"{prefix}:" not in _WRITTEN or not n.named or name not in (n.name, *n.also) or of not in tape.names:
            continue
        forward = tape.nodes[tape.names[of]]
        n.axes = "" if f"{prefix}:" == NORM else forward.axes
        symbols, names = forward.symbol.split(" = "), (forward.name, *forward.also)
        # a tensor with two names has two symbols
        if symbol := symbols[names.index(of) if of in names and len(symbols) == len(names) else 0]:
            n.symbol = n.symbol or _WRITTEN[f"{prefix}:"].format(symbol)
            described.append(node)
    described += [tape.names["loss"]] if "loss" in tape.names else []
    composer = Composer(tape, symbols_of(tape))
    for node in described:
        tape.nodes[node].formula = tape.nodes[node].formula or composer.formula(node)
    for n in (n for n in tape.nodes if n.name.startswith(NORM)):
        n.formula = n.formula or "√(Σ (∂L/∂w)²)"


def _describe_loss(tape: StepTape) -> None:
    """The symbols of the loss, and of the probabilities, whose axes are those of the logits."""
    nodes = {name: tape.nodes[node] for name, node in tape.names.items() if name in (*_LOSS, "logits")}
    for name, (symbol, formula) in _LOSS.items():
        if name in nodes and not nodes[name].symbol:
            nodes[name].symbol, nodes[name].formula = symbol, formula
    logits = nodes.get("logits")
    if logits is None or len(letters := logits.axes.split()) != len(logits.shape):
        return
    for name in (PROBABILITIES, LOG_PROBABILITIES):
        if name in nodes and nodes[name].shape == logits.shape[-2:] and logits.size == nodes[name].size:
            nodes[name].axes = " ".join(letters[-2:])  # of one example


_WRITTEN = {NORM: "‖∂L/∂{}‖", GRADIENT: "∂L/∂{}", CLIPPED: "clipped ∂L/∂{}", NEW: "new {}"}
_LOSS = {
    PROBABILITIES: ("p", "softmax(Z)"),
    LOG_PROBABILITIES: ("ln p", "ln softmax(Z)"),
    "loss": ("L", ""),
    "grad_norm": ("‖∇L‖", "√(Σ ‖∂L/∂W‖²)"),
}
