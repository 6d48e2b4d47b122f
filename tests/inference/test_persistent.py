"""The persistent kernel's conditions, which need no GPU; what it computes is in tests/gpu."""

import inspect
import re
from pathlib import Path

import pytest
import torch

from pencil.families import create
from pencil.inference import persistent
from pencil.inference.persistent import refusal
from pencil.models.gpt import GPTConfig

SIZES = dict(vocab=31, context=23, width=48, depth=2, heads=3, head_dim=32)


def test_a_model_that_is_not_on_a_gpu_is_not_taken():
    assert refusal(create("gpt", GPTConfig(**SIZES)), 1) == "it needs a CUDA GPU of compute capability 9.0 or higher"
    assert refusal(torch.nn.Linear(2, 3), 1) == "a Linear is not a GPT"


@pytest.mark.parametrize("columns, chunk", [(3072, 1536), (6400, 1600), (688, 704), (11008, 1600), (16, 64)])
def test_columns_are_copied_in_equal_parts_of_whole_lines(columns, chunk):
    assert persistent._chunk(columns) == chunk
    assert chunk % 64 == 0  # a row of the ring and the next one then lie in different banks


@pytest.mark.parametrize(
    "gated, rings, stages, fastest",
    [
        (False, 0.54, 8, {6, 8}),  # GPT-2 124M
        (False, 2.58, 7, {1, 2}),  # GPT-2 XL
        (True, 2.46, 8, {2, 3, 8}),  # LLaMA's blocks of that size
        (False, 7.19, 7, {2, 3}),
        (False, 20.57, 6, {3}),
        (True, 21.39, 6, {3, 4}),  # llama3-8b
    ],
)
def test_copies_in_flight_are_among_the_fastest_that_were_measured(gated, rings, stages, fastest):
    assert persistent.copies_in_flight(gated, rings, stages) in fastest


def test_every_size_the_kernel_names_is_given_to_it():
    source = Path(persistent.__file__).with_suffix(".cu").read_text()
    source = re.sub(r"//.*|\".*?\"", "", source)
    defined = set(re.findall(r"#define (\w+)", source))
    templates = {"COUNT", "STEP", "GATES"}
    named = set(re.findall(r"\b[A-Z][A-Z_]+\b|\b[BD]\b", source)) - defined - templates
    given = set(re.findall(r"\b([A-Z][A-Z_]*)=", inspect.getsource(persistent.PersistentStep.__init__)))
    assert named == given
