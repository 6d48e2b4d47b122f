"""Muon where matrices are cut among processes: each process orthogonalises some of them whole, and hands back the rows.

An update needs whole matrices. Two messages are enough for all of them: the rows of each matrix go to the process that
works it, and the rows of its update come back. So the work is shared out, too, and the result is that of one process.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def owners(shapes: Sequence[torch.Size], size: int) -> list[int]:
    """The rank that works each matrix: the largest first, each to the rank that has the least so far."""
    load, found = [0] * size, [0] * len(shapes)
    for at in sorted(range(len(shapes)), key=lambda i: -_work(shapes[i])):
        found[at] = min(range(size), key=lambda rank: load[rank])
        load[found[at]] += _work(shapes[at])
    return found


def _work(shape: torch.Size) -> int:
    return shape.numel() * min(shape)


def share_out(
    pieces: Sequence[Tensor],
    shapes: Sequence[torch.Size],
    group: object,
    change: Callable[[list[int], list[Tensor]], None],
) -> list[Tensor]:
    """The rows of this process of every matrix after `change`, which changes whole matrices in place, by their numbers.

    `pieces` are its rows of each; `shapes` are those of the whole matrices.
    """
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)  # pyright: ignore[reportArgumentType]
    by_owner = [[i for i, owner in enumerate(owners(shapes, size)) if owner == one] for one in range(size)]
    mine, like = by_owner[rank], pieces[0]
    sent_sizes = [sum(pieces[i].numel() for i in numbers) for numbers in by_owner]
    received_sizes = [sum(_rows(shapes[i], source, size) * shapes[i][1] for i in mine) for source in range(size)]
    sent = torch.cat([pieces[i].reshape(-1) for numbers in by_owner for i in numbers])
    received = like.new_empty(sum(received_sizes))
    dist.all_to_all_single(received, sent, received_sizes, sent_sizes, group=group)  # pyright: ignore[reportArgumentType]
    matrices = [like.new_empty(shapes[i]) for i in mine]
    for piece, place in zip(_cut(received, mine, shapes, size), _places(matrices, size), strict=True):
        place.copy_(piece.view_as(place))
    change(mine, matrices)
    back = torch.cat([place.reshape(-1) for place in _places(matrices, size)] or [received])
    dist.all_to_all_single(sent, back, sent_sizes, received_sizes, group=group)  # pyright: ignore[reportArgumentType]
    order = [i for numbers in by_owner for i in numbers]
    found = dict(zip(order, sent.split([pieces[i].numel() for i in order]), strict=True))
    return [found[i].view_as(piece) for i, piece in enumerate(pieces)]


def _rows(shape: torch.Size, rank: int, size: int) -> int:
    """How many rows of a matrix a rank has: as FSDP cuts them."""
    each = -(-shape[0] // size)
    return max(0, min(each, shape[0] - rank * each))


def _cut(flat: Tensor, mine: Sequence[int], shapes: Sequence[torch.Size], size: int) -> list[Tensor]:
    """What came, by the rank it came from and the matrix."""
    return list(flat.split([_rows(shapes[i], rank, size) * shapes[i][1] for rank in range(size) for i in mine]))


def _places(matrices: Sequence[Tensor], size: int) -> list[Tensor]:
    """The rows of each rank in whole matrices, in the order in which they come and go."""
    cuts = [matrix.split([_rows(matrix.shape, rank, size) for rank in range(size)]) for matrix in matrices]
    return [cut[rank] for rank in range(size) for cut in cuts]
