"""Noise and the steps back: against diffusers' schedulers, and against the mathematics they stand for."""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal, kl_divergence

from pencil.config import UserError
from pencil.core.masks import NOWHERE
from pencil.core.span import Span
from pencil.diffusion import (
    CLOCK,
    Flow,
    Steps,
    by_scheduler,
    cosine,
    guided,
    linear,
    log_chance,
    process_of,
    walk,
)

PREDICTED = {"eps": "epsilon", "x0": "sample", "v": "v_prediction"}
BETAS = {
    "linear": dict(beta_schedule="linear", beta_start=1e-4, beta_end=0.02),
    "cosine": dict(beta_schedule="squaredcos_cap_v2"),
}
SHAPE = (3, 2, 5, 7)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def scheduler_of(kind, noise, prediction, clip, exact=True, **values):
    """Theirs; `exact` has it compute with its own float32 table in float64."""
    diffusers = pytest.importorskip("diffusers", reason="diffusers (an extra) is not installed")
    made = getattr(diffusers, kind)(
        **BETAS[noise],
        prediction_type=PREDICTED[says],
        clip_sample=clip is not None,
        clip_sample_range=clip or 1,
        **values,
    )
    if exact:
        made.alphas_cumprod, made.one = made.alphas_cumprod.double(), torch.tensor(1.0, dtype=torch.float64)
    return made


def where(t, steps, message):
    return f"at {t} of {steps} steps: {message}"


def ours_of(scheduler, prediction, clip):
    return Steps(scheduler.alphas_cumprod.double(), prediction, clip)


def each(test):
    for name, values in (("noise", ("linear", "cosine")), ("says", tuple(PREDICTED)), ("clip", (None, 0.7))):
        test = pytest.mark.parametrize(name, values)(test)
    return test


# --- against diffusers


