"""Evaluates formulas of gradients as they are printed, over the values of a step: written apart from the composer."""

import re

import torch

BLOCK = re.compile(r"(?:^|[.:])blocks\.(\d+)(?=\.)")
DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


def shared(name, other):
    a, b = (one.rpartition(":")[2].split(".")[:-1] for one in (name, other))
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Values:
    """The tensors of a step by their symbols."""

    def __init__(self, trace, parameters, ids, targets, settings):
        self.trace, self.ids, self.targets, self.settings = trace, ids, targets, settings
        self.known = {}
        for name, node in trace.graph.names.items():
            n = trace.graph.nodes[node]
            own = (n.name, *n.also)
            if not n.symbol or name not in own or "#" in name:
                continue
            symbols = n.symbol.split(" = ")
            symbol = symbols[own.index(name)] if len(symbols) == len(own) else symbols[0]
            if name in parameters and symbol in ("γ", "β"):
                norm = name.split(".")[-2]
                symbol += "_f" if norm == "norm" else f"_{norm.removesuffix('_norm')}"
            self.known.setdefault(symbol, []).append(name)
        turned = {symbol[:-1] for symbol in self.known if symbol.endswith("ᵀ")} - set(self.known)
        self.words = sorted([*self.known, *turned], key=len, reverse=True)

    def get(self, symbol, block, of):
        found = self.known.get(symbol) or self.known[f"{symbol}ᵀ"]
        if block:
            found = [name for name in found if (in_ := BLOCK.search(name)) and int(in_[1]) == block - 1]
        name = max(found, key=lambda one: shared(one, of))
        n = self.trace.graph.nodes[self.trace.graph.names[name]]
        value = torch.tensor(self.trace[name].value).double()
        letters = n.axes.split() if len(n.axes.split()) == value.ndim else [""] * value.ndim
        return (value, letters) if symbol in self.known else (value.mT, letters[::-1])


def slope(function):
    def of(x):
        with torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            return torch.autograd.grad(function(x).sum(), x)[0]

    return of


FUNCTIONS = {
    "GELU": torch.nn.functional.gelu,
    "GELU_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "SiLU": torch.nn.functional.silu,
    "ReLU": torch.relu,
    "tanh": torch.tanh,
}
FUNCTIONS |= {f"{word}′": slope(function) for word, function in list(FUNCTIONS.items())}
FUNCTIONS["mean"] = lambda x: x.mean(-1, keepdim=True)
FUNCTIONS["var"] = lambda x: x.var(-1, keepdim=True, unbiased=False)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[−+]?\d+)?")


