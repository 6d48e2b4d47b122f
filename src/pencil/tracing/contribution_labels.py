"""What the parts of an output are called, what kind they are, and which recorded number shows them."""

import re
from collections.abc import Sequence
from math import prod

import numpy as np

from .address import occurrence
from .linearized import HeldModel, Leaf
from .recording import Recording
from .trace_base import RecordedTrace

Index = tuple[int, ...]
PARTS = {"attn": "", "cross": "cross-attention"}
GRID = re.compile(r"(patch|place|frames?) \d")  # what patches are called, in an image and in groups of patches
# parameters that are added, by their symbols; one that is missing here keeps its symbol
WORDS = {
    "b_O": "bias of the attention's output", "b_V": "bias of the values", "b₁": "bias of the MLP's first layer",
    "b₂": "bias of the MLP's second layer", "b_up": "bias of the MLP's first layer",
    "b_gate": "bias of the MLP's gate", "b_down": "bias of the MLP's second layer",
    "b_patch": "bias of the patch embedding", "b_class": "bias of the classes",
    "b_dist": "bias of the distilled classes", "b_vocab": "bias of the vocabulary", "b_out": "bias of the output",
    "b_map": "bias of the head's first layer", "b_proj": "bias of the projection", "b_pool": "bias of the pooling",
    "b_ada": "bias of the modulation", "b_last": "bias of the last modulation",
    "b_t1": "bias of the timestep's first layer", "b_t2": "bias of the timestep's second layer",
    "T_img": "type embedding (image)", "T_txt": "type embedding (text)", "T_type": "type embedding",
    "z_cls": "class token", "z_reg": "register token", "c_∅": "embedding of no text", "[IMG]": "embedding of [IMG]",
    "[/IMG]": "embedding of [/IMG]",
}  # fmt: skip
NORMS = {"attn_norm": "attention", "cross_norm": "cross-attention", "mlp_norm": "MLP", "head.norm": "head"}
INNER = re.compile(r"(?:^|\.)blocks\.\d+(?=\.|$)")


def block_of(name: str) -> str:
    """The path of the block that a value belongs to, if it belongs to one."""
    found = INNER.search(name)
    return name[: found.end()] if found else ""


