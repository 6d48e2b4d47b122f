import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import nn
from torch.nn import functional as F

from albums import album, photos
from pencil import draw
from pencil.api.loading import load
from pencil.api.run_data import task_of
from pencil.api.run_setup import new_run, settings_of
from pencil.api.train import train_to_end
from pencil.api.training_request import TrainingRequest
from pencil.config import build
from pencil.data.images import open_images as images
from pencil.data.images.augment import ImageTransform
from pencil.data.images.datasets import ArrayExamples
from pencil.data.tokenizers.tokenizer import learn
from pencil.families import family
from pencil.runs.run import Run
from pencil.train.loop.state import Trained
from pencil.train.loop.trainer import Trainer
from pencil.train.settings import TrainConfig
from pencil.train.task import Preview, Request, Task, epoch_order
from pencil.train.tasks.captioning import Captioning
from pencil.train.tasks.image_classification import ImageClassification
from training import bits, interrupt_after

SIZES = dict(width=24, heads=3, depth=1)
PACE = dict(steps=7, batch=5, eval_every=3, save_every=2, warmup=2, eval_batches=1)


def prepare(name, data, model=None, **train):
    """The task the command line would make."""
    train = {**PACE, **train}
    model = {**SIZES, **(model or {})}
    request = Request(family(name), str(data), "nano", model=model, train=train)
    return family(name).task.prepare(request, build(TrainConfig, train)).task


@pytest.fixture
def folder(tmp_path):
    return photos(tmp_path / "photos", {"cat": 9, "dog": 8})


@pytest.fixture
def tales(tmp_path):
    return album(tmp_path / "album")


SMALL = dict(image_size="16")
CASES = {
    "digits": ("vit", {}, {}),
    "digits, augmented": ("vit", {}, dict(augment_ops=2)),
    "digits, mixup": ("vit", {}, dict(mixup=0.4)),
    "photos": ("vit", SMALL, dict(mixup=0.4)),
    "scenes": ("captioner", {}, {}),
    "album": ("captioner", SMALL, {}),
}


@pytest.fixture(params=CASES)
def case(request, folder, tales):
    name, model, train = CASES[request.param]
    data = {"photos": folder, "album": tales}.get(request.param, request.param.split(",")[0])
    return lambda **more: prepare(name, data, model, **{**train, **more})


def same(one, two):
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_batch_of_images_is_a_function_of_seed_and_step_alone(case):
    task = case()
    assert isinstance(task, Task)
    later = task.batch(4)
    for step in (2, 0, 1, 3):
        task.batch(step)
    assert same(later, task.batch(4))
    assert same(later, case().batch(4))
    assert not same(later, task.batch(5))
    assert not same(later, case(seed=4).batch(4))
    two = case(accumulate=2)
    assert not same(two.batch(4), two.batch(4, 1))
    assert task.count(later) == 5 == len(later[0])
    assert later[0].dtype == torch.uint8


@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_example_comes_once_an_epoch(accumulate):
    pictures = np.arange(30, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 8, 8), np.uint8)
    held = ArrayExamples(pictures, [i % 3 for i in range(30)])
    data = images.ImageData("counted", "x", held, held, tuple("abc"))
    config = build(TrainConfig, {**PACE, "batch": 5, "accumulate": accumulate})
    sizes = prepare("vit", "digits").config
    task = ImageClassification(family("vit"), data, sizes, config)
    steps = 30 // 5 // accumulate
    orders = []
    for epoch in range(3):
        seen = [
            (int(row[0, 0, 0]), int(label))
            for step in range(epoch * steps, (epoch + 1) * steps) for micro in range(accumulate)
            for row, label in zip(*task.batch(step, micro), strict=True)
        ]  # fmt: skip
        assert sorted(seen) == [(i, i % 3) for i in range(30)]
        orders.append(seen)
    assert orders[0] != orders[1] != orders[2]


def test_an_epoch_may_end_within_a_batch():
    got = [i for step in range(11) for i in epoch_order(3, step * 7, 7, 11)]
    for epoch in range(7):
        assert sorted(got[11 * epoch : 11 * epoch + 11]) == list(range(11))


def test_images_keep_their_labels_through_augmentation(tmp_path):
    for name, value in (("dark", 10), ("light", 240)):
        for i in range(9):
            path = tmp_path / "two" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (20, 20 + i), value).save(path)
    task = prepare("vit", tmp_path / "two", SMALL, crop=0.5, flip=True, augment_ops=0)
    for step in range(5):
        rows, labels = task.batch(step)
        assert [int(row.float().mean() > 128) for row in rows] == labels.tolist()


