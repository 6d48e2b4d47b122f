"""What a task says of itself and of its batches: the names of samples, counts, hashes; and the order of examples."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_image_tasks import prepare as prepare_images
from test_text_tasks import prepare as prepare_reader
from test_translation import prepare as prepare_pairs
from test_translation import words

from albums import photos
from pencil.api.run_setup import train_config
from pencil.config import UserError, build
from pencil.data.tables.generated_dates import Dates
from pencil.data.text import text_data as text
from pencil.families import configure, family
from pencil.train.loop import nonfinite
from pencil.train.settings import TrainConfig
from pencil.train.task import Request, check_vocab, epoch_order, random_of, round_up
from pencil.train.tasks.diffusion import Diffusion
from pencil.train.tasks.language_modeling import LanguageModeling
from pencil.train.tasks.latents import LatentExamples
from pencil.train.tasks.metrics import character_error_rate, exact_match


def named(task, step, micro):
    """The names of a batch, and the batch."""
    return task.sample_ids(step, micro), task.batch(step, micro)


def test_texts_are_named_by_where_they_begin(notes):
    data = text.load(str(notes), "char")
    sizes = configure("gpt", "nano", vocab=data.tokenizer.vocab, width=24, heads=3, depth=1, context=31)
    task = LanguageModeling(family("gpt"), data, sizes, build(TrainConfig, {"batch": 7, "accumulate": 2}))
    names, (tokens, _) = named(task, 3, 1)
    assert len(names) == 7
    for name, row in zip(names, tokens, strict=True):
        start = int(name.removeprefix("notes at token "))
        assert row.tolist() == data.train[start : start + 31].tolist()
    assert names != task.sample_ids(3, 0) != task.sample_ids(2, 0)


def test_pairs_are_named_by_their_sources(tmp_path):
    path = tmp_path / "backwards.tsv"
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words()))
    for data in (path, "dates"):
        task = prepare_pairs(data, accumulate=2)
        names, batch = named(task, 3, 1)
        rows = [row for row in (task.tokenizer.decode([t for t in ids if t != task.end]) for ids in batch[0].tolist())]
        assert names == [repr(row[:60]) for row in rows]
    assert len(names) == 5
    assert names == [repr(source) for source, _ in Dates().draw(random_of(task.train.seed, 3, 1), 5)]


def test_labelled_texts_are_named_by_their_beginning(tmp_path):
    path = tmp_path / "reviews.tsv"
    path.write_text("".join(f"{'so ' * 30}{i} {word}\t{word}\n" for i in range(20) for word in ("good", "bad")))
    task = prepare_reader(path, accumulate=2)
    names, batch = named(task, 3, 1)
    assert len(names) == task.targets(batch) == task.count(batch) == 5
    assert names == [
        repr(task.rows[i][0][:60]) for i in epoch_order(task.train.seed, (3 * 2 + 1) * 5, 5, len(task.rows))
    ]


def test_pictures_are_named_by_number_file_or_caption(tmp_path):
    digits = prepare_images("vit", "digits", accumulate=2)
    names, (pictures, labels) = named(digits, 3, 1)
    for name, picture, label in zip(names, pictures, labels, strict=True):
        number = int(name.removeprefix("image ").removesuffix(" of digits"))
        assert np.array_equal(picture.numpy(), digits.data.train.pictures[number])
        assert int(label) == digits.data.train.targets[number]
    files = prepare_images("vit", photos(tmp_path / "photos", {"cat": 9, "dog": 8}), dict(image_size="16"))
    names, (_, labels) = named(files, 2, 0)
    assert [Path(name).parent.name for name in names] == [("cat", "dog")[label] for label in labels.tolist()]
    assert all(Path(name).is_file() for name in names)
    scenes = prepare_images("captioner", "scenes")
    names, (_, inputs, _) = named(scenes, 2, 0)
    captions = scenes.examples(2, 0)[1]
    assert names == [f"the generated image of {caption!r}" for caption in captions]
    assert torch.equal(scenes.tokens(captions)[1], scenes.batch(2)[2])
    assert inputs.shape[0] == 5


def diffusion(data, **options):
    chosen = family("dit").train_options(**options)
    request = Request(family("dit"), str(data), "nano", dict(width=16, depth=1, heads=2), {}, chosen)
    return Diffusion.prepare(request, train_config(family("dit"), "nano", {"batch": 7})).task


def test_generated_videos_are_named_by_their_digit():
    names, (_, labels, _) = named(diffusion("moving-digits"), 3, 1)
    assert names == [f"the generated video of {label}" for label in labels.tolist()]


def test_latents_are_named_by_their_pictures_where_some_cannot_be_decoded(tmp_path):
    task = prepare_images("vit", photos(tmp_path / "photos", {"cat": 9, "dog": 8}), dict(image_size="16"))
    every = len(task.data.train)
    latents = np.zeros((every, 1, 1, 1), np.float16)
    latents[[0, 3]] = np.nan
    task.inputs = replace(task.data, train=LatentExamples(latents, task.data.train.targets))
    whole = [i for i in range(every) if i not in (0, 3)]
    order = epoch_order(task.train.seed, 2 * 5, 5, len(whole))
    assert task.sample_ids(2) == [str(task.data.train.sources[whole[i]]) for i in order]


def test_what_a_task_says_of_its_data():
    video, still = diffusion("moving-digits"), diffusion("digits")
    assert video.about().startswith("videos of moving-digits at 16×16, generated while training, ")
    assert still.about() == "images of digits at 8×8, 1,438 to train on, 359 held out"
    still.config = replace(still.config, frames=2)
    assert still.about().startswith("videos of ")
    for task in (video, still):
        assert task.hash == task.data.hash
        assert len(task.hash) == 64
        assert not task.select_best
        assert not task.slow
    vit = prepare_images("vit", "digits")
    assert vit.usage == "--image picture.png"
    assert vit.hash == still.hash


def test_held_out_pictures_come_in_order_and_none_is_an_error(monkeypatch):
    task = prepare_images("vit", "digits")
    monkeypatch.setattr("pencil.train.tasks.image_task.EVAL_BATCH", 100)
    parts = list(task.held_out(task.data.test, None))
    assert [len(pictures) for pictures, _, _ in parts] == [100, 100, 100, 59]
    assert [label for _, labels, _ in parts for label in labels] == list(task.data.test.targets)
    ((pictures, labels, which),) = task.held_out(task.data.test, 2)
    chosen = np.linspace(0, 358, 10).astype(int)
    assert np.array_equal(pictures, task.data.test.pictures[chosen])
    assert labels == [task.data.test.targets[i] for i in chosen]
    assert list(which) == list(chosen)
    monkeypatch.setattr(
        type(task.data.test), "take", lambda self, which, transform, rng=None: (np.zeros((0, 1, 8, 8)), [])
    )
    with pytest.raises(UserError, match="none of the held-out images of digits can be decoded"):
        list(task.held_out(task.data.test, None))


def test_the_numbers_of_a_step_are_numpys_philox_at_its_counter():
    """Batches of old runs must come again: the key is the seed, the counter the step and the micro-batch."""
    expected = np.random.Generator(np.random.Philox(key=7, counter=[0, 0, 5, 3])).integers(1 << 60, size=4)
    assert random_of(7, 5, 3).integers(1 << 60, size=4).tolist() == expected.tolist()
    order = np.random.Generator(np.random.Philox(key=7, counter=[0, 0, 2, 1 << 21])).permutation(11)
    assert epoch_order(7, 25, 8, 11) == order[3:].tolist()  # within the third epoch


def test_mixup_has_random_numbers_of_its_own():
    task = prepare_images("vit", "digits", mixup=0.4, accumulate=2)
    shares = [float(task.batch(3, micro)[2]) for micro in (0, 1)]
    wanted = [random_of(task.train.seed, 3, micro + (1 << 22)).beta(0.4, 0.4) for micro in (0, 1)]
    assert shares == pytest.approx(wanted, rel=1e-6)


def test_dropped_words_have_random_numbers_of_their_own():
    task = prepare_images("captioner", "scenes", word_dropout=0.5, accumulate=2)
    for micro in (0, 1):
        inputs, _ = task.tokens(task.examples(3, micro)[1])
        dropped = random_of(task.train.seed, 3, micro + (1 << 22)).random(tuple(inputs.shape)) < 0.5
        assert torch.equal(task.batch(3, micro)[1], inputs.masked_fill(torch.from_numpy(dropped), task.end))


def test_a_context_is_rounded_up():
    assert [round_up(n) for n in (1, 15, 16, 17, 24, 25)] == [16, 16, 16, 24, 24, 32]
    assert round_up(10, multiple=3, least=2) == 12


def test_a_vocabulary_must_hold_the_tokenizers(notes):
    tokenizer = text.load(str(notes), "char").tokenizer
    sizes = dict(width=24, heads=3, depth=1)
    check_vocab(configure("gpt", "nano", vocab=tokenizer.vocab, **sizes), tokenizer)
    with pytest.raises(UserError, match=f"model.vocab {tokenizer.vocab - 1} is smaller than the tokenizer's"):
        check_vocab(configure("gpt", "nano", vocab=tokenizer.vocab - 1, **sizes), tokenizer)
    request = Request(family("gpt"), str(notes), "nano", {**sizes, "vocab": 7, "context": 31})
    with pytest.raises(UserError, match="model.vocab 7 is smaller"):
        LanguageModeling.prepare(request, TrainConfig())


def test_the_samples_of_a_batch_in_a_sentence():
    assert nonfinite.name_samples(list("abc")) == "a, b, c"
    assert nonfinite.name_samples(list("abcde")) == "a, b, c, d, e"
    assert nonfinite.name_samples(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_exact_match_of_one_text_and_of_none():
    assert exact_match(["a"], ["a"]) == 1
    assert exact_match(["a"], ["b"]) == 0
    assert exact_match([], []) == 0
    assert character_error_rate(["b"], ["a"]) == 1
    assert character_error_rate([""], [""]) == 0
