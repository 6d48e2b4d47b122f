"""Small worked examples built from the models' own parts, each a trace in double precision."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import UserError, nearest
from ...core.attention import Attention, attend
from ...core.blocks import AdaBlock, AdaNormBlock
from ...core.embed import Patches, TimestepEmbedding
from ...core.layers import MLP, LayerNorm, gelu_tanh
from ...core.masks import Mask, causal, full
from ...core.positions import T5, Sinusoidal
from ...core.probe import OFF, Probe
from ...core.span import Span
from ...inference.text_batches import token_label
from ...models.captioner import Captioner, CaptionerConfig
from ...models.gpt import GPT, GPTConfig
from ...models.seq2seq import Seq2Seq, Seq2SeqConfig
from ...tracing.live_trace import LiveTrace, trace
from ...tracing.step import StepTrace, trace_step
from ...tracing.trace import Trace
from .caches import kv_caches
from .recurrent import rnn


def set_weight(parameter: Any, values: Any) -> None:
    with torch.no_grad():
        parameter.copy_(torch.as_tensor(np.asarray(values, dtype=float)))


def one_decimal(model: Any, seed: int) -> Any:
    """The model with weights of one decimal; those that scale a norm are near 1."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    for name, parameter in model.named_parameters():
        drawn = np.round(rng.normal(0, 0.5, parameter.shape), 1)
        set_weight(parameter, 1 + drawn / 5 if "norm" in name and name.endswith("weight") else drawn)
    return model.eval()


class VitByHand(nn.Module):
    """Self-attention with two heads over four patches of a 4×4 image and a class token; no norm, no MLP."""

    NAMES = {
        "input": ("B T D", "Z⁰", "[z_cls; z] + P"),
        "out": ("B T D", "Z′", "Z⁰ + O"),
    }
    INNER = {"patches.out": ("B N D", "z", "X_patch Eᵀ")}
    WEIGHTS = {"cls": "z_cls", "positions": "P", "patches.proj.weight": "Eᵀ"}
    SYMBOLS = {"attn": {"X_q": "Z⁰", "X_kv": "Z⁰"}}
    INPUTS = {"picture": "X_img"}

    def __init__(self):
        super().__init__()
        self.patches = Patches(1, (2, 2), 4, bias=False)
        self.attn = Attention(4, 2, bias=False)
        self.cls, self.positions = nn.Parameter(torch.empty(1, 1, 4)), nn.Parameter(torch.empty(5, 4))
        self.double()
        set_weight(self.patches.proj.weight, [[1, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 0, 0.25], [0.1, 0.1, 0.1, 0.1]])
        set_weight(self.cls, [[[0.5] * 4]])
        set_weight(self.positions, [[0.1, 0, 0, 0], [0, 0.1, 0, 0], [0, 0, 0.1, 0], [0, 0, 0, 0.1], [0.05] * 4])
        set_weight(self.attn.qkv.weight, np.concatenate([np.eye(4)] * 3))
        set_weight(self.attn.out.weight, np.eye(4))

    def forward(self, picture: Tensor, probe: Probe = OFF) -> Tensor:
        patches = self.patches(picture, probe / "patches")
        x = probe("input", torch.cat((self.cls, patches), 1) + self.positions)
        return probe("out", x + self.attn(x, Span.whole(5).under(full), probe=probe / "attn"))


_PATCHES = {"first_patch": 1, "grid": [2, 2]}


def vit_4x4() -> LiveTrace:
    """A 4×4 image through one attention of two heads, with numbers for work by hand."""
    tokens = ["cls", "patch 1", "patch 2", "patch 3", "patch 4"]
    picture = torch.arange(1, 17, dtype=torch.float64).reshape(1, 1, 4, 4)
    return trace(VitByHand(), picture, words={"T": tokens, "S": tokens, "N": tokens[1:]}, facts=_PATCHES)


class TagAttention(nn.Module):
    """Attention over queries, keys and values; the names are those of document 000."""

    NAMES = {name: Attention.NAMES[name] for name in ("raw_scores", "scores", "pattern", "z")}
    INPUTS = {"want": "Q", "have": "K", "give": "V"}
    INPUT_AXES = {"want": "B h T d", "have": "B h S d", "give": "B h S d"}

    def forward(self, want: Tensor, have: Tensor, give: Tensor, probe: Probe = OFF) -> Tensor:
        return probe("z", attend(want, have, give, probe=probe))


