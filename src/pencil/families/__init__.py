"""The families of models: one record each, registered here."""

from .captioner import FAMILY as CAPTIONER
from .dit import FAMILY as DIT
from .family import FAMILIES, Family, configure, create, family, register
from .gpt import FAMILY as GPT
from .reader import FAMILY as READER
from .seq2seq import FAMILY as SEQ2SEQ
from .vit import FAMILY as VIT

__all__ = ["FAMILIES", "Family", "configure", "create", "family", "register"]

for _record in (GPT, VIT, CAPTIONER, DIT, READER, SEQ2SEQ):
    register(_record)
