"""How many modules that Pencil does not know it records: torch.nn's own, blocks of the literature, other libraries' models.

    python benchmarks/foreign_modules.py                  a table of the refused, and the count
    python benchmarks/foreign_modules.py --all --only U   every module whose name contains U
    python benchmarks/foreign_modules.py --opaque         with operations that are not described as leaves

"recorded": `pencil.trace` gives what the module gives, and random cells of every operation, worked again, are what was
recorded but for rounding. Weights are random, sizes small, the inputs noise.
"""

import argparse
import contextlib
import importlib
import importlib.machinery
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pencil
from pencil.config import UserError

Case = Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]
CASES: dict[str, Case] = {}


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole(*shape: int, below: int = 29, seed: int = 0) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def add(name: str, make: Callable[[], Any], *inputs: Any, **given: Any) -> None:
    assert name not in CASES, name
    CASES[name] = lambda: (make(), inputs, given)


LINE, SQUARE, CUBE = noise(2, 6, 23), noise(2, 6, 14, 11), noise(2, 6, 5, 7, 6)
FLAT, WORDS = noise(3, 7, 12), whole(2, 7)

# ---- torch.nn

for name, make, given in (
    ("Linear", lambda: nn.Linear(12, 5), FLAT),
    ("Embedding", lambda: nn.Embedding(29, 5), WORDS),
    ("EmbeddingBag mean", lambda: nn.EmbeddingBag(29, 5), WORDS),
    ("EmbeddingBag sum", lambda: nn.EmbeddingBag(29, 5, mode="sum"), WORDS),
    ("EmbeddingBag max", lambda: nn.EmbeddingBag(29, 5, mode="max"), WORDS),
    ("Conv1d", lambda: nn.Conv1d(6, 5, 3, padding=1), LINE),
    ("Conv1d depthwise", lambda: nn.Conv1d(6, 6, 3, groups=6, padding=2), LINE),
    ("Conv2d", lambda: nn.Conv2d(6, 5, 3, stride=2), SQUARE),
    ("Conv2d grouped", lambda: nn.Conv2d(6, 9, 3, groups=3, padding=1), SQUARE),
    ("Conv2d depthwise dilated", lambda: nn.Conv2d(6, 12, 3, groups=6, dilation=2, padding=2), SQUARE),
    ("Conv3d", lambda: nn.Conv3d(6, 5, 3), CUBE),
    ("ConvTranspose1d", lambda: nn.ConvTranspose1d(6, 5, 4, stride=2, padding=1), LINE),
    ("ConvTranspose2d", lambda: nn.ConvTranspose2d(6, 5, 3, stride=2, output_padding=1), SQUARE),
    ("ConvTranspose2d grouped", lambda: nn.ConvTranspose2d(6, 9, 3, groups=3), SQUARE),
    ("ConvTranspose3d", lambda: nn.ConvTranspose3d(6, 5, 2, stride=2), CUBE),
    ("MaxPool1d", lambda: nn.MaxPool1d(3, padding=1), LINE),
    ("MaxPool2d", lambda: nn.MaxPool2d(3, 2, 1), SQUARE),
    ("MaxPool3d", lambda: nn.MaxPool3d(2), CUBE),
    ("AvgPool1d", lambda: nn.AvgPool1d(3), LINE),
    ("AvgPool2d", lambda: nn.AvgPool2d(3, 2, 1), SQUARE),
    ("AvgPool3d", lambda: nn.AvgPool3d(2), CUBE),
    ("LPPool2d", lambda: nn.LPPool2d(2, 3), SQUARE),
    ("AdaptiveAvgPool1d", lambda: nn.AdaptiveAvgPool1d(5), LINE),
    ("AdaptiveAvgPool2d", lambda: nn.AdaptiveAvgPool2d((7, 3)), SQUARE),
    ("AdaptiveAvgPool2d to 1", lambda: nn.AdaptiveAvgPool2d(1), SQUARE),
    ("AdaptiveAvgPool3d", lambda: nn.AdaptiveAvgPool3d(2), CUBE),
    ("AdaptiveMaxPool1d", lambda: nn.AdaptiveMaxPool1d(5), LINE),
    ("AdaptiveMaxPool2d", lambda: nn.AdaptiveMaxPool2d(3), SQUARE),
    ("FractionalMaxPool2d", lambda: nn.FractionalMaxPool2d(2, output_ratio=0.5), SQUARE),
    ("ReflectionPad2d", lambda: nn.ReflectionPad2d(2), SQUARE),
    ("ReplicationPad1d", lambda: nn.ReplicationPad1d(2), LINE),
    ("ReplicationPad2d", lambda: nn.ReplicationPad2d(2), SQUARE),
    ("CircularPad2d", lambda: nn.CircularPad2d(2), SQUARE),
    ("BatchNorm1d", lambda: nn.BatchNorm1d(6), LINE),
    ("BatchNorm2d", lambda: nn.BatchNorm2d(6), SQUARE),
    ("GroupNorm", lambda: nn.GroupNorm(3, 6), SQUARE),
    ("InstanceNorm1d", lambda: nn.InstanceNorm1d(6), LINE),
    ("InstanceNorm2d affine", lambda: nn.InstanceNorm2d(6, affine=True), SQUARE),
    ("LayerNorm", lambda: nn.LayerNorm(12), FLAT),
    ("RMSNorm", lambda: nn.RMSNorm(12), FLAT),
    ("LocalResponseNorm", lambda: nn.LocalResponseNorm(3), SQUARE),
    ("RNN", lambda: nn.RNN(12, 5, batch_first=True), FLAT),
    ("RNN relu, two layers", lambda: nn.RNN(12, 5, 2, nonlinearity="relu"), FLAT),
    ("GRU", lambda: nn.GRU(12, 5, batch_first=True), FLAT),
    ("GRU both ways", lambda: nn.GRU(12, 5, bidirectional=True), FLAT),
    ("LSTM", lambda: nn.LSTM(12, 5, batch_first=True), FLAT),
    ("LSTM both ways, two layers", lambda: nn.LSTM(12, 5, 2, bidirectional=True), FLAT),
    ("LSTM projected", lambda: nn.LSTM(12, 7, proj_size=5), FLAT),
    ("LSTMCell", lambda: nn.LSTMCell(12, 5), FLAT[0]),
    ("TransformerEncoder", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 17), 2), FLAT),
    ("PixelShuffle", lambda: nn.PixelShuffle(2), noise(2, 8, 5, 7)),
    ("PixelUnshuffle", lambda: nn.PixelUnshuffle(2), noise(2, 3, 6, 4)),
    ("ChannelShuffle", lambda: nn.ChannelShuffle(3), SQUARE),
    ("Fold of Unfold", lambda: lambda x: F.fold(F.unfold(x, 3, padding=1), (14, 11), 3, padding=1), SQUARE),
    ("Unfold", lambda: nn.Unfold(3, stride=2), SQUARE),
    ("Upsample nearest", lambda: nn.Upsample(scale_factor=2), SQUARE),
    ("Upsample nearest of a line", lambda: nn.Upsample(31), LINE),
    ("Upsample nearest of a cube", lambda: nn.Upsample(scale_factor=2), CUBE),
    ("Upsample nearest-exact", lambda: nn.Upsample((17, 19), mode="nearest-exact"), SQUARE),
    ("Upsample linear", lambda: nn.Upsample(31, mode="linear"), LINE),
    ("Upsample bilinear", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), SQUARE),
    ("Upsample bilinear, corners", lambda: nn.Upsample((17, 19), mode="bilinear", align_corners=True), SQUARE),
    ("Upsample bicubic", lambda: nn.Upsample((17, 19), mode="bicubic"), SQUARE),
    ("Upsample trilinear", lambda: nn.Upsample(scale_factor=2, mode="trilinear"), CUBE),
    ("downsample antialiased", lambda: lambda x: F.interpolate(x, (5, 7), mode="bilinear", antialias=True), SQUARE),
    ("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 5, 3)), LINE),
    ("spectral_norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(12, 5)), FLAT),
    ("Dropout", lambda: nn.Dropout(), FLAT),
    ("Softmax2d", lambda: nn.Softmax2d(), SQUARE),
):  # fmt: skip
    add(f"nn {name}", make, given)
for kind in (
    "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "ReLU", "ReLU6", "LeakyReLU", "PReLU", "RReLU", "Softplus",
    "Softsign", "Softshrink", "Hardshrink", "Tanhshrink", "Hardtanh", "Hardsigmoid", "Hardswish", "LogSigmoid",
    "Sigmoid", "Tanh", "GLU", "Softmax", "LogSoftmax", "Softmin",
):  # fmt: skip
    soft = {"dim": -1} if kind in ("Softmax", "LogSoftmax", "Softmin") else {}
    add(f"nn {kind}", lambda kind=kind, soft=soft: getattr(nn, kind)(**soft), FLAT)
add("nn Threshold", lambda: nn.Threshold(0.1, 2.0), FLAT)
add("nn Bilinear", lambda: nn.Bilinear(12, 12, 5), FLAT, FLAT)
add("nn MultiheadAttention", lambda: nn.MultiheadAttention(12, 3), FLAT, FLAT, FLAT)
add("nn Transformer", lambda: nn.Transformer(12, 3, 1, 1, 17), FLAT, FLAT)
add("nn CosineSimilarity", lambda: nn.CosineSimilarity(), FLAT, FLAT + 1)
add("nn PairwiseDistance", lambda: nn.PairwiseDistance(), FLAT, FLAT + 1)
add(
    "nn MaxUnpool2d", lambda: lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), noise(2, 6, 14, 10)
)
UNIT = noise(3, 5, seed=4).sigmoid()
for name, loss, *inputs in (
    ("CrossEntropyLoss", nn.CrossEntropyLoss(), noise(3, 5), whole(3, below=5)),
    ("CrossEntropyLoss of pixels", nn.CrossEntropyLoss(), noise(2, 5, 7, 3), whole(2, 7, 3, below=5)),
    ("CrossEntropyLoss weighted", nn.CrossEntropyLoss(torch.arange(1.0, 6)), noise(3, 5), whole(3, below=5)),
    ("L1Loss", nn.L1Loss(), noise(3, 5), UNIT),
    ("MSELoss", nn.MSELoss(), noise(3, 5), UNIT),
    ("SmoothL1Loss", nn.SmoothL1Loss(), noise(3, 5), UNIT),
    ("HuberLoss", nn.HuberLoss(), noise(3, 5), UNIT),
    ("BCELoss", nn.BCELoss(), noise(3, 5).sigmoid(), UNIT),
    ("BCEWithLogitsLoss", nn.BCEWithLogitsLoss(), noise(3, 5), UNIT),
    ("KLDivLoss", nn.KLDivLoss(), noise(3, 5).log_softmax(-1), UNIT.softmax(-1)),
    ("PoissonNLLLoss", nn.PoissonNLLLoss(), noise(3, 5), UNIT),
    ("GaussianNLLLoss", nn.GaussianNLLLoss(), noise(3, 5), UNIT, UNIT + 0.1),
    ("SoftMarginLoss", nn.SoftMarginLoss(), noise(3, 5), UNIT.sign()),
    ("MultiMarginLoss", nn.MultiMarginLoss(), noise(3, 5), whole(3, below=5)),
    ("TripletMarginLoss", nn.TripletMarginLoss(), noise(3, 5), UNIT, noise(3, 5, seed=1)),
    ("CTCLoss", nn.CTCLoss(), noise(11, 2, 5).log_softmax(-1), whole(2, 3, below=4) + 1, torch.tensor([11, 11]), torch.tensor([3, 3])),
):  # fmt: skip
    add(f"nn {name}", lambda loss=loss: loss, *inputs)

