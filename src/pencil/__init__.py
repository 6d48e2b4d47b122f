"""Pencil: transformers from pencil arithmetic to production.

`pencil.train` is a package and a function. A package is an attribute of the one above it as soon as it is imported, so
a function of its name would be hidden; the package can be called instead (`CallablePackage`), and calls `api/train.py`.
The verb goes through the same functions there. What was chosen, on the command line, in a file or by plain names, is
one `TrainingRequest` (`api/training_request.py`) before any default is known, so that one rule says what goes over
what.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.7.0"

# name -> module; torch loads only when one of these is first used
_LAZY = {
    "UserError": "config",
    "GPT": "models.gpt",
    "GPTConfig": "models.gpt",
    "ViT": "models.vit",
    "ViTConfig": "models.vit",
    "Captioner": "models.captioner",
    "CaptionerConfig": "models.captioner",
    "Reader": "models.reader",
    "ReaderConfig": "models.reader",
    "Seq2Seq": "models.seq2seq",
    "Seq2SeqConfig": "models.seq2seq",
    "DiT": "models.dit",
    "DiTConfig": "models.dit",
    "Probe": "core.probe",
    "Attention": "core.attention",
    "attend": "core.attention",
    "causal": "core.masks",
    "full": "core.masks",
    "padding": "core.masks",
    "prefix": "core.masks",
    "window": "core.masks",
    "Learned": "core.positions",
    "Sinusoidal": "core.positions",
    "Rope": "core.positions",
    "rotate": "core.positions",
    "Alibi": "core.positions",
    "Shaw": "core.positions",
    "T5": "core.positions",
    "Cache": "core.cache",
    "Span": "core.span",
    "Block": "core.blocks",
    "CrossBlock": "core.blocks",
    "PostBlock": "core.blocks",
    "PostCrossBlock": "core.blocks",
    "AdaBlock": "core.blocks",
    "AdaNormBlock": "core.blocks",
    "MLP": "core.layers",
    "GatedMLP": "core.layers",
    "LayerNorm": "core.layers",
    "RMSNorm": "core.layers",
    "Tokens": "core.embed",
    "Patches": "core.embed",
    "TimestepEmbedding": "core.embed",
    "fold": "core.patches",
    "swap": "core.patches",
    "glue": "core.patches",
    "convert_rope": "models.rope_pairs",
    "diffusion": "inference",  # a module
    "listings": "listings",  # a module: the documents' own names, of arrays
    "configure": "families",
    "create": "families",
    "Sampling": "inference.sampling",
    "complete": "inference.text_stream",
    "stream": "inference.text_stream",
    "load": "api.loading",
    "predict": "api.predict",
    "evaluate": "api.verbs",
    "resume": "api.verbs",
    "verify": "api.verbs",
    "export": "api.interchange.verbs",
    "embed": "api.predict",
    "train": "train",  # a package that can be called
    "trace": "explore.export",  # of a run, with the views of the explorer
    "trace_step": "tracing.step",
    "Task": "api.fit",
    "fit": "api.fit",
}

__all__ = ["__version__", *_LAZY]  # pyright: ignore[reportUnsupportedDunderAll]


class CallablePackage(ModuleType):
    """The package `pencil.train`, which is also what a user calls: a package shadows a function of its name."""

    @property
    def __wrapped__(self) -> Any:
        """The function that is called, which has the signature and the description."""
        return import_module(f"{__package__}.api.train").train

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """Train a model as `pencil train` does: `pencil.train("gpt", "notes.txt", steps=200)`."""
        return self.__wrapped__(*args, **settings)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        if _LAZY[name] == name:
            return import_module(f"{__name__}.{name}")
        if _LAZY[name] == "inference":
            return import_module(f"{__name__}.inference.{name}")
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
