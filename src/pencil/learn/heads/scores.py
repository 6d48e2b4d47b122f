"""Scores of attention heads: what each head attends to, beside what it would be by chance.

A score is the share of a token's attention that falls on certain keys (the one before it, the first, itself), over the
tokens that have a choice, averaged over texts. docs/guides/inspect.md defines each, and says what it does not show.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...config import UserError
from ...core.probe import Probe
from ...inference.head_patterns import (
    LONGEST_INPUT_TOKENS,
    SELF_ATTENTION,
    AttentionGroup,
    HeadProfile,
    Inputs,
    Layout,
    all_scores,
    chances,
    repeated,
    shares,
)
from ...progress import track
from ..lab.verdict import interval

DRAWS = 16  # random sequences, each once repeated and once not
FEWEST = 5  # tokens of a repeated sequence
CLEAR = 0.3  # of the distance from the baseline to all of the attention: from there on a head is named
AS_BROAD = 0.05  # a head whose breadth is within this of an untrained one's shows nothing
NAMES = {
    "previous": "previous token", "next": "next token", "first": "first token", "last": "last token",
    "own": "own token", "class": "class token", "near": "adjacent patch", "picture": "image", "induction": "induction",
    "broad": "broad",
}  # fmt: skip


@dataclass(frozen=True)
class Score:
    """A head's mean over texts, half the width of its 95 % interval, and what it would be by chance."""

    mean: float
    margin: float
    baseline: float
    clear: bool  # whether it is beyond the baseline by enough to name the head after it


@dataclass(frozen=True)
class Head:
    """One head of one block, and its scores by name."""

    group: str  # "encoder", "decoder" or "cross" where a model has several, else ""
    layer: int
    head: int
    scores: dict[str, Score]

    @property
    def names(self) -> tuple[str, ...]:
        """The names its scores earn; the clearest first."""
        clear = [(score.mean - score.baseline, name) for name, score in self.scores.items() if score.clear]
        return tuple(NAMES[name] for _, name in sorted(clear, reverse=True))

    @property
    def untrained(self) -> bool:
        """Whether it spreads its attention as a head does before any training."""
        return self.scores["broad"].mean >= self.scores["broad"].baseline - AS_BROAD


@dataclass(frozen=True)
class Report:
    """All heads of a model, and what they were measured on."""

    heads: tuple[Head, ...]
    texts: int
    tokens: int  # queries counted, in the longest text
    repeated: int  # tokens of the longest sequence written twice; 0 where induction was not measured


HeadScores = dict[tuple[str, int, str], Tensor]  # by group, layer and score: a value for each head


@torch.no_grad()
def observe(
    model: Any, groups: Sequence[AttentionGroup], inputs: Inputs, score: Callable[[Tensor, Layout], Any]
) -> HeadScores:
    """The scores of every head in one forward pass; only one pattern is kept at a time."""
    observed: HeadScores = {}

    def reader(group: AttentionGroup, layer: int) -> Callable[[Tensor], Tensor]:
        def read(pattern: Tensor) -> Tensor:
            scores = score(pattern[0].cpu().double(), group.layout)
            observed.update({(group.name, layer, name): values for name, values in scores.items()})
            return pattern

        return read

    edit = {}
    for group in groups:  # an encoder and a decoder may have different numbers of blocks
        layers = range(len(model.get_submodule(group.pattern.partition(".{}")[0])))
        edit |= {group.pattern.format(layer): reader(group, layer) for layer in layers}
    model(*inputs, probe=Probe(edit=edit))
    return observed


def untrained(model: Any) -> Any:
    """The same model before any training: what its architecture alone makes of a text."""
    weights = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return type(model)(model.config).to(weights.device, weights.dtype).eval()