def _trace_vectors(queries: Any, keys: Any, values: Any, rows: list[str], columns: list[str]) -> LiveTrace:
    inputs = (torch.tensor(part, dtype=torch.float64)[None, None] for part in (queries, keys, values))
    return trace(TagAttention(), *inputs, words={"T": rows, "S": columns})


def pencil_attention() -> LiveTrace:
    """Two strips, tags of width 4: match, scale, softmax, weighted sum."""
    queries, keys, values = [[2, 0, 1, 0], [0, 0, 2, 0]], [[1, 0, 0, 0], [3, 0, 2, 0]], [[2, 0, 0, 1], [0, 3, 1, 0]]
    return _trace_vectors(queries, keys, values, ["s1", "s2"], ["s1", "s2"])


def soft_lookup() -> LiveTrace:
    """One query and three keys in the plane, similar, opposite and at a right angle: a weighted sum of their values."""
    keys, values = [[0.9, 0.5], [-1.7, -1.2], [-0.8, 1.2]], [[2.0, 1.0], [-1.0, 2.0], [1.0, -2.0]]
    return _trace_vectors([[1.2, 0.8]], keys, values, ["q"], ["k1", "k2", "k3"])


class Stamps(nn.Module):
    """The sinusoidal embedding of each position, added to the row that stands there."""

    NAMES = {"out": ("B T D", "x′", "x + P")}
    INPUTS = {"strip": "x"}
    INPUT_AXES = {"strip": "B T D"}

    def __init__(self):
        super().__init__()
        self.positions = Sinusoidal(4)

    def forward(self, strip: Tensor, probe: Probe = OFF) -> Tensor:
        stamped, _ = self.positions(strip, Span.whole(strip.shape[1]), probe / "positions")
        return probe("out", stamped)


def pencil_stamps() -> LiveTrace:
    """The stamps of seats 0, 1 and 2 at width 4, each added to a strip of four twos."""
    seats = [f"seat {i}" for i in range(3)]
    return trace(Stamps(), torch.full((1, 3, 4), 2.0, dtype=torch.float64), words={"T": seats})


class TameOneStrip(nn.Module):
    """LayerNorm of each row alone, line by line; `out` is what the models' own LayerNorm gives."""

    NAMES = {
        "middle": ("B T 1", "μ", "mean(x)"),
        "differences": ("B T D", "Δ", "x − μ"),
        "average_square": ("B T 1", "σ²", "mean((x − μ)²)"),
        "x_n": ("B T D", "x_n", "(x − μ)/√(σ² + ε)"),
        "out": ("B T D", "LN(x)", "γ·x_n + β"),
    }
    INPUTS = {"strip": "x"}
    INPUT_AXES = {"strip": "B T D"}
    WEIGHTS = {"norm.weight": "γ", "norm.bias": "β"}

    def __init__(self):
        super().__init__()
        self.norm: Any = LayerNorm(4, eps=1e-6)
        self.double()

    def forward(self, strip: Tensor, probe: Probe = OFF) -> Tensor:
        middle = probe("middle", strip.mean(-1, keepdim=True))
        differences = probe("differences", strip - middle)
        average_square = probe("average_square", (differences * differences).mean(-1, keepdim=True))
        x_n = probe("x_n", differences / (average_square + self.norm.eps).sqrt())
        return probe("out", self.norm.weight * x_n + self.norm.bias)


def pencil_layernorm() -> LiveTrace:
    """LayerNorm of one strip, [50, 60, 40, 30], with γ at 1, β at 0 and ε of a millionth."""
    strip = torch.tensor([[[50, 60, 40, 30]]], dtype=torch.float64)
    return trace(TameOneStrip(), strip, words={"T": ["strip"]})


class MaskedPortions(nn.Module):
    """Queries and keys under the causal mask, up to the portions."""

    NAMES = {name: Attention.NAMES[name] for name in ("raw_scores", "scores", "pattern")} | {
        "mask": ("B 1 T S", "M", "")
    }
    INPUTS = {"want": "Q", "have": "K"}

    def forward(self, want: Tensor, have: Tensor, probe: Probe = OFF) -> Tensor:
        return attend(want, have, have, Span.whole(want.shape[2]).under(causal).seen, probe=probe)


