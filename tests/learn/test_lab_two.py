"""The removal lab's second half: every claim runs at a tiny size, and every removal really removes."""

import math
import re
import time
import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pencil.core.layers import LayerNorm
from pencil.core.masks import causal, full
from pencil.core.probe import OFF, Probe
from pencil.core.span import Span
from pencil.learn.lab import claims
from pencil.learn.lab import claims_attention as attention
from pencil.learn.lab import claims_blocks as blocks
from pencil.learn.lab import claims_images as images
from pencil.learn.lab import claims_positions as order
from pencil.learn.lab.training import Blocks, RecallModel, exact_match, generator, recall_batch
from pencil.learn.lab.unet import UNet

NAMES = "heads heads-cost qkv ffn switch swap batchnorm ada-zero unet rnn-time rnn-gradient rnn-recall ffn-facts cross-attention dropout label-smoothing averaging".split()
DOCS = Path(__file__).parents[2] / "docs"
MINE = {name: claims()[name] for name in NAMES}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """As in the processes of the lab: several threads of a small model only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_they_are_listed():
    assert MINE.keys() <= claims().keys()


@pytest.mark.parametrize("name", MINE)
def test_each_arm_gives_what_is_predicted_and_drawn(name):
    claim = MINE[name]
    for arm in claim.arms:
        found = claim.measure(arm, 3, claim.tiny)
        for prediction in claim.predictions:
            assert {prediction.more, prediction.less} <= {*claim.arms, ""}
            assert math.isfinite(found[prediction.metric])
        for curve in claim.curves:
            assert found[curve.name]
            assert np.isfinite(found[curve.name]).all()
        assert {curve.name for curve in claim.curves} == {key for key, held in found.items() if isinstance(held, list)}


@pytest.mark.parametrize("name", [name for name in MINE if not MINE[name].alone])
def test_the_same_seed_gives_the_same_numbers(name):
    claim = MINE[name]
    arm = claim.arms[-1]
    torch.manual_seed(11)
    first = claim.measure(arm, 5, claim.tiny)
    torch.manual_seed(13)
    assert claim.measure(arm, 5, claim.tiny) == first


# cards


def test_a_query_names_cards_that_are_shown():
    batch = recall_batch(generator(0), rows=17, names=7, values=5, shown=3, queries=2)
    for names, values, queries, answers in zip(*(part.tolist() for part in batch), strict=True):
        assert (len(set(names)), len(set(queries))) == (3, 2)
        held = dict(zip(names, values, strict=True))
        assert [held[name] for name in queries] == answers


def test_all_right_means_every_answer():
    batch = recall_batch(generator(1), rows=19, names=5, values=3, shown=5, queries=2)
    model = RecallModel(5, 3, 2, 4, Blocks(lambda: torch.nn.Identity(), 0, torch.nn.Identity()))
    model.forward = lambda batch: torch.nn.functional.one_hot(batch.answers, 3).float()
    assert exact_match(model, batch) == 1.0
    # the first answer always right, the second always wrong
    model.forward = lambda batch: torch.nn.functional.one_hot((batch.answers + torch.tensor([0, 1])) % 3, 3).float()
    assert exact_match(model, batch) == 0.0


def test_a_mixture_of_two_cards_does_not_show_whose_value_is_whose():
    """Why the task needs two heads: two names with their values exchanged have the same sum."""
    model = RecallModel(5, 3, 2, 8, torch.nn.Identity())
    mixed = model.names(torch.tensor([0, 1])) + model.values(torch.tensor([2, 0]))
    other = model.names(torch.tensor([0, 1])) + model.values(torch.tensor([0, 2]))
    torch.testing.assert_close(mixed.sum(0), other.sum(0))


# heads


def test_one_head_and_four_learn_as_many_numbers():
    assert parameters(attention.make_blocks(12, 1)) == parameters(attention.make_blocks(12, 4))
    assert attention.make_blocks(12, 1).blocks[0].attn.heads == 1


def test_the_cost_formula_is_what_torch_counts():
    width, heads, n = 6, 3, 5
    run = attention.attention_pass(width, heads, n, 0)
    with FlopCounterMode(display=False) as counter:
        run(Probe("pattern"))
    # queries, keys, values and output; scores and sums; each twice again backward
    assert counter.get_total_flops() == 3 * 2 * (4 * n * width**2 + 2 * n**2 * width)
    run(OFF)


def test_the_ratio_is_of_the_first_to_the_second(monkeypatch):
    clock = iter([0, 7, 7, 8, 10, 19, 20, 23, 30, 36, 40, 42])  # a first that does not count, 9 against 3, 6 against 2
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert attention.time_ratio(lambda: None, lambda: None, 2) == 3


# one vector


def scores_of(model, seed):
    names, ahead, _ = attention.ring_batch(generator(seed), 2, 5)
    x = model.body.blocks[0].attn_norm(model.names(names) + model.points(ahead))
    probe = Probe("scores")
    model.body.blocks[0].attn(x, Span.whole(5).under(full), probe=probe)
    return probe.values["scores"]


def test_one_vector_gives_symmetric_scores():
    size = MINE["qkv"].tiny
    tied = scores_of(attention.pointer_model("one vector", 0, size), 7)
    torch.testing.assert_close(tied, tied.mT)
    free = scores_of(attention.pointer_model("three vectors", 0, size), 7)
    assert (free - free.mT).abs().max() > 1e-2


def test_one_vector_learns_as_many_numbers():
    size = MINE["qkv"].quick
    three, one = (parameters(attention.pointer_model(arm, 0, size)) for arm in ("three vectors", "one vector"))
    assert one == pytest.approx(three, rel=0.01)


def test_a_ring_points_on_and_on():
    names, ahead, answers = attention.ring_batch(generator(3), 11, 7)
    for row in zip(names.tolist(), ahead.tolist(), answers.tolist(), strict=True):
        follows = dict(zip(row[0], row[1], strict=True))
        assert sorted(row[0]) == sorted(row[1]) == list(range(7))
        assert [follows[follows[name]] for name in row[0]] == row[2]
        seen, at = set(), 0
        while at not in seen:
            seen.add(at)
            at = follows[at]
        assert len(seen) == 7


# the MLP


def test_without_the_mlp_the_trunk_is_left_as_attention_made_it():
    size = MINE["ffn"].tiny
    inputs, _ = blocks.random_facts(3, 0)
    for arm, same in (("attention alone", True), ("with", False)):
        probe = Probe("blocks.0.mid", "blocks.0.post")
        blocks.facts_model(arm, 0, size)(inputs, probe=probe)
        assert torch.equal(*probe.values.values()) == same


def test_the_deeper_attention_has_as_many_numbers():
    size = MINE["ffn"].quick
    whole, deep, alone = (
        parameters(blocks.facts_model(arm, 0, size))
        for arm in ("with", "attention, three times as deep", "attention alone")
    )
    assert deep == pytest.approx(whole, rel=0.05)
    assert alone < whole / 2


def test_facts_are_every_pair_once():
    inputs, answers = blocks.random_facts(5, 2)
    assert len({tuple(row) for row in inputs.tolist()}) == 25 == len(answers)
    assert (inputs[:, 2] == 5).all()
    assert answers.max() < 5


# the switch


def test_only_the_open_mask_sees_the_future():
    size = MINE["switch"].tiny
    text = torch.tensor([[0, 1, 2, 3, 4, 0, 1]])
    other = text.clone()
    other[0, -1] = 3
    for mask, moved in ((full, True), (causal, False)):
        model = order.gpt_with_mask(mask, 6, 0, size)
        assert model.mask is mask
        assert (not torch.equal(model(text)[:, :-1], model(other)[:, :-1])) == moved
    open_, closed = (order.gpt_with_mask(mask, 6, 0, size).state_dict() for mask in (full, causal))
    assert all(torch.equal(open_[key], closed[key]) for key in open_)


def test_masked_tokens_have_both_sides():
    masked = order.random_masked(torch.zeros(37, 7, dtype=torch.long), 0.2, generator(0))
    assert masked.any(1).all()
    assert not masked[:, [0, -1]].any()
    assert 0.1 < order.random_masked(torch.zeros(503, 101, dtype=torch.long), 0.2, generator(0)).float().mean() < 0.25


# the swap


def patches_of(model):
    probe = Probe("patches.flat")
    model(torch.arange(64.0).reshape(1, 1, 8, 8), probe=probe)
    return probe.values["patches.flat"]


def test_slices_are_a_plain_reshape():
    model = images.digit_vit(0, MINE["swap"].tiny, 2)
    assert patches_of(model)[0, 0].tolist() == [0, 1, 8, 9]
    model.patches.swap = images.no_swap
    assert torch.equal(patches_of(model), torch.arange(64.0).reshape(1, 16, 4))


# BatchNorm


def test_a_norm_over_the_batch_makes_a_row_depend_on_the_others():
    size = MINE["batchnorm"].tiny
    plain, batch = images.digit_vit(0, size, 4), images.with_batchnorm(images.digit_vit(0, size, 4))
    assert not any(isinstance(module, LayerNorm) for module in batch.modules())
    assert images.batch_dependence(plain, 3) < 1e-5 < 1e-2 < images.batch_dependence(batch, 3)
    # in evaluation mode it uses running statistics, and rows are independent again
    given, _ = images.digit_images()[1]
    batch.eval()
    torch.testing.assert_close(batch(given[:3])[0], batch(given[:1])[0])


def test_a_norm_over_the_batch_is_the_mean_and_variance_of_each_channel():
    x = torch.randn(3, 5, 7, generator=generator(0), dtype=torch.float64)
    normed = images.TokenBatchNorm(7).double()(x).detach().numpy()
    flat = x.numpy().reshape(15, 7)
    wanted = (flat - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5)
    np.testing.assert_allclose(normed.reshape(15, 7), wanted, atol=1e-12)


# adaLN-Zero


def test_the_zero_makes_fresh_blocks_the_identity():
    size = MINE["ada-zero"].tiny
    assert images.block_change(images.digit_dit("zero", 0, size)) == 0
    assert images.block_change(images.digit_dit("one", 0, size)) > 0.1


def test_without_the_zero_a_block_is_a_plain_prenorm_block():
    size = MINE["ada-zero"].tiny
    block = images.digit_dit("one", 0, size).blocks[0]
    x, span = torch.randn(2, 3, 4, generator=generator(0)), Span.whole(3).under(full)
    mid = x + block.attn(block.attn_norm(x), span)
    torch.testing.assert_close(block(x, span, torch.randn(2, 4)), mid + block.mlp(block.mlp_norm(mid)))


# the U-Net


def awake(model):
    """The model with random numbers where it starts with zeros, behind which nothing changes and no gradient passes."""
    for i, weight in enumerate(model.parameters()):
        if not weight.any():
            torch.nn.init.normal_(weight, std=0.3, generator=generator(7, i))
    return model


def noised(height, width, channels=1):
    """Pictures of this size, their times, and their classes."""
    picture = torch.randn(3, channels, height, width, generator=generator(5))
    return picture, torch.tensor([0.0, 470.0, 1000.0]), torch.tensor([1, 0, 4])


def test_the_unet_is_as_large_as_the_dit():
    for quick in (True, False):
        size = MINE["unet"].size(quick)
        unet, dit = (parameters(images.denoiser(arm, 0, size)) for arm in ("U-Net", "DiT"))
        assert unet == pytest.approx(dit, rel=0.01)


@pytest.mark.parametrize("sides", [(8, 8), (5, 11), (1, 2)])
def test_the_unet_takes_pictures_of_any_size(sides):
    picture, *condition = noised(*sides, channels=2)
    model = awake(UNet((4, 12), 6, classes=5, pictures=2))
    assert model(picture, *condition).shape == picture.shape


def test_a_fresh_unet_predicts_zero_as_a_fresh_dit_does():
    for arm in ("U-Net", "DiT"):
        assert not images.denoiser(arm, 0, MINE["unet"].tiny)(*noised(8, 8)).any()


def test_every_weight_of_the_unet_is_learned():
    model = awake(UNet((4, 8, 12), 6, classes=5))
    model(*noised(13, 11)).square().sum().backward()
    assert [name for name, weight in model.named_parameters() if not weight.grad.any()] == []


def test_the_time_and_the_class_change_every_pixel_of_the_unet():
    model = awake(UNet((4, 8), 6, classes=5)).eval()
    picture, time, label = noised(6, 7)
    here = model(picture, time, label)
    for other in (model(picture, time + 100, label), model(picture, time, (label + 1) % 5)):
        assert (here - other).abs().min() > 0


class Repeat(torch.nn.Module):
    """A block that changes no pixel; its channels are those of its input, so many times."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    def forward(self, x, condition):
        return x.repeat(1, self.times, 1, 1)


