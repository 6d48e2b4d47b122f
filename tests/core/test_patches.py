"""Cutting and joining: the seeds' own values, the exact inverse, and Conv2d."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from conftest import unchecked
from pencil.core import patches
from pencil.core.embed import Patches
from pencil.core.patches import cut, fold, glue, grid_positions, join, swap, unfold, unglue, unswap


def picture_of(entry):
    return torch.tensor(entry["inputs"]["image"])[None, None], (entry["inputs"]["patch"],) * 2


@pytest.mark.parametrize("seed", ["000-kata1-patchify", "004-patchify"])
def test_three_moves_as_on_the_page(golden, seed):
    picture, patch = picture_of(golden[seed])
    expected = golden[seed]["expected"]
    folded = fold(picture, patch)
    swapped = swap(folded)
    if "fold" in expected:
        assert folded[0, 0].tolist() == expected["fold"]
        assert swapped[0, :, :, 0].tolist() == expected["swap"]
        assert picture.flatten().tolist() == expected["flat"]
    assert glue(swapped, 4)[0].tolist() == expected["patches"]
    assert cut(picture, patch)[0].tolist() == expected["patches"]


def test_one_pixel_is_traced_through_the_three_moves(golden):
    entry = golden["000-kata1-yourturn-trace-dot7"]
    (picture, patch), expected = picture_of(entry), entry["expected"]
    row, column = entry["inputs"]["row"], entry["inputs"]["col"]
    places = torch.zeros_like(picture, dtype=torch.bool)
    places[0, 0, row, column] = True
    folded = fold(places, patch).nonzero()[0].tolist()
    assert folded == [0, 0, expected["floor"], expected["desk_row"], expected["wing"], expected["desk"]]
    floor, wing, desk_row, desk = expected["swap_order"]
    assert swap(fold(places, patch)).nonzero()[0].tolist() == [0, floor, wing, 0, desk_row, desk]
    assert cut(places, patch).nonzero()[0].tolist() == [0, expected["chip"], expected["spot"]]
    flat = cut(picture, patch)
    assert flat[0, expected["chip"]].tolist() == expected["chip_content"]
    assert flat[0, expected["chip"], expected["spot"]] == expected["value"]


def test_without_the_swap_a_patch_is_no_square(golden):
    """The mistake of the page: the flat line read straight, four pixels a patch."""
    picture, patch = picture_of(golden["000-kata1-patchify"])
    wrong = cut(picture, patch, swap=lambda folded: folded)
    assert (
        wrong[0].tolist()
        == picture.flatten().reshape(4, 4).tolist()
        == golden["000-kata1-patchify"]["expected"]["no_swap_strips"]
    )
    broken = Patches(1, patch, 5, swap=lambda folded: folded)
    whole = Patches(1, patch, 5)
    whole.load_state_dict(broken.state_dict())
    assert not torch.allclose(broken(picture), whole(picture))


def test_the_numeric_instance_of_the_notation(golden):
    entry = golden["001-patch-embed-numeric"]
    image, expected = torch.tensor(entry["inputs"]["image"]), entry["expected"]
    embed = Patches(2, (2, 2), 3)
    embed.proj.weight.data = torch.tensor(entry["inputs"]["W_patch"]).T
    embed.proj.bias.data = torch.tensor(entry["inputs"]["b_patch"])
    assert cut(image, (2, 2)).tolist() == expected["X_patch"]
    torch.testing.assert_close(embed(image), torch.tensor(expected["I"]), atol=1e-6, rtol=0)


@given(data=st.data(), axes=st.integers(1, 3), channels=st.integers(1, 5), batch=st.integers(1, 3))
@unchecked()
def test_joining_undoes_cutting_and_each_move_undoes_itself(data, axes, channels, batch):
    patch = data.draw(st.lists(st.integers(1, 5), min_size=axes, max_size=axes))
    grid = data.draw(st.lists(st.integers(1, 4), min_size=axes, max_size=axes))
    sides = [n * p for n, p in zip(grid, patch, strict=True)]
    picture = torch.arange(batch * channels * torch.tensor(sides).prod().item()).reshape(batch, channels, *sides)
    folded = fold(picture, patch)
    swapped = swap(folded)
    flat = cut(picture, patch)
    assert torch.equal(unfold(folded), picture)
    assert torch.equal(unswap(swapped), folded)
    assert torch.equal(unglue(flat, grid, patch), swapped)
    assert torch.equal(join(flat, sides, patch), picture)
    assert flat.shape == (batch, len(grid_positions(grid)), channels * torch.tensor(patch).prod().item())


@given(data=st.data(), channels=st.integers(1, 4))
@unchecked()
def test_each_patch_is_the_square_at_its_position(data, channels):
    """Against plain slicing."""
    (ph, pw), (rows, columns) = (data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4))) for _ in "pg")
    picture = torch.randn(2, channels, ph * rows, pw * columns)
    flat = cut(picture, (ph, pw))
    for values, (row, column) in zip(flat.unbind(1), grid_positions((rows, columns)).tolist(), strict=True):
        square = picture[:, :, row * ph : (row + 1) * ph, column * pw : (column + 1) * pw]
        assert torch.equal(values, square.flatten(1))


@pytest.mark.parametrize(
    "axes, sides, patch", [(2, (15, 28), (5, 7)), (2, (12, 12), (4, 4)), (3, (6, 10, 21), (2, 5, 7))]
)
def test_patches_equal_a_convolution_with_the_same_weights(axes, sides, patch):
    torch.manual_seed(0)
    embed = Patches(3, patch, 11)
    convolution = {2: torch.nn.Conv2d, 3: torch.nn.Conv3d}[axes](3, 11, patch, stride=patch)
    convolution.weight.data = embed.proj.weight.data.unflatten(1, (3, *patch))
    convolution.bias.data = embed.proj.bias.data
    picture = torch.randn(2, 3, *sides)
    # the convolution's channels come before its positions
    torch.testing.assert_close(embed(picture), convolution(picture).flatten(2).transpose(1, 2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sides, patch", [((9, 8), (4, 4)), ((8, 8), (4,)), ((8,), (4, 4))])
def test_a_patch_that_does_not_fit_is_refused(sides, patch):
    with pytest.raises(ValueError, match="cannot be cut into patches"):
        fold(torch.zeros(1, 1, *sides), patch)


def test_wrong_channels_are_refused_by_name():
    with pytest.raises(ValueError, match="have 3 channels, and the model takes 2"):
        Patches(2, (2, 2), 5)(torch.zeros(1, 3, 4, 4))


def test_every_move_is_undone_by_its_own_name():
    assert {"fold", "swap", "glue", "unfold", "unswap", "unglue"} <= set(vars(patches))
