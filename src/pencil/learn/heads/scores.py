"""What the heads of a trained model look at: scores of their patterns, each beside what it would be by chance.

A score is the share of a token's attention that falls on certain keys (the one before it, the first, itself), over the
tokens that have a choice, averaged over texts. docs/heads.md says how each is defined, and what it does not say.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...config import UserError
from ...core.probe import Probe
from ...models import create
from ..lab.finding import interval
from .layouts import Inputs, Layout, Stack, chances, everything, repeated, shares, stacks_of

TEXTS = 32  # read of what there is, spread evenly
DRAWS = 16  # random sequences, each once repeated and once not
LONGEST = 256  # tokens read at once
FEWEST = 5  # tokens of a sequence that is worth repeating
CLEAR = 0.3  # of the way from the baseline to all of the attention: from there on a head is named
AS_BROAD = 0.05  # a head whose breadth is no further below an untrained one's shows nothing by it
NAMES = {
    "previous": "previous token", "next": "next token", "first": "first token", "last": "last token",
    "own": "own token", "class": "class token", "near": "next door", "picture": "picture", "induction": "induction",
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

    stack: str  # "encoder", "decoder" or "cross" where a model has several, else ""
    layer: int
    head: int
    scores: dict[str, Score]

    @property
    def names(self) -> tuple[str, ...]:
        """What it does, where that shows; the clearest first."""
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
    tokens: int  # that look, in the longest text
    repeated: int  # tokens of the longest sequence written twice; 0 where induction was not measured


Found = dict[tuple[str, int, str], Tensor]  # by stack, layer and score: a number for each head


@torch.no_grad()
def observe(model: Any, stacks: Sequence[Stack], given: Inputs, what: Callable[[Tensor, Layout], Any]) -> Found:
    """The scores of every head in one call; of the patterns no more than one is kept at a time."""
    found: Found = {}

    def listen(stack: Stack, layer: int) -> Callable[[Tensor], Tensor]:
        def look(pattern: Tensor) -> Tensor:
            scores = what(pattern[0].cpu().double(), stack.layout)
            found.update({(stack.name, layer, name): values for name, values in scores.items()})
            return pattern

        return look

    layers = range(model.config.depth)
    edit = {stack.pattern.format(layer): listen(stack, layer) for stack in stacks for layer in layers}
    model(*given, probe=Probe(edit=edit))
    return found


def fresh(model: Any, family: str) -> Any:
    """The same model before any training: what its architecture alone makes of a text."""
    weights = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return create(family, model.config).to(weights.device, weights.dtype).eval()


def measure(model: Any, family: str, texts: Sequence[Inputs], apart: Collection[int] = ()) -> Report:
    """The scores of every head over these texts; the tokens in `apart` set one text or line apart from the next."""
    if len(texts) < 2:
        raise UserError("one text gives no interval: give at least two")
    twin, rows, tokens = fresh(model, family), [], 0
    for given in texts:
        stacks = stacks_of(model, family, given)
        tokens = max(tokens, *(int(stack.layout.rows.sum()) for stack in stacks))
        by_chance = {(stack.name, name): share for stack in stacks for name, share in chances(stack.layout).items()}
        plain = observe(twin, stacks, given, everything)
        # some schemes of positions look at what is near before they have learned anything
        least = {k: plain[k].clamp(min=by_chance.get((k[0], k[2]), 0.0)) for k in plain}
        rows.append((observe(model, stacks, given, everything), least))
    repeats, count = _repeats(model, family, texts, apart)
    keys = [key for key in rows[0][0] if all(key in one and key in base for one, base in rows)]
    scores = {key: _scores(key[2], [(one[key], base[key]) for one, base in rows]) for key in keys}
    for key in repeats[0][0] if repeats else ():
        scores[key] = _scores(key[2], [(one[key], base[key]) for one, base in repeats])
    heads = []
    for stack in dict.fromkeys(stack for stack, _, _ in scores):
        for layer in range(model.config.depth):
            mine = {name: found for (*where, name), found in scores.items() if where == [stack, layer]}
            each = [{name: found[i] for name, found in mine.items()} for i in range(len(mine["broad"]))]
            heads += [Head(stack, layer, i, one) for i, one in enumerate(each)]
    return Report(tuple(heads), len(texts), tokens, count)


def _scores(name: str, pairs: list[tuple[Tensor, Tensor]]) -> list[Score]:
    """One score for each head, from its values and its baselines text by text."""
    values, base = (torch.stack(part).double().numpy() for part in zip(*pairs, strict=True))
    beyond = values - base
    found = []
    for head in range(values.shape[1]):
        low = beyond[:, head].mean() - _margin(beyond[:, head])
        baseline = float(base[:, head].mean())
        # an untrained head is broad already, so breadth is told and never named
        clear = name != "broad" and bool(low >= CLEAR * (1 - baseline))
        found.append(Score(float(values[:, head].mean()), _margin(values[:, head]), baseline, clear))
    return found


def _margin(values: np.ndarray) -> float:
    """Half the width of a 95 % interval of the mean."""
    mean, low, _ = interval(values.tolist())
    return mean - low


def _repeats(
    model: Any, family: str, texts: Sequence[Inputs], apart: Collection[int]
) -> tuple[list[tuple[Found, Found]], int]:
    """Induction on random sequences of the texts' tokens: written twice, and with another one before instead.

    Both have the same second half, so that the tokens that look are the same. The sequences are of all lengths, from a
    few tokens to half the context: a head that has learned to look back ten tokens need not find what is fifty away.
    """
    if family not in ("gpt", "captioner"):
        return [], 0
    kinds = np.unique(np.concatenate([given[0].cpu().numpy().ravel() for given in texts]))
    kinds = kinds[~np.isin(kinds, list(apart))]
    begun = texts[0][0][0, :1].tolist() if family == "captioner" else []
    longest = min((min(model.config.context, LONGEST) - len(begun)) // 2, len(kinds))
    if longest < FEWEST:
        return [], 0
    rng, found = np.random.Generator(np.random.Philox(key=0)), []
    for i, count in enumerate(np.geomspace(FEWEST, longest, DRAWS).round().astype(int).tolist()):
        again, other = (rng.permutation(kinds)[:count].tolist() for _ in range(2))
        rows = [[*begun, *before, *again] for before in (again, other)]
        start = len(begun) + (model.config.before if family == "captioner" else 0)
        stack = Stack("", "blocks.{}.attn.pattern", repeated(model.mask, count, start))
        # what else is read with a text is read with the sequence
        inputs = [(torch.tensor([row], device=texts[0][0].device), *texts[i % len(texts)][1:]) for row in rows]
        twice, once = (observe(model, [stack], given, shares) for given in inputs)
        found.append((twice, once))
    return found, longest
