"""figures: the figures of a document, drawn from traces."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ..config import UserError, expand_path
from ..console import note


def figures(
    document: str,
    /,
    *,
    out: Annotated[str, Parameter(help="The folder to write them to; it is made if there is none.")],
    format: Literal["svg", "png"] = "svg",
) -> int:
    """Draw the figures of a document again, with numbers from traces of the worked examples.

    Parameters
    ----------
    document
        The document: 002, whose four figures are attention as a lookup, the block, one head and several heads.
    format
        svg, whose text can be searched, or png.
    """
    from ..files import write_aside
    from ..learn.figures import FIGURES, drawn

    if document not in FIGURES:
        raise UserError(f"there are no figures of {document}; those of {', '.join(FIGURES)} can be drawn")
    folder: Path = expand_path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{out} is a file; --out is the folder to write the figures to")
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in FIGURES[document].items():
        path = folder / f"{document}-{name}.{format}"
        write_aside(path, drawn(figure(), format))
        note(str(path))
    return 0
