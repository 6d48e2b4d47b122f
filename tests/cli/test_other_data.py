"""eval --data: a run on other data, all of it; and data that has changed names what changed."""

import json
import shutil

import numpy as np
import pytest
import torch

from albums import album, photos, picture, write_rows
from commands import REVIEWS, SMALL, WORDS, metrics, trained, write_pairs
from pencil.api.loading import load
from pencil.data.images.decoding import open_image
from pencil.families.predictions import input_transform
from pencil.models.build import normalize


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A vit of a folder of its own pictures, and the folder."""
    folder = tmp_path_factory.mktemp("pictures")
    photos(folder / "photos", {"cat": 17, "dog": 13})
    return trained(folder, "train", "vit", "--data", folder / "photos", "--size", 16), folder / "photos"


@pytest.fixture
def own(pictures, tmp_path):
    """Copies of both, to change: the run, and the folder it was trained on."""
    run, folder = (shutil.copytree(path, tmp_path / path.name) for path in pictures)
    return run, folder


def logits_of(run, paths):
    """What the model gives each picture, one by one, with nothing of the evaluation's own code."""
    loaded = load(run)
    with torch.no_grad():
        rows = [torch.from_numpy(np.array(open_image(path, input_transform(loaded))[None])) for path in paths]
        return torch.cat([loaded.model(normalize(row)) for row in rows])


