"""`pencil.train` as the verb, config files as a round trip, and the loop with a task of one's own."""

import os
import random
import re
import signal
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import pencil
from conftest import call, unchecked
from pencil.api.loading import open_run
from pencil.api.training_request import read_config, resolve
from pencil.config import UserError
from pencil.families import FAMILIES
from pencil.train.settings import plain_names

OLD = Path(__file__).parents[1] / "runs-0.6"
SIZES = dict(width=24, heads=3, depth=2, context=13)
PACE = dict(steps=6, eval_every=3, eval_batches=2, save_every=4, batch=5, warmup=2, lr=2e-3)
WORDS = [word for name, value in SIZES.items() for word in (f"--model.{name}", value)]
WORDS += [word for name, value in PACE.items() for word in (f"--train.{name}", value)]


@pytest.fixture(autouse=True)
def fast(monkeypatch, tmp_path):
    monkeypatch.setattr("pencil.train.loop.trainer.plot_losses", lambda run: None)
    monkeypatch.chdir(tmp_path)
    with unchecked():
        yield


def same_weights(one, other, *files):
    """The same tensors, to the bit, in the weights and in the last checkpoint."""
    for name in ("model.safetensors", *files):
        a, b = load_file(Path(one) / name), load_file(Path(other) / name)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a), name
    return True


LAST = "checkpoints/step-00000006/shard-00000.safetensors"


def said(text):
    """What was reported, without times and rates."""
    return [
        re.sub(r"[\d.,]+ (s|ms|tokens/s)\b|runs/\S+|a_\w+", "…", line)
        for line in text.splitlines()
        if "step " not in line
    ]


@pytest.fixture(scope="module")
def by_verb(notes, tmp_path_factory):
    """The run of the verb, and what it reported."""
    path = tmp_path_factory.mktemp("verb") / "a_verb"
    done = call("train", "gpt", "--data", notes, *WORDS, "--tokenizer", "bpe", "--vocab", 270, "--out", path)
    return path, done.stderr


def test_train_is_the_verb_to_the_bit(by_verb, notes, tmp_path, capsys):
    path, reported = by_verb
    trained = pencil.train("gpt", notes, tokenizer="bpe", vocab=270, out=tmp_path / "a_python", **SIZES, **PACE)
    assert same_weights(path, trained.path, LAST)
    assert trained.finished
    assert trained.step == 6
    shown = capsys.readouterr()
    assert not shown.out
    assert [line.replace(str(path.parent), "") for line in said(reported)] == [
        line.replace(str(tmp_path), "") for line in said(shown.err)
    ]
    lines = [line for line in (trained.path / "metrics.jsonl").read_text().splitlines() if "val_loss" in line]
    assert f'"val_loss": {trained.best["val_loss"]}' in next(
        line for line in lines if f'"step": {trained.best["step"]}' in line
    )
    _, tokenizer, run = trained.load()
    assert tokenizer.kind == "bpe"
    assert run.path == trained.path
    assert repr(trained).startswith(f"Trained('{trained.path}': 6 steps; val_loss {trained.best['val_loss']:.4f}")


def test_tables_and_quiet(notes, tmp_path, capsys):
    trained = pencil.train("gpt", str(notes), model=SIZES, train=PACE, name="mine", quiet=True)
    assert trained.path == Path("runs/mine")
    shown = capsys.readouterr()
    assert not shown.out + shown.err
    with pytest.raises(UserError, match="the name mine is already taken"):
        pencil.train("gpt", str(notes), model=SIZES, train=PACE, name="mine", quiet=True)


