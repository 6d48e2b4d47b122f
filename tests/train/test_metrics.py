import subprocess
import sys
import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pencil.train.scores import character_error_rate, corpus_scores, edit_distance, exact_match

few = st.text("abc", max_size=7)
any_text = st.text(max_size=97)


def naive(one, other):
    """The definition, word for word."""

    @cache
    def between(i, j):
        if not i or not j:
            return i + j
        return min(
            between(i - 1, j) + 1, between(i, j - 1) + 1, between(i - 1, j - 1) + (one[i - 1] != other[j - 1])
        )  # fmt: skip

    return between(len(one), len(other))


@given(few, few)
def test_the_distance_of_short_texts_is_that_of_the_definition(one, other):
    assert edit_distance(one, other) == naive(one, other)


@given(any_text, any_text)
def test_the_distance_of_any_texts_is_that_of_the_definition(one, other):
    assert edit_distance(one, other) == naive(one, other)


@given(any_text, any_text)
def test_the_distance_is_the_same_both_ways_and_nothing_only_to_itself(one, other):
    assert edit_distance(one, other) == edit_distance(other, one)
    assert (edit_distance(one, other) == 0) == (one == other)
    assert abs(len(one) - len(other)) <= edit_distance(one, other) <= max(len(one), len(other))


@given(few, few, few)
def test_a_way_round_is_never_shorter(one, other, third):
    assert edit_distance(one, third) <= edit_distance(one, other) + edit_distance(other, third)


def test_known_distances():
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("saturday", "sunday") == 3
    assert edit_distance("", "abc") == edit_distance("abc", "") == 3
    assert edit_distance("x" * 131, "x" * 67 + "y" + "x" * 61) == 3
    assert edit_distance("cafe\u0301", "caf\u00e9") == 2


def test_long_texts_are_measured_in_no_time():
    begin = time.perf_counter()
    assert edit_distance("abcdefg" * 431, "bcdefga" * 431) == 2
    assert time.perf_counter() - begin < 1


def test_the_share_of_right_texts():
    assert exact_match(["a", "b ", "c"], ["a", "b", "c"]) == pytest.approx(2 / 3)
    assert exact_match([], []) == 0
    with pytest.raises(ValueError):
        exact_match(["a"], ["a", "b"])


def test_the_character_error_rate_weighs_every_character_alike():
    # 1 edit of 10 characters and 2 of 3: 3 of 13, not the mean of the two
    assert character_error_rate(["1999-05-08", "a"], ["1999-05-03", "abc"]) == pytest.approx(3 / 13)
    assert character_error_rate(["abc"] * 5, ["abc"] * 5) == 0
    assert character_error_rate(["abcdef"], ["a"]) == 5
    assert character_error_rate([""], ["abc"]) == 1
    assert character_error_rate([], []) == 0
    with pytest.raises(ValueError):
        character_error_rate(["a"], [])


SAID = ["the cat sat on the mat", "it rains", "hello there , world ."]
MEANT = ["the cat sat on a mat", "it is raining", "hello there, world."]


def test_corpus_scores_are_those_of_sacrebleu():
    metrics = pytest.importorskip("sacrebleu.metrics")
    scores = corpus_scores(SAID, MEANT)
    assert scores == {
        "chrf": metrics.CHRF().corpus_score(SAID, [MEANT]).score,
        "bleu": metrics.BLEU().corpus_score(SAID, [MEANT]).score,
    }
    assert corpus_scores(MEANT, MEANT) == {"chrf": pytest.approx(100), "bleu": pytest.approx(100)}
    assert corpus_scores([], []) == {}
    assert corpus_scores([""], ["abc"]) == {"chrf": 0, "bleu": 0}


def test_bleu_by_hand():
    pytest.importorskip("sacrebleu")
    # of 6 words 5 are right, of 5 pairs 3, of 4 triples 2, of 3 fours 1; as long as what was meant
    by_hand = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert corpus_scores(SAID[:1], MEANT[:1])["bleu"] == pytest.approx(by_hand)


def test_without_sacrebleu_there_are_no_corpus_scores(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert corpus_scores(SAID, MEANT) == {}


def test_scores_need_no_torch():
    code = "import sys, pencil.train.scores; print('torch' in sys.modules, 'sacrebleu' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "False"]