def test_a_vit_on_another_folder(type_in, pictures, tmp_path):
    run, _ = pictures
    other = photos(tmp_path / "other", {"dog": 5, "cat": 2})
    for i, path in enumerate(sorted(other.rglob("*.png"))):
        picture(path, seed=900 + i)
    shown = type_in("eval", run, "--data", "other", "--json")
    found = json.loads(shown.out)
    labels = torch.tensor([0, 0, 1, 1, 1, 1, 1])  # in the order of the names
    logits = logits_of(run, sorted(other.rglob("*.png")))
    assert found["val_loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-4)
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert "Evaluating on other: 7 images." in shown.err
    assert (run / "eval-other" / "confusion.png").is_file()
    shutil.rmtree(run / "eval-other")


def test_pictures_that_the_run_was_trained_on_are_left_out(type_in, fails, own, tmp_path):
    run, folder = own
    held = json.loads((run / "data.json").read_text())["held_out"]
    assert len(held) == 3
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    (other / "cat" / "7.png").rename(other / "cat" / "named.png")
    picture(other / "dog" / "new.png", seed=7777)
    shown = type_in("eval", run, "--data", other, "--out", tmp_path / "seen")
    assert "was trained on 27 of the 31 images of other: they are left out" in shown.err.replace("\n", " ")
    assert "4 images." in shown.err
    for path in [other / name for name in held] + [other / "dog" / "new.png"]:
        if path.exists():
            path.unlink()
    assert "was trained on all 27 images of other" in fails("eval", run, "--data", other)


def test_the_runs_own_data_is_evaluated_as_without(type_in, own, tmp_path):
    run, folder = own
    plain = type_in("eval", run, "--data", folder).out  # a copy of what it was trained on
    config = (run / "config.toml").read_text()
    assert str(folder) not in config
    assert type_in("eval", run).out == plain
    assert not (run / "eval-photos").exists()


def test_a_class_that_the_model_does_not_know_is_refused(fails, pictures, tmp_path):
    other = photos(tmp_path / "other", {"owl": 3, "cat": 2})
    assert "other has the class owl, and" in fails("eval", pictures[0], "--data", other)
    assert "knows cat, dog" in fails("eval", pictures[0], "--data", other)
    assert "there is no folder nowhere" in fails("eval", pictures[0], "--data", "nowhere")


@pytest.fixture
def trained_here(type_in, light, tmp_path):
    """Train a small run in the working folder."""
    return lambda *words: type_in("train", *words, *SMALL, "--out", "run")


def test_a_changed_folder_names_its_changes(type_in, fails, trained_here, tmp_path):
    photos(tmp_path / "photos")
    trained_here("vit", "--data", "photos", "--size", 16)
    (tmp_path / "photos" / "cat" / "3.png").unlink()
    picture(tmp_path / "photos" / "dog" / "9.png", seed=991)
    picture(tmp_path / "photos" / "dog" / "1.png", seed=992)
    (tmp_path / "photos" / "cat" / "5.png").rename(tmp_path / "photos" / "cat" / "five.png")
    for verb in ("eval", "resume", "heads"):
        sentence = fails(verb, "run")
        assert (
            "photos has changed since run was trained on it: 1 file removed: cat/3.png; 1 file added: dog/9.png; "
            "1 file changed: dog/1.png; 1 file renamed: cat/5.png to cat/five.png; put it back" in sentence
        )
        assert f"pencil eval run --data {tmp_path / 'photos'}" in sentence
    shown = type_in("eval", "run", "--data", "photos")
    assert "it is evaluated as it is" in shown.err
    # a new class is named as a change too, though it cannot be used at all
    picture(tmp_path / "photos" / "owl" / "1.png", seed=993)
    picture(tmp_path / "photos" / "owl" / "2.png", seed=994)
    assert "has changed since run was trained: 1 file removed" in fails("eval", "run")


def test_a_changed_caption_and_a_run_without_a_record(fails, trained_here, tmp_path):
    captions = [f"dot {i}" for i in range(12)]
    album(tmp_path / "album", captions)
    trained_here("captioner", "--data", "album", "--size", 16)
    rows = [{"file_name": f"p{i:02}.png", "text": text} for i, text in enumerate(captions)]
    write_rows(tmp_path / "album", [*rows[:-1], {**rows[-1], "text": "dot 7"}])
    assert "1 file changed: metadata.jsonl; put it back" in fails("eval", "run")
    for damage in (lambda path: path.write_text("{"), lambda path: path.unlink()):
        damage(tmp_path / "run" / "data.json")
        assert "album has changed since run was trained on it; put it back" in fails("eval", "run")


def test_a_changed_text_names_its_first_line(type_in, fails, trained_here, tmp_path):
    lines = [f"line {i} of the tale, number {i * 7 % 13}" for i in range(300)]
    (tmp_path / "tale.txt").write_text("\n".join(lines))
    trained_here("gpt", "--data", "tale.txt", "--model.context", 31)
    lines[56] = lines[56].replace("line", "fine")
    (tmp_path / "tale.txt").write_text("\n".join(lines[:-1]))
    assert "it had 300 lines and has 299; the first that differs is line 57; put it back" in fails("eval", "run")
    shown = type_in("eval", "run", "--data", "tale.txt")
    assert "most of it is what run was trained on" in shown.err
    (tmp_path / "other.txt").write_text("\n".join(lines[::-1]))
    shown = type_in("eval", "run", "--data", "other.txt")
    tokens = len((tmp_path / "other.txt").read_text())
    assert f"Evaluating on other.txt: {tokens:,} tokens." in shown.err
    assert "--out has no effect on run" in fails("eval", "run", "--data", "other.txt", "--out", "x")
    (tmp_path / "other.txt").write_text("ß" + "\n".join(lines))
    assert "'ß' is not among" in fails("eval", "run", "--data", "other.txt")
    (tmp_path / "short.txt").write_text("line 7")
    assert "has 6 tokens to evaluate on" in fails("eval", "run", "--data", "short.txt")


def test_a_long_text_names_a_range_of_lines():
    from pencil.api.run_data import _changed_lines, _contents

    assert _contents("pydoc", ("pydoc",)).keys() == {"python"}
    was = {"lines": 2999, "lines_a_block": 3, "blocks": [str(i) for i in range(1000)]}
    now = {**was, "blocks": [*was["blocks"][:11], "x", *was["blocks"][12:]]}
    assert _changed_lines(was, now) == "the first that differs is one of lines 34 to 36"


def test_the_documentation_of_another_python_is_named(fails, trained_here, monkeypatch):
    monkeypatch.setattr("pencil.data.builtin.TEXTS", {"pydoc": lambda: "the words of one Python\n" * 200})
    monkeypatch.setattr("pencil.data.text.corpus.TEXTS", {"pydoc": lambda: "the words of one Python\n" * 200})
    with monkeypatch.context() as other:
        other.setattr("platform.python_version", lambda: "3.99.1")
        trained_here("gpt", "--data", "pydoc", "--model.context", 31)
    monkeypatch.setattr("pencil.data.text.corpus.TEXTS", {"pydoc": lambda: "the words of the next Python\n" * 200})
    sentence = fails("eval", "run")
    assert (
        "it is the documentation of Python itself, and run was made with Python 3.99.1; this is Python 3." in sentence
    )
    assert "use the version of Python that made the run" in sentence


def test_pairs_and_texts_with_labels_on_other_files(type_in, fails, seq2seq_run, classifier_run, tmp_path):
    write_pairs(tmp_path / "words.tsv", [("abe", "eba")])
    shown = type_in("eval", seq2seq_run, "--data", "words.tsv", "--out", "a")
    assert "Evaluating on words.tsv: 1 pairs." in shown.err
    assert 0 <= metrics(shown.out)["exact_match"] <= 1
    assert all(len(word) > 2 for word in WORDS)
    write_pairs(tmp_path / "reviews.tsv", [(text, label) for text, label in REVIEWS if label == "bad"][:2])
    shown = type_in("eval", classifier_run, "--data", "reviews.tsv", "--out", "b")
    assert "Evaluating on reviews.tsv: 2 texts." in shown.err
    assert metrics(shown.out)["accuracy.commonest"] == 1
    assert shown.out.splitlines()[-2].split()[:2] == ["bad", "2"]
    write_pairs(tmp_path / "reviews.tsv", [("the film was here", "soso")])
    assert "has the class soso, and" in fails("eval", classifier_run, "--data", "reviews.tsv", "--out", "b")


@pytest.mark.long
def test_masked_tokens_captions_and_diffusion_on_other_data(
    type_in, masked_run, captioner_run, dit_run, vit_run, tmp_path
):  # fmt: skip
    (tmp_path / "more.txt").write_text("line 3: the pencil draws 8 strips, and the reader counts 4 of them.\n" * 5)
    shown = type_in("eval", masked_run, "--data", "more.txt")
    assert "Evaluating on more.txt: 340 tokens." in shown.err
    album(tmp_path / "album", ["a one on the left", "a two"])
    shown = type_in("eval", captioner_run, "--data", "album", "--out", "a", "--json")
    assert 0 <= json.loads(shown.out)["exact_match"] <= 1
    assert "Evaluating on album: 2 images." in shown.err
    photos(tmp_path / "photos", {"3": 2, "7": 3}, mode="L")
    shown = type_in("eval", dit_run, "--data", "photos", "--out", "b")
    assert metrics(shown.out).keys() == {"val_loss"}
    shown = type_in("eval", vit_run, "--data", "digits", "--out", "c")
    assert "digits is the data of" in shown.err


def test_weights_of_classes_are_no_change_when_a_run_goes_on(type_in, trained_here, tmp_path):
    write_pairs(tmp_path / "reviews.tsv", REVIEWS)
    words = ("--data", "reviews.tsv", "--vocab", 290, "--train.class_weights", "1,3")
    assert "class_weights is" not in trained_here("reader", *words).err
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "val_loss": 1.25, "accuracy": null}\n')  # as other programs write NaN
    shown = type_in("resume", "run", "--train.steps", 5)
    assert "class_weights" not in shown.err
    assert "changes" not in (tmp_path / "run" / "config.toml").read_text()


def test_a_balance_of_classes_is_that_of_the_training_data(type_in, trained_here, tmp_path):
    write_pairs(tmp_path / "reviews.tsv", REVIEWS)
    trained_here("reader", "--data", "reviews.tsv", "--vocab", 290, "--train.class_weights", "balanced")
    write_pairs(tmp_path / "others.tsv", REVIEWS[:7])
    sentence = "val_loss weighs the classes of others.tsv alike"
    assert sentence in type_in("eval", "run", "--data", "others.tsv", "--out", "a").err
    assert "alike" not in type_in("eval", "run", "--out", "b").err
