"""The families of models: one record each, registered here."""

from . import captioner, gpt
from .dit import record as dit
from .family import Family
from .reader import record as reader
from .registry import FAMILIES, configure, create, family, parameters, register
from .seq2seq import record as seq2seq
from .vit import record as vit

__all__ = ["FAMILIES", "Family", "configure", "create", "family", "parameters", "register"]

for _module in (gpt, vit, captioner, dit, reader, seq2seq):
    register(_module.FAMILY)
