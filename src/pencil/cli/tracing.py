"""why, trace, show and diff."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from ..config import UserError, can_be_written

Words = Annotated[list[str] | None, Parameter(negative=(), allow_leading_hyphen=True)]
Text = Annotated[str | None, Parameter(allow_leading_hyphen=True)]
SUFFIX = ".safetensors"


@Parameter(name="*")
@dataclass(frozen=True)
class Reading:
    """What a run's model reads.

    Parameters
    ----------
    given
        What the model reads: a text, or a picture's file for a vit or a captioner.
    text
        What a captioner says of the picture, or a seq2seq of its source; their own words when not given.
    label
        What a dit draws, by the name of its class; it reads what pencil sample would hand it at one step from noise.
    prompt
        What a dit draws, as a text, if it was trained with texts.
    step
        Which of its steps a dit is at: 1 is pure noise; the middle one when not given.
    steps
        In how many steps a dit would come from noise to a picture. 50 when not given.
    seed
        Of the noise a dit begins with. 0 when not given.
    guidance
        How hard a dit is pushed towards what was asked for: 1, not at all, when not given. At any other it is asked
        twice at each step, and the second row of every tensor is what it says when told nothing.
    """

    given: Annotated[Text, Parameter(name="--input")] = None
    text: Text = None
    label: str | None = None
    prompt: Text = None
    step: int | None = None
    steps: int | None = None
    seed: int | None = None
    guidance: float | None = None

    @property
    def options(self) -> list[str]:
        """Those that were given, as they were typed."""
        return ["--input" if name == "given" else f"--{name}" for name, v in vars(self).items() if v is not None]


NOTHING = Reading()


def why(
    what: str,
    cell: str,
    /,
    *,
    reading: Reading = NOTHING,
    edit: Words = None,
    digits: int = 4,
) -> int:
    """Unfold one number into its arithmetic, and check that against what was recorded.

    Parameters
    ----------
    what
        A run's folder, a trace file, or a worked example: example:vit-4x4.
    cell
        A name and an index, as in 'blocks.0.attn.scores[0,1,2,3]'; pencil show lists the names.
    edit
        Change a value on the way: 'blocks.0.attn.pattern[:,2]=0'; may be given again.
    digits
        How many significant digits to write.
    """
    from ..tracing.show import receipt

    trace = _open(what, reading, edit)
    found = trace[cell].why(_digits(digits))
    receipt(found, trace, _console())
    return 0 if found.agrees else 1


def trace(
    what: str,
    /,
    *,
    reading: Reading = NOTHING,
    edit: Words = None,
    html: Path | None = None,
    xlsx: Path | None = None,
    png: Path | None = None,
    of: str | None = None,
    query: str | None = None,
    out: Path | None = None,
) -> int:
    """Record every operation of one run of a model, and write it as a page, a spreadsheet, a picture or a file.

    Parameters
    ----------
    what
        A run's folder, a trace file, or a worked example: example:vit-4x4.
    edit
        Change a value on the way: 'blocks.0.attn.pattern[:,2]=0'; may be given again.
    html
        Write one page that opens anywhere: click a number and its arithmetic unfolds.
    xlsx
        Write a spreadsheet of live formulas, in double precision.
    png
        Write heat maps of the attention, one a head.
    of
        Which tensor --png draws; the last block's pattern when not given.
    query
        With --png: the word or the number of one query, whose attention is drawn over the picture that was read.
    out
        Write the trace itself, to be shown, compared or asked later.
    """
    for name, path, *endings in (
        ("--html", html, ".html", ".htm"),
        ("--xlsx", xlsx, ".xlsx"),
        ("--png", png, ".png"),
        ("--out", out, ".safetensors"),
    ):
        can_be_written(name, path, *endings)
    if (of or query) and png is None:
        raise UserError("--of and --query say what --png draws: give --png too")
    found = _open(what, reading, edit)
    say = Console(stderr=True, soft_wrap=True)
    if html:
        from ..tracing import html as page

        title, about = _title(what, reading.given, found), _about(what)
        size = page.write(found, html, title, about, tell=lambda line: say.print(line, highlight=False, markup=False))
        say.print(f"{html}: {size / 1e6:.2f} MB", highlight=False, markup=False)
    if xlsx:
        from ..tracing import xlsx as sheet

        sheet.write(_open(what, reading, edit, double=True), xlsx)
        say.print(str(xlsx), highlight=False, markup=False)
    if png:
        from ..files import write_aside
        from ..tracing import picture

        write_aside(png, picture.attention(found, of, query))
        say.print(str(png), highlight=False, markup=False)
    if out:
        from ..tracing.file import write

        write(found, out)
        say.print(str(out), highlight=False, markup=False)
    if not (html or xlsx or png or out):
        from ..tracing.show import names

        names(found, _console())
    return 0


def show(
    what: str,
    name: str | None = None,
    /,
    *,
    reading: Reading = NOTHING,
    digits: int = 4,
) -> int:
    """A tensor of a trace as a table, coloured by value; without a name, the names.

    Parameters
    ----------
    what
        A trace file, a run's folder, or a worked example: example:vit-4x4.
    name
        Its name, and an index if only a part is wanted: 'blocks.0.attn.pattern[0,2]'.
    digits
        How many significant digits to write.
    """
    from ..tracing.show import names, tables

    found = _open(what, reading, None)
    console = _console()
    if name is None:
        names(found, console)
    else:
        tables(found[name], console, _digits(digits))
    return 0


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
        All tensors that differ, not only the first.
    digits
        How many significant digits to write.
    """
    from ..tracing.file import read
    from ..tracing.receipt import say
    from ..tracing.show import differences, only_in

    first, second = read(a), read(b)
    console, digits = _console(), _digits(digits)
    shared = len(set(first.names) & set(second.names))
    if not shared:
        raise UserError(f"{a} and {b} have no name in common: they are of different models")
    count = 0
    for found in differences(first, second):
        count += 1
        if count > 1 and not every:
            continue
        if found.shapes:
            one, other = ("×".join(map(str, shape)) for shape in found.shapes)
            line = f"{found.name} differs: its shape is {one} and {other}"
        else:
            where = ",".join(map(str, found.index))
            most, one, other = (say(v, digits) for v in (found.most, found.first, found.second))
            line = f"{found.name} differs by at most {most}, at [{where}]: {one} and {other}"
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


