"""heads: what each attention head of a run does, as a table and a figure."""

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from .. import files
from ..config import UserError, check_output, expand_path
from ..console import Console, note
from .names import check_run
from .screens.terminal import read_input

TABLE_WIDTH_COLUMNS = 100  # of the table, where the terminal does not say


def heads(
    run: Path,
    /,
    *,
    text: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    prompt: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    data: str | None = None,
    relations: Annotated[bool, Parameter(negative=())] = False,
    out: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    device: str = "auto",
) -> int:
    """Score what each attention head of a trained model does, beside what chance would give: a table and a figure.

    Scores are the share of a head's attention on the previous token, the first token, the token itself, and, in a
    sequence written twice, on what followed the same token the first time (induction); and how broad the attention is.
    A head is named only where its score is clearly beyond its baseline.

    Parameters
    ----------
    run
        The run's folder.
    text
        A text file to measure on, or - for standard input; the run's held-out data by default, and for example:english
        the sentences of --relations.
    prompt
        A text to measure on.
    data
        Other data to measure on, such as a folder of pictures.
    relations
        Score words that belong together in English sentences too: it and what it stands for, he and the person, an
        object and its verb.
    out
        The figure's file (.png); heads.png in the run's folder by default.
    as_json
        Print the scores as one JSON object instead of the table.
    device
        auto, cpu, cuda or mps.
    """
    if text is not None and prompt is not None:
        raise UserError("--text and --prompt are both a text to measure on: give one")
    if data is not None and (text is not None or prompt is not None):
        raise UserError("--data and a text are both something to measure on: give one")
    check_output("--out", out, ".png")
    typed = prompt if text is None else _read(text)

    check_run(run)
    from ..api.loading import load
    from ..device import pick_device
    from ..files import write_aside
    from ..learn.heads import show
    from ..learn.heads.inputs import head_inputs, head_profile, separators
    from ..learn.heads.relations import SENTENCES, about, relation_scores
    from ..learn.heads.scores import measure
    from ..models.build import check_finite
    from ..runs.files import example_run, place_beside

    loaded = load(run, pick_device(device), "auto")
    check_finite(loaded.model.named_parameters())
    profile = head_profile(loaded)
    if typed is None and data is None and example_run(run) and profile.from_text is not None:
        typed = SENTENCES  # the text that it was trained on does not come with Pencil
    report = measure(loaded.model, profile, head_inputs(loaded, typed, data), separators(loaded))
    related = relation_scores(loaded) if relations else []
    path = out or place_beside(loaded.run.path, "heads.png")
    write_aside(path, show.picture(report, f"{loaded.run.path.resolve().name}: what each head attends to"))
    if as_json:
        data_of_relations = {"relations": [vars(score) for score in related]} if related else {}
        print(json.dumps({**show.as_data(report), **data_of_relations}))
    else:
        console = Console(soft_wrap=True) if sys.stdout.isatty() else Console(width=TABLE_WIDTH_COLUMNS, soft_wrap=True)
        for table in show.tables(report):
            console.print(table)
        own = typed is None and data is None
        for line in [
            *show.words(report),
            *(about(related) if related else ()),
            *show.about(report),
            show.measured_on(report, profile, own),
        ]:
            console.print(line, highlight=False, markup=False)
    note(str(path))
    return 0


def _read(name: str) -> str:
    """The text of a file, or of standard input."""
    return read_input() if name == "-" else files.read_text(expand_path(name))