class GradientFormula:
    """One formula of the gradient of this name."""

    def __init__(self, values, name, text, defined=None):
        self.values, self.name = values, name
        self.shape = values.trace[name].shape
        self.letters = values.trace[name].node.axes.split()
        first, *more = re.split(r", (?=[^ ,]+ = )", text)
        self.text, self.at = first, 0
        self.defined = dict(one.split(" = ", 1) for one in more) if defined is None else defined

    def value(self):
        value = self.placed()
        assert self.at == len(self.text), f"{self.text}: {self.text[self.at :]}"
        return value

    def result(self):
        """The value in the shape of the gradient: axes that were summed over have one cell."""
        value = torch.as_tensor(self.value()[0])
        if value.ndim > len(self.shape):
            sizes = [[n for n in shape if n > 1] for shape in (value.shape, self.shape)]
            assert sizes[0] == sizes[1], f"{self.text}: {tuple(value.shape)} is not {self.shape}"
            value = value.reshape(self.shape)
        return value

    def takes(self, text):
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def placed(self):
        """What is at some places along an axis, and 0 at the others; or the same at each."""
        value, names = self.sum()
        if self.takes(" at each "):
            letter = self.text[self.at :]
            self.at = len(self.text)
            return value.unsqueeze(self.letters.index(letter)), self.letters
        if self.takes(" at "):
            letter, start, end = re.match(r"(\S+) (\d+)(?::(\d+))?, else 0", self.text[self.at :]).groups()
            self.at = len(self.text)
            axis = self.letters.index(letter)
            value = value if end else value.unsqueeze(axis)
            whole = value.new_zeros(self.shape)
            whole.narrow(axis, int(start), int(end or int(start) + 1) - int(start)).copy_(value)
            return whole, self.letters
        return value, names

    def sum(self):
        value = negated(self.term()) if self.takes("−") else self.term()
        while self.at < len(self.text):
            if self.takes(" + "):
                value = both(torch.add, value, self.term())
            elif self.takes(" − "):
                value = both(torch.sub, value, self.term())
            else:
                break
        return value

    def term(self):
        if self.takes("Σ "):
            return self.term()[0].sum(), []
        if self.takes("Σ_"):
            letters = self.text[self.at :].partition(" ")[0]
            self.at += len(letters) + 1
            value, names = self.term()
            for letter in letters.split(","):
                if letter == "j":
                    value = value.sum(-1, keepdim=True)
                else:
                    assert names.count(letter) == 1, f"{self.text}: {letter} of {names}"
                    value = value.sum(names.index(letter), keepdim=True)
            return value, names
        value = self.factor()
        while self.at < len(self.text):
            if self.takes("·"):
                value = both(torch.mul, value, self.factor())
            elif self.takes("/"):
                value = both(torch.div, value, self.factor())
            elif self.text[self.at] == " " and not re.match(r" [+−]| at ", self.text[self.at :]):
                self.at += 1
                value = product(value, self.factor())
            else:
                break
        return value

    def factor(self):
        value, letters = self.atom()
        while True:
            if self.takes("ᵀ"):
                value, letters = value.mT, [*letters[:-2], letters[-1], letters[-2]]
            elif self.takes("²"):
                value = value**2
            else:
                return value, letters

    def atom(self):
        rest = self.text[self.at :]
        if self.takes("√"):
            value, letters = self.atom()
            return value**0.5, letters
        if self.takes("("):
            value = self.sum()
            assert self.takes(")"), self.text[self.at :]
            return value
        for word, function in (("min(", torch.minimum), ("max(", torch.maximum)):
            if self.takes(word):
                a = self.sum()
                assert self.takes(", "), self.text[self.at :]
                value = both(function, a, self.sum())
                assert self.takes(")"), self.text[self.at :]
                return value
        known = sorted(self.values.settings, key=len, reverse=True)
        if word := next((word for word in known if rest.startswith(word)), None):
            self.at += len(word)
            value = torch.as_tensor(self.values.settings[word], dtype=torch.float64)
            return value, [""] * value.ndim
        if found := re.match(r"onehot\(([^)]+)\)", rest):
            self.at += len(found[0])
            return self.picked(found[1])
        for word, function in FUNCTIONS.items():
            if self.takes(f"{word}("):
                value, letters = self.sum()
                assert self.takes(")"), self.text[self.at :]
                return function(value), letters
        if self.takes("heads("):
            value, letters = self.sum()
            assert self.takes(")"), self.text[self.at :]
            return value.unflatten(-1, (-1, self.shape[-1])).transpose(-3, -2), [*letters[:-2], "h", letters[-2], "d"]
        for word, text in self.defined.items():
            if self.takes(word):
                return GradientFormula(self.values, self.name, text, self.defined).value()
        if left_out := re.match(r"\[targets ≠ −100\]", rest):
            self.at += len(left_out[0])
            return (self.values.targets >= 0).double().reshape(*self.shape[:-1], 1), [""] * len(self.shape)
        for word, key in (("p", "probabilities"), ("ln p", "log_probabilities")):
            if re.match(rf"{word}(?![^ /])", rest):
                self.at += len(word)
                value = torch.tensor(self.values.trace[key].value).double()
                return value.reshape(self.shape or value.shape), [""] * value.ndim
        for word in self.values.words:
            if rest.startswith(word):
                self.at += len(word)
                block = re.match(r"⁽([⁰¹²³⁴⁵⁶⁷⁸⁹]+)⁾", self.text[self.at :])
                self.at += len(block[0]) if block else 0
                value, letters = self.values.get(word, int(block[1].translate(DIGITS)) if block else 0, self.name)
                if part := re.match(r"\[(\d+):(\d+)\]", self.text[self.at :]):
                    self.at += len(part[0])
                    value = value[:, int(part[1]) : int(part[2])]
                elif part := re.match(r"\[(\d+)\]", self.text[self.at :]):
                    self.at += len(part[0])
                    value, letters = value[:, int(part[1])], [letters[0], *letters[2:]]
                return value, letters
        if self.takes("‖"):
            value = self.sum()[0].norm()
            assert self.takes("‖"), self.text[self.at :]
            return value, []
        if self.takes("["):
            parts = [self.factor()]
            while not self.takes("]"):
                assert self.takes(" "), self.text[self.at :]
                parts.append(self.factor())
            parts = [side_by_side(*part) for part in parts]
            return torch.cat([value for value, _ in parts], -1), parts[0][1]
        found = NUMBER.match(rest)
        assert found, f"{self.text}: {rest}"
        self.at += len(found[0])
        return torch.tensor(float(found[0].replace("−", "-"))).double(), []

    def picked(self, word):
        """A row with a one at the index, for every token."""
        if word == "targets":
            count = self.values.trace["probabilities"].shape[-1]
            # a target that is left out has no one in its row
            rows = (self.values.targets[:, None] == torch.arange(count)).double()
            return rows.reshape(self.shape or rows.shape), []
        rows = self.shape[0]
        if word == "pos":
            count = self.values.get(self.text[self.at :].removeprefix("ᵀ "), 0, self.name)[0].shape[-2]
            return torch.eye(rows).double()[None, :count], ["B", "T", ""]
        return torch.nn.functional.one_hot(self.values.ids[word], rows).double(), ["B", "T", ""]


