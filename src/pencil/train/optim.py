"""Optimizers: Muon for the matrices inside blocks, AdamW for the rest; or AdamW alone.

Muon is our own, in `train/optim.py`: torch's is bfloat16 everywhere, which is slow on a CPU without bfloat16 units, and
works one matrix at a time. Ours stacks matrices of one shape, runs in float32 off CUDA, and takes the joined
query–key–value matrix apart into the three it is made of.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.attention import Attention
from .parallel.dtensor_files import to_local
from .settings import TrainConfig

Watch = Callable[[list[Tensor], str, Tensor], object]


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by Newton–Schulz: each matrix moves by a step of even strength in every direction.

    Matrices of one shape are worked together. The products run in bfloat16 on CUDA and in float32 elsewhere: torch's
    own Muon is bfloat16 everywhere, which a CPU without bfloat16 units pays for thirtyfold. `parts` cuts a joined
    matrix (query, key, value) into the matrices it is made of. As with torch's fused optimizers, a tensor `found_inf`
    of 1 leaves weights and momentum as they are.
    """

    found_inf: Tensor | None = None
    coefficients = 3.4445, -4.7750, 2.0315  # a, b and c of Newton–Schulz, by which small singular values grow fastest
    watch: "Watch | None" = None  # called with each stack of matrices on its way, and the weights they belong to

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 0.02,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        parts: dict[Tensor, list[int]] | None = None,
    ):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))
        self.parts = parts or {}

    @torch.no_grad()
    def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        applied = 1.0 if self.found_inf is None else 1 - self.found_inf
        for group in self.param_groups:
            if any(hasattr(p, "device_mesh") for p in group["params"]):
                self._step_sharded(group, applied)
                continue
            same_shape: dict[tuple, list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                sizes = self.parts.get(p, [p.shape[0]])
                for part in zip(*(t.split(sizes) for t in (p, p.grad, state["momentum"])), strict=True):
                    same_shape[tuple(part[0].shape)].append(part)
            for (rows, columns), parts in same_shape.items():
                weights, gradients, momenta = (list(tensors) for tensors in zip(*parts, strict=True))
                gradient = torch.stack(gradients)
                if self.found_inf is not None:
                    # what is not finite must not meet the momentum, not even times zero
                    gradient = torch.where(self.found_inf > 0, 0.0, gradient)
                share = (1 - group["momentum"]) * applied
                torch._foreach_mul_(momenta, 1 - share)  # pyright: ignore
                torch._foreach_add_(momenta, list(gradient * share))  # pyright: ignore
                watch = _unwatched if self.watch is None else partial(self.watch, weights)
                update = orthogonalise(gradient.lerp(torch.stack(momenta), group["momentum"]), watch=watch)
                rate = group["lr"] * max(1, rows / columns) ** 0.5 * applied
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"] * applied)  # pyright: ignore
                torch._foreach_sub_(weights, list(update * rate))  # pyright: ignore

    def _step_sharded(self, group: dict[str, Any], applied: Tensor | float) -> None:
        """The same step where each process has some rows of every matrix."""
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        weights, gradients, momenta = [], [], []
        for p in parameters:
            if not self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
            gradient = to_local(p.grad)
            gradients.append(gradient if self.found_inf is None else torch.where(self.found_inf > 0, 0.0, gradient))
            weights.append(to_local(p))
            momenta.append(to_local(self.state[p]["momentum"]))
        share = (1 - group["momentum"]) * applied
        torch._foreach_mul_(momenta, 1 - share)  # pyright: ignore
        torch._foreach_add_(momenta, torch._foreach_mul(gradients, share))  # pyright: ignore
        moved = [g.lerp(m, group["momentum"]) for g, m in zip(gradients, momenta, strict=True)]

        def change(numbers: list[int], matrices: list[Tensor]) -> None:
            same_shape: dict[tuple, list[Tensor]] = defaultdict(list)
            for number, matrix in zip(numbers, matrices, strict=True):
                for part in matrix.split(self.parts.get(parameters[number], [len(matrix)])):
                    same_shape[tuple(part.shape)].append(part)
            for (rows, columns), parts in same_shape.items():
                rate = group["lr"] * max(1, rows / columns) ** 0.5 * applied
                torch._foreach_copy_(parts, list(orthogonalise(torch.stack(parts)) * rate))  # pyright: ignore

        shapes = [p.shape for p in parameters]
        updates = update_whole_matrices(moved, shapes, parameters[0].device_mesh.get_group(), change)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"] * applied)  # pyright: ignore
        torch._foreach_sub_(weights, updates)  # pyright: ignore


def _unwatched(name: str, value: Tensor) -> None:
    pass


def orthogonalise(
    matrices: Float[Tensor, "n r c"], steps: int = 5, watch: Callable[[str, Tensor], object] = _unwatched
) -> Float[Tensor, "n r c"]:
    """Push every singular value of each matrix towards one: five steps of the quintic Newton–Schulz iteration.

    With A = X·Xᵀ and B = b·A + c·A², the next X is a·X + B·X.
    """
    a, b, c = Muon.coefficients
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    norm = x.norm(dim=(-2, -1), keepdim=True)
    x = x / norm.clamp(min=1e-7)
    for name, value in (("G", matrices), ("norm", norm), ("X0", x)):
        watch(name, value)
    if not x.is_cuda:
        x = x.contiguous()
    for i in range(1, steps + 1):
        # a CPU multiplies by a transposed view at half the speed of a copy
        gram = x @ (x.mT if x.is_cuda else x.mT.contiguous())
        by = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, by, x, beta=a)
        for name, value in (("A", gram), ("B", by), ("X", x)):
            watch(f"{name}{i}", value)
    return (x.mT if tall else x).to(matrices.dtype)