def pencil_mask() -> LiveTrace:
    """Three tokens with equal scores under the causal mask: portions of 1, one half each, one third each."""
    tokens = [f"token {i}" for i in (1, 2, 3)]
    tag = torch.ones(1, 1, 3, 1, dtype=torch.float64)
    return trace(MaskedPortions(), tag, tag.clone(), words={"T": tokens, "S": tokens})


def nanogpt_block() -> LiveTrace:
    """Four words through one block of a GPT of width 8 with one head: every line of the notation once."""
    words = ["the", "cat", "sat", "on", "a", "mat"]
    model = GPT(
        GPTConfig(vocab=6, context=4, width=8, depth=1, heads=1, hidden=16, positions="learned", bias=True)
    ).double()
    seen = words[:4]
    labels = {"T": seen, "S": seen, "V": words}
    return trace(one_decimal(model, 1), torch.arange(4)[None], words=labels, targets=torch.arange(1, 5)[None])


IMAGE_WORDS = ["begin", "a", "dark", "square", "light"]


def _captioner(**variant: Any) -> Captioner:
    """A captioner of a 4×4 image in four patches and three words, as document 001 has it but for its variants."""
    plain: dict[str, Any] = dict(mask="causal", positions="learned", type_embeddings=False, delimiters="none")
    sizes = dict(image_size=(4, 4), channels=1, patch=(2, 2), vocab=5, context=3, width=8, depth=1, heads=1, hidden=16)
    return Captioner(CaptionerConfig(**sizes, bias=True, **{**plain, **variant})).double()


def _image_and_words() -> tuple[Tensor, Tensor]:
    """The three words that are read, and the image."""
    return torch.arange(3)[None], torch.arange(16, dtype=torch.float64).reshape(1, 1, 4, 4) / 10


def vit_text() -> LiveTrace:
    """A 4×4 image in four patches, then three words, in one sequence: text attends to the image, not the reverse."""
    words, patches = IMAGE_WORDS, [f"patch {i + 1}" for i in range(4)]
    model, (tokens, picture) = _captioner(), _image_and_words()
    sequence = patches + words[:3]
    labels = {"T": sequence, "S": sequence, "N": patches, "M": patches, "t": words[:3], "V": words}
    facts = {**_PATCHES, "first_patch": 0, "first_word": len(patches)}
    return trace(one_decimal(model, 2), tokens, picture, words=labels, facts=facts, targets=tokens + 1)


class Variants(nn.Module):
    """One image and its words through three captioners: two masks over the same weights, and every other variant."""

    INPUTS = {"tokens": "t", "picture": "X_img"}

    def __init__(self):
        super().__init__()
        self.causal, self.prefix = _captioner(mask="causal"), _captioner(mask="prefix")
        self.delimited = _captioner(
            mask="prefix",
            delimiters="both",
            delimiter_positions=True,
            type_embeddings=True,
            image_width=6,
            text_width=5,
        )

    def forward(self, tokens: Tensor, picture: Tensor, probe: Probe = OFF) -> tuple[Tensor, ...]:
        models = self.causal, self.prefix, self.delimited
        names = "causal", "prefix", "delimited"
        return tuple(model(tokens, picture, probe=probe / name) for name, model in zip(names, models, strict=True))


def vit_text_variants() -> LiveTrace:
    """The variants of document 001: a causal and a prefix mask side by side, over the same weights; and in
    `delimited` [IMG] and [/IMG] around the patches, type embeddings, and projections of patches and words."""
    model = Variants()
    one_decimal(model.causal, 2)
    model.prefix.load_state_dict(model.causal.state_dict())
    one_decimal(model.delimited, 11)
    words, patches = IMAGE_WORDS, [f"patch {i + 1}" for i in range(4)]
    between = ["[IMG]", *patches, "[/IMG]"]
    labels = {"N": patches, "t": words[:3], "V": words, "M": patches, "delimited.M": between}
    for letter in "TS":
        labels |= {letter: patches + words[:3], f"delimited.{letter}": between + words[:3]}
    return trace(model.eval(), *_image_and_words(), words=labels)


DEVIATIONS = (4, 16, 64, 256, 1024)  # widths for which the standard deviation of scores is measured
SENTENCE = ["The", "cat", "sat", "on", "the", "mat"]