def test_the_inputs_and_targets_of_captions(tales):
    task = prepare("captioner", tales, SMALL)
    captions = ["a dot number 3", "a cup"]
    inputs, targets = task.tokens(captions)
    assert inputs.shape == targets.shape == (2, task.length)
    for row, target, caption in zip(inputs, targets, captions, strict=True):
        ids = task.tokenizer.encode(caption).tolist()
        n = len(ids)
        assert row[0] == task.end
        assert row[1 : n + 1].tolist() == ids
        assert target[:n].tolist() == ids  # the first word is a target too
        assert target[n] == task.end
        assert (target[n + 1 :] == -100).all()
        assert torch.equal(target[:n], row[1 : n + 1])
    whole = max(task.data.captions(), key=lambda text: len(task.tokenizer.encode(text)))
    assert (task.tokens([whole])[1] >= 0).all()  # the longest is not cut


def test_the_loss_of_captions_is_cross_entropy_without_padding(tales):
    task = prepare("captioner", tales, SMALL)
    torch.manual_seed(0)
    model = task.build().eval()
    pictures, inputs, targets = task.batch(1)
    with torch.no_grad():
        found = float(task.loss(model, (pictures, inputs, targets)))
        total, count = 0.0, 0
        for picture_, row, target in zip(pictures, inputs, targets, strict=True):
            n = int((target >= 0).sum())
            x = picture_[None].float() / 127.5 - 1
            likely = model(row[None, :n], x).log_softmax(-1)[0]  # without the padding at all
            for at in range(n):
                total -= float(likely[at, target[at]])
                count += 1
    assert found == pytest.approx(total / count, rel=1e-5)


def test_the_loss_of_labels_is_cross_entropy():
    task = prepare("vit", "digits")
    torch.manual_seed(0)
    model = task.build().eval()
    pictures, labels = task.batch(2)
    with torch.no_grad():
        likely = model(pictures.float() / 127.5 - 1).softmax(-1)
        expected = -sum(math.log(likely[i, label]) for i, label in enumerate(labels)) / len(labels)
        assert float(task.loss(model, (pictures, labels))) == pytest.approx(expected, rel=1e-5)


def test_mixup_blends_two_images_and_their_labels():
    task = prepare("vit", "digits", mixup=0.4)
    torch.manual_seed(0)
    model = task.build().eval()
    pictures, labels, share = task.batch(2)
    assert 0 <= float(share) <= 1
    assert len({float(task.batch(step)[2]) for step in range(9)}) == 9
    seen = []
    with torch.no_grad():
        plain = task.loss(model, (pictures, labels))
        assert float(task.loss(model, (pictures, labels, torch.tensor(1.0)))) == pytest.approx(float(plain), rel=1e-6)
        watch = model.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        mixed = float(task.loss(model, (pictures, labels, torch.tensor(0.3))))
        watch.remove()
        x = pictures.float() / 127.5 - 1
        partners = list(reversed(range(len(x))))
        blend = torch.stack([0.3 * x[i] + 0.7 * x[j] for i, j in enumerate(partners)])
        torch.testing.assert_close(seen[0], blend)
        likely = model(blend).log_softmax(-1)
        expected = -sum(
            0.3 * float(likely[i, labels[i]]) + 0.7 * float(likely[i, labels[j]]) for i, j in enumerate(partners)
        ) / len(x)
    assert mixed == pytest.approx(expected, rel=1e-5)


class Oracle(nn.Module):
    """Knows the class of every image, but predicts another for those in `mistaken`."""

    def __init__(self, held, classes, mistaken=()):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.classes = classes
        self.known = {
            row.tobytes(): (t + 1) % classes if i in mistaken else t
            for i, (row, t) in enumerate(zip(held.pictures, held.targets, strict=True))
        }

    def forward(self, x):
        rows = ((x + 1) * 127.5).round().to(torch.uint8).numpy()
        return 50 * F.one_hot(torch.tensor([self.known[row.tobytes()] for row in rows]), self.classes).float()


def is_png(path):
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        image.load()
        return image.format == "PNG"


