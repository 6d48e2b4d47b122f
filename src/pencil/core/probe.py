"""Looking inside: a probe is told the name of each value where it is computed, and may keep it or edit it."""

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import Tensor, nn

# letters for axes, used in every shape of the project
LEGEND = {
    "B": "batch", "T": "tokens", "S": "tokens seen", "s": "source tokens", "t": "text tokens", "M": "picture tokens",
    "N": "strips", "C": "channels", "c": "numbers in a strip", "E": "width of a strip before its projection",
    "D": "width",
    "h": "heads", "g": "key-value heads", "d": "head width", "F": "hidden width of the MLP",
    "V": "vocabulary", "K": "classes", "m": "numbers that set the norms of a block", "f": "waves of the clock",
    "r": "numbers that set the last norm", "o": "numbers said of a strip",
    "n": "strips of a group (a frame, a window)", "B·w": "groups in the batch",
    "w": "frames", "B·n": "places in the batch, each seen across its frames",
    "a": "axes of the world a token stands in", "L": "slots of a cache",
}  # fmt: skip


class Off:
    """The null probe: hands every value straight back, and costs nothing."""

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def __truediv__(self, name: str) -> "Off":
        return self

    def wants(self, *names: str) -> bool:
        return False


OFF = Off()


class Probe(Off):
    """Keeps the values whose names match `keep`, and replaces those named in `edit`.

    `keep` is glob patterns ("blocks.0.*") or a predicate of the full name; `edit` maps a pattern to a function of the
    value. `probe / "attn"` nests names; all nested probes share one `values`.
    """

    def __init__(
        self,
        *keep: str | Callable[[str], bool],
        edit: dict[str, Callable[[Tensor], Tensor]] | None = None,
    ):
        self.keep = keep if keep or edit else ("*",)
        self.edit = edit or {}
        self.values: dict[str, Tensor] = {}
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
        """Whether any of these values would be kept or edited: the fast route may not skip them then."""
        full = [self.path + name for name in names]
        return any(self.keeps(name) or any(True for _ in self.edits(name)) for name in full)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        name = self.path + name
        for change in self.edits(name):
            value = change(value)
        if self.keeps(name):
            self.values[name] = value
        return value


class Name(NamedTuple):
    """What a module says of a value it names: its axes, its symbol in the mathematics, and its formula."""

    axes: str
    symbol: str
    formula: str


def declared(model: nn.Module) -> dict[str, Name]:
    """Every name the model can fire, in order of the modules' paths: their `NAMES` tables, joined.

    `INNER` of a module says more exactly what a part of it computes there, if that part computes it; `LETTERS`, which
    letters stand for others in all of a part.
    """
    names, inner, letters = {}, {}, {}
    for path, module in model.named_modules():
        place = f"{path}." if path else ""
        names |= {place + name: Name(*entry) for name, entry in getattr(module, "NAMES", {}).items()}
        # what stands further out knows more
        inner = {place + name: Name(*entry) for name, entry in getattr(module, "INNER", {}).items()} | inner
        letters |= {f"{place}{part}.": other for part, other in getattr(module, "LETTERS", {}).items()}
    for name, entry in names.items():
        names[name] = inner.get(name, entry)
        for part, other in letters.items():
            if name.startswith(part):
                names[name] = spelled(names[name], other)
    return names


def spelled(entry: Name, letters: dict[str, str]) -> Name:
    """The same value with other letters for its axes."""
    return entry._replace(axes=" ".join(letters.get(letter, letter) for letter in entry.axes.split()))


def symbols(model: nn.Module) -> dict[str, str]:
    """The symbol of every learned tensor, from the modules' `WEIGHTS` tables."""
    return {
        f"{path}.{name}" if path else name: symbol
        for path, module in model.named_modules()
        for name, symbol in getattr(module, "WEIGHTS", {}).items()
    }
