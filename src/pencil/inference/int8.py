"""int8 weights: each row of a matrix as whole numbers from −127 to 127 and one scale; activations stay as they are."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from ..config import UserError
from ..core.embed import Tokens
from ..models.build import check_finite

LARGEST = 127


def quantize(weight: Float[Tensor, "n k"]) -> tuple[Int8[Tensor, "n k"], Float[Tensor, "n"]]:
    """Rounded to nearest; the largest number of a row is 127 in size. A row of zeros has the scale 1."""
    weight = weight.detach().float()
    largest = weight.abs().amax(1)
    scale = torch.where(largest > 0, largest / LARGEST, 1.0)
    return (weight / scale[:, None]).round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


class _Rounded(nn.Module):
    """A matrix as int8 rows and their scales, which are buffers: the parameters of the model keep one dtype."""

    codes: Tensor
    scale: Tensor

    def _keep(self, weight: Tensor, dtype: torch.dtype) -> None:
        codes, scale = quantize(weight)
        self.dtype = dtype
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)

    @property
    def weight(self) -> Tensor:
        """The matrix that is multiplied by."""
        return (self.codes * self.scale[:, None]).to(self.dtype)

    def _product(self, x: Tensor) -> Tensor:
        """x weightᵀ: the scales after the product, so that compiled code never writes the whole matrix."""
        return (F.linear(x, self.codes.to(x.dtype)) * self.scale).to(x.dtype)


class Int8Linear(_Rounded):
    """A linear layer; its bias is not rounded."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype):
        super().__init__()
        self._keep(linear.weight, dtype)
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias

    def forward(self, x: Float[Tensor, "... k"]) -> Float[Tensor, "... n"]:
        z = self._product(x)
        return z if self.bias is None else z + self.bias


class Int8Tokens(_Rounded, Tokens):
    """A token table that is the output matrix as well."""

    def __init__(self, tokens: Tokens, dtype: torch.dtype):
        nn.Module.__init__(self)
        self._keep(tokens.weight, dtype)

    def forward(self, tokens: Int[Tensor, "B *T"]) -> Float[Tensor, "B *T D"]:
        return (F.embedding(tokens, self.codes) * self.scale[tokens][..., None]).to(self.dtype)

    def logits(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        return self._product(x)


def to_int8(model: Any, dtype: torch.dtype) -> Any:
    """The model with every linear layer rounded, in place, and the rest in this dtype.

    A token table is rounded where it is the output matrix too, as in GPT-2: there every token's step reads all of it.
    """
    check_finite(model.named_parameters())  # rounded, NaN would be some whole number
    words = hasattr(type(model), "output_matrix") and getattr(model.config, "output", "words") == "words"
    tied = model.output_matrix[0] if words else None
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, Int8Linear(child, dtype))
            elif type(child) is Tokens and child.weight is tied:
                setattr(parent, name, Int8Tokens(child, dtype))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def is_int8(model: nn.Module) -> bool:
    return any(isinstance(part, _Rounded) for part in model.modules())


def refuse_int8(model: nn.Module, what: str) -> None:
    """Refuse what needs the weights as they were: `what` cannot be done with an int8 model."""
    if is_int8(model):
        raise UserError(f"an int8 model cannot be {what}: load the run in another dtype")
