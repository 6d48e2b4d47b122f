"""Whether the KV cache of a generation fits into memory, before it is allocated."""

from typing import Any

from ..config import UserError
from ..device import free_memory


def check_cache(model: Any, batch: int, length: int, spare: int = 0) -> None:
    """Refuse a cache that does not fit, and say what would; `spare` bytes in use will be free by then."""
    one = model.new_cache(1, 1)
    slot, before = one.nbytes // one.length, one.length - 1  # an image is before the text
    device = one.store.device
    row, free = (before + length + 1) * slot, free_memory(device) + spare
    if batch * row <= free:
        return
    rows, tokens = free // row, free // (batch * slot) - before - 1
    fits = [f"{rows:,} such sequence{'s' * (rows > 1)}"] * (rows > 0)
    fits += [f"{batch:,} of {tokens:,} tokens"] * (tokens > 0 and batch > 1)
    fits += [f"{tokens:,} tokens"] * (tokens > 0 and batch == 1)
    place = f"{free / 1e9:,.3g} GB are free on the GPU" if device.type == "cuda" else f"there are {free / 1e9:,.3g} GB"
    raise UserError(
        f"the KV cache of {batch:,} sequence{'s' * (batch > 1)} of {length:,} tokens needs {batch * row / 1e9:,.3g} GB "
        f"and {place}; " + (f"{' or '.join(fits)} would fit" if fits else "no cache of this model fits")
    )
