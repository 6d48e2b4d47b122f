"""What `pencil cost` must know of a family besides its model: inputs, tokens, and formulas for activation memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import refuse
from ..models.config import BlockConfig
from .activations import Activations


def example_inputs(model: Any, batch: int, length: int | None = None) -> tuple[Tensor, ...]:
    """The model's example inputs, all their token sequences cut to `length`."""
    return tuple(x[:, :length] if length is not None and x.dtype == torch.long else x for x in model.example(batch))


def token_count(config: BlockConfig, length: int | None = None) -> int:
    """All tokens the model takes; one where it takes none, so that FLOPs per token are those of an input."""
    return config.sizes.get("T", 1)


def text_length(config: BlockConfig, length: int | None = None) -> int:
    """Tokens of a text: as many as given, otherwise the model's context."""
    return length or config.context


def cross_entropy(output: Tensor) -> Tensor:
    """A cross-entropy over the last axis, with class 0 as every target."""
    logits = output.float().flatten(0, -2)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))


def mean_square(output: Tensor) -> Tensor:
    """A mean squared error, with 0 as every target."""
    return output.float().square().mean()


@dataclass(frozen=True)
class CostProfile:
    """What is special to a family; parameters and FLOPs are not, since they are counted on the meta device."""

    inputs: Callable[[Any, int, int | None], tuple[Tensor, ...]] = example_inputs  # (model, batch, length)
    tokens: Callable[[Any, int | None], int] = token_count  # (config, length): of one sequence, through the blocks
    takes_length: bool = False  # text whose length may be chosen
    decodes: bool = False  # generates token by token: forward takes `cache` and `last`, and there is `new_cache`
    # (config, batch, length, bytes of an activation): what a train step holds; None where there are no formulas
    activations: Callable[[Any, int, int | None, int], Activations] | None = None
    loss: Callable[[Tensor], Tensor] = cross_entropy  # of the output, for a measured train step
    groups: Mapping[str, str] = field(default_factory=dict)  # module names to groups, over count.GROUPS
    parameter_formulas: Callable[[Any], dict[str, str]] = lambda config: {}  # by group, for display
    flop_formulas: Callable[[Any], dict[str, str]] = lambda config: {}  # of one token's forward pass

    def check_length(self, config: BlockConfig, length: int | None) -> None:
        """Refuse a length that the model cannot take."""
        if length is not None:
            tokens = self.tokens(config, None)
            refuse(
                (not self.takes_length, f"--context is for text: this model takes {tokens} tokens of an image"),
                (not 1 <= length <= config.context, f"--context must be from 1 to {config.context}, not {length}"),
            )


def on_meta(build: Callable[[Any], nn.Module], config: BlockConfig) -> Any:
    """The model without memory for its parameters."""
    with torch.device("meta"):
        return build(config)
