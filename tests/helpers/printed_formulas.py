"""Evaluates formulas as they are printed, over the values of one run: written apart from the models they describe."""

import math
import re

import torch

from pencil.core.notation import transposed

OPERATORS = "+−·/^()[];,|√²ᵀ"
WORD = re.compile(
    r"llama3|[A-Za-zΑ-ω](?:[A-Za-z]|[\u0300-\u036f])*[′″]*(?:_[A-Za-z0-9∅]+(?:,[a-z]+)?)?[₀-₉]*[⁰¹²³⁴-⁹]*(?:_[a-z])?"
)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class PerPair:
    """A vector for each pair of query and key: (B, T, S, d)."""

    def __init__(self, value):
        self.value = value


class Formula:
    """One printed formula, and what its symbols stand for."""

    def __init__(self, text, run, name):
        self.text, self.run, self.name = text, run, name
        self.tokens, self.at = [], 0

    def value(self):
        run, text = self.run, self.text
        if found := re.fullmatch(r"rows (\w) of (\w+)", text):
            return self.symbol(found[2])[run.inputs[found[1]]]
        if found := re.fullmatch(r"0 where (.+), else −∞", text):
            return self.mask(found[1])
        if " at 2i" in text:
            return self.interleaved(text)
        if " within the " in text:
            return self.within(text)
        self.tokens = list(scan(text))
        value = self.sum()
        assert self.at == len(self.tokens), f"{text}: read up to {self.tokens[self.at :]}"
        return value[:, 0] if text == "H" else value  # of one head: its axis is dropped

    # ---- whole formulas in words

    def mask(self, condition):
        query, key = self.run.indices(self.name)
        i, j = query[:, None, :, None], key[:, None, None, :]
        seen = torch.zeros(i.shape[0], 1, i.shape[2], j.shape[3], dtype=torch.bool)
        for part in condition.split(" or "):
            if part == "key j is not padding":
                seen = seen | (j < 1 << 30)
            elif found := re.fullmatch(r"j < (\d+)", part):
                seen = seen | (j < int(found[1]))
            else:
                before, *near = part.split(" and ")
                assert before == "j ≤ i", part
                here = j <= i
                for one in near:
                    here = here & ((i - j).abs() < int(re.fullmatch(r"\|i − j\| < (\d+)", one)[1]))
                seen = seen | here
        return torch.where(seen, 0.0, -torch.inf).double()

    def interleaved(self, text):
        parts = []
        for part in text.strip("[]").split("; "):
            sine, cosine = (
                Formula(re.fullmatch(r"(.+) at 2i(?:\+1)?", one)[1], self.run, self.name).value()
                for one in part.split(", ")
            )
            parts.append(torch.stack((sine, cosine), -1).flatten(-2))
        return torch.cat(parts, -1)

    def within(self, text):
        total = 0
        for part, where in re.findall(r"(.+?) within the (image|text)(?: \+ |$)", text):
            value = Formula(part, self.run, self.name).value()
            total = total + value.masked_fill(~self.run.segment(where), 0)
        return total

    # ---- expressions

    def peek(self):
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, *wanted):
        token = self.peek()
        assert token in wanted or not wanted, f"{self.text}: {token!r} is not {wanted}"
        self.at += 1
        return token

    def sum(self):
        total = -self.term() if self.peek() == "−" and self.take() else self.term()
        while self.peek() in ("+", "−"):
            total = total + self.term() if self.take() == "+" else total - self.term()
        return total

    def term(self):
        left = self.factor()
        while (token := self.peek()) and token not in "+−)];,|":
            if token in "·/":
                self.take()
                right = self.factor()
                left = left * right if token == "·" else left / right
            else:
                right = self.factor()
                number = any(
                    isinstance(one, float) or one.ndim < 2 for one in (left, right) if not isinstance(one, PerPair)
                )
                left = left * right if number else product(left, right)
        return left

    def factor(self):
        value = self.atom()
        while self.at < len(self.tokens):
            token, spaced = self.tokens[self.at]
            if token == "ᵀ":
                self.take()
                value = value if isinstance(value, PerPair) else value.mT
            elif token == "²":
                self.take()
                value = value**2
            elif token == "^":
                self.take()
                value = value ** self.factor()
            elif token == "[" and not spaced:
                value = self.indexed(value)
            else:
                break
        return value

    def atom(self):
        token = self.take()
        if NUMBER.fullmatch(token):
            return float(token)
        if token == "−":
            return -self.factor()
        if token == "√":
            value = self.atom()
            return value**0.5
        if token == "(":
            value = self.sum()
            self.take(")")
            return value
        if token == "|":
            value = self.sum()
            self.take("|")
            return value.abs()
        if token == "[":
            parts = [self.sum()]
            while self.peek() == ";":
                self.take()
                parts.append(self.sum())
            self.take("]")
            return self.run.joined(parts, self.name)
        if token == "Σ_a":
            return self.summed(self.take())
        if self.peek() == "(" and not self.tokens[self.at][1]:
            self.take()
            arguments = [self.sum()]
            while self.peek() == ",":
                self.take()
                arguments.append(self.sum())
            self.take(")")
            return self.run.function(token, arguments, self.name)
        if self.peek() == "[" and not self.tokens[self.at][1] and token.startswith(("a_K", "B_table")):
            self.take()
            rows = self.symbol(self.take()).long()
            self.take("]")
            return self.rows(self.symbol(token), rows, 0)
        return self.symbol(token)

    def rows(self, table, rows, axis):
        if table.shape[-1] == self.run.heads and self.text.count("B_table"):
            return table[axis][rows[..., axis]].permute(0, 3, 1, 2)
        return PerPair(table[axis][rows[..., axis] + (table.shape[1] - 1) // 2])

    def summed(self, token):
        """Σ_a of table[a, rows_a]."""
        table = self.symbol(token)
        self.take("["), self.take("a"), self.take(",")
        rows = self.symbol(re.sub(r"[,_]a$", "", self.take())).long()
        self.take("]")
        parts = [self.rows(table, rows, axis) for axis in range(len(table))]
        if isinstance(parts[0], PerPair):
            return PerPair(sum(part.value for part in parts))
        return sum(parts)

    def indexed(self, value):
        self.take("[")
        inside = ""
        while self.peek() != "]":
            inside += self.take()
        self.take("]")
        width = self.run.size("D")
        if inside.isdigit():
            return value[:, int(inside)]
        if inside.endswith(":"):  # from this token on
            return value[:, int(inside[:-1]) :]
        if inside == "text":
            return value[:, -self.run.inputs["t"].shape[1] :]
        if inside in ("pos", "type"):
            return value[self.run.rows(self.name) if inside == "pos" else torch.zeros(1, 1, dtype=torch.long)]
        if inside in self.run.inputs:
            return value[self.run.inputs[inside]]
        if found := re.fullmatch(r"pos\+(\d+)", inside):
            return value[self.run.rows(self.name) + int(found[1])]
        low, high = (int(one[: -len("D")] or 1) * width if one.endswith("D") else int(one) for one in inside.split(":"))
        return value[:, None, low:high]

    def pair_numbers(self):
        """0, 1, …, as many as there are pairs of channels: i stands before a division by their number of channels."""
        if self.name.endswith("sinusoids"):
            return torch.arange(self.run.values[self.name].shape[-1] // 2).double()
        slash, divisor = (token for token, _ in self.tokens[self.at : self.at + 2])
        assert slash == "/"
        count = int(divisor) if divisor.isdigit() else int(self.run.size(divisor))
        return torch.arange(count // 2).double()

    def symbol(self, token):
        if token == "i":
            return self.pair_numbers()
        known = self.run.local(token, self.name)
        return self.run.symbol(token, self.name) if known is None else known


def scan(text):
    """Tokens, and whether a space comes before each."""
    at, spaced = 0, False
    while at < len(text):
        if text[at] == " ":
            at, spaced = at + 1, True
            continue
        if literal := re.match(r"\[/?IMG\]", text[at:]):
            token = literal[0]
        elif text.startswith("Σ_a", at):
            token = "Σ_a"
        elif text[at] in OPERATORS + ":":
            token = text[at]
        else:
            found = NUMBER.match(text, at) or WORD.match(text, at)
            assert found, f"{text}: {text[at:]}"
            token = found[0]
        yield token, spaced
        at, spaced = at + len(token), False


def product(left, right):
    """A matrix product; a matrix of each head with all rows, and heads that share keys and values."""
    if isinstance(right, PerPair):
        return torch.einsum("bhtd,btsd->bhts", left, right.value.expand(len(left), -1, -1, -1))
    if left.ndim == right.ndim == 3:
        return left[:, None] @ right
    if left.ndim == right.ndim == 4 and left.shape[1] != right.shape[1]:
        right = right.repeat_interleave(left.shape[1] // right.shape[1], 1)
    if left.ndim == 4 and right.ndim == 2:  # one head: its axis is dropped
        left = left[:, 0]
    return left @ right


class Run:
    """The values of one forward pass, in double precision, and what is known beside them."""

    def __init__(self, model, notation, values, inputs, coords, index=None, padded=None):
        self.model, self.notation, self.values = model, notation, values
        self.inputs, self.coords, self.index, self.padded = inputs, coords, index or {}, padded or {}
        self.parameters = dict(model.named_parameters(remove_duplicate=False))

    @property
    def heads(self):
        return self.model.config.heads

    def size(self, letter):
        return self.model.config.sizes[letter]

    def symbol(self, token, name):
        entry = self.notation.find(token, name)
        if entry is None and token.endswith("_past"):
            return self.past(token[: -len("_past")], name)
        assert entry is not None, f"{token} in the formula of {name} stands for nothing"
        if entry.order >= 0:
            value = self.values[entry.name].double()
            return value[:, None] if re.fullmatch(r"b_[QKV](,src)?", token) else value
        if entry.name in self.inputs:
            return self.inputs[entry.name]
        value = self.parameters[entry.name].detach().double()
        whole = next(e.symbol for entries in self.notation.entries.values() for e in entries
                     if e.name == entry.name and (token in e.symbol.split() and len(e.symbol.split()) > 1))  if token in ("T_img", "T_txt") else ""  # fmt: skip
        if whole:
            return value[whole.split().index(token)]
        return value.mT if transposed(self.model, entry.name) else value

    def past(self, token, name):
        """The keys or values of all earlier calls."""
        own = self.notation.own[name].rpartition(".")[0]
        kind = {"K": "k", "V": "v"}[token[0]]
        mine = list(self.values)
        before = [n for n in mine[: mine.index(name)] if self.notation.own.get(n) == f"{own}.{kind}"][:-1]
        like = self.values[name]
        return torch.cat([self.values[n].double() for n in before] or [like[:, :, :0].double()], 2)

    def local(self, token, name):
        """Numbers and coordinates that a formula reads."""
        axes = {1: ("pos",), 2: ("row", "column"), 3: ("frame", "row", "column")}
        coords = self.coords_of(name)
        names = axes[coords.shape[-1]]
        base = token.rpartition("_")[0] if token.endswith(("_i", "_j")) else token
        if base in names:
            value = coords[..., names.index(base)].double()
            if base == token:
                return value[..., None]
            return value[:, :, None] if token.endswith("_i") else value[:, None, :]
        if token == "m_h":
            return slopes(self.heads)[:, None, None]
        if token in ("d", "D"):
            return float(self.size(token))
        if token == "t" and name.endswith("sinusoids"):
            return self.inputs["t"].double()[:, None]
        if token in ("[IMG]", "[/IMG]"):
            marks = self.parameters["marks"].detach().double()
            return marks[0 if token == "[IMG]" else -1].expand(1, 1, -1)
        return None

    # what a test of another family may override

    def coords_of(self, name):
        return self.coords["image" if name.startswith("image_positions") else "text"]

    def indices(self, name):
        count, keys = self.values[name].shape[-2:]
        if name in self.index:
            return self.index[name]
        key = torch.arange(keys)[None]
        return key[:, keys - count :], key

    def rows(self, name):
        return torch.arange(self.values[name].shape[1])[None]

    def segment(self, where):
        raise NotImplementedError

    def joined(self, parts, name):
        if name.endswith(("distance", "bucket")):
            return torch.stack(torch.broadcast_tensors(*parts), -1)
        if name.endswith(("embedding", "angles", "sinusoids")):
            return torch.cat(parts, -1)
        rows = max(part.shape[0] for part in parts)
        return torch.cat([part.expand(rows, *part.shape[1:]) for part in parts], -2)

    def function(self, word, arguments, name):
        x = arguments[0]
        if word in SIMPLE:
            return SIMPLE[word](x)
        if word == "clip":
            return x.clamp(*arguments[1:]) if x.ndim == 4 else x.clamp(*arguments[1:])[..., None]
        if word == "bucket":
            return self.bucket(x if x.ndim == 4 else x[..., None], name)
        if word == "R":
            return self.rotated(x, name)
        if word.startswith(("LN", "RMSNorm")):
            return self.normed(word, x, name)
        if word in ("fold", "swap", "glue"):
            return self.patches(word, x, name)
        if word in ("linear", "ntk", "yarn", "llama3"):
            return self.stretched(word, x)
        if word in ("regroup", "ungroup", "repeat"):
            return self.regrouped(word, x, name)
        raise AssertionError(f"{word} is no function of formulas")

    def normed(self, word, x, name):
        kind, _, which = word.partition("_")
        own = self.notation.own[name]
        path = own if not which else own.rpartition(".")[0] + "." * bool(own.count("."))
        path = own if not which else f"{path}{'norm' if which == 'f' else which + '_norm'}"
        module = self.model.get_submodule(path)
        centre = x - x.mean(-1, keepdim=True) if kind == "LN" else x
        out = centre / (centre.square().mean(-1, keepdim=True) + module.eps).sqrt()
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        out = out if weight is None else out * weight.detach().double()
        return out if bias is None else out + bias.detach().double()

    def patches(self, word, x, name):
        patch = getattr(self.model.config, "patch_sizes", None) or self.model.config.patch
        n = len(patch)
        if word == "fold":
            sizes = [s for side, p in zip(x.shape[2:], patch, strict=True) for s in (side // p, p)]
            return x.double().reshape(*x.shape[:2], *sizes)
        if word == "swap":
            return x.permute(0, *range(2, 2 + 2 * n, 2), 1, *range(3, 3 + 2 * n, 2))
        return x.reshape(len(x), math.prod(x.shape[1 : 1 + n]), -1)

    def rotated(self, x, name):
        angles = self.angles(name, x.shape[2])[:, None]
        pairs, c = angles.shape[-1], self.model.config
        first, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
        if c.rope_pairs == "adjacent":
            spun = torch.view_as_complex(first.unflatten(-1, (pairs, 2)).contiguous()) * torch.exp(1j * angles)
            return torch.cat((torch.view_as_real(spun).flatten(-2), rest), -1)
        spun = torch.complex(first[..., :pairs].contiguous(), first[..., pairs:].contiguous()) * torch.exp(1j * angles)
        return torch.cat((spun.real, spun.imag, rest), -1)

    def angles(self, name, count):
        entry = self.notation.find("θ", name)
        return self.values[entry.name].double()

    def bucket(self, distance, name):
        """T5's rule, from its paper: half the buckets are exact, the others logarithmic up to the largest distance."""
        path = self.notation.own[name].rpartition(".")[0]
        scheme = self.model.get_submodule(path.removesuffix(".next"))
        both, most = scheme.both, scheme.max_distance
        buckets = scheme.table.shape[1] // (2 if both else 1)
        far, exact = (distance.abs() if both else (-distance).clamp(min=0)), buckets // 2
        # in float32, as T5 computes it
        wide = (far.clamp(min=1).float() / exact).log() / math.log(most / exact) * (buckets - exact)
        out = torch.where(far < exact, far, (exact + wide.long()).clamp(max=buckets - 1).double())
        return out + (distance > 0) * buckets if both else out

    def stretched(self, word, frequency):
        c, n = self.model.config, len(frequency)
        factor, trained = c.rope_factor, c.rope_original_context or round(c.context / c.rope_factor)
        if word == "linear":
            return frequency / factor
        if word == "ntk":
            base = c.rope_theta * factor ** (2 * n / (2 * n - 2))
            return base ** (-torch.arange(n).double() / n)
        if word == "llama3":
            waves = 2 * math.pi / frequency
            smooth = ((trained / waves - 1) / 3).clamp(0, 1)
            return (1 - smooth) * frequency / factor + smooth * frequency
        turns = lambda r: n * math.log(trained / (r * 2 * math.pi)) / math.log(c.rope_theta)  # noqa: E731
        low, high = max(math.floor(turns(32)), 0), min(math.ceil(turns(1)), 2 * n - 1)
        ramp = ((torch.arange(n).double() - low) / max(high - low, 1e-3)).clamp(0, 1)
        return frequency / factor * ramp + frequency * (1 - ramp)

    def regrouped(self, word, x, name):
        raise NotImplementedError


SIMPLE = {
    "softmax": lambda x: (
        (x - x.amax(-1, keepdim=True)).exp() / (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)
    ),
    "GELU": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "GELU_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "ReLU": lambda x: x.clamp(min=0),
    "SiLU": lambda x: x / (1 + torch.exp(-x)),
    "tanh": torch.tanh,
    "sin": torch.sin,
    "cos": torch.cos,
    "mean": lambda x: x.mean(1),
    "concat": lambda x: torch.cat(list(x.unbind(1)), -1),
}


def slopes(heads):
    """ALiBi's, by its paper: a geometric sequence, and for other numbers of heads every other one of the next."""
    power = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    more = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return torch.tensor([*first, *more[: heads - power]]).double()