def matrix_owners(shapes: Sequence[torch.Size], size: int) -> list[int]:
    """The rank that orthogonalises each matrix: the largest first, each to the rank that has the least work so far."""
    load, owners = [0] * size, [0] * len(shapes)
    for at in sorted(range(len(shapes)), key=lambda i: -_work(shapes[i])):
        owners[at] = min(range(size), key=lambda rank: load[rank])
        load[owners[at]] += _work(shapes[at])
    return owners


def _work(shape: torch.Size) -> int:
    return shape.numel() * min(shape)


def update_whole_matrices(
    pieces: Sequence[Tensor],
    shapes: Sequence[torch.Size],
    group: object,
    change: Callable[[list[int], list[Tensor]], None],
) -> list[Tensor]:
    """Apply `change` to whole matrices that are cut among processes; returns this process's rows of the results.

    An update needs whole matrices. Two messages are enough for all of them: the rows of each matrix go to the process
    that orthogonalises it, and the rows of its update come back. So the work is divided, too, and the result is that of
    one process. `pieces` are this process's rows of each matrix, `shapes` those of the whole matrices; `change` gets
    the numbers of some matrices, and changes these in place.
    """
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)  # pyright: ignore[reportArgumentType]
    by_owner = [[i for i, owner in enumerate(matrix_owners(shapes, size)) if owner == r] for r in range(size)]
    own, like = by_owner[rank], pieces[0]
    sent_sizes = [sum(pieces[i].numel() for i in numbers) for numbers in by_owner]
    # the rows that come from each rank, by the matrix
    counts = [[_row_count(shapes[i], source, size) * shapes[i][1] for i in own] for source in range(size)]
    received_sizes = list(map(sum, counts))
    sent = torch.cat([pieces[i].reshape(-1) for numbers in by_owner for i in numbers])
    received = like.new_empty(sum(received_sizes))
    dist.all_to_all_single(received, sent, received_sizes, sent_sizes, group=group)  # pyright: ignore[reportArgumentType]
    matrices = [like.new_empty(shapes[i]) for i in own]
    parts = received.split([count for from_rank in counts for count in from_rank])
    for piece, block in zip(parts, _row_blocks(matrices, size), strict=True):
        block.copy_(piece.view_as(block))
    change(own, matrices)
    back = torch.cat([block.reshape(-1) for block in _row_blocks(matrices, size)] or [received])
    dist.all_to_all_single(sent, back, sent_sizes, received_sizes, group=group)  # pyright: ignore[reportArgumentType]
    order = [i for numbers in by_owner for i in numbers]
    rows = dict(zip(order, sent.split([pieces[i].numel() for i in order]), strict=True))
    return [rows[i].view_as(piece) for i, piece in enumerate(pieces)]


