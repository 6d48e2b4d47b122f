import threading

import pytest

from pencil.train.loop.trainer import Prefetch


def test_prefetched_batches_equal_those_made_on_demand():
    made, lock = [], threading.Lock()

    def make(step, micro):
        with lock:
            made.append((step, micro))
        return step * 100 + micro

    prefetch = Prefetch(make, 3, 7)
    for step in range(7):
        for micro in range(3):
            assert prefetch(step, micro) == make(step, micro)
    prefetch.close()
    expected = [(step, micro) for step in range(7) for micro in range(3)]
    assert sorted(made) == sorted(expected * 2)  # by us and by it: each made once, and none past the last step
    assert not prefetch.waiting


def test_steps_may_be_requested_from_the_middle_and_in_any_order():
    prefetch = Prefetch(lambda step, micro: (step, micro), 2, 11)
    for key in ((5, 1), (5, 0), (9, 1), (2, 0), (10, 1), (10, 0)):
        assert prefetch(*key) == key
    prefetch.close()


def test_batches_are_made_early_and_on_other_threads():
    early, threads = threading.Event(), set()

    def make(step, micro):
        threads.add(threading.current_thread())
        if step == 1:
            early.set()
        return step

    prefetch = Prefetch(make, 1, 5)
    assert prefetch(0, 0) == 0
    assert early.wait(600)  # step 1 was not requested yet
    assert threading.current_thread() not in threads
    prefetch.close()


def test_nothing_is_made_past_the_last_step():
    made, both = [], threading.Event()

    def make(step, micro):
        made.append((step, micro))
        if len(made) == 2:
            both.set()
        return step

    prefetch = Prefetch(make, 2, 3, depth=9)
    assert prefetch(2, 0) == 2
    assert both.wait(600)
    prefetch.pool.shutdown(wait=True)
    assert sorted(made) == [(2, 0), (2, 1)]


def test_only_a_few_batches_wait():
    prefetch = Prefetch(lambda step, micro: step, 1, 1000, depth=4)
    for step in range(50):
        prefetch(step, 0)
        assert len(prefetch.waiting) <= 3
    prefetch.close()


def test_an_exception_is_raised_at_the_step_it_belongs_to():
    def make(step, micro):
        if step == 2:
            raise ValueError("the second is bad")
        return step

    prefetch = Prefetch(make, 1, 5)
    assert [prefetch(0, 0), prefetch(1, 0)] == [0, 1]
    with pytest.raises(ValueError, match="the second is bad"):
        prefetch(2, 0)
    assert prefetch(3, 0) == 3
    prefetch.close()


def test_a_step_after_the_last_is_made_when_it_is_asked_for():
    prefetch = Prefetch(lambda step, micro: (step, micro), 2, 3)
    try:
        assert [prefetch(step, micro) for step in range(5) for micro in range(2)] == [
            (step, micro) for step in range(5) for micro in range(2)
        ]
    finally:
        prefetch.close()
