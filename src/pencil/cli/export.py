"""export: a run becomes a checkpoint of another library, or files of ONNX."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..console import note
from .names import check_run


def export(
    run: Path,
    /,
    *,
    to: str = "hf",
    out: Path | None = None,
    dtype: str | None = None,
    quantize: str | None = None,
    force: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Export a run: a folder with weights, config, tokenizer and card that another library or runtime loads.

    What it computes there is what it computes here; a setting that the library cannot express is refused by name.

    Parameters
    ----------
    run
        The run's folder.
    to
        hf (transformers), timm, diffusers, or onnx (which needs the extra onnx).
    out
        Folder to write; by default exports/RUN-LIBRARY.
    dtype
        float32, bfloat16 or float16; by default that of the run's weights.
    quantize
        int8: with --to onnx, matrices in whole numbers; how far they are from the model is printed.
    force
        Replace a former export of that name; a folder that holds anything else is refused.
    """
    check_run(run)
    from ..api.interchange.exporting import export_run

    export_run(run, to, out=out, dtype=dtype, quantize=quantize, force=force, notify=note)
    return 0
