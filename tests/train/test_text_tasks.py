import json
import math
import random

import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from pencil import draw
from pencil.api.run_data import task_of
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.config import UserError, build
from pencil.core.masks import NOWHERE
from pencil.families import family
from pencil.runs.run import Run
from pencil.train.loop.trainer import Trainer
from pencil.train.settings import TrainConfig, check_settings
from pencil.train.task import Request, Task, random_of
from pencil.train.tasks.masked_language_modeling import MaskedLanguageModeling
from pencil.train.tasks.text_classification import TextClassification

SIZES = dict(width=24, heads=3, depth=1)
PACE = dict(steps=7, batch=5, eval_every=3, save_every=2, warmup=2, eval_batches=1)
MOODS = {"glad": ["fine", "lovely", "bright"], "sad": ["grim", "dull", "bleak"], "plain": ["grey", "flat", "usual"]}


@pytest.fixture(scope="session")
def films(tmp_path_factory):
    """Texts of three classes; one word of each gives its class."""
    rng, lines = random.Random(1), {}
    while len(lines) < 150:
        mood = list(MOODS)[len(lines) % 3]
        text = rng.choices(["the", "film", "was", "a", "plot", "of", "it"], k=rng.randint(2, 7))
        text.insert(rng.randint(0, len(text)), rng.choice(MOODS[mood]))
        lines[" ".join(text)] = mood
    path = tmp_path_factory.mktemp("labels") / "films.tsv"
    path.write_text("".join(f"{one}\t{mood}\n" for one, mood in lines.items()))
    return path


def options(tokenizer=None):
    return family("reader").train_options(tokenizer=tokenizer, vocab=300 if tokenizer == "bpe" else None)


def prepare(data, model=None, tokenizer=None, **train):
    """The task the command line would make."""
    reader, train = family("reader"), {**PACE, **train}
    config = build(TrainConfig, train)
    check_settings(config, reader.train_settings, reader.name)
    request = Request(reader, str(data), "nano", {**SIZES, **(model or {})}, train, options(tokenizer))
    return reader.task.prepare(request, config).task


def same(one, two):
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("which", ["films", "notes"])
def test_a_batch_of_texts_is_a_function_of_seed_and_step_alone(which, request):
    data = request.getfixturevalue(which)
    model = {} if which == "films" else dict(context=31)
    task = prepare(data, model)
    assert isinstance(task, Task)
    assert type(task) is {"films": TextClassification, "notes": MaskedLanguageModeling}[which]
    later = task.batch(4)
    for step in (2, 0, 1, 3):
        task.batch(step)
    assert same(later, task.batch(4))
    assert same(later, prepare(data, model).batch(4))
    assert not same(later, task.batch(5))
    assert not same(later, prepare(data, model, seed=4).batch(4))
    two = prepare(data, model, accumulate=2)
    assert not same(two.batch(4), two.batch(4, 1))


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("tokenizer", ["bpe", "char", "byte"])
def test_the_loss_of_labels_equals_that_of_each_text_alone(films, pool, tokenizer):
    task = prepare(films, dict(pool=pool, context=61), tokenizer)
    torch.manual_seed(1)
    model = task.build().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
        tokens, places, labels = task.batch(2)
        total = 0.0
        for row, at, label in zip(tokens, places, labels, strict=True):
            alone = row[at < NOWHERE]
            assert alone[0] == task.end
            total -= float(model(alone[None])[0].log_softmax(-1)[label])
        assert float(task.loss(model, (tokens, places, labels))) == pytest.approx(total / 5, rel=1e-5)
    assert any((at == NOWHERE).any() for at in places)


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.usefixtures("fast_training")
def test_classes_that_one_word_decides_are_learned(tmp_path, films, pool):
    fast = dict(steps=90, batch=29, eval_every=90, save_every=90, warmup=7, muon_lr=0.04, lr=0.01)
    model = {**SIZES, "pool": pool, "dropout": 0.0}
    run, task, config = new_run(
        TrainingRequest("reader", str(films), model=model, train={**PACE, **fast}),
        out=tmp_path / "a",
    )
    trainer = Trainer(task, run, config)
    assert task.evaluate(trainer.model.eval())["accuracy"] < 0.7
    trainer.train()
    assert task.evaluate(trainer.model)["accuracy"] > 0.9
    reopened = task_of(Run.open(tmp_path / "a"), config)
    assert reopened.evaluate(trainer.model) == task.evaluate(trainer.model)


