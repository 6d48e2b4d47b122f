"""Captions of held-out images: the loss a word, the share of exact ones, and the sheets of pictures."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from conftest import unchecked
from pencil import draw
from pencil.config import UserError, build
from pencil.data.images.datasets import ArrayExamples
from pencil.families import family
from pencil.train.settings import TrainConfig
from pencil.train.task import Request
from pencil.train.tasks import captioning
from pencil.train.tasks.captioning import Captioning
from pencil.train.tasks.metrics import corpus_scores

SIZES = dict(width=24, heads=3, depth=1)


def prepare(model=None, **train):
    train = {"steps": 7, "batch": 5, **train}
    request = Request(family("captioner"), "scenes", "nano", {**SIZES, **(model or {})}, train)
    return Captioning.prepare(request, build(TrainConfig, train)).task


@pytest.fixture(scope="module")
def scenes():
    return prepare()


def first(examples, count):
    return ArrayExamples(examples.pictures[:count], examples.targets[:count])


def few(scenes, count, batch):
    """The task with few held-out scenes."""
    data = replace(
        scenes.data, test=first(scenes.data.test, count), seen_combinations=first(scenes.data.seen_combinations, count)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captioning, "longest_caption", lambda *_: scenes.length - 1)
        return Captioning(scenes.family, data, scenes.config, replace(scenes.train, batch=batch), scenes.tokenizer)


@pytest.fixture
def task(scenes, monkeypatch):
    """Eleven held-out scenes, in batches of four; every third caption is wrong, the first of them empty."""
    made = few(scenes, 11, 11)
    rows = {row.tobytes(): i for i, row in enumerate(made.data.test.pictures)}
    assert len(rows) == 11

    def caption(self, model, pictures):
        numbers = [rows.get(row.tobytes(), 1) for row in pictures]
        return ["" if i == 0 else f"word {i}" if i % 3 == 0 else made.data.test.targets[i] for i in numbers]

    monkeypatch.setattr(Captioning, "caption", caption)
    monkeypatch.setattr("pencil.train.tasks.image_task.EVAL_BATCH", 4)
    return made


@pytest.fixture
def sheets(monkeypatch):
    seen = []
    monkeypatch.setattr(draw, "sheet", lambda *given: seen.append(given) or b"\x89PNG")
    monkeypatch.setattr(captioning, "caption_attention", lambda *_: b"\x89PNG")
    return seen


def test_the_loss_is_the_mean_over_all_words(task):
    torch.manual_seed(3)
    model = task.build().eval()
    with unchecked():
        found = task.evaluate(model)
        total = words = right = 0
        for picture, caption in zip(task.data.test.pictures, task.data.test.targets, strict=True):
            ids = [*task.tokenizer.encode(caption).tolist(), task.end]
            x = torch.from_numpy(picture[None]).float() / 127.5 - 1
            with torch.no_grad():
                logits = model(torch.tensor([[task.end, *ids[:-1]]]), x)[0]
            total, words = total + float(F.cross_entropy(logits, torch.tensor(ids), reduction="sum")), words + len(ids)
            right += int((logits.argmax(-1) == torch.tensor(ids)).sum())
    told = [f"word {i}" * bool(i) if i % 3 == 0 else target for i, target in enumerate(task.data.test.targets)]
    scores = corpus_scores(told, task.data.test.targets)
    assert 0 < scores["bleu"] < scores["chrf"] < 100
    assert found == {
        "val_loss": pytest.approx(total / words, rel=1e-5), "exact_match": 7 / 11, "token_accuracy": right / words, **scores
    }  # fmt: skip
    assert [line.partition(":")[0] for line in task.notes] == list(found)[1:]


def test_the_preview_and_the_mistakes_name_what_is_wrong(task, sheets, tmp_path):
    targets, model = task.data.test.targets, task.build().eval()
    lines = [
        target if i % 3 else f"{f'word {i}' if i else '(nothing)'}\nis {target}" for i, target in enumerate(targets)
    ]
    with unchecked():
        task.preview(model)
        metrics, files = task.report(model, tmp_path / "deep" / "eval")
    shown, mistakes = sheets
    assert [picture.tobytes() for picture in shown[0]] == [row.tobytes() for row in task.data.test.pictures]
    assert shown[1:] == (lines, [i % 3 != 0 for i in range(11)], task.data.name)
    assert mistakes[1:] == (lines[::3], [False] * 4, "4 of 11 captions differ")
    assert len(mistakes[0]) == 4
    assert metrics["exact_match"] == 7 / 11
    assert metrics["exact_match_familiar"] < 1
    assert sorted(path.name for path in files) == [
        "attention-1.png",
        "attention-2.png",
        "attention-3.png",
        "mistakes.png",
    ]


@pytest.mark.parametrize("most, words", [(3, "; the first 3"), (4, "")])
def test_only_some_mistakes_are_on_the_sheet(task, sheets, tmp_path, monkeypatch, most, words):
    monkeypatch.setattr(captioning, "MISTAKES", most)
    with unchecked():
        task.report(task.build().eval(), tmp_path)
    (mistakes,) = sheets
    assert len(mistakes[0]) == most
    assert mistakes[3] == f"4 of 11 captions differ{words}"


def test_at_most_twenty_are_previewed(scenes, sheets):
    made = few(scenes, 23, 23)
    with unchecked(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Captioning, "caption", lambda self, model, pictures: ["x"] * len(pictures))
        made.preview(made.build().eval())
    assert len(sheets[0][0]) == len(sheets[0][1]) == 20


def test_what_the_loss_is_a_mean_over_is_counted(scenes):
    captions = scenes.examples(2, 0)[1]
    assert scenes.targets(scenes.batch(2)) == sum(len(scenes.tokenizer.encode(text)) + 1 for text in captions)


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused():
    with pytest.raises(UserError, match="model.vocab 7 is smaller than the tokenizer's"):
        prepare(dict(vocab=7))


def test_the_context_holds_the_longest_caption_and_its_end(scenes):
    captions = {*map(str, scenes.data.captions()), *map(str, scenes.data.test.targets)}
    longest = max(len(scenes.tokenizer.encode(text)) for text in captions)
    assert scenes.length == longest + 1
    assert scenes.config.context == max(16, -(-(longest + 1) // 8) * 8)