def test_a_perfect_classifier_is_right_about_everything(tmp_path):
    task = prepare("vit", "digits")
    oracle = Oracle(task.data.test, 10)
    metrics, files = task.report(oracle, tmp_path / "deep" / "eval")
    assert metrics.pop("val_loss") == pytest.approx(0, abs=1e-6)
    assert metrics["accuracy"] == metrics["balanced_accuracy"] == metrics["macro_f1"] == 1.0
    assert all(metrics[f"{key}.{d}"] == 1.0 for key in ("precision", "recall", "f1") for d in range(10))
    assert sum(metrics[f"held_out.{d}"] for d in range(10)) == metrics["accuracy.examples"] == 359
    assert {path.name for path in files} == {"confusion.png", "calibration.png", "mistakes.png", "predictions.csv"}
    assert all(is_png(path) for path in files if path.suffix == ".png")
    assert metrics["calibration_error"] == pytest.approx(0, abs=1e-6)
    assert task.evaluate(oracle, 1)["accuracy"] == 1
    assert task.preview(oracle).suffix == ".png"
    assert task.preview(oracle).content.startswith(b"\x89PNG")


def test_the_confusion_matrix_counts_every_mistake(tmp_path, monkeypatch):
    task = prepare("vit", "digits")
    targets, mistaken = task.data.test.targets, (0, 1, 2, 50, 100, 358)
    drawn, sheets = [], []
    confusion, sheet = draw.confusion, draw.sheet
    monkeypatch.setattr(draw, "confusion", lambda *a: drawn.append(a) or confusion(*a))
    monkeypatch.setattr(draw, "sheet", lambda *a: sheets.append(a) or sheet(*a))
    metrics, _ = task.report(Oracle(task.data.test, 10, mistaken), tmp_path)
    expected = np.zeros((10, 10), int)
    for i, target in enumerate(targets):
        expected[target, (target + 1) % 10 if i in mistaken else target] += 1
    matrix, names, _ = drawn[0]
    assert np.array_equal(matrix, expected)
    assert list(names) == list("0123456789")
    assert metrics["accuracy"] == pytest.approx(1 - 6 / 359)
    for d in range(10):
        assert metrics[f"recall.{d}"] == pytest.approx(expected[d, d] / expected[d].sum())
    pictures, lines, right, title = sheets[0]
    assert sorted(p.tobytes() for p in pictures) == sorted(task.data.test.pictures[i].tobytes() for i in mistaken)
    assert not any(right)
    assert "6 of 359 wrong" in title
    wanted = sorted(f"{(targets[i] + 1) % 10} (100%)\nis {targets[i]}\nimage {i} of digits" for i in mistaken)
    assert sorted(lines) == wanted


def test_a_perfect_captioner_matches_exactly(tmp_path, monkeypatch):
    task = prepare("captioner", "scenes")
    torch.manual_seed(0)
    model = task.build().eval()
    for part in (task.data.test, task.data.seen_combinations):
        part.pictures, part.targets = part.pictures[:7], part.targets[:7]
    known = {
        row.tobytes(): target
        for part in (task.data.test, task.data.seen_combinations) for row, target in zip(part.pictures, part.targets, strict=True)
    }  # fmt: skip
    monkeypatch.setattr(Captioning, "caption", lambda self, model, rows: [known[row.tobytes()] for row in rows])
    metrics, files = task.report(model, tmp_path)
    assert metrics["exact_match"] == metrics["exact_match_familiar"] == 1
    assert {path.name for path in files} == {"mistakes.png", *(f"attention-{i}.png" for i in (1, 2, 3))}
    assert all(map(is_png, files))
    known[task.data.test.pictures[2].tobytes()] += " or so"
    assert task.evaluate(model)["exact_match"] == pytest.approx(6 / 7)


def test_a_caption_is_decoded_greedily():
    task = prepare("captioner", "scenes")
    torch.manual_seed(3)
    model = task.build().eval()
    nn.init.normal_(model.tokens.weight, std=0.5)
    rows = task.data.test.pictures[:3]
    captions = task.caption(model, rows)
    for row, text in zip(rows, captions, strict=True):
        ids = [task.end]
        x = torch.from_numpy(row[None]).float() / 127.5 - 1
        with torch.no_grad():
            while len(ids) < task.config.context:
                following = int(model(torch.tensor([ids]), x)[0, -1].argmax())
                if following == task.end:
                    break
                ids.append(following)
        assert text == task.tokenizer.decode(ids[1:]).strip()


def test_evaluation_leaves_out_images_that_cannot_be_decoded(folder):
    task = prepare("vit", folder, SMALL)
    whole = len(task.data.test)
    path = task.data.test.sources[0]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    ((predicted, labels, shown, names),) = task._predict(task.build(), None)
    assert len(predicted) == len(labels) == len(shown) == whole - 1
    assert names == [str(one) for one in task.data.test.sources[1:]]
    assert labels.tolist() == task.data.test.targets[1:]
    assert [name for name, _ in task.skipped()] == [str(path)]


