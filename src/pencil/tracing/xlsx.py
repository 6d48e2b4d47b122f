"""A trace as a workbook of live formulas: a map, then every tensor as a block of cells that follow from one another."""

import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import xlsxwriter

from ..config import UserError
from ..console import visible
from ..files import write_aside
from .file import refs
from .formulas import Formulas, Scattered, Settled, listed
from .functions import FUNCTIONS
from .graph import Graph, Plan
from .ranges import Block
from .recorded import RecordedTrace
from .workbook import SheetWriter

COLUMNS, ROWS = 16_384, 1_048_576  # of a sheet in Excel
CELLS = 1_000_000  # of a workbook that still opens
LONG = 40  # parts of a formula, above which an unnamed step gets cells of its own
EDGE = 1  # columns of headings to the left of a block


def write(trace: RecordedTrace, path: str | Path) -> None:
    """Write a trace as a workbook; each formula has its recorded value, for programs that only display."""
    graph = opened(trace)
    shown = chosen(graph)
    while True:
        blocks = laid_out(graph, sorted(shown))
        formulas = Formulas(graph, blocks)
        try:
            cells = {node: formulas.of(node) for node in blocks if graph.nodes[node].plan is not None}
            break
        except Scattered as lists:
            shown |= lists.nodes
    buffer = BytesIO()
    with xlsxwriter.Workbook(buffer, {"in_memory": True}) as book:
        read = {source for node in wanted(graph) for source in refs(graph.nodes[node].plan)}
        SheetWriter(book, trace, graph, blocks, read).write(cells)
    write_aside(Path(path), buffer.getvalue())


def opened(trace: RecordedTrace) -> Settled:
    """The graph of a trace with every block opened; what no sheet can hold is refused."""
    _check(trace.graph, (i for i, n in enumerate(trace.graph.nodes) if n.plan is None or n.named))
    for node in range(len(trace.graph.nodes)):
        trace.open(node)
    graph = Settled(trace.graph)
    for node in sorted(wanted(graph)):
        n = graph.nodes[node]
        if n.dtype.startswith("complex"):
            raise UserError(f"{n.name} is made of complex numbers, which a spreadsheet does not have")
    return graph


def _check(graph: Graph, nodes: Iterator[int]) -> None:
    cells = 0
    for node in nodes:
        n = graph.nodes[node]
        cells += n.size
        width = n.shape[-1] if n.shape else 1
        if width > COLUMNS - EDGE:
            raise UserError(f"{n.name} has {width:,} columns, and a sheet no more than {COLUMNS:,}")
    if cells > CELLS:
        raise UserError(f"the trace has {cells:,} values, and a workbook that still opens holds no more than {CELLS:,}")


def wanted(graph: Graph) -> set[int]:
    """What has a name, and all that it needs."""
    found = {i for i, n in enumerate(graph.nodes) if n.named or n.kind == "input"}
    todo = list(found)
    while todo:
        new = set(refs(graph.nodes[todo.pop()].plan)) - found
        found |= new
        todo += new
    return found


def reads(plan: Plan) -> Iterator[tuple[int, bool]]:
    """The nodes a plan reads, and whether as a list."""
    if isinstance(plan, tuple | list) and plan[0] in FUNCTIONS:
        for part in plan[1:]:
            yield from reads(part)
    elif isinstance(plan, tuple | list) and plan[0] == "is":
        yield from reads(plan[2])
    else:
        yield from ((node, listed(plan)) for node in refs(plan))


def reduces(plan: Plan) -> bool:
    """Whether a plan sums or compares a list of cells."""
    if not isinstance(plan, tuple | list) or plan[0] not in (*FUNCTIONS, "is"):
        return False
    return (plan[0] != "is" and FUNCTIONS[plan[0]].reduces) or any(map(reduces, plan[1:]))


def chosen(graph: Settled) -> set[int]:
    """The nodes that get cells: what has a name or was given, and unnamed steps whose formula would be written twice,
    is read as a list, or is long. Other steps are written out where they are read."""
    need = wanted(graph)
    readers: dict[int, list[tuple[int, bool]]] = {}

    def made(node: int) -> set[int]:
        n = graph.nodes[node]
        return {node} if n.named or not n.moves else {m for source in refs(n.plan) for m in made(source)}

    for reader in need:
        n = graph.nodes[reader]
        if not n.moves or n.named:
            for source, as_list in reads(n.plan):
                for node in made(source):
                    readers.setdefault(node, []).append((reader, as_list))

    shown: set[int] = set()
    weights: dict[int, int] = {}

    def weight(node: int) -> int:
        """How many parts its formula has where it is read: one if it has cells."""
        if node in weights:
            return weights[node]
        n, mine = graph.nodes[node], readers.get(node, [])
        weights[node] = 1
        within = 1 + sum(weight(m) for source, _ in reads(n.plan) for m in made(source))
        alone = len(mine) == 1 and not mine[0][1]
        if alone:
            reader = mine[0][0]
            alone = reader != node and not (reduces(n.plan) and graph.nodes[reader].size > n.size)
        if n.named or n.plan is None or not (graph.known(node) or (alone and within <= LONG)):
            shown.add(node)
        elif not graph.known(node):
            weights[node] = within
        return weights[node]

    for node in sorted(need):
        if graph.nodes[node].named or not graph.nodes[node].moves:
            weight(node)
    return {node for node in shown if graph.nodes[node].size}


def laid_out(graph: Graph, nodes: list[int]) -> dict[int, Block]:
    """A place for every tensor: those of one block of the model under one another on one sheet."""
    _check(graph, iter(nodes))
    names = [graph.nodes[node].name for node in nodes]
    known = {found[0] for name in names if (found := re.match(r"(?:[^.:]+\.)+?\d+(?=[.:])", name))}
    parts = [next((part for part in known if re.match(rf"{re.escape(part)}(?:[.:]|$)", name)), "") for name in names]
    last = max((i for i, part in enumerate(parts) if part), default=-1)
    sheets: dict[str, str] = {}
    ends: dict[str, int] = {}
    blocks, before = {}, ""
    for i, (node, part) in enumerate(zip(nodes, parts, strict=True)):
        before = part or before
        lone = "model" if last < 0 else "begin" if not before else "end" if i > last else f"after {before}"
        wish = part or lone
        sheet = sheets.setdefault(wish, _valid(wish, set(sheets.values()) | {"map"}))
        n = graph.nodes[node]
        width = n.shape[-1] if n.shape else 1
        row = ends.get(sheet, 2) + 2
        blocks[node] = Block(sheet, row, EDGE, width)
        ends[sheet] = row + n.size // width + 1
        if ends[sheet] > ROWS:
            raise UserError(f"{n.name} ends below row {ROWS:,}, where a sheet ends")
    return blocks


def _valid(wish: str, taken: set[str]) -> str:
    """A sheet's name as Excel allows it: short, without its signs, and unlike the others."""
    name = base = re.sub(r"[\[\]:*?/\\']", "_", visible(wish, one_line=True))[-31:]
    count = 1
    while name.lower() in {t.lower() for t in taken}:
        count += 1
        name = f"{base[: 31 - len(str(count)) - 1]}~{count}"
    return name
