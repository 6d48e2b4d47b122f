"""The options of `pencil train` that every family has; it imports torch, so only the command of a family imports it."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..families.options import MODEL, RUN, default

From = Annotated[
    str | None,
    Parameter(
        name="--from",
        group=MODEL,
        help="Begin with the weights of this run, trained or imported, with its model and its tokenizer (fine-tuning).",
    ),
]
Freeze = Annotated[
    list[str] | None,
    Parameter(
        group=MODEL,
        negative=(),
        help="Do not train the parameters whose names match, such as 'blocks.[0-5].*' or tokens; "
        "repeat it for several. The same as --train.freeze.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    Parameter(
        group=MODEL,
        help="A TOML file of settings, such as the config.toml of a run; FAMILY may then be left out. Options "
        "given here go over it.",
    ),
]
SettingsOnly = Annotated[
    bool,
    Parameter(
        name="--settings",
        negative=(),
        group=MODEL,
        help="List every setting with its value and choices, as TOML that --config reads (into a file with "
        "--out FILE); train nothing.",
    ),
]
Out = Annotated[Path | None, Parameter(group=RUN, help="Folder of the run, instead of a name under runs/.")]
Force = Annotated[bool, Parameter(negative=(), group=RUN, help="Replace the run that is there.")]
Processes = Annotated[
    int | None,
    Parameter(
        group=RUN,
        help="Train in so many processes on this machine, one for each GPU: each takes its share of "
        "--train.batch. One that ends is started again, from the last checkpoint.",
        show_default=default("1"),
    ),
]
