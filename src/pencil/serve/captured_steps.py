"""A tile's steps on CUDA with the choice of their tokens, each captured as one graph: nothing between them is Python.

A graph is captured for each number of keys and each mixture of kinds of rules; which rows have them is read on the
device. What goes to the device is copied from pinned memory, for which the host does not wait.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..inference.cuda_graph import Captured
from .prompt_reader import to_device
from .row_sampling import ALL, Choices, Kinds, RowRules
from .tile import Tile


class CapturedSteps:
    """The steps of one tile; `choose` gives the choices of rows by their logits, as `Engine._choose` does."""

    def __init__(self, tile: Tile, rules: RowRules, choose: Callable[..., tuple[Choices, Tensor]], most: int):
        self.tile, self.rules, self.choose = tile, rules, choose
        self.uniforms = torch.zeros(tile.rows, most, dtype=torch.float64, device=tile.device)
        self.numbers = torch.zeros(len(Choices._fields), tile.rows, most, dtype=torch.float64, device=tile.device)
        self.turn = torch.zeros(1, dtype=torch.long, device=tile.device)  # which of the steps is next
        self._steps: dict[tuple[int, Kinds], Captured] = {}
        self._firsts: dict[Kinds, Captured] = {}

    def run(self, count: int, longest: int, uniforms: np.ndarray) -> Float[Tensor, "numbers B steps"]:
        """Take so many steps; the numbers of their choices."""
        tile, kinds = self.tile, self.rules.any
        keys = tile.fix(longest)
        self.uniforms[:, :count].copy_(to_device(uniforms, tile.device))
        self.turn.zero_()
        step = self._steps.setdefault((keys, kinds), Captured(lambda: self._step(kinds)))
        for _ in range(count):
            step()
        return self.numbers[:, :, :count].clone()  # the next steps write over it

    def _step(self, kinds: Kinds) -> Tensor:
        uniforms = self.uniforms.index_select(1, self.turn)[:, 0]
        choices, _ = self.choose(self.tile.logits(), uniforms, ALL, kinds)
        self.numbers.index_copy_(2, self.turn, choices.stacked()[..., None])
        self.tile.advance(choices.tokens)
        return self.turn.add_(1)

    def first(self, logits: Float[Tensor, "V"], drawn: Sequence[float], place: int, position: int) -> Tensor:
        """The numbers of the choice of a row's first token, after which its steps begin at this position."""
        kinds = self.rules.kinds[place]
        choose = self._firsts.setdefault(kinds, Captured(lambda *given: self._first(kinds, *given)))
        where = to_device(np.array([place, position]), self.tile.device)
        return choose(logits[None], to_device(drawn, self.tile.device), where)

    def _first(self, kinds: Kinds, logits: Tensor, uniforms: Tensor, where: Tensor) -> Tensor:
        place, position = where[:1], where[1:]
        choices, _ = self.choose(logits, uniforms, place, kinds)
        self.tile.put_at(place, choices.tokens, position)
        return choices.stacked()