@pytest.mark.proof("parity with a reference on random weights", "dit")
@each
@pytest.mark.parametrize("exact", [True, False])
def test_a_step_of_ddpm_equals_diffusers(noise, prediction, clip, exact):
    theirs = scheduler_of("DDPMScheduler", noise, prediction, clip, exact)
    ours, dtype = ours_of(theirs, prediction, clip), torch.float64 if exact else torch.float32
    x, said = draw(*SHAPE, dtype=dtype), draw(*SHAPE, seed=1, dtype=dtype)
    for steps in (4, 13, 250, 1000) if exact else (4, 13):
        theirs.set_timesteps(steps)
        stops = theirs.timesteps.tolist()
        for t in stops[:: max(1, len(stops) // 7)] + stops[-2:]:
            expected = theirs.step(said, t, x, generator=torch.Generator().manual_seed(5)).prev_sample
            found = ours.ddpm(x, said, t, max(t - 1000 // steps, -1), draw(*SHAPE, seed=5, dtype=dtype))
            close = dict(atol=1e-12, rtol=1e-9) if exact else dict(atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(found, expected, **close, msg=partial(where, t, steps))


@pytest.mark.proof("parity with a reference on random weights", "dit")
@each
@pytest.mark.parametrize("eta", [0.0, 0.7])
@pytest.mark.parametrize("exact", [True, False])
def test_a_step_of_ddim_equals_diffusers(noise, prediction, clip, eta, exact):
    theirs = scheduler_of("DDIMScheduler", noise, prediction, clip, exact)
    ours, dtype = ours_of(theirs, prediction, clip), torch.float64 if exact else torch.float32
    x, said = draw(*SHAPE, dtype=dtype), draw(*SHAPE, seed=1, dtype=dtype)
    fresh = draw(*SHAPE, seed=5, dtype=dtype)
    for steps in (4, 13, 250, 1000) if exact else (4, 13):
        theirs.set_timesteps(steps)
        stops = theirs.timesteps.tolist()
        for t in stops[:: max(1, len(stops) // 7)] + stops[-2:]:
            # with the noise that goes with the clipped picture, as ours is
            expected = theirs.step(
                said, t, x, eta=eta, use_clipped_model_output=clip is not None, variance_noise=fresh if eta else None
            ).prev_sample
            found = ours.ddim(x, said, t, max(t - 1000 // steps, -1), fresh, eta)
            close = dict(atol=1e-12, rtol=1e-9) if exact else dict(atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(found, expected, **close, msg=partial(where, t, steps))


@pytest.mark.proof("parity with a reference on random weights", "dit")
@pytest.mark.parametrize("noise", ["linear", "cosine"])
def test_a_step_of_ddpm_with_a_learned_spread_equals_diffusers(noise):
    theirs = scheduler_of("DDPMScheduler", noise, "eps", None, variance_type="learned_range")
    ours = ours_of(theirs, "eps", None)
    x, both = draw(*SHAPE), draw(3, 4, 5, 7, seed=1)
    theirs.set_timesteps(13)
    for t in theirs.timesteps.tolist():
        expected = theirs.step(both, t, x, generator=torch.Generator().manual_seed(5)).prev_sample
        found = ours.ddpm(x, both[:, :2], t, max(t - 1000 // 13, -1), draw(*SHAPE, seed=5), both[:, 2:])
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)


@pytest.mark.proof("parity with a reference on random weights", "dit")
@pytest.mark.parametrize("steps", [1, 7, 50])
def test_a_step_of_flow_equals_diffusers(steps):
    diffusers = pytest.importorskip("diffusers", reason="diffusers (an extra) is not installed")
    theirs = diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0)
    theirs.set_timesteps(steps)
    sigmas, flow = theirs.sigmas.tolist(), Flow()
    x = draw(*SHAPE, dtype=torch.float32)
    for i, t in enumerate(theirs.timesteps):
        said = draw(*SHAPE, seed=i + 1, dtype=torch.float32)
        expected = theirs.step(said, t, x).prev_sample
        torch.testing.assert_close(float(flow.clock(torch.tensor(sigmas[i]))), float(t), atol=0, rtol=1e-6)
        torch.testing.assert_close(flow.euler(x, said, sigmas[i], sigmas[i + 1]), expected, atol=1e-5, rtol=1e-5)
        x = expected
    assert sigmas[-1] == 0


@pytest.mark.parametrize("kind", ["DDPMScheduler", "DDIMScheduler"])
@pytest.mark.parametrize("noise", ["linear", "cosine"])
def test_noised_pictures_and_their_velocity_equal_diffusers(kind, noise):
    theirs = scheduler_of(kind, noise, "v", None, exact=False)
    picture, noise_ = draw(11, 2, 3, 5, dtype=torch.float32), draw(11, 2, 3, 5, seed=1, dtype=torch.float32)
    t = torch.tensor([0, 1, 2, 17, 101, 333, 500, 667, 900, 998, 999])
    for process in (ours_of(theirs, "v", None), process_of(noise, "v")):  # with their table, and with ours
        torch.testing.assert_close(
            process.noised(picture, noise_, t), theirs.add_noise(picture, noise_, t), atol=1e-5, rtol=1e-5
        )
        torch.testing.assert_close(
            process.target(picture, noise_, t), theirs.get_velocity(picture, noise_, t), atol=1e-5, rtol=1e-5
        )


def test_a_flow_noises_as_diffusers_scales():
    diffusers = pytest.importorskip("diffusers", reason="diffusers (an extra) is not installed")
    theirs = diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0)
    theirs.set_timesteps(7)
    picture, noise = draw(7, 2, 3, 5, dtype=torch.float32), draw(7, 2, 3, 5, seed=1, dtype=torch.float32)
    found = Flow().noised(picture, noise, theirs.sigmas[:-1])
    torch.testing.assert_close(found, theirs.scale_noise(picture, theirs.timesteps, noise), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("noise", ["linear", "cosine"])
def test_the_tables_are_those_of_diffusers(noise):
    theirs = scheduler_of("DDPMScheduler", noise, "eps", None, exact=False)
    assert len(process_of(noise, "eps")) == len(theirs.alphas_cumprod) == 1000
    shares = process_of(noise, "eps").shares
    torch.testing.assert_close(shares, theirs.alphas_cumprod.double(), atol=1e-6, rtol=1e-3)
    torch.testing.assert_close(shares[:900], theirs.alphas_cumprod[:900].double(), atol=0, rtol=1e-4)


def curved(x, clock):
    """What some model says: of the picture, of the time, and not in a straight line."""
    return torch.tanh(x.roll(1, -1)) + torch.sin(clock.to(x.dtype) / 97).reshape(-1, 1, 1, 1) * x


@pytest.mark.parametrize("kind, sampler", [("DDPMScheduler", "ddpm"), ("DDIMScheduler", "ddim")])
@pytest.mark.parametrize("says", PREDICTED)
def test_a_walk_by_a_scheduler_of_diffusers_is_our_walk(kind, sampler, says):
    """With as many steps as there are: then both stop at every one."""
    theirs = scheduler_of(kind, "cosine", says, None, num_train_timesteps=53)
    x = draw(*SHAPE)
    torch.manual_seed(3)
    expected = list(by_scheduler(theirs, curved, x, 53))
    torch.manual_seed(3)
    found = list(walk(ours_of(theirs, says, None), curved, x, 53, sampler))
    assert len(found) == len(expected) == 53
    for here, there in zip(found, expected, strict=True):
        torch.testing.assert_close(here, there, atol=1e-8, rtol=1e-7)
    assert not torch.allclose(found[-1], x)


def test_a_walk_along_a_flow_by_a_scheduler_of_diffusers_is_our_walk():
    diffusers = pytest.importorskip("diffusers", reason="diffusers (an extra) is not installed")
    x = draw(*SHAPE)
    clocks = []

    def denoise(x, clock):
        clocks.append(clock)
        return curved(x, clock)

    expected = list(by_scheduler(diffusers.FlowMatchEulerDiscreteScheduler(), denoise, x, 1000))
    found = list(walk(Flow(), denoise, x, 1000))
    torch.testing.assert_close(torch.stack(clocks[1000:]), torch.stack(clocks[:1000]), atol=1e-3, rtol=1e-5)
    assert len(found) == len(expected) == 1000
    for here, there in list(zip(found, expected, strict=True))[::111]:
        torch.testing.assert_close(here, there, atol=1e-4, rtol=1e-4)


def test_a_scheduler_that_takes_no_variance_is_given_none():
    x, seen = draw(*SHAPE), []

    def both(x, clock):
        seen.append(clock)
        return torch.cat((curved(x, clock), draw(*x.shape, seed=len(seen))), 1)

    theirs = scheduler_of("DDIMScheduler", "linear", "eps", 1.0)
    pairs = zip(by_scheduler(theirs, both, x, 11), by_scheduler(theirs, curved, x, 11), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    theirs = scheduler_of("DDPMScheduler", "linear", "eps", None, num_train_timesteps=31, variance_type="learned_range")
    seen.clear()
    torch.manual_seed(3)
    expected = list(by_scheduler(theirs, both, x, 31))
    seen.clear()
    torch.manual_seed(3)
    found = list(walk(ours_of(theirs, "eps", None), both, x, 31, "ddpm"))
    torch.testing.assert_close(found[-1], expected[-1], atol=1e-8, rtol=1e-7)


# --- the mathematics


def test_the_linear_schedule_is_a_product_of_what_each_step_leaves():
    shares, left = linear().tolist(), 1.0
    for t in range(1000):
        left *= 1 - (1e-4 + (0.02 - 1e-4) * t / 999)
        assert math.isclose(shares[t], left, rel_tol=1e-12)
    assert math.isclose(shares[0], 0.9999)
    assert 4e-5 < shares[-1] < 4.1e-5
    first, *_, last_but_one, last = shares = linear(17, 0.1, 0.3).tolist()
    assert len(shares) == 17
    assert math.isclose(first, 0.9)
    assert math.isclose(last / last_but_one, 0.7)


def test_the_cosine_schedule_is_a_squared_cosine_until_its_last_step():
    shares = cosine().numpy()
    t = np.arange(1, 1001) / 1000
    wave = np.cos((t + 0.008) / 1.008 * np.pi / 2) ** 2 / np.cos(0.008 / 1.008 * np.pi / 2) ** 2
    np.testing.assert_allclose(shares[:-1], wave[:-1], rtol=1e-9)
    assert math.isclose(shares[-1] / shares[-2], 0.001)  # no step takes more than 0.999
    assert (np.diff(shares) < 0).all()


@settings(max_examples=50)
@given(
    prediction=st.sampled_from(["eps", "x0", "v"]),
    noise=st.sampled_from(["linear", "cosine"]),
    times=st.lists(st.integers(0, 999), min_size=1, max_size=5),
    seed=st.integers(0, 2**31),
)
def test_apart_undoes_noised(says, noise, times, seed):
    process, t = process_of(noise, prediction, clip=None), torch.tensor(times)
    picture, noise_ = draw(len(times), 2, 3, seed=seed), draw(len(times), 2, 3, seed=seed + 1)
    found = process.apart(process.noised(picture, noise_, t), process.target(picture, noise_, t), t)
    torch.testing.assert_close(found[0], picture, atol=1e-7, rtol=0)
    torch.testing.assert_close(found[1], noise_, atol=1e-7, rtol=0)


@settings(max_examples=50)
@given(t=st.integers(0, 999), prediction=st.sampled_from(["eps", "x0", "v"]))
def test_a_clipped_picture_goes_with_the_noise_that_makes_x_of_it(t, says):
    process = process_of("linear", prediction, clip=0.5)
    x, when = draw(2, 3, 5), torch.full((2,), t)
    picture, noise = process.apart(x, draw(2, 3, 5, seed=1), when)
    assert picture.abs().max() <= 0.5
    torch.testing.assert_close(process.noised(picture, noise, when), x, atol=1e-9, rtol=0)


@settings(max_examples=50)
@given(prediction=st.sampled_from(["eps", "x0", "v"]), t=st.integers(0, 999), noise=st.sampled_from(["linear", "cosine"]))
def test_with_a_perfect_model_ddim_finds_the_picture_in_one_step(says, t, noise):
    process, when = process_of(noise, prediction, clip=None), torch.full((3,), t)
    picture, added = draw(*SHAPE), draw(*SHAPE, seed=1)
    x = process.noised(picture, added, when)
    said = process.target(picture, added, when)
    torch.testing.assert_close(process.ddim(x, said, t, -1), picture, atol=1e-7, rtol=0)
    before = t // 3  # and on the way it is where the same noise would have brought the picture
    torch.testing.assert_close(
        process.ddim(x, said, t, before), process.noised(picture, added, when // 3), atol=1e-7, rtol=0
    )


@settings(max_examples=50)
@given(times=st.tuples(st.integers(1, 999), st.integers(0, 998)).filter(lambda pair: pair[1] < pair[0]),
       noise=st.sampled_from(["linear", "cosine"]))  # fmt: skip
def test_ddpm_is_the_posterior_of_what_came_before(times, noise):
    """Bayes on scalars: x_s given x₀ is one Gaussian, x_t given x_s another; precisions add."""
    t, s = times
    process = process_of(noise, "x0", clip=None)
    at_s, at_t = float(process.shares[s]), float(process.shares[t])
    step = at_t / at_s
    picture, x = np.array([0.3, -1.7, 2.0]), np.array([1.1, 0.2, -0.6])
    precision = 1 / (1 - at_s) + step / (1 - step)
    mean = (np.sqrt(at_s) * picture / (1 - at_s) + np.sqrt(step) * x / (1 - step)) / precision

    def after(noise):
        given = (torch.from_numpy(x)[:, None], torch.from_numpy(picture)[:, None])
        return process.ddpm(*given, t, s, torch.full((3, 1), float(noise), dtype=torch.float64))[:, 0].numpy()

    np.testing.assert_allclose(after(0), mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose((after(1) - after(0)) ** 2, 1 / precision, rtol=1e-6)


@pytest.mark.parametrize("t, before", [(999, 998), (999, 900), (500, 0), (2, 1)])
def test_a_learned_spread_lies_between_the_two_variances(t, before):
    process, x = process_of("linear", "eps", None), draw(*SHAPE)
    said, ones, zeros = draw(*SHAPE, seed=1), torch.ones_like(x), torch.zeros_like(x)
    now, then = float(process.shares[t]), float(process.shares[before])
    most, least = 1 - now / then, (1 - then) / (1 - now) * (1 - now / then)
    mean = process.ddpm(x, said, t, before, zeros)

    def variance(spread):
        return (process.ddpm(x, said, t, before, ones, spread) - mean) ** 2

    torch.testing.assert_close(variance(-ones), least * ones, atol=0, rtol=1e-6)
    torch.testing.assert_close(variance(ones), most * ones, atol=0, rtol=1e-6)
    torch.testing.assert_close(variance(zeros), math.sqrt(least * most) * ones, atol=0, rtol=1e-6)
    torch.testing.assert_close(variance(ones / 2), least**0.25 * most**0.75 * ones, atol=0, rtol=1e-6)
    torch.testing.assert_close(process.ddpm(x, said, t, before, ones, -ones), process.ddpm(x, said, t, before, ones))
    assert torch.equal(process.ddpm(x, said, t, -1, ones, ones), process.ddpm(x, said, t, -1, zeros))


def test_ddim_with_eta_one_has_the_mean_and_variance_of_ddpm():
    process, x, said = process_of("cosine", "v", None), draw(*SHAPE), draw(*SHAPE, seed=1)
    for t, before in [(999, 998), (700, 500), (10, 3)]:
        noise = draw(*SHAPE, seed=2)
        expected = process.ddpm(x, said, t, before, noise)
        torch.testing.assert_close(process.ddim(x, said, t, before, noise, 1.0), expected, atol=1e-9, rtol=1e-9)


@settings(max_examples=50)
@given(count=st.integers(1, 1000))
def test_the_stops_fall_from_pure_noise_to_none(count):
    stops = process_of("linear", "eps").times(count)
    assert len(stops) == count
    assert stops[0] == 999
    assert stops == sorted(set(stops), reverse=True)
    assert count == 1 or stops[-1] == 0


def test_along_the_true_way_a_flow_needs_one_step():
    picture, noise = draw(*SHAPE), draw(*SHAPE, seed=1)
    flow = Flow()
    for steps, sampler in [(1, "flow"), (7, "flow"), (1, "heun"), (7, "heun")]:
        *_, found = walk(flow, lambda x, clock: flow.target(picture, noise, clock), noise, steps, sampler)
        torch.testing.assert_close(found, picture, atol=1e-12, rtol=0)
    x = flow.noised(picture, noise, torch.tensor([0.25, 0.5, 0.9]))
    for row, t in enumerate([0.25, 0.5, 0.9]):
        torch.testing.assert_close(flow.euler(x, noise - picture, t, 0.0)[row], picture[row], atol=1e-6, rtol=0)


@pytest.mark.parametrize("sampler, falls", [("flow", 2), ("heun", 4)])
def test_the_error_falls_by_the_order_of_the_sampler(sampler, falls):
    """x′ = 3·cos(5t)·x, whose way back from 1 to 0 is known."""
    x = draw(2, 1, 3, 3)
    exact = x * math.exp(-3 * math.sin(5) / 5)

    def bent(x, clock):
        return 3 * torch.cos(5 * clock.double() / CLOCK).reshape(-1, 1, 1, 1) * x

    errors = []
    for steps in (100, 200, 400):
        *_, found = walk(Flow(), bent, x, steps, sampler)
        errors.append(float((found - exact).abs().max()))
    for wide, narrow in pairwise(errors):
        assert abs(wide / narrow / falls - 1) < 0.1, errors


def test_what_is_walked_by_default_and_what_is_yielded():
    x = draw(*SHAPE)
    for process, named in ((Flow(), "flow"), (process_of("linear", "eps"), "ddim")):
        by_default, by_name = list(walk(process, curved, x, 5)), list(walk(process, curved, x, 5, named))
        assert len(by_default) == 5
        assert all(torch.equal(*pair) for pair in zip(by_default, by_name, strict=True))
    seeded = [
        list(walk(process_of("linear", "eps"), curved, x, 5, "ddpm", torch.Generator().manual_seed(seed)))[-1]
        for seed in (1, 1, 2)
    ]
    assert torch.equal(seeded[0], seeded[1])
    assert not torch.equal(seeded[0], seeded[2])


def test_a_spread_is_read_off_a_model_with_twice_the_channels():
    x, process = draw(*SHAPE), process_of("linear", "eps")
    for spread, sampler in ((0.3, "ddpm"), (-1.0, "ddpm"), (0.3, "ddim")):

        def both(x, clock, spread=spread):
            return torch.cat((curved(x, clock), torch.full_like(x, spread)), 1)

        runs = [
            list(walk(process, model, x, 5, sampler, torch.Generator().manual_seed(1)))[-1] for model in (both, curved)
        ]
        assert torch.allclose(*runs) == (spread == -1 or sampler == "ddim")


def test_times_to_train_at():
    torch.manual_seed(0)
    t = process_of("linear", "eps").draw(20000)
    assert t.dtype == torch.long
    assert t.aminmax() == (0, 999)
    assert abs(float(t.double().mean()) - 499.5) < 10
    assert torch.equal(process_of("linear", "eps").clock(t), t)
    t = Flow().draw(20000)
    assert bool(((t > 0) & (t < 1)).all())
    odds = (t / (1 - t)).log()  # a normal curve
    assert abs(float(odds.mean())) < 0.05
    assert abs(float(odds.std()) - 1) < 0.05
    assert torch.equal(Flow().clock(t), t * 1000)


class Model:
    """Says something of everything it is given, and counts how often it is asked."""

    def __init__(self, width=1):
        self.calls, self.width = [], width

    def __call__(self, x, clock, given, places=None, nothing=None):
        self.calls.append((len(x), places))
        label = given.double().reshape(len(x), -1).sum(1)
        label = (label if nothing is None else label.masked_fill(nothing, -1.0)).reshape(-1, 1, 1, 1)
        said = torch.tanh(x + label) + clock.to(x).reshape(-1, 1, 1, 1) / 1000
        return said if self.width == 1 else torch.cat((said, said * label), 1)


def test_guidance_is_a_line_through_what_is_said_under_nothing_and_under_the_condition():
    x, clock, given = draw(*SHAPE), torch.tensor([5, 500, 999]), torch.tensor([0, 1, 2])
    model = Model()
    said, plain = model(x, clock, given), model(x, clock, given, None, torch.ones(3, dtype=torch.bool))
    torch.testing.assert_close(guided(model, given, 1)(x, clock), said, atol=1e-12, rtol=0)
    torch.testing.assert_close(guided(model, given, 0)(x, clock), plain, atol=1e-12, rtol=0)
    for scale in (-1.5, 0.5, 1.000001, 4.0):
        expected = (1 - scale) * plain + scale * said
        torch.testing.assert_close(guided(model, given, scale)(x, clock), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("scale, rows", [(1, 3), (1.0, 3), (0, 6), (4.0, 6)])
def test_guidance_asks_once_a_step(scale, rows):
    model = Model()
    list(walk(Flow(), guided(model, torch.tensor([0, 1, 2]), scale), draw(*SHAPE), 7))
    assert [count for count, _ in model.calls] == [rows] * 7


def test_guidance_knows_the_places_of_a_text():
    index = torch.tensor([[0, 1, 2], [0, 1, NOWHERE], [0, NOWHERE, NOWHERE]])
    model = Model()
    guided(model, torch.ones(3, 3, dtype=torch.long), 2.0, Span.at(index))(draw(*SHAPE), torch.zeros(3))
    assert torch.equal(model.calls[0][1].index, torch.cat((index, index)))


def test_guidance_pushes_the_picture_and_leaves_the_variance_as_the_condition_has_it():
    x, clock, given = draw(*SHAPE), torch.tensor([5, 500, 999]), torch.tensor([0, 1, 2])
    found = guided(Model(width=2), given, 4.0)(x, clock)
    torch.testing.assert_close(found[:, :2], guided(Model(), given, 4.0)(x, clock), atol=1e-12, rtol=0)
    assert torch.equal(found[:, 2:], Model(width=2)(x, clock, given)[:, 2:])


@pytest.mark.parametrize("process, sampler, words", [
    (Flow(), "ddpm", "the sampler ddpm does not fit a model that says flow; flow or heun would"),
    (Flow(), "ddim", "the sampler ddim does not fit a model that says flow; flow or heun would"),
    (process_of("linear", "v"), "flow", "the sampler flow does not fit a model that says v; ddpm or ddim would"),
    (process_of("cosine", "eps"), "heun", "the sampler heun does not fit a model that says eps; ddpm or ddim would"),
    (Flow(), "euler", "euler is not a sampler; known: ddpm, ddim, flow, heun"),
])  # fmt: skip
def test_a_sampler_that_does_not_fit_is_refused_in_a_sentence(process, sampler, words):
    with pytest.raises(UserError, match=f"^{words}$"):
        next(walk(process, curved, draw(*SHAPE), 5, sampler))


@pytest.mark.parametrize("process", [Flow(), process_of("linear", "eps")])
@pytest.mark.parametrize("steps", [0, -3])
def test_no_steps_are_refused(process, steps):
    with pytest.raises(UserError, match=f"^--steps must be at least 1, not {steps}$"):
        next(walk(process, curved, draw(*SHAPE), steps))


def test_more_steps_than_there_are_are_refused():
    with pytest.raises(UserError, match="trained with 1000 steps of noise, and 1001 were asked for"):
        next(walk(process_of("linear", "eps"), curved, draw(*SHAPE), 1001))
    assert len(list(walk(Flow(), lambda x, clock: x, draw(1, 1, 1, 1), 1001))) == 1001


# --- the variational bound


def noised_at(process, times, seed=0, dtype=torch.float64):
    """Pictures of 256 levels, what noise makes of them, and what some model says of picture and spread."""
    t, shape = torch.tensor(times), (len(times), 2, 5, 7)
    picture = (draw(*shape, seed=seed) * 127).round().clamp(-127, 128) / 127.5 - 0.5 / 127.5
    noise = draw(*shape, seed=seed + 1, dtype=dtype)
    x, target = process.noised(picture.to(dtype), noise, t), process.target(picture.to(dtype), noise, t)
    said = target + 0.3 * draw(*shape, seed=seed + 2, dtype=dtype)
    return picture.to(dtype), x, said, draw(*shape, seed=seed + 3, dtype=dtype), t


@pytest.mark.parametrize("noise", ["linear", "cosine"])
@pytest.mark.parametrize("says", PREDICTED)
@pytest.mark.parametrize("clip", [None, 0.7])
def test_after_the_first_step_the_bound_is_the_divergence_of_two_normals(noise, prediction, clip):
    process = process_of(noise, prediction, clip)
    picture, x, said, spread, t = noised_at(process, [1, 2, 17, 500, 997, 999])
    found = process.bound(picture, x, said, spread, t)
    known, zeros = Steps(process.shares, "x0", None), torch.zeros(2, 5, 7, dtype=torch.float64)
    for row, when in enumerate(t.tolist()):
        now, then = float(process.shares[when]), float(process.shares[when - 1])
        most, least = 1 - now / then, (1 - then) / (1 - now) * (1 - now / then)
        mixed = (spread[row] + 1) / 2
        variance = most**mixed * least ** (1 - mixed)
        # the means are those of a step without noise: from the picture itself, and from what the model says
        true = known.ddpm(x[row, None], picture[row, None], when, when - 1, zeros)[0]
        ours = process.ddpm(x[row, None], said[row, None], when, when - 1, zeros)[0]
        exact = kl_divergence(Normal(true, math.sqrt(least)), Normal(ours, variance.sqrt()))
        torch.testing.assert_close(found[row], exact.mean() / math.log(2), atol=1e-9, rtol=1e-6)


def test_at_the_first_step_the_bound_is_how_unlikely_the_picture_is():
    process = process_of("linear", "eps")
    picture, x, said, spread, t = noised_at(process, [0, 0, 0])
    mean, _ = process.apart(x, said, t)
    first, second = (float(share) for share in process.shares[:2])
    most = 1 - first
    least = most / (1 - second) * (1 - second / first)  # that of the step after
    mixed = (spread + 1) / 2
    model = Normal(mean, (most**mixed * least ** (1 - mixed)).sqrt())
    plain = -model.log_prob(picture).flatten(1).mean(1) / math.log(2)
    torch.testing.assert_close(process.bound(picture, x, said, spread, t, levels=None), plain, atol=1e-9, rtol=1e-9)
    low, high = picture - 1 / 255, picture + 1 / 255
    low[picture < -0.999], high[picture > 0.999] = -math.inf, math.inf
    chance = (model.cdf(high) - model.cdf(low)).log()
    near = chance > -20  # farther out a difference of two cdfs has no digits left
    found = log_chance(picture, mean, 2 * model.scale.log(), 256)
    assert near.double().mean() > 0.9
    torch.testing.assert_close(found[near], chance[near], atol=1e-6, rtol=1e-6)
    bits = process.bound(picture, x, said, spread, t)
    torch.testing.assert_close(bits, -found.flatten(1).mean(1) / math.log(2), atol=1e-12, rtol=1e-12)


@settings(max_examples=50)
@given(
    mean=st.floats(-1.5, 1.5),
    log_variance=st.floats(-14, 5),
    levels=st.sampled_from([2, 7, 256]),
    wide=st.booleans(),
)
def test_the_chances_of_all_levels_are_one(mean, log_variance, levels, wide):
    dtype = torch.float64 if wide else torch.float32
    every = torch.linspace(-1, 1, levels, dtype=torch.float64).to(dtype)
    chances = (
        log_chance(every, torch.full_like(every, mean), torch.full_like(every, log_variance), levels).double().exp()
    )
    assert float(chances.sum()) == pytest.approx(1, abs=1e-9 if wide else 1e-3)


@settings(max_examples=50)
@given(t=st.integers(0, 999), noise=st.sampled_from(["linear", "cosine"]), push=st.sampled_from([-30.0, 0.0, 30.0]))
def test_the_bound_is_finite_and_teaches_only_the_spread(t, noise, push):
    process = process_of(noise, "eps", None)
    picture, x, said, spread, when = noised_at(process, [t, 0, 999], seed=t, dtype=torch.float32)
    both = torch.cat((said, spread + push), 1).requires_grad_()
    bound = process.bound(picture, x, both[:, :2], both[:, 2:], when)
    assert bound.shape == (3,)
    bound.sum().backward()
    assert both.grad is not None
    assert torch.isfinite(bound).all()
    assert torch.isfinite(both.grad).all()
    assert (both.grad[:, :2] == 0).all()
    assert (both.grad[:, 2:] != 0).any()


@pytest.mark.parametrize("power", [0.0, 0.13, 1.0])
def test_the_spread_learned_is_the_right_one(power):
    """Pictures from a Gaussian of this variance: with the best mean, the right variance is known at every step."""
    process, times = process_of("linear", "x0", clip=None), [1, 2, 11, 101, 997]
    shares, before = process.shares[times], process.shares[[t - 1 for t in times]]
    left = power * (1 - shares) / (power * shares + 1 - shares)  # of the picture's variance, once x is known
    step = 1 - shares / before
    least = (1 - before) / (1 - shares) * step
    right = least + (before.sqrt() * step / (1 - shares)) ** 2 * left
    expected = 2 * (right / least).log() / (step / least).log() - 1
    # the divergence knows only the mean square of what is said wrong: two pictures stand for all there could be
    t, best = torch.tensor(times * 2), draw(10, 1)
    picture = best + torch.cat((left.sqrt(), -left.sqrt()))[:, None]
    spread = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer, bounds = torch.optim.Rprop([spread], lr=0.1, step_sizes=(1e-9, 1)), []
    for _ in range(97):
        bound = process.bound(picture, draw(10, 1, seed=1), best, spread.repeat(2)[:, None], t).mean()
        optimizer.zero_grad()
        bound.backward()
        optimizer.step()
        bounds.append(float(bound.detach()))
    assert bounds[-1] < bounds[0]
    torch.testing.assert_close(spread.detach(), expected, atol=1e-6, rtol=0)
    if power in (0.0, 1.0):  # as the paper has it: the least for a point, the most for noise itself
        torch.testing.assert_close(expected, torch.full_like(expected, 2 * power - 1), atol=1e-9, rtol=0)
