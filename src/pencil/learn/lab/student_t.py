"""Quantiles of Student's t distribution, for confidence intervals."""

import math


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
