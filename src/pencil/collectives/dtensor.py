"""What one process has of a tensor that is cut among several."""

from torch import Tensor


def to_local(tensor: Tensor) -> Tensor:
    """Its part, in the same memory; of any other tensor all of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # pyright: ignore
