"""Probes: a probe is called with each named value where it is computed, and may keep it or edit it.

Observing changes the answer by rounding alone. `forward(…, probe=OFF)`; `attend` is the only place with two routes:
fused, unless the probe wants the scores, their mask or bias, or the pattern (or a forward-mode derivative is taken,
which fused kernels do not have). In float32 the two differ in the last digits; in bfloat16 by as much as its rounding,
which can decide between two tokens that are nearly as likely. Every module declares the names it fires, with axes,
symbol and formula (`NAMES`), and the symbols of its weights (`WEIGHTS`); `pencil shapes` is generated from them. A name
in the declaration that is not fired, or the reverse, fails the suite. Values that the fast route never makes (W_Q by
head, for instance) are made only when a probe wants them, and then used, so that an edit of them has its effect.
"""

import difflib
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import Tensor, nn

# letters for axes, used in every shape of the project
LEGEND = {
    "B": "batch", "T": "tokens", "S": "keys", "s": "source tokens", "t": "text tokens", "M": "image tokens",
    "N": "patches", "C": "channels", "c": "values in a patch", "E": "width of a patch embedding before its projection",
    "e": "width of a token embedding before its projection", "D": "width",
    "h": "heads", "g": "key-value heads", "d": "head width", "F": "hidden width of the MLP",
    "V": "vocabulary", "K": "classes", "m": "shifts, scales and gates of a block (adaLN)",
    "f": "frequencies of the timestep",
    "r": "shifts and scales of the last norm", "o": "output values of a patch",
    "n": "patches of a group (a frame, a window)", "B·w": "groups in the batch",
    "w": "frames", "B·n": "positions in the batch, each attending across frames",
    "a": "axes of the coordinates (1 text, 2 image, 3 video)", "L": "slots of a cache",
    "h·d": "width of the concatenated heads", "y": "patches down", "x": "patches across", "u": "rows of a patch",
    "v": "columns of a patch", "z": "patches along time", "k": "frames of a patch",
}  # fmt: skip


class Probe:
    """Keeps the values whose names match `keep`, and replaces those named in `edit`.

    `keep` is glob patterns ("blocks.0.*") or a predicate of the full name; `edit` maps a pattern to a function of the
    value. `probe / "attn"` nests names; all nested probes share one `values`. A pattern that no name of the forward
    pass matches is refused at its end.
    """

    def __init__(
        self,
        *keep: str | Callable[[str], bool],
        edit: dict[str, Callable[[Tensor], Tensor]] | None = None,
    ):
        self.keep = keep if keep or edit else ("*",)
        self.edit = edit or {}
        self.values: dict[str, Tensor] = {}
        self.fired: dict[str, None] = {}  # the names of all values so far; the keys are a set in their order
        self.asked: dict[str, None] = {}  # the names that `wants` was asked for: computed only for a probe
        self.path = ""

    def __truediv__(self, name: str) -> "Probe":
        inner = object.__new__(type(self))
        inner.__dict__.update(self.__dict__, path=f"{self.path}{name}.")
        return inner

    def keeps(self, name: str) -> bool:
        return any(fnmatchcase(name, rule) if isinstance(rule, str) else rule(name) for rule in self.keep)

    def edits(self, name: str) -> Iterator[Callable[[Tensor], Tensor]]:
        return (change for pattern, change in self.edit.items() if fnmatchcase(name, pattern))

    def wants(self, *names: str) -> bool:
        """Whether any of these values would be kept or edited; then the fused route may not skip them."""
        full = [self.path + name for name in names]
        self.asked.update(dict.fromkeys(full))
        return any(self.keeps(name) or any(True for _ in self.edits(name)) for name in full)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        name = self.path + name
        self.fired[name] = None
        for change in self.edits(name):
            value = change(value)
        if self.keeps(name):
            self.values[name] = value
        return value

    def checked(self, value: Tensor) -> Tensor:
        """The result of a forward pass, after a check that every pattern matched a name, in this pass or before.

        Only the outermost module checks: inside it, other names are still to come.
        """
        if not self.path:
            for pattern in (*(rule for rule in self.keep if isinstance(rule, str)), *self.edit):
                if not any(fnmatchcase(name, pattern) for name in self.fired):
                    raise ValueError(_unmatched(pattern, (*self.fired, *self.asked)))
        return value


class NullProbe(Probe):
    """Returns every value unchanged, and costs nothing."""

    def __init__(self):
        super().__init__(lambda name: False)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def __truediv__(self, name: str) -> "NullProbe":
        return self

    def wants(self, *names: str) -> bool:
        return False

    def checked(self, value: Tensor) -> Tensor:
        return value


def _unmatched(pattern: str, computed: tuple[str, ...]) -> str:
    """Why a probe was refused: the pattern, and the name that is meant or the places there are."""
    if pattern in computed:
        return f"{pattern} is not computed in this forward pass, so a probe cannot keep or edit it"
    wild = set("*?[") & set(pattern)
    names = {re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in computed} if wild else set(computed)
    near = difflib.get_close_matches(pattern, sorted(names), 1, 0.8)
    mend = (
        f"did you mean {near[0]}?" if near else f"the names here are {', '.join(computed[:5])}, … (Probe() keeps all)"
    )
    return f"no value {'matches' if wild else 'is called'} {pattern}; {mend}"