class Labels:
    """The words of a trace for the leaves of its model."""

    def __init__(self, trace: RecordedTrace, recording: Recording, model: HeldModel):
        self.trace, self.recording, self.model = trace, recording, model
        self.tails = {name.partition(".")[2]: entry for name, entry in recording.declared.items() if "." in name}

    def groups(self, leaf: Leaf) -> tuple[int, ...]:
        """The axes along which a leaf falls into parts; it is summed over the others."""
        axes = leaf.value.ndim
        if leaf.kind == "head":
            return (1,)
        if leaf.kind == "value":
            return (0, 2)
        if leaf.kind == "pixel":
            return tuple(range(axes))
        if leaf.kind in ("mlp", "condition", "timestep", "edit"):
            return ()
        return tuple(range(axes - 1))  # a token, a patch, a position; a row of a table

    def kind(self, leaf: Leaf, index: Index) -> str:
        if leaf.kind == "value":
            return "patch" if GRID.match(self._word(leaf, 2, index[1])) else "token"
        if leaf.kind == "parameter":
            module = self.recording.model.get_submodule(leaf.name.rpartition(".")[0])
            return "norm" if hasattr(module, "SYMBOL") else "embedding" if leaf.value.ndim > 1 else "bias"
        if leaf.kind == "token" and leaf.value.ndim == 2:
            return "condition"
        same = {"head", "mlp", "pixel", "position", "condition"}
        known = {"token": "embedding", "patch": "embedding", "timestep": "condition", "input": "embedding"}
        return leaf.kind if leaf.kind in same else known.get(leaf.kind, "rest")

    def label(self, leaf: Leaf, index: Index) -> str:
        kind, place = leaf.kind, self.place(leaf.name)
        if kind in ("head", "mlp"):
            what = "MLP" if kind == "mlp" else f"head {sum(index) + 1}"
            return f"{place} · {what}" if place else what
        if kind == "input":
            return _address(leaf.name, index)
        if kind == "value":
            row = self._axis(leaf, 0, index[0]) if self._letter(leaf, 0) not in ("", "B") else ""
            return f"{row} · {self._word(leaf, 2, index[1])}" if row else self._word(leaf, 2, index[1])
        if kind == "pixel":
            return self._pixel(leaf, index)
        if kind == "parameter":
            return self._parameter(leaf, index)
        if kind in ("token", "patch", "position") and len(index) > 1:
            return f"{self._what(leaf)} of {self._word(leaf, len(index) - 1, index[-1])}"
        return leaf.shown or leaf.name if kind == "token" else kind if kind == "timestep" else leaf.name

    def _what(self, leaf: Leaf) -> str:
        if leaf.kind == "position":
            return "position"
        symbol = self.recording.symbols.get(f"{leaf.name.split('#')[0]}.weight", "E")
        return "embedding" if symbol.startswith("E") else WORDS.get(symbol, symbol)

    def place(self, name: str) -> str:
        """Where a value is: block 2, encoder block 1, block 2 · cross-attention."""
        block = block_of(name)
        if not block:
            return ""
        before, _, number = block.rpartition("blocks.")
        words = [*before.rstrip(".").split("."), f"block {int(number) + 1}"]
        inside = name[len(block) + 1 :].split(".")[0]
        return " ".join(word for word in words if word) + (f" · {PARTS[inside]}" if PARTS.get(inside) else "")

    def cell(self, leaf: Leaf, at: Index) -> str | None:
        """The address of a cell of the recorded tensor that a leaf is shown by."""
        name = leaf.shown
        if leaf.kind == "pixel":
            fold = leaf.value.shape
            sides = (*fold[:2], *(a * b for a, b in zip(fold[2::2], fold[3::2], strict=True)))
            found = [n.name for n in self.trace.graph.nodes if n.kind == "input" and n.shape == sides]
            if found:
                where = (a * size + b for a, b, size in zip(at[2::2], at[3::2], fold[3::2], strict=True))
                return _address(found[0], (*at[:2], *where))
        return _address(name, at) if name else None

    def _pixel(self, leaf: Leaf, index: Index) -> str:
        sizes = leaf.value.shape[3::2]
        *frame, row, column = (a * size + b + 1 for a, b, size in zip(index[2::2], index[3::2], sizes, strict=True))
        channel = f", channel {index[1] + 1}" if leaf.value.shape[1] > 1 else ""
        return "".join(f"frame {one}, " for one in frame) + f"pixel {row},{column}{channel}"

    def _parameter(self, leaf: Leaf, index: Index) -> str:
        path, _, last = leaf.name.rpartition(".")
        symbol = self.recording.symbols.get(leaf.name, last)
        rows, parts = prod(leaf.value.shape[:-1]), symbol.split(" ")
        if symbol == "[b_Q b_K b_V]":
            symbol = "b_V"  # q and k act on the pattern, which is held
        elif rows > 1:
            row = int(np.ravel_multi_index(index, leaf.value.shape[:-1]))
            symbol = parts[row] if len(parts) == rows else f"{WORDS.get(symbol, symbol)} {row + 1}"
        norm = hasattr(self.recording.model.get_submodule(path), "SYMBOL")
        what = f"{symbol} of {_norm(path)}" if norm else WORDS.get(symbol, symbol)
        place = self.place(leaf.name)
        return f"{place} · {what}" if place else what

    def _letter(self, leaf: Leaf, axis: int) -> str:
        name = leaf.shown or leaf.name
        entry = self.recording.declared.get(name) or self.tails.get(name.partition(".")[2])
        letters = entry.axes.split() if entry else []
        if leaf.kind == "token" and len(letters) == leaf.value.ndim - 1:
            letters = [*letters, ""]
        return letters[axis] if axis < len(letters) else ""

    def _axis(self, leaf: Leaf, axis: int, index: int) -> str:
        letter, count = self._letter(leaf, axis), leaf.value.shape[axis]
        labels = self.trace.labels_along(letter, count, leaf.shown or leaf.name) if letter else None
        return labels[index] + occurrence(labels, index) if labels else ""

    def _word(self, leaf: Leaf, axis: int, index: int) -> str:
        """A token by its label: a patch as it is called, a word in quotation marks."""
        word = self._axis(leaf, axis, index)
        if not word:
            return f"patch {index + 1}" if leaf.kind == "patch" else f"token {index + 1}"
        return word if GRID.match(word) else f"“{word}”"


def _norm(path: str) -> str:
    """A norm by what it is of; the last one of the model, or of its encoder, by its place."""
    before, _, last = path.rpartition(".")
    owner = NORMS.get(last) or NORMS.get(f"{before.rpartition('.')[2]}.{last}")
    if owner:
        return f"the {owner}'s norm"
    if last == "norm":
        return f"the {before}'s final norm" if before else "the final norm"
    return "the " + last.replace("_", " ")


def _address(name: str, index: Sequence[int]) -> str:
    return f"{name}[{','.join(map(str, index))}]"
