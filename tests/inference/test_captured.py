"""The sampler of images with a captured model, against the plain one; the real capture is tested on a GPU."""

import gc
from contextlib import contextmanager

import pytest
import torch

from pencil.families import create
from pencil.inference import image_sampling
from pencil.inference.cuda_graph import Captured
from pencil.inference.diffusion import classifier_free_guidance, draw_noise, make_process, sample_steps
from pencil.inference.image_sampling import sample_images


class Graph:
    """In place of a CUDA graph: a replay computes from the held inputs, and writes over the held output."""

    def replay(self):
        held = self.held
        held.output.copy_(held.function(*held.inputs))


@pytest.fixture
def on_cpu(monkeypatch):
    """What a CUDA graph does, on a CPU; the number of captures."""
    captures = []

    @contextmanager
    def capture(graph, **options):
        captures.append(graph)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return captures


def held(denoise):
    made = Captured(denoise)
    plain = made._capture

    def capture(inputs):
        plain(inputs)
        made.graph.held = made

    made._capture = capture
    return made


def test_no_garbage_is_collected_during_a_capture(on_cpu):
    """It could destroy an older graph, which CUDA does not permit then; after the capture, or its failure, it goes on."""
    collected = []

    def denoise(x):
        collected.append(gc.isenabled())
        if x.isnan().any():
            raise RuntimeError("cannot be captured")
        return x + 1

    made = held(denoise)
    for _ in range(3):
        made(torch.ones(3))
    assert collected[:2] == [True, False]  # as it is, then captured
    assert gc.isenabled()
    made = held(denoise)
    made(torch.ones(3))
    with pytest.raises(RuntimeError, match="cannot be captured"):
        made(torch.tensor([torch.nan]))
    assert gc.isenabled()


def model():
    torch.manual_seed(5)
    made = create(
        "dit", dict(image_size=(6, 6), patch=(3, 3), channels=2, width=14, heads=2, depth=2, classes=3)
    ).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


@pytest.mark.parametrize("noise, sampler", [("flow", "flow"), ("flow", "heun"), ("linear", "ddim"), ("cosine", "ddpm")])
def test_a_captured_model_gives_the_same_bits(on_cpu, noise, sampler):
    process, made = make_process(noise, "eps"), model()

    def steps(wrap):
        rows = [torch.Generator().manual_seed(i) for i in range(5)]
        denoise = wrap(classifier_free_guidance(made, torch.arange(5) % 3, 2.5))
        return list(sample_steps(process, denoise, draw_noise((5, 2, 6, 6), rows), 7, sampler, rows))

    found, expected = steps(held), steps(lambda denoise: denoise)
    assert len(on_cpu) == 1
    assert all(map(torch.equal, found, expected))


def test_sampling_says_how_long_its_start_took(monkeypatch):
    lines, calls = [], []
    monkeypatch.setattr(torch, "compile", lambda denoise, dynamic: calls.append(dynamic) or denoise)
    given = (torch.arange(2),)
    images = sample_images(
        model(), make_process("flow", "eps"), given, 2, 2.0, steps=5, compile=True, notify=lines.append
    )
    plain = sample_images(model(), make_process("flow", "eps"), given, 2, 2.0, steps=5, notify=lines.append)
    assert (images[-1] == plain[-1]).all()
    assert calls == [False]
    assert len(lines) == 1
    assert lines[0].startswith("start-up and the first 2 steps took ")
    assert ", the other 3 steps " in lines[0]


@pytest.mark.parametrize("prediction", ["eps", "x0", "v"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_time_for_all_rows_is_as_the_time_of_each(prediction, dtype):
    process = make_process("cosine", prediction)
    x, predicted = (torch.randn(3, 2, 5, 7, generator=torch.Generator().manual_seed(i)).to(dtype) for i in (0, 1))
    for t in (0, 1, 499, 999):
        each = process.split(x, predicted, torch.full((3,), t))
        assert all(map(torch.equal, process.split(x, predicted, t), each))


def test_nothing_is_captured_on_a_cpu(monkeypatch):
    monkeypatch.setattr(image_sampling, "Captured", None)
    images = sample_images(model(), make_process("flow", "eps"), (torch.arange(2),), 2, 2.0, steps=4)
    assert len(images[-1]) == 2
