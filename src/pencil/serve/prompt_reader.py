"""Prompts on their way into a tile: read in pieces at fixed multiples from token 0, in a cache beside that of the tile.

A reader has one row on a CPU, and for models that read a picture or a source. On CUDA it has several: a piece of one
prompt takes a GPU as long as pieces of several, which are read at once. Their shape never changes: rows without a
prompt are padding, each piece is padded to the longest, and the keys are all slots of the cache. With one row a piece
is padded to a length that follows from its own length alone. So what a prompt becomes never depends on other prompts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.cache import Cache
from ..core.masks import NOWHERE
from ..core.span import Span
from ..inference.decode_step import bucket_of

SMALLEST_PIECE = 8  # tokens that a shorter last piece of a prompt is padded to, in a reader of one row

Recorded = Callable[..., Tensor]


def to_device(values: Sequence[float] | np.ndarray, device: torch.device) -> Tensor:
    """Numbers on a device, in double precision or as integers; on CUDA the host goes on at once."""
    tensor = torch.from_numpy(np.asarray(values))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class PromptReader:
    """Reads prompts for one tile; `recorded` makes of a function one that is captured or replayed."""

    def __init__(
        self, model: Any, rows: int, room: int, piece: int, recorded: Callable[[Callable[..., Tensor]], Recorded]
    ):
        self.model, self.rows, self.piece = model, rows, piece
        self.before = int(getattr(model.config, "before", 0))  # tokens of a picture, before each text
        self.cache: Cache = model.new_cache(rows, room)
        self.device = self.cache.store.device
        self._filled = [0] * rows  # slots of each row
        self._recorded = recorded
        self._reads: dict[tuple[int, int | None], Recorded] = {}  # by padded length and number of keys
        self._places = torch.arange(rows, device=self.device)

    def begin(self, row: int = 0) -> None:
        """Forget the prompt that was read there last."""
        self._filled[row] = 0
        if self.rows == 1:
            self.cache.reset()
        else:
            self.cache.empty(self._places[row : row + 1])

    def restore(self, kept: Float[Tensor, "2 layers g P d"], row: int = 0) -> None:
        """Keys and values of the prompt's next tokens, as if they had been computed here."""
        first, count, cache = self._filled[row], kept.shape[-2], self.cache
        index = torch.arange(first, first + count, device=self.device)
        cache.store[:, :, row, :, first : first + count] = kept
        cache.index[row, index], cache.coords[row, index, 0] = index, index.to(cache.coords.dtype)
        cache.used[row] += count
        self._fill(row, first + count)

    def _fill(self, row: int, filled: int) -> None:
        self._filled[row] = filled
        if self.rows == 1:
            self.cache.filled, self.cache.even = filled, False

    def read(self, row: int = 0) -> int:
        """How many tokens of the prompt were read."""
        return max(0, self._filled[row] - self.before)

    @torch.no_grad()
    def prefill(
        self, pieces: Mapping[int, Sequence[int]], given: Mapping[str, Any] | None = None
    ) -> Float[Tensor, "B V"]:
        """Read the next pieces of the prompts in these rows; the logits after the last token of each.

        `given` is the picture or the source of a prompt that begins, which a reader of one row reads.
        """
        cache, lengths = self.cache, [self.piece] * self.rows
        if self.rows == 1:
            filled, count = self._filled[0], len(pieces[0])
            padded = self.piece if count == self.piece else max(SMALLEST_PIECE, 1 << (count - 1).bit_length())
            room = cache.length - filled - (0 if filled else self.before)
            lengths = [max(count, min(padded, self.piece, room))]
        asked = np.zeros((2, self.rows, max(lengths) + 1), np.int64)
        asked[1] = NOWHERE
        ends = {}
        for row, tokens in pieces.items():
            first, count = self.read(row), len(tokens)
            asked[0, row, :count], asked[0, row, -1] = tokens, count - 1
            asked[1, row, :count] = range(first, first + count)
            ends[row] = self.before + first + count
        logits = self._logits(to_device(asked, self.device), given or {}, self.read() if self.rows == 1 else 0)
        for row, filled in ends.items():
            self._fill(row, filled)  # padding takes no slot, and a replay runs no Python
        return logits

    def _logits(self, asked: Int[Tensor, "2 B T"], given: Mapping[str, Any], first: int) -> Float[Tensor, "B V"]:
        cache, padded = self.cache, asked.shape[-1] - 1
        cache.even = False
        # the keys of a source have addresses of their own
        if given or cache.memory is not None or (first and not asked.is_cuda):
            return self._read(asked, **given)
        if self.rows > 1:
            keys = cache.length
        else:
            keys = bucket_of(self.before + first + padded, cache.length) if first else None
        if cache.bucket != keys:
            cache.fix(keys)
        if (padded, keys) not in self._reads:
            self._reads[padded, keys] = self._recorded(self._read)
        return self._reads[padded, keys](asked)

    def _read(self, asked: Int[Tensor, "2 B T"], **given: Any) -> Float[Tensor, "B V"]:
        """Of tokens and where they are; beside them which is the last."""
        (ids, index), last = asked[..., :-1], asked[0, :, -1]
        return self.model(ids, span=Span.at(index), cache=self.cache, last=last, **given)[:, -1]

    def kept(self, first: int, last: int, row: int = 0) -> Float[Tensor, "2 layers g P d"]:
        """Keys and values of these tokens of the prompt."""
        return self.cache.store[:, :, row, :, first:last]

    def filled(self, row: int = 0) -> int:
        """How many slots of a row are filled: the tokens that were read, and those of a picture before them."""
        return self._filled[row]
