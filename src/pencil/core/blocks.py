"""Blocks, each written out: the residual trunk as visible lines."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from .attention import Attention
from .cache import LayerCache
from .probe import OFF, Off
from .span import Span


class Block(nn.Module):
    """The pre-norm block of GPT and ViT, handed its attention, its MLP and its norm as makers."""

    NAMES = {
        "attn_norm": ("B T D", "X̃", "Norm(X)"),
        "mid": ("B T D", "X′", "X + O"),
        "mlp_norm": ("B T D", "X̂", "Norm(X′)"),
        "post": ("B T D", "X", "X′ + M"),
    }

    def __init__(
        self,
        attention: Callable[[], Attention],
        mlp: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
        dropout: float = 0.0,
    ):
        super().__init__()
        self.attn_norm, self.attn = norm(), attention()
        self.mlp_norm, self.mlp = norm(), mlp()
        self.drop = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "B T D"], span: Span, cache: LayerCache | None = None, probe: Off = OFF
    ) -> Float[Tensor, "B T D"]:
        seen = probe("attn_norm", self.attn_norm(x))
        x = probe("mid", x + self.drop(self.attn(seen, span, cache=cache, probe=probe / "attn")))
        seen = probe("mlp_norm", self.mlp_norm(x))
        return probe("post", x + self.drop(self.mlp(seen, probe=probe / "mlp")))
