"""Tasks on text, their numbers recomputed: what is counted, what is masked, what is listed."""

import math

import pytest
import torch
from test_text_tasks import prepare as prepare_reader
from test_translation import lively, prepare, words

from conftest import unchecked
from pencil.config import UserError, build
from pencil.data.text import text_data as text
from pencil.families import configure, family
from pencil.train.settings import TrainConfig
from pencil.train.task import random_of
from pencil.train.tasks import text_classification, translation
from pencil.train.tasks.language_modeling import LanguageModeling
from pencil.train.tasks.text_classification import TextClassification
from pencil.train.tasks.translation import Translation


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "backwards.tsv"
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words()))
    return path


@pytest.fixture(scope="module")
def reversing(pairs):
    return prepare(pairs)


def test_every_token_of_a_target_counts_the_first_of_the_vocabulary_too(reversing):
    rows = reversing.data.train[:7]
    batch = reversing.tokens(rows)
    assert any(0 in row for row in batch[3].tolist())
    assert reversing.targets(batch) == sum(len(target) + 1 for _, target in rows)  # a token a letter, and the end


def plain(notes, context=31, **settings):
    data = text.load(str(notes), "char")
    sizes = configure("gpt", "nano", vocab=data.tokenizer.vocab, width=24, heads=3, depth=1, context=context)
    return LanguageModeling(family("gpt"), data, sizes, build(TrainConfig, {"batch": 7, **settings}))


def test_every_token_of_a_text_is_a_target(notes):
    task = plain(notes)
    batch = task.batch(3)
    assert (batch[1] == 0).any()
    assert task.targets(batch) == 7 * 31


def test_windows_reach_the_last_token_and_not_beyond(notes):
    task = plain(notes)
    task.data = text.TextData(task.data.corpus, task.data.tokenizer, task.data.ids[:40])
    starts = {int(start) for step in range(60) for start in task._starts(step, 0)}
    assert starts == set(range(len(task.data.train) - 31))
    for step in range(9):
        assert task.batch(step)[0].shape == (7, 31)


@pytest.mark.parametrize("short", [0, 1])
def test_a_text_must_hold_one_window_and_its_last_target(notes, short):
    held = len(plain(notes).data.val)
    if not short:
        assert plain(notes, context=held - 1).held_out_windows(None).tolist() == [0]
        return
    with pytest.raises(UserError, match=f"has {held} tokens to evaluate on, fewer than the context of {held} needs"):
        plain(notes, context=held)