def _console() -> Console:
    """Standard output: as wide as it needs to be where nobody's terminal limits it."""
    console = Console(soft_wrap=True)
    return console if console.is_terminal else Console(soft_wrap=True, width=10_000)


def _digits(digits: int) -> int:
    if not 1 <= digits <= 17:
        raise UserError(f"--digits must be from 1 to 17, not {digits}")
    return digits


def _title(what: str, given: str | None, found: Any) -> str:
    name = what.removeprefix("example:") if what.startswith("example:") else Path(what).name
    read = found.facts.get("moment") if given is None else Path(given).name if Path(given).suffix else given
    return name if read is None else f"{name}: {read}"


def _about(what: str) -> str:
    """What a worked example says of itself."""
    from ..learn.examples import EXAMPLES

    made = EXAMPLES.get(what.removeprefix("example:"))
    return f"{(made.__doc__ or '').strip()} Choose a number, and its arithmetic unfolds." if made else ""


def _open(what: str, reading: Reading, edits: list[str] | None, double: bool = False) -> Any:
    """The trace that a word names: of an example, from a file, or of a run with its input."""
    if what.startswith("example:"):
        from ..learn.examples import example

        if reading.options:
            raise UserError(f"{what} has its own input: leave {' and '.join(reading.options)} out")
        found: Any = example(what.removeprefix("example:"))
    elif Path(what).is_dir():
        from .opening import trace_run

        found = trace_run(Path(what), reading, double)
    else:
        from ..learn.examples import EXAMPLES
        from ..tracing.file import read

        if not Path(what).exists() and not what.endswith(SUFFIX):
            hint = f"; for the worked example say example:{what}" if what in EXAMPLES else ""
            raise UserError(f"{what} is no run's folder, no trace file and no example:NAME{hint}")
        if late := reading.options + ["--edit"] * bool(edits):
            raise UserError(f"{what} is a trace that was recorded: leave {' and '.join(late)} out, or name its run")
        return read(what)
    for one in edits or ():
        where, equals, value = one.rpartition("=")
        try:
            found = found.edit(where, float(value))
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{one!r} is not an edit, such as 'blocks.0.attn.pattern[:,2]=0'") from None
        if not equals:
            raise UserError(f"{one!r} is not an edit, such as 'blocks.0.attn.pattern[:,2]=0'")
    return found