def test_a_class_that_is_not_evaluated_while_training_is_named(tmp_path, capsys):
    """A high accuracy is none of a class of which the held-out text is not among those that are evaluated."""
    common, rare = ([(i, name) for i in range(53) if (i % 17 == 3) == (name == "rare")] for name in ("common", "rare"))
    rows = [f"text {i},{name}" for i, name in (*common[:27], *rare, *common[27:])]  # it is between the other two
    (tmp_path / "rare.csv").write_text("\n".join(["text,label", *rows]))
    sizes = {**SIZES, "context": 16, "depth": 1}
    for batches, said in ((1, True), (2, False)):
        trained = pencil.train(
            "reader", "rare.csv", **sizes, **{**PACE, "batch": 2, "eval_batches": batches}, out="run", force=True
        )
        shown, card = capsys.readouterr().err, (tmp_path / "run" / "README.md").read_text()
        for text in (shown, card):
            assert ("; without rare, of which nothing was evaluated" in text) == said
        few = "These are figures of 2 of the 3 held-out texts (--train.eval_batches 1); of all: pencil eval run"
        assert (few in shown) == said
        assert trained.best.get("accuracy.unevaluated", 0) == said


def test_train_is_called_whatever_was_imported_before():
    import pencil.train.loop.trainer  # the package of that name

    assert callable(pencil.train)
    assert pencil.train.loop.trainer.Trainer
    with pytest.raises(UserError, match="the family is missing"):
        pencil.train()


def test_no_plain_name_is_ambiguous_but_those_that_are_refused_or_decided():
    """A name in two sections is refused, but for the vocabulary: the tokenizer's decides the model's."""
    for record in FAMILIES.values():
        sections = plain_names(record)
        counts = Counter(name for names in sections.values() for name in names)
        several = {name for name, count in counts.items() if count > 1}
        assert several <= {"vocab", "eps"}
        for name in counts:
            if name == "eps" and name in several:
                with pytest.raises(UserError, match="eps is a setting of model and train"):
                    resolve(record, {name: 1})
            else:
                found = resolve(record, {name: 1})
                assert [section for section in found if found[section]] == [
                    next(section for section, names in sections.items() if name in names)
                ]


@pytest.mark.parametrize(
    "given, sentence",
    [
        (dict(dept=3), "dept is not a setting of a gpt; did you mean depth?"),
        (dict(depth="deep"), "model.depth must be a whole number"),
        (dict(depth=3, model=dict(depth=2)), "depth is given twice: by its name and in model"),
        (dict(word_dropout=0.1), "word_dropout is not a setting of a gpt"),
        (dict(train=dict(learning_rate=1)), "train.learning_rate is not a setting; did you mean lr?"),
        (dict(learning_rate=1), "learning_rate is not a setting of a gpt; did you mean lr?"),
        (
            dict(epochs=3),
            "epochs is not a setting of a gpt; training is counted in steps, not in epochs: give steps, or minutes",
        ),
        (dict(model=dict(d_model=64)), "model.d_model is not a setting; did you mean width?"),
        (dict(rope_base_factor=3), "known: rope_factor, "),
        (dict(eps=1e-5), "give model={'eps': …} or train={'eps': …}"),
        (dict(preset="nanno"), "did you mean nano?"),
        (dict(data="nowhere.txt"), "nowhere.txt"),
        (dict(config="nowhere.toml"), "there is no config file nowhere.toml"),
    ],
)
def test_a_training_that_cannot_be_is_refused(notes, given, sentence, tmp_path):
    with pytest.raises(UserError) as refused:
        pencil.train("gpt", **{"data": str(notes), **given})
    assert sentence in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_a_callback_or_an_interrupt_stops_and_the_run_goes_on_to_the_same_bits(by_verb, notes, tmp_path):
    path, _ = by_verb
    settings = dict(tokenizer="bpe", vocab=270, **SIZES, **PACE)
    steps, evaluations = [], []
    trained = pencil.train(
        "gpt", notes, out=tmp_path / "called", quiet=True, **settings,
        on_step=lambda step, metrics: steps.append(step) or step < 2,
        on_evaluation=lambda step, metrics: evaluations.append((step, metrics["val_loss"])),
    )  # fmt: skip
    assert (trained.finished, trained.step, steps) == (False, 2, [1, 2])
    assert [step for step, _ in evaluations] == [0]
    assert trained.best == {"step": 2}  # the weights that are kept have not been evaluated
    assert "not evaluated" in repr(trained)
    stopped = pencil.train(
        "gpt", notes, out=tmp_path / "signalled", quiet=True, **settings,
        on_step=lambda step, metrics: os.kill(os.getpid(), signal.SIGINT) if step == 5 else None,
    )  # fmt: skip
    assert not stopped.finished
    assert stopped.step == 5
    for one in (trained, stopped):
        call("resume", one.path)
        assert same_weights(path, one.path)