def test_masked_tokens_are_judged_one_by_one(notes):
    """The mean over exactly the chosen tokens, the first of the vocabulary among them, in any batches."""
    task = prepare_reader(notes, dict(context=31), batch=4, mask_fraction=0.6)
    model = lively(task)
    total = right = count = zeros = 0
    with unchecked(), torch.no_grad():
        found = task.evaluate(model, 3)
        for start in task.held_out_windows(3).tolist():
            window = torch.from_numpy(task.data.val[start : start + 31].astype("int64"))[None]
            inputs, targets = task.mask_tokens(window, random_of(0, start))
            likely = model(inputs)[0].log_softmax(-1)
            for place in (targets[0] >= 0).nonzero()[:, 0].tolist():
                token = int(targets[0, place])
                total, count, zeros = total - float(likely[place, token]), count + 1, zeros + (token == 0)
                right += int(likely[place].argmax()) == token
    assert zeros
    assert found["val_loss"] == pytest.approx(total / count, rel=1e-5)
    assert found["accuracy"] == pytest.approx(right / count)
    assert found["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)


@pytest.mark.parametrize("which", [None, 5])
def test_a_single_masked_token_is_enough(notes, monkeypatch, which):
    task = prepare_reader(notes, dict(context=31))
    model = lively(task)
    monkeypatch.setattr(type(task), "held_out_windows", lambda self, batches: task.data.val[:1] * 0)

    def mask(self, tokens, rng):
        targets = torch.full_like(tokens, -100)
        if which is not None:
            targets[0, which] = tokens[0, which]
        return tokens, targets

    monkeypatch.setattr(type(task), "mask_tokens", mask)
    if which is None:
        with (
            unchecked(),
            pytest.raises(UserError, match="0.15 no token of the 1 held-out windows is masked: use a larger"),
        ):
            task.evaluate(model)
        return
    with unchecked(), torch.no_grad():
        found = task.evaluate(model)
        window = torch.from_numpy(task.data.val[:31].astype("int64"))[None]
        likely = model(window)[0].log_softmax(-1)
    expected = -float(likely[which, window[0, which]])
    assert found["val_loss"] == pytest.approx(expected, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)


@pytest.mark.parametrize("most, ending", [(3, "; the first 3"), (4, "")])
def test_only_some_mistakes_of_a_translation_are_listed(reversing, tmp_path, monkeypatch, most, ending):
    rows = reversing.data.test[:4]
    monkeypatch.setattr(translation, "MISTAKES", most)
    monkeypatch.setattr(translation, "source_attention", lambda *_: b"\x89PNG")
    monkeypatch.setattr(reversing, "data", type(reversing.data)(**{**vars(reversing.data), "test": rows}))
    wrong = [f"x{target}" for _, target in rows]

    def decode(model, tokenizer, sources, limit):
        assert limit is None  # a report is of whole texts, however long
        return wrong

    monkeypatch.setattr(translation, "greedy_targets", decode)
    with unchecked():
        metrics, _ = reversing.report(reversing.build().eval(), tmp_path / "deep" / "eval")
    head, _, *listed = (tmp_path / "deep" / "eval" / "mistakes.txt").read_text().splitlines()
    assert head == f"4 of 4 differ{ending}"
    assert listed == [f"{one}\tx{other}\t(is: {other})" for one, other in rows[:most]]
    assert metrics["exact_match"] == 0
    assert metrics["character_error_rate"] == pytest.approx(4 / sum(len(other) for _, other in rows))


def test_while_training_targets_are_decoded_as_far_as_the_longest_reference(reversing, monkeypatch):
    asked = []

    def decode(model, tokenizer, sources, limit):
        asked.append((len(sources), limit))
        return [""] * len(sources)

    monkeypatch.setattr(translation, "greedy_targets", decode)
    monkeypatch.setattr(translation, "EVAL_BATCH", 3)
    rows = [("ab", "ba"), ("abcd", "dcba"), ("a", "a"), ("abc", "cba"), ("b", "b")]
    with unchecked():
        found = reversing._predict(reversing.build().eval(), rows)
        reversing._predict(reversing.build().eval(), rows, whole=True)
    assert asked == [(3, 5), (2, 4), (3, None), (2, None)]
    assert found.sources == [one for one, _ in rows]
    assert found.references == [other for _, other in rows]


def test_the_hash_of_a_task_is_that_of_its_data(reversing, notes):
    assert reversing.hash == reversing.data.hash
    assert len(reversing.hash) == 64
    task = plain(notes)
    assert task.hash == task.data.corpus.hash
    assert len(task.hash) == 64


REVIEWS = [(f"{one} {two} {n}", "good" if two == "fine" else "bad") for one in ("film", "plot", "play")
           for two in ("fine", "grim") for n in range(9)]  # fmt: skip


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    path = tmp_path_factory.mktemp("reviews") / "reviews.tsv"
    path.write_text("".join(f"{one}\t{label}\n" for one, label in REVIEWS))
    return prepare_reader(path)


@pytest.mark.parametrize("most, ending", [(2, "; the first 2"), (3, "")])
def test_only_some_mistakes_of_a_classifier_are_listed(reviews, tmp_path, monkeypatch, most, ending):
    rows = [("film fine", "good"), ("plot fine", "bad"), ("plot grim", "good"), ("play grim", "bad"), ("play", "good")]
    monkeypatch.setattr(text_classification, "MISTAKES", most)
    monkeypatch.setattr(reviews, "data", type(reviews.data)(**{**vars(reviews.data), "test": rows, "lines": range(5)}))
    known = {"film fine": "good", "plot fine": "good", "plot grim": "bad", "play grim": "bad", "play": "bad"}

    def predict(self, model, rows):
        numbers = torch.tensor([self.number[known[one]] for one, _ in rows])
        sure = torch.full((len(rows), 2), 0.25).scatter(1, numbers[:, None], 0.75)
        return [(sure.log(), torch.tensor([self.number[label] for _, label in rows]))]

    monkeypatch.setattr(TextClassification, "_predict", predict)
    metrics, _ = reviews.report(reviews.build(), tmp_path / "deep" / "eval")
    head, _, *listed = (tmp_path / "deep" / "eval" / "mistakes.txt").read_text().splitlines()
    assert head == f"3 of 5 wrong{ending}"
    wanted = ["good (75%)\t(is: bad) plot fine", "bad (75%)\t(is: good) plot grim", "bad (75%)\t(is: good) play"]
    assert listed == wanted[:most]
    assert metrics["accuracy"] == pytest.approx(2 / 5)
    right = reviews.preview(reviews.build()).content.decode().splitlines()
    assert right[0] == "good (75%)\tfilm fine"


def test_a_reader_is_evaluated_on_as_many_texts_as_requested(reviews, monkeypatch):
    seen = []
    monkeypatch.setattr(TextClassification, "_classify", lambda self, model, rows: seen.extend(rows) or (
        torch.zeros(len(rows), 2), torch.zeros(len(rows), dtype=torch.long)))  # fmt: skip

    def evaluated(*batches):
        seen.clear()
        assert {"val_loss", "accuracy", "balanced_accuracy"} <= set(reviews.evaluate(reviews.build(), *batches))
        return list(seen)

    everything = list(reviews.data.test)
    assert evaluated() == evaluated(99) == everything
    assert len(evaluated(1)) == min(len(everything), reviews.train.batch)


def test_the_context_of_pairs_is_taken_from_the_data_unless_the_preset_has_one(reversing):
    longest = [max(len(pair[side]) for pair in reversing.data.all_pairs()) for side in (0, 1)]
    assert (reversing.config.source_context, reversing.config.context) == (16, 16)
    assert translation.longest(reversing.data, reversing.tokenizer, 0) == longest[0]
    assert translation.longest(reversing.data, reversing.tokenizer, 1) == longest[1]
    assert isinstance(reversing, Translation)
