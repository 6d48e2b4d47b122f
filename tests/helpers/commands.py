"""The command line in this process, and small trained runs of every family: a plugin of the suite.

A process of its own takes seconds to load torch; only tests of the process itself start one (`conftest.pencil`).
Pencil is imported late: a plugin is loaded before the hook that checks shapes.
"""

import io
from contextlib import contextmanager

import pytest
from PIL import Image

from conftest import unchecked

SMALL = ["--model.width", "24", "--model.depth", "1", "--model.heads", "3", "--train.steps", "3", "--train.batch", "5",
         "--train.eval_batches", "1", "--train.warmup", "1"]  # fmt: skip
WORDS = [a + b + c for a in "abc" for b in "deab" for c in "cde"]
REVIEWS = [
    (f"{one} {two} {three}", {"fine": "so good", "grim": "bad"}[two])
    for one in ("the film was", "a plot so", "it is") for two in ("fine", "grim") for three in ("here", "there", "again")
]  # fmt: skip


@pytest.fixture
def type_in(capsys, monkeypatch, tmp_path):
    """Run a command line in this process, in an empty folder; what it printed."""
    from pencil.cli.main import main

    monkeypatch.chdir(tmp_path)

    def call(*words, code=0):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        shown = capsys.readouterr()
        assert (ended.value.code or 0) == code, shown.err
        return shown

    return call


@pytest.fixture
def fails(type_in):
    """Run a command line that is refused; its one sentence."""

    def call(*words):
        shown = type_in(*words, code=2)
        assert not shown.out
        sentence = shown.err.rstrip("\n")
        assert sentence.startswith("pencil: ")
        assert "\n" not in sentence
        assert "Traceback" not in sentence
        return sentence

    return call


@pytest.fixture
def light(monkeypatch):
    """For tests that train and look at neither plots nor previews: none are made, and shapes are not checked."""
    with lightly(monkeypatch):
        yield


@contextmanager
def lightly(monkeypatch):
    monkeypatch.setattr("pencil.train.loop.trainer.plot_losses", lambda run: None)
    monkeypatch.setattr("pencil.train.loop.evaluator.Evaluator.preview", lambda evaluator: None)
    with unchecked():
        yield


def write_pairs(path, rows):
    path.write_text("".join(f"{one}\t{other}\n" for one, other in rows))
    return path


def trained(folder, *words):
    """A small run trained by the command line."""
    from pencil.cli.main import main

    with pytest.MonkeyPatch.context() as patch, lightly(patch), pytest.raises(SystemExit) as ended:
        main([*map(str, words), *SMALL, "--out", str(folder / "run")])
    assert not ended.value.code
    return folder / "run"


# small runs, each trained once: read them, do not write into them


@pytest.fixture(scope="session")
def vit_run(tmp_path_factory):
    """A vit of digits."""
    return trained(tmp_path_factory.mktemp("vit"), "train", "vit", "--data", "digits")


@pytest.fixture(scope="session")
def captioner_run(tmp_path_factory):
    """A captioner of scenes."""
    return trained(tmp_path_factory.mktemp("captioner"), "train", "captioner", "--data", "scenes")


@pytest.fixture(scope="session")
def seq2seq_run(tmp_path_factory):
    """A seq2seq of words and the same words backwards."""
    folder = tmp_path_factory.mktemp("seq2seq")
    data = write_pairs(folder / "words.tsv", [(word, word[::-1]) for word in WORDS])
    return trained(folder, "train", "seq2seq", "--data", data, "--tokenizer", "char")


@pytest.fixture(scope="session")
def classifier_run(tmp_path_factory):
    """A reader of texts with labels."""
    folder = tmp_path_factory.mktemp("classifier")
    return trained(folder, "train", "reader", "--data", write_pairs(folder / "reviews.tsv", REVIEWS), "--vocab", 290)


@pytest.fixture(scope="session")
def masked_run(tmp_path_factory, notes):
    """A reader of masked characters."""
    return trained(tmp_path_factory.mktemp("masked"), "train", "reader", "--data", notes, "--model.context", 31)


@pytest.fixture(scope="session")
def dit_run(tmp_path_factory):
    """A dit of digits."""
    return trained(tmp_path_factory.mktemp("dit"), "train", "dit")


@pytest.fixture
def digit(tmp_path):
    """The file of one digit."""
    from pencil.data.images.digits import digits

    path = tmp_path / "digit.png"
    Image.fromarray(digits()[0][3, 0]).save(path)
    return path


def is_png(path):
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        image.load()
        assert image.format == "PNG"
        assert min(image.size) > 50
    return True


def metrics(out):
    """The lines of `pencil eval`, or of classes and their probabilities."""
    lines = out.partition("class  ")[0].splitlines()  # the rest is a table
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
