"""diff: two traces compared."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..config import UserError
from ..console import note
from .dispatch import reporting_misfits
from .parsing import significant_digits
from .screens.terminal import result_console


def diff(
    a: Path, b: Path, /, *, every: Annotated[bool, Parameter(name="--all", negative=())] = False, digits: int = 4
) -> int:
    """Compare two traces: the first tensor that differs, and by how much; exit status 1 if any does.

    Parameters
    ----------
    a
        A trace file.
    b
        Another of the same model.
    every
        Show all tensors that differ, not only the first.
    digits
        Number of significant digits.
    """
    from ..tracing.receipt import format_number
    from ..tracing.show import differences, only_in
    from ..tracing.trace import read

    first, second = read(a, note), read(b, note)
    console, digits = result_console(), significant_digits(digits)
    shared = len(set(first.names) & set(second.names))
    if not shared:
        raise UserError(f"{a} and {b} have no name in common: they are of different models")
    count = 0
    with reporting_misfits(f"{a} or {b}"):
        every_difference = list(differences(first, second))
    for difference in every_difference:
        count += 1
        if count > 1 and not every:
            continue
        if difference.shapes:
            one, other = ("×".join(map(str, shape)) for shape in difference.shapes)
            line = f"{difference.name} differs: its shape is {one} and {other}"
        else:
            where = ",".join(map(str, difference.index))
            n = first.graph.nodes[first.graph.names[difference.name]]
            called = ((axis, first.called(n, axis, i)) for axis, i in enumerate(difference.index))
            labels = ", ".join(f"{n.letter(axis)} '{label}'" for axis, label in called if label is not None)
            at = f"[{where}] ({labels})" if labels else f"[{where}]"
            most, one, other = (
                format_number(v, digits) for v in (difference.most, difference.first, difference.second)
            )
            line = f"{difference.name} differs by at most {most}, at {at}: {one} and {other}"
        console.print(line, highlight=False, markup=False)
    if count > 1 and not every:
        console.print(f"and {count - 1} more after it, of {shared} (--all)", highlight=False, markup=False)
    for name, alone in ((a, only_in(first, second)), (b, only_in(second, first))):
        if alone:
            console.print(
                f"only in {name}: {', '.join(alone[:5])}{' …' if len(alone) > 5 else ''}", highlight=False, markup=False
            )
    if not count:
        console.print(f"the same: {shared} tensors, to the last bit", highlight=False, markup=False)
    return 1 if count else 0
