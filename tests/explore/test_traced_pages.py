"""The page of a trace: of a run the views of the explorer, of the trace's own input; of anything else the reason why not."""

import re
from html import unescape

import numpy as np
import pytest
import torch
from PIL import Image
from shared_page import views_of
from small_runs import write_run

import pencil
from pencil.cli.main import run as command
from pencil.explore import export
from pencil.tracing.trace import read


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def get(name, **changed):
        key = (name, *changed.items())
        if key not in made:
            made[key] = write_run(name, folder / str(len(made)), **changed)
        return made[key]

    return get


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """How much of Why is in a file is proved elsewhere."""
    monkeypatch.setattr(export, "MOST_NUMBERS", 2)
    monkeypatch.setattr(export, "MOST_DIVIDED", 2)


def written(run, *options, folder):
    path = folder / "page.html"
    assert command(["trace", str(run), *options, "--html", str(path)]) == 0
    return path.read_text(encoding="utf-8")


@pytest.mark.long
def test_a_text_is_written_as_share_writes_it(runs, tmp_path):
    page = written(runs("gpt"), "--input", "a dog", "--edit", "blocks.0.attn.z[:,1]=0", folder=tmp_path)
    views = views_of(page)
    assert views["answer"]["state"]["input"]["text"] == "a dog"
    assert views["answer"]["state"]["edits"] == ["blocks.0.attn.z[:,1]=0"]
    assert views["model"]["example"]["text"] == "a dog"
    assert views["view"] == "look"
    assert views["attention"]["groups"]
    assert views["contributions"]
    # in Python, by the same function
    t = pencil.trace(runs("gpt"), "a dog").edit("blocks.0.attn.z[:,1]", 0)
    t.to_html(tmp_path / "again.html")
    again = views_of((tmp_path / "again.html").read_text(encoding="utf-8"))
    for one in (views, again):
        one["answer"]["milliseconds"] = 0
    assert again == views


def test_a_picture_and_a_step_are_those_of_the_trace(runs, tmp_path):
    picture = np.random.default_rng(3).integers(256, size=(23, 31), dtype=np.uint8)
    Image.fromarray(picture).save(tmp_path / "one.png")
    views = views_of(written(runs("vit"), "--input", str(tmp_path / "one.png"), folder=tmp_path))
    logits = pencil.trace(runs("vit"), tmp_path / "one.png").logits[0]
    for bar in views["answer"]["classes"]:
        assert bar["logit"] == pytest.approx(float(logits[bar["id"]]), rel=1e-5)
    drawn = views_of(written(runs("dit"), "--label", "7", "--steps", "5", "--seed", "2", folder=tmp_path))
    assert drawn["answer"]["state"]["input"] == {
        "label": "7", "options": {"steps": 5, "step": 3, "guidance": 1.0, "seed": 2}
    }  # fmt: skip


@pytest.mark.long
def test_a_file_of_a_trace_has_the_limit_of_share(runs, tmp_path, monkeypatch):
    run = runs("gpt", width=96, hidden=384, context=61)
    monkeypatch.setattr(export, "MOST_VIEW_BYTES", 150_000)
    whole = written(run, "--input", "the cat sat on the mat", folder=tmp_path)
    monkeypatch.setattr(export, "MOST_FILE_BYTES", 2 * len(whole) // 3)
    less = written(run, "--input", "the cat sat on the mat", folder=tmp_path)
    assert len(less.encode()) <= export.MOST_FILE_BYTES
    assert any(re.search(r"values of \d+ of \d+ tensors", line) for line in views_of(less)["left_out"])


def test_in_a_notebook_it_is_the_same_page(runs):
    framed = pencil.trace(runs("vit"), picture_file(runs)).explore()._repr_html_()
    held = views_of(unescape(framed))["contributions"]
    assert held
    assert all(cell.startswith("logits[") for cell in held)


def picture_file(runs):
    path = runs("vit").parent / "digit.png"
    Image.fromarray(np.full((8, 8), 90, np.uint8)).save(path)
    return path


def why_not(page):
    views = views_of(page)
    assert "answer" not in views
    return " ".join(views["left_out"])


def test_what_is_no_run_says_why_its_page_has_no_answer(runs, tmp_path):
    assert "worked example" in why_not(written("example:vit-4x4", folder=tmp_path))
    assert "--of chose" in why_not(written(runs("gpt"), "--input", "a", "--of", "blocks.1.*", folder=tmp_path))
    t = pencil.trace(runs("gpt"), "a dog")
    t.save(tmp_path / "t.trace.safetensors")
    assert "trace file" in why_not(written(tmp_path / "t.trace.safetensors", folder=tmp_path))
    read(tmp_path / "t.trace.safetensors").to_html(tmp_path / "b.html")
    assert "trace file" in why_not((tmp_path / "b.html").read_text(encoding="utf-8"))
    t.edit("blocks.0.attn.z", lambda z: z * 2).to_html(tmp_path / "c.html")
    assert "edits that can be written" in why_not((tmp_path / "c.html").read_text(encoding="utf-8"))
    pencil.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).to_html(tmp_path / "d.html")
    assert "trace of a module" in why_not((tmp_path / "d.html").read_text(encoding="utf-8"))


def test_an_input_that_the_explorer_refuses_is_said(runs, tmp_path):
    why = why_not(written(runs("dit"), "--label", "7", "--steps", "3", "--seed", "12345", folder=tmp_path))
    assert "seed must be from 0 to 9999" in why


@pytest.mark.parametrize("name", ["reader", "seq2seq"])
def test_other_texts(runs, tmp_path, name):
    text = {"reader": "it [mask] was", "seq2seq": "2 May"}[name]
    answer = views_of(written(runs(name), "--input", text, folder=tmp_path))["answer"]
    assert answer["state"]["input"]["source" if name == "seq2seq" else "text"] == text
    assert answer["tokens"]