def _row_count(shape: torch.Size, rank: int, size: int) -> int:
    """How many rows of a matrix a rank has: as FSDP cuts them."""
    each = -(-shape[0] // size)
    return max(0, min(each, shape[0] - rank * each))


def _row_blocks(matrices: Sequence[Tensor], size: int) -> list[Tensor]:
    """The rows of each rank in whole matrices, in the order in which they come and go."""
    cuts = [matrix.split([_row_count(matrix.shape, rank, size) for rank in range(size)]) for matrix in matrices]
    return [cut[rank] for rank in range(size) for cut in cuts]


def make_optimizers(model: nn.Module, config: TrainConfig) -> dict[str, torch.optim.Optimizer]:
    """The optimizers by name, of the parameters that are not frozen; decay falls on matrices only."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    inside = (
        {n: p for n, p in named.items() if p.ndim == 2 and ".blocks." in f".{n}"} if config.optimizer == "muon" else {}
    )
    rest = [p for n, p in named.items() if n not in inside]
    decayed, plain = [p for p in rest if p.ndim >= 2], [p for p in rest if p.ndim < 2]
    device = next(iter(named.values())).device.type
    groups = [dict(params=decayed, weight_decay=config.weight_decay), dict(params=plain, weight_decay=0.0)]
    optimizers: dict[str, torch.optim.Optimizer] = {}
    if rest:
        optimizers["adamw"] = torch.optim.AdamW(
            [g for g in groups if g["params"]],
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=device in ("cuda", "cpu", "mps"),
        )
    if inside:
        joined = {m.qkv.weight: m.sizes for m in model.modules() if isinstance(m, Attention)}
        optimizers["muon"] = Muon(inside.values(), config.muon_lr, config.weight_decay, parts=joined)
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def step_unless(optimizer: torch.optim.Optimizer, left_out: Tensor) -> None:
    """Step, unless the tensor is 1; decided on the device where the optimizer can."""
    if isinstance(optimizer, Muon) or left_out.device.type in ("cpu", "cuda"):
        optimizer.found_inf = left_out  # pyright: ignore[reportAttributeAccessIssue]  # torch's fused optimizers read it
        optimizer.step()
    elif not left_out.item():
        optimizer.step()


def state_tensors(model: nn.Module, optimizers: dict[str, torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Every tensor the optimizers remember, under the name of the parameter it belongs to."""
    names: dict[Tensor, str] = {p: n for n, p in model.named_parameters()}
    return {
        f"optim.{kind}.{names[p]}.{key}": value
        for kind, optimizer in optimizers.items()
        for p, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def load_state_tensors(
    model: nn.Module, optimizers: dict[str, torch.optim.Optimizer], tensors: dict[str, Tensor]
) -> None:
    """The inverse of `state_tensors`; what belongs to a parameter that is frozen now is left out."""
    named = dict(model.named_parameters())
    for full, value in tensors.items():
        kind, _, rest = full.removeprefix("optim.").partition(".")
        name, _, key = rest.rpartition(".")
        parameter = named[name]
        if not parameter.requires_grad:
            continue
        # AdamW counts its steps on the device only when fused; it keeps them as float32 scalars either way
        optimizers[kind].state[parameter][key] = value.to(parameter.device)