def test_a_skip_connection_passes_what_the_smaller_sizes_lose():
    """Pictures that differ by a chessboard have the same means of 2×2, all that the smaller sizes read."""
    model = awake(UNet((4, 8), 6, classes=5))
    lowered, model.first = [], torch.nn.Conv2d(1, 4, 1)  # each pixel alone, and so are the blocks on the way down
    model.down = torch.nn.ModuleList([Repeat(1), Repeat(2)])
    model.down[1].register_forward_hook(lambda module, given, out: lowered.append(out))
    picture, *condition = noised(6, 10)
    chessboard = (-1.0) ** (torch.arange(6)[:, None] + torch.arange(10))
    one, other = (model(seen, *condition) for seen in (picture, picture + chessboard))
    torch.testing.assert_close(*lowered)
    assert (one - other).abs().mean() > 0.01


def test_both_denoise_the_same_digits_with_the_same_noise():
    seen = {}
    for arm in ("U-Net", "DiT"):
        seen[arm] = []
        model = images.denoiser(arm, 3, MINE["unet"].tiny)
        model.register_forward_pre_hook(lambda module, given, arm=arm: seen[arm].append(given))
        images.train_denoiser(model, arm, 3, MINE["unet"].tiny, images.pixel_order(3, True), 2)
    first, second = seen.values()
    assert len(first) == 2
    assert all(torch.equal(a, b) for one, two in zip(first, second, strict=True) for a, b in zip(one, two, strict=True))
    assert not torch.equal(first[0][0], first[1][0])


