"""Exercises to work by hand: each has fresh numbers, named mistakes, and its working taken from receipts.

A kata is a real part with blanks in it. Its answer is a traced value, its working the receipts of that trace, its
mistakes the same parts run wrongly. The grader knows questions and answers and nothing of terminals; fresh numbers
follow from a seed, and are drawn again until every mistake gives a different answer from every other.
"""

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...config import UserError
from .exercise import Kata, Question

if TYPE_CHECKING:
    from .builder import Maker
    from .page_questions import Section


def _kata(name: str, title: str, topic: str, module: str) -> Kata:
    def maker() -> "Maker":
        # the list of exercises does not load torch; the first question does
        return import_module(f".{module}", __package__).MAKES[name]

    def make(seed: int | None, **changes: Any) -> Question:
        return replace(maker()(seed, **changes), kata=name, title=title)

    return Kata(name, title, topic, make, lambda seed: maker().numbers(seed))


KATAS = {
    kata.name: kata
    for kata in (
        _kata("cut", "Cut an image into patches", "patches", "patches"),
        _kata("missing-swap", "Find the missing transpose", "patches", "patches"),
        _kata("dot", "Follow one pixel into its patch", "patches", "patches"),
        _kata("stamp", "The sinusoidal encoding of a position", "positions", "positions"),
        _kata("add-stamp", "Add the encoding of the position", "positions", "positions"),
        _kata("match", "Queries times keys", "attention", "attention"),
        _kata("scale", "Scale the scores", "attention", "attention"),
        _kata("softmax", "Scale, then softmax", "attention", "attention"),
        _kata("weighted-sum", "Weighted sum of the values", "attention", "attention"),
        _kata("attention", "Attention for one token", "attention", "attention"),
        _kata("middle", "The mean and the deviations", "LayerNorm", "blocks"),
        _kata("layernorm", "LayerNorm of one token", "LayerNorm", "blocks"),
        _kata("dials", "LayerNorm with γ and β", "LayerNorm", "blocks"),
        _kata("causal", "Block the future", "masks", "attention"),
        _kata("prefix", "The prefix mask", "masks", "attention"),
        _kata("heads", "Two heads, concatenated", "more attention", "attention"),
        _kata("cross", "Cross-attention: words to patches", "more attention", "attention"),
        _kata("seat-table", "Add a row of a learned table of positions", "positions", "positions"),
        _kata("rope", "Rotate a query by its position (RoPE)", "positions", "positions"),
        _kata("alibi", "A bias by distance (ALiBi)", "positions", "positions"),
        _kata("residual", "Add to the residual stream", "the block", "blocks"),
        _kata("gelu", "A small MLP with GELU", "the block", "blocks"),
        _kata("cross-entropy", "Cross-entropy of one prediction", "the block", "blocks"),
        _kata("kv-cache", "One step with a KV cache", "the cache", "attention"),
        _kata("cache-bytes", "Bytes of a KV cache", "the cache", "attention"),
        _kata("rnn", "One step of an RNN", "before attention", "recurrent"),
        _kata("adaln", "A norm set by a condition (adaLN)", "diffusion", "blocks"),
        _kata("adaln-zero", "A gate on the residual branch (adaLN-Zero)", "diffusion", "blocks"),
        _kata("ddim", "One denoising step (DDIM)", "diffusion", "blocks"),
        _kata("one-hot-gradient", "Softmax minus one-hot", "backprop", "backprop"),
        _kata("input-gradient", "A product's gradient: to the input", "backprop", "backprop"),
        _kata("weight-gradient", "A product's gradient: to the weights", "backprop", "backprop"),
        _kata("norm-gradient", "The gradient of LayerNorm", "backprop", "backprop"),
        _kata("residual-gradient", "The gradient of a residual's sum", "backprop", "backprop"),
        _kata("adamw-step", "One step of AdamW", "backprop", "backprop"),
        _kata("muon-step", "One step of Muon's orthogonalisation", "backprop", "backprop"),
        _kata("wrong-cells", "Find the wrong cells", "checking", "wrong_cells"),
    )
}

# the documents that have a page
PAGES = {
    "000": "Vision Transformer From Pencil",
    "001": "ViT Transformation Notation",
    "002": "The Transformer from First Principles",
    "003": "Understanding Transformers",
    "004": "A Vision Transformer's attention by hand",
}


def kata(name: str) -> Kata:
    """The exercise of that name; the error for an unknown one lists all names."""
    if name not in KATAS:
        raise UserError(f"there is no kata {name}; known: {', '.join(KATAS)}")
    return KATAS[name]


def page(name: str, seed: int | None = None) -> "list[Section]":
    """The exercises of a whole document in its order, with its numbers, or with the fresh ones of a seed."""
    if name not in PAGES:
        raise UserError(f"there is no page {name}; the documents are {', '.join(PAGES)}")
    return import_module(".worksheets", __package__).PAGES[name](seed)
