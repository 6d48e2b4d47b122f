import math

import pytest

from pencil.train.schedule import factor
from pencil.train.settings import TrainConfig


def test_cosine_is_the_published_one():
    config = TrainConfig(steps=2000, warmup=100, min_lr=0.1)
    assert factor(0, config) == pytest.approx(1 / 101)
    assert factor(99, config) == pytest.approx(100 / 101)
    assert factor(100, config) == 1
    assert factor(1050, config) == pytest.approx(0.55)
    assert factor(2000, config) == pytest.approx(0.1)
    assert factor(575, config) == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi / 4)))


def test_warmup_stable_decay():
    config = TrainConfig(steps=1000, warmup=10, schedule="wsd", min_lr=0.0)
    assert [factor(s, config) for s in (10, 500, 800, 900, 1000)] == pytest.approx([1, 1, 1, 0.5, 0])


def test_constant():
    config = TrainConfig(warmup=0, schedule="constant")
    assert {factor(s, config) for s in range(0, 2000, 100)} == {1.0}


def test_a_short_run_reaches_its_full_rate():
    config = TrainConfig(steps=60, warmup=100)
    assert max(factor(s, config) for s in range(60)) == 1
    assert factor(0, config) == pytest.approx(1 / 13)
