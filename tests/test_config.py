import tomllib
from dataclasses import dataclass
from typing import ClassVar, Literal

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pencil.config import UserError, build, nearest, overrides, to_toml, upgraded


@dataclass(frozen=True)
class Sizes:
    depth: int = 1
    rate: float = 0.5
    bias: bool = True
    kind: Literal["plain", "fancy"] = "plain"
    heads: int | None = None


def test_values_are_read_by_the_type_of_their_field_from_words_or_toml():
    made = build(Sizes, {"depth": "6", "rate": "3e-4", "bias": "no", "kind": "fancy", "heads": "none"})
    assert made == Sizes(6, 3e-4, False, "fancy", None)
    assert build(Sizes, {"rate": 2, "heads": "4"}) == Sizes(rate=2.0, heads=4)


@pytest.mark.parametrize("values, words", [
    ({"depht": 3}, "m.depht is not a setting; did you mean depth"),
    ({"depth": "six"}, "m.depth must be a whole number, not 'six'"),
    ({"depth": "1.5"}, "whole number"),
    ({"depth": "inf"}, "whole number"),
    ({"depth": True}, "whole number"),
    ({"bias": "maybe"}, "true or false"),
    ({"kind": "odd"}, "one of plain, fancy"),
    ({"depth": "none"}, "cannot be none|whole number"),
])  # fmt: skip
def test_values_that_do_not_fit_are_refused_by_name(values, words):
    with pytest.raises(UserError, match=words):
        build(Sizes, values, "m.")


def test_dotted_settings():
    words = ["--model.depth", "6", "--train.eval-every=3", "--model.rate", "-1"]
    assert overrides(words, ("model", "train")) == {"model": {"depth": "6", "rate": "-1"}, "train": {"eval_every": "3"}}
    for bad in (["depth", "6"], ["--depth", "6"], ["--modle.depth", "6"], ["--model.depth"]):
        with pytest.raises(UserError):
            overrides(bad, ("model", "train"))


@dataclass(frozen=True)
class Renamed(Sizes):
    RENAMED: ClassVar = {"layers": "depth"}
    RENAMED_VALUES: ClassVar = {("kind", "odd"): "fancy"}

    @staticmethod
    def upgrade(values):
        return values | {"rate": values.get("rate", 1) / 2}


def test_old_names_and_values_are_refused_and_upgraded():
    with pytest.raises(UserError, match="^m.layers is now called m.depth$"):
        build(Renamed, {"layers": 6}, "m.")
    with pytest.raises(UserError, match="^m.kind odd is now called fancy$"):
        build(Renamed, {"kind": "odd"}, "m.")
    assert upgraded(Renamed, {"layers": 6, "kind": "odd"}) == {"depth": 6, "kind": "fancy", "rate": 0.5}
    assert upgraded(Sizes, {"depth": 6}) == {"depth": 6}


def test_nearest_names():
    assert nearest("gtp2", ["gpt2", "nano"]) == "did you mean gpt2?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"


@given(st.dictionaries(st.from_regex("[a-z_]{1,9}", fullmatch=True), st.one_of(
    st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False), st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.integers(0, 9))), max_size=5))  # fmt: skip
def test_toml_reads_back_what_was_written(table):
    assert tomllib.loads(to_toml({"model": table}))["model"] == table


def test_dataclasses_are_written_without_unset_values():
    assert tomllib.loads(to_toml({"model": Sizes()}))["model"] == {
        "depth": 1,
        "rate": 0.5,
        "bias": True,
        "kind": "plain",
    }
