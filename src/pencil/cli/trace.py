"""why, trace, show and diff."""

# the options of a command are those of its family, which is known when the command is made
# pyright: reportInvalidTypeForm=false
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..config import UserError, check_output, refuse
from ..console import note
from .dispatch import TRACE_FILE, reporting_misfits
from .parsing import significant_digits
from .screens.terminal import progress_bar, result_console

if TYPE_CHECKING:
    from ..families.family import Family
    from ..tracing.trace_base import TraceBase

STEP_NAMES = ("grad:", "clipped:", "new:", "old:", "norm:", "muon:", "grad_norm")  # that only a training step has
Hidden = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]
Edits = Annotated[
    list[str] | None,
    Parameter(
        group="Input",
        negative=(),
        allow_leading_hyphen=True,
        help="Set values during the forward pass: 'blocks.0.attn.pattern[:,2]=0', 'blocks.0.post[0,cat]=0'; after = "
        "also mean (over the positions that each may attend to), noise:DEVIATION:SEED (added) or patch; may be "
        "repeated.",
    ),
]
PatchFrom = Annotated[
    str | None,
    Parameter(
        group="Input",
        allow_leading_hyphen=True,
        help="Another text or image, whose values an --edit with =patch takes.",
    ),
]
Digits = Annotated[int, Parameter(group="Output", help="Number of significant digits.")]
Contributions = Annotated[
    bool,
    Parameter(
        group="Output",
        negative=(),
        help="Instead: what each head, MLP, embedding and bias added to the number, largest first.",
    ),
]
Against = Annotated[
    str | None,
    Parameter(
        group="Output",
        allow_leading_hyphen=True,
        help="With --contributions: to the difference from this label (or index) along the last axis.",
    ),
]
Html = Annotated[
    Path | None,
    Parameter(
        group="Output",
        help="One self-contained web page: click a number to see how it was computed. Of a run: the views of "
        "pencil explore, at most 5 MB; the page names what it leaves out.",
    ),
]
Xlsx = Annotated[Path | None, Parameter(group="Output", help="A spreadsheet with formulas, in double precision.")]
Png = Annotated[Path | None, Parameter(group="Output", help="Heat maps of the attention, one for each head.")]
Of = Annotated[
    list[str] | None,
    Parameter(
        group="Output",
        negative=(),
        help="Only these tensors: 'blocks.1.*', or of a tensor a part: 'blocks.1.attn.*[0,head 2]' (a page and "
        "a trace file have the whole tensor); may be repeated. What they read from elsewhere is given as "
        "values. With --png: the one tensor to draw.",
        show_default=lambda _: "all; with --png the last attention pattern",
    ),
]
Query = Annotated[
    str | None,
    Parameter(
        group="Output",
        help="With --png: the attention of one query over the image. WORD is the step that produced the word "
        "(WORD#2: its second occurrence); 'patch 1,2' or an index is that token's own row.",
    ),
]
Out = Annotated[
    Path | None,
    Parameter(group="Output", help="The trace itself (.safetensors), for pencil show, why and diff."),
]


@dataclass(frozen=True)
class StepOptions:
    """Whether a training step is recorded, and which."""

    update: Annotated[
        bool,
        Parameter(
            group="Training step",
            negative=(),
            help="Record a training step on the input: forward, loss, backward and the optimizer's update. A number of "
            "it is named grad:NAME, clipped:NAME or new:NAME. The run is not changed.",
        ),
    ] = False
    update_at: Annotated[
        int | None,
        Parameter(
            group="Training step",
            help="Instead of an input: the update that the run made after this step, on its own batch, from its "
            "weights and moments of then; those are made again from the newest checkpoint before it.",
        ),
    ] = None

    @property
    def asked(self) -> bool:
        return self.update or self.update_at is not None


def why(what: str, cell: str, /, *options: Hidden) -> int:
    """Show how one number was computed, and check the result against the recorded one.

    The options depend on the family of the run: pencil why RUN --help lists them.

    Parameters
    ----------
    what
        A run's folder, a trace file, or a worked example: example:vit-4x4.
    cell
        The tensor's name, and an index or a token for each axis: 'blocks.0.attn.scores[0,1,2,3]',
        'logits[0,cat,sat]'; pencil show WHAT lists the names. An index counts from 0. A name counts from 1 (head 1,
        patch 1); cat#2 is the second cat, and "3" in quotes is the token 3.
    """
    raise AssertionError("why is dispatched by family")


def trace(what: str, /, *options: Hidden) -> int:
    """Record every operation of one forward pass, and write it as a web page, a spreadsheet, a picture or a file.

    The options depend on the family of the run: pencil trace RUN --help lists them.

    Parameters
    ----------
    what
        A run's folder, a trace file, or a worked example: example:vit-4x4.
    """
    raise AssertionError("trace is dispatched by family")


