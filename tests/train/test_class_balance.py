"""Class weights and balanced batches: the loss is torch's, whatever a batch is divided into; draws are equal and exact."""

from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pencil.api.run_setup import settings_of
from pencil.api.training_request import TrainingRequest
from pencil.config import UserError, build
from pencil.core.span import Span
from pencil.families import family
from pencil.models.build import normalize
from pencil.train.loop.trainer import Trainer
from pencil.train.settings import TrainConfig
from pencil.train.task import Request
from pencil.train.tasks.class_balance import ClassBalance

SIZES = dict(width=24, heads=3, depth=1)
PACE = dict(steps=7, batch=6, accumulate=3, eval_batches=1, clip=0.0, device="cpu", optimizer="adamw")
DIGITS = [0.5, 2.0, 1.0, 3.5, 0.25, 1.5, 7.0, 1.0, 0.75, 5.0]  # a weight for each of the ten
LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=43)


@pytest.fixture
def rare(tmp_path):
    """Texts of three classes, the last of them rare."""
    rows = [f"message number {i} of a kind,{'abc'[(i % 2) + (i % 11 == 3)]}" for i in range(67)]
    (tmp_path / "rare.csv").write_text("\n".join(["text,label", *rows]))
    return tmp_path / "rare.csv"


def prepare(name, data, **train):
    train = {**PACE, **train}
    model = SIZES | (dict(dropout=0.0, key_dropout=0.0) if name == "vit" else dict(dropout=0.0))
    request = Request(family(name), str(data), "nano", model=model, train=train)
    return family(name).task.prepare(request, build(TrainConfig, train)).task


@settings(max_examples=29)
@given(LABELS)
def test_balanced_weights_are_those_of_scikit_learn(labels):
    from sklearn.utils.class_weight import compute_class_weight

    found = ClassBalance(TrainConfig(class_weights="balanced"), labels, "abcde", 5, "a")
    present = np.unique(labels)
    expected = compute_class_weight("balanced", classes=present, y=np.array(labels))
    np.testing.assert_allclose(found.weights[present].numpy(), expected, rtol=1e-6)


@settings(max_examples=29)
@given(st.lists(st.floats(2**-10, 2**10, width=32), min_size=5, max_size=5), LABELS, st.randoms())
def test_sums_of_weights_are_the_same_in_any_order(weights, labels, random):
    """Exact mode needs it: the parts of an update are added in another order on other numbers of processes."""
    balance = ClassBalance(TrainConfig(class_weights=tuple(weights)), labels, "abcde", 5, "a")
    whole = balance.targets(torch.tensor(labels))
    random.shuffle(labels)
    cut = random.randint(0, len(labels))
    parts = [balance.targets(torch.tensor(part, dtype=torch.int64)) for part in (labels[:cut], labels[cut:])]
    assert sum(parts) == whole


@settings(max_examples=29)
@given(LABELS, st.sampled_from([None, "balanced", (0.5, 3.0, 1.0, 2.0, 0.125)]))
def test_the_loss_of_a_batch_is_torchs(labels, weights):
    balance = ClassBalance(TrainConfig(class_weights=weights), labels, "abcde", 5, "a")
    logits, labels = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(1)), torch.tensor(labels)
    torch.testing.assert_close(
        balance.cross_entropy(logits, labels), torch.nn.CrossEntropyLoss(weight=balance.weights)(logits, labels)
    )
    if weights is None:
        assert type(balance.targets(labels)) is int


def gradients(task):
    """The gradient of the first update, and the model, whose weights it is taken at."""
    made, found = Trainer(task, None, task.train), {}
    with made.group:
        for optimizer in made.optimizers.values():
            optimizer.step = lambda: found.update({n: p.grad.clone() for n, p in made.model.named_parameters()})
        made.update()
    made.model.zero_grad()
    return made.model, found


def assert_gradient(task, model, found, loss):
    loss.backward()
    largest = max(p.grad.abs().max() for p in model.parameters())
    for name, p in model.named_parameters():
        assert (found[name] - p.grad).abs().max() < 1e-5 * largest, name


def test_an_update_of_weighted_texts_is_that_of_one_batch(rare):
    task = prepare("reader", rare, class_weights="balanced")
    model, found = gradients(task)
    rows = [task.rows[i] for micro in range(3) for i in task._indices(0, micro)]
    tokens, places, labels = task.tokens(rows)
    assert len(set(labels.tolist())) == 3
    weighted = torch.nn.CrossEntropyLoss(weight=task.balance.weights)
    assert_gradient(task, model, found, weighted(model(tokens, Span.at(places)), labels))


