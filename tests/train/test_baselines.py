"""The baselines beside a classifier: what they compute, and what is said of them."""

import json
import sys

import numpy as np
import pytest

import pencil
from conftest import call, unchecked
from pencil.config import UserError
from pencil.train.tasks import baselines

SMALL = dict(depth=1, width=24, heads=3, batch=5, steps=2, eval_every=2, eval_batches=1, warmup=1, quiet=True)
# what the class is depends on one word, and of three texts two are of one class
TEXTS = [f"{'a dull' if i % 3 else 'the best'} film of {i}" for i in range(90)]
LABELS = ["bad" if i % 3 else "good" for i in range(90)]


@pytest.fixture(scope="module", autouse=True)
def fast():
    with unchecked(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("pencil.train.loop.trainer.plot_losses", lambda run: None)
        patch.setattr("pencil.train.loop.evaluator.Evaluator.preview", lambda evaluator: None)
        yield


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "films"
    return pencil.train("reader", (TEXTS, LABELS), out=out, keep_data=True, **SMALL)


def test_of_texts_they_are_printed_and_in_the_card(reader):
    first, again = call("eval", reader.path, "--baseline"), call("eval", reader.path, "--baseline", "--json")
    figures = json.loads(again.stdout)
    assert figures["baseline.tfidf.accuracy"] == figures["baseline.tfidf.macro_f1"] == 1
    assert figures["baseline.commonest.accuracy"] == figures["accuracy.commonest"]
    assert figures["baseline.commonest.balanced_accuracy"] == 1 / 2
    lines = [line.split("  ")[0] for line in first.stdout.splitlines()[-4:]]
    assert lines == ["model", "always the commonest class in training", "TF-IDF + logistic regression", "this run"]
    card = (reader.path / "README.md").read_text(encoding="utf-8")
    said = card.strip().splitlines()[-1]
    assert "TF-IDF + logistic regression" in said
    assert said[1:-1] in " ".join(first.stderr.split())
    assert card.count("## Baselines") == card.count(said) == 1
    # other data is measured by baselines that are fitted to the run's own
    other = reader.evaluate((["the best of 7", "a dull one"], ["good", "bad"]), baseline=True, quiet=True)
    assert (other["baseline.tfidf.accuracy"], other["baseline.commonest.accuracy"]) == (1, 1 / 2)
    assert (reader.path / "README.md").read_text(encoding="utf-8") == card


def test_without_scikit_learn_the_commonest_class_is_left(reader, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    done = call("eval", reader.path, "--baseline", "--json")
    assert "it needs scikit-learn; pip install '.[baselines]'" in " ".join(done.stderr.split())
    assert {name.split(".")[1] for name in json.loads(done.stdout) if name.startswith("baseline")} == {"commonest"}


def test_of_pictures(tmp_path):
    random = np.random.default_rng(3)
    pixels = random.integers(0, 128, (44, 7, 5, 3), dtype=np.uint8)
    pixels[::2, :, :, 0] += 128  # half of them are red
    run = pencil.train("vit", (pixels, ["red", "dark"] * 22), size="8", out=tmp_path / "run", **SMALL)
    found = run.evaluate(baseline=True, quiet=True)
    assert found["baseline.forest.accuracy"] == 1
    assert found["baseline.commonest.accuracy"] == 1 / 2


@pytest.mark.parametrize("channels", [1, 3])
def test_a_histogram_is_the_share_of_each_colour(channels):
    pictures = np.random.default_rng(5).integers(0, 256, (3, channels, 11, 7), dtype=np.uint8)
    levels = {1: 36, 3: 6}[channels]
    edges = [np.arange(levels + 1) * 256 / levels] * channels
    expected = [np.histogramdd(one.reshape(channels, -1).T, edges)[0].ravel() / 77 for one in pictures]
    np.testing.assert_allclose(baselines.histograms(pictures), expected)


@pytest.mark.parametrize("accuracy, said", [
    (0.5, "neither is clearly better"), (0.75, "clearly higher than the 0.5000 of simple"), (0.25, "simple is better on"),
])  # fmt: skip
def test_which_is_better(accuracy, said):
    simple = baselines.Baseline("simple", "simple", {"accuracy": 0.5}, 0.1)
    worse = baselines.Baseline("worse", "worse", {"accuracy": 0.4}, 0.1)
    own = {"accuracy": accuracy, "accuracy.low": accuracy - 0.1, "accuracy.high": accuracy + 0.1}
    assert said in baselines.verdict([worse, simple], own, "texts")


def test_a_run_without_classes_has_none(run):
    with pytest.raises(UserError, match="a baseline is of a run that predicts classes"):
        pencil.evaluate(run, baseline=True, quiet=True)