def test_the_data_gives_default_sizes_and_settings_which_can_be_set(folder):
    task = prepare("vit", folder)
    assert (task.config.image_size, task.config.channels, task.config.patch) == ((64, 64), 3, (8, 8))
    assert task.transform == ImageTransform((64, 64), 3, True, 0.5, 1)
    task = prepare("vit", folder, dict(image_size="21x14", patch=7, channels=1), flip=False, crop=1.0, augment_ops=0)
    assert task.config.image_size == (21, 14)
    assert task.config.grid == (3, 2)
    assert not task.transform.augmented
    assert task.batch(0)[0].shape == (5, 1, 21, 14)


def trainer(tmp_path, name, which, data, model=None, **train):
    model, train = {**SIZES, **(model or {})}, {**PACE, **train}
    run, task, config = new_run(TrainingRequest(which, str(data), model=model, train=train), out=tmp_path / name)
    return trainer_of(run, task, config)


def trainer_of(run, task, config):
    # a contact sheet takes long; random numbers drawn for a preview change nothing
    task.preview = lambda model: Preview(".txt", str(torch.rand(())).encode())
    return Trainer(task, run, config)


@pytest.mark.parametrize("which", ["digits", "scenes", "photos", "album"])
@pytest.mark.usefixtures("fast_training")
def test_an_interrupted_run_on_images_continues_to_the_same_bits(tmp_path, folder, tales, which):
    name, model, _ = CASES[which]
    data = {"photos": folder, "album": tales}.get(which, which)
    more = dict(mixup=0.4, accumulate=2) if name == "vit" else {}
    more["augment_ops"] = 1 if which == "digits" else 0 if which == "scenes" else 2
    model = {**model, "dropout": 0.1}
    whole = trainer(tmp_path, "whole", name, data, model, **more)
    assert whole.task.slow == (which in ("photos", "album"))  # only decoding is worth a thread of its own
    whole.train()
    first = interrupt_after(trainer(tmp_path, "cut", name, data, model, **more), 3)
    assert not first.train().finished
    with safe_open(tmp_path / "cut" / "model.safetensors", "pt") as file:
        assert file.metadata()["step"] == "3"  # an interrupted run is used with its last weights
    run = Run.open(tmp_path / "cut")
    config = build(TrainConfig, run.config["train"])
    torch.manual_seed(99)
    assert trainer_of(run, task_of(run, config), config).train().finished
    assert bits(tmp_path / "cut", 7) == bits(tmp_path / "whole", 7)


def test_prefetched_batches_equal_those_made_on_demand(tmp_path, folder):
    made = trainer(tmp_path, "a", "vit", folder, SMALL, accumulate=2)
    assert made.batch is not made.task.batch
    for step in range(4):
        for micro in range(2):
            assert same(made.batch(step, micro), made.task.batch(step, micro))
    made.batch.close()


@pytest.mark.parametrize("which", ["digits", "photos"])
@pytest.mark.usefixtures("fast_training")
def test_the_best_weights_are_kept_except_where_only_a_test_set_is_held_out(tmp_path, folder, which, monkeypatch):
    made = trainer(tmp_path, "a", "vit", {"photos": folder}.get(which, which), CASES[which][1])
    assert made.task.select_best == (which == "photos")
    losses = iter([5.0, 1.0, 3.0, 4.0])  # at steps 0, 3, 6 and 7
    seen = {}

    def evaluate(model, batches=None):
        seen[made.step] = {n: t.clone() for n, t in model.state_dict().items()}
        return {"val_loss": next(losses), "accuracy": 0.5}

    monkeypatch.setattr(made.task, "evaluate", evaluate)
    outcome = made.train()
    kept = 3 if which == "photos" else 7
    assert outcome.best["step"] == kept
    weights = load(tmp_path / "a").model.state_dict()
    assert all(torch.equal(weights[name], t) for name, t in seen[kept].items())
    assert any(not torch.equal(seen[3][name], t) for name, t in seen[7].items())


