"""shapes: the symbols, formulas and shapes of a model."""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from ..config import UserError
from ..console import Console, note, visible
from .presets import Model, find_model, settings_of, title_of
from .train import Settings

if TYPE_CHECKING:
    from ..families.family import Family


def shapes(what: Model, /, *settings: Settings, batch: int = 1) -> int:
    """Show a one-page summary of a model: each symbol, its formula and its shape.

    Any setting of a preset can be changed: pencil shapes gpt:nanogpt --model.heads 1 --model.width 64. pencil train
    FAMILY --settings lists those of a family.

    Parameters
    ----------
    what
        A preset (gpt2, b/16, or captioner:nano where families share a name), or the folder of a run.
    batch
        Batch size: the B of the shapes.
    """
    if batch < 1:
        raise UserError(f"--batch must be at least 1, not {batch}")
    what, record, config = _find((what, *settings))
    import torch

    from ..core.notation import Notation, transposed
    from ..core.probe import LEGEND, Probe, symbols

    with torch.device("meta"):
        model = record.create(config)
    probe = Probe()
    model(*model.example(batch), probe=probe)
    names, greek = Notation(model, probe.values, numbered=False).names, symbols(model)
    parameters = {name: tuple(p.shape) for name, p in model.named_parameters()}
    console = Console(soft_wrap=True)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    count = sum(map(prod, parameters.values()))
    positions = f", positions {config.positions}" if hasattr(config, "positions") else ""
    decoder = getattr(config, "decoder_depth", None)
    blocks = f"{config.depth} blocks" if decoder is None else f"{config.depth} blocks and {decoder} of the decoder"
    say(f"{visible(what, one_line=True)}: {record.name}, {count:,} parameters, {blocks}{positions}")
    letters = {letter for name in probe.values for letter in names[name].axes.split()}
    say(" · ".join(f"{letter} {meaning}" for letter, meaning in LEGEND.items() if letter in letters))

    def show(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
        # of equal blocks one is shown, as block ℓ
        shown = [
            (*row[:-1], row[-1].replace("blocks.0.", "blocks.ℓ."))
            for row in rows
            if not re.search(r"(^|\.)blocks\.[1-9]", row[-1])
        ]
        # a name stays in one piece, to be copied, where the other columns have half of the width to fold in
        whole = 2 * max((len(row[-1]) for row in shown), default=0) <= console.width
        for column in columns:
            table.add_column(column, overflow="fold", no_wrap=whole and column == "name")
        for row in shown:
            table.add_row(*map(Text, row))
        console.print(table)

    computed, by_head = [], []
    for name, value in probe.values.items():
        axes, symbol, formula, _ = names[name]
        row = axes, "×".join(map(str, value.shape)), name
        # a named value without a formula is a view of a learned tensor
        (computed.append((symbol, formula, *row)) if formula else by_head.append((symbol, *row)))
    show("Computed", ("symbol", "formula", "axes", "shape", "name"), computed)
    learned = []
    for name, shape in parameters.items():
        # as the formulas multiply by it, and as it is stored
        shapes = (shape[::-1] if transposed(model, name) else shape), shape
        learned.append((greek.get(name, ""), *("×".join(map(str, s)) for s in shapes), f"{prod(shape):,}", name))
    show("Learned", ("symbol", "shape", "stored", "parameters", "name"), learned)
    show("Learned, as the formulas multiply by it", ("symbol", "axes", "shape", "name"), by_head)
    return 0


def _find(words: Sequence[str]) -> "tuple[str, Family, Any]":
    """The model's name with its changed settings, its family and its config; notes settings without effect."""
    what, sections = settings_of("shapes", words, ("model",))
    changes = sections["model"]
    record, config, _ = find_model(what, changes)
    for name in changes:
        try:
            _, without, _ = find_model(what, {key: value for key, value in changes.items() if key != name})
        except UserError:  # the other changes need this one
            continue
        if _describe(record, config) == _describe(record, without):
            note(f"model.{name} {changes[name]} changes no shape, formula or parameter of {what}")
    return title_of(what, config, changes), record, config


def _describe(record: "Family", config: Any) -> tuple[Any, ...]:
    """What tells two models apart in this summary."""
    import torch

    from ..core.notation import Notation
    from ..core.probe import Probe, symbols

    with torch.device("meta"):
        model = record.create(replace(config, depth=min(config.depth, 2)))  # one of each kind of block
    probe = Probe()
    model(*model.example(1), probe=probe)
    values = {name: tuple(value.shape) for name, value in (*probe.values.items(), *model.named_parameters())}
    return config.depth, Notation(model, probe.values, numbered=False).names, symbols(model), values
