"""Tracked loops: what a watcher is told, and that it can stop them; and times in words."""

import pytest

from pencil.progress import duration, pollable, track, watched


def test_without_a_watcher_a_loop_is_what_it_was():
    assert list(track(range(5))) == list(pollable(iter(range(5)))) == [0, 1, 2, 3, 4]


def test_a_watcher_sees_the_outermost_loop_and_each_turn_of_the_inner_ones():
    seen = []
    with watched(lambda done, total: seen.append((done, total))):
        for _ in track("ab"):
            for _ in track(range(3)):
                pass
            for _ in pollable(iter("x")):
                pass
    inner = 4 + 2  # a turn of each, and its end
    assert seen == [(0, 2)] * (1 + inner) + [(1, 2)] * (1 + inner) + [(2, 2)]
    list(track("abc"))
    assert len(seen) == 15


def test_a_loop_that_was_left_early_is_no_longer_the_outermost():
    seen = []
    with watched(lambda done, total: seen.append((done, total))):
        next(track(range(3)))
        list(track(range(2)))
    assert seen == [(0, 3), (0, 2), (1, 2), (2, 2)]


def test_what_a_watcher_raises_ends_the_loop():
    class Enough(Exception):
        pass

    def watch(done, total):
        if done == 2:
            raise Enough

    made = []
    with pytest.raises(Enough), watched(watch):
        made += [i for i in track(range(9)) if made.append(i) is None]
    assert made == [0, 1]


def test_times_in_words():
    seconds = [0.0012, 0.041, 0.5, 1, 9.94, 59, 99, 100, 3599, 5939, 5940, 36000]
    assert [duration(s) for s in seconds] == [
        "1.2 ms", "41 ms", "500 ms", "1.0 s", "9.9 s", "59 s", "99 s", "2 min", "60 min", "99 min", "1.6 h", "10.0 h"
    ]  # fmt: skip
