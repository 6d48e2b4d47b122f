"""`pencil.export`: what the verb does, from Python."""

from pathlib import Path
from typing import Any

from ...console import note
from ..verbs import run_path
from .exporting import export_run


def export(
    run: Any,
    to: str = "hf",
    *,
    out: str | Path | None = None,
    dtype: str | None = None,
    quantize: str | None = None,
    force: bool = False,
    quiet: bool = False,
) -> Path:
    """Export a run as `pencil export` does, by its options; the folder that was written.

    `to` is "hf" (transformers), "timm", "diffusers" or "onnx".
    """
    notify = (lambda line: None) if quiet else note
    folder = None if out is None else Path(out)
    return export_run(run_path(run), to, out=folder, dtype=dtype, quantize=quantize, force=force, notify=notify)
