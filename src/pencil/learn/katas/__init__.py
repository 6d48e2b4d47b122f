"""Exercises for the hand: each a question with fresh numbers, its mistakes by name, and its working from receipts."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from ...config import UserError
from .exercise import Kata, Question


def _kata(name: str, title: str, topic: str, room: str) -> Kata:
    def make(seed: int | None) -> Question:
        # torch is loaded by the first question, not by the list of them
        pose: Callable[[int | None], Question] = import_module(f".{room}", __package__).MAKES[name]
        return replace(pose(seed), kata=name, title=title)

    return Kata(name, title, topic, make)


KATAS = {
    one.name: one
    for one in (
        _kata("cut", "Cut a photo into strips", "the three moves", "cutting"),
        _kata("missing-swap", "Find the missing swap", "the three moves", "cutting"),
        _kata("dot", "Trace one dot", "the three moves", "cutting"),
        _kata("stamp", "The stamp of a seat", "seats", "seats"),
        _kata("add-stamp", "Stamp the seat on", "seats", "seats"),
        _kata("match", "The match grid", "attention", "looking"),
        _kata("scale", "Scale the match", "attention", "looking"),
        _kata("softmax", "Scale, then softmax", "attention", "looking"),
        _kata("weighted-sum", "Weighted sum of the GIVE tags", "attention", "looking"),
        _kata("attention", "A strip looks at every strip", "attention", "looking"),
        _kata("middle", "The middle and the diffs", "taming", "taming"),
        _kata("layernorm", "Tame one strip (LayerNorm)", "taming", "taming"),
        _kata("dials", "Stretch and shift the tamed strip", "taming", "taming"),
        _kata("causal", "Block the future", "masks", "masking"),
        _kata("prefix", "A prefix sees itself whole", "masks", "masking"),
        _kata("heads", "Two heads, glued", "more attention", "heads"),
        _kata("cross", "Words look at strips", "more attention", "heads"),
        _kata("rope", "Turn a tag by its seat (RoPE)", "seats", "seats"),
        _kata("alibi", "A bias for every step apart (ALiBi)", "seats", "seats"),
        _kata("residual", "Add it to the trunk", "the block", "block"),
        _kata("gelu", "A small MLP with GELU", "the block", "block"),
        _kata("cross-entropy", "How surprised: cross-entropy", "the block", "block"),
        _kata("kv-cache", "One step with a KV cache", "the cache", "caching"),
        _kata("cache-bytes", "Bytes of a KV cache", "the cache", "caching"),
        _kata("adaln", "A norm set by a condition (adaLN)", "diffusion", "noise"),
        _kata("adaln-zero", "A gate on what is added", "diffusion", "noise"),
        _kata("ddim", "One step back from noise (DDIM)", "diffusion", "noise"),
        _kata("wrong-cells", "Find the wrong cells", "checking", "finding"),
    )
}

PAGES = {
    "000": (
        "cut", "missing-swap", "dot", "stamp", "add-stamp", "match", "softmax", "weighted-sum", "layernorm", "middle",
        "causal",
    ),
}  # fmt: skip


def kata(name: str) -> Kata:
    """The exercise of that name; an unknown one is refused with the list."""
    if name not in KATAS:
        raise UserError(f"there is no kata {name}; known: {', '.join(KATAS)}")
    return KATAS[name]


def page(name: str) -> list[Question]:
    """A page's exercises in its order, with its own numbers and words."""
    if name not in PAGES:
        raise UserError(f"there is no page {name} to repeat; known: {', '.join(PAGES)}")
    return [KATAS[one].make(None) for one in PAGES[name]]