# config files


def test_settings_written_and_read_train_the_same_run(by_verb, notes):
    path, _ = by_verb
    options = ("--tokenizer", "bpe", "--vocab", 270)
    done = call("train", "gpt", "--data", notes, *WORDS, *options, "--settings", "--out", "run.toml")
    assert not done.stdout
    assert "pencil train --config run.toml" in done.stderr
    call("train", "--config", "run.toml", "--out", "a")
    assert same_weights(path, "a")
    call("train", "gpt", "--config=a/config.toml", "--out", "b")  # what a run wrote
    assert same_weights(path, "b")
    again = pencil.train(config="b/config.toml", out="c", quiet=True)
    assert same_weights(path, again.path)
    of = [tomllib.loads((Path(one) / "config.toml").read_text()) for one in (path, "a", "b", "c")]
    for one in of:
        one["run"].pop("id")
    assert all(one == of[0] for one in of)
    assert of[0]["options"] == {"tokenizer": "bpe", "vocab": 270}


@pytest.mark.parametrize("name", ["vit", pytest.param("seq2seq", marks=pytest.mark.long)])
def test_the_settings_of_other_families_make_a_round_trip(name):
    words = ("--model.width", 24, "--model.depth", 1, "--model.heads", 3, "--train.steps", 2, "--train.batch", 3,
             "--train.eval_batches", 1)  # fmt: skip
    call("train", name, *words, "--out", "a")
    call("train", "--config", "a/config.toml", "--out", "b")
    assert same_weights("a", "b")
    call("train", name, *words, "--settings", "--out", "run.toml")
    call("train", "--config", "run.toml", "--out", "c")
    assert same_weights("a", "c")


def test_the_command_line_goes_over_the_file(by_verb, notes):
    path, _ = by_verb
    shown = call("train", "--config", path / "config.toml", "--model.depth", 1, "--train.minutes", 3, "--vocab", 300,
                 "--settings").stdout  # fmt: skip
    table = tomllib.loads(shown)
    assert table["model"]["depth"] == 1
    assert table["model"]["vocab"] == 300  # it follows from the tokenizer
    assert table["options"] == {"tokenizer": "bpe", "vocab": 300}
    assert table["train"]["minutes"] == 3
    assert table["train"]["batch"] == 5
    assert table["run"]["data"] == str(notes)
    call("train", "gpt", "--data", notes, "--settings", "--out", "long.toml")
    done = call("train", "--config", "long.toml", "--train.steps", 5, "--settings")
    assert "train.warmup 100 of long.toml exceeds 5 steps, so it follows from them" in done.stderr
    assert tomllib.loads(done.stdout)["train"]["warmup"] == 1


