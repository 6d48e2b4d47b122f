"""How a token is drawn: from its logits through temperature, top-k, top-p and min-p to an interval of [0, 1)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..inference.sampling import Candidates, Sampling, candidates, probabilities
from .json_values import address, number

MOST_RIVALS = 8  # bars of the likeliest tokens beside each token of the answer
MOST_ROWS = 12  # rows of the table that leads from the logits to the token

Label = Callable[[int], str]


def sampling_of(options: Mapping[str, float]) -> Sampling:
    """The sampling rules of the options; 0 for top-k and min-p, and 1 for top-p, are off."""
    top_k, top_p, min_p = int(options["top_k"]), options["top_p"], options["min_p"]
    return Sampling(
        float(options["temperature"]),
        top_k or None,
        None if top_p >= 1 else float(top_p),
        float(min_p) or None,
        seed=int(options["seed"]),
    )


def ranked(logits: np.ndarray) -> np.ndarray:
    """The ids, the largest logit first; of equal ones the lower id first."""
    return np.argsort(-logits, kind="stable")


def largest(logits: np.ndarray, count: int) -> np.ndarray:
    """The first ids of `ranked`, without sorting all of a vocabulary at every token."""
    if count >= len(logits):
        return ranked(logits)
    some = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
    return some[ranked(logits[some])[:count]] if len(some) >= count else ranked(logits)[:count]


def softmax(logits: np.ndarray) -> np.ndarray:
    top = logits.max()
    shifted = np.exp(logits - top) if np.isfinite(top) else np.full_like(logits, np.nan)
    return shifted / shifted.sum()


def bars(
    logits: Tensor, label: Label, where: tuple[int, ...], count: int | None = MOST_RIVALS, also: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """The likeliest tokens or classes of one row of logits, then `also` those; `where` is the row's index."""
    z = logits.detach().double().cpu().numpy()
    p, order = softmax(z), largest(z, len(z) if count is None else count)
    return [
        {
            "label": label(int(i)),
            "id": int(i),
            "logit": number(z[i]),
            "probability": number(p[i]),
            "cell": address("logits", (*where, i)),
        }
        for i in (*order, *also)
    ]


def drawing(logits: Tensor, how: Sampling, uniform: float | None, drawn: int, label: Label) -> dict[str, Any]:
    """The way from the logits that may be drawn to the one that was; `uniform` is the random number, if there is one.

    Intervals follow one another in the order of ids, as sampling itself lays them out.
    """
    z = logits.detach().double().cpu().numpy()
    if how.temperature == 0:
        scaled, likely, keep = z, softmax(z), np.arange(len(z)) == drawn
        cuts, final = np.full(len(z), "", object), keep.astype(float)
    else:
        row = logits.detach().cpu()[None]
        scaled, likely = z / how.temperature, softmax((z - z.max()) / how.temperature)
        cuts = _cuts(candidates(row, how), len(z))
        keep = cuts == ""
        final = probabilities(row, how)[0].numpy()
    ends = final.cumsum()
    starts = np.concatenate(([0.0], ends[:-1]))
    listed = list(dict.fromkeys([*largest(z, MOST_ROWS).tolist(), drawn]))
    others = np.ones(len(z), bool)
    others[listed] = False
    rows = [
        {
            "label": label(i),
            "id": i,
            "logit": number(z[i]),
            "scaled": number(scaled[i]),
            "probability": number(likely[i]),
            "kept": bool(keep[i]),
            "cut": str(cuts[i]),
            "final": number(final[i]),
            "from": number(starts[i] / ends[-1]),
            "to": number(ends[i] / ends[-1]),
            "drawn": i == drawn,
        }
        for i in listed
    ]
    return {"rows": rows, "uniform": uniform, "rest": number(likely[others].sum())}


def _cuts(row: Candidates, vocab: int) -> np.ndarray:
    """For each id the rule that leaves it out, or nothing."""
    cuts = np.full(row.probabilities.shape[1], "", object)
    for keep, rule in ((row.within_min_p, "min-p"), (row.within_top_p, "top-p")):
        if keep is not None:
            cuts[~keep[0].numpy()] = rule
    if row.ids is None:
        return cuts
    of_all = np.full(vocab, "top-k", object)
    of_all[row.ids[0].numpy()] = cuts
    return of_all
