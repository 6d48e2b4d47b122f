"""A model with its inputs, run under a tape: names for what it records, and blocks recorded only when opened."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from ..config import UserError
from ..core.layers import evaluating
from ..core.notation import Notation, stored
from ..core.probe import Probe, branches, declared, symbols, weight_axes
from . import loss
from .tape import BUDGET, Edit, Tape, mapped, tensors

# ---- the model


class EveryValue(Probe):
    """Calls a function with each value and its full name; wants every value, so that no fused route skips one."""

    def __init__(self, call: Callable[[str, Tensor], Tensor]):
        self.call, self.path = call, ""

    def wants(self, *names: str) -> bool:
        return True

    def checked(self, value: Tensor) -> Tensor:
        return value  # an edit of a name that nothing has is refused when the recording ends

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return self.call(self.path + name, value)


class PlainLSTM(TorchFunctionMode):
    """LSTMs by the products they are: their fused kernel would be one operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        enabled = bool(torch.backends.mkldnn.enabled)
        try:
            # the setting alone: `torch.backends.mkldnn.flags` warns of another
            torch._C._set_mkldnn_enabled(enabled and func is not torch.lstm)
            return func(*args, **(kwargs or {}))
        finally:
            torch._C._set_mkldnn_enabled(enabled)


@contextmanager
def whole_products() -> Iterator[None]:
    """On CUDA products of all digits, summed in single precision: without TF32 and sums in half precision."""
    backends: Any = torch.backends
    products = backends.cuda.matmul
    settings = [(products, "fp32_precision", "ieee"), (backends.cudnn.conv, "fp32_precision", "ieee")]
    settings += [(products, f"allow_{kind}_reduced_precision_reduction", False) for kind in ("bf16", "fp16")]
    before = [(where, name, getattr(where, name)) for where, name, _ in settings]
    try:
        for where, name, value in settings:
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)


