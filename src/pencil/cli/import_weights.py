"""import: a checkpoint of another library becomes a run."""

from math import inf
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich import box
from rich.table import Table

from ..config import UserError
from ..console import Console, note


def import_weights(
    what: str | None = None,
    /,
    *,
    name: str | None = None,
    out: Path | None = None,
    dtype: str | None = None,
    tokenizer: str | None = None,
    without_tokenizer: Annotated[bool, Parameter(negative=())] = False,
    parity: Annotated[bool, Parameter(negative=())] = False,
    force: Annotated[bool, Parameter(negative=())] = False,
    listed: Annotated[bool, Parameter(name="--list", negative=())] = False,
) -> int:
    """Import a checkpoint of another library: it becomes a run, which every verb can use.

    The result computes what the original computes, or the import is refused and nothing is written. Nothing of a
    checkpoint is executed.

    Parameters
    ----------
    what
        hf:OWNER/NAME of the hub (@REVISION pins it), timm:NAME, diffusers:OWNER/NAME, nanogpt:FILE, or the path of a
        folder or of a file of weights.
    name
        Name of the run, under runs/; by default that of the checkpoint.
    out
        Folder of the run, anywhere.
    dtype
        float32, bfloat16 or float16; by default that of the original.
    tokenizer
        A tokenizer.json (or gpt2), where the checkpoint has none.
    without_tokenizer
        Leave out the checkpoint's tokenizer, for one that cannot be used.
    parity
        Compute random inputs, up to the model's context, with the original library too, and show the largest error
        of every block; exit status 1 if one is above 1e-5 of the largest value. The run stays.
    force
        Replace the run of that name.
    listed
        List the architectures that can be imported.
    """
    if listed:
        if what is not None:
            raise UserError(f"--list shows every architecture: leave {what} out")
        return _list()
    if what is None:
        raise UserError(
            "WHAT is missing: pencil import hf:OWNER/NAME, or a folder; pencil import --list shows what can be"
        )
    from ..weights.hub import find_here

    find_here(what)  # before torch is imported
    from ..api.interchange.card import usage
    from ..api.interchange.importing import import_checkpoint
    from ..train.loop.report import shown_progress

    with shown_progress("importing"):
        run = import_checkpoint(
            what,
            name=name,
            out=out,
            dtype=dtype,
            tokenizer=tokenizer,
            without_tokenizer=without_tokenizer,
            force=force,
            notify=note,
        )
    note(f"The run is in {run.path}. Use it with:", f"  {usage(run)}")
    if parity:
        return _parity(what, run.path)
    return 0


def _list() -> int:
    from ..api.interchange.exporting import LIBRARIES
    from ..api.interchange.importing import list_architectures

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("architecture", "library", "becomes a", "export"):
        table.add_column(column)
    words = {library: word for word, library in LIBRARIES.items()}
    for record, one in list_architectures():
        exports = one.describe is not None and one.library in words
        table.add_row(one.name, one.library, record.name, f"--to {words[one.library]}" if exports else "no")
    Console(soft_wrap=True).print(table)
    return 0


def _parity(what: str, path: Path) -> int:
    """The table of errors; exit status 1 if one is too large."""
    from ..api.interchange.parity import compared

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("value", "largest error", "of the largest value"):
        table.add_column(column, justify="left" if column == "value" else "right")
    comparison = compared(what, path)
    for row in comparison.rows:
        table.add_row(row.name, f"{row.error:.1e}", f"{row.relative:.1e}")
    Console(soft_wrap=True).print(table)
    kind = str(comparison.rounded).removeprefix("torch.")
    before = "" if comparison.rounded is None else f", from the weights as they are before they are rounded to {kind}"
    worst, how = comparison.worst, f"(computed in float32{before})"
    if worst.relative == inf:
        note(f"NOT equal: {worst.name} has NaN or infinity, which equals nothing {how}")
    else:
        note(
            f"{'equal' if comparison.equal else 'NOT equal'}: the largest error is {worst.relative:.1e} of the largest "
            f"value, in {worst.name} {how}"
        )
    for line in comparison.notes:
        note(line)
    return 0 if comparison.equal else 1
