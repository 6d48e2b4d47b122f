"""The families of models: one record each, registered here."""

from . import captioner, dit, gpt, reader, seq2seq, vit
from .embed_run import embed
from .loading import load, load_model, open_run
from .predict_run import predict
from .record import Family
from .registry import FAMILIES, configure, create, family, parameters, register
from .trace_run import trace

__all__ = [
    "FAMILIES", "Family", "configure", "create", "embed", "family", "load", "load_model", "open_run", "parameters",
    "predict", "register", "trace",
]  # fmt: skip

for _module in (gpt, vit, captioner, dit, reader, seq2seq):
    register(_module.FAMILY)
