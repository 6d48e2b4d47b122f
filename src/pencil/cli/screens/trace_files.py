"""The files that `pencil trace` writes: a web page, a spreadsheet, a picture and the trace itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...console import note
from ...files import write_aside
from ...tracing import file, html, picture, xlsx
from ...tracing.part import extract
from ...tracing.trace_base import TraceBase
from .terminal import progress_bar


def part_of(opened: TraceBase, of: Sequence[str] | None, whole: bool) -> TraceBase:
    """Of a trace, what a page and a trace file have: all of it, or the tensors that --of names."""
    if not of:
        return opened
    part = opened if whole else extract(opened, of)[0]
    part.alone = "they are of the whole model, and --of chose a part"
    return part


def write_page(part: TraceBase, path: Path, what: str, options: Any) -> None:
    """The page; of a worked example with its description, else with what was read in its title."""
    from ...learn.worked.examples import EXAMPLES  # loads torch, without which a trace file opens

    name = what.removeprefix("example:")
    text = getattr(options, "given", None)
    read = part.facts.get("moment") if text is None else Path(text).name if Path(text).suffix else text
    title = name if what.startswith("example:") else Path(what).name
    title = title if read is None else f"{title}: {read}"
    title = title.encode(errors="replace").decode()  # a name of a file may be no UTF-8
    about = EXAMPLES[name].__doc__ if name in EXAMPLES else None
    about = f"{(about or '').strip()} Choose a number, and its arithmetic unfolds." if name in EXAMPLES else ""
    with progress_bar(str(path)) as progress:
        size = html.write(part, path, title, about, warn=note, progress=progress)
    note(f"{path}: {size / 1e6:.2f} MB")


def write_sheet(opened: TraceBase, path: Path, of: Sequence[str] | None) -> None:
    with progress_bar(str(path)) as progress:
        xlsx.write(opened, path, of or (), progress)
    note(str(path))


def write_picture(opened: TraceBase, path: Path, of: Sequence[str] | None, query: str | None) -> None:
    write_aside(path, picture.attention(opened, of[0] if of else None, query))
    note(str(path))


def write_trace(part: TraceBase, path: Path) -> None:
    file.write(part, path)
    note(str(path))