def negated(one):
    return -one[0], one[1]


def both(function, a, b):
    """A function of two values; an axis that was summed over, and that the other does not have, is left out."""
    for one, other in ((a, b), (b, a)):
        gone = [i for i, name in enumerate(one[1][1:], 1) if name == "h" and one[0].shape[i] == 1]
        if gone and one[0].ndim == other[0].ndim + 1 and "h" not in other[1]:
            squeezed = one[0].squeeze(gone[0]), [name for i, name in enumerate(one[1]) if i != gone[0]]
            a, b = (squeezed, b) if one is a else (a, squeezed)
            break
    letters = a[1] if a[0].ndim >= b[0].ndim else b[1]
    return function(a[0], b[0]), letters


def side_by_side(value, letters):
    """The columns of all heads beside one another."""
    if (letters and "h" in letters[:-1] and len(letters) > 1 and letters[-1] == "d") or "g" in letters[:-1]:
        if value.ndim == 2:
            return value.flatten(), [""]
        return value.transpose(-3, -2).flatten(-2), [*letters[:-3], letters[-2], ""]
    return value, letters


def product(a, b):
    """A matrix product; a matrix of each head with all rows, and heads that share keys and values."""
    (left, names), (right, more) = a, b
    if left.ndim == 3 and names[0].startswith("B") and right.ndim in (3, 4) and more[-3] in "hg":
        left, names = left[:, None], [names[0], more[-3], *names[1:]]
    elif left.ndim == 4 and right.ndim == 4 and left.shape[1] != right.shape[1]:
        right = right.repeat_interleave(left.shape[1] // right.shape[1], 1)
    elif right.ndim == 3 and more[0].startswith("B") and left.ndim == 4:
        right, more = right[:, None], ["B", "", *more[1:]]
    value = left @ right
    longest = names if left.ndim >= right.ndim else more
    return value, [*longest[: value.ndim - 2], names[-2], more[-1]]