def test_other_data_has_its_own_vocabulary(by_verb):
    path, _ = by_verb
    Path("other.txt").write_text("".join(chr(0x3B1 + i % 20) + " and so on.\n" for i in range(300)), encoding="utf-8")
    done = call("train", "--config", path / "config.toml", "--data", "other.txt", "--tokenizer", "char", "--settings")
    assert tomllib.loads(done.stdout)["model"]["vocab"] == len(set(Path("other.txt").read_text(encoding="utf-8")))
    assert "vocab" not in tomllib.loads(done.stdout)["options"]
    call("train", "gpt", "--data", "other.txt", *WORDS, "--out", "chars")
    Path("more.txt").write_text("".join(chr(0x3B1 + i % 23) + " and so on.\n" for i in range(300)), encoding="utf-8")
    done = call("train", "--config", "chars/config.toml", "--data", "more.txt", "--out", "more")
    assert "model.vocab of chars/config.toml follows from more.txt now" in done.stderr
    vocab = [tomllib.loads(Path(one, "config.toml").read_text())["model"]["vocab"] for one in ("chars", "more")]
    assert vocab[1] == vocab[0] + 3


def test_sizes_of_the_file_that_other_data_would_not_have_are_named(notes):
    pairs = "".join(f"say {i}\t{i} times\n" for i in range(40))
    Path("pairs.tsv").write_text(pairs)
    call("train", "seq2seq", "--settings", "--out", "run.toml")
    assert tomllib.loads(Path("run.toml").read_text())["run"]["data"] == "dates"
    done = call("train", "--config", "run.toml", "--data", "pairs.tsv", "--settings")
    assert (
        "model.context 16, model.source_context 40 of run.toml stay; pairs.tsv decides what is removed" in done.stderr
    )
    assert "model.vocab of run.toml follows from pairs.tsv now" in done.stderr