def _drawn() -> dict[str, Any]:
    """The random numbers of the demonstration, in the order its program draws them."""
    rng = np.random.RandomState(42)
    x = rng.randn(6, 8)
    value = [rng.randn(8, 4) * 0.5 for _ in range(3)]
    curve = []
    for width in DEVIATIONS:
        q, k = rng.randn(1000, width), rng.randn(1000, width)
        products = (q * k).sum(1)
        curve.append((width, float(products.std()), float((products / np.sqrt(width)).std())))
    heads = [[rng.randn(8, 2) * 0.5 for _ in range(4)] for _ in range(3)]
    return {"x": x, "one": value, "curve": curve, "heads": heads, "out": rng.randn(8, 8) * 0.5}


def deviations() -> list[tuple[int, float, float]]:
    """Head width, standard deviation of the dot products, and of the scaled ones."""
    return _drawn()["curve"]


class OneAndMany(nn.Module):
    """The same six tokens through one head of width 4, and through four heads of width 2."""

    SYMBOLS = {path: {"X_q": "X", "X_kv": "X"} for path in ("one", "many")}
    INPUTS = {"x": "X"}
    INPUT_AXES = {"x": "B T D"}

    def __init__(self):
        super().__init__()
        drawn = _drawn()
        self.one = Attention(8, 1, head_width=4, bias=False)
        self.many = Attention(8, 4, bias=False)
        self.double()
        set_weight(self.one.qkv.weight, np.concatenate([w.T for w in drawn["one"]]))
        set_weight(self.one.out.weight, np.eye(8, 4))  # the output of the one head is not projected
        set_weight(self.many.qkv.weight, np.concatenate([w.T for part in drawn["heads"] for w in part]))
        set_weight(self.many.out.weight, drawn["out"].T)

    def forward(self, x: Tensor, probe: Probe = OFF) -> tuple[Tensor, Tensor]:
        span = Span.whole(x.shape[1]).under(full)
        return self.one(x, span, probe=probe / "one"), self.many(x, span, probe=probe / "many")


def mha_demo() -> LiveTrace:
    """Six random words through one head, and through four heads."""
    labels = {"T": SENTENCE, "S": SENTENCE}
    return trace(OneAndMany(), torch.from_numpy(_drawn()["x"])[None], words=labels, facts={"curve": deviations()})


class PrefillAndDecode(nn.Module):
    """Three tokens fill the cache (prefill); then one more computes only its own key and value (decode)."""

    def __init__(self, model: GPT):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, next: Tensor, probe: Probe = OFF) -> Tensor:
        cache = self.model.new_cache(1, 4)
        self.model(tokens, cache=cache, probe=probe / "read")
        return self.model(next, cache=cache, probe=probe / "next")


def kv_cache() -> LiveTrace:
    """Generation with a KV cache: the keys and values of three words, and the row that the fourth adds."""
    words = ["the", "cat", "sat", "on"]
    model = GPT(GPTConfig(vocab=4, context=4, width=4, depth=1, heads=1, hidden=8, positions="learned")).double()
    inputs = torch.arange(3)[None], torch.tensor([[3]])
    labels = {"S": words, "T": words[:3], "next.T": words[3:], "V": words}
    return trace(PrefillAndDecode(one_decimal(model, 3)), *inputs, words=labels)


def original_transformer() -> LiveTrace:
    """An encoder of three words and a decoder of three: the three kinds of attention, with post-norm blocks."""
    words = ["begin", "the", "cat", "sleeps", "die", "Katze", "schläft"]
    model = Seq2Seq(
        Seq2SeqConfig(
            vocab=7,
            context=3,
            source_context=3,
            width=8,
            depth=1,
            heads=2,
            hidden=16,
            norm_position="post",
            activation="relu",
            bias=True,
            positions="sinusoidal",
            scale_embeddings=True,
        )
    ).double()
    source, target = words[1:4], [words[0], *words[4:6]]
    source_tokens, target_tokens = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 4, 5, 6]])
    labels = {"s": source, "T": target, "S": target, "V": words}
    targets = target_tokens[:, 1:]
    return trace(one_decimal(model, 4), target_tokens[:, :3], source_tokens, words=labels, targets=targets)


TIMESTEP = 3


