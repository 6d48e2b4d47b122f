"""The figures of document 002: four files, whose numbers are those of the traces."""

import re

import numpy as np
import pytest

from conftest import call
from pencil import draw
from pencil.learn.figures import FIGURES, drawn
from traced import traced


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("figures") / "new"
    call("figures", "002", "--out", made)
    return made


@pytest.fixture(scope="module")
def texts(folder):
    """The text of each figure."""
    found = {}
    for name in FIGURES["002"]:
        svg = (folder / f"002-{name}.svg").read_text(encoding="utf-8")
        spans = re.findall(r"<(?:text|tspan)[^>]*>([^<]+)</", svg)
        found[name] = [one.strip().replace("−", "-") for one in spans]
    return found


def numbers(texts):
    return [float(one) for one in texts if re.fullmatch(r"-?\d+\.\d\d", one)]


def cells(found, name, head):
    return np.asarray(found[name].value)[0, head].round(2).ravel().tolist()


def test_one_command_writes_four_files(folder, tmp_path):
    assert sorted(path.name for path in folder.iterdir()) == [f"002-{name}.svg" for name in FIGURES["002"]]
    assert drawn(draw.canvas(1, 1), "png").startswith(b"\x89PNG")
    (tmp_path / "file").write_text("mine")
    assert "is a file; --out is the folder" in call("figures", "002", "--out", tmp_path / "file", code=2).stderr
    assert "there are no figures of 003; those of 002" in call("figures", "003", "--out", tmp_path, code=2).stderr


def test_the_lookup_shows_its_trace(texts):
    found = traced("example:soft-lookup")
    shown = " ".join(texts["1-soft-lookup"])
    for i in range(3):
        weight, score = (float(np.asarray(found[name].value)[0, 0, 0, i]) for name in ("pattern", "scores"))
        assert f"α{i + 1} = {weight:.2f}" in shown
        assert f"× {weight:.2f}" in shown
        assert f"q·k{i + 1}/√2 = {score:.2f}" in shown
    y = np.asarray(found["z"].value)[0, 0, 0]
    assert f"({y[0]:.2f}, {y[1]:.2f})" in shown


def test_the_demo_shows_its_trace(texts):
    found = traced("example:mha-demo")
    shown = numbers(texts["3-attention"])
    assert shown[:36] == pytest.approx(cells(found, "one.scores", 0))
    rest = [one for one in shown if one in cells(found, "one.pattern", 0)]
    assert set(cells(found, "one.pattern", 0)) <= set(rest)
    for _, plain, scaled in found.facts["curve"]:
        assert f"{plain:.2f}" in texts["3-attention"]
        assert f"{scaled:.2f}" in texts["3-attention"]


def test_the_heads_show_their_trace(texts):
    found = traced("example:mha-demo")
    shown = numbers(texts["4-heads"])
    assert shown[: 4 * 36] == pytest.approx([one for head in range(4) for one in cells(found, "many.pattern", head)])
    assert [one for one in texts["4-heads"] if one.startswith("head ")] == [f"head {i}" for i in range(4)]


def test_the_block_is_drawn_from_what_was_computed(texts):
    found = traced("example:nanogpt-block")
    shown = [one for one in texts["2-block"] if "×" in one]
    names = ["input", *(f"blocks.0.{name}" for name in ("attn_norm", "attn.out", "mid", "mlp_norm", "mlp.out", "post"))]
    assert len(shown) == len(names)
    for text, name in zip(shown, names, strict=True):
        node = found[name].node
        assert node.formula in text
        assert text.endswith(f"({' × '.join(map(str, node.shape[1:]))})")
        assert ("⊕" in text) == (name in ("blocks.0.mid", "blocks.0.post"))
    assert [one for one in texts["2-block"] if one.startswith("residual")] == ["residual X⁰", "residual X′"]
