"""shapes: the symbols, formulas and shapes of a model."""

import re
from math import prod

from rich import box
from rich.table import Table
from rich.text import Text

from ..console import Console


def shapes(what: str, /, *, batch: int = 1) -> int:
    """Show a one-page summary of a model: each symbol, its formula and its shape.

    Parameters
    ----------
    what
        A preset (gpt2, b/16, or captioner:nano where families share a name), or the folder of a run.
    batch
        Batch size: the B of the shapes.
    """
    import torch

    from ..config import UserError
    from ..core.probe import LEGEND, Probe, declared, symbols
    from .presets import find_model

    if batch < 1:
        raise UserError(f"--batch must be at least 1, not {batch}")
    record, config, _ = find_model(what)
    with torch.device("meta"):
        model = record.create(config)
    probe = Probe()
    model(*model.example(batch), probe=probe)
    names, greek = declared(model), symbols(model)
    parameters = {name: tuple(p.shape) for name, p in model.named_parameters()}
    console = Console(soft_wrap=True)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    count = sum(map(prod, parameters.values()))
    say(f"{what}: {record.name}, {count:,} parameters, {config.depth} blocks, positions {config.positions}")
    letters = {letter for name in probe.values for letter in names[name].axes.split()}
    say(" · ".join(f"{letter} {meaning}" for letter, meaning in LEGEND.items() if letter in letters))

    def show(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            # of equal blocks one is shown, as block ℓ
            if not re.search(r"(^|\.)blocks\.[1-9]", row[-1]):
                table.add_row(*(Text(cell) for cell in (*row[:-1], row[-1].replace("blocks.0.", "blocks.ℓ."))))
        console.print(table)

    computed = [
        (names[name].symbol, names[name].formula, names[name].axes, "×".join(map(str, value.shape)), name)
        for name, value in probe.values.items()
    ]
    show("Computed", ("symbol", "formula", "axes", "shape", "name"), computed)
    learned = [
        (greek.get(name, ""), "×".join(map(str, shape)), f"{prod(shape):,}", name) for name, shape in parameters.items()
    ]
    show("Learned", ("symbol", "shape", "parameters", "name"), learned)
    return 0