@pytest.mark.parametrize("name", sorted(one.name for one in OLD.iterdir() if one.is_dir()))
def test_a_config_of_an_older_version_is_read_under_todays_names(name):
    chosen, run = read_config(OLD / name / "config.toml"), open_run(OLD / name)
    record = FAMILIES[run.family]
    assert record.configure(chosen.preset, **chosen.model) == record.read_config(run.config["model"])
    assert chosen.train["steps"] == 4
    assert "randaugment" not in chosen.train
    assert chosen.data == run.config["run"]["data"]


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("[model]\ndepth = 3\n", 'add family = "…" under [run]'),
        ('[run]\nfamily = "gptt"\n', "gptt is not a family of models; did you mean gpt?"),
        ('[run]\nfamily = "gpt"\nprest = "nano"\n', "run.prest is not a setting; did you mean preset?"),
        ('[run]\nfamily = "gpt"\n[modl]\ndepth = 3\n', "[modl] is not a section of a training; did you mean model?"),
        ('[run]\nfamily = "gpt"\n[model]\ndept = 3\n', "model.dept is not a setting; did you mean depth?"),
        ('[run]\nfamily = "gpt"\n[train]\nstep = 3\n', "train.step is not a setting; did you mean steps?"),
        ('[run]\nfamily = "gpt"\n[options]\ntokeniser = "char"\n', "options.tokeniser is not a setting; did you mean tokenizer?"),
        ('[run]\nfamily = "gpt"\n[train]\nlr = "high"\n', "train.lr must be a number, not 'high'"),
        ('[run]\nfamily = 3\n', "run.family must be a word, not 3"),
        ('[run]\nfamily = "gpt"\ndata = "nowhere.txt"\n', "names the data nowhere.txt, which is not there (a relative path is "
         "looked for in the working folder)"),
        ("family = ", "run.toml cannot be read"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_training_is_refused(text, sentence, tmp_path):
    Path("run.toml").write_text(text, encoding="utf-8")
    done = call("train", "--config", "run.toml", code=2)
    assert sentence in done.stderr
    assert "run.toml" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["run.toml"]


def test_a_file_that_contradicts_the_command_line_is_refused(by_verb):
    config = by_verb[0] / "config.toml"
    assert "is of a gpt, not of a vit" in call("train", "vit", "--config", config, code=2).stderr
    assert "leave --preset small out" in call("train", "--config", config, "--preset", "small", code=2).stderr
    assert "needs a value" in call("train", "--config", code=2).stderr
    assert "exists already" in call("train", "gpt", "--settings", "--out", config, code=2).stderr
    assert ".toml" in call("train", "gpt", "--settings", "--out", "run.json", code=2).stderr


def test_the_vocabulary_is_that_of_the_data_and_a_comment_without_data(notes):
    letters = len(set(notes.read_text()))
    assert tomllib.loads(call("train", "gpt", "--data", notes, "--settings").stdout)["model"]["vocab"] == letters
    bare = call("train", "gpt", "--settings").stdout
    (line,) = [line for line in bare.splitlines() if line.startswith("# vocab =") and "follows" in line]
    assert "follows from the data: name it with --data" in line
    assert "50257" not in bare
    chosen = call("train", "gpt", "--settings", "--model.vocab", 311).stdout
    assert tomllib.loads(chosen)["model"]["vocab"] == 311


# a task of one's own


class Line(pencil.Task):
    """y = 3x − 2, with some noise."""

    def __init__(self):
        rng = np.random.Generator(np.random.Philox(key=5))
        x = rng.standard_normal((53, 1))
        self.x = torch.from_numpy(x).float()
        self.y = torch.from_numpy(3 * x - 2 + 0.1 * rng.standard_normal((53, 1))).float()

    def build(self):
        return nn.Linear(1, 1)

    def batch(self, step, micro=0):
        rng = np.random.default_rng((self.train.seed, step, micro))
        which = torch.from_numpy(rng.integers(0, 40, self.train.batch))
        return self.x[which], self.y[which]

    def loss(self, model, batch):
        return ((model(batch[0]) - batch[1]) ** 2).mean()

    def held_out(self):
        return [(self.x[40:47], self.y[40:47]), (self.x[47:], self.y[47:])]


FIT = dict(
    batch=7, lr=0.05, warmup=0, schedule="constant", clip=0.0, eval_every=5, save_every=5, quiet=True, dtype="float32"
)


def test_the_loop_with_a_task_of_ones_own_is_adamw():
    fitted = pencil.fit(Line(), "mine", steps=13, **FIT)
    task = Line()
    task.train = pencil.train.settings.TrainConfig(batch=7)
    model = task.build()
    start = load_first_weights()
    model.load_state_dict(start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0)
    for step in range(13):
        optimizer.zero_grad()
        task.loss(model, task.batch(step)).backward()
        optimizer.step()
    found = fitted.load()
    for name, value in model.state_dict().items():
        assert torch.allclose(found.state_dict()[name], value, atol=1e-6)
    with torch.no_grad():
        expected = float(((found(task.x[40:]) - task.y[40:]) ** 2).mean())
    assert abs(fitted.best["val_loss"] - expected) < 1e-5
    assert (fitted.finished, fitted.step, fitted.best["step"]) == (True, 13, 13)


def load_first_weights():
    """What the loop starts from: it seeds torch by the run's seed, then builds the model."""
    from pencil.train.task import random_of

    torch.manual_seed(int(random_of(1337, 0, 1 << 20).integers(1 << 62)))
    return nn.Linear(1, 1).state_dict()


def test_a_task_of_ones_own_resumes_to_the_same_bits():
    whole = pencil.fit(Line(), "whole", steps=13, **FIT)
    part = pencil.fit(Line(), "part", steps=13, on_step=lambda step, metrics: step < 8, **FIT)
    assert not part.finished
    rest = pencil.fit(Line(), "part", resume=True, quiet=True)
    assert rest.finished
    assert same_weights(whole.path, rest.path)
    lines = [Path(one, "metrics.jsonl").read_text() for one in ("whole", "part")]
    assert [line for line in lines[0].splitlines() if "val_loss" in line] == [
        line for line in lines[1].splitlines() if "val_loss" in line
    ]
    longer = pencil.fit(Line(), "part", resume=True, quiet=True, steps=17)
    assert longer.step == 17
    assert pencil.fit(Line(), "new", resume=True, steps=2, **FIT).step == 2  # there was none


def test_what_cannot_be_fitted_is_refused():
    class Other(Line):
        held_out = pencil.Task.held_out

    class Matrix(Line):
        def loss(self, model, batch):
            return (model(batch[0]) - batch[1]) ** 2

    class OwnEvaluation(Matrix):
        def evaluate(self, model, batches=None):
            return {"val_loss": 1.0}

    class Number(OwnEvaluation):
        def loss(self, model, batch):
            return 0.5

    pencil.fit(Line(), "mine", steps=2, **FIT)
    Path("file").touch()
    Path("other").mkdir()
    Path("other/letter.txt").touch()
    for call_, sentence in (
        (
            lambda: pencil.fit(Line(), "mine", steps=2, **FIT),
            "mine already holds another run; choose another out=, or force=True to replace it",
        ),
        (lambda: pencil.fit(Line(), "file", steps=2, **FIT), "file is a file; out= is the folder of a run"),
        (lambda: pencil.fit(Line(), "other", steps=2, **FIT), "something that is not a run; choose another out="),
        (
            lambda: pencil.fit(Matrix(), "m", steps=2, **FIT),
            "Matrix.loss returned a tensor of shape (7, 1), and a loss is one number",
        ),
        (
            lambda: pencil.fit(OwnEvaluation(), "o", steps=2, **FIT),
            "OwnEvaluation.loss returned a tensor of shape (7, 1)",
        ),
        (
            lambda: pencil.fit(OwnEvaluation(), "e", steps=2, exact=True, **FIT),
            "OwnEvaluation.loss returned a tensor of shape (7, 1)",
        ),
        (lambda: pencil.fit(Number(), "n", steps=2, **FIT), "Number.loss returned a float, and a loss is one number"),
        (
            lambda: pencil.fit(Line(), "s", steps=2, on_evaluation=lambda *_: "stop", **FIT),
            "a callback returned 'stop': False stops",
        ),
        (lambda: pencil.fit(Other(), "mine", resume=True, **FIT), "mine is a run of Line, not of Other"),
        (lambda: pencil.fit(Other(), "none", steps=2, **FIT), "Other has no held-out data: give it `held_out`"),
        (lambda: pencil.fit(Line(), "none2", step=2), "train.step is not a setting; did you mean steps?"),
        (lambda: pencil.fit(Line(), "none3", mixup=0.2), "train.mixup has no effect on a task of your own"),
        (lambda: pencil.load("mine"), "was trained by pencil.fit with the task Line"),
    ):
        with pytest.raises(pencil.UserError) as refused:
            call_()
        assert sentence in str(refused.value)
    stopped = pencil.fit(Line(), "numpy", steps=9, on_step=lambda step, _: np.float64(step) < 3, **FIT)
    assert (stopped.finished, stopped.step) == (False, 3)


def test_a_run_of_ones_own_task_is_verified_and_says_how_it_is_used():
    pencil.fit(Line(), "mine", steps=2, **FIT)
    assert "0 not" in call("verify", "mine").stderr or "whole" in call("verify", "mine").stdout
    card = Path("mine/README.md").read_text()
    assert 'pencil.fit(Line(), "mine", resume=True).load()' in card
    assert "pencil sample" not in card
    assert "your own code" in call("sample", "mine", code=2).stderr


def test_training_leaves_the_callers_random_state(notes, tmp_path):
    """Whatever a caller draws after a training is what it would have drawn without it."""

    def states():
        return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())

    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    before = states()
    pencil.train("gpt", notes, out=tmp_path / "a", quiet=True, **SIZES, **PACE).load()
    assert states() == before
    pencil.fit(Line(), tmp_path / "own", steps=2, eval_batches=1, quiet=True).load()
    assert states() == before
    with pytest.raises(ZeroDivisionError):
        pencil.fit(Line(), tmp_path / "stopped", steps=2, eval_batches=1, quiet=True, on_step=lambda *_: 1 / 0)
    assert states() == before
