"""The tour of the model on screen: steps written once, in tour.toml, and filled in with what this model computed.

A step moves the page to a place (a view and a cell), says a few sentences, and asks one question that what is shown
answers. The sentences have slots in braces: a number of the trace, a size of one of its tensors, a place in the model,
a word. The steps themselves contain no digit, so every number on screen is a slot, and a slot knows where its number
is from. A step is written in several ways where models differ; the first whose slots this model has is the one shown.
So the structure of a model chooses its sentences: nothing here asks for the name of a family.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, isfinite, isnan, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from ..tracing.address import address
from .attention_views import Patterns, layer_of
from .json_values import number
from .session import Session

SLOT = re.compile(r"\{(\w+)\}")
TELLING = 0.9  # a weight above it leaves nothing to share; the largest below it makes the better example
ROUNDING = 1e-3  # of the largest operand: what four printed digits may hide
LIKELY = 0.1  # tokens that were less probable are asked about only where all were
NEAR = 0.02  # of the answer: how far off an answer may be
NAMED = 4  # keys of a row that a sentence can name


@dataclass(frozen=True)
class Slot:
    """A number or a word of a sentence, and where it is from.

    `kind` is cell (its value is that of `cell`), size (the length of the axes `axes` of the tensor `cell`, multiplied),
    answer (`cell` is the way to it in the answer), place (counted from 1: a block, a head, a position), derived
    (computed from the numbers of the sentence) or word.
    """

    kind: str
    text: str = ""
    value: float = 0.0
    cell: str = ""
    axes: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        if self.kind == "word":
            return {"kind": "word", "text": self.text}
        where = {"cell": self.cell} if self.cell else {}
        return {"kind": self.kind, "value": number(self.value), **where}


Slots = dict[str, Slot]


# ---- the steps as they are written


@cache
def steps() -> list[dict[str, Any]]:
    """Every step in each of its ways, as tour.toml has them."""
    return tomllib.loads(Path(__file__).with_name("tour.toml").read_text(encoding="utf-8"))["step"]


def needs(step: Mapping[str, Any]) -> set[str]:
    """The slots without which a step cannot be shown."""
    return set(step.get("needs", ())) | {name for text in _texts(step) for name in SLOT.findall(text)}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if name != "needs":
                yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


# ---- filled in


def tour(session: Session, key: str) -> dict[str, Any]:
    """The tour through a trace, as the page shows it."""
    slots = cast(session, key)
    chosen: dict[str, dict[str, Any]] = {}
    for step in steps():
        if step["id"] not in chosen and needs(step) <= slots.keys():
            chosen[step["id"]] = _filled(step, slots)
    return {"model": session.name, "steps": list(chosen.values())}


def _filled(step: Mapping[str, Any], slots: Slots) -> dict[str, Any]:
    token = {"token": slots["token_index"].text} if "token_index" in slots else {}
    return {
        "id": step["id"],
        "title": plain(step["title"], slots),
        "address": {
            "view": step.get("view", ""),
            "cell": slots[step["cell"]].cell if "cell" in step else "",
            "more": {**token, **{name: plain(text, slots) for name, text in step.get("more", {}).items()}},
        },
        "text": pieces(step["text"], slots),
        "notes": plain(step["notes"], slots),
        "minutes": step["minutes"],
        "question": _question(step["question"], slots),
    }


def _question(question: Mapping[str, Any], slots: Slots) -> dict[str, Any]:
    common = {"ask": pieces(question["ask"], slots), "why": pieces(question["why"], slots)}
    if "choices" in question:
        right = slots[question["right"]].text if "right" in question else ""
        choices = [
            {
                "text": pieces(choice["text"], slots),
                "right": choice.get("right", False) or (bool(right) and choice.get("is") == right),
                "why": pieces(choice["why"], slots),
            }
            for choice in question["choices"]
        ]
        # in the order of their numbers, where they are numbers, so that the first is not always right
        values = [
            [part["value"] for part in choice["text"] if isinstance(part, dict) and "value" in part]
            for choice in choices
        ]
        if all(values):
            choices = [choice for _, choice in sorted(zip(values, choices, strict=True), key=lambda pair: pair[0])]
        return {"kind": "choice", **common, "choices": choices}
    answer = slots[question["answer"]]
    known: dict[float, list[Any]] = {}
    for one in question.get("mistakes", ()):
        if (value := slots[one["is"]].value) != answer.value:
            known.setdefault(value, pieces(one["why"], slots))
    mistakes = [{"value": number(value), "why": why} for value, why in known.items()]
    shown = [slots[name] for name in SLOT.findall(question["ask"])]
    exact = answer.kind in ("size", "place", "cell") and float(answer.value).is_integer()
    largest = max((abs(slot.value) for slot in shown if slot.kind in ("cell", "answer")), default=0.0)
    allowed = 0.0 if exact else NEAR * abs(answer.value) + ROUNDING * max(largest, abs(answer.value))
    return {"kind": "number", **common, "answer": answer.as_json(), "allowed": allowed, "mistakes": mistakes}


def pieces(text: str, slots: Slots) -> list[Any]:
    """A sentence as texts and what stands in its slots."""
    parts = SLOT.split(" ".join(text.split()))
    return [slots[part].as_json() if i % 2 else part for i, part in enumerate(parts) if i % 2 or part]


def plain(text: str, slots: Slots) -> str:
    """A sentence as one text; the numbers in it are places, sizes and words."""
    return SLOT.sub(lambda match: _written(slots[match[1]]), " ".join(text.split()))


def _written(slot: Slot) -> str:
    return slot.text if slot.kind == "word" else f"{slot.value:g}"


# ---- what this model has to show


def cast(session: Session, key: str) -> Slots:
    """The slots that this model's trace can fill."""
    return Cast(session, key).slots


