"""Small worked examples built of the real parts, each a runnable trace in double precision."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..config import UserError, nearest
from ..core.attention import Attention, attend
from ..core.blocks import AdaBlock
from ..core.embed import Patches
from ..core.layers import MLP, LayerNorm, gelu_tanh
from ..core.masks import full
from ..core.probe import OFF, Off
from ..core.span import Span
from ..models.captioner import Captioner, CaptionerConfig
from ..models.gpt import GPT, GPTConfig
from ..models.seq2seq import Seq2Seq, Seq2SeqConfig
from ..tracing.record import LiveTrace, trace


def _set(parameter: Any, values: Any) -> None:
    with torch.no_grad():
        parameter.copy_(torch.as_tensor(np.asarray(values, dtype=float)))


class VitByHand(nn.Module):
    """Four strips of a 4×4 picture and a class token look at one another with two heads; no norm, no MLP."""

    NAMES = {
        "input": ("B T D", "Z⁰", "[cls; z] + P"),
        "out": ("B T D", "Z′", "Z⁰ + MSA"),
    }
    INNER = {"patches.out": ("B N D", "z", "patch Eᵀ")}
    WEIGHTS = {"cls": "z_cls", "seats": "P"}

    def __init__(self):
        super().__init__()
        self.patches = Patches(1, (2, 2), 4, bias=False)
        self.attn = Attention(4, 2, bias=False)
        self.cls, self.seats = nn.Parameter(torch.empty(1, 1, 4)), nn.Parameter(torch.empty(5, 4))
        self.double()
        _set(self.patches.proj.weight, [[1, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 0, 0.25], [0.1, 0.1, 0.1, 0.1]])
        _set(self.cls, [[[0.5] * 4]])
        _set(self.seats, [[0.1, 0, 0, 0], [0, 0.1, 0, 0], [0, 0, 0.1, 0], [0, 0, 0, 0.1], [0.05] * 4])
        _set(self.attn.qkv.weight, np.concatenate([np.eye(4)] * 3))
        _set(self.attn.out.weight, np.eye(4))

    def forward(self, picture: Tensor, probe: Off = OFF) -> Tensor:
        strips = self.patches(picture, probe / "patches")
        x = probe("input", torch.cat((self.cls, strips), 1) + self.seats)
        return probe("out", x + self.attn(x, Span.whole(5).under(full), probe=probe / "attn"))


_STRIPS = {"strips": 1, "grid": [2, 2]}


def vit_4x4() -> LiveTrace:
    """A 4×4 picture through one attention of two heads, in numbers a pencil can follow."""
    seats = ["cls", "strip 1", "strip 2", "strip 3", "strip 4"]
    picture = torch.arange(1, 17, dtype=torch.float64).reshape(1, 1, 4, 4)
    return trace(VitByHand(), picture, words={"T": seats, "S": seats, "N": seats[1:]}, facts=_STRIPS)


class Looking(nn.Module):
    """Given wants, haves and gives look at one another: attention with nothing around it."""

    NAMES = {name: Attention.NAMES[name] for name in ("scores", "pattern")} | {"z": ("B h T d", "H", "A V")}

    def forward(self, want: Tensor, have: Tensor, give: Tensor, probe: Off = OFF) -> Tensor:
        return probe("z", attend(want, have, give, probe=probe))


def pencil_attention() -> LiveTrace:
    """Two strips, tags of width 4: match, scale, softmax, weighted sum."""
    want, have, give = (
        torch.tensor(rows, dtype=torch.float64)[None, None]
        for rows in (
            [[2, 0, 1, 0], [0, 0, 2, 0]],
            [[1, 0, 0, 0], [3, 0, 2, 0]],
            [[2, 0, 0, 1], [0, 3, 1, 0]],
        )
    )
    strips = ["s1", "s2"]
    return trace(Looking(), want, have, give, words={"T": strips, "S": strips})


def _penciled(model: Any, seed: int) -> Any:
    """Weights of one decimal, so that they can be written down."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    for name, parameter in model.named_parameters():
        drawn = np.round(rng.normal(0, 0.5, parameter.shape), 1)
        _set(parameter, 1 + drawn / 5 if "norm" in name and name.endswith("weight") else drawn)
    return model.eval()


def nanogpt_block() -> LiveTrace:
    """Four words through one block of a GPT, 8 numbers wide, one head: every line of the notation once."""
    words = ["the", "cat", "sat", "on", "a", "mat"]
    model = GPT(
        GPTConfig(vocab=6, context=4, width=8, depth=1, heads=1, hidden=16, positions="learned", bias=True)
    ).double()
    seen = words[:4]
    return trace(_penciled(model, 1), torch.arange(4)[None], words={"T": seen, "S": seen, "V": words})


def vit_text() -> LiveTrace:
    """A 4×4 picture in four strips, then three words, one stream: the text sees the picture, never the other way."""
    words = ["begin", "a", "dark", "square", "light"]
    model = Captioner(
        CaptionerConfig(
            image_size=(4, 4), channels=1, patch=(2, 2), vocab=5, context=3, width=8, depth=1, heads=1, hidden=16,
            mask="causal", positions="learned", types=False, delimiters=False, bias=True,
        )
    ).double()  # fmt: skip
    picture = torch.arange(16, dtype=torch.float64).reshape(1, 1, 4, 4) / 10
    strips = [f"strip {i + 1}" for i in range(4)]
    stream = strips + words[:3]
    labels = {"T": stream, "S": stream, "N": strips, "M": strips, "t": words[:3], "V": words}
    facts = {**_STRIPS, "strips": 0}
    return trace(_penciled(model, 2), torch.arange(3)[None], picture, words=labels, facts=facts)