class TracedModel:
    """A model with its inputs: can be run again, with other edits."""

    def __init__(
        self, model: Any, inputs: tuple[Any, ...], keywords: dict[str, Any], edits: dict[str, Edit],
        opaque: bool = False,
    ):  # fmt: skip
        self.model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        if isinstance(self.model, torch.jit.ScriptModule):
            raise UserError("a scripted module cannot be traced: trace the module it was scripted from")
        self.inputs, self.keywords, self.edits, self.targets = inputs, keywords, edits, None
        self.output: Any = None
        self.opaque = opaque  # whether an operation that is not described is a leaf
        forward = self.model.forward if isinstance(self.model, nn.Module) else self.model
        try:
            self.takes = inspect.signature(forward).parameters
        except (TypeError, ValueError):
            self.takes = {}
        if "targets" in keywords and "targets" not in self.takes:
            self.keywords = {name: value for name, value in keywords.items() if name != "targets"}
            self.targets = keywords["targets"]
        self.probed = "probe" in self.takes
        self.declared = declared(self.model) if isinstance(self.model, nn.Module) and self.probed else {}
        self.symbols = symbols(self.model) if self.declared else {}
        self.axes = weight_axes(self.model) if self.declared else {}
        if "use_cache" in self.takes and hasattr(self.model, "config"):
            # a KV cache would be another input the second time
            self.keywords = {"use_cache": False, **self.keywords}

    def edited(self, edits: dict[str, Edit]) -> "TracedModel":
        """The same model with the same inputs and targets, and other edits."""
        targets = {} if self.targets is None else {"targets": self.targets}
        return TracedModel(self.model, self.inputs, {**self.keywords, **targets}, edits, self.opaque)

    def run(self, budget: int | None = None, lazy: bool = False, gradients: bool = False) -> Tape:
        """One forward pass under a tape; with gradients where it computes some itself."""
        tape = Tape(budget, self.edits, self.opaque)
        module = self.model if isinstance(self.model, nn.Module) else None
        inputs, keywords = self.arguments(tape)
        changed: dict[str, Tensor] = {}
        steps: dict[str, int] = {}
        if self.probed:
            keywords = {**keywords, "probe": EveryValue(tape.fire)}
        if module is not None:
            weights = parameters_and_buffers(module)
            for name, leaf in weights.items():
                tape.leaf_names.setdefault(id(leaf), ([], "weight"))[0].append(name)
            tape.changed = changed = {n: tape.change(n, weights[n]) for n in self.edits if n in weights}
        try:
            with self.taped(tape, lazy, gradients), _kept_readout(self.model, tape):
                if changed:
                    out = functional_call(self.model, changed, inputs, keywords)
                else:
                    out = self.model(*inputs, **keywords)
                self.output = mapped(out, "", lambda name, value: tape.change(name or "output", value))
                for name, value in tensors(self.output, ""):
                    # what the model itself has named keeps that name
                    has_name = self.probed and tape.nodes[tape.node_of(value)].named
                    tape.name(value, name or "output", named=not has_name)
                if self.targets is not None:
                    steps = loss.record(tape, loss.logits_of(self.output), self.targets)
        except NotImplementedError as error:
            why = str(error).splitlines()[0]
            if called := re.search(r"HigherOrderOperator (\w+)", why):
                why = f"it calls {called[1]}, which PyTorch runs as one operation without showing its parts; call the "
                why += "plain operations instead"
            raise UserError(f"this model cannot be recorded: {why}") from None
        except RuntimeError as error:
            if gradients or "does not require grad" not in str(error):
                raise
            own = {p: p.grad for p in module.parameters()} if module is not None else {}
            try:
                for p in own:
                    p.grad = None
                return self.run(budget, gradients=True)
            finally:
                for p, gradient in own.items():
                    p.grad = gradient
        if gradients:
            self.output = mapped(self.output, "", lambda _, value: value.detach())
        unused = [name for name in self.edits if name not in tape.edited]
        if unused:
            raise UserError(f"nothing was called {unused[0]} when the model ran again")
        self.explain(tape)
        if steps:
            loss.describe(tape, steps)
        return tape

    def explain(self, tape: Tape) -> None:
        """Write the symbols and axes that modules declare for their names onto the nodes."""
        if not self.declared:
            return
        for name, about in Notation(self.model, (name for name in tape.fired if name in tape.names)).names.items():
            node = tape.nodes[tape.names[name]]
            if not node.symbol:
                node.axes, node.symbol, node.formula, _ = about
            elif about.symbol not in node.symbol.split(" = "):
                node.symbol += f" = {about.symbol}"
        for name, symbol in getattr(self.model, "INPUTS", {}).items():
            if (name := f"given.{name}" if name in self.declared else name) in tape.names:
                tape.nodes[tape.names[name]].symbol = symbol
        for name, axes in getattr(self.model, "INPUT_AXES", {}).items():
            if name in tape.names:
                tape.nodes[tape.names[name]].axes = axes
        for name, axes in self.axes.items():
            if name in tape.names:
                tape.nodes[tape.names[name]].axes = axes
        for name, symbol in self.symbols.items():
            if name in tape.names:
                tape.nodes[tape.names[name]].symbol = stored(self.model, name, symbol)

    def arguments(self, tape: Tape) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs, known to the tape by the names of the parameters they are given for."""
        names = [n for n, p in self.takes.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        names += [f"input.{i}" for i in range(len(names), len(self.inputs))]
        bound = {**dict(zip(names, self.inputs, strict=False)), **self.keywords}
        # a name the model gives to a value or a weight of its own stays that one's
        own = {*self.declared, *self.symbols}
        bound = {f"given.{name}" if name in own else name: value for name, value in bound.items()}
        names = [f"given.{name}" if name in own else name for name in names]
        copies: dict[int, Tensor] = {}

        def leaf(name: str, value: Tensor) -> Tensor:
            # a copy, so that a model that writes into its input finds it as it was when it is run again
            copied = copies.setdefault(id(value), value.detach().clone())
            if name in self.edits:
                tape.leaf_names[id(copied)] = ([f"{name}:before"], "input")
                return tape.change(name, copied)
            tape.leaf_names.setdefault(id(copied), ([], "input"))[0].append(name)
            return copied

        ready = {name: mapped(value, name, leaf) for name, value in bound.items()}
        inputs = tuple(ready[n] for n, _ in zip(names, self.inputs, strict=False))
        return inputs, {n: ready[f"given.{n}" if f"given.{n}" in ready else n] for n in self.keywords}

    @contextmanager
    def taped(self, tape: Tape, lazy: bool, gradients: bool = False) -> Iterator[None]:
        """The tape on, opaque fast routes off, every module's path known; all as it was afterwards."""
        fast = torch.backends.mha.get_fastpath_enabled()
        with ExitStack() as stack:
            stack.enter_context(evaluating(getattr(self.model, "modules", list)()))
            torch.backends.mha.set_fastpath_enabled(False)
            stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
            if isinstance(self.model, nn.Module):
                for handle in self._hooks(tape, outermost_blocks(self.model) if lazy else {}):
                    stack.callback(handle.remove)
            stack.enter_context(torch.inference_mode(False))  # in it operations come whole
            stack.enter_context(torch.enable_grad() if gradients else torch.no_grad())
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if torch.cuda.is_available():
                stack.enter_context(whole_products())
            stack.enter_context(PlainLSTM())
            stack.enter_context(tape)
            yield

    def _hooks(self, tape: Tape, blocks: dict[str, nn.Module]) -> Iterator[Any]:
        paths: list[str] = []

        def enter(path: str, lazy: bool) -> Callable[..., Any]:
            def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
                paths.append(tape.path)
                tape.path = path
                if lazy and not tape.paused and not any(name.startswith(f"{path}.") for name in self.edits):
                    args, kwargs = tape.close_block(path, module, args, kwargs)
                return args, kwargs

            return hook

        def leave(path: str, lazy: bool) -> Callable[..., Any]:
            def hook(module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
                tape.path = paths.pop()
                if lazy and path in tape.blocks and tape.paused:
                    out = tape.leave_block(path, out)
                if path and not self.probed:
                    out = mapped(out, path, tape.change)
                    for name, tensor in tensors(out, path):
                        tape.name(tensor, name)
                return out

            return hook

        for path, module in self.model.named_modules():
            yield module.register_forward_pre_hook(enter(path, path in blocks), with_kwargs=True)
            yield module.register_forward_hook(leave(path, path in blocks), with_kwargs=True, always_call=False)

    def open_block(self, tape: Tape, path: str) -> None:
        """Run one block again, this time recording its inside."""
        module, args, kwargs = tape.blocks[path]
        while tape.opened and tape.bytes > BUDGET:
            tape.forget(next(iter(tape.opened)))
            tape.bytes = 0  # roughly, of what is open now
        begun = (len(tape.nodes), len(tape.alive))
        budget, tape.budget = tape.budget, None
        with self.taped(tape, lazy=False):
            # names outside the block stay; only its inside is new
            tape.path = path
            args, kwargs = mapped((args, kwargs), "", lambda _, tensor: tape.copied(tensor))
            out = module(*args, **kwargs)
        tape.budget = budget
        tape.block_opened(path, dict(enumerate(tensor for _, tensor in tensors(out, ""))), begun)
        self.explain(tape)


@contextmanager
def _kept_readout(model: Any, tape: Tape) -> Iterator[None]:
    """Keep what the readout of a model is given in a recorded pass."""
    before = getattr(model, "readout", None)
    if not (isinstance(model, nn.Module) and callable(before) and branches(model)):
        yield
        return
    takes = inspect.signature(before)

    def readout(*args: Any, **kwargs: Any) -> Any:
        tape.readout = dict(takes.bind(*args, **kwargs).arguments)
        # their nodes are made now, while they are as they are read
        mapped(tape.readout, "", lambda _, value: (tape.node_of(value), value)[1])
        earlier = set(tape.fired)
        out = before(*args, **kwargs)
        tape.read_out = [name for name in tape.fired if name not in earlier]
        return out

    model.readout = readout  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        del model.readout


def parameters_and_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Every one by each of its names."""
    return dict((*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)))


def outermost_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks of a model: the members of its outermost lists of modules of one type."""
    blocks: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{block}.") for block in blocks)
        alike = len({type(m) for m in module.children()}) == 1 and len(list(module.children())) > 1
        if not inside and isinstance(module, nn.ModuleList | nn.Sequential) and alike:
            blocks |= {f"{path}.{name}" if path else name: child for name, child in module.named_children()}
    return blocks