def show(what: str, name: str | None = None, /, *options: Hidden) -> int:
    """Show a tensor of a trace as a table, coloured by value; without NAME, list the tensors.

    The options depend on the family of the run: pencil show RUN --help lists them.

    Parameters
    ----------
    what
        A trace file, a run's folder, or a worked example: example:vit-4x4.
    name
        The tensor's name, and indices or tokens for a part of it: 'blocks.0.attn.pattern[0,2]', 'logits[0,cat]'. An
        index counts from 0. A name counts from 1 (head 1, patch 1); cat#2 is the second cat, and "3" in quotes is the
        token 3.
    """
    raise AssertionError("show is dispatched by family")


def _help_of(verb: Callable[..., int]) -> str:
    """The help of a verb, without the sentence that leads to the help of a run."""
    return "\n\n".join(part for part in (verb.__doc__ or "").split("\n\n") if "The options depend on" not in part)


@dataclass(frozen=True)
class NoInput:
    """An example or a trace file has its own input; the families, which need torch, are not imported."""


def trace_options(record: "Family | None") -> Any:
    """The options type of what a run's model reads; without a family (an example, a trace file) there are none."""
    if record is not None and record.trace is None:
        raise UserError(
            f"a {record.name} cannot be traced from the command line; pencil.trace(model, …) does it in Python"
        )
    return NoInput if record is None else record.trace_options


def why_command(record: "Family | None") -> Callable[..., int]:
    """The command for one family."""
    kind = trace_options(record)

    def command(
        what: str,
        cell: str,
        /,
        *,
        options: Annotated[kind, Parameter(name="*", show=record is not None)] = kind(),  # noqa: B008
        step: Annotated[StepOptions, Parameter(name="*", show=record is not None)] = StepOptions(),  # noqa: B008
        edit: Edits = None,
        patch_from: PatchFrom = None,
        contributions: Contributions = False,
        against: Against = None,
        digits: Digits = 4,
    ) -> int:
        from ..tracing.show import contributions as contribution_table
        from ..tracing.show import receipt

        if against is not None and not contributions:
            raise UserError("--against is what --contributions compares with: give --contributions too")
        if cell.startswith(STEP_NAMES) and step.update_at is None:
            step = StepOptions(update=True)
        opened = open_trace(what, record, options, edit, step=step, patch_from=patch_from)
        if contributions:
            contribution_table(opened.contributions(cell, against), result_console(), significant_digits(digits))
            return 0
        reasons = opened[cell].why(significant_digits(digits))
        receipt(reasons, opened, result_console())
        return 0 if reasons.agrees else 1

    command.__doc__ = _help_of(why)
    return command


def trace_command(record: "Family | None") -> Callable[..., int]:
    """The command for one family."""
    kind = trace_options(record)

    def command(
        what: str,
        /,
        *,
        options: Annotated[kind, Parameter(name="*", show=record is not None)] = kind(),  # noqa: B008
        step: Annotated[StepOptions, Parameter(name="*", show=record is not None)] = StepOptions(),  # noqa: B008
        edit: Edits = None,
        patch_from: PatchFrom = None,
        html: Html = None,
        xlsx: Xlsx = None,
        png: Png = None,
        of: Of = None,
        query: Query = None,
        out: Out = None,
    ) -> int:
        check_files(html, xlsx, png, out, of, query)
        opened = open_trace(what, record, options, edit, step=step, patch_from=patch_from)
        if not (html or xlsx or png or out):
            from ..tracing.show import names

            names(opened, result_console())
            return 0
        from ..files import write_aside
        from ..tracing import attention_heatmaps
        from ..tracing.file import write as write_trace
        from ..tracing.subgraph import extract
        from ..tracing.xlsx import write as write_sheet

        part = opened
        if of and (html or out):
            part = extract(opened, of)[0]
            part.alone = "they are of the whole model, and --of chose a part"
        if html:
            _write_page(part, html, what, options)
        if xlsx:
            exact = open_trace(what, record, options, edit, True, step, patch_from)
            with progress_bar(str(xlsx)) as progress:
                write_sheet(exact, xlsx, of or (), progress)
            note(str(xlsx))
        if png:
            write_aside(png, attention_heatmaps.attention(opened, of[0] if of else None, query))
            note(str(png))
        if out:
            write_trace(part, out)
            note(str(out))
        return 0

    command.__doc__ = _help_of(trace)
    return command


def _write_page(part: "TraceBase", path: Path, what: str, options: Any) -> None:
    """The page; of a worked example with its description, else with what was read in its title."""
    from ..learn.worked.examples import EXAMPLES  # loads torch, without which a trace file opens
    from ..tracing.html import write

    name = what.removeprefix("example:")
    text = getattr(options, "given", None)
    read = part.facts.get("moment") if text is None else Path(text).name if Path(text).suffix else text
    title = name if what.startswith("example:") else Path(what).name
    title = title if read is None else f"{title}: {read}"
    title = title.encode(errors="replace").decode()  # a name of a file may be no UTF-8
    about = EXAMPLES[name].__doc__ if name in EXAMPLES else None
    about = f"{(about or '').strip()} Choose a number, and its arithmetic unfolds." if name in EXAMPLES else ""
    with progress_bar(str(path)) as progress:
        size = write(part, path, title, about, warn=note, progress=progress)
    note(f"{path}: {size / 1e6:.2f} MB")