def test_texts_longer_than_the_context_are_cut_and_counted(films, tmp_path):
    whole = prepare(films, tokenizer="char")
    assert "cut" not in whole.about()
    lengths = [len(one) for one, _ in whole.data.all_pairs()]
    assert whole.config.context >= max(lengths) + 1
    task = prepare(films, dict(context=29), "char")
    over = sum(n + 1 > 29 for n in lengths)
    assert 0 < over < len(lengths)
    assert f"({over} of them longer than the context of 29 and cut)" in task.about()
    one = max((one for one, _ in task.data.all_pairs()), key=len)
    tokens, places, _ = task.tokens([(one, "sad")])
    assert tokens.shape == places.shape == (1, 29)
    assert tokens[0].tolist() == [task.end, *task.tokenizer.encode(one[:28]).tolist()]
    (tmp_path / "long.tsv").write_text("".join(f"{c * 700}\t{c in 'ab'}\n" for c in "abcdefg"))
    assert prepare(tmp_path / "long.tsv", tokenizer="byte").config.context == 512


class Oracle(nn.Module):
    """Knows the class of every text, but predicts the next one for those in `mistaken`."""

    def __init__(self, task, mistaken=()):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.classes, self.known = len(task.data.classes), {}
        for i, row in enumerate(task.data.test):
            tokens, places, label = task.tokens([row])
            right = int(label)
            predicted = (right + 1) % self.classes if i in mistaken else right
            self.known[tuple(tokens[0, places[0] < NOWHERE].tolist())] = predicted

    def forward(self, tokens, span):
        rows = [tuple(row[at < NOWHERE].tolist()) for row, at in zip(tokens, span.index, strict=True)]
        return 50 * F.one_hot(torch.tensor([self.known[row] for row in rows]), self.classes).float()


def test_accuracy_over_all_and_per_class_the_matrix_and_the_mistakes(films, tmp_path, monkeypatch):
    monkeypatch.setattr("pencil.train.tasks.text_classification.EVAL_BATCH", 7)
    task = prepare(films)
    classes, rows = task.data.classes, task.data.test
    assert classes == ("glad", "plain", "sad")
    assert len(rows) > 7
    drawn, confusion = [], draw.confusion
    monkeypatch.setattr(draw, "confusion", lambda *a: drawn.append(a) or confusion(*a))
    metrics, files = task.report(Oracle(task, (0, 3)), tmp_path / "deep" / "eval")
    assert metrics["accuracy"] == pytest.approx(1 - 2 / len(rows))
    wrong = [rows[i] for i in (0, 3)]
    for name in {label for _, label in rows}:
        of = sum(label == name for _, label in rows)
        lost = sum(label == name for _, label in wrong)
        assert metrics[f"recall.{name}"] == pytest.approx(1 - lost / of)
    assert {f"held_out.{label}" for _, label in rows} == {name for name in metrics if name.startswith("held_out.")}
    matrix, names, title = drawn[0]
    assert (list(names), title) == (list(classes), "films")
    expected = [[0] * 3 for _ in range(3)]
    for i, (_, label) in enumerate(rows):
        k = classes.index(label)
        expected[k][(k + 1) % 3 if i in (0, 3) else k] += 1
    assert matrix.tolist() == expected
    assert [path.name for path in files] == ["confusion.png", "calibration.png", "predictions.csv", "mistakes.txt"]
    assert metrics["calibration_error"] == pytest.approx(2 / len(rows))
    with Image.open(files[0]) as image:
        image.load()
        assert image.format == "PNG"
    lines = files[3].read_text().splitlines()
    assert lines[0] == f"2 of {len(rows)} wrong"
    taken = classes[(classes.index(wrong[0][1]) + 1) % 3]
    assert lines[2] == f"{taken} (100%)\t(is: {wrong[0][1]}) {wrong[0][0]}"
    perfect, _ = task.report(Oracle(task), tmp_path)
    assert perfect["accuracy"] == 1
    assert (tmp_path / "mistakes.txt").read_text().startswith(f"0 of {len(rows)} wrong")


def test_labels_in_json_may_be_numbers(tmp_path):
    rows = [json.dumps({"text": f"word {i}", "label": i % 3}) for i in range(40)]
    (tmp_path / "mine.jsonl").write_text("\n".join(rows))
    task = prepare(tmp_path / "mine.jsonl")
    assert task.data.classes == ("0", "1", "2")
    assert task.config.classes == 3


def test_the_fractions_of_masked_random_and_unchanged_tokens(notes):
    task = prepare(notes, dict(context=31))
    shape = (503, 31)
    tokens = torch.randint(0, task.mask, shape, generator=torch.Generator().manual_seed(1))
    inputs, targets = task.mask_tokens(tokens, random_of(0, 7))
    chosen = targets >= 0
    assert torch.equal(targets[chosen], tokens[chosen])
    assert (targets[~chosen] == -100).all()
    assert torch.equal(inputs[~chosen], tokens[~chosen])
    count = int(chosen.sum())

    def near(share, of, p):
        assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / of)

    near(count / tokens.numel(), tokens.numel(), 0.15)
    masked = chosen & (inputs == task.mask)
    near(int(masked.sum()) / count, count, 0.8)
    other = chosen & (inputs != task.mask) & (inputs != tokens)
    near(int(other.sum()) / count, count, 0.1 * (1 - 1 / task.mask))  # any token, and so sometimes the right one
    assert task.mask == task.data.tokenizer.vocab == task.config.vocab - 1
    assert same((inputs, targets), task.mask_tokens(tokens, random_of(0, 7)))
    assert not same((inputs, targets), task.mask_tokens(tokens, random_of(0, 8)))
    half = prepare(notes, dict(context=31), mask_fraction=0.5)
    near(int((half.mask_tokens(tokens, random_of(0, 7))[1] >= 0).sum()) / tokens.numel(), tokens.numel(), 0.5)