class Conditioned(nn.Module):
    """A timestep to a condition, and two patches through one block whose norms it sets."""

    NAMES = {"condition": ("B D", "c", "c_t")}
    INPUTS = {"timestep": "t", "x": "X"}
    INPUT_AXES = {"x": "B T D"}
    SYMBOLS = {"block": {"Xˡ⁻¹": "X", "Xˡ": "X_out"}}

    def __init__(self, block: Callable[..., nn.Module]):
        super().__init__()
        self.time = TimestepEmbedding(4, frequencies=4)
        self.block = block(
            lambda: Attention(4, 1),
            lambda: MLP(4, 8, gelu_tanh),
            lambda: LayerNorm(4, 1e-6, bias=False, scale=False),
            4,
        )

    def forward(self, x: Tensor, timestep: Tensor, probe: Probe = OFF) -> Tensor:
        condition = probe("condition", self.time(timestep, probe / "time"))
        return self.block(x, Span.whole(x.shape[1]).under(full), condition, probe / "block")


def _conditioned(block: Callable[..., nn.Module]) -> LiveTrace:
    model = one_decimal(Conditioned(block).double(), 5)
    patches = torch.tensor([[[1.0, -0.5, 0.2, 0.8], [0.0, 1.5, -1.0, 0.5]]], dtype=torch.float64)
    return trace(model, patches, torch.tensor([TIMESTEP]), words={"T": ["s1", "s2"], "S": ["s1", "s2"]})


def adaln() -> LiveTrace:
    """adaLN: the timestep's cosines and sines go through an MLP, which gives each norm of a block its γ and β."""
    return _conditioned(AdaNormBlock)


def adaln_zero() -> LiveTrace:
    """adaLN-Zero: the timestep also gates what attention and MLP add; a scale is 1 + γ, and training starts at 0."""
    return _conditioned(AdaBlock)


WORDS = ["the", "cat", "sat", "on"]


def _model(heads: int, **positions: Any) -> GPT:
    return GPT(GPTConfig(vocab=4, context=4, width=4, depth=1, heads=heads, hidden=8, **positions))


def _traced(model: GPT, seed: int) -> LiveTrace:
    words = {"T": WORDS, "S": WORDS, "V": WORDS}
    return trace(one_decimal(model.double(), seed), torch.arange(4)[None], words=words)


def rope() -> LiveTrace:
    """RoPE: queries and keys of four words, each pair of neighbouring channels rotated by an angle that grows with the
    position. Compare q_unrotated with q; the scores depend on the distance alone."""
    return _traced(_model(1, positions="rope", rope_pairs="adjacent"), 6)


def alibi() -> LiveTrace:
    """ALiBi: two heads over four words; each subtracts its slope from a score, once for every step to the key."""
    return _traced(_model(2, positions="alibi"), 7)


def shaw() -> LiveTrace:
    """Shaw's relative positions: a learned vector for each distance is added to the key; distances over 2 are
    clipped."""
    return _traced(_model(1, positions="shaw", max_distance=2), 8)


def t5() -> LiveTrace:
    """T5's relative positions: a learned number for each head and bucket of distances is added to the score, which is
    not divided by √d. Of its four buckets two hold one distance each, the others several."""
    model = _model(2, positions="t5")
    # the 32 buckets of a model of full size hold one distance each, up to 15
    model.positions = T5(2, both=False, buckets=4, max_distance=8)
    return _traced(model, 9)


FRAMES, ROWS, COLUMNS = 2, 2, 2  # patches of the small video along time, height and width


def _same_frame(query: Tensor, key: Tensor) -> Tensor:
    return (query >= ROWS * COLUMNS) == (key >= ROWS * COLUMNS)


def _same_position(query: Tensor, key: Tensor) -> Tensor:
    return query % (ROWS * COLUMNS) == key % (ROWS * COLUMNS)


def _same_window(query: Tensor, key: Tensor) -> Tensor:
    """A window has one row of patches, in both frames."""
    return (query % (ROWS * COLUMNS) >= COLUMNS) == (key % (ROWS * COLUMNS) >= COLUMNS)


