import math
import warnings
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pencil.train.model_selection import higher_headline
from pencil.train.tasks.metrics import (
    ClassPredictions,
    character_error_rate,
    class_names,
    class_table,
    classification_metrics,
    corpus_scores,
    describe_accuracy,
    edit_distance,
    exact_match,
    is_detail,
    wilson_interval,
)

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


PREDICTED = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=71)


@settings(max_examples=29)
@given(PREDICTED)
def test_figures_of_classes_are_those_of_scikit_learn(rows):
    """Predictions of five classes, the last without a name, and labels of four; some never occur."""
    from sklearn import metrics as sklearn

    predicted, labels = map(list, zip(*rows, strict=True))
    found = classification_metrics([ClassPredictions([-1.0] * len(rows), predicted, labels)], list("abcd"))
    assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(labels, predicted))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes that are predicted and do not occur
        assert found["balanced_accuracy"] == pytest.approx(sklearn.balanced_accuracy_score(labels, predicted))
    assert found["macro_f1"] == pytest.approx(sklearn.f1_score(labels, predicted, average="macro", zero_division=0))
    assert found["accuracy.commonest"] == max(labels.count(i) for i in labels) / len(labels)
    expected = sklearn.precision_recall_fscore_support(labels, predicted, labels=range(4), zero_division=np.nan)
    for key, values in zip(("precision", "recall", "f1", "held_out"), expected, strict=True):
        for name, value in zip("abcd", values, strict=True):
            if math.isnan(value):
                assert f"{key}.{name}" not in found
            else:
                assert found[f"{key}.{name}"] == pytest.approx(value)


@settings(max_examples=29)
@given(st.integers(1, 997).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_the_interval_of_an_accuracy_is_wilsons(case):
    from scipy import stats

    right, count = case
    expected = stats.binomtest(right, count).proportion_ci(0.95, method="wilson")
    assert wilson_interval(right / count, count) == pytest.approx((expected.low, expected.high), abs=1e-9)


@settings(max_examples=29)
@given(st.lists(st.booleans(), min_size=1, max_size=31), st.integers(2, 5))
def test_copies_count_once_in_the_interval(right, times):
    """Each example as often as any other: as sure as without the copies, whatever batches they come in."""

    def found(times):
        rows = [(int(one), str(i)) for i, one in enumerate(right) for _ in range(times)]
        parts = [
            ClassPredictions([-1.0] * len(part), [one for one, _ in part], [1] * len(part), [name for _, name in part])
            for part in (rows[: len(rows) // 3], rows[len(rows) // 3 :])
        ]
        return classification_metrics(parts, ["a", "b"])

    once, often = found(1), found(times)
    for name in ("accuracy", "accuracy.low", "accuracy.high", "balanced_accuracy"):
        assert often[name] == pytest.approx(once[name])
    assert "accuracy.different" not in once
    assert (often["accuracy.examples"], often["accuracy.different"]) == (times * len(right), len(right))
    assert f"held-out texts, {len(right)} of them different: 95 % interval" in describe_accuracy(often, "texts")


def test_the_figures_of_classes_as_a_table():
    rows = [(0, 0)] * 5 + [(1, 0)] + [(0, 1)] * 2
    predicted, labels = map(list, zip(*rows, strict=True))
    found = classification_metrics([ClassPredictions([-0.5] * 8, predicted, labels)], ["good dog", "rare", "never"])
    assert class_table(found) == [
        "class     evaluated  precision  recall      F1",
        "good_dog          6     0.7143  0.8333  0.7692",
        "rare              2     0.0000  0.0000  0.0000",
        "never             0          –       –       –",
    ]
    assert describe_accuracy(found, "texts") == (
        "accuracy 0.6250 on 8 held-out texts: 95 % interval 0.3057 to 0.8632 (Wilson); always their commonest class, "
        "good_dog, would have 0.7500; balanced accuracy 0.4167, macro F1 0.3846; without never, of which "
        "nothing was evaluated"
    )
    many = classification_metrics([ClassPredictions([-0.5] * 8, predicted, labels)], [str(i) for i in range(23)])
    assert class_table(many) == []
    assert "their commonest class would have 0.7500" in describe_accuracy(many, "texts")
    assert "; without 21 classes, of which nothing was evaluated" in describe_accuracy(many, "texts")
    every = classification_metrics([ClassPredictions([-0.5], [0], [0])], [str(i) for i in range(23)], listed=None)
    assert len(class_table(every)) == 24
    assert describe_accuracy({"val_loss": 1.0, "accuracy": 0.5}, "tokens") == ""


def test_classes_whose_names_differ_by_a_space_have_rows_of_their_own():
    found = classification_metrics(
        [ClassPredictions([-1.0] * 5, [0, 0, 1, 2, 2], [0, 1, 1, 2, 2])], ["a b", "a_b", "c d"]
    )
    assert class_names(found) == ["a b", "a_b", "c_d"]
    assert [found[f"recall.{name}"] for name in class_names(found)] == [1.0, 0.5, 1.0]


def test_the_highest_of_a_metric_is_told_only_where_higher_is_better():
    best = {}
    for step, value in ((0, 0.5), (5, 0.75), (10, 0.25)):
        best = higher_headline(best, {"step": step, "accuracy": value}, "accuracy")
    assert best == {"step": 5, "accuracy": 0.75}
    assert higher_headline({}, {"step": 0, "mae": 12.3}, "mae") == {}
    assert higher_headline({}, {"step": 0, "val_loss": 2.0}, "val_loss") == {}


def test_only_the_figures_of_classes_are_details():
    details = ["accuracy.low", "recall.cat", "held_out.a.b", "f1.x"]
    assert [name for name in (*details, "acc.top1", "accuracy", "recall") if is_detail(name)] == details
