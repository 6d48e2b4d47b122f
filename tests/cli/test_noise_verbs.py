"""train, sample and resume of a diffusion transformer, and what is refused."""

import pytest
from PIL import Image
from test_tracing import fails  # noqa: F401
from test_verbs import type_in  # noqa: F401

from pencil.cli.main import main

SMALL = ("--model.width", 16, "--model.depth", 1, "--model.heads", 2, "--train.batch", 5, "--train.steps", 2,
         "--train.eval_every", 2, "--train.eval_batches", 1, "--train.save_every", 1)  # fmt: skip


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A small dit of digits: read it, do not write into it."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    with pytest.raises(SystemExit) as ended:
        main([*map(str, ("train", "dit", *SMALL, "--out", folder))])
    assert not ended.value.code
    return folder


@pytest.fixture
def drawn(type_in):  # noqa: F811
    type_in("train", "dit", *SMALL)
    return "runs/digits-dit"


def test_the_story_of_a_dit_on_digits(type_in, drawn, tmp_path):  # noqa: F811
    said = type_in("sample", drawn, "--label", 7, "--count", 5, "--guidance", 3, "--steps", 4)
    assert said.err.split() == [f"{drawn}/sampled/grid.png", f"{drawn}/sampled/strip.png"]
    grid, strip = (Image.open(tmp_path / path) for path in said.err.split())
    assert grid.width > grid.height  # five in three columns
    assert strip.width > 4 * strip.height
    first = (tmp_path / drawn / "sampled" / "grid.png").read_bytes()
    type_in("sample", drawn, "--label", 7, "--count", 5, "--guidance", 3, "--steps", 4)
    assert (tmp_path / drawn / "sampled" / "grid.png").read_bytes() == first
    type_in("sample", drawn, "--label", 7, "--count", 5, "--steps", 4, "--seed", 1, "--out", "other.png")
    assert (tmp_path / "other.png").read_bytes() != first
    assert "Trained 3 steps" in type_in("resume", drawn, "--train.steps", 3).err
    assert "--label 0" in (tmp_path / drawn / "README.md").read_text()


def test_a_video_is_drawn_as_a_film(type_in, tmp_path):  # noqa: F811
    type_in("train", "dit", "--data", "moving-digits", "--model.attention", "windowed", "--model.window", 2, *SMALL)
    type_in("sample", "runs/moving-digits-dit", "--label", 3, "--steps", 2, "--out", "three.gif")
    assert Image.open(tmp_path / "three.gif").n_frames >= 1
    assert (tmp_path / "strip.png").is_file()


def test_a_text_is_drawn(type_in, tmp_path):  # noqa: F811
    type_in("train", "dit", "--data", "scenes", *SMALL)
    said = type_in("sample", "runs/scenes-dit", "--prompt", "a one above a two", "--steps", 2)
    assert (tmp_path / said.err.split()[0]).is_file()


@pytest.mark.parametrize("words, said", [
    (("--label", "eleven"), "was not trained on a label eleven"),
    (("--label", 7, "--steps", 0), "--steps must be at least 1, not 0"),
    (("--label", 7, "--sampler", "ddim"), "does not fit a model that says flow; flow or heun would"),
    (("--label", 7, "--sampler", "magic"), "magic is not a sampler"),
    ((), "say it by --label"),
    (("--label", 7, "--beams", 2), "it takes no --beams"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused(fails, once, words, said):  # noqa: F811
    assert said in fails("sample", once, *words)


def test_guidance_needs_the_null_class(type_in, fails):  # noqa: F811
    type_in("train", "dit", "--model.null", "false", *SMALL, "--out", "bare")
    assert "without the null class" in fails("sample", "bare", "--label", 7, "--guidance", 2)
    type_in("sample", "bare", "--label", 7, "--steps", 1)