@pytest.mark.parametrize("mixup", [0.0, 0.7])
def test_an_update_of_weighted_images_is_that_of_one_batch(mixup):
    task = prepare("vit", "digits", class_weights=DIGITS, mixup=mixup)
    model, found = gradients(task)
    weights, above, below = torch.tensor(DIGITS), 0.0, 0.0
    for micro in range(3):
        pictures, labels, *blended = task.batch(0, micro)
        x, share = normalize(pictures), blended[0] if mixup else torch.tensor(1.0)
        logits = model(share * x + (1 - share) * x.flip(0))
        for part, own in ((share, labels), (1 - share, labels.flip(0))):
            above = above + part * F.cross_entropy(logits, own, weights, reduction="sum")
        below = below + weights[labels].sum()
    assert_gradient(task, model, found, above / below)
    # in parts, as processes have them
    batch, rows = task.batch(0, 1), [task.batch(0, 1, slice(i, i + 2)) for i in (0, 2, 4)]
    whole = task.loss(model, batch) * task.targets(batch)
    torch.testing.assert_close(sum(task.loss(model, part) * task.targets(part) for part in rows), whole)


def test_the_validation_loss_weighs_as_training_does(rare):
    task = prepare("reader", rare, class_weights=[1.0, 2.0, 5.0])
    torch.manual_seed(3)
    model = task.build().eval()
    tokens, places, labels = task.tokens(task.data.test)
    logits = model(tokens, Span.at(places))
    weighted = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))(logits, labels).item()
    assert task.evaluate(model)["val_loss"] == pytest.approx(weighted, rel=1e-5)
    drawn = prepare("reader", rare, balanced_batches=True)
    balanced = prepare("reader", rare, class_weights="balanced")
    assert drawn.evaluate(model)["val_loss"] == pytest.approx(balanced.evaluate(model)["val_loss"], rel=1e-6)
    assert balanced.evaluate(model)["val_loss"] != pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-3)


@settings(max_examples=29)
@given(LABELS.filter(lambda labels: len(set(labels)) > 1), st.integers(1, 9), st.integers(0, 97))
def test_each_class_is_drawn_equally_often_and_its_examples_too(labels, size, first):
    balance = ClassBalance(TrainConfig(balanced_batches=True), labels, "abcde", 5, "a")
    classes = len(set(labels))
    drawn = balance.indices(11, 0, 97 + 9 * classes)
    assert balance.indices(11, first, size) == drawn[first : first + size]  # of its place alone
    for start in range(0, len(drawn) - classes, classes):
        assert {labels[i] for i in drawn[start : start + classes]} == set(labels)
    for label, count in Counter(labels).items():
        own = [i for i in drawn if labels[i] == label]
        for start in range(0, len(own) - count + 1, count):
            assert len(set(own[start : start + count])) == count


def test_batches_are_balanced_and_a_function_of_seed_and_step(rare):
    task = prepare("reader", rare, balanced_batches=True)
    later = task.batch(4, 1)
    for step in (2, 0, 1):
        task.batch(step)
    assert all(torch.equal(a, b) for a, b in zip(later, task.batch(4, 1), strict=True))
    assert Counter(later[2].tolist()) == {0: 2, 1: 2, 2: 2}
    assert Counter(label for _, label in task.rows)["c"] < 5
    images = prepare("vit", "digits", balanced_batches=True, batch=20)
    assert Counter(images.batch(5, 2)[1].tolist()) == dict.fromkeys(range(10), 2)
    assert torch.equal(images.batch(5, 2, slice(4, 9))[1], images.batch(5, 2)[1][4:9])
    plain = prepare("vit", "digits", batch=20)
    assert plain.balance.members == []
    assert len(set(Counter(plain.batch(5, 2)[1].tolist()).values())) > 1


@pytest.mark.parametrize(
    "name, data, train, sentence",
    [
        ("gpt", None, dict(class_weights="balanced"), "train.class_weights has no effect on a gpt: leave it out"),
        ("dit", None, dict(balanced_batches=True), "train.balanced_batches has no effect on a dit: leave it out"),
        ("reader", "notes", dict(class_weights="balanced"), "train.class_weights is for texts with labels, and .* has none"),
        ("reader", "rare", dict(class_weights=[1, 2]), r"has 2 numbers, and rare has 3 classes \(a, b, c\): give one for each"),
        ("reader", "rare", dict(class_weights="1,2,0"), "train.class_weights must be above 0, not 0"),
        ("reader", "rare", dict(class_weights="rare"), "train.class_weights must be one of balanced or numbers like"),
        ("vit", "digits", dict(class_weights="balanced", balanced_batches=True), "choose one of them"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(rare, notes, name, data, train, sentence):
    with pytest.raises(UserError, match=sentence):
        settings_of(TrainingRequest(name, {"rare": str(rare), "notes": str(notes)}.get(data, data), train=train))