def test_the_loss_counts_masked_tokens_only(notes):
    task = prepare(notes, dict(context=31))
    torch.manual_seed(1)
    model = task.build().eval()
    inputs, targets = task.batch(3)
    with torch.no_grad():
        likely = model(inputs).log_softmax(-1)
        wanted = [-float(likely[i, j, targets[i, j]]) for i, j in (targets >= 0).nonzero().tolist()]
        assert float(task.loss(model, (inputs, targets))) == pytest.approx(sum(wanted) / len(wanted), rel=1e-5)
    assert task.targets((inputs, targets)) == len(wanted)
    assert task.targets((inputs, targets.fill_(-100))) == 0


@pytest.mark.usefixtures("fast_training")
def test_the_same_tokens_are_masked_at_each_evaluation_whatever_the_batch_size(notes):
    few, many = prepare(notes, dict(context=31)), prepare(notes, dict(context=31), batch=11, seed=5)
    torch.manual_seed(1)
    model = few.build().eval()
    first = few.evaluate(model)
    few.batch(3)
    assert few.evaluate(model) == first
    assert many.evaluate(model) == pytest.approx(first, rel=1e-5)
    assert set(first) == {"val_loss", "perplexity", "accuracy"}
    assert first["perplexity"] == pytest.approx(math.exp(first["val_loss"]))
    assert few.evaluate(model, 1) != first


def test_masked_tokens_are_evaluated_on_the_held_out_text_alone(notes):
    task = prepare(notes, dict(context=31))
    torch.manual_seed(1)
    model = task.build().eval()
    seen = []
    watch = model.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    metrics = task.evaluate(model)
    watch.remove()
    rows, held = torch.cat(seen), torch.tensor(task.data.val.astype("int64"))
    starts = range(0, len(held) - 31, 31)
    masked = [task.mask_tokens(held[None, start : start + 31], random_of(0, start)) for start in starts]
    inputs, targets = (torch.cat(part) for part in zip(*masked, strict=True))
    assert torch.equal(rows, inputs)
    with torch.no_grad():
        likely = model(inputs).log_softmax(-1)
    chosen = targets >= 0
    assert metrics["accuracy"] == pytest.approx(float((likely.argmax(-1) == targets)[chosen].double().mean()))
    right = likely.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    assert metrics["val_loss"] == pytest.approx(-float(right[chosen].mean()), rel=1e-5)


@pytest.mark.usefixtures("fast_training")
def test_masked_language_modelling_learns(tmp_path, notes):
    fast = dict(steps=40, batch=17, eval_every=40, save_every=40, warmup=5, muon_lr=0.04, lr=0.01)
    model = {**SIZES, "context": 31, "dropout": 0.0}
    run, task, config = new_run(
        TrainingRequest("reader", str(notes), model=model, train={**PACE, **fast}), out=tmp_path / "a"
    )
    trainer = Trainer(task, run, config)
    before = task.evaluate(trainer.model.eval())
    trainer.train()
    after = task.evaluate(trainer.model)
    assert after["val_loss"] < before["val_loss"] - 0.5
    assert after["accuracy"] > before["accuracy"] + 0.1
    preview = (tmp_path / "a" / "samples" / "step-00000040.txt").read_text()
    assert "[" in preview
    assert "predicted:" in preview
    reopened = task_of(Run.open(tmp_path / "a"), config)
    assert reopened.evaluate(trainer.model) == after


@pytest.mark.parametrize("which, model, train, message", [
    ("films", {}, dict(mask_fraction=0.2), "train.mask_fraction is for text without labels"),
    ("films", {}, dict(word_dropout=0.2), "train.word_dropout is now called train.mask_fraction for a reader"),
    ("films", {}, dict(label_smoothing=0.2), "train.label_smoothing has no effect on a reader"),
    ("films", {}, dict(flip=True), "train.flip has no effect on a reader"),
    ("films", dict(classes=2), {}, "model.classes 2 is fewer than the 3 classes of films"),
    ("films", dict(vocab=7), {}, "model.vocab 7 is smaller than the tokenizer's"),
    ("notes", dict(classes=2), {}, "model.classes is for text with labels"),
    ("notes", dict(vocab=7), {}, "model.vocab 7 has no room for the tokenizer's"),
    ("notes", dict(context=100_003), {}, "fewer than the context of 100003 needs"),
])  # fmt: skip
def test_settings_a_reader_cannot_use_are_refused(request, which, model, train, message):
    with pytest.raises(UserError, match=message):
        prepare(request.getfixturevalue(which), model, **train)
