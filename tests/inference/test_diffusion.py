"""Noise schedules and sampling steps: against diffusers' schedulers, and against the mathematics."""

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
from pencil.inference.diffusion import (
    MAX_TIMESTEP,
    GaussianDiffusion,
    RectifiedFlow,
    classifier_free_guidance,
    cosine,
    linear,
    log_likelihood,
    make_process,
    sample_steps,
    sample_with_scheduler,
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
    """The scheduler of diffusers; with `exact` it computes with its own float32 table in float64."""
    diffusers = pytest.importorskip("diffusers", reason="diffusers (an extra) is not installed")
    made = getattr(diffusers, kind)(
        **BETAS[noise],
        prediction_type=PREDICTED[prediction],
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
    return GaussianDiffusion(scheduler.alphas_cumprod.double(), prediction, clip)


def each(test):
    for name, values in (("noise", ("linear", "cosine")), ("prediction", tuple(PREDICTED)), ("clip", (None, 0.7))):
        test = pytest.mark.parametrize(name, values)(test)
    return test


# --- against diffusers


@pytest.mark.proof("parity with a reference on random weights", "dit")
@each
@pytest.mark.parametrize("exact", [True, False])
def test_a_step_of_ddpm_equals_diffusers(noise, prediction, clip, exact):
    theirs = scheduler_of("DDPMScheduler", noise, prediction, clip, exact)
    ours, dtype = ours_of(theirs, prediction, clip), torch.float64 if exact else torch.float32
    x, predicted = draw(*SHAPE, dtype=dtype), draw(*SHAPE, seed=1, dtype=dtype)
    for steps in (4, 13, 250, 1000) if exact else (4, 13):
        theirs.set_timesteps(steps)
        times = theirs.timesteps.tolist()
        for t in times[:: max(1, len(times) // 7)] + times[-2:]:
            expected = theirs.step(predicted, t, x, generator=torch.Generator().manual_seed(5)).prev_sample
            found = ours.ddpm(x, predicted, t, max(t - 1000 // steps, -1), draw(*SHAPE, seed=5, dtype=dtype))
            close = dict(atol=1e-12, rtol=1e-9) if exact else dict(atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(found, expected, **close, msg=partial(where, t, steps))


@pytest.mark.proof("parity with a reference on random weights", "dit")
@each
@pytest.mark.parametrize("eta", [0.0, 0.7])
@pytest.mark.parametrize("exact", [True, False])
def test_a_step_of_ddim_equals_diffusers(noise, prediction, clip, eta, exact):
    theirs = scheduler_of("DDIMScheduler", noise, prediction, clip, exact)
    ours, dtype = ours_of(theirs, prediction, clip), torch.float64 if exact else torch.float32
    x, predicted = draw(*SHAPE, dtype=dtype), draw(*SHAPE, seed=1, dtype=dtype)
    fresh = draw(*SHAPE, seed=5, dtype=dtype)
    for steps in (4, 13, 250, 1000) if exact else (4, 13):
        theirs.set_timesteps(steps)
        times = theirs.timesteps.tolist()
        for t in times[:: max(1, len(times) // 7)] + times[-2:]:
            # with the noise that goes with the clipped image, as ours is
            expected = theirs.step(
                predicted,
                t,
                x,
                eta=eta,
                use_clipped_model_output=clip is not None,
                variance_noise=fresh if eta else None,
            ).prev_sample
            found = ours.ddim(x, predicted, t, max(t - 1000 // steps, -1), fresh, eta)
            close = dict(atol=1e-12, rtol=1e-9) if exact else dict(atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(found, expected, **close, msg=partial(where, t, steps))


@pytest.mark.proof("parity with a reference on random weights", "dit")
@pytest.mark.parametrize("noise", ["linear", "cosine"])
def test_a_step_of_ddpm_with_a_learned_variance_equals_diffusers(noise):
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
    sigmas, flow = theirs.sigmas.tolist(), RectifiedFlow()
    x = draw(*SHAPE, dtype=torch.float32)
    for i, t in enumerate(theirs.timesteps):
        predicted = draw(*SHAPE, seed=i + 1, dtype=torch.float32)
        expected = theirs.step(predicted, t, x).prev_sample
        torch.testing.assert_close(float(flow.timestep(torch.tensor(sigmas[i]))), float(t), atol=0, rtol=1e-6)
        torch.testing.assert_close(flow.euler(x, predicted, sigmas[i], sigmas[i + 1]), expected, atol=1e-5, rtol=1e-5)
        x = expected
    assert sigmas[-1] == 0


@pytest.mark.parametrize("kind", ["DDPMScheduler", "DDIMScheduler"])
@pytest.mark.parametrize("noise", ["linear", "cosine"])
def test_noised_images_and_their_velocity_equal_diffusers(kind, noise):
    theirs = scheduler_of(kind, noise, "v", None, exact=False)
    image, noise_ = draw(11, 2, 3, 5, dtype=torch.float32), draw(11, 2, 3, 5, seed=1, dtype=torch.float32)
    t = torch.tensor([0, 1, 2, 17, 101, 333, 500, 667, 900, 998, 999])
    for process in (ours_of(theirs, "v", None), make_process(noise, "v")):  # with their table, and with ours
        torch.testing.assert_close(
            process.add_noise(image, noise_, t), theirs.add_noise(image, noise_, t), atol=1e-5, rtol=1e-5
        )
        torch.testing.assert_close(
            process.target(image, noise_, t), theirs.get_velocity(image, noise_, t), atol=1e-5, rtol=1e-5
        )


def test_a_flow_adds_noise_as_diffusers_does():
    diffusers = pytest.importorskip("diffusers", reason="diffusers (an extra) is not installed")
    theirs = diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0)
    theirs.set_timesteps(7)
    image, noise = draw(7, 2, 3, 5, dtype=torch.float32), draw(7, 2, 3, 5, seed=1, dtype=torch.float32)
    found = RectifiedFlow().add_noise(image, noise, theirs.sigmas[:-1])
    torch.testing.assert_close(found, theirs.scale_noise(image, theirs.timesteps, noise), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("noise", ["linear", "cosine"])
def test_the_schedules_are_those_of_diffusers(noise):
    theirs = scheduler_of("DDPMScheduler", noise, "eps", None, exact=False)
    assert len(make_process(noise, "eps")) == len(theirs.alphas_cumprod) == 1000
    alphas = make_process(noise, "eps").alphas_cumprod
    torch.testing.assert_close(alphas, theirs.alphas_cumprod.double(), atol=1e-6, rtol=1e-3)
    torch.testing.assert_close(alphas[:900], theirs.alphas_cumprod[:900].double(), atol=0, rtol=1e-4)


def curved(x, timestep):
    """A prediction that depends on the image and the timestep, and not linearly."""
    return torch.tanh(x.roll(1, -1)) + torch.sin(timestep.to(x.dtype) / 97).reshape(-1, 1, 1, 1) * x


@pytest.mark.parametrize("kind, sampler", [("DDPMScheduler", "ddpm"), ("DDIMScheduler", "ddim")])
@pytest.mark.parametrize("prediction", PREDICTED)
def test_sampling_with_a_scheduler_of_diffusers_equals_ours(kind, sampler, prediction):
    """With as many steps as were trained with: then both use every timestep."""
    theirs = scheduler_of(kind, "cosine", prediction, None, num_train_timesteps=53)
    x = draw(*SHAPE)
    torch.manual_seed(3)
    expected = list(sample_with_scheduler(theirs, curved, x, 53))
    torch.manual_seed(3)
    found = list(sample_steps(ours_of(theirs, prediction, None), curved, x, 53, sampler))
    assert len(found) == len(expected) == 53
    for here, there in zip(found, expected, strict=True):
        torch.testing.assert_close(here, there, atol=1e-8, rtol=1e-7)
    assert not torch.allclose(found[-1], x)


def test_sampling_a_flow_with_a_scheduler_of_diffusers_equals_ours():
    diffusers = pytest.importorskip("diffusers", reason="diffusers (an extra) is not installed")
    x = draw(*SHAPE)
    timesteps = []

    def denoise(x, timestep):
        timesteps.append(timestep)
        return curved(x, timestep)

    expected = list(sample_with_scheduler(diffusers.FlowMatchEulerDiscreteScheduler(), denoise, x, 1000))
    found = list(sample_steps(RectifiedFlow(), denoise, x, 1000))
    torch.testing.assert_close(torch.stack(timesteps[1000:]), torch.stack(timesteps[:1000]), atol=1e-3, rtol=1e-5)
    assert len(found) == len(expected) == 1000
    for here, there in list(zip(found, expected, strict=True))[::111]:
        torch.testing.assert_close(here, there, atol=1e-4, rtol=1e-4)


def test_a_scheduler_without_a_learned_variance_gets_none():
    x, seen = draw(*SHAPE), []

    def both(x, timestep):
        seen.append(timestep)
        return torch.cat((curved(x, timestep), draw(*x.shape, seed=len(seen))), 1)

    theirs = scheduler_of("DDIMScheduler", "linear", "eps", 1.0)
    pairs = zip(sample_with_scheduler(theirs, both, x, 11), sample_with_scheduler(theirs, curved, x, 11), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    theirs = scheduler_of("DDPMScheduler", "linear", "eps", None, num_train_timesteps=31, variance_type="learned_range")
    seen.clear()
    torch.manual_seed(3)
    expected = list(sample_with_scheduler(theirs, both, x, 31))
    seen.clear()
    torch.manual_seed(3)
    found = list(sample_steps(ours_of(theirs, "eps", None), both, x, 31, "ddpm"))
    torch.testing.assert_close(found[-1], expected[-1], atol=1e-8, rtol=1e-7)


# --- the mathematics


def test_the_linear_schedule_is_a_cumulative_product_of_alphas():
    alphas, left = linear().tolist(), 1.0
    for t in range(1000):
        left *= 1 - (1e-4 + (0.02 - 1e-4) * t / 999)
        assert math.isclose(alphas[t], left, rel_tol=1e-12)
    assert math.isclose(alphas[0], 0.9999)
    assert 4e-5 < alphas[-1] < 4.1e-5
    first, *_, last_but_one, last = alphas = linear(17, 0.1, 0.3).tolist()
    assert len(alphas) == 17
    assert math.isclose(first, 0.9)
    assert math.isclose(last / last_but_one, 0.7)


def test_the_cosine_schedule_is_a_squared_cosine_until_its_last_step():
    alphas = cosine().numpy()
    t = np.arange(1, 1001) / 1000
    wave = np.cos((t + 0.008) / 1.008 * np.pi / 2) ** 2 / np.cos(0.008 / 1.008 * np.pi / 2) ** 2
    np.testing.assert_allclose(alphas[:-1], wave[:-1], rtol=1e-9)
    assert math.isclose(alphas[-1] / alphas[-2], 0.001)  # no step takes more than 0.999
    assert (np.diff(alphas) < 0).all()


@settings(max_examples=30)
@given(
    prediction=st.sampled_from(["eps", "x0", "v"]),
    noise=st.sampled_from(["linear", "cosine"]),
    times=st.lists(st.integers(0, 999), min_size=1, max_size=5),
    seed=st.integers(0, 2**31),
)
def test_split_is_the_inverse_of_add_noise(prediction, noise, times, seed):
    process, t = make_process(noise, prediction, clip=None), torch.tensor(times)
    image, noise_ = draw(len(times), 2, 3, seed=seed), draw(len(times), 2, 3, seed=seed + 1)
    found = process.split(process.add_noise(image, noise_, t), process.target(image, noise_, t), t)
    torch.testing.assert_close(found[0], image, atol=1e-7, rtol=0)
    torch.testing.assert_close(found[1], noise_, atol=1e-7, rtol=0)


@settings(max_examples=30)
@given(t=st.integers(0, 999), prediction=st.sampled_from(["eps", "x0", "v"]))
def test_a_clipped_image_is_paired_with_the_noise_that_gives_x(t, prediction):
    process = make_process("linear", prediction, clip=0.5)
    x, when = draw(2, 3, 5), torch.full((2,), t)
    image, noise = process.split(x, draw(2, 3, 5, seed=1), when)
    assert image.abs().max() <= 0.5
    torch.testing.assert_close(process.add_noise(image, noise, when), x, atol=1e-9, rtol=0)


@settings(max_examples=30)
@given(
    prediction=st.sampled_from(["eps", "x0", "v"]), t=st.integers(0, 999), noise=st.sampled_from(["linear", "cosine"])
)
def test_with_a_perfect_model_ddim_finds_the_image_in_one_step(prediction, t, noise):
    process, when = make_process(noise, prediction, clip=None), torch.full((3,), t)
    image, added = draw(*SHAPE), draw(*SHAPE, seed=1)
    x = process.add_noise(image, added, when)
    predicted = process.target(image, added, when)
    torch.testing.assert_close(process.ddim(x, predicted, t, -1), image, atol=1e-7, rtol=0)
    before = t // 3  # and in between it is the image with less of the same noise
    torch.testing.assert_close(
        process.ddim(x, predicted, t, before), process.add_noise(image, added, when // 3), atol=1e-7, rtol=0
    )


@settings(max_examples=30)
@given(times=st.tuples(st.integers(1, 999), st.integers(0, 998)).filter(lambda pair: pair[1] < pair[0]),
       noise=st.sampled_from(["linear", "cosine"]))  # fmt: skip
def test_ddpm_is_the_posterior_of_the_previous_step(times, noise):
    """Bayes on scalars: x_s given x₀ is one Gaussian, x_t given x_s another; precisions add."""
    t, s = times
    process = make_process(noise, "x0", clip=None)
    at_s, at_t = float(process.alphas_cumprod[s]), float(process.alphas_cumprod[t])
    step = at_t / at_s
    image, x = np.array([0.3, -1.7, 2.0]), np.array([1.1, 0.2, -0.6])
    precision = 1 / (1 - at_s) + step / (1 - step)
    mean = (np.sqrt(at_s) * image / (1 - at_s) + np.sqrt(step) * x / (1 - step)) / precision

    def after(noise):
        given = (torch.from_numpy(x)[:, None], torch.from_numpy(image)[:, None])
        return process.ddpm(*given, t, s, torch.full((3, 1), float(noise), dtype=torch.float64))[:, 0].numpy()

    np.testing.assert_allclose(after(0), mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose((after(1) - after(0)) ** 2, 1 / precision, rtol=1e-6)


@pytest.mark.parametrize("t, before", [(999, 998), (999, 900), (500, 0), (2, 1)])
def test_a_learned_variance_lies_between_the_smallest_and_the_largest(t, before):
    process, x = make_process("linear", "eps", None), draw(*SHAPE)
    predicted, ones, zeros = draw(*SHAPE, seed=1), torch.ones_like(x), torch.zeros_like(x)
    now, then = float(process.alphas_cumprod[t]), float(process.alphas_cumprod[before])
    largest, smallest = 1 - now / then, (1 - then) / (1 - now) * (1 - now / then)
    mean = process.ddpm(x, predicted, t, before, zeros)

    def variance(chosen):
        return (process.ddpm(x, predicted, t, before, ones, chosen) - mean) ** 2

    torch.testing.assert_close(variance(-ones), smallest * ones, atol=0, rtol=1e-6)
    torch.testing.assert_close(variance(ones), largest * ones, atol=0, rtol=1e-6)
    torch.testing.assert_close(variance(zeros), math.sqrt(smallest * largest) * ones, atol=0, rtol=1e-6)
    torch.testing.assert_close(variance(ones / 2), smallest**0.25 * largest**0.75 * ones, atol=0, rtol=1e-6)
    torch.testing.assert_close(
        process.ddpm(x, predicted, t, before, ones, -ones), process.ddpm(x, predicted, t, before, ones)
    )
    assert torch.equal(process.ddpm(x, predicted, t, -1, ones, ones), process.ddpm(x, predicted, t, -1, zeros))


def test_ddim_with_eta_one_has_the_mean_and_variance_of_ddpm():
    process, x, predicted = make_process("cosine", "v", None), draw(*SHAPE), draw(*SHAPE, seed=1)
    for t, before in [(999, 998), (700, 500), (10, 3)]:
        noise = draw(*SHAPE, seed=2)
        expected = process.ddpm(x, predicted, t, before, noise)
        torch.testing.assert_close(process.ddim(x, predicted, t, before, noise, 1.0), expected, atol=1e-9, rtol=1e-9)


@settings(max_examples=30)
@given(count=st.integers(1, 1000))
def test_the_timesteps_fall_from_pure_noise_to_none(count):
    times = make_process("linear", "eps").times(count)
    assert len(times) == count
    assert times[0] == 999
    assert times == sorted(set(times), reverse=True)
    assert count == 1 or times[-1] == 0


def test_with_the_true_velocity_a_flow_needs_one_step():
    image, noise = draw(*SHAPE), draw(*SHAPE, seed=1)
    flow = RectifiedFlow()
    for steps, sampler in [(1, "flow"), (7, "flow"), (1, "heun"), (7, "heun")]:
        *_, found = sample_steps(flow, lambda x, timestep: flow.target(image, noise, timestep), noise, steps, sampler)
        torch.testing.assert_close(found, image, atol=1e-12, rtol=0)
    x = flow.add_noise(image, noise, torch.tensor([0.25, 0.5, 0.9]))
    for row, t in enumerate([0.25, 0.5, 0.9]):
        torch.testing.assert_close(flow.euler(x, noise - image, t, 0.0)[row], image[row], atol=1e-6, rtol=0)


@pytest.mark.parametrize("sampler, falls", [("flow", 2), ("heun", 4)])
def test_the_error_falls_by_the_order_of_the_sampler(sampler, falls):
    """x′ = 3·cos(5t)·x, whose solution from 1 back to 0 is known."""
    x = draw(2, 1, 3, 3)
    exact = x * math.exp(-3 * math.sin(5) / 5)

    def bent(x, timestep):
        return 3 * torch.cos(5 * timestep.double() / MAX_TIMESTEP).reshape(-1, 1, 1, 1) * x

    errors = []
    for steps in (100, 200, 400):
        *_, found = sample_steps(RectifiedFlow(), bent, x, steps, sampler)
        errors.append(float((found - exact).abs().max()))
    for wide, narrow in pairwise(errors):
        assert abs(wide / narrow / falls - 1) < 0.1, errors


def generators(seed, rows=SHAPE[0]):
    """A generator for each row."""
    return [torch.Generator().manual_seed(1000 * seed + row) for row in range(rows)]


def test_the_default_samplers_and_the_steps_yielded():
    x = draw(*SHAPE)
    for process, named in ((RectifiedFlow(), "flow"), (make_process("linear", "eps"), "ddim")):
        by_default, by_name = (
            list(sample_steps(process, curved, x, 5)),
            list(sample_steps(process, curved, x, 5, named)),
        )
        assert len(by_default) == 5
        assert all(torch.equal(*pair) for pair in zip(by_default, by_name, strict=True))
    seeded = [
        list(sample_steps(make_process("linear", "eps"), curved, x, 5, "ddpm", generators(seed)))[-1]
        for seed in (1, 1, 2)
    ]
    assert torch.equal(seeded[0], seeded[1])
    assert not torch.equal(seeded[0], seeded[2])


def test_a_row_sampled_with_fresh_noise_does_not_depend_on_the_others():
    x, process = draw(*SHAPE), make_process("linear", "eps")
    *_, all_rows = sample_steps(process, curved, x, 7, "ddpm", generators(3))
    *_, first = sample_steps(process, curved, x[:1], 7, "ddpm", generators(3, 1))
    assert torch.equal(all_rows[:1], first)
    with pytest.raises(ValueError, match="each row needs its own"):
        next(sample_steps(process, curved, x, 7, "ddpm", generators(3, 1)))


def test_a_model_with_twice_the_channels_gives_a_variance():
    x, process = draw(*SHAPE), make_process("linear", "eps")
    for chosen, sampler in ((0.3, "ddpm"), (-1.0, "ddpm"), (0.3, "ddim")):

        def both(x, timestep, chosen=chosen):
            return torch.cat((curved(x, timestep), torch.full_like(x, chosen)), 1)

        runs = [list(sample_steps(process, model, x, 5, sampler, generators(1)))[-1] for model in (both, curved)]
        assert torch.allclose(*runs) == (chosen == -1 or sampler == "ddim")


def test_training_times_are_uniform_or_logit_normal():
    torch.manual_seed(0)
    drawn = torch.rand(20000), torch.randn(20000)
    t = make_process("linear", "eps").training_times(*drawn)
    assert t.dtype == torch.long
    assert t.aminmax() == (0, 999)
    assert abs(float(t.double().mean()) - 499.5) < 10
    assert torch.equal(make_process("linear", "eps").timestep(t), t)
    t = RectifiedFlow().training_times(*drawn)
    assert bool(((t > 0) & (t < 1)).all())
    odds = (t / (1 - t)).log()  # a normal curve
    assert abs(float(odds.mean())) < 0.05
    assert abs(float(odds.std()) - 1) < 0.05
    assert torch.equal(RectifiedFlow().timestep(t), t * 1000)


class Model:
    """A prediction that depends on every input; records its calls."""

    def __init__(self, width=1):
        self.calls, self.width = [], width

    def __call__(self, x, timestep, given, places=None, drop_condition=None):
        self.calls.append((len(x), places))
        label = given.double().reshape(len(x), -1).sum(1)
        label = (label if drop_condition is None else label.masked_fill(drop_condition, -1.0)).reshape(-1, 1, 1, 1)
        predicted = torch.tanh(x + label) + timestep.to(x).reshape(-1, 1, 1, 1) / 1000
        return predicted if self.width == 1 else torch.cat((predicted, predicted * label), 1)


def test_guidance_extrapolates_from_the_unconditional_to_the_conditional_prediction():
    x, timestep, given = draw(*SHAPE), torch.tensor([5, 500, 999]), torch.tensor([0, 1, 2])
    model = Model()
    predicted, plain = model(x, timestep, given), model(x, timestep, given, None, torch.ones(3, dtype=torch.bool))
    torch.testing.assert_close(classifier_free_guidance(model, given, 1)(x, timestep), predicted, atol=1e-12, rtol=0)
    torch.testing.assert_close(classifier_free_guidance(model, given, 0)(x, timestep), plain, atol=1e-12, rtol=0)
    for scale in (-1.5, 0.5, 1.000001, 4.0):
        expected = (1 - scale) * plain + scale * predicted
        torch.testing.assert_close(
            classifier_free_guidance(model, given, scale)(x, timestep), expected, atol=1e-12, rtol=0
        )


@pytest.mark.parametrize("scale, rows", [(1, 3), (1.0, 3), (0, 6), (4.0, 6)])
def test_guidance_calls_the_model_once_a_step(scale, rows):
    model = Model()
    list(
        sample_steps(RectifiedFlow(), classifier_free_guidance(model, torch.tensor([0, 1, 2]), scale), draw(*SHAPE), 7)
    )
    assert [count for count, _ in model.calls] == [rows] * 7


def test_guidance_passes_the_places_of_a_text():
    index = torch.tensor([[0, 1, 2], [0, 1, NOWHERE], [0, NOWHERE, NOWHERE]])
    model = Model()
    classifier_free_guidance(model, torch.ones(3, 3, dtype=torch.long), 2.0, Span.at(index))(
        draw(*SHAPE), torch.zeros(3)
    )
    assert torch.equal(model.calls[0][1].index, torch.cat((index, index)))


def test_guidance_changes_the_prediction_and_keeps_the_conditional_variance():
    x, timestep, given = draw(*SHAPE), torch.tensor([5, 500, 999]), torch.tensor([0, 1, 2])
    found = classifier_free_guidance(Model(width=2), given, 4.0)(x, timestep)
    torch.testing.assert_close(
        found[:, :2], classifier_free_guidance(Model(), given, 4.0)(x, timestep), atol=1e-12, rtol=0
    )
    assert torch.equal(found[:, 2:], Model(width=2)(x, timestep, given)[:, 2:])


@pytest.mark.parametrize("process, sampler, words", [
    (RectifiedFlow(), "ddpm", "the sampler ddpm does not fit a model that predicts velocity; use flow or heun"),
    (RectifiedFlow(), "ddim", "the sampler ddim does not fit a model that predicts velocity; use flow or heun"),
    (make_process("linear", "v"), "flow", "the sampler flow does not fit a model that predicts v; use ddpm or ddim"),
    (make_process("cosine", "eps"), "heun", "the sampler heun does not fit a model that predicts eps; use ddpm or ddim"),
    (RectifiedFlow(), "euler", "euler is not a sampler; known: ddpm, ddim, flow, heun"),
])  # fmt: skip
def test_a_sampler_that_does_not_fit_is_refused_in_a_sentence(process, sampler, words):
    with pytest.raises(UserError, match=f"^{words}$"):
        next(sample_steps(process, curved, draw(*SHAPE), 5, sampler))


@pytest.mark.parametrize("process", [RectifiedFlow(), make_process("linear", "eps")])
@pytest.mark.parametrize("steps", [0, -3])
def test_fewer_than_one_step_is_refused(process, steps):
    with pytest.raises(UserError, match=f"^--steps must be at least 1, not {steps}$"):
        next(sample_steps(process, curved, draw(*SHAPE), steps))


def test_more_steps_than_trained_with_are_refused():
    with pytest.raises(UserError, match="^--steps 1001 is more than the 1000 noise steps the model was trained with$"):
        next(sample_steps(make_process("linear", "eps"), curved, draw(*SHAPE), 1001))
    assert len(list(sample_steps(RectifiedFlow(), lambda x, timestep: x, draw(1, 1, 1, 1), 1001))) == 1001


# --- the variational bound


def noised_at(process, times, seed=0, dtype=torch.float64):
    """Images of 256 levels, noised; some prediction, some variance, and the times."""
    t, shape = torch.tensor(times), (len(times), 2, 5, 7)
    image = (draw(*shape, seed=seed) * 127).round().clamp(-127, 128) / 127.5 - 0.5 / 127.5
    noise = draw(*shape, seed=seed + 1, dtype=dtype)
    x, target = process.add_noise(image.to(dtype), noise, t), process.target(image.to(dtype), noise, t)
    predicted = target + 0.3 * draw(*shape, seed=seed + 2, dtype=dtype)
    return image.to(dtype), x, predicted, draw(*shape, seed=seed + 3, dtype=dtype), t


@pytest.mark.parametrize("noise", ["linear", "cosine"])
@pytest.mark.parametrize("prediction", PREDICTED)
@pytest.mark.parametrize("clip", [None, 0.7])
def test_after_the_first_step_the_bound_is_the_divergence_of_two_normals(noise, prediction, clip):
    process = make_process(noise, prediction, clip)
    image, x, predicted, chosen, t = noised_at(process, [1, 2, 17, 500, 997, 999])
    found = process.variational_bound(image, x, predicted, chosen, t)
    known, zeros = GaussianDiffusion(process.alphas_cumprod, "x0", None), torch.zeros(2, 5, 7, dtype=torch.float64)
    for row, when in enumerate(t.tolist()):
        now, then = float(process.alphas_cumprod[when]), float(process.alphas_cumprod[when - 1])
        largest, smallest = 1 - now / then, (1 - then) / (1 - now) * (1 - now / then)
        mixed = (chosen[row] + 1) / 2
        variance = largest**mixed * smallest ** (1 - mixed)
        # the means are those of a step without noise: from the image itself, and from the prediction
        true = known.ddpm(x[row, None], image[row, None], when, when - 1, zeros)[0]
        ours = process.ddpm(x[row, None], predicted[row, None], when, when - 1, zeros)[0]
        exact = kl_divergence(Normal(true, math.sqrt(smallest)), Normal(ours, variance.sqrt()))
        torch.testing.assert_close(found[row], exact.mean() / math.log(2), atol=1e-9, rtol=1e-6)


def test_at_the_first_step_the_bound_is_the_negative_log_likelihood():
    process = make_process("linear", "eps")
    image, x, predicted, chosen, t = noised_at(process, [0, 0, 0])
    mean, _ = process.split(x, predicted, t)
    first, second = (float(share) for share in process.alphas_cumprod[:2])
    largest = 1 - first
    smallest = largest / (1 - second) * (1 - second / first)  # that of the step after
    mixed = (chosen + 1) / 2
    model = Normal(mean, (largest**mixed * smallest ** (1 - mixed)).sqrt())
    plain = -model.log_prob(image).flatten(1).mean(1) / math.log(2)
    torch.testing.assert_close(
        process.variational_bound(image, x, predicted, chosen, t, levels=None), plain, atol=1e-9, rtol=1e-9
    )
    low, high = image - 1 / 255, image + 1 / 255
    low[image < -0.999], high[image > 0.999] = -math.inf, math.inf
    likelihood = (model.cdf(high) - model.cdf(low)).log()
    near = likelihood > -20  # farther out a difference of two cdfs has no digits left
    found = log_likelihood(image, mean, 2 * model.scale.log(), 256)
    assert near.double().mean() > 0.9
    torch.testing.assert_close(found[near], likelihood[near], atol=1e-6, rtol=1e-6)
    bits = process.variational_bound(image, x, predicted, chosen, t)
    torch.testing.assert_close(bits, -found.flatten(1).mean(1) / math.log(2), atol=1e-12, rtol=1e-12)


@settings(max_examples=30)
@given(
    mean=st.floats(-1.5, 1.5),
    log_variance=st.floats(-14, 5),
    levels=st.sampled_from([2, 7, 256]),
    wide=st.booleans(),
)
def test_the_probabilities_of_all_levels_sum_to_one(mean, log_variance, levels, wide):
    dtype = torch.float64 if wide else torch.float32
    every = torch.linspace(-1, 1, levels, dtype=torch.float64).to(dtype)
    probabilities = (
        log_likelihood(every, torch.full_like(every, mean), torch.full_like(every, log_variance), levels).double().exp()
    )
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-9 if wide else 1e-3)


@settings(max_examples=30)
@given(t=st.integers(0, 999), noise=st.sampled_from(["linear", "cosine"]), push=st.sampled_from([-30.0, 0.0, 30.0]))
def test_the_bound_is_finite_and_trains_only_the_variance(t, noise, push):
    process = make_process(noise, "eps", None)
    image, x, predicted, chosen, when = noised_at(process, [t, 0, 999], seed=t, dtype=torch.float32)
    both = torch.cat((predicted, chosen + push), 1).requires_grad_()
    bound = process.variational_bound(image, x, both[:, :2], both[:, 2:], when)
    assert bound.shape == (3,)
    bound.sum().backward()
    assert both.grad is not None
    assert torch.isfinite(bound).all()
    assert torch.isfinite(both.grad).all()
    assert (both.grad[:, :2] == 0).all()
    assert (both.grad[:, 2:] != 0).any()


@pytest.mark.parametrize("power", [0.0, 0.13, 1.0])
def test_the_learned_variance_is_the_right_one(power):
    """Images from a Gaussian of this variance: with the best mean, the right variance is known at every step."""
    process, times = make_process("linear", "x0", clip=None), [1, 2, 11, 101, 997]
    alphas, before = process.alphas_cumprod[times], process.alphas_cumprod[[t - 1 for t in times]]
    left = power * (1 - alphas) / (power * alphas + 1 - alphas)  # of the image's variance, once x is known
    step = 1 - alphas / before
    smallest = (1 - before) / (1 - alphas) * step
    right = smallest + (before.sqrt() * step / (1 - alphas)) ** 2 * left
    expected = 2 * (right / smallest).log() / (step / smallest).log() - 1
    # the divergence depends only on the mean squared error: two images stand for all there could be
    t, best = torch.tensor(times * 2), draw(10, 1)
    image = best + torch.cat((left.sqrt(), -left.sqrt()))[:, None]
    chosen = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer, bounds = torch.optim.Rprop([chosen], lr=0.1, step_sizes=(1e-9, 1)), []
    for _ in range(97):
        bound = process.variational_bound(image, draw(10, 1, seed=1), best, chosen.repeat(2)[:, None], t).mean()
        optimizer.zero_grad()
        bound.backward()
        optimizer.step()
        bounds.append(float(bound.detach()))
    assert bounds[-1] < bounds[0]
    torch.testing.assert_close(chosen.detach(), expected, atol=1e-6, rtol=0)
    if power in (0.0, 1.0):  # as the paper has it: the smallest for a point, the largest for noise itself
        torch.testing.assert_close(expected, torch.full_like(expected, 2 * power - 1), atol=1e-9, rtol=0)
