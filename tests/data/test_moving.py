"""Moving digits: the same for the same random numbers, an even pace, turned back at the edges, handwriting kept apart."""

import numpy as np

from pencil.data import images
from pencil.data.augment import Look
from pencil.data.builtin import SIDE
from pencil.data.moving import CANVAS, FRAMES, MovingDigits, track


def philox(key):
    return np.random.Generator(np.random.Philox(key=key))


def test_a_track_goes_at_an_even_pace_and_turns_back_at_either_end():
    places = track(philox(3), 997)
    assert places.shape == (997, FRAMES)
    assert places.min() == 0
    assert places.max() == CANVAS - SIDE
    steps = np.diff(places, axis=1)
    assert np.abs(steps).max() == 2
    # a step shorter than the pace is one that ends or begins within a turn
    turned = np.diff(np.sign(steps), axis=1) != 0
    for row, turns in zip(steps, turned, strict=True):
        if not turns.any():
            assert len(set(row.tolist())) == 1


def test_videos_follow_from_the_random_numbers_and_hold_one_digit_each():
    digits = MovingDigits()
    videos, labels = digits.draw(philox(5), 53)
    again, same = digits.draw(philox(5), 53)
    assert videos.shape == (53, 1, FRAMES, CANVAS, CANVAS)
    assert (videos == again).all()
    assert labels == same
    # every frame of a video shows the same handwriting: as much light in each
    light = videos.reshape(53, FRAMES, -1).sum(2)
    assert (light == light[:, :1]).all()
    assert set(labels) == set(range(10))


def test_the_test_is_in_handwriting_no_training_video_uses():
    digits = MovingDigits()
    seen = {row.tobytes() for style in digits.writing[False] for row in style}
    unseen = {row.tobytes() for style in digits.writing[True] for row in style}
    assert not seen & unseen


def test_as_videos_for_one_model_and_as_frames_for_another():
    film, frames = images.load("moving-digits", "video"), images.load("moving-digits", "label")
    videos, labels = film.test.take(range(7), Look((CANVAS, CANVAS), 1))
    assert videos.shape == (7, 1, FRAMES, CANVAS, CANVAS)
    assert frames.test.pictures.shape == (500 * FRAMES // 2, 1, CANVAS, CANVAS)
    assert (frames.test.pictures[: FRAMES // 2, 0] == videos[0, 0, ::2]).all()
    assert frames.test.targets[:: FRAMES // 2][:7] == labels
