"""A recorded function: the bits of the function itself, what it writes, and tensors in the place of others."""

import pytest
import torch

from pencil.inference.cpu_replay import Replayed


def step_of(seed):
    """A step with memory of its own: it writes to views of it, counts, and takes operations with several results."""
    state, count, weight = (
        torch.zeros(3, 5, 7),
        torch.zeros(3, dtype=torch.long),
        torch.arange(49.0).reshape(7, 7).sin(),
    )
    rows, layers = torch.arange(3)[:, None], state.unbind(1)  # views from before the recording
    weight += seed

    def step(x):
        half, rest = (x @ weight.mT).split([3, 4], -1)
        state[rows, count[:, None] % 5] = torch.cat((rest, half), -1)[:, None]
        count.add_(1)
        largest, at = state.max(1)
        layers[0].mul_(0.5).add_(at.float())
        return (largest.softmax(-1) @ weight).cumsum(-1).sort(-1).values

    return step, (state, count)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_recorded_function_gives_the_bits_of_the_function_and_writes_what_it_writes(compiled, monkeypatch):
    if not compiled:
        monkeypatch.delattr(torch.jit, "trace")
    programs = {}
    for seed in (0, 1):
        (plain, wanted), (recorded, found) = step_of(seed), step_of(seed)
        replayed = Replayed(recorded, programs)
        for turn in range(6):
            x = torch.randn(3, 7, generator=torch.Generator().manual_seed(turn))
            before = x.clone()
            assert torch.equal(replayed(x), plain(x))
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
            assert torch.equal(x, before)
    assert len(programs) == 1  # of both