class VideoAttention(nn.Module):
    """Two frames of 2×2 patches, and which of them may attend to one another: all, those of the same frame, those at
    the same position, or those of the same window."""

    INNER = {"patches.out": ("B N D", "X", "X_patch Eᵀ")}
    WEIGHTS = {"patches.proj.weight": "Eᵀ"}
    INPUTS = {"video": "X_video"}
    MASKS = {
        "full": full,
        "spatial": Mask("spatial", _same_frame, words="i and j are of one frame"),
        "temporal": Mask("temporal", _same_position, words="i and j are at one position"),
        "windowed": Mask("windowed", _same_window, words="i and j are of one window"),
    }
    SYMBOLS = {name: {"X_q": "X", "X_kv": "X", "SEEN": mask.words} for name, mask in MASKS.items()}

    def __init__(self):
        super().__init__()
        self.patches = Patches(1, (1, 2, 2), 4, bias=False)
        for name in self.MASKS:
            setattr(self, name, Attention(4, 1, bias=False))

    def forward(self, video: Tensor, probe: Probe = OFF) -> Tensor:
        patches = self.patches(video, probe / "patches")
        span = Span.whole(FRAMES * ROWS * COLUMNS)
        outputs = [
            getattr(self, name)(patches, span.under(mask), probe=probe / name) for name, mask in self.MASKS.items()
        ]
        return torch.stack(outputs).sum(0)


def video_attention() -> LiveTrace:
    """A video of two frames in 2×2 patches, through full, spatial, temporal and windowed attention with the same
    weights: the four tables of weights side by side."""
    model = one_decimal(VideoAttention().double(), 11)
    for name in ("spatial", "temporal", "windowed"):
        getattr(model, name).load_state_dict(model.full.state_dict())
    frame = torch.tensor([[0, 3, 1, 0], [2, 5, 1, 0], [0, 4, 0, 1], [1, 0, 2, 0]], dtype=torch.float64)
    video = torch.stack((frame, frame.roll((1, 1), (0, 1))))[None, None] / 5  # it moves down and to the right
    patches = [f"frame {z + 1}, patch {n + 1}" for z in range(FRAMES) for n in range(ROWS * COLUMNS)]
    return trace(model, video, words={"T": patches, "S": patches, "N": patches})


ANIMAL_AND_STREET = "The animal did not cross the street because it was too wide."


def english_sentence() -> LiveTrace:
    """A sentence of document 003 in the small model of English that comes with Pencil: which words each head attends
    to. It is too small to have learnt what "it" stands for; `pencil heads example:english --relations` measures it."""
    from ...api.loading import load  # the other examples need no run

    loaded = load("example:english", dtype="float64")
    ids = loaded.tokenizer.encode(ANIMAL_AND_STREET).tolist()
    words = [token_label(loaded.tokenizer, i) for i in ids]
    return trace(loaded.model, torch.tensor([ids]), words={"T": words, "S": words})


def mean_cross_entropy(model: GPT, tokens: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def training_step() -> StepTrace:
    """One training step on "the cat", followed by "cat" and "sat": a GPT of one block of width 4, its loss, the
    gradient of every number, clipping to a norm of 1, and the first update of AdamW."""
    words = ["the", "cat", "sat"]
    model = GPT(GPTConfig(vocab=3, context=2, width=4, depth=1, heads=1, hidden=5, positions="learned")).double()
    optimizer = torch.optim.AdamW(one_decimal(model, 12).parameters(), lr=0.1, weight_decay=0.1, fused=True)
    batch = torch.tensor([[0, 1]]), torch.tensor([[1, 2]])
    labels = {"T": words[:2], "S": words[:2], "V": words}
    return trace_step(model, mean_cross_entropy, batch, optimizer, clip=1.0, labels=labels)


EXAMPLES: dict[str, Callable[[], Trace]] = {
    "vit-4x4": vit_4x4,
    "pencil-stamps": pencil_stamps,
    "pencil-attention": pencil_attention,
    "pencil-layernorm": pencil_layernorm,
    "pencil-mask": pencil_mask,
    "nanogpt-block": nanogpt_block,
    "vit-text": vit_text,
    "vit-text-variants": vit_text_variants,
    "mha-demo": mha_demo,
    "kv-cache": kv_cache,
    "kv-caches": kv_caches,
    "original-transformer": original_transformer,
    "adaln": adaln,
    "adaln-zero": adaln_zero,
    "rope": rope,
    "alibi": alibi,
    "shaw": shaw,
    "t5": t5,
    "soft-lookup": soft_lookup,
    "video-attention": video_attention,
    "english-sentence": english_sentence,
    "rnn": rnn,
    "training-step": training_step,
}


def example(name: str) -> Trace:
    """The trace of a worked example."""
    if name not in EXAMPLES:
        raise UserError(f"there is no example {name}; {nearest(name, EXAMPLES)}")
    return EXAMPLES[name]()
