"""Claims about the attention scores: why they are divided by √d_k."""

import torch

from ...core.attention import attend
from ...core.probe import Probe
from .claim import Claim, Curve, Measured, Prediction, Size
from .training import generator, points


def pattern_of(q: torch.Tensor, k: torch.Tensor, scale: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores, still in the autograd graph, and the pattern."""
    probe = Probe()
    attend(q, k, k, scale=scale, probe=probe)
    return probe.values["scores"], probe.values["pattern"]


def measure_scaling(arm: str, seed: int, size: Size) -> Measured:
    """The entropy of the pattern, and the gradient behind the softmax, for growing widths of a head."""
    entropies, slopes, at_queries = [], [], []
    for width in size["widths"]:
        random = generator(seed, width)
        q, k = (torch.randn(size["rows"], 1, size["tokens"], width, generator=random) for _ in range(2))
        direction = torch.randn(size["rows"], 1, size["tokens"], size["tokens"], generator=random)
        q.requires_grad_()
        scores, pattern = pattern_of(q, k, None if arm == "with" else 1.0)
        scores.retain_grad()
        (pattern * direction).sum().backward()
        entropies.append(float(torch.special.entr(pattern.detach()).sum(-1).mean()))
        slopes.append(float(scores.grad.norm(dim=-1).mean()) if scores.grad is not None else 0.0)
        at_queries.append(float(q.grad.norm(dim=-1).mean()) if q.grad is not None else 0.0)
    widths = size["widths"]
    return {
        "entropy": entropies[-1],
        "slope": slopes[-1],
        "entropy by width": points(widths, entropies),
        "slope by width": points(widths, slopes),
        "at queries by width": points(widths, at_queries),
    }


_SIZE = dict(widths=(4, 16, 64, 256, 1024), tokens=64, rows=8)

CLAIMS = (
    Claim(
        name="scaling",
        title="Dividing the scores by √d_k",
        hypothesis="Without the division the scores grow with the width of a head and the softmax saturates; in a wide "
        "head less of the gradient passes it.",
        removed="attend(…, scale=1) instead of 1/√d_k; queries and keys are random, of variance 1",
        arms=("with", "without"),
        measure=measure_scaling,
        predictions=(
            Prediction(
                "the pattern becomes one-hot: its entropy falls",
                "entropy",
                "entropy of a row of the pattern, widest head (nats)",
                "with",
                "without",
                times=2.0,
            ),
            Prediction(
                "in the widest head less of the gradient passes the softmax",
                "slope",
                "gradient at the scores of a row, widest head (norm)",
                "with",
                "without",
                times=2.0,
            ),
        ),
        quick=_SIZE,
        full=_SIZE | dict(widths=(4, 16, 64, 256, 1024, 4096), rows=32),
        tiny=dict(widths=(2, 5), tokens=3, rows=1),
        curves=(
            Curve("entropy by width", "width of a head, d_k", "entropy (nats)", log_x=True),
            Curve("slope by width", "width of a head, d_k", "gradient at the scores", log_x=True, log_y=True),
            Curve("at queries by width", "width of a head, d_k", "gradient at the queries", log_x=True, log_y=True),
        ),
        caveat="Random vectors, nothing trained. The entries have variance 1, as the derivation assumes; the default "
        "initialisation of torch's Linear gives 1/3, so its scores vary less. The documents say that the gradient "
        "vanishes; measured at the scores, it is smaller in wide heads only: without the division it was 1.4 times as "
        "large at d_k = 4 and 16, the same at 64, 0.58 of it at 256 and 0.33 at 1024 (small form). At the queries it "
        "is multiplied by the keys, which are longer in a wider head and not divided by √d_k; there it is larger "
        "without the division at every width (last panel).",
        source="002, The Scaling Factor; 003, the scaling trick",
    ),
)