@pytest.mark.usefixtures("fast_training")
def test_the_accuracy_of_the_best_loss_and_the_highest_are_told_apart(tmp_path, folder, capsys, monkeypatch):
    """The lowest loss at step 6, the highest accuracy at step 3: also after an interruption between them."""
    results = {0: (5.0, 0.25), 3: (2.0, 0.75), 6: (1.0, 0.5), 7: (3.0, 0.5)}

    def evaluate(self, model, batches=None):
        loss, accuracy = results[made.step]
        return {"val_loss": loss, "accuracy": accuracy}

    monkeypatch.setattr(ImageClassification, "evaluate", evaluate)
    made = interrupt_after(trainer(tmp_path, "a", "vit", folder, SMALL), 4)
    made.train()
    run = Run.open(tmp_path / "a")
    config = build(TrainConfig, run.config["train"])

    def resumed(*given, **more):
        nonlocal made
        made = Trainer(*given, **more)
        return made

    monkeypatch.setattr("pencil.api.train.Trainer", resumed)
    outcome = train_to_end(run, task_of(run, config), config, notify=print)
    sentence = "the highest accuracy was 0.7500, at step 3"
    assert (
        f"kept step 6, the lowest val_loss: accuracy 0.5000, val_loss 1.0000 ({sentence}); " in capsys.readouterr().out
    )
    card = (tmp_path / "a" / "README.md").read_text()
    assert f"are those of step 6, the best by validation loss; {sentence}.\n" in card
    trained = Trained.of(run, outcome, load)
    assert trained.best == {"step": 6, "val_loss": 1.0, "accuracy": 0.5}
    assert trained.highest == {"step": 3, "accuracy": 0.75}
    assert repr(trained).endswith("val_loss 1.0000, accuracy 0.5000 at step 6, which is kept)")


@pytest.mark.usefixtures("fast_training")
def test_a_small_vit_learns_digits(tmp_path):
    pace = dict(steps=120, batch=64, muon_lr=0.02, eval_every=120, save_every=120)
    made = trainer(tmp_path, "a", "vit", "digits", dict(dropout=0), **pace)
    before = made.task.evaluate(made.task.build().eval())["accuracy"]
    made.train()
    after = made.task.evaluate(load(tmp_path / "a").model)["accuracy"]
    assert after > max(0.6, before + 0.3)


def test_a_tokenizer_without_an_end_token_is_refused(tales):
    data = images.load(str(tales), "caption")
    sizes = prepare("captioner", tales, SMALL).config
    with pytest.raises(ValueError, match="has no <|endoftext|>"):
        Captioning(family("captioner"), data, sizes, build(TrainConfig, PACE), learn("char", data.captions(), 0))


def test_a_model_may_have_more_classes_than_the_data(tmp_path, folder, monkeypatch):
    drawn, confusion = [], draw.confusion
    monkeypatch.setattr(draw, "confusion", lambda *a: drawn.append(a[0]) or confusion(*a))
    task = prepare("vit", folder, dict(image_size="16", classes=5))
    torch.manual_seed(1)
    model = task.build().eval()
    nn.init.zeros_(model.head.weight)
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([0.0, 0, 0, 0, 9]))
    metrics, files = task.report(model, tmp_path / "eval")
    assert metrics["accuracy"] == metrics["recall.cat"] == metrics["recall.dog"] == metrics["macro_f1"] == 0
    assert all(is_png(path) for path in files if path.suffix == ".png")
    assert np.trace(drawn[0]) == 0  # a class without a name is not the last that has one


def test_dropped_words_are_replaced_by_the_end_token_and_stay_targets(tales):
    plain, dropping = prepare("captioner", tales), prepare("captioner", tales, word_dropout=0.5)
    dropped = total = 0
    for step in range(7):
        (pictures, inputs, targets), (same_pictures, less, same_targets) = plain.batch(step), dropping.batch(step)
        assert torch.equal(pictures, same_pictures)
        assert torch.equal(targets, same_targets)
        changed = less != inputs
        assert (less[changed] == plain.end).all()
        dropped, total = dropped + changed.sum().item(), total + (inputs != plain.end).sum().item()
    assert 0.3 < dropped / total < 0.7


def test_scenes_have_the_size_and_channels_of_the_model():
    task = prepare("captioner", "scenes", dict(image_size="32x24", patch=8, channels=3))
    pictures, _, _ = task.batch(0)
    assert pictures.shape[1:] == (3, 32, 24)
    plain, _, _ = prepare("captioner", "scenes").batch(0)
    assert plain.shape[1:] == (1, 16, 16)


def test_sizes_are_checked_against_the_data_not_against_a_default(tmp_path, folder):
    """8 does not divide 28, and need not."""
    model = dict(patch="8")
    _, task, _ = new_run(TrainingRequest("vit", "digits", model=model, train=dict(device="cpu")), out=tmp_path / "run")
    assert task.config.grid == (1, 1)
    model_config, train_config = settings_of(TrainingRequest("vit", "digits"))
    assert model_config.image_size == (8, 8)
    assert train_config.steps == task.data.training_defaults["steps"]
    # a preset with sizes of its own keeps its own training settings
    assert settings_of(TrainingRequest("vit", "digits", preset="ti/16"))[1].steps == 50_000