def test_shuffled_pixels_are_those_of_the_picture_in_one_order():
    picture = torch.arange(64.0).reshape(1, 1, 8, 8).repeat(2, 1, 1, 1)
    given = []
    model = images.denoiser("DiT", 0, MINE["unet"].tiny)
    model.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    for shuffle in (False, True):
        pixels = images.pixel_order(2, shuffle)
        images.denoising_loss(model, (picture * 1e6, torch.tensor([3, 3])), pixels, generator(0))
    plain, shuffled = (x.flatten(1).argsort() for x in given)
    assert torch.equal(plain, torch.arange(64).expand(2, 64))
    assert torch.equal(shuffled[0], shuffled[1])
    assert not torch.equal(shuffled, plain)


@pytest.mark.parametrize(("slower", "steps"), [(1.4, 5), (0.7, 10), (1.0, 7), (100.0, 1)])
def test_in_equal_time_the_unet_takes_the_steps_that_fit(monkeypatch, slower, steps):
    trained = []
    monkeypatch.setattr(images, "step_time", lambda seed, size: slower)
    monkeypatch.setattr(
        images, "denoised", lambda arm, seed, size, steps, shuffled=False: (trained.append(steps) or steps, [])
    )
    size = MINE["unet"].tiny | {"steps": 7}
    found = images.measure_unet("U-Net", 0, size)
    assert (found["loss"], found["loss in equal time"], found["steps in equal time"]) == (7, steps, steps)
    assert images.measure_unet("DiT", 0, size)["loss in equal time"] == 7
    assert len(trained) == (4 if steps == 7 else 5)