# ---- blocks of the literature, written here


class Block(nn.Module):
    """A module of parts and a function of it and its inputs."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module | Tensor):
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def squeeze_excite(m: Any, x: Tensor) -> Tensor:
    return x * m.up(F.relu(m.down(x.mean((2, 3), keepdim=True)))).sigmoid()


def convolved_attention(m: Any, x: Tensor) -> Tensor:
    x = (
        x
        * (m.mlp(F.adaptive_avg_pool2d(x, 1).flatten(1)) + m.mlp(F.adaptive_max_pool2d(x, 1).flatten(1))).sigmoid()[
            ..., None, None
        ]
    )
    return x * m.conv(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)).sigmoid()


def inverted_residual(expand: int = 4) -> nn.Module:
    wide = 6 * expand
    return nn.Sequential(
        nn.Conv2d(6, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish(),
        nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.BatchNorm2d(wide), nn.ReLU6(), nn.Conv2d(wide, 6, 1),
    )  # fmt: skip


def convnext(m: Any, x: Tensor) -> Tensor:
    y = m.norm(m.depth(x).permute(0, 2, 3, 1))
    return x + (m.scale * m.down(F.gelu(m.up(y)))).permute(0, 3, 1, 2)


def inception(m: Any, x: Tensor) -> Tensor:
    return torch.cat([m.one(x), m.three(x), m.pool(F.max_pool2d(x, 3, 1, 1))], 1)


def unet(m: Any, x: Tensor) -> Tensor:
    a = F.silu(m.norm(m.enter(x)))
    b = F.silu(m.down(F.max_pool2d(a, 2)))
    return m.leave(torch.cat([a, m.up(b)[..., : a.shape[-2], : a.shape[-1]]], 1))


def wavenet(m: Any, x: Tensor) -> Tensor:
    y = m.conv(F.pad(x, (4, 0)))
    a, b = y.chunk(2, 1)
    return x + m.out(a.tanh() * b.sigmoid())


def fourier_mixing(m: Any, x: Tensor) -> Tensor:
    return m.norm(x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real)


def spectral_convolution(m: Any, x: Tensor) -> Tensor:
    n = x.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(x, n=2 * n) * torch.fft.rfft(m.kernel, n=2 * n), n=2 * n)[..., :n]


def mixture(m: Any, x: Tensor) -> Tensor:
    flat = x.flatten(0, -2)
    weight, chosen = m.router(flat).softmax(-1).topk(2, -1)
    out = torch.zeros_like(flat)
    for i, expert in enumerate(m.experts):
        token, slot = torch.where(chosen == i)
        out.index_add_(0, token, expert(flat[token]) * weight[token, slot, None])
    return out.view_as(x)


def selective_scan(m: Any, x: Tensor) -> Tensor:
    delta, b, c = F.softplus(m.delta(x)), m.b(x), m.c(x)
    state = torch.zeros(x.shape[0], x.shape[2], b.shape[-1])
    out = []
    for t in range(x.shape[1]):
        state = (delta[:, t, :, None] * -m.a.exp()).exp() * state + delta[:, t, :, None] * b[:, t, None] * x[
            :, t, :, None
        ]
        out.append((state * c[:, t, None]).sum(-1))
    return torch.stack(out, 1)


def linear_attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x).chunk(3, -1)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    kv = torch.einsum("btd,bte->btde", k, v).cumsum(1)
    return torch.einsum("btd,btde->bte", q, kv) / (q * k.cumsum(1)).sum(-1, keepdim=True)


EDGES = whole(2, 19, below=7, seed=3)


def graph_convolution(m: Any, x: Tensor) -> Tensor:
    source, target = EDGES
    return torch.zeros(7, 5).index_add(0, target, m.linear(x)[source])


def graph_attention(m: Any, x: Tensor) -> Tensor:
    source, target = EDGES
    h = m.linear(x)
    score = F.leaky_relu(m.score(torch.cat([h[source], h[target]], -1))).exp()
    total = torch.zeros(7, 1).scatter_add_(0, target[:, None], score)
    return torch.zeros(7, 5).scatter_add_(0, target[:, None].expand(-1, 5), score / total[target] * h[source])


def graph_maximum(m: Any, x: Tensor) -> Tensor:
    return torch.zeros(7, 5).scatter_reduce(
        0, EDGES[1][:, None].expand(-1, 5), m.linear(x)[EDGES[0]], "amax", include_self=False
    )


def quantized(m: Any, x: Tensor) -> Tensor:
    return m.table[torch.cdist(x, m.table[None].expand(3, -1, -1)).argmin(-1)]


def force(m: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return -torch.autograd.grad(m.energy(x).tanh().sum(), x)[0]


def spatial_transformer(m: Any, x: Tensor) -> Tensor:
    theta = m.theta(x.mean((2, 3))).view(-1, 2, 3)
    return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


def squash(m: Any, x: Tensor) -> Tensor:
    u = torch.einsum("btd,kde->btke", x, m.w)
    logits = torch.zeros(u.shape[:3])
    for _ in range(3):
        s = (logits.softmax(-1)[..., None] * u).sum(1)
        v = s * s.square().sum(-1, keepdim=True) / (1 + s.square().sum(-1, keepdim=True)) / s.norm(dim=-1, keepdim=True)
        logits = logits + torch.einsum("btke,bke->btk", u, v)
    return v


def minimal_gru(m: Any, x: Tensor) -> Tensor:
    z = m.gate(x).sigmoid()
    return ((1 - z).cumprod(1) * ((z * m.value(x)) / (1 - z).cumprod(1)).cumsum(1)).flip(1)


def coupling(m: Any, x: Tensor) -> Tensor:
    w = m.w
    return (x @ w) + torch.linalg.slogdet(w)[1]


def sinkhorn(m: Any, x: Tensor) -> Tensor:
    logits = m.linear(x)
    for _ in range(3):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits.exp()


def spectrogram(m: Any, x: Tensor) -> Tensor:
    return (
        torch.stft(x.flatten(0, 1), 8, window=torch.hann_window(8), return_complex=True)
        .abs()
        .square()
        .clamp(min=1e-5)
        .log10()
    )


def packed_lstm(m: Any, x: Tensor) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([7, 5, 2]), batch_first=True)
    return nn.utils.rnn.pad_packed_sequence(m.lstm(packed)[0], batch_first=True)[0]


def shuffled(m: Any, x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return F.channel_shuffle(torch.cat([a, m.depth(b)], 1), 2)


def shifted_windows(m: Any, x: Tensor) -> Tensor:
    x = x.roll((-1, -2), (1, 2))
    windows = x.unfold(1, 2, 2).unfold(2, 2, 2).flatten(4).flatten(1, 2)
    return m.linear(windows.sort(-1)[0])


def pointnet(m: Any, x: Tensor) -> Tensor:
    return m.out(m.two(F.relu(m.norm(m.one(x)))).max(-1)[0])


def kan(m: Any, x: Tensor) -> Tensor:
    grid = torch.linspace(-2, 2, 8)
    return torch.einsum("btdg,dge->bte", torch.exp(-(((x[..., None] - grid) / 0.5) ** 2)), m.w)


def histogram(m: Any, x: Tensor) -> Tensor:
    return m.table(torch.bucketize(x, torch.linspace(-1, 1, 6)))


def median_filter(m: Any, x: Tensor) -> Tensor:
    return F.unfold(x, 3, padding=1).unflatten(1, (6, 9)).median(2)[0]


for name, block, given in (
    ("squeeze and excite", lambda: Block(squeeze_excite, down=nn.Conv2d(6, 2, 1), up=nn.Conv2d(2, 6, 1)), SQUARE),
    ("CBAM", lambda: Block(convolved_attention, mlp=nn.Linear(6, 6), conv=nn.Conv2d(2, 1, 7, padding=3)), SQUARE),
    ("inverted residual", inverted_residual, SQUARE),
    ("ConvNeXt block", lambda: Block(convnext, depth=nn.Conv2d(6, 6, 7, padding=3, groups=6), norm=nn.LayerNorm(6), up=nn.Linear(6, 13), down=nn.Linear(13, 6), scale=torch.ones(6)), SQUARE),
    ("ShuffleNet block", lambda: Block(shuffled, depth=nn.Conv2d(3, 3, 3, padding=1, groups=3)), SQUARE),
    ("inception", lambda: Block(inception, one=nn.Conv2d(6, 5, 1), three=nn.Conv2d(6, 5, 3, padding=1), pool=nn.Conv2d(6, 5, 1)), SQUARE),
    ("U-Net", lambda: Block(unet, enter=nn.Conv2d(6, 8, 3, padding=1), norm=nn.GroupNorm(2, 8), down=nn.Conv2d(8, 8, 3, padding=1), up=nn.ConvTranspose2d(8, 5, 3, 2), leave=nn.Conv2d(13, 3, 1)), SQUARE),
    ("WaveNet block", lambda: Block(wavenet, conv=nn.Conv1d(6, 12, 3, dilation=2), out=nn.Conv1d(6, 6, 1)), LINE),
    ("FNet block", lambda: Block(fourier_mixing, norm=nn.LayerNorm(12)), FLAT),
    ("long convolution by FFT", lambda: Block(spectral_convolution, kernel=noise(6, 23)), LINE),
    ("mixture of experts", lambda: Block(mixture, router=nn.Linear(12, 4), experts=nn.ModuleList(nn.Linear(12, 12) for _ in range(4))), FLAT),
    ("selective scan", lambda: Block(selective_scan, delta=nn.Linear(12, 12), b=nn.Linear(12, 5), c=nn.Linear(12, 5), a=noise(12, 5)), FLAT),
    ("linear attention", lambda: Block(linear_attention, qkv=nn.Linear(12, 15)), FLAT),
    ("graph convolution", lambda: Block(graph_convolution, linear=nn.Linear(12, 5)), FLAT[0]),
    ("graph attention", lambda: Block(graph_attention, linear=nn.Linear(12, 5), score=nn.Linear(10, 1)), FLAT[0]),
    ("graph maximum", lambda: Block(graph_maximum, linear=nn.Linear(12, 5)), FLAT[0]),
    ("vector quantization", lambda: Block(quantized, table=noise(31, 12)), FLAT),
    ("forces of an energy", lambda: Block(force, energy=nn.Linear(12, 1)), FLAT),
    ("spatial transformer", lambda: Block(spatial_transformer, theta=nn.Linear(6, 6)), SQUARE),
    ("capsules", lambda: Block(squash, w=noise(3, 12, 5)), FLAT),
    ("minimal GRU", lambda: Block(minimal_gru, gate=nn.Linear(12, 5), value=nn.Linear(12, 5)), FLAT),
    ("invertible coupling", lambda: Block(coupling, w=noise(12, 12)), FLAT),
    ("Sinkhorn", lambda: Block(sinkhorn, linear=nn.Linear(12, 7)), FLAT),
    ("spectrogram", lambda: Block(spectrogram), LINE),
    ("packed LSTM", lambda: Block(packed_lstm, lstm=nn.LSTM(12, 5, batch_first=True)), FLAT),
    ("shifted windows", lambda: Block(shifted_windows, linear=nn.Linear(4, 5)), noise(2, 6, 8, 3)),
    ("PointNet", lambda: Block(pointnet, one=nn.Conv1d(6, 7, 1), norm=nn.BatchNorm1d(7), two=nn.Conv1d(7, 11, 1), out=nn.Linear(11, 3)), LINE),
    ("radial KAN", lambda: Block(kan, w=noise(12, 8, 5)), FLAT),
    ("bucketized positions", lambda: Block(histogram, table=nn.Embedding(7, 5)), FLAT),
    ("median filter", lambda: Block(median_filter), SQUARE),
    ("one-hot", lambda: lambda x: F.one_hot(x, 29).float() @ noise(29, 5), WORDS),
    ("quantiles", lambda: lambda x: x.quantile(torch.tensor([0.1, 0.5]), dim=-1), FLAT),
    ("rotation by matrix exponential", lambda: lambda x: x @ torch.linalg.matrix_exp(noise(12, 12) / 12), FLAT),
    ("least squares", lambda: lambda x: torch.linalg.solve(x.mT @ x + torch.eye(12), x.mT), FLAT),
):  # fmt: skip
    add(f"block {name}", block, given)

# ---- transformers, diffusers and timm, small and with random weights

TEXT = dict(vocab_size=29, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40)
SEE = dict(image_size=32, num_channels=3, num_labels=5)
PICTURE, SOUND = noise(1, 3, 32, 32), noise(1, 1600)
EXPERTS = dict(num_experts_per_tok=2, num_key_value_heads=2)


def theirs(model: str, config: str, given: dict[str, Any], **settings: Any) -> None:
    def make() -> Any:
        import transformers as hf

        return getattr(hf, model)(getattr(hf, config)(**settings))

    assert f"transformers {model}" not in CASES
    CASES[f"transformers {model}"] = lambda: (make(), (), given)


READ, LOOK = {"input_ids": WORDS + 0}, {"pixel_values": PICTURE}
BOTH = {"input_ids": WORDS, "decoder_input_ids": whole(2, 5, seed=5)}
for family in (
    "Llama",
    "Mistral",
    "Qwen2",
    "Qwen3",
    "Gemma",
    "Gemma2",
    "Phi",
    "Phi3",
    "StableLm",
    "Olmo2",
    "Cohere",
    "Granite",
):
    theirs(f"{family}ForCausalLM", f"{family}Config", READ, **TEXT, num_key_value_heads=2, pad_token_id=0)
theirs("MixtralForCausalLM", "MixtralConfig", READ, **TEXT, num_local_experts=4, **EXPERTS)
theirs(
    "Qwen3MoeForCausalLM", "Qwen3MoeConfig", READ, **TEXT, num_experts=4, moe_intermediate_size=8, head_dim=8, **EXPERTS
)
theirs("OlmoeForCausalLM", "OlmoeConfig", READ, **TEXT, num_experts=4, num_experts_per_tok=2)
theirs("GPT2LMHeadModel", "GPT2Config", READ, vocab_size=29, n_embd=24, n_layer=2, n_head=4)
theirs("GPTNeoXForCausalLM", "GPTNeoXConfig", READ, **TEXT)
theirs("GPTJForCausalLM", "GPTJConfig", READ, vocab_size=29, n_embd=24, n_layer=2, n_head=4, rotary_dim=4)
theirs(
    "OPTForCausalLM",
    "OPTConfig",
    READ,
    vocab_size=29,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    ffn_dim=37,
    word_embed_proj_dim=24,
)
theirs("BloomForCausalLM", "BloomConfig", READ, vocab_size=29, hidden_size=24, n_layer=2, n_head=4)
theirs("FalconForCausalLM", "FalconConfig", READ, **{k: v for k, v in TEXT.items() if k != "intermediate_size"})
theirs("MambaForCausalLM", "MambaConfig", READ, vocab_size=29, hidden_size=24, num_hidden_layers=2, state_size=5)
theirs(
    "Mamba2ForCausalLM",
    "Mamba2Config",
    READ,
    vocab_size=29,
    hidden_size=24,
    num_hidden_layers=2,
    state_size=5,
    num_heads=6,
    head_dim=8,
    n_groups=2,
)
theirs(
    "RwkvForCausalLM",
    "RwkvConfig",
    {**READ, "use_cache": False},
    vocab_size=29,
    hidden_size=24,
    num_hidden_layers=2,
    attention_hidden_size=24,
)
theirs("XLNetLMHeadModel", "XLNetConfig", READ, vocab_size=29, d_model=24, n_layer=2, n_head=4, d_inner=37)
for family in ("Bert", "Roberta", "Electra", "MPNet", "DebertaV2", "ModernBert"):
    theirs(f"{family}ForMaskedLM", f"{family}Config", READ, **TEXT, pad_token_id=0)
theirs("AlbertForMaskedLM", "AlbertConfig", READ, **TEXT, embedding_size=12)
theirs("DistilBertForMaskedLM", "DistilBertConfig", READ, vocab_size=29, dim=24, n_layers=2, n_heads=4, hidden_dim=37)
theirs("FNetForMaskedLM", "FNetConfig", READ, vocab_size=29, hidden_size=24, num_hidden_layers=2, intermediate_size=37)
theirs("ConvBertForMaskedLM", "ConvBertConfig", READ, **TEXT, embedding_size=32)
theirs("SqueezeBertForMaskedLM", "SqueezeBertConfig", READ, **TEXT, embedding_size=32)
theirs(
    "FunnelForMaskedLM",
    "FunnelConfig",
    READ,
    vocab_size=29,
    d_model=24,
    block_sizes=[1, 1],
    n_head=4,
    d_head=6,
    d_inner=37,
)
theirs(
    "T5ForConditionalGeneration",
    "T5Config",
    BOTH,
    vocab_size=29,
    d_model=24,
    d_kv=6,
    d_ff=37,
    num_layers=2,
    num_heads=4,
)
theirs(
    "BartForConditionalGeneration",
    "BartConfig",
    BOTH,
    vocab_size=29,
    d_model=24,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=37,
    decoder_ffn_dim=37,
)
theirs(
    "CLIPModel",
    "CLIPConfig",
    {**READ, **LOOK},
    text_config=TEXT,
    vision_config={**TEXT, "image_size": 32, "patch_size": 8},
)
for family in ("ViT", "DeiT", "Beit", "Dinov2"):
    theirs(
        f"{family}ForImageClassification",
        f"{family}Config",
        LOOK,
        **SEE,
        patch_size=8,
        **{k: v for k, v in TEXT.items() if k != "vocab_size"},
    )
for family in ("Swin", "Swinv2"):
    theirs(
        f"{family}ForImageClassification",
        f"{family}Config",
        LOOK,
        **SEE,
        patch_size=2,
        embed_dim=12,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    )
theirs(
    "ResNetForImageClassification",
    "ResNetConfig",
    LOOK,
    num_labels=5,
    embedding_size=6,
    hidden_sizes=[8, 12],
    depths=[1, 1],
)
theirs(
    "ConvNextForImageClassification",
    "ConvNextConfig",
    LOOK,
    num_labels=5,
    hidden_sizes=[6, 8, 10, 12],
    depths=[1, 1, 1, 1],
)
theirs(
    "ConvNextV2ForImageClassification",
    "ConvNextV2Config",
    LOOK,
    num_labels=5,
    hidden_sizes=[6, 8, 10, 12],
    depths=[1, 1, 1, 1],
)
theirs(
    "RegNetForImageClassification",
    "RegNetConfig",
    LOOK,
    num_labels=5,
    embedding_size=6,
    hidden_sizes=[8, 12],
    depths=[1, 1],
    groups_width=4,
)
theirs("MobileNetV1ForImageClassification", "MobileNetV1Config", LOOK, num_labels=5, depth_multiplier=0.25)
theirs("MobileNetV2ForImageClassification", "MobileNetV2Config", LOOK, num_labels=5, depth_multiplier=0.35)
theirs(
    "MobileViTForImageClassification",
    "MobileViTConfig",
    {"pixel_values": noise(1, 3, 64, 64)},
    num_labels=5,
    image_size=64,
    hidden_sizes=[8, 12, 16],
    neck_hidden_sizes=[4, 6, 8, 12, 16, 20, 24],
    num_attention_heads=2,
)
theirs(
    "EfficientNetForImageClassification",
    "EfficientNetConfig",
    LOOK,
    num_labels=5,
    image_size=32,
    width_coefficient=0.25,
    depth_coefficient=0.3,
    hidden_dim=320,
)
theirs(
    "PoolFormerForImageClassification",
    "PoolFormerConfig",
    {"pixel_values": noise(1, 3, 64, 64)},
    num_labels=5,
    hidden_sizes=[6, 8, 10, 12],
    depths=[1, 1, 1, 1],
)
theirs(
    "PvtForImageClassification",
    "PvtConfig",
    LOOK,
    num_labels=5,
    image_size=32,
    hidden_sizes=[8, 8, 16, 16],
    depths=[1, 1, 1, 1],
    num_attention_heads=[1, 1, 2, 2],
    mlp_ratios=[2, 2, 2, 2],
)
theirs(
    "SegformerForSemanticSegmentation",
    "SegformerConfig",
    {"pixel_values": noise(1, 3, 64, 64)},
    num_labels=5,
    hidden_sizes=[8, 8, 16, 16],
    depths=[1, 1, 1, 1],
    num_attention_heads=[1, 1, 2, 2],
    decoder_hidden_size=12,
)
theirs(
    "LevitForImageClassification",
    "LevitConfig",
    {"pixel_values": noise(1, 3, 64, 64)},
    num_labels=5,
    image_size=64,
    hidden_sizes=[16, 24, 32],
    num_attention_heads=[2, 2, 2],
    depths=[1, 1, 1],
    key_dim=[4, 4, 4],
)
theirs(
    "WhisperForConditionalGeneration",
    "WhisperConfig",
    {"input_features": noise(1, 8, 20), "decoder_input_ids": WORDS},
    vocab_size=29,
    num_mel_bins=8,
    d_model=24,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=37,
    decoder_ffn_dim=37,
    max_source_positions=10,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
)
SPEECH = dict(
    hidden_size=24,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=37,
    conv_dim=[8, 8],
    conv_stride=[5, 4],
    conv_kernel=[10, 8],
    num_conv_pos_embeddings=8,
    num_conv_pos_embedding_groups=4,
)
theirs("Wav2Vec2Model", "Wav2Vec2Config", {"input_values": SOUND}, **SPEECH)
theirs("HubertModel", "HubertConfig", {"input_values": SOUND}, **SPEECH)
theirs(
    "EncodecModel",
    "EncodecConfig",
    {"input_values": SOUND[:, None]},
    hidden_size=16,
    num_filters=4,
    upsampling_ratios=[4, 2],
    codebook_size=32,
    num_lstm_layers=1,
    target_bandwidths=[12.0, 24.0],
)
theirs(
    "VitsModel",
    "VitsConfig",
    READ,
    vocab_size=29,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    ffn_dim=16,
    flow_size=16,
    spectrogram_bins=9,
    upsample_initial_channel=16,
    upsample_rates=[4, 2],
    upsample_kernel_sizes=[8, 4],
    resblock_kernel_sizes=[3],
    resblock_dilation_sizes=[[1, 3]],
)
theirs(
    "ASTForAudioClassification",
    "ASTConfig",
    {"input_values": noise(1, 64, 32)},
    num_labels=5,
    max_length=64,
    num_mel_bins=32,
    **{k: v for k, v in TEXT.items() if k != "vocab_size"},
)
theirs(
    "DPTForDepthEstimation",
    "DPTConfig",
    LOOK,
    image_size=32,
    patch_size=8,
    hidden_size=24,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=37,
    backbone_out_indices=[0, 1, 2, 3],
    neck_hidden_sizes=[6, 8, 10, 12],
    fusion_hidden_size=8,
)
theirs(
    "TimeSeriesTransformerModel",
    "TimeSeriesTransformerConfig",
    {
        "past_values": noise(2, 15),
        "past_time_features": noise(2, 15, 1),
        "past_observed_mask": torch.ones(2, 15),
        "future_values": noise(2, 4, seed=1),
        "future_time_features": noise(2, 4, 1),
    },
    prediction_length=4,
    context_length=8,
    num_time_features=1,
    d_model=16,
    encoder_layers=1,
    decoder_layers=1,
)
theirs(
    "VideoMAEForVideoClassification",
    "VideoMAEConfig",
    {"pixel_values": noise(1, 4, 3, 32, 32)},
    num_labels=5,
    image_size=32,
    patch_size=8,
    num_frames=4,
    **{k: v for k, v in TEXT.items() if k != "vocab_size"},
)
theirs(
    "PerceiverForMaskedLM",
    "PerceiverConfig",
    {"inputs": WORDS},
    vocab_size=29,
    max_position_embeddings=7,
    d_model=24,
    num_latents=5,
    d_latents=16,
    num_blocks=1,
    num_self_attends_per_block=1,
    num_self_attention_heads=2,
    num_cross_attention_heads=2,
)

GREY = noise(1, 4, 16, 16)


def diffusion(name: str, *inputs: Any, given: dict[str, Any] | None = None, **settings: Any) -> None:
    CASES[f"diffusers {name}"] = lambda: (
        getattr(importlib.import_module("diffusers"), name)(**settings),
        inputs,
        given or {},
    )


TIME = torch.tensor([7])
diffusion(
    "UNet2DModel",
    GREY,
    TIME,
    sample_size=16,
    in_channels=4,
    out_channels=4,
    block_out_channels=(8, 16),
    layers_per_block=1,
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=4,
)
COND = dict(
    block_out_channels=(8, 16),
    layers_per_block=1,
    norm_num_groups=4,
    cross_attention_dim=12,
    attention_head_dim=4,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
)
diffusion(
    "UNet2DConditionModel",
    GREY,
    TIME,
    noise(1, 7, 12),
    sample_size=16,
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    **COND,
)
diffusion("ControlNetModel", GREY, TIME, noise(1, 7, 12), noise(1, 3, 128, 128), **COND)
CODE = dict(
    block_out_channels=(8, 16),
    norm_num_groups=4,
    down_block_types=("DownEncoderBlock2D",) * 2,
    up_block_types=("UpDecoderBlock2D",) * 2,
)
diffusion("AutoencoderKL", PICTURE, **CODE)
diffusion("VQModel", PICTURE, num_vq_embeddings=16, **CODE)
diffusion(
    "AutoencoderTiny",
    PICTURE,
    encoder_block_out_channels=(8, 8),
    decoder_block_out_channels=(8, 8),
    num_encoder_blocks=(1, 1),
    num_decoder_blocks=(1, 1),
)
diffusion(
    "DiTTransformer2DModel",
    noise(1, 4, 8, 8),
    TIME,
    torch.tensor([3]),
    num_attention_heads=2,
    attention_head_dim=8,
    in_channels=4,
    out_channels=4,
    num_layers=1,
    sample_size=8,
    norm_num_groups=4,
)
diffusion(
    "SD3Transformer2DModel",
    noise(1, 4, 8, 8),
    noise(1, 7, 12),
    noise(1, 16),
    TIME,
    sample_size=8,
    in_channels=4,
    num_layers=1,
    attention_head_dim=8,
    num_attention_heads=2,
    joint_attention_dim=12,
    caption_projection_dim=16,
    pooled_projection_dim=16,
    out_channels=4,
)
diffusion(
    "FluxTransformer2DModel",
    given=dict(
        hidden_states=noise(1, 16, 4),
        encoder_hidden_states=noise(1, 7, 12),
        pooled_projections=noise(1, 16),
        timestep=torch.tensor([0.5]),
        img_ids=torch.zeros(16, 3),
        txt_ids=torch.zeros(7, 3),
    ),
    in_channels=4,
    num_layers=1,
    num_single_layers=1,
    attention_head_dim=8,
    num_attention_heads=2,
    joint_attention_dim=12,
    pooled_projection_dim=16,
    axes_dims_rope=(2, 2, 4),
)

TIMM = (
    "resnet18", "resnext26ts", "densenet121", "mobilenetv3_small_050", "efficientnet_b0", "convnext_atto", "vgg11",
    "mixer_s32_224", "gmlp_ti16_224", "resmlp_12_224", "regnety_002", "ghostnet_050", "hardcorenas_a", "dla34", "xception41",
    "inception_v3", "coatnet_pico_rw_224", "maxvit_pico_rw_256", "edgenext_xx_small", "poolformer_s12", "repvgg_a0", "pit_ti_224", "levit_128s",
)  # fmt: skip
SMALLER = {"densenet121": dict(growth_rate=4, block_config=(2, 2))}
WANTS = {"mixer_s32_224": 224, "gmlp_ti16_224": 224, "resmlp_12_224": 224, "coatnet_pico_rw_224": 224, "maxvit_pico_rw_256": 256, "pit_ti_224": 224, "levit_128s": 224, "inception_v3": 128}  # fmt: skip


def timm_case(name: str) -> Any:
    with stand_ins():
        timm = importlib.import_module("timm")
    size = WANTS.get(name, 64)
    return timm.create_model(name, num_classes=5, **SMALLER.get(name, {})), (noise(1, 3, size, size),), {}


for one in TIMM:
    CASES[f"timm {one}"] = lambda one=one: timm_case(one)


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Where torchvision is missing, empty modules for it, while timm is imported."""
    if importlib.util.find_spec("torchvision") is not None or "timm" in sys.modules:
        yield
        return

    class Empty(type):
        def __iter__(cls) -> Iterator[Any]:
            return iter(())

        def __getattr__(cls, name: str) -> str:
            if name.startswith("__"):
                raise AttributeError(name)
            return name

    made: dict[str, types.ModuleType] = {}
    for ending in (
        "",
        ".transforms",
        ".transforms.functional",
        ".datasets",
        ".datasets.folder",
        ".models",
        ".ops",
        ".ops.misc",
        ".utils",
    ):
        name = f"torchvision{ending}"
        module = made[name] = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        module.__getattr__ = lambda part: Empty(part, (), {})  # type: ignore[method-assign]
        outer, _, inner = name.rpartition(".")
        if outer:
            setattr(made[outer], inner, module)
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


