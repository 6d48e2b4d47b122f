"""verify: whether a run is whole."""

from pathlib import Path

from ..config import UserError
from .names import check_run
from .terminal import note, result_console


def verify(run: Path, /) -> int:
    """Verify a run: its settings, tokenizer, weights, every checkpoint and its caches, by size and SHA-256.

    One line each: whole, or damaged, missing, renamed or foreign (of another run or other settings). The exit status is
    1 if anything is not whole.

    Parameters
    ----------
    run
        The run's folder.
    """
    check_run(run)
    from ..families.verifying import verify_run

    console, whole, faults = result_console(), 0, 0
    try:
        for path, fault in verify_run(run):
            whole, faults = whole + (fault is None), faults + (fault is not None)
            kind, line = ("whole", path) if fault is None else (fault.kind, fault)
            console.print(f"{kind:8} {line}", highlight=False, markup=False)
    except UserError as error:
        if whole + faults == 0:
            raise
        faults += 1
        console.print(f"{'damaged':8} {error}", highlight=False, markup=False)
    note(f"{run}: {whole} whole" + (f", {faults} not" if faults else ""))
    return 1 if faults else 0
