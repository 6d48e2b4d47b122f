"""embed: the vectors of texts."""

import csv
import io
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from .. import files
from ..config import UserError, check_output, expand_path
from ..console import note
from .names import check_run
from .screens.terminal import read_input, read_text


def embed(
    run: Path,
    /,
    *,
    prompt: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True, negative=())] = None,
    file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    pool: Literal["mean", "class"] | None = None,
    normalize: bool | None = None,
    out: Annotated[Path | None, Parameter(name="--csv")] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    device: str = "auto",
) -> int:
    """Turn texts into vectors: texts of similar meaning have similar vectors. One line of numbers a text.

    For a reader, such as an imported BERT or MiniLM. The end of a text that is longer than the context is left out.

    Parameters
    ----------
    run
        The run's folder.
    prompt
        A text; may be repeated. - is standard input.
    file
        A file with one text a line; - is standard input. Blank lines are left out.
    pool
        The vector of a text: the mean of its tokens, or its first token (class). As the run says, unless given.
    normalize
        Scale each vector to length 1, so that a dot product is the cosine. As the run says, unless given.
    out
        Write the texts and their vectors to this .csv file instead of the terminal.
    as_json
        Print one JSON object: results, each with its prompt and its vector.
    device
        auto, cpu, cuda or mps.
    """
    if out is not None and as_json:
        raise UserError("--csv and --json both hold the vectors: give one")
    if not prompt and file is None:
        raise UserError("--prompt is missing: give a text, or --file with one text a line")
    check_output("--csv", out, ".csv")
    texts = [read_text(one) for one in prompt or ()] + ([] if file is None else _lines(file))

    check_run(run)
    from ..api.loading import load, open_run
    from ..api.predict import embedder
    from ..device import pick_device
    from ..families.reader import settings_of
    from ..train.loop.report import shown_progress

    opened = open_run(run)
    vectors_of = embedder(opened.family, opened.path)
    loaded = load(run, pick_device(device), "auto")
    if loaded.tokenizer is None:
        raise opened.no_tokenizer()
    with shown_progress("embedding"):
        vectors = vectors_of(loaded, texts, settings_of(loaded, pool, normalize), note)
    # nine digits give a number of 32 bits back exactly
    rows = [[f"{value:.9g}" for value in row] for row in vectors.tolist()]
    if out is not None:
        files.write_aside(out, _table(texts, rows).encode())
        note(str(out))
    elif as_json:
        results = [{"prompt": text, "vector": [*map(float, row)]} for text, row in zip(texts, rows, strict=True)]
        print(json.dumps({"results": results}))
    else:
        sys.stdout.writelines(" ".join(row) + "\n" for row in rows)
    return 0


def _table(texts: list[str], rows: list[list[str]]) -> str:
    """A column of texts, and one for each number of their vectors."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["text", *(f"x{i}" for i in range(len(rows[0])))])
    writer.writerows([text, *row] for text, row in zip(texts, rows, strict=True))
    return out.getvalue()


def _lines(name: str) -> list[str]:
    """The texts of a file, a line each; one that is a table is refused, since its lines are rows."""
    from ..data.tables.pairs import is_table

    if is_table(name):
        raise UserError(f"{name} is a table; --file is a plain text file with one text a line")
    lines = (read_input() if name == "-" else files.read_text(expand_path(name))).splitlines()
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise UserError(f"{'standard input' if name == '-' else name} has no text")
    return texts