# ---- the count


def cells_agree(trace: Any, cells: int = 40, seed: int = 0) -> list[str]:
    """Names of operations of which some random cell, worked again, is not what was recorded."""
    graph, rng, bad = trace.graph, np.random.default_rng(seed), set()
    for node, n in enumerate(graph.nodes):
        if n.plan is None or not n.size or n.moves or n.kind == "block":
            continue
        flat = rng.integers(0, n.size, min(cells, n.size))
        value, allowed = graph.work(node, flat)
        kept = graph.cells(node, flat)
        with np.errstate(invalid="ignore"):
            right = (value == kept) | (np.isnan(value) & np.isnan(kept)) | (np.abs(value - kept) <= allowed)
        if not right.all():
            bad.add(n.op)
    return sorted(bad)


def tensors_of(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from tensors_of(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from tensors_of(inner)


def outcome(name: str, opaque: bool) -> tuple[str, str]:
    torch.manual_seed(0)
    try:
        made = CASES[name]()
        model, inputs, given = made
        if isinstance(model, nn.Module):
            model.eval()
        copied = [x.clone() if isinstance(x, Tensor) else x for x in inputs]
        with torch.no_grad():
            torch.manual_seed(1)
            plain = model(*copied, **given)
    except Exception as error:
        return "no case", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    torch.manual_seed(1)
    try:
        options = {"opaque": True} if opaque else {}
        trace = pencil.trace(model, *inputs, **given, **options)
    except UserError as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for mine, own in zip(tensors_of(trace.output), tensors_of(plain), strict=True):
        largest = float(own.detach().abs().max()) if own.numel() and own.is_floating_point() else 0.0
        if mine.shape != own.shape or not torch.allclose(
            mine, own, rtol=1e-4, atol=1e-5 * max(1.0, largest), equal_nan=True
        ):
            return "failed", f"the trace's output is off by {float((mine - own).abs().max()):.2g}"
    if bad := cells_agree(trace):
        return "failed", f"cells do not agree: {', '.join(bad)}"
    left = getattr(trace.graph, "undescribed", {})
    return ("in part", ", ".join(left)) if left else ("recorded", f"{len(trace.graph.nodes):,} tensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="modules whose names contain this")
    parser.add_argument("--all", action="store_true", help="list the recorded ones too")
    parser.add_argument("--opaque", action="store_true", help="operations that are not described are leaves")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: dict[str, Counter[str]] = {}
    for name in (name for name in CASES if options.only in name):
        begun = time.perf_counter()
        what, why = outcome(name, options.opaque)
        counts.setdefault(name.split()[0], Counter())[what] += 1
        if options.all or what != "recorded":
            print(f"{what:9} {name:50} {time.perf_counter() - begun:5.1f} s  {why[:140]}", flush=True)
    kinds = sorted({kind for one in counts.values() for kind in one}, key=lambda kind: kind != "recorded")
    print(f"\n{'':14}" + "".join(f"{kind:>10}" for kind in kinds))
    total: Counter[str] = Counter()
    for source, one in counts.items():
        total += one
        print(f"{source:14}" + "".join(f"{one[kind]:10}" for kind in kinds))
    print(f"{'all ' + str(total.total()):14}" + "".join(f"{total[kind]:10}" for kind in kinds))


if __name__ == "__main__":
    main()