def test_the_walk_has_the_numbers_of_the_table():
    table = DOCS.joinpath("explain", "ablations.md").read_text(encoding="utf-8").split("| `unet`")[1].split("| `rnn")[0]
    equal, longer, timed, shuffled = (
        dict(re.findall(r"(U-Net|DiT) (−?[\d.]+)", row)) for row in table.strip().split("\n")
    )
    walk = tomllib.loads(files("pencil").joinpath("examples", "walks", "002.toml").read_text(encoding="utf-8"))
    (section,) = (one for one in walk["section"] if "unet" in one.get("labs", ()))
    said = re.findall(r"\d\.\d+", section["then"])
    assert said == [equal["U-Net"], equal["DiT"], longer["U-Net"], timed["U-Net"], shuffled["U-Net"]]
    assert float(shuffled["DiT"].replace("−", "-")) <= 0


# recurrent networks


@pytest.mark.parametrize("arm", attention.RECURRENT_ARMS[1:])
def test_recurrent_networks_are_as_large(arm):
    for size in (MINE["rnn-time"].quick, MINE["rnn-recall"].quick):
        blocks, other = (attention.sequence_model(kind, size["width"], size["depth"]) for kind in ("transformer", arm))
        assert parameters(other) == pytest.approx(parameters(blocks), rel=0.02)


def test_the_share_of_an_rnn_is_its_matrices_multiplied():
    """A linear RNN of one number: the gradient of the first token is wᵗ times that of the last."""
    model = attention.Recurrent("RNN", 1, 1).double()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1e-4 if p is model.cells.weight_ih_l0 else 0.0)
        model.cells.weight_hh_l0.fill_(0.5)
        model.out.weight.fill_(1.0)
    x = torch.randn(1, 11, 1, generator=generator(0), dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(model(x)[0, -1].sum(), x)
    assert float(grad[0, 0] / grad[0, -1]) == pytest.approx(0.5**10, rel=1e-5)


def test_attention_reaches_the_first_token_in_one_step():
    size = dict(width=8, depth=1, lengths=(2, 53))
    ratio = {arm: attention.measure_gradient(arm, 0, size)["ratio"] for arm in attention.RECURRENT_ARMS}
    assert ratio["transformer"] > 1e-4 > 1e-8 > max(ratio["LSTM"], ratio["RNN"])


def test_sizes_are_whole_claims():
    for claim in claims().values():
        assert claim.quick.keys() == claim.size(quick=False).keys(), claim.name
        assert claim.name not in MINE or claim.quick.keys() == claim.tiny.keys(), claim.name