def check_files(
    html: Path | None, xlsx: Path | None, png: Path | None, out: Path | None, of: list[str] | None, query: str | None
) -> None:
    """Refuse files that cannot be written and options that choose of a file which is not."""
    check_output("--html", html, ".html", ".htm")
    check_output("--xlsx", xlsx, ".xlsx")
    check_output("--png", png, ".png")
    check_output("--out", out, TRACE_FILE)
    refuse(
        (query and png is None, "--query chooses what --png draws: give --png too"),
        (
            of and not (html or xlsx or png or out),
            "--of chooses what --html, --xlsx, --png or --out writes: give one of them too",
        ),
        (png and len(of or ()) > 1, "--png draws one tensor: give --of once"),
    )


def show_command(record: "Family | None") -> Callable[..., int]:
    """The command for one family."""
    kind = trace_options(record)

    def command(
        what: str,
        name: str | None = None,
        /,
        *,
        options: Annotated[kind, Parameter(name="*", show=record is not None)] = kind(),  # noqa: B008
        step: Annotated[StepOptions, Parameter(name="*", show=record is not None)] = StepOptions(),  # noqa: B008
        digits: Digits = 4,
    ) -> int:
        from ..tracing.show import names, tables

        if (name or "").startswith(STEP_NAMES) and step.update_at is None:
            step = StepOptions(update=True)
        opened = open_trace(what, record, options, None, step=step)
        if name is None:
            names(opened, result_console())
        else:
            tables(opened[name], result_console(), significant_digits(digits))
        return 0

    command.__doc__ = _help_of(show)
    return command


def open_trace(
    what: str,
    record: "Family | None",
    options: Any,
    edits: list[str] | None,
    double: bool = False,
    step: StepOptions = StepOptions(),  # noqa: B008
    patch_from: str | None = None,
) -> Any:
    """The trace that a word names: of a worked example, from a file, of a run with its input or a training step."""
    from ..tracing.live_trace import edited

    if patch_from is not None and not any(one.endswith("=patch") for one in edits or ()):
        raise UserError(
            "--patch-from is what an edit takes its values from: give one too, --edit 'blocks.0.post=patch'"
        )
    if patch_from is not None and record is None:
        raise UserError(f"{what} has its own input, and there is no other to patch from: leave --patch-from out")
    other = None
    if step.asked and record is not None:
        refuse(
            (
                bool(edits),
                "--edit changes a forward pass, and a training step is recorded as it is: leave one of them out",
            ),
            (
                step.update_at is not None and options != type(options)(),
                "--update-at takes the run's own batch: leave the input out, or give --update instead",
            ),
        )
        return _open_step(what, record, options, step, double)
    if record is None and what.startswith("example:"):
        from ..learn.worked.examples import example

        opened: Any = example(what.removeprefix("example:"))
        opened.alone = "they need a model that answers, and this is a worked example"
    elif record is not None and record.trace is not None:
        from ..api.loading import load
        from ..explore.export import shareable

        options.check()
        loaded = load(what, dtype="auto")
        opened = record.trace(loaded, options, double)
        if patch_from is not None:
            other = record.trace(loaded, _with_input(options, patch_from, record.name), double)
        opened = opened if double else shareable(opened, loaded, options)
        opened.elsewhere = "; --update adds the names of a training step"
    else:
        from ..tracing.trace import read

        if edits:
            raise UserError(f"{what} is a recorded trace: leave --edit out, or name its run")
        return read(what, note)
    return edited(opened, edits or (), other)


def _with_input(options: Any, given: str, family: str) -> Any:
    """The same options with another text or image."""
    if not hasattr(options, "given"):
        raise UserError(f"--patch-from is another text or image, and a {family} is given neither: leave it out")
    return replace(options, given=given)


def _open_step(what: str, record: "Family", options: Any, step: StepOptions, double: bool) -> Any:
    """The trace of a training step of a run."""
    from ..api.loading import load
    from ..api.step import precision_note, step_on, trace_update

    if step.update_at is not None:
        if double:
            note("the numbers of the spreadsheet are those of the training, in its own precision, not in double")
        return trace_update(what, step.update_at, note)
    options.check()
    loaded = load(what, dtype="auto")
    assert record.trace is not None
    if remark := precision_note(loaded.run):
        note(remark)
    opened = step_on(loaded, record.trace(loaded, options, double))
    opened.alone = "they answer, and this is a training step"
    return opened


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
