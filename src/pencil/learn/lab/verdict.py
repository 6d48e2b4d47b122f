"""The statistics of a claim: differences between arms, seed by seed, with their interval and the verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .claim import Claim, Prediction

SHOWN, UNSHOWN, OPPOSITE, PARTLY = VERDICTS = "shown", "not shown at this size", "the opposite", "partly shown"
CONFIDENCE = 0.95
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
LEAST = 1e-300  # smaller values count as this in a ratio


@dataclass(frozen=True)
class Finding:
    """One prediction and its measurements."""

    prediction: Prediction
    values: dict[str, tuple[float, ...]]  # of each arm, seed by seed
    mean: float  # of the differences; or of the ratios (geometric mean); or of one arm, with `near`
    low: float
    high: float
    verdict: str

    def average(self, arm: str) -> float:
        return sum(self.values[arm]) / len(self.values[arm])


def central_probability(angle: float, degrees: int) -> float:
    """P(|T| < √degrees · tan(angle)): a finite sum of sines and cosines for whole degrees of freedom.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    odd = degrees % 2
    cos, total = math.cos(angle), 0.0
    term = cos if odd else 1.0
    for k in range(odd, degrees - 1, 2):
        total += term
        term *= (k + 1) / (k + 2) * cos * cos
    inner = math.sin(angle) * total
    return (angle + inner) * 2 / math.pi if odd else inner


def two_sided_quantile(confidence: float, degrees: int) -> float:
    """The t for which |T| < t has this probability, with this many degrees of freedom."""
    if degrees < 1 or not 0 < confidence < 1:
        raise ValueError(f"no quantile for {degrees} degrees of freedom and a confidence of {confidence}")
    low, high = 0.0, math.pi / 2
    # bisection until no float lies between
    while low < (middle := (low + high) / 2) < high:
        if central_probability(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(high)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its 95 % confidence interval by Student's t."""
    count = len(values)
    if count < 2:
        raise ValueError("an interval needs at least two values")
    mean = sum(values) / count
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    half = two_sided_quantile(CONFIDENCE, count - 1) * deviation / math.sqrt(count)
    return mean, mean - half, mean + half


def find(prediction: Prediction, values: Mapping[str, Sequence[float]]) -> Finding:
    """The verdict on one prediction; each arm's values are in the order of the seeds."""
    p, by_arm = prediction, {arm: tuple(map(float, numbers)) for arm, numbers in values.items()}
    for arm, numbers in by_arm.items():
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"{p.metric} of {arm} is not finite: {numbers}")
    if p.near is not None:
        mean, low, high = interval(by_arm[p.more])
        inside = p.near - p.by <= low and high <= p.near + p.by
        outside = high < p.near - p.by or low > p.near + p.by
        return Finding(p, by_arm, mean, low, high, SHOWN if inside else OPPOSITE if outside else UNSHOWN)
    both = list(zip(by_arm[p.more], by_arm[p.less], strict=True))
    if p.times is None:
        mean, low, high = interval([more - less for more, less in both])
        return Finding(p, by_arm, mean, low, high, _side(low, high, p.by))
    logs = interval([math.log(max(more, LEAST)) - math.log(max(less, LEAST)) for more, less in both])
    mean, low, high = map(math.exp, logs)
    return Finding(p, by_arm, mean, low, high, _side(*logs[1:], math.log(p.times)))


def _side(low: float, high: float, wanted: float) -> str:
    """Shown if the whole interval is above `wanted`, the opposite if it is below 0, else not shown."""
    return SHOWN if low > wanted else OPPOSITE if high < 0 else UNSHOWN


def findings(claim: Claim, measured: Mapping[str, Sequence[Mapping]]) -> list[Finding]:
    """The finding of every prediction of a claim; `measured` has each arm's measurements in the order of the seeds."""
    return [
        find(
            p,
            {
                arm: [measurement[p.metric] for measurement in rows]
                for arm, rows in measured.items()
                if p.metric in rows[0]
            },
        )
        for p in claim.predictions
    ]


def verdict(findings: Sequence[Finding]) -> str:
    """The verdict on a claim: that of all its predictions, or partly shown if some are shown."""
    each = {finding.verdict for finding in findings}
    return each.pop() if len(each) == 1 else PARTLY if SHOWN in each else UNSHOWN


def number(value: float) -> str:
    """A number with three significant digits; very large or small ones with a power of ten."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e5 or size < 1e-3:
        mantissa, _, power = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}·10{str(int(power)).translate(RAISED)}".replace("-", "−")
    digits = max(0, 2 - math.floor(math.log10(size)))
    text = f"{value:.{digits}f}" if value != int(value) else str(int(value))
    return text.replace("-", "−")


def effect(finding: Finding) -> str:
    """The difference, ratio or value with its interval, as text."""
    p = finding.prediction
    low, high = number(finding.low), number(finding.high)
    between = f"(95\u00a0%: {low} to {high})"
    if p.near is not None:
        return f"{p.more}: {number(finding.mean)} {between}"
    kind = f"{p.more} ÷ {p.less}" if p.times is not None else f"{p.more} − {p.less}"
    return f"{kind}: {number(finding.mean)} {between}"


def wanted(prediction: Prediction) -> str:
    """The condition on the interval, as text."""
    p = prediction
    if p.near is not None:
        return f"{p.more} within {number(p.by)} of {number(p.near)}" if p.by else f"{p.more} exactly {number(p.near)}"
    if p.times is not None:
        return f"{p.more} ÷ {p.less} above {number(p.times)}"
    return f"{p.more} − {p.less} above {number(p.by)}"
