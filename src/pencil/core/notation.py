"""Formulas as they are printed: composed for the model at hand from what its modules declare.

A module declares each value it names in `NAMES` (axes, symbol, formula); a name that ends in ? is fired by some models
only. A formula is a template: ⟨ + b₁⟩ stays only where all its symbols are known; {a|b} is the first alternative whose
symbols are known, and {Q₀? a|b} is a only where Q₀ is known too. `FACTS` of a module are words known to it and to all
within it. `INPUTS` are the symbols of what the model is given, and `INPUT_AXES` its axes. Norm_attn is written as the
module attn_norm calls itself. In a block, Xˡ⁻¹ is its input and Xˡ its output; Xᴸ is the last block's output.

A formula is composed from what was computed. A module declares a template: ⟨ + b₁⟩ stays where b₁ is known to it, {a|b}
is the first alternative that is. What is known are the names that were fired and the weights that exist, so a formula
says RoPE's rotation, a bias or a mask just where there is one. A symbol stands for the nearest tensor by path, and of
those the latest before it. A matrix is written as it multiplies from the right; the tensor of a linear layer is its
transpose, and called so. `tests/core/test_notation.py` evaluates every printed formula of every family, position scheme
and variant and compares it with its tensor, with an evaluator of its own.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn

from .probe import TOKEN, Name, declared, symbols

SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Entry(NamedTuple):
    """A value or a learned tensor that a symbol may stand for."""

    module: str  # the path of the module that names it
    symbol: str
    name: str
    order: int  # when it was computed; −1 for a learned tensor


class Notation:
    """The symbols and formulas of one run of a model: of the names that were fired, in their order.

    `numbered`: blocks are called by their number, not by ℓ.
    """

    def __init__(self, model: nn.Module, fired: Iterable[str], numbered: bool = True):
        self.modules, self.numbered = dict(model.named_modules()), numbered
        self.templates = declared(model)
        # a module may be run under other names: read.blocks.0 and next.blocks.0 are both model.blocks.0
        tails = {name.partition(".")[2]: name for name in self.templates if "." in name}
        self.own = {name: name if name in self.templates else tails.get(name.partition(".")[2], "") for name in fired}
        self.own = {name: own for name, own in self.own.items() if own}
        self.entries: dict[str, list[Entry]] = {}
        for name, symbol in symbols(model).items():
            # one tensor may hold several: [W_Q W_K W_V], T_img T_txt
            for part in {symbol, *symbol.strip("[]").split()}:
                self._add(Entry(self._module_of(name), part, name, -1))
        for name, symbol in getattr(model, "INPUTS", {}).items():
            self._add(Entry("", symbol, name, -1))
        self.names: dict[str, Name] = {}
        for order, (name, own) in enumerate(self.own.items()):
            axes, symbol, formula, _ = self.templates[own]
            module = self._module_of(own)
            entry = Entry(module, self._numbered(symbol, module), name, order)
            self.names[name] = Name(axes, entry.symbol, self._composed(formula, entry))
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        self.entries.setdefault(entry.symbol, []).append(entry)

    def _module_of(self, name: str) -> str:
        """The module that names a value or holds a learned tensor, by the longest path."""
        path = name
        while path and path not in self.modules:
            path = path.rpartition(".")[0]
        # a norm has the name of its value: attn_norm is named by the block
        return path.rpartition(".")[0] if path == name else path

    def find(self, symbol: str, name: str) -> Entry | None:
        """What a symbol stands for in the formula of a name: the nearest by path, and of those the latest before it."""
        return self._nearest(symbol, self._module_of(self.own[name]), list(self.own).index(name))

    def _nearest(self, symbol: str, module: str, order: int) -> Entry | None:
        here = module.split(".") if module else []

        def rank(entry: Entry) -> tuple[int, int]:
            there = entry.module.split(".") if entry.module else []
            shared = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), None)
            return (min(len(here), len(there)) if shared is None else shared, entry.order)

        before = [entry for entry in self.entries.get(symbol, ()) if entry.order < order]
        return max(before, key=rank, default=None)

    def _known(self, word: str, here: Entry) -> bool:
        """Whether an optional symbol stands for something in this module, or is a fact of it."""
        path = here.module
        while True:
            if word in getattr(self.modules[path], "FACTS", ()):
                return True
            if not path:
                break
            path = path.rpartition(".")[0]
        entry = self._nearest(word, here.module, here.order)
        return entry is not None and (
            entry.module == here.module or entry.module.startswith(f"{here.module}." if here.module else "")
        )

    def _composed(self, template: str, here: Entry) -> str:
        text = "".join(_choose(template, lambda word: self._known(word, here)))
        text = re.sub(r"\bNorm_(\w+)", lambda match: self._norm(match[1], here.module), text)
        return self._numbered(text, here.module)

    def _norm(self, which: str, module: str) -> str:
        child = "norm" if which == "f" else f"{which}_norm"
        norm: Any = self.modules[f"{module}.{child}" if module else child]
        return f"{norm.SYMBOL}_{which}"

    def _numbered(self, text: str, module: str) -> str:
        """The numbers of blocks in place of ˡ⁻¹, ˡ and ᴸ."""
        if not self.numbered:
            return text
        numbers = re.findall(r"(?:^|\.)blocks\.(\d+)(?=\.|$)", module)
        if numbers:
            text = text.replace("ˡ⁻¹", _superscript(int(numbers[-1]))).replace("ˡ", _superscript(int(numbers[-1]) + 1))
        blocks: Any = self.modules.get(f"{module}.blocks" if module else "blocks", ())
        return text.replace("ᴸ", _superscript(len(blocks)))


def _superscript(number: int) -> str:
    return str(number).translate(SUPERSCRIPTS)


def _choose(template: str, is_known: Callable[[str], bool]) -> Iterator[str]:
    """A template with its optional parts decided, piece by piece."""
    at = 0
    while at < len(template):
        letter = template[at]
        if letter not in "⟨{":
            yield letter
            at += 1
            continue
        end = _closing(template, at)
        inside = template[at + 1 : end]
        if letter == "⟨":
            yield from _choose(inside, is_known) if all(map(is_known, TOKEN.findall(inside))) else ()
        else:
            *parts, last = _alternatives(inside)
            alternative = next((text for words, text in parts if all(map(is_known, words))), last[1])
            yield from _choose(alternative, is_known)
        at = end + 1


def _closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in "⟨{") - (text[at] in "⟩}")
        if not depth:
            return at
    raise ValueError(f"a bracket is not closed in {text}")


def _alternatives(inside: str) -> list[tuple[list[str], str]]:
    """Each alternative with the words that must be known for it."""
    parts, depth = [""], 0
    for letter in inside:
        depth += (letter in "⟨{") - (letter in "⟩}")
        if letter == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    alternatives = []
    for part in parts:
        condition = re.match(r"([^\s?⟨{]+)\?\s?", part)
        alternatives.append(([condition[1]], part[condition.end() :]) if condition else (TOKEN.findall(part), part))
    return alternatives


def transposed(model: nn.Module, name: str) -> bool:
    """Whether a learned tensor is stored as the transpose of the matrix that formulas multiply by."""
    path, _, last = name.rpartition(".")
    return last == "weight" and isinstance(model.get_submodule(path), nn.Linear)


def stored(model: nn.Module, name: str, symbol: str) -> str:
    """The symbol of a learned tensor as it is stored."""
    if not transposed(model, name):
        return symbol
    return symbol[:-1] if symbol.endswith("ᵀ") else f"{symbol}ᵀ"
