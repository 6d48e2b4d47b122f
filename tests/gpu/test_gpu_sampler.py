"""Images sampled with a captured model on a GPU: the same bits as without; compiled, the same within rounding."""

import pytest
import torch

from conftest import unchecked
from pencil.families import create
from pencil.inference.cuda_graph import Captured
from pencil.inference.diffusion import classifier_free_guidance, draw_noise, make_process, sample_steps
from pencil.inference.image_sampling import sample_images

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")
SAMPLERS = [("flow", "flow"), ("flow", "heun"), ("linear", "ddim"), ("cosine", "ddpm")]


@pytest.fixture(autouse=True)
def without_checks():
    torch.compiler.reset()
    with unchecked():
        yield
    torch.cuda.empty_cache()


def model(dtype=torch.float32, **values):
    torch.manual_seed(5)
    sizes = dict(image_size=(12, 12), patch=(3, 3), channels=4, width=96, heads=3, depth=3, classes=7)
    made = create("dit", {**sizes, **values}).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return made.to("cuda", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("noise, sampler", SAMPLERS)
def test_a_captured_model_gives_the_same_bits(noise, sampler, dtype):
    process, made = make_process(noise, "eps"), model(dtype)

    def steps(wrap):
        rows = [torch.Generator().manual_seed(i) for i in range(5)]
        denoise = wrap(classifier_free_guidance(made, torch.arange(5, device="cuda"), 2.5))
        return list(sample_steps(process, denoise, draw_noise((5, 4, 12, 12), rows).cuda(), 9, sampler, rows))

    captured = []
    found = steps(lambda denoise: captured.append(Captured(denoise)) or captured[0])
    assert captured[0].graph is not None
    assert all(map(torch.equal, found, steps(lambda denoise: denoise)))


@pytest.mark.parametrize("values", [{}, dict(attention="windowed", window=2), dict(positions="alibi")])
def test_the_same_seed_gives_the_same_images(values):
    made, lines = model(**values), []
    given, process = (torch.arange(7),), make_process("linear", "eps")
    # two seeds in turn: a graph belongs to one sampling
    for seed in (0, 1):
        same = dict(guidance=3.0, steps=11, seed=seed, show_steps=4)
        found = sample_images(made, process, given, 7, notify=lines.append, **same)
        plain = sample_images(made, process, given, 7, capture=False, **same)
        assert len(found) == len(plain) == 4
        assert all((a == b).all() for a, b in zip(found, plain, strict=True))
    assert len(lines) == 2
    assert "start-up" in lines[0]


def test_a_text_condition_is_captured_too():
    made = model(classes=None, vocab=97, context=13)
    tokens, index = torch.randint(97, (3, 13)), torch.arange(13).repeat(3, 1)
    same = dict(guidance=2.0, steps=6, seed=3)
    process = make_process("flow", "eps")
    found, plain = (sample_images(made, process, (tokens, index), 3, capture=c, **same)[-1] for c in (True, False))
    assert (found == plain).all()


def test_compiled_images_differ_by_rounding_only():
    made, given, process = model(), (torch.arange(7),), make_process("flow", "eps")
    same = dict(guidance=2.0, steps=5, seed=3)
    found = sample_images(made, process, given, 7, compile=True, **same)[-1].astype(int)
    plain = sample_images(made, process, given, 7, capture=False, **same)[-1].astype(int)
    assert abs(found - plain).max() <= 2
    assert (found == plain).mean() > 0.98


def test_no_step_but_the_first_two_waits_for_the_device():
    made, process = model(), make_process("linear", "eps")
    denoise = Captured(classifier_free_guidance(made, torch.arange(5, device="cuda"), 2.5))
    steps = sample_steps(process, denoise, torch.randn(5, 4, 12, 12, device="cuda"), 9, "ddim")
    for _ in range(2):
        next(steps)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in steps:
            pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
