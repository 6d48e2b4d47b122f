import re
from itertools import pairwise, product

import numpy as np
import pytest

from pencil.data.builtin import PLACES, WORDS, Scenes
from pencil.data.images import open_images as images
from pencil.data.images.digits import SIDE, digits, handwriting

NUMBER = {word.split()[1]: number for number, word in enumerate(WORDS)}
WHERE = {words: (row, column) for row, line in enumerate(PLACES) for column, words in enumerate(line)}


def rng(key):
    return np.random.Generator(np.random.Philox(key=key))


def read(caption):
    """A caption parsed: its digits in order, and their places."""
    both = re.fullmatch(r"an? (\w+) (above|left of) an? (\w+)", caption)
    if both:
        return [NUMBER[both[1]], NUMBER[both[3]]], both[2]
    found = [re.fullmatch(r"an? (\w+) (.+)", part) for part in caption.split(", ")]
    return [NUMBER[f[1]] for f in found], [WHERE[f[2]] for f in found]


def known(pools):
    """Which digit a piece of a canvas is, by its bytes."""
    return {row.tobytes(): digit for digit, pool in enumerate(pools) for row in pool}


def boxes(canvas, pool):
    """The positions of the handwriting of a pool on a canvas, by exhaustive search: (row, column, digit)."""
    places = [(row, column) for row in range(len(canvas) - SIDE + 1) for column in range(len(canvas) - SIDE + 1)]
    parts = {(r, c): canvas[r : r + SIDE, c : c + SIDE].tobytes() for r, c in places}
    return [(*place, pool[part]) for place, part in parts.items() if part in pool]


def covers(canvas, spots, pool):
    """Whether these digits at these spots, each in some handwriting of the pool, are all there is on the canvas."""
    rest = canvas.copy()
    for row, column, digit in spots:
        part = rest[row : row + SIDE, column : column + SIDE]
        if pool.get(part.tobytes()) != digit:
            return False
        part[:] = 0
    return not rest.any()


def test_digits_are_split_once_and_for_all():
    pictures, labels, held = digits()
    assert pictures.shape == (1797, 1, 8, 8)
    assert pictures.dtype == np.uint8
    assert (pictures.min(), pictures.max()) == (0, 255)
    assert held.sum() == 1797 // 5
    # fixed for every numpy version
    assert np.flatnonzero(held)[:11].tolist() == [0, 5, 7, 10, 11, 12, 22, 23, 25, 31, 39]
    counts = np.bincount(labels[held], minlength=10)
    assert counts.min() > 20  # drawn at random, not the end of the file
    assert 0.3 < np.flatnonzero(held).mean() / 1797 < 0.7
    data = images.load("digits", "label")
    assert (len(data.train), len(data.test)) == (1438, 359)
    seen = {(row.tobytes(), t) for row, t in zip(data.train.pictures, data.train.targets, strict=True)}
    unseen = {(row.tobytes(), t) for row, t in zip(data.test.pictures, data.test.targets, strict=True)}
    assert not seen & unseen
    assert data.classes == tuple("0123456789")


def test_digits_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    found = datasets.load_digits()
    pictures, labels, _ = digits()
    assert np.array_equal(pictures[:, 0], np.round(found.images * (255 / 16)).astype(np.uint8))
    np.testing.assert_allclose(pictures[:, 0] / 255 * 16, found.images, atol=16 / 255 / 2 + 1e-9)
    assert np.array_equal(labels, found.target)
    assert labels.dtype == np.int64


@pytest.mark.parametrize("name, want, known", [
    ("digits", "label", "381d9df3c4865c28993671cf566c9610f63fc3fbb5945326e7976c51e07b8ed6"),
    ("moving-digits", "label", "3c2dade77d97b41896b20d21cfeb9cbb953a385c11003e3cdd0a60c9276b9e0a"),
    ("moving-digits", "video", "3c2dade77d97b41896b20d21cfeb9cbb953a385c11003e3cdd0a60c9276b9e0a"),
    ("scenes", "caption", "0cde0305e2156d87b9e0e4607aa319ecf1597efe9ffa6c5ee829bfd6d3be2116"),
    ("scenes-hard", "caption", "5426a0fcac2501629a59ade42dae108975082a916dfb8f1e813d6ad7aff34919"),
])  # fmt: skip
def test_the_hashes_of_built_in_data_never_change(name, want, known):
    """A run checks the hash of its data when it is resumed or evaluated."""
    assert images.load(name, want).hash == known


