"""heads."""

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from ..config import UserError, can_be_written

WIDTH = 100  # of the table, where the terminal does not say


def heads(
    run: Path,
    /,
    *,
    text: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    prompt: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    out: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    device: str = "auto",
) -> int:
    """What the heads of a trained model look at: scores beside what they would be by chance, as a table and a picture.

    How much of its attention each head gives to the token before, the first token, the token itself, and, in a sequence
    written twice, to what came after the same token the first time (induction); and how broadly it looks. A head is
    named only where its score is clearly beyond its baseline.

    Parameters
    ----------
    run
        The run's folder.
    text
        A file of text to measure on, or - for standard input; the run's own held-out data when not given.
    prompt
        The same, typed.
    out
        The picture's file; heads.png in the run's folder when not given.
    as_json
        The numbers as one JSON object, instead of the table.
    device
        auto, cpu, cuda or mps.
    """
    if text is not None and prompt is not None:
        raise UserError("--text and --prompt are both a text to measure on: give one of them")
    can_be_written("--out", out, ".png")
    typed = prompt if text is None else _read(text)

    from ..files import write_aside
    from ..learn.heads import show
    from ..learn.heads.scores import measure
    from ..learn.heads.texts import apart, given_to
    from ..runs import load
    from ..train.loop import pick_device

    loaded = load(run, pick_device(device))
    texts = given_to(loaded, typed)
    family = loaded.run.family
    report = measure(loaded.model, family, texts, apart(loaded))
    path = out or loaded.run.path / "heads.png"
    write_aside(path, show.picture(report, f"{run.resolve().name}: what each head looks at"))
    if as_json:
        print(json.dumps(show.as_data(report)))
    else:
        console = Console(soft_wrap=True) if sys.stdout.isatty() else Console(width=WIDTH, soft_wrap=True)
        for table in show.tables(report):
            console.print(table)
        for line in [*show.words(report), *show.about(report), show.measured_on(report, family, typed is None)]:
            console.print(line, highlight=False, markup=False)
    Console(stderr=True).print(str(path), highlight=False, markup=False, soft_wrap=True)
    return 0


def _read(name: str) -> str:
    """The text of a file, or of standard input."""
    try:
        return sys.stdin.read() if name == "-" else Path(name).expanduser().read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{'standard input' if name == '-' else name} is not UTF-8 text") from None
