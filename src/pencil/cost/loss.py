"""Memory of a loss over a vocabulary: the plain one, or that fused with the output matrix, as training chooses."""

from typing import NamedTuple

from .activations import FULL

# as train/losses/vocabulary.py and train/losses/fused.py have them; a test compares
LARGE, CHUNK, ALIGNED = 1 << 28, 8192, 64


class LossMemory(NamedTuple):
    """Bytes on top of what the model saves: kept for the backward pass, and at the most forwards and backwards."""

    saved: int
    forward: int
    backward: int
    fused: bool = False


def loss_memory(logits: int, vocab: int, width: int, half: int, cuda: bool) -> LossMemory:
    """Of so many logits; `half` is the bytes of an activation, 4 or 2."""
    if not cuda or logits < LARGE:
        # backwards: log-probabilities, their gradient and the logits' gradient
        return LossMemory(FULL * logits, ((half if half < FULL else 0) + 2 * FULL) * logits, 3 * FULL * logits)
    tokens, rows = logits // vocab, -(-vocab // ALIGNED) * ALIGNED
    chunk = -(-tokens // -(-tokens // CHUNK))
    # the gradients are computed forwards, that of the matrix in float32
    by_x, by_matrix = half * tokens * width, FULL * rows * width
    copy = half * rows * width if half < FULL or rows > vocab else 0
    product = by_matrix if half < FULL else 0  # of a chunk, before it is added
    scaled = (2 if half < FULL else 1) * FULL * tokens * width
    forward = by_x + by_matrix + copy + product + half * chunk * rows
    return LossMemory(by_x + by_matrix, forward, by_x + by_matrix + scaled, fused=True)
