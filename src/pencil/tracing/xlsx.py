"""A trace as a workbook of live formulas: a map, then every tensor as a block of cells that follow from one another."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from math import prod
from pathlib import Path

import xlsxwriter

from ..config import UserError
from ..console import visible
from ..files import write_aside
from .file import refs
from .formulas import Formulas, Scattered, Settled, listed
from .functions import FUNCTIONS
from .graph import Array, Graph, Node, Plan
from .part import Cut, TooMany, extract, needed
from .ranges import Block, Kept, Part
from .trace_base import RecordedTrace
from .workbook import SheetWriter

COLUMNS, ROWS = 16_384, 1_048_576  # of a sheet in Excel
CELLS = 1_000_000  # of a workbook that still opens
LONG = 40  # parts of a formula, above which an unnamed step gets cells of its own
FORMULAS, PACKED = 0.45, 0.85  # the share of the time until the formulas are made, and until the file is packed
EDGE = 1  # columns of headings to the left of a block


class TooLarge(UserError):
    """More than a workbook holds."""


def write(
    trace: RecordedTrace,
    path: str | Path,
    of: Sequence[str] = (),
    progress: Callable[[float], object] = lambda share: None,
) -> None:
    """Write a trace, or only the tensors of these addresses, as a workbook.

    Each formula has its recorded value, for programs that only display. `progress` is called with the share done.
    """
    try:
        graph, need = opened(trace, of)
        blocks, cells = formulated(graph, need, lambda share: progress(FORMULAS * share))
    except TooLarge as error:
        raise UserError(f"{error}{smaller(trace)}") from None
    total, done, buffer = sum(b.kept.size for b in blocks.values()), 0, BytesIO()

    def written(count: int) -> None:
        nonlocal done
        done += count
        progress(FORMULAS + (PACKED - FORMULAS) * done / total)

    book = xlsxwriter.Workbook(buffer, {"in_memory": True})
    outside = graph.source.outside if isinstance(graph.source, Cut) else set()
    read = {source for node in wanted(graph) for source in refs(graph.nodes[node].plan)}
    SheetWriter(book, trace, graph, blocks, read, outside, ", ".join(of)).write(cells, written)
    book.close()  # not on an interrupt: it takes long
    write_aside(Path(path), buffer.getvalue())
    progress(1.0)


def opened(trace: RecordedTrace, of: Sequence[str] = ()) -> tuple[Settled, dict[int, Array] | None]:
    """The graph of a trace, or of a part of it, with its blocks opened, and the cells of that part that are needed."""
    cells = None
    if of:
        trace, cells = extract(trace, of)
    else:
        _check((n, n.shape) for n in trace.graph.nodes if n.plan is None or n.named)
        for node in range(len(trace.graph.nodes)):
            trace.open(node)
    graph = Settled(trace.graph)
    for node in sorted(wanted(graph)):
        n = graph.nodes[node]
        if n.dtype.startswith("complex"):
            raise UserError(f"{n.name} is made of complex numbers, which a spreadsheet does not have")
    if cells is None:
        return graph, None
    try:
        return graph, needed(graph, cells, graph.known, 4 * CELLS)
    except TooMany:
        raise TooLarge(f"{', '.join(of)} needs more than the {CELLS:,} values of a workbook that still opens") from None


def formulated(
    graph: Settled, need: Mapping[int, Array] | None, progress: Callable[[float], object]
) -> tuple[dict[int, Block], dict[int, list[Part]]]:
    """A place for every tensor, and the formulas of those that are computed."""
    shown = chosen(graph)
    while True:
        blocks = laid_out(graph, sorted(shown), need)
        formulas, cells, done = Formulas(graph, blocks), {}, 0
        computed = [node for node in blocks if graph.nodes[node].plan is not None]
        total = sum(blocks[node].kept.size for node in computed)
        try:
            for node in computed:
                cells[node] = formulas.of(node)
                done += blocks[node].kept.size
                progress(done / total)
            return blocks, cells
        except Scattered as lists:
            shown |= lists.nodes


def smaller(trace: RecordedTrace) -> str:
    """The option that chooses a part which fits: of the last block, all, its attention, or one head."""
    parts = [found[0] for name in trace.names if (found := re.match(r"(?:[^.:]+\.)+?\d+(?=[.:]|$)", name))]
    tries = [f"{parts[-1]}.*", f"{parts[-1]}.attn.*", f"{parts[-1]}.attn.*[0,head 1]"] if parts else []
    tries += [f"{name}[0,head 1]" for name in trace.names if name.endswith("pattern")][-1:]
    for address in (*tries, *trace.names[-1:]):
        try:
            graph, need = opened(trace, [address])
            laid_out(graph, sorted(chosen(graph)), need)
            return f"; choose a part of it, such as --of '{address}'"
        except UserError:
            pass
    return ""


def _check(tensors: Iterable[tuple[Node, tuple[int, ...]]]) -> None:
    """Refuse tensors, of which these shapes are shown, that no workbook holds."""
    cells = 0
    for n, shape in tensors:
        cells += prod(shape)
        width = shape[-1] if shape else 1
        if width > COLUMNS - EDGE:
            raise TooLarge(f"{n.name} has {width:,} columns, and a sheet no more than {COLUMNS:,}")
    if cells > CELLS:
        raise TooLarge(f"the trace has {cells:,} values, and a workbook that still opens holds no more than {CELLS:,}")


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


def laid_out(graph: Graph, nodes: list[int], need: Mapping[int, Array] | None = None) -> dict[int, Block]:
    """A place for every tensor: those of one block of the model under one another on one sheet."""
    nodes = [node for node in nodes if need is None or node in need]
    kept = {node: Kept(graph.nodes[node].shape, None if need is None else need[node]) for node in nodes}
    _check((graph.nodes[node], one.shape) for node, one in kept.items())
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
        blocks[node] = Block(sheet, ends.get(sheet, 2) + 2, EDGE, kept[node])
        ends[sheet] = blocks[node].last[0] + 2
        if ends[sheet] > ROWS:
            raise TooLarge(f"{graph.nodes[node].name} ends below row {ROWS:,}, where a sheet ends")
    return blocks


def _valid(wish: str, taken: set[str]) -> str:
    """A sheet's name as Excel allows it: short, without its signs, and unlike the others."""
    name = base = re.sub(r"[\[\]:*?/\\']", "_", visible(wish, one_line=True))[-31:]
    count = 1
    while name.lower() in {t.lower() for t in taken}:
        count += 1
        name = f"{base[: 31 - len(str(count)) - 1]}~{count}"
    return name
