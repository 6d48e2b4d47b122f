import threading

import pytest

from pencil.train.ahead import Ahead


def test_what_comes_back_is_what_a_call_would_have_given():
    made, lock = [], threading.Lock()

    def make(step, micro):
        with lock:
            made.append((step, micro))
        return step * 100 + micro

    ahead = Ahead(make, 3, 7)
    for step in range(7):
        for micro in range(3):
            assert ahead(step, micro) == make(step, micro)
    ahead.close()
    wanted = [(step, micro) for step in range(7) for micro in range(3)]
    assert sorted(made) == sorted(wanted * 2)  # ours and its: each made once, and none past the last step
    assert not ahead.waiting


def test_steps_may_be_asked_for_from_the_middle_and_in_any_order():
    ahead = Ahead(lambda step, micro: (step, micro), 2, 11)
    for key in ((5, 1), (5, 0), (9, 1), (2, 0), (10, 1), (10, 0)):
        assert ahead(*key) == key
    ahead.close()


def test_batches_are_made_early_and_on_other_threads():
    early, threads = threading.Event(), set()

    def make(step, micro):
        threads.add(threading.current_thread())
        if step == 1:
            early.set()
        return step

    ahead = Ahead(make, 1, 5)
    assert ahead(0, 0) == 0
    assert early.wait(30)  # nobody has asked for step 1 yet
    assert threading.current_thread() not in threads
    ahead.close()


def test_nothing_is_made_past_the_last_step():
    made, both = [], threading.Event()

    def make(step, micro):
        made.append((step, micro))
        if len(made) == 2:
            both.set()
        return step

    ahead = Ahead(make, 2, 3, ahead=9)
    assert ahead(2, 0) == 2
    assert both.wait(30)
    ahead.pool.shutdown(wait=True)
    assert sorted(made) == [(2, 0), (2, 1)]


def test_only_a_few_wait():
    ahead = Ahead(lambda step, micro: step, 1, 1000, ahead=4)
    for step in range(50):
        ahead(step, 0)
        assert len(ahead.waiting) <= 3
    ahead.close()


def test_a_failure_comes_out_at_the_step_it_belongs_to():
    def make(step, micro):
        if step == 2:
            raise ValueError("the second is bad")
        return step

    ahead = Ahead(make, 1, 5)
    assert [ahead(0, 0), ahead(1, 0)] == [0, 1]
    with pytest.raises(ValueError, match="the second is bad"):
        ahead(2, 0)
    assert ahead(3, 0) == 3
    ahead.close()
