"""sample: use a trained model."""

# the options of a command are those of its family, which is known when the command is made
# pyright: reportInvalidTypeForm=false
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..config import UserError
from .evaluate import DTYPE_HELP
from .screens.terminal import JsonOutput, TerminalOutput, read_text

if TYPE_CHECKING:
    from ..families.family import Family


def sample(run: Path, /, *options: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Use a trained model: continue or translate a text, describe or classify an image, fill in masks, sample images.

    The options depend on the family of the model: pencil sample RUN --help lists them.

    Parameters
    ----------
    run
        The run's folder.
    """
    raise AssertionError("sample is dispatched by family")


def sample_command(record: "Family") -> Callable[..., int]:
    """The command for one family."""
    if (sample_with := record.sample) is None:
        raise UserError(f"a {record.name} cannot be sampled from the command line")
    from ..families.options import DEVICE, OUTPUT, TextOutput

    def command(
        run: Path,
        /,
        *,
        options: Annotated[record.sample_options, Parameter(name="*")] = record.sample_options(),  # noqa: B008
        as_json: Annotated[
            bool,
            Parameter(
                name="--json",
                group=OUTPUT,
                negative=(),
                help="Print one JSON object: results, one for each output with what it is of, and the files written.",
            ),
        ] = False,
        device: Annotated[str, Parameter(group=DEVICE, help="auto, cpu, cuda or mps.")] = "auto",
        dtype: Annotated[str, Parameter(group=DEVICE, help=DTYPE_HELP)] = "auto",
    ) -> int:
        from ..api.loading import load
        from ..device import pick_device

        options.check()
        loaded = load(run, pick_device(device), dtype)
        texts = {n: [read_text(t) for t in v] for n in ("prompt", "source") if (v := getattr(options, n, None))}
        out = getattr(options, "out", None)
        output = JsonOutput() if as_json else TerminalOutput(out)
        sample_with(loaded, replace(options, **texts), output)
        if isinstance(output, JsonOutput):
            output.write(out if isinstance(options, TextOutput) else None)
        return 0

    command.__doc__ = f"""Use a trained {record.name}: {record.summary}.

    Parameters
    ----------
    run
        The run's folder.
    """
    return command