@pytest.mark.parametrize("hard", [False, True], ids=["scenes", "hard"])
@pytest.mark.parametrize("held_out", [False, True], ids=["train", "test"])
def test_held_out_combinations_are_in_every_test_caption_and_in_no_training_caption(hard, held_out):
    _, captions = Scenes(hard).draw(rng(3), 2000, held_out, held_out)
    for caption in captions:
        named, _ = read(caption)
        assert any((a - b) % 10 in (3, 7) for a, b in pairwise(named)) == held_out, caption
    firsts = {read(caption)[0][0] for caption in captions}
    assert firsts == set(range(10))
    kinds = {len(read(caption)[0]) for caption in captions}
    assert kinds == ({1, 2, 3, 4} if hard else {1, 2}) - ({1} if held_out else set())


@pytest.mark.parametrize("unseen", [False, True])
def test_a_scene_of_one_or_two_digits_matches_its_caption(unseen):
    scenes = Scenes()
    pools, others = known(handwriting()[unseen]), known(handwriting()[not unseen])
    pictures, captions = scenes.draw(rng(5), 150, unseen)
    assert pictures.shape == (150, 1, 16, 16)
    alone = 0
    for picture, caption in zip(pictures[:, 0], captions, strict=True):
        named, where = read(caption)
        spots = boxes(picture, pools)
        if len(named) == 1:
            alone += 1
            # a place is at most one pixel off its third of the canvas, kept inside
            row, column = where[0]
            fit = [
                spot for spot in spots if spot[2] == named[0] and covers(picture, [spot], pools)
                and abs(spot[0] - 4 * row) <= 1 and abs(spot[1] - 4 * column) <= 1
            ]  # fmt: skip
            assert fit, caption
            assert not covers(picture, fit[:1], others)
            continue
        fits = [
            (a, b) for a in spots for b in spots
            if [a[2], b[2]] == named and covers(picture, [a, b], pools)
            and (a[0] + SIDE <= b[0] if where == "above" else a[1] + SIDE <= b[1])
        ]  # fmt: skip
        assert fits, caption
        a, b = fits[0]
        sideways = abs(a[1] - b[1]) if where == "above" else abs(a[0] - b[0])
        assert sideways <= SIDE // 2  # never so far that the other relation holds as well
        assert not covers(picture, [a, b], others)
    assert 40 < alone < 110


def test_a_hard_scene_matches_its_caption():
    scenes = Scenes(hard=True)
    for unseen in (False, True):
        pools, others = known(handwriting()[unseen]), known(handwriting()[not unseen])
        pictures, captions = scenes.draw(rng(7), 40, unseen)
        assert pictures.shape == (40, 1, 32, 32)
        for picture, caption in zip(pictures[:, 0], captions, strict=True):
            named, where = read(caption)
            assert where == sorted(where)  # in reading order
            assert len(set(where)) == len(where)
            choices = []
            spots = boxes(picture, pools)
            for digit, (row, column) in zip(named, where, strict=True):
                fits = [
                    spot for spot in spots
                    if spot[2] == digit and 0 <= spot[0] - 9 * row <= 6 and 0 <= spot[1] - 9 * column <= 6
                ]  # fmt: skip
                assert fits, caption
                choices.append(fits)
            whole = [c for c in product(*choices) if covers(picture, c, pools)]
            assert whole, caption
            for i, a in enumerate(whole[0]):
                for b in whole[0][:i]:
                    assert abs(a[0] - b[0]) >= SIDE or abs(a[1] - b[1]) >= SIDE
            assert not covers(picture, whole[0], others)


def test_the_same_generator_draws_the_same_scenes():
    for hard in (False, True):
        pictures, captions = Scenes(hard).draw(rng(11), 31)
        again = Scenes(hard).draw(rng(11), 31)
        assert np.array_equal(pictures, again[0])
        assert captions == again[1]
        assert captions != Scenes(hard).draw(rng(12), 31)[1]


def test_the_captions_are_english():
    _, captions = Scenes(True).draw(rng(13), 500)
    text = "\n".join(captions)
    assert "an eight" in text
    assert not re.search(r"\ba eight|\ban (?!eight)", text)


@pytest.mark.parametrize("name", ["scenes", "scenes-hard"])
def test_test_scenes_are_fixed_with_unseen_handwriting_and_combinations(name):
    data, again = images.load(name, "caption"), images.load(name, "caption")
    assert data.hash == again.hash
    assert np.array_equal(data.test.pictures, again.test.pictures)
    assert len(data.test) == len(data.seen_combinations) == 1000
    for part, kept in ((data.test, True), (data.seen_combinations, False)):
        assert all(any((a - b) % 10 in (3, 7) for a, b in pairwise(read(t)[0])) == kept for t in part.targets)
    assert data.hash != images.load("scenes" if name != "scenes" else "scenes-hard", "caption").hash
    trained = {row.tobytes() for row in data.train.draw(rng(1), 3000)[0]}
    assert not trained & {row.tobytes() for part in (data.test, data.seen_combinations) for row in part.pictures}
