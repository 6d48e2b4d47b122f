"""verify: whether a run is whole."""

from pathlib import Path

from ..config import UserError
from ..console import note, visible
from .names import check_run
from .screens.terminal import result_console

NAMED_FILES = 10  # files in one sentence


def verify(run: Path, /) -> int:
    """Verify a run: its settings, tokenizer, weights, record of its data, every checkpoint and its caches, by size and
    SHA-256.

    One line each: whole, or damaged, missing, renamed or foreign (of another run or other settings). The exit status is
    1 if anything is not whole. What is not hashed is named after them, and so are files that Pencil did not write into
    the folder and does not read.

    Parameters
    ----------
    run
        The run's folder.
    """
    folder = check_run(run)
    from ..api.verifying import not_verified, verify_run

    console, whole, faults = result_console(), 0, 0
    try:
        for path, fault in verify_run(folder):
            whole, faults = whole + (fault is None), faults + (fault is not None)
            kind, line = ("whole", path) if fault is None else (fault.kind, fault)
            console.print(visible(f"{kind:8} {line}", one_line=True), highlight=False, markup=False)
    except UserError as error:
        if whole + faults == 0:
            raise
        faults += 1
        console.print(visible(f"{'damaged':8} {error}", one_line=True), highlight=False, markup=False)
    verdict = f"{run}: {whole} whole" + (f", {faults} not" if faults else "")
    for what, names in zip(("not hashed", "foreign, and not read"), not_verified(folder), strict=True):
        more = f" and {len(names) - NAMED_FILES} more" * (len(names) > NAMED_FILES)
        verdict += f"; {what}: {', '.join(names[:NAMED_FILES])}{more}" if names else ""
    note(verdict)
    return 1 if faults else 0
