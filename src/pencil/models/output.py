"""The output of a model: the tokens whose logits it computes, and errors where weights or output are not finite."""

from collections.abc import Iterable
from typing import NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..config import UserError

# all tokens (False), the last one (True), or one of each row, by its place in the call
Last = bool | Int[Tensor, "B"]


def pick_tokens(x: Float[Tensor, "B T D"], last: Last) -> Float[Tensor, "B t D"]:
    """The states of the tokens that `last` chooses."""
    if isinstance(last, Tensor):
        return x[torch.arange(len(x), device=x.device), last][:, None]
    return x[:, -1:] if last else x


def check_finite(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse weights with NaN or infinity, by the name of the first."""
    for name, tensor in tensors:
        if tensor.is_floating_point() and tensor.numel() and not all(one.isfinite() for one in tensor.aminmax()):
            raise UserError(
                f"the weights are not finite: {name} holds NaN or infinity, and all that is computed from it would, "
                "too; import or train the model again"
            )


def refuse_output(model: nn.Module, what: str) -> NoReturn:
    """Say why an output is not finite: the weights are not, or they are and something in between is not."""
    check_finite(model.named_parameters())
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    raise UserError(
        f"{what} of the model are not finite, though its weights are: a number exceeds what {dtype} can hold"
        + ("; --dtype float32 holds larger ones" if dtype in ("float16", "bfloat16") else "")
    )
