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
    from .page_parts import Section


def _kata(name: str, title: str, topic: str, module: str) -> Kata:
    def maker() -> "Maker":
        # the list of exercises does not load torch; the first question does
        return import_module(f".{module}", __package__).MAKES[name]

    def make(seed: int | None, **changes: Any) -> Question:
        return replace(maker()(seed, **changes), kata=name, title=title)

    return Kata(name, title, topic, make, lambda seed: maker().numbers(seed))


KATAS = {
    one.name: one
    for one in (
        _kata("cut", "Cut a photo into strips", "the three moves", "patches"),
        _kata("missing-swap", "Find the missing swap", "the three moves", "patches"),
        _kata("dot", "Trace one dot", "the three moves", "patches"),
        _kata("stamp", "The stamp of a seat", "seats", "positions"),
        _kata("add-stamp", "Stamp the seat on", "seats", "positions"),
        _kata("match", "The match grid", "attention", "attention"),
        _kata("scale", "Scale the match", "attention", "attention"),
        _kata("softmax", "Scale, then softmax", "attention", "attention"),
        _kata("weighted-sum", "Weighted sum of the GIVE tags", "attention", "attention"),
        _kata("attention", "Attention for one strip", "attention", "attention"),
        _kata("middle", "The middle and the diffs", "taming", "layernorm"),
        _kata("layernorm", "Tame one strip (LayerNorm)", "taming", "layernorm"),
        _kata("dials", "Stretch and shift the tamed strip", "taming", "layernorm"),
        _kata("causal", "Block the future", "masks", "masks"),
        _kata("prefix", "The prefix mask", "masks", "masks"),
        _kata("heads", "Two heads, glued", "more attention", "heads"),
        _kata("cross", "Cross-attention: words to strips", "more attention", "heads"),
        _kata("rope", "Rotate a tag by its seat (RoPE)", "seats", "positions"),
        _kata("alibi", "A bias by distance (ALiBi)", "seats", "positions"),
        _kata("residual", "Add to the residual stream", "the block", "block"),
        _kata("gelu", "A small MLP with GELU", "the block", "block"),
        _kata("cross-entropy", "Cross-entropy of one prediction", "the block", "block"),
        _kata("kv-cache", "One step with a KV cache", "the cache", "kv_cache"),
        _kata("cache-bytes", "Bytes of a KV cache", "the cache", "kv_cache"),
        _kata("adaln", "A norm set by a condition (adaLN)", "diffusion", "diffusion"),
        _kata("adaln-zero", "A gate on the residual branch (adaLN-Zero)", "diffusion", "diffusion"),
        _kata("ddim", "One denoising step (DDIM)", "diffusion", "diffusion"),
        _kata("wrong-cells", "Find the wrong cells", "checking", "wrong_cells"),
    )
}

# the documents that have a page, each in the module page_NAME
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
    return import_module(f".page_{name}", __package__).sections(seed)