def measure(model: Any, profile: HeadProfile, texts: Sequence[Inputs], separators: Collection[int] = ()) -> Report:
    """The scores of every head over these texts; `separators` are the tokens between texts or lines."""
    if len(texts) < 2:
        raise UserError("one text gives no interval: give at least two")
    twin, rows, tokens = untrained(model), [], 0
    for inputs in track(texts):
        groups = profile.groups(model, inputs)
        tokens = max(tokens, *(int(group.layout.rows.sum()) for group in groups))
        by_chance = {(group.name, name): share for group in groups for name, share in chances(group.layout).items()}
        plain = observe(twin, groups, inputs, all_scores)
        # some position schemes favour what is near before any training
        least = {k: plain[k].clamp(min=by_chance.get((k[0], k[2]), 0.0)) for k in plain}
        rows.append((observe(model, groups, inputs, all_scores), least))
    repeats, count = _repeats(model, profile, texts, separators)
    keys = [key for key in rows[0][0] if all(key in scored and key in base for scored, base in rows)]
    scores = {key: _scores(key[2], [(scored[key], base[key]) for scored, base in rows]) for key in keys}
    for key in repeats[0][0] if repeats else ():
        scores[key] = _scores(key[2], [(scored[key], base[key]) for scored, base in repeats])
    heads = []
    for group in dict.fromkeys(group for group, _, _ in scores):
        for layer in sorted({layer for name, layer, _ in scores if name == group}):
            of_layer = {name: head_scores for (*where, name), head_scores in scores.items() if where == [group, layer]}
            each = [
                {name: head_scores[i] for name, head_scores in of_layer.items()} for i in range(len(of_layer["broad"]))
            ]
            heads += [Head(group, layer, i, scored) for i, scored in enumerate(each)]
    return Report(tuple(heads), len(texts), tokens, count)


def _scores(name: str, pairs: list[tuple[Tensor, Tensor]]) -> list[Score]:
    """One score for each head, from its values and its baselines text by text."""
    values, base = (torch.stack(part).double().numpy() for part in zip(*pairs, strict=True))
    beyond = values - base
    by_head = []
    for head in range(values.shape[1]):
        low = beyond[:, head].mean() - _margin(beyond[:, head])
        baseline = float(base[:, head].mean())
        # an untrained head is broad already, so breadth is shown and never a name
        clear = name != "broad" and bool(low >= CLEAR * (1 - baseline))
        by_head.append(Score(float(values[:, head].mean()), _margin(values[:, head]), baseline, clear))
    return by_head


def _margin(values: np.ndarray) -> float:
    """Half the width of a 95 % interval of the mean."""
    mean, low, _ = interval(values.tolist())
    return mean - low


def _repeats(
    model: Any, profile: HeadProfile, texts: Sequence[Inputs], separators: Collection[int]
) -> tuple[list[tuple[HeadScores, HeadScores]], int]:
    """Induction on random sequences of the texts' tokens: written twice, and with another one before instead.

    Both have the same second half, so that the queries are the same. The sequences have all lengths, from a few tokens
    to half the context: a head that has learned to attend ten tokens back need not find what is fifty away.
    """
    if profile.induction is None:
        return [], 0
    kinds = np.unique(np.concatenate([inputs_of_text[0].cpu().numpy().ravel() for inputs_of_text in texts]))
    kinds = kinds[~np.isin(kinds, list(separators))]
    begun, start = profile.induction(model, texts)
    longest = min((min(model.config.context, LONGEST_INPUT_TOKENS) - len(begun)) // 2, len(kinds))
    if longest < FEWEST:
        return [], 0
    rng, pairs = np.random.Generator(np.random.Philox(key=0)), []
    counts = np.geomspace(FEWEST, longest, DRAWS).round().astype(int).tolist()
    for i, count in enumerate(track(counts)):
        again, other = (rng.permutation(kinds)[:count].tolist() for _ in range(2))
        rows = [[*begun, *before, *again] for before in (again, other)]
        group = AttentionGroup("", SELF_ATTENTION, repeated(model.mask, count, start))
        # the other inputs of a text come with the sequence
        inputs = [(torch.tensor([row], device=texts[0][0].device), *texts[i % len(texts)][1:]) for row in rows]
        twice, once = (observe(model, [group], inputs_of_text, shares) for inputs_of_text in inputs)
        pairs.append((twice, once))
    return pairs, longest
