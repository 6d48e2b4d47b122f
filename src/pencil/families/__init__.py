"""The families of models: one record each, registered here."""

from .captioner import FAMILY as CAPTIONER
from .dit.record import FAMILY as DIT
from .family import Family
from .gpt import FAMILY as GPT
from .reader.record import FAMILY as READER
from .registry import FAMILIES, configure, create, family, parameters, register
from .seq2seq.record import FAMILY as SEQ2SEQ
from .vit.record import FAMILY as VIT

__all__ = ["FAMILIES", "Family", "configure", "create", "family", "parameters", "register"]

for _record in (GPT, VIT, CAPTIONER, DIT, READER, SEQ2SEQ):
    register(_record)