OFF = NullProbe()


class Name(NamedTuple):
    """How a module describes a value it names: its axes, its symbol in the mathematics, and its formula."""

    axes: str
    symbol: str
    formula: str
    optional: bool = False  # fired by some models only


def declared(model: nn.Module) -> dict[str, Name]:
    """Every name the model can report to a probe, in module order: the `NAMES` tables of its modules, joined.

    `INNER` of a module overrides the entries of its submodules, where it can be more exact. `LETTERS` renames the axes
    of all values of a submodule, and `SYMBOLS` the symbols; the submodule "" is the module itself. Formulas are
    templates (`core/notation.py`).
    """
    names, inner, letters, words = {}, {}, {}, {}
    for path, module in model.named_modules():
        place = f"{path}." if path else ""
        for name, entry in getattr(module, "NAMES", {}).items():
            names[place + name.rstrip("?")] = Name(*entry, optional=name.endswith("?"))
        # an outer module overrides an inner one
        inner = {place + name: Name(*entry) for name, entry in getattr(module, "INNER", {}).items()} | inner
        letters |= {_within(path, part): other for part, other in getattr(module, "LETTERS", {}).items()}
        words |= {_within(path, part): other for part, other in getattr(module, "SYMBOLS", {}).items()}
    for name, entry in names.items():
        names[name] = inner[name]._replace(optional=entry.optional) if name in inner else entry
        for part, other in letters.items():
            if name.startswith(part):
                names[name] = spelled(names[name], other)
        # the nearest module decides first what a symbol is called
        for part in sorted((part for part in words if name.startswith(part)), key=len, reverse=True):
            names[name] = renamed(names[name], words[part])
    return names


class Branch(NamedTuple):
    """What hangs from a residual stream: its path, that of its block, and the name of the stream after it."""

    path: str
    block: str
    stream: str
    norm: str  # "before": it reads a normed copy of the stream; "after": the sum is normed, which is then the stream
    modulation: str  # the name of what a condition sets its norm with; empty: nothing does


def branches(model: nn.Module) -> list[Branch]:
    """What hangs from the residual streams of a model, in module order: the `BRANCHES` tables of its blocks, joined."""
    joined = []
    for path, module in model.named_modules():
        place, names = f"{path}." if path else "", getattr(module, "NAMES", {})
        for part, stream in getattr(module, "BRANCHES", {}).items():
            norm = "before" if f"{part}_norm" in names else "after"
            modulation = f"{place}modulation" if "modulation" in names else ""
            joined.append(Branch(place + part, path, place + stream, norm, modulation))
    return joined


def _within(path: str, part: str) -> str:
    return "".join(f"{piece}." for piece in (path, part) if piece)


def spelled(entry: Name, letters: dict[str, str]) -> Name:
    """The same value with other letters for its axes."""
    return entry._replace(axes=" ".join(letters.get(letter, letter) for letter in entry.axes.split()))


# a symbol in a formula: letters with accents, primes, a subscript, digits below and above
TOKEN = re.compile(r"[A-Za-zΑ-ω](?:[A-Za-z]|[\u0300-\u036f])*[′″]*(?:_[A-Za-z0-9∅]+(?:,[a-z]+)?)?[₀-₉]*[⁰¹²³⁴-⁹ˡᴸ⁻]*")


def renamed(entry: Name, words: dict[str, str]) -> Name:
    """The same value with other symbols, its own and those of its formula."""
    symbol, formula = (
        TOKEN.sub(lambda match: words.get(match[0], match[0]), text) for text in (entry.symbol, entry.formula)
    )
    return entry._replace(symbol=symbol, formula=formula)


def weight_axes(model: nn.Module) -> dict[str, str]:
    """The axes of learned tensors, as they are stored, whose rows are tokens or classes: `WEIGHT_AXES` of the modules.

    An outer module overrides an inner one.
    """
    by_name: dict[str, str] = {}
    for path, module in model.named_modules():
        place = f"{path}." if path else ""
        by_name = {place + name: axes for name, axes in getattr(module, "WEIGHT_AXES", {}).items()} | by_name
    stored = dict(model.named_parameters(remove_duplicate=False))
    return {name: axes for name, axes in by_name.items() if name in stored and axes}


def symbols(model: nn.Module) -> dict[str, str]:
    """The symbol of every learned tensor, from the modules' `WEIGHTS` tables; an outer module overrides an inner one.

    The weight of a linear map stands for its transpose, which multiplies from the right: X W₁ is X times W₁, D × F, and
    stored is W₁ᵀ.
    """
    by_name: dict[str, str] = {}
    renames: dict[str, dict[str, str]] = {}
    for path, module in model.named_modules():
        place = f"{path}." if path else ""
        by_name = {place + name: symbol for name, symbol in getattr(module, "WEIGHTS", {}).items()} | by_name
        for part, words in getattr(module, "SYMBOLS", {}).items():
            renames[_within(path, part)] = words
    for part, words in renames.items():
        by_name = {name: words.get(one, one) if name.startswith(part) else one for name, one in by_name.items()}
    stored = {*dict(model.named_parameters(remove_duplicate=False)), *dict(model.named_buffers(remove_duplicate=False))}
    return {name: symbol for name, symbol in by_name.items() if name in stored}