DEVIATIONS = (4, 16, 64, 256, 1024)  # widths at which the deviation of scores is measured
SENTENCE = ["The", "cat", "sat", "on", "the", "mat"]


def _drawn() -> dict[str, Any]:
    """The demonstration's numbers, in the order its program draws them."""
    rng = np.random.RandomState(42)
    x = rng.randn(6, 8)
    one = [rng.randn(8, 4) * 0.5 for _ in range(3)]
    curve = []
    for width in DEVIATIONS:
        q, k = rng.randn(1000, width), rng.randn(1000, width)
        dots = (q * k).sum(1)
        curve.append((width, float(dots.std()), float((dots / np.sqrt(width)).std())))
    heads = [[rng.randn(8, 2) * 0.5 for _ in range(4)] for _ in range(3)]
    return {"x": x, "one": one, "curve": curve, "heads": heads, "out": rng.randn(8, 8) * 0.5}


def deviations() -> list[tuple[int, float, float]]:
    """Tag width, deviation of the plain dot products, and of the scaled ones."""
    return _drawn()["curve"]


class OneAndMany(nn.Module):
    """The same six tokens through one head of width 4, and through four heads of width 2."""

    def __init__(self):
        super().__init__()
        drawn = _drawn()
        self.one = Attention(8, 1, head_width=4, bias=False)
        self.many = Attention(8, 4, bias=False)
        self.double()
        _set(self.one.qkv.weight, np.concatenate([w.T for w in drawn["one"]]))
        _set(self.one.out.weight, np.eye(8, 4))  # the one head's output is read as it is
        _set(self.many.qkv.weight, np.concatenate([w.T for part in drawn["heads"] for w in part]))
        _set(self.many.out.weight, drawn["out"].T)

    def forward(self, x: Tensor, probe: Off = OFF) -> tuple[Tensor, Tensor]:
        span = Span.whole(x.shape[1]).under(full)
        return self.one(x, span, probe=probe / "one"), self.many(x, span, probe=probe / "many")


def mha_demo() -> LiveTrace:
    """Six random words: one head, and four heads beside one another."""
    labels = {"T": SENTENCE, "S": SENTENCE}
    return trace(OneAndMany(), torch.from_numpy(_drawn()["x"])[None], words=labels, facts={"curve": deviations()})


class ReadThenWrite(nn.Module):
    """Three tokens are read into the cache; then one more needs only its own row of keys and values."""

    def __init__(self, model: GPT):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, next: Tensor, probe: Off = OFF) -> Tensor:
        cache = self.model.new_cache(1, 4)
        self.model(tokens, cache=cache, probe=probe / "read")
        return self.model(next, cache=cache, probe=probe / "next")


def kv_cache() -> LiveTrace:
    """Generation with a cache: what was kept of three words, and the one row that the fourth adds."""
    words = ["the", "cat", "sat", "on"]
    model = GPT(GPTConfig(vocab=4, context=4, width=4, depth=1, heads=1, hidden=8, positions="learned")).double()
    inputs = torch.arange(3)[None], torch.tensor([[3]])
    return trace(ReadThenWrite(_penciled(model, 3)), *inputs, words={"S": words, "T": words[:3], "V": words})


def original_transformer() -> LiveTrace:
    """Three words read by one stack, three written by another: attention in its three roles, a norm after each part."""
    words = ["begin", "the", "cat", "sleeps", "die", "Katze", "schläft"]
    model = Seq2Seq(
        Seq2SeqConfig(
            vocab=7, context=3, source_context=3, width=8, depth=1, heads=2, hidden=16, trunk="post", activation="relu",
            bias=True, positions="sincos", scaled=True,
        )
    ).double()  # fmt: skip
    source, target = words[1:4], [words[0], *words[4:6]]
    read, said = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 4, 5]])
    return trace(_penciled(model, 4), said, read, words={"s": source, "T": target, "S": target, "V": words})


class Conditioned(nn.Module):
    """Two strips through one block whose norms a condition sets, shifts and gates included."""

    def __init__(self):
        super().__init__()
        self.block = AdaBlock(
            lambda: Attention(4, 1),
            lambda: MLP(4, 8, gelu_tanh),
            lambda: LayerNorm(4, 1e-6, bias=False, scale=False),
            4,
        )

    def forward(self, x: Tensor, condition: Tensor, probe: Off = OFF) -> Tensor:
        return self.block(x, Span.whole(x.shape[1]).under(full), condition, probe / "block")


def adaln() -> LiveTrace:
    """Two strips at one moment of their noise: the clock sets the norms, scales them, and opens the gates."""
    model = _penciled(Conditioned().double(), 5)
    strips = torch.tensor([[[1.0, -0.5, 0.2, 0.8], [0.0, 1.5, -1.0, 0.5]]], dtype=torch.float64)
    clock = torch.tensor([[0.5, -1.0, 0.3, 0.7]], dtype=torch.float64)
    return trace(model, strips, clock, words={"T": ["s1", "s2"], "S": ["s1", "s2"]})


EXAMPLES: dict[str, Callable[[], LiveTrace]] = {
    "vit-4x4": vit_4x4,
    "pencil-attention": pencil_attention,
    "nanogpt-block": nanogpt_block,
    "vit-text": vit_text,
    "mha-demo": mha_demo,
    "kv-cache": kv_cache,
    "original-transformer": original_transformer,
    "adaln": adaln,
}


def example(name: str) -> LiveTrace:
    """The trace of a worked example."""
    if name not in EXAMPLES:
        raise UserError(f"there is no example {name}; {nearest(name, EXAMPLES)}")
    return EXAMPLES[name]()
