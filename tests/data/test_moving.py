"""Moving digits: determined by the generator, constant speed, reversed at the edges, held-out handwriting."""

import numpy as np

from pencil.data.builtin import CANVAS, FRAMES, MovingDigits, track
from pencil.data.images import open_images as images
from pencil.data.images.augment import ImageTransform
from pencil.data.images.digits import SIDE, handwriting


def philox(key):
    return np.random.Generator(np.random.Philox(key=key))


def test_a_track_has_constant_speed_and_reverses_at_either_end():
    places = track(philox(3), 997)
    assert places.shape == (997, FRAMES)
    assert places.min() == 0
    assert places.max() == CANVAS - SIDE
    steps = np.diff(places, axis=1)
    assert np.abs(steps).max() == 2
    # a step is shorter than the speed only where the direction is reversed
    reversals = np.diff(np.sign(steps), axis=1) != 0
    for row, reversed_ in zip(steps, reversals, strict=True):
        if not reversed_.any():
            assert len(set(row.tolist())) == 1


def test_videos_are_determined_by_the_generator_and_show_one_digit_each():
    digits = MovingDigits()
    videos, labels = digits.draw(philox(5), 53)
    again, same = digits.draw(philox(5), 53)
    assert videos.shape == (53, 1, FRAMES, CANVAS, CANVAS)
    assert (videos == again).all()
    assert labels == same
    # every frame of a video shows the same handwriting: equal total brightness
    brightness = videos.reshape(53, FRAMES, -1).sum(2)
    assert (brightness == brightness[:, :1]).all()
    assert set(labels) == set(range(10))


def test_test_videos_use_handwriting_of_no_training_video():
    seen = {row.tobytes() for style in handwriting()[False] for row in style}
    unseen = {row.tobytes() for style in handwriting()[True] for row in style}
    assert not seen & unseen


def test_as_videos_for_one_model_and_as_frames_for_another():
    film, frames = images.load("moving-digits", "video"), images.load("moving-digits", "label")
    videos, labels = film.test.take(range(7), ImageTransform((CANVAS, CANVAS), 1))
    assert videos.shape == (7, 1, FRAMES, CANVAS, CANVAS)
    assert frames.test.pictures.shape == (500 * FRAMES // 2, 1, CANVAS, CANVAS)
    assert (frames.test.pictures[: FRAMES // 2, 0] == videos[0, 0, ::2]).all()
    assert frames.test.targets[:: FRAMES // 2][:7] == labels
