"""Words that belong together in a sentence, and the heads that attend from one to the other.

Document 003 names three such relations: a pronoun and what it stands for ("it" and "street"), a pronoun and a person
("he" and "John"), and a verb and its object. In a model that reads from left to right only the later word can attend to
the earlier one, so an object attends to its verb.

Which head does it is chosen on one half of the sentences, and its score measured on the other: the best of many heads
is always above chance on the sentences it was chosen on.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...config import UserError
from ...core.probe import Probe
from ...inference.head_patterns import SELF_ATTENTION
from ...runs.run import Loaded
from ..lab.verdict import interval
from .scores import CLEAR

Pair = tuple[str, str, str]  # a sentence, the later word, and the earlier one that it belongs to


class Relation(NamedTuple):
    """A kind of pair, with its sentences: heads are chosen on every other one, and measured on the rest."""

    name: str
    pairs: tuple[Pair, ...]


IT = (
    ("The animal did not cross the street because it was too wide.", "it", "street"),
    ("The animal did not cross the street because it was too tired.", "it", "animal"),
    ("The captain could not open the door because it was too heavy.", "it", "door"),
    ("The sailor did not eat the bread because it was too old.", "it", "bread"),
    ("The ship did not pass the bridge because it was too low.", "it", "bridge"),
    ("The ship did not pass the bridge because it was too large.", "it", "ship"),
    ("The men left the boat on the shore because it was too small.", "it", "boat"),
    ("The Congress did not pass the law because it was too strong.", "it", "law"),
    ("The people did not read the message because it was too long.", "it", "message"),
    ("The whale could not follow the ship because it was too fast.", "it", "ship"),
    ("The country did not pay the debt because it was too poor.", "it", "country"),
    ("The whale could not follow the ship because it was too slow.", "it", "whale"),
)
HE = (
    ("John warned the men that he was late.", "he", "John"),
    ("John gave Mary the letter that he had written.", "he", "John"),
    ("John saw the whale when he came on deck.", "he", "John"),
    ("John left the house because he was tired.", "he", "John"),
    ("Peter warned Mary that he would go to sea.", "he", "Peter"),
    ("The captain warned the men that he was ready.", "he", "captain"),
    ("The President warned Congress that he would sign the law.", "he", "President"),
    ("The sailor lost the boat when he went to sleep.", "he", "sailor"),
    ("George wrote to Anne that he had found work.", "he", "George"),
    ("The man sold the house because he was poor.", "he", "man"),
    ("Thomas asked the women whether he could stay.", "he", "Thomas"),
    ("The king left the city because he was afraid.", "he", "king"),
)
OBJECT = (
    ("The captain opened the old door.", "door", "opened"),
    ("The people read the long message.", "message", "read"),
    ("The men built a new ship.", "ship", "built"),
    ("The Congress passed the new law.", "law", "passed"),
    ("The sailor ate the white bread.", "bread", "ate"),
    ("The whale broke the small boat.", "boat", "broke"),
    ("The country paid the public debt.", "debt", "paid"),
    ("The king left the great city.", "city", "left"),
    ("The woman wrote a short letter.", "letter", "wrote"),
    ("The man sold the old house.", "house", "sold"),
    ("The President signed the first treaty.", "treaty", "signed"),
    ("The boy saw the white whale.", "whale", "saw"),
)
RELATIONS = (
    Relation("it → what it stands for", IT),
    Relation("he → the person", HE),
    Relation("object → its verb", OBJECT),
)
SENTENCES = " ".join(text for relation in RELATIONS for text, *_ in relation.pairs)


@dataclass(frozen=True)
class RelationScore:
    """The best head for a relation, and its share of attention on the other half of the sentences."""

    name: str
    layer: int
    head: int
    mean: float
    margin: float  # half the width of the 95 % interval of the mean
    chance: float  # the same for attention spread evenly over the tokens so far
    clear: bool  # beyond chance by as much as a head needs to be named

    @property
    def verdict(self) -> str:
        return "learnt" if self.clear else "at chance" if self.mean - self.margin <= self.chance else "weak"


def relation_scores(loaded: Loaded, relations: Sequence[Relation] = RELATIONS) -> list[RelationScore]:
    """For each relation the head that attends most from one word to the other, beside chance."""
    tokenizer, model = loaded.tokenizer, loaded.model
    if tokenizer is None or not _reads_left_to_right(model):
        raise UserError(
            f"{loaded.run.path} does not read a text from left to right: --relations is for a gpt; leave it out"
        )
    return [_score(relation, model, tokenizer) for relation in relations]


def _reads_left_to_right(model: Any) -> bool:
    at = torch.arange(2)
    mask = getattr(model, "mask", None)
    return mask is not None and hasattr(model, "output_matrix") and not bool(mask(at[:, None], at[None])[0, 1])


def _score(relation: Relation, model: Any, tokenizer: Any) -> RelationScore:
    rows, chances = zip(*(_shares(pair, model, tokenizer) for pair in relation.pairs), strict=True)
    shares, chance = torch.stack(rows), torch.tensor(chances, dtype=torch.float64)  # sentences × blocks × heads
    chosen = shares[::2].mean(0)
    layer, head = divmod(int(chosen.argmax()), chosen.shape[1])
    measured, by_chance = shares[1::2, layer, head], chance[1::2]
    mean, low, _ = interval(measured.tolist())
    beyond = interval((measured - by_chance).tolist())[1]
    level = float(by_chance.mean())
    return RelationScore(relation.name, layer, head, mean, mean - low, level, beyond >= CLEAR * (1 - level))


@torch.no_grad()
def _shares(pair: Pair, model: Any, tokenizer: Any) -> tuple[Tensor, float]:
    """Each head's attention from the last token of the later word to all tokens of the earlier one; and chance."""
    text, later, earlier = pair
    ids = tokenizer.encode(text).tolist()
    query, keys = tokens_of(later, text, ids, tokenizer.decode)[-1], tokens_of(earlier, text, ids, tokenizer.decode)
    probe = Probe(SELF_ATTENTION.format("*"))
    model(torch.tensor([ids], device=next(model.parameters()).device), probe=probe)
    patterns = [values[0, :, query, keys].sum(-1) for values in probe.values.values()]
    return torch.stack(patterns).double().cpu(), len(keys) / (query + 1)


def tokens_of(word: str, text: str, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[int]:
    """The places of the tokens that a word is written with."""
    match = re.search(rf"\b{re.escape(word)}\b", text)
    assert match is not None, f"{word} is no word of {text!r}"
    ends = [len(decode(ids[: i + 1])) for i in range(len(ids))]
    begins = [0, *ends[:-1]]
    return [i for i in range(len(ids)) if begins[i] < match.end() and ends[i] > match.start()]


def about(scores: Sequence[RelationScore]) -> list[str]:
    """The scores in sentences."""
    lines = [
        f"{score.name}: head {score.layer}.{score.head}, {100 * score.mean:.0f} ±{100 * score.margin:.0f} % of its "
        f"attention, by chance {100 * score.chance:.0f} %: {score.verdict}"
        for score in scores
    ]
    half = len(RELATIONS[0].pairs) // 2
    lines.append(f"The head was chosen on {half} sentences and measured on {half} others; ± is a 95 % interval.")
    return lines
