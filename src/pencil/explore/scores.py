"""What each head measurably attends to, beside what it would be by chance."""

from typing import Any

from ..learn.heads.inputs import head_inputs, head_profile, separators
from ..learn.heads.scores import NAMES, measure
from ..runs.run import Loaded


def head_scores(loaded: Loaded) -> dict[tuple[str, int, int], dict[str, Any]]:
    """For each head, by group, layer and number: its names, and the score that is furthest above its baseline.

    `scored` is what that score measures, in the words of `pencil heads`.
    """
    report = measure(loaded.model, head_profile(loaded), head_inputs(loaded), separators(loaded))
    found = {}
    for head in report.heads:
        shares = {name: score for name, score in head.scores.items() if name != "broad"}
        best = max(shares, key=lambda name: shares[name].mean - shares[name].baseline, default=None)
        found[head.group, head.layer, head.head] = {
            "names": [*head.names],
            "scored": "" if best is None else NAMES[best],
            "score": None if best is None else shares[best].mean,
            "baseline": None if best is None else shares[best].baseline,
        }
    return found
