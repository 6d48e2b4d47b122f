from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pencil.train.metrics import accuracy_per_class, character_error_rate, edit_distance, exact_match
from pencil.train.text_scores import corpus_scores

few = st.text("abc", max_size=7)
any_text = st.text(max_size=97)


def naive(one, other):
    """The definition."""

    @cache
    def between(i, j):
        if not i or not j:
            return i + j
        return min(
            between(i - 1, j) + 1, between(i, j - 1) + 1, between(i - 1, j - 1) + (one[i - 1] != other[j - 1])
        )  # fmt: skip

    return between(len(one), len(other))


@given(few, few)
def test_the_distance_of_short_texts_equals_the_definition(one, other):
    assert edit_distance(one, other) == naive(one, other)


@settings(max_examples=25)
@given(any_text, any_text)
def test_the_distance_of_any_texts_equals_the_definition(one, other):
    assert edit_distance(one, other) == naive(one, other)


@given(any_text, any_text)
def test_the_distance_is_symmetric_and_zero_only_to_itself(one, other):
    assert edit_distance(one, other) == edit_distance(other, one)
    assert (edit_distance(one, other) == 0) == (one == other)
    assert abs(len(one) - len(other)) <= edit_distance(one, other) <= max(len(one), len(other))


@given(few, few, few)
def test_the_triangle_inequality_holds(one, other, third):
    assert edit_distance(one, third) <= edit_distance(one, other) + edit_distance(other, third)


def test_known_distances():
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("saturday", "sunday") == 3
    assert edit_distance("", "abc") == edit_distance("abc", "") == 3
    assert edit_distance("x" * 131, "x" * 67 + "y" + "x" * 61) == 3
    assert edit_distance("cafe\u0301", "caf\u00e9") == 2


def test_the_distance_of_long_texts_takes_a_pass_over_one_of_them():
    """By a table of 3,017 × 3,017 cells this would take minutes; here each character costs a few operations."""

    class Counted(str):
        passes = 0

        def __iter__(self):
            for character in str.__iter__(self):
                Counted.passes += 1
                yield character

    one, other = Counted("abcdefg" * 431), Counted("bcdefga" * 431)
    assert edit_distance(one, other) == 2
    assert Counted.passes == len(one) + len(other)


def test_exact_match_is_the_share_of_equal_texts():
    assert exact_match(["a", "b ", "c"], ["a", "b", "c"]) == pytest.approx(2 / 3)
    assert exact_match([], []) == 0
    with pytest.raises(ValueError):
        exact_match(["a"], ["a", "b"])


def test_the_character_error_rate_weighs_every_character_equally():
    # 1 edit of 10 characters and 2 of 3: 3 of 13, not the mean of the two
    assert character_error_rate(["1999-05-08", "a"], ["1999-05-03", "abc"]) == pytest.approx(3 / 13)
    assert character_error_rate(["abc"] * 5, ["abc"] * 5) == 0
    assert character_error_rate(["abcdef"], ["a"]) == 5
    assert character_error_rate([""], ["abc"]) == 1
    assert character_error_rate([], []) == 0
    with pytest.raises(ValueError):
        character_error_rate(["a"], [])


PREDICTIONS = ["the cat sat on the mat", "it rains", "hello there , world ."]
REFERENCES = ["the cat sat on a mat", "it is raining", "hello there, world."]


# words of few letters, so that n-grams repeat; punctuation and digits, which 13a splits; empty texts and other scripts
WORDS = st.sampled_from(["the", "cat", "3.14", "1-2", "&amp;"])
spoken = st.lists(st.text("ab.,-19&;<{ é中\t\n", max_size=9) | WORDS, max_size=9)


@settings(max_examples=200)
@given(st.lists(st.tuples(spoken.map(" ".join), spoken.map(" ".join)), min_size=1, max_size=5))
def test_corpus_scores_equal_sacrebleu(rows):
    theirs = pytest.importorskip("sacrebleu.metrics")
    predictions, references = map(list, zip(*rows, strict=True))
    references = [predictions[0], *references[1:]] if len(rows) > 2 else references
    assert corpus_scores(predictions, references) == {
        "chrf": pytest.approx(theirs.CHRF().corpus_score(predictions, [references]).score, rel=1e-12),
        "bleu": pytest.approx(theirs.BLEU(force=True).corpus_score(predictions, [references]).score, rel=1e-12),
    }


def test_corpus_scores_of_equal_and_of_empty_texts():
    assert corpus_scores(REFERENCES, REFERENCES) == {"chrf": pytest.approx(100), "bleu": pytest.approx(100)}
    assert corpus_scores([], []) == {}
    assert corpus_scores([""], ["abc"]) == {"chrf": 0, "bleu": 0}


def test_bleu_equals_its_formula():
    # of 6 words 5 are right, of 5 pairs 3, of 4 triples 2, of 3 fours 1; as long as the reference
    formula = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert corpus_scores(PREDICTIONS[:1], REFERENCES[:1])["bleu"] == pytest.approx(formula)


def test_one_text_is_all_of_them():
    assert exact_match(["a"], ["a"]) == 1
    assert exact_match([], []) == 0


def test_the_accuracy_of_each_class_that_occurs():
    predicted, labels = torch.tensor([0, 1, 1, 0, 2]), torch.tensor([0, 0, 1, 0, 1])
    found = accuracy_per_class(predicted, labels, ["a b", "c", "d"])
    assert found == {"accuracy.a_b": pytest.approx(2 / 3), "accuracy.c": pytest.approx(1 / 2)}