class Cast:
    """Chooses what a tour shows of one trace: a token, a head that attends to something, a channel, a hidden unit."""

    def __init__(self, session: Session, key: str):
        self.session, self.trace = session, session.trace(key)
        self.shown = session.compute_answer(session.states[key]).shown
        self.slots: Slots = {}
        patterns = Patterns(self.trace, session.profile.groups(session.loaded))
        if patterns.groups:
            group = next(
                (one for one in ("cross", "decoder", "") if one in patterns.groups), next(iter(patterns.groups))
            )
            self.layers = patterns.groups[group]
            self.query, self.token = 0, None
            self._choose(patterns, group)
            self._input()
            self._attention()
            self._residual()
            self._mlp()
        self._output()

    # -- making slots

    def word(self, name: str, text: str) -> None:
        self.slots[name] = Slot("word", text)

    def place(self, name: str, index: int) -> None:
        self.slots[name] = Slot("place", value=index + 1)

    def size(self, name: str, tensor: str, *axes: int) -> None:
        shape = self._shape(tensor)
        if shape is not None and len(shape) > max(axis if axis >= 0 else -axis - 1 for axis in axes):
            self.slots[name] = Slot("size", value=prod(shape[axis] for axis in axes), cell=tensor, axes=axes)

    def cell(self, name: str, tensor: str, *index: int) -> None:
        value = self._value(tensor, *index)
        if value is not None:
            self.slots[name] = Slot("cell", value=value, cell=address(tensor, index))

    def derived(self, name: str, value: float) -> None:
        if isfinite(value):
            self.slots[name] = Slot("derived", value=value)

    def of_answer(self, name: str, way: str, value: Any) -> None:
        if isinstance(value, int | float):
            self.slots[name] = Slot("answer", value=value, cell=way)

    def _shape(self, tensor: str) -> tuple[int, ...] | None:
        try:
            return tuple(self.trace.graph.nodes[self.trace.find(tensor)].shape)
        except ValueError:
            return None

    def _value(self, tensor: str, *index: int) -> float | None:
        shape = self._shape(tensor)
        if shape is None or len(shape) != len(index):
            return None
        value = float(np.asarray(self.trace.array(tensor))[index])
        return None if isnan(value) else value

    # -- who looks where

    def _choose(self, patterns: Patterns, group: str) -> None:
        """The weight to tell of: of the queries that answer, the one that is largest without being everything."""
        rows, columns = patterns.labels(self.layers[0])
        grid, first = self.trace.facts.get("grid"), self.trace.facts.get("first_patch")
        patches = range(first, first + prod(grid)) if grid and first is not None and group != "cross" else range(0)
        patches = patches if len(columns) >= patches.stop else range(0)
        best: tuple[float, int, int, int, int, int | None] | None = None
        for layer, name in enumerate(self.layers):
            weights = patterns[name]
            for query, token in self._queries(len(rows)):
                row = weights[:, query].copy()
                if not patches:
                    row[:, [0, *([query] if group != "cross" and query < row.shape[1] else [])]] = 0
                else:
                    row[:, [k for k in range(row.shape[1]) if k not in patches]] = 0
                row = np.where(row > TELLING, row - 1, row)  # after all that are smaller
                head, key = np.unravel_index(int(row.argmax()), row.shape)
                if best is None or row[head, key] > best[0]:
                    best = (float(row[head, key]), layer, int(head), query, int(key), token)
        assert best is not None
        _, layer, self.head, self.query, self.key, self.token = best
        self.pattern = self.layers[layer]
        self.part = self.pattern.removesuffix(".pattern")
        self.block = self.part.rpartition(".")[0]
        self.of_patches, self.columns, self.rows = bool(patches), columns, rows
        self.weights = patterns[self.pattern][self.head, self.query]
        self.word("query", _visible(rows[self.query]))
        self.place("block", layer_of(self.pattern))
        self.place("head", self.head)
        self.word("part", self.part)
        if group == "cross":
            self.word("source", "the source")
        if self.token is not None:
            self.word("written", _visible(self.shown["tokens"][self.token]["text"]))
            self.word("token_index", str(self.token))

    def _queries(self, count: int) -> list[tuple[int, int | None]]:
        """The positions whose attention makes the answer, each with its token of the answer, if it has one."""
        if tokens := self.shown.get("tokens"):
            likely = [one for one in tokens if one["probability"] >= LIKELY] or tokens
            return [(one["position"], tokens.index(one)) for one in likely if one["position"] < count]
        pooled = getattr(self.session.loaded.model.config, "pool", None)
        return [(0, None)] if pooled == "class" else [(i, None) for i in range(count)]

    # -- the steps, in their order

    def _input(self) -> None:
        """What the model reads, and the vector that the key which is looked at begins as."""
        grid, first = self.trace.facts.get("grid"), self.trace.facts.get("first_patch")
        if grid is not None and self._shape("patches.flat"):
            picture = "picture" if self._shape("picture") and len(self._shape("picture") or ()) > 3 else "given.picture"
            self.size("height", picture, -2)
            self.size("width_of_picture", picture, -1)
            self.size("channels", picture, -3)
            self.size("grid_rows", "patches.fold", -4)
            self.size("grid_columns", "patches.fold", -2)
            self.size("patch_height", "patches.fold", -3)
            self.size("patch_width", "patches.fold", -1)
            self.size("patches", "patches.flat", -2)
            self.size("pixels", "patches.flat", -1)
            self.size("patch_vector", "patches.out", -1)
            patch = self.key - first if self.of_patches and first is not None else 0
            labels = self.trace.axis_words(self.trace.graph.nodes[self.trace.find("patches.out")], 1)
            self.word("patch", labels[patch])
            values = np.asarray(self.trace.array("patches.flat"))[0, patch]
            self.cell("brightest", "patches.flat", 0, patch, int(values.argmax()))
            self.cell("patch_number", "patches.out", 0, patch, 0)
            if weight := self._shape("patches.proj.weight"):
                self.size("patch_weights", "patches.proj.weight", *range(len(weight)))
        if self._shape("timestep"):
            self.cell("time", "timestep", 0)
        source = next((one for one in ("given.source", "tokens") if len(self._shape(one) or ()) == 2), None)
        if source is None:
            return
        table, vector = next(
            (pair for pair in (("tokens.weight", "source"), ("tokens.weight", "embed")) if self._embeds(*pair, source)),
            ("", ""),
        )
        ids = np.asarray(self.trace.array(source))[0]
        labels = next((one for one in (self.columns, self.rows) if len(one) == len(ids)), None)
        if labels is None:
            return
        at = self.key if labels is self.columns else self.query
        other = next((i for i in range(len(ids)) if ids[i] != ids[at]), None)
        self.size("tokens", source, -1)
        self.word("token", _visible(labels[at]))
        self.cell("token_id", source, 0, at)
        if other is not None:
            self.word("other_token", _visible(labels[other]))
            self.place("other_position", other)
            self.cell("other_id", source, 0, other)
        if table:
            self.size("vocabulary", table, 0)
            self.size("embedding", table, 1)
            self.size("table_numbers", table, 0, 1)
            self.cell("embedded", vector, 0, at, 0)

    def _embeds(self, table: str, vector: str, ids: str) -> bool:
        """Whether this is the embedding of these tokens: as many rows as tokens, as wide as the table."""
        rows, of, count = self._shape(table), self._shape(vector), self._shape(ids)
        return bool(rows and of and count and len(of) == 3 and of[1] == count[1] and of[2] == rows[1])

    def _attention(self) -> None:
        """A query and a key, their score, the row of weights, and the values that they mix."""
        heads = (self._shape(f"{self.part}.q") or (0, 1))[1]
        groups = (self._shape(f"{self.part}.k") or (0, heads))[1]
        head, shared = self.head, self.head * groups // heads
        self.size("heads", f"{self.part}.q", 1)
        self.size("head_width", f"{self.part}.q", -1)
        self.size("width", f"{self.part}.out", -1)
        self.size("joined", f"{self.part}.concat", -1)
        if weight := self._shape(f"{self.part}.w_o"):
            self.size("w_o_rows", f"{self.part}.w_o", len(weight) - 2)
        if self._shape(self.pattern) != (1, heads, len(self.rows), len(self.columns)) and self._shape(self.pattern) != (
            2,
            heads,
            len(self.rows),
            len(self.columns),
        ):
            return  # tokens in groups: a row of the whole is in several matrices
        ranked = [int(k) for k in np.argsort(-self.weights, kind="stable") if self.weights[k] > 0]
        ranked = [self.key, *(k for k in ranked if k != self.key)][:NAMED]
        for name, key in zip(("first", "second", "third", "fourth"), ranked, strict=False):
            self.word(f"{name}_key", self._unlike(self.columns, key))
            self.cell(f"{name}_weight", self.pattern, 0, head, self.query, key)
            self.cell(f"{name}_score", f"{self.part}.scores", 0, head, self.query, key)
        self.cell("raw", f"{self.part}.raw_scores", 0, head, self.query, self.key)
        self.cell("query_number", f"{self.part}.q", 0, head, self.query, 0)
        self.cell("key_number", f"{self.part}.k", 0, shared, self.key, 0)
        named = [self.slots[f"{name}_weight"].value for name in ("first", "second") if f"{name}_weight" in self.slots]
        if len(ranked) > 2 and len(named) == 2:
            self.derived("other_weights", 1 - sum(named))
            self.derived("both_weights", sum(named))
        if {"raw", "first_score"} <= self.slots.keys():
            raw, score = self.slots["raw"].value, self.slots["first_score"].value
            d = self.slots["head_width"].value
            if abs(raw / sqrt(d) - score) <= 1e-4 * max(1, abs(score)):
                self.word("scaled", "divided by the root")
                self.derived("over_width", raw / d)
                self.derived("times_root", raw * sqrt(d))
        values = np.asarray(self.trace.array(f"{self.part}.v"))[0, shared]
        channel = int(np.abs(values[self.key]).argmax())
        self.cell("value", f"{self.part}.v", 0, shared, self.key, channel)
        self.cell("mixed", f"{self.part}.z", 0, head, self.query, channel)
        self.place("channel", channel)
        if {"first_weight", "value"} <= self.slots.keys():
            self.derived("given", self.slots["first_weight"].value * self.slots["value"].value)

    def _unlike(self, labels: Sequence[str], index: int) -> str:
        """A label, with its place where the same word occurs more than once."""
        label = _visible(labels[index])
        return label if labels.count(labels[index]) == 1 else f"{label} (position {index + 1})"

    def _residual(self) -> None:
        """What attention added to the stream, at the channel where it added most."""
        stream = "cross_mid" if self.part.endswith(".cross") else "mid"
        added, after = f"{self.part}.out", f"{self.block}.{stream}"
        if self._shape(added) is None or self._shape(after) is None:
            return
        channel = int(np.abs(np.asarray(self.trace.array(added))[0, self.query]).argmax())
        self.place("added_channel", channel)
        self.cell("added", added, 0, self.query, channel)
        self.cell("after", after, 0, self.query, channel)
        terms = {term.where: term for term in self.trace[address(after, (0, self.query, channel))].why().terms}
        own = address(added, (0, self.query, channel))
        others = [term for where, term in terms.items() if where != own]
        gates = [term for term in others if ".gate" in term.name]
        before = [term for term in others if term not in gates]
        if own not in terms or len(before) != 1 or len(gates) > 1:
            return  # a norm stands after the sum: its receipt has a whole row
        self.cell("before", before[0].name, *before[0].index)
        if {"before", "added", "after"} <= self.slots.keys():
            left, right = self.slots["before"].value, self.slots["added"].value
            if gates:
                self.cell("gate", gates[0].name, *gates[0].index)
                self.derived("ungated", left + right)
            else:
                self.word("plain_sum", "the sum")
                self.derived("subtracted", left - right)
                self.derived("multiplied", left * right)

    def _mlp(self) -> None:
        """The hidden units of this block's MLP: the one that is driven most, and the one that is held back most."""
        drive = next((one for one in (f"{self.block}.mlp.pre", f"{self.block}.mlp.gate") if self._shape(one)), None)
        if drive is None:
            return
        row = np.asarray(self.trace.array(drive))[0, self.query]
        high, low = int(row.argmax()), int(row.argmin())
        self.size("hidden", drive, -1)
        for name, unit in (("high", high), ("low", low)):
            self.place(f"{name}_unit", unit)
            self.cell(f"{name}_in", drive, 0, self.query, unit)
            self.cell(f"{name}_out", f"{self.block}.mlp.act", 0, self.query, unit)
            self.cell(f"{name}_up", f"{self.block}.mlp.up", 0, self.query, unit)
        if row[low] < 0:
            self.word("held_back", "below zero")
            self.derived("low_turned", -float(row[low]))
        self.size("mlp_out", f"{self.block}.mlp.out", -1)

    def _output(self) -> None:
        """What comes out: logits and a token or a class, a vector, or a part of a picture."""
        self.place("last_block", self.session.loaded.model.config.depth - 1)
        options = self.session.about()["controls"]
        given = self.shown["state"]["input"].get("options", {})
        if tokens := self.shown.get("tokens"):
            at = self.token if self.token is not None else 0
            self._token(tokens[at], at, given)
        elif classes := self.shown.get("classes"):
            self._rivals(classes)
            self.word("class", classes[0]["label"])
            self.of_answer("class_probability", "classes.0.probability", classes[0]["probability"])
            self.derived("other_classes", 1 - classes[0]["probability"])
            self.size("classes", "logits", -1)
        elif nearest := self.shown.get("nearest"):
            self.size("vector", "encoder.out", -1)
            for name, i in (("nearest", 0), ("farthest", len(nearest) - 1)):
                self.word(f"{name}_text", nearest[i]["text"])
                self.of_answer(f"{name}_alike", f"nearest.{i}.similarity", nearest[i]["similarity"])
            self.cell("vector_number", "encoder.out", 0, self.query, 0)
        elif self.shown.get("frames"):
            drawn = next((one for one in ("patches_out",) if self._shape(one)), "")
            if drawn:
                self.size("drawn", drawn, -1)
                self.size("drawn_in_all", drawn, -2, -1)
                self.cell("drawn_number", drawn, 0, self.query, 0)
            named = {control["name"]: given.get(control["name"], control["value"]) for control in options}
            if {"steps", "step"} <= named.keys():
                self.of_answer("steps", "state.input.options.steps", named["steps"])
                self.of_answer("step", "state.input.options.step", named["step"])
                self.derived("steps_left", named["steps"] - named["step"])
                self.derived("steps_before", named["step"] - 1)

    def _token(self, token: Mapping[str, Any], at: int, given: Mapping[str, Any]) -> None:
        self.size("vocabulary", "logits", -1)
        self._rivals(token["top"])
        self.word("drawn_token", _visible(token["text"]))
        self.of_answer("token_probability", f"tokens.{at}.probability", token["probability"])
        self.derived("other_tokens", 1 - token["probability"])
        if token["chosen"]["uniform"] is None:
            self.word("filled" if not self.session.profile.writes else "greedy", "the largest")
            return
        self.of_answer("temperature", "state.input.options.temperature", given.get("temperature"))
        self.of_answer("uniform", f"tokens.{at}.chosen.uniform", token["chosen"]["uniform"])
        rows = token["chosen"]["rows"]
        drawn = next(i for i, row in enumerate(rows) if row["drawn"])
        self.of_answer("interval_from", f"tokens.{at}.chosen.rows.{drawn}.from", rows[drawn]["from"])
        self.of_answer("interval_to", f"tokens.{at}.chosen.rows.{drawn}.to", rows[drawn]["to"])
        self.derived("interval", rows[drawn]["to"] - rows[drawn]["from"])

    def _rivals(self, bars: Sequence[Mapping[str, Any]]) -> None:
        """The logits of the two likeliest tokens or classes, and how much likelier their difference makes the first."""
        if len(bars) < 2:
            return
        for name, bar in zip(("top", "rival"), bars, strict=False):
            tensor, index = self.trace.locate(bar["cell"])
            self.word(f"{name}_word", _visible(bar["label"]))
            self.word(f"{name}_cell", bar["cell"])
            self.cell(f"{name}_logit", tensor, *(int(i) for i in index if isinstance(i, int)))
        if {"top_logit", "rival_logit"} <= self.slots.keys():
            apart = self.slots["top_logit"].value - self.slots["rival_logit"].value
            self.derived("apart", apart)
            self.derived("likelier", exp(min(apart, 60)))
            times = exp(min(apart, 60))
            self.word("odds", "close" if times < 3 else "some" if times < 100 else "many")


def _visible(text: str) -> str:
    """A token as running text has it: a space at its beginning says nothing to a reader."""
    return text.removeprefix("␣") or text
