"""Pencil: transformers from pencil arithmetic to production."""

from importlib import import_module
from typing import Any

__version__ = "0.7.0"

# name -> module; torch loads only when one of these is first used
_LAZY = {
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
    "Cache": "core.cache",
    "Span": "core.span",
    "attend": "core.attention",
    "configure": "families",
    "create": "families",
    "complete": "inference.generation",
    "stream": "inference.generation",
    "load": "families",
    "trace": "tracing.record",
}

__all__ = ["__version__", *_LAZY]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
