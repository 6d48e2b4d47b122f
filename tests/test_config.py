import dataclasses
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pencil.config import (
    EPOCHS,
    OTHER_NAMES,
    UserError,
    build,
    closest,
    distance,
    nearest,
    nearest_setting,
    overrides,
    to_toml,
    upgraded,
)


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
    with pytest.raises(UserError, match="^m.layers is not a setting; did you mean depth"):
        build(Renamed, {"layers": 6}, "m.")
    with pytest.raises(UserError, match="^m.kind must be one of .*fancy.*, not 'odd'$"):
        build(Renamed, {"kind": "odd"}, "m.")
    assert upgraded(Renamed, {"layers": 6, "kind": "odd"}) == {"depth": 6, "kind": "fancy", "rate": 0.5}
    assert upgraded(Sizes, {"depth": 6}) == {"depth": 6}


def test_nearest_names():
    assert nearest("gtp2", ["gpt2", "nano"]) == "did you mean gpt2?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    many = [f"choice{i:02}" for i in range(31)]
    assert nearest("zzz", many) == f"known: {', '.join(many[:16])}, … (31 in all)"
    assert nearest("zzz", many, "pencil list") == "pencil list lists them"
    assert nearest_setting("the choice 29 of all", many).startswith("known: choice29, ")


def test_what_other_libraries_call_a_setting_leads_to_it_and_is_no_name_of_another():
    from pencil.families import FAMILIES
    from pencil.train.settings import plain_names

    names = {name for one in FAMILIES.values() for section in plain_names(one).values() for name in section}
    assert set(OTHER_NAMES.values()) <= names
    assert not {*OTHER_NAMES, *EPOCHS} & names
    assert nearest_setting("learning_rate", ["steps", "lr"]) == "did you mean lr?"
    assert nearest_setting("learning_rate", ["depth", "steps"]) == "known: depth, steps"  # of another section
    assert nearest_setting("epochs", ["steps"], section="train.").endswith(
        "give train.steps, or train.minutes for a time"
    )


def choices():
    """Every word a user chooses, by what it is a choice of."""
    from pencil.cli.main import app
    from pencil.families import FAMILIES
    from pencil.learn.worked.examples import EXAMPLES
    from pencil.train.settings import TrainConfig

    return {
        "verbs": [name for name in app if not name.startswith("-")],
        "families": list(FAMILIES),
        "settings": [f.name for f in dataclasses.fields(TrainConfig)],
        "presets": sorted({preset for record in FAMILIES.values() for preset in record.presets}),
        "examples": list(EXAMPLES),
    }


GOOD = {
    "verbs": {"trian": "train", "sampel": "sample", "Train": "train", "evl": "eval", "resum": "resume"},
    "families": {"gtp": "gpt", "gpt2": "gpt", "cap": "captioner", "seq2sq": "seq2seq", "vti": "vit", "readr": "reader"},
    "settings": {"stesp": "steps", "batchs": "batch", "optimiser": "optimizer", "weight-decay": "weight_decay", "wramup": "warmup"},
    "presets": {"nanogtp": "nanogpt", "gpt-2": "gpt2", "b/61": "b/16", "bert_base": "bert-base", "smal": "small"},
    "examples": {"vit-4x5": "vit-4x4", "adaln-zer": "adaln-zero", "mha-dmeo": "mha-demo"},
}  # fmt: skip
FAR = {
    "verbs": ["fit", "run", "visualise", "deploy"],
    "families": ["resnet", "lstm", "transformer", "bert", "unet", "mamba"],
    "settings": ["time", "epochs", "learning_rate", "gpu", "patience_of_a_saint", "x"],
    "presets": ["large-v3", "mistral", "t"],
    "examples": ["attention", "resnet"],
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_typing_error_is_answered_with_the_word_meant_and_another_word_with_none(kind):
    known = choices()[kind]
    for word, meant in GOOD[kind].items():
        assert nearest(word, known) == f"did you mean {meant}?", word
    for word in FAR[kind]:
        assert closest(word, known) is None, word


@given(st.sampled_from(["weight_decay", "captioner", "gpt2-medium", "eval", "lr"]), st.data())
def test_one_edit_is_near_and_the_distance_is_that_of_the_definition(word, data):
    at = data.draw(st.integers(0, len(word) - 1))
    letter = data.draw(st.sampled_from("abcxyz_2"))
    swapped = word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :]
    for other in (
        word[:at] + word[at + 1 :],
        word[:at] + letter + word[at:],
        word[:at] + letter + word[at + 1 :],
        swapped,
    ):
        assert distance(word, other, 9) <= 1
        assert closest(other, [word, "entirely different"]) == word
    other = data.draw(st.text("abcdeglrtw_", max_size=9))
    assert distance(word, other, 99) == by_definition(word, other)
    assert distance(word, other, 2) == min(3, by_definition(word, other))


@lru_cache
def by_definition(a, b):
    """Optimal string alignment, by recursion."""
    if not a or not b:
        return len(a) + len(b)
    found = [
        by_definition(a[:-1], b) + 1,
        by_definition(a, b[:-1]) + 1,
        by_definition(a[:-1], b[:-1]) + (a[-1] != b[-1]),
    ]
    if a[-2:] == b[-2:][::-1] and len(a) > 1 and len(b) > 1:
        found.append(by_definition(a[:-2], b[:-2]) + 1)
    return min(found)


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
