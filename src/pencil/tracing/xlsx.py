"""A trace as a workbook of live formulas: a map, then every tensor as a block of cells that follow from one another.

Plans become formulas in the functions that Excel, LibreOffice and Google Sheets share. A formula reads the cells of
blocks, the tensors that are in the workbook. What is in none is written out in its place; what follows from constants
alone is a number. The settings of an optimizer, such as its rate, have cells of their own, which its formulas read.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xlsxwriter
from xlsxwriter.utility import xl_range, xl_rowcol_to_cell
from xlsxwriter.worksheet import Worksheet

from ..config import UserError
from ..console import visible
from ..files import write_aside
from .graph import Array, Graph, Node, Plan, leaves, reduces, refs
from .optimizer_settings import SETTINGS, settings_in, symbol_of
from .plan_functions import BIG, FUNCTIONS
from .subgraph import Cut, Region, TooMany, extract, needed
from .trace_base import COUNTING, TraceBase

# ---- lists of cells as ranges: cut wherever they stop running along a row or down a column


# A formula's text and how tightly it binds (3 a call or a cell, 2 a power, 1 a product, 0 a sum, −1 a sign),
# or a number known when the workbook is written.
Part = tuple[str, int] | float
RIGHT, DOWN = 1, 2


@dataclass(frozen=True)
class Block:
    """The place of a tensor, or of a part of one, in a workbook: its first cell, and what of it is there."""

    sheet: str
    row: int
    column: int
    region: Region

    @property
    def width(self) -> int:
        return self.region.shape[-1] if self.region.shape else 1

    @property
    def last(self) -> tuple[int, int]:
        """Its last row and column."""
        return self.row + self.region.size // self.width - 1, self.column + self.width - 1

    def at(self, flat: Array) -> tuple[Array, Array]:
        """The rows and columns of cells, given by their places in the whole tensor."""
        where = self.region.position(flat)
        return self.row + where // self.width, self.column + where % self.width


class Line:
    """The cells of a list, for many cells at once: where each is, or what is written in its place."""

    def __init__(self, block: Array, row: Array, column: Array, other: Mapping[tuple[int, int], Part]):
        self.block, self.row, self.column, self.other = block, row, column, other
        same = (np.diff(block) == 0) & (block[:, 1:] >= 0)
        down, right = np.diff(row), np.diff(column)
        # the direction from each cell to the next; 0 where that is elsewhere
        across, along = (down == 0) & (right == 1), (down == 1) & (right == 0)
        self.directions: list[list[int]] = (same * (RIGHT * across + DOWN * along)).tolist()


@dataclass(frozen=True)
class Piece:
    """A part of a list that is one range of every line: `length` terms from `start`, in `rows` rows."""

    start: int
    length: int
    directions: tuple[int, ...]
    rows: int = 1


ONE = Piece(0, 1, ())


def cut(lines: Sequence[Line], i: int, whole: bool, product: bool) -> list[Piece]:
    """The list of cell i in pieces, single terms unless `whole`: each is one range of every line.

    All its ranges run in one direction, but for a product of two lines: a row times a column is one of matrices.
    """
    count = max((len(line.block[i]) for line in lines), default=1)
    if whole and count > 1:
        # the usual case at once: every line is one range
        ways = [line.directions[i] for line in lines]
        first = tuple(way[0] for way in ways)
        straight = all(way.count(way[0]) == len(way) == count - 1 for way in ways)
        if straight and all(first) and (len(set(first)) == 1 or product):
            return [Piece(0, count, first)]
    steps = list(zip(*[line.directions[i] for line in lines], strict=True)) if whole else []
    pieces: list[Piece] = []
    j = 0
    while j < count:
        directions = steps[j] if j < len(steps) else (0,)
        length = 1
        if all(directions) and (len(set(directions)) == 1 or product):
            while j + length - 1 < len(steps) and steps[j + length - 1] == directions:
                length += 1
        piece = Piece(j, length, directions if length > 1 else (0,) * len(lines))
        before = pieces[-1] if pieces else ONE
        if (
            piece.directions == before.directions == (RIGHT,) * len(lines)
            and length == before.length
            and _below(lines, i, before, j)
        ):
            pieces[-1] = replace(before, rows=before.rows + 1)
        else:
            pieces.append(piece)
        j += length
    return pieces


def _below(lines: Sequence[Line], i: int, piece: Piece, j: int) -> bool:
    """Whether what starts at a term is right under a piece, in every line."""
    for line in lines:
        block, row, column = (at[i, j] - at[i, piece.start] for at in (line.block, line.row, line.column))
        if block or column or row != piece.rows:
            return False
    return True


# ---- formulas


PIECES = 16  # a list is cut into no more ranges than this, if it can be gathered first
FORMULA_CHARACTERS, MOST_ARGUMENTS = 8192, 255  # of a formula and of a function, in Excel
# what works on a whole range inside SUMPRODUCT; IF, MAX, AND and ERF do not, or not everywhere
OVER_RANGES = {
    "add", "sub", "mul", "div", "neg", "pow", "square", "sqrt", "exp", "log",
    "sin", "cos", "tan", "atan", "tanh", "abs", "rounded",
}  # fmt: skip


class Scattered(Exception):
    """A list is cut too often: these nodes, which only move, should be in the workbook too."""

    def __init__(self, nodes: set[int]):
        self.nodes = nodes


class Settled(Graph):
    """A graph in which a choice that was settled by constants alone is no choice any more.

    In a training step `begins` has for each new weight, and for all that the optimizer remembers, what it was before:
    those are typed numbers, so that the new ones can take their place.
    """

    def __init__(self, graph: Graph):
        super().__init__(graph.nodes, graph.names)
        self.source, self.tables = graph, graph.tables
        self.begins = {} if isinstance(graph, Cut) else before_and_after(graph.names)
        self._constant: dict[int, bool] = {}
        for new, old in self.begins.items():
            self.nodes[new] = replace(self.nodes[new], named=True)
            if (n := self.nodes[old]).plan is not None:
                name = next(name for name, node in graph.names.items() if node == old and name.startswith("old:"))
                self.nodes[old] = replace(n, name=name, kind="weight", plan=None)
        self.nodes = [self._settle(n) for n in self.nodes]

    @cached_property
    def settings(self) -> dict[tuple[str, float], str]:
        """The settings of an optimizer that are read, in their order, and which optimizers read each."""
        need, made = wanted(self), dict[str, list[int]]()
        for node in need:
            n = self.nodes[node]
            if n.name.startswith("new:") and (optimizer := re.search(r"\(([\w ]+)\)$", n.formula)):
                made.setdefault(optimizer[1], []).append(node)
        behind = {optimizer: self.behind(nodes) for optimizer, nodes in sorted(made.items())}
        readers: dict[tuple[str, float], set[int]] = {}
        for node in need:
            for setting in settings_in(self.nodes[node].plan):
                readers.setdefault(setting, set()).add(node)
        order = sorted(readers, key=lambda setting: (list(SETTINGS).index(symbol_of(setting[0])), setting))
        return {s: ", ".join(name for name, nodes in behind.items() if nodes & readers[s]) for s in order}

    @property
    def ends(self) -> str:
        """Why no second step can follow from the numbers of the first; nothing where it can."""
        for name, new in self.names.items():
            kind, _, rest = name.partition(":")
            if kind != "new" or rest in self.names:
                continue  # what an optimizer remembers is left
            weight = rest.rpartition(".")[0]
            if new not in self.begins:
                return f"of {weight} the optimizer remembers nothing yet: record a second step"
            if rest.endswith(".step") and self.begins[new] not in self.behind([self.names[f"new:{weight}"]]):
                return "this optimizer wrote the number of the step into its formulas: give it fused=True"
        return ""

    def stored(self, node: int) -> Array:
        return self.source.stored(node)

    def is_constant(self, node: int) -> bool:
        """Whether it has no name and follows from constants alone: masks, positions, tables of angles."""
        if node not in self._constant:
            n = self.nodes[node]
            self._constant[node] = not n.named  # what reads itself is constant if the rest is
            self._constant[node] = not n.named and n.plan is not None and all(map(self.is_constant, refs(n.plan)))
        return self._constant[node]

    def _settle(self, n: Node) -> Node:
        plan = n.plan
        while isinstance(plan, tuple | list) and plan[0] == "if" and all(map(self.is_constant, refs(plan[1]))):
            with np.errstate(all="ignore"):
                condition = np.broadcast_to(self._work(plan[1], n, np.arange(n.size))[0] != 0, (n.size, 1))
            if condition.all() != condition.any():
                break
            plan = plan[2] if condition.all() else plan[3]
        return n if plan is n.plan else replace(n, plan=plan)


def before_and_after(names: Mapping[str, int]) -> dict[int, int]:
    """The nodes after a training step and what they were before it, by their names."""
    pairs: dict[int, int] = {}
    for name, new in names.items():
        kind, colon, rest = name.partition(":")
        old = names.get(rest, names.get(f"old:{rest}")) if colon and kind == "new" else None
        if old is not None and old != new:
            pairs[new] = old
    return pairs


class Formulas:
    """The formulas of one sheet's cells."""

    def __init__(self, graph: Settled, blocks: Mapping[int, Block]):
        self.graph, self.blocks, self.here = graph, blocks, ""
        self._shown = {id(graph.nodes[node]) for node in blocks}
        self._settings = {
            setting: f"{OPTIMIZER}!{xl_rowcol_to_cell(row, 1, row_abs=True, col_abs=True)}"
            for row, setting in enumerate(graph.settings, SETTINGS_ROW)
        }

    def of(self, node: int) -> list[Part]:
        """A formula, or a known number, for every cell of a block."""
        n, flat = self.graph.nodes[node], self.blocks[node].region.flat
        self.here = self.blocks[node].sheet
        parts = self._moved(*self.graph.step(node, flat)) if n.moves else self._plan(n.plan, n, flat)
        for part in parts:
            if isinstance(part, tuple) and len(part[0]) >= FORMULA_CHARACTERS:
                raise UserError(
                    f"a cell of {n.name} needs a longer formula than the {FORMULA_CHARACTERS:,} characters Excel takes"
                )
        return parts

    # ---- one cell

    def _moved(self, nodes: Array, at: Array) -> list[Part]:
        """Cells as a formula reads them: an address, a known number, or their own formula."""
        line = self._line(nodes[:, None], at[:, None])
        return [self._text(line, i, ONE, 0) for i in range(len(nodes))]

    def _line(self, nodes: Array, at: Array) -> Line:
        block, row, column = (np.full(nodes.shape, -1) for _ in range(3))
        other: dict[tuple[int, int], Part] = {}
        for first in np.unique(nodes):
            cells = np.nonzero(nodes == first)
            sources, places = self.graph.resolve(int(first), at[cells], lambda n: id(n) in self._shown)
            for source in map(int, np.unique(sources)):
                here = sources == source
                which, flat = tuple(index[here] for index in cells), places[here]
                if source in self.blocks:
                    block[which] = source
                    row[which], column[which] = self.blocks[source].at(flat)
                    continue
                n = self.graph.nodes[source]
                constant = self.graph.is_constant(source)
                parts = self.graph.cells(source, flat).tolist() if constant else self._plan(n.plan, n, flat)
                other |= zip(zip(*(index.tolist() for index in which), strict=True), parts, strict=True)
        return Line(block, row, column, other)

    def _text(self, line: Line, i: int, piece: Piece, direction: int) -> Part:
        """A range, or the one cell of it."""
        j = piece.start
        if (i, j) in line.other:
            return line.other[i, j]
        row, column = int(line.row[i, j]), int(line.column[i, j])
        sheet = self.blocks[int(line.block[i, j])].sheet
        address = xl_rowcol_to_cell(row, column)
        if direction:
            down, right = (piece.rows - 1, piece.length - 1) if direction == RIGHT else (piece.length - 1, 0)
            address += ":" + xl_rowcol_to_cell(row + down, column + right)
        return address if sheet == self.here else f"{quoted(sheet)}!{address}", 3

    def _plan(self, plan: Plan, n: Node, flat: Array) -> list[Part]:
        match plan:
            case int() | float():
                return [float(plan)] * len(flat)
            case "num", number:
                return [float(number)] * len(flat)
            case "axis", axis:
                return np.unravel_index(flat, n.shape)[axis].astype(float).tolist()
            case "is", word, int() | float() as setting if (word, setting) in self._settings:
                return [(self._settings[word, setting], 3)] * len(flat)
            case "is", _, part:
                return self._plan(part, n, flat)
            case "ref" | "list", node, *_:
                at = self.graph.operands(plan, n, flat)[:, 0]
                return self._moved(np.full(at.shape, node), at)
            case "if", *_:
                return self._choice(plan, n, flat)
        head = plan[0]
        if FUNCTIONS[head].reduces:
            return self._reduced(plan, n, flat)
        return [join(n, head, *parts) for parts in zip(*(self._plan(p, n, flat) for p in plan[1:]), strict=True)]

    def _choice(self, plan: Plan, n: Node, flat: Array) -> list[Part]:
        """Where the condition is known, what it chooses; what it does not may not even exist."""
        conditions = self._plan(plan[1], n, flat)
        sides: list[dict[int, Part]] = []
        for side, other in ((2, 0.0), (3, 1.0)):
            wanted = [i for i, c in enumerate(conditions) if isinstance(c, tuple) or (c == 0) == bool(other)]
            sides.append(dict(zip(wanted, self._plan(plan[side], n, flat[wanted]) if wanted else [], strict=True)))
        out: list[Part] = []
        for i, c in enumerate(conditions):
            out.append(join(n, "if", c, sides[0][i], sides[1][i]) if isinstance(c, tuple) else sides[int(c == 0)][i])
        return out

    # ---- a list of cells

    def _reduced(self, plan: Plan, n: Node, flat: Array) -> list[Part]:
        lines: list[Line] = []

        def prepared(p: Plan) -> Any:
            """The plan with its lists as ("line", which) and all that is one number as ("one", parts)."""
            if listed(p) and p[0] in ("ref", "list"):
                at = self.graph.operands(p, n, flat)
                lines.append(self._line(np.full(at.shape, p[1]), at))
                return ("line", len(lines) - 1)
            if not listed(p):
                return ("one", self._plan(p, n, flat))
            return prepared(p[2]) if p[0] == "is" else (p[0], *map(prepared, p[1:]))

        tree = prepared(plan[1])
        extra = [self._plan(p, n, flat) for p in plan[2:]]
        # a largest or least is taken of ranges as they are, a sum also of functions of them
        whole = set(inner(tree)) <= OVER_RANGES if plan[0] == "sum" else tree[0] == "line"
        scattered = {node for node in refs(plan) if node not in self.blocks and self.graph.nodes[node].moves}
        out: list[Part] = []
        for i in range(len(flat)):
            pieces = cut(lines, i, whole, is_product(tree))
            if whole and scattered and len(pieces) > PIECES:
                raise Scattered(scattered)
            terms = [self._piece(plan[0], tree, lines, i, piece, n) for piece in pieces]
            out.append(total(n, plan[0], terms, [e[i] for e in extra]))
        return out

    def _written(self, tree: Any, lines: Sequence[Line], i: int, piece: Piece, n: Node) -> Part:
        if tree[0] == "line":
            return self._text(lines[tree[1]], i, piece, piece.directions[tree[1]])
        if tree[0] == "one":
            return tree[1][i]
        return join(n, tree[0], *[self._written(t, lines, i, piece, n) for t in tree[1:]])

    def _piece(self, head: str, tree: Any, lines: Sequence[Line], i: int, piece: Piece, n: Node) -> Part:
        """What one piece of a list adds to the whole; for a largest or least, its terms."""
        whole = self._written(tree, lines, i, piece, n)
        if piece.length == 1 or head != "sum":
            return whole
        if tree[0] == "line":
            return f"SUM({text(whole)})", 3
        if not is_product(tree):
            return f"SUMPRODUCT({text(whole)})", 3
        # a row against a column is a product of matrices; the row comes first
        factors = sorted(tree[1:], key=lambda t: piece.directions[t[1]])
        ranges = ",".join([text(self._written(t, lines, i, piece, n)) for t in factors])
        return f"SUM(MMULT({ranges}))" if len(set(piece.directions)) > 1 else f"SUMPRODUCT({ranges})", 3


def listed(plan: Plan) -> bool:
    """Whether a plan is a list of values, not one."""
    match plan:
        case "ref", _, _, _, steps:
            return bool(steps)
        case "list", _, _, count:
            return count > 1
        case "is", _, part:
            return listed(part)
        case (head, *parts) if head in FUNCTIONS:
            return not FUNCTIONS[head].reduces and any(map(listed, parts))
    return False


def inner(tree: Any) -> Iterator[str]:
    """The functions in a prepared list."""
    if tree[0] not in ("line", "one"):
        yield tree[0]
        for part in tree[1:]:
            yield from inner(part)


def is_product(tree: Any) -> bool:
    return tree[0] == "mul" and all(t[0] == "line" for t in tree[1:])


def total(n: Node, head: str, terms: list[Part], extra: list[Part]) -> Part:
    """The pieces of a list, put together."""
    if head == "sum":
        out = terms[0] if terms else 0.0
        for term in terms[1:]:
            out = join(n, "add", out, term)
        return out
    numbers = [t for t in (*terms, *extra) if isinstance(t, float)]
    if len(numbers) == len(terms) + len(extra) and FUNCTIONS[head].sheet:
        return float(np.ravel(FUNCTIONS[head].of(np.asarray(numbers[: len(terms)]), *map(np.atleast_1d, extra)))[0])
    if head not in ("max", "min", "prod") and len(terms) > 1:
        raise UserError(f"the operation {n.op} (at {n.name}) reads scattered cells, which no spreadsheet can")
    while len(terms) > MOST_ARGUMENTS:
        groups = [terms[i : i + MOST_ARGUMENTS] for i in range(0, len(terms), MOST_ARGUMENTS)]
        terms = [(called(n, head, ",".join(map(text, group))), 3) for group in groups]
    return called(n, head, ",".join(map(text, terms)), *map(text, extra)), 3


def called(n: Node, head: str, *args: str) -> str:
    form = FUNCTIONS[head].sheet
    if form is None:
        raise UserError(f"the operation {n.op} (at {n.name}) has no form in a spreadsheet")
    return form.format(*args)


def join(n: Node, head: str, *parts: Part) -> Part:
    """A function of parts: its value where all are known."""
    function = FUNCTIONS[head]
    numbers = [np.float64(part) for part in parts if isinstance(part, float)]
    if len(numbers) == len(parts):
        with np.errstate(all="ignore"):
            return float(function.of(*numbers))
    if head == "if" and isinstance(parts[0], float):
        return parts[1] if parts[0] != 0 else parts[2]
    form = function.sheet or ""
    if not form or form[0] not in "{-":
        return called(n, head, *map(text, parts)), 3
    # what is to the right must bind more tightly, so that the sheet computes in the order the model did; there a sign
    # comes before a power: -3^2 is 9
    tight = {"neg": (3,), "pow": (3, 3), "square": (3,)}.get(head, (function.binds, function.binds + 1))
    return called(n, head, *map(bracketed, parts, tight)), -1 if head == "neg" else function.binds


def bracketed(part: Part, tight: int) -> str:
    written, binds = part if isinstance(part, tuple) else (text(part), 3 if part >= 0 else -1)
    return f"({written})" if binds < tight else written


def text(part: Part) -> str:
    """A part as it is written in a formula."""
    if isinstance(part, tuple):
        return part[0]
    part = finite(part)
    return str(int(part)) if part == int(part) and abs(part) < 1e15 else repr(part).upper()


def finite(value: float) -> float:
    """A number as a spreadsheet holds it, which has no infinity, nor numbers quite as large as ours."""
    if math.isnan(value):
        raise UserError("something here is not a number, which a spreadsheet cannot hold")
    return min(max(value, -float(BIG)), float(BIG))


def quoted(sheet: str) -> str:
    return sheet if sheet.isascii() and sheet.isalpha() and len(sheet) > 3 else "'" + sheet.replace("'", "''") + "'"


# ---- the sheets: the map, the tensors, their colours and headings


FORMATS: dict[str, dict[str, Any]] = {
    "title": {"bold": True, "font_size": 16},
    "line": {"font_color": "#555555"},
    "head": {"bold": True, "bg_color": "#333F50", "font_color": "#FFFFFF"},
    "link": {"font_color": "#0563C1", "underline": 1},
    "plain": {"valign": "top"},
    "faint": {"font_color": "#888888", "valign": "top"},
    "given": {"bold": True, "bg_color": "#DDEBF7"},
    "computed": {"bold": True, "bg_color": "#E2EFDA"},
    "step": {"italic": True, "bg_color": "#EDEDED", "font_color": "#666666"},
    "edge": {"font_color": "#7F7F7F", "align": "right"},
    "given cell": {"font_color": "#0000FF", "bg_color": "#F5F9FF"},
    "computed cell": {},
    "step cell": {"font_color": "#666666"},
    "dead cell": {"font_color": "#888888", "italic": True},
}
# an infinity is stored as a very large number, and shown as infinity
NUMBERS = {"whole": "0", "fine": "0.0000", "endless": '[<-1000000000000000]"−∞";[>1000000000000000]"∞";0.0000'}
CELL_CHARACTERS = 32_767  # characters of a cell in Excel
HEADS = ("h", "g")  # letters of the axes along which heads are numbered


class Exact(float):
    """A float written to its last bit: the library's own sixteen digits are one too few."""

    def __format__(self, spec: str) -> str:
        return repr(float(self))


class PlainSheet(Worksheet):
    """A sheet whose formulas have only functions that every spreadsheet has: looking in each of them for those that
    need a prefix takes twice as long as writing them."""

    def _prepare_formula(self, formula: str, expand_future_functions: bool = False) -> str:
        return formula.removeprefix("=")


class SheetWriter:
    """Writes the sheets."""

    def __init__(
        self,
        book: Any,
        trace: TraceBase,
        graph: Settled,
        blocks: dict[int, Block],
        read: set[int],
        outside: Set[int] = frozenset(),
        of: str = "",
    ):
        self.trace, self.graph, self.blocks, self.read, self.outside, self.of = trace, graph, blocks, read, outside, of
        self.map = book.add_worksheet("Map")
        names = dict.fromkeys(b.sheet for b in blocks.values())
        self.optimizer = book.add_worksheet(OPTIMIZER) if graph.settings else None
        self.sheets = {sheet: book.add_worksheet(sheet, worksheet_class=PlainSheet) for sheet in names}
        self.formats = {name: book.add_format(form) for name, form in FORMATS.items()}
        for name in [n for n in FORMATS if n.endswith("cell")]:
            for kind, form in NUMBERS.items():
                for top, line in (("", {}), (" top", {"top": 4, "top_color": "#BFBFBF"})):
                    self.formats[f"{name} {kind}{top}"] = book.add_format(FORMATS[name] | line | {"num_format": form})

    def write(self, cells: dict[int, list[Part]], done: Callable[[int], object] = lambda count: None) -> None:
        """Write all; `done` is called with the number of cells of each tensor."""
        for sheet in (self.map, *self.sheets.values()):
            sheet.hide_gridlines(2)
            sheet.set_landscape()
            sheet.fit_to_pages(1, 0)
        for name, sheet in self.sheets.items():
            sheet.set_column(0, 0, 20)
            sheet.set_column(1, 16_383, 9.5)
            sheet.freeze_panes(2, 1)
            sheet.write_url(0, 0, "internal:'Map'!A1", self.formats["link"], "← Map")
            # what is pasted from one sheet to another is the same there
            title = REMEMBERED if name in (BEFORE, AFTER) else name
            sheet.write_string(0, 1, title, self.formats["title"])
        for node in self.blocks:
            self._block(node, cells.get(node))
            done(self.blocks[node].region.size)
        if self.optimizer is not None:
            self._settings(self.optimizer)
        self._map(cells)

    def _kind(self, node: int) -> str:
        n = self.graph.nodes[node]
        return "given" if n.plan is None else "computed" if n.named else "step"

    def _name(self, node: int) -> str:
        return f"{self.graph.nodes[node].name}{self.blocks[node].region}"

    def _block(self, node: int, parts: list[Part] | None) -> None:
        n, b = self.graph.nodes[node], self.blocks[node]
        sheet, kind = self.sheets[b.sheet], self._kind(node)
        title = " = ".join(filter(None, (n.symbol, n.formula))) or (
            f"a step: {n.op.strip('_')}" if kind == "step" else ""
        )
        sheet.set_row(b.row - 2, 18, self.formats[kind])
        name = self._name(self.graph.begins.get(node, node)) if b.sheet == AFTER else self._name(node)
        head = f"{'' if b.sheet in (BEFORE, AFTER) else title}     {name}     {shape(b)}".strip()
        sheet.write_string(b.row - 2, 0, word(head), self.formats[kind])
        rows, columns = headings(n, self.trace, b.region)
        for j, heading in enumerate(columns):
            sheet.write_string(b.row - 1, b.column + j, word(heading), self.formats["edge"])
        for i, heading in enumerate(rows):
            sheet.write_string(b.row + i, b.column - 1, word(heading), self.formats["edge"])
        recorded = self.graph.cells(node, b.region.flat).tolist()
        if any(map(math.isnan, recorded)):
            raise UserError(f"{n.name} has cells that are not a number, which a spreadsheet cannot hold")
        number = "endless" if max(map(abs, recorded)) > 1e15 else "whole" if _whole(recorded) else "fine"
        dead = parts is None and node not in self.read
        formats = [self.formats[f"{'dead' if dead else kind} cell {number}{top}"] for top in ("", " top")]
        high = b.region.shape[-2] if len(n.shape) > 1 else 1
        for i, value in enumerate(recorded):
            row, column = b.row + i // b.width, b.column + i % b.width
            form = formats[(row - b.row) % high == 0 < row - b.row and high > 1]  # a line above each further matrix
            part = value if parts is None else parts[i]
            if isinstance(part, tuple):
                sheet.write_formula(row, column, f"={text(part)}", form, finite(value))
            else:
                sheet.write_number(row, column, Exact(finite(part)), form)
        if kind == "computed" and _shares(recorded, b.width):
            heat = {"type": "2_color_scale", "min_type": "num", "min_value": 0, "max_type": "num", "max_value": 1}
            colours = {"min_color": "#FFFFFF", "max_color": "#F4B183"}
            sheet.conditional_format(b.row, b.column, *b.last, heat | colours)

    def _settings(self, sheet: Worksheet) -> None:
        """The sheet of the optimizer's settings: a row for each number."""
        formats = self.formats
        sheet.hide_gridlines(2)
        sheet.write_url(0, 0, "internal:'Map'!A1", formats["link"], "← Map")
        sheet.write_string(0, 1, "settings of the optimizer", formats["title"])
        titles = "symbol", "number", "what it is", "whose"
        for j, (heading, width) in enumerate(zip(titles, (10, 14, 42, 34), strict=True)):
            sheet.set_column(j, j, width)
            sheet.write_string(SETTINGS_ROW - 1, j, heading, formats["head"])
        for i, ((symbol, number), whose) in enumerate(self.graph.settings.items(), SETTINGS_ROW):
            sheet.write_string(i, 0, symbol, formats["edge"])
            sheet.write_number(i, 1, Exact(number), formats["given cell"])
            sheet.write_string(i, 2, SETTINGS[symbol_of(symbol)], formats["plain"])
            sheet.write_string(i, 3, word(whose), formats["plain"])

    def _map(self, cells: dict[int, list[Part]]) -> None:
        sheet, formats = self.map, self.formats
        count = sum(isinstance(part, tuple) for parts in cells.values() for part in parts)
        whose = f"Every number of {self.of}" if self.of else "Every number"
        sheet.write_string(0, 0, word(f"{whose}, and where it comes from"), formats["title"])
        lines = [
            "Change a blue number and everything follows.",
            "Blue is typed, black is computed; grey is an unnamed step, or what no formula reads.",
            f"{len(self.blocks)} tensors, {count:,} formulas; click a name to go there. {COUNTING}",
        ]
        if self.graph.settings:
            symbols = ", ".join(dict.fromkeys(symbol for symbol, _ in self.graph.settings))
            lines.append(f"The settings of the optimizer ({symbols}) are blue numbers too, on the sheet {OPTIMIZER}.")
        if self.graph.begins and not self.graph.ends:
            lines.append(
                f"To take the step: select all of the sheet {AFTER} and copy it, go to cell A1 of {BEFORE} and paste "
                "values only. Every number then follows from the new weights; again, and the next step is taken."
            )
        elif self.graph.begins:
            lines.append(f"A second step cannot follow here, since {self.graph.ends}.")
        counts = {node for name, node in self.graph.names.items() if name.endswith(".step")}  # whole numbers
        dtypes = {self.graph.nodes[node].dtype for node in self.blocks if node not in counts}
        rounded = dtypes & {"float32", "bfloat16", "float16"}
        if rounded:
            lines.append(f"The model computed in {', '.join(rounded)}, the sheet in double: last digits differ.")
        for i, line in enumerate(lines, 1):
            sheet.write_string(i, 0, line, formats["line"])
        top = len(lines) + 3
        titles = "symbol", "name", "shape", "axes", "formula", "what it is", "cells", "note"
        for j, (heading, width) in enumerate(zip(titles, (10, 34, 12, 10, 30, 16, 24, 44), strict=True)):
            sheet.set_column(j, j, width)
            sheet.write_string(top - 1, j, heading, formats["head"])
        sheet.freeze_panes(top, 2)
        for i, (node, b) in enumerate(self.blocks.items(), top):
            n, kind = self.graph.nodes[node], self._kind(node)
            where = f"{quoted(b.sheet)}!{xl_range(b.row, b.column, *b.last)}"
            form = formats["faint" if kind == "step" else "plain"]
            what = {"given": "typed numbers", "computed": "computed", "step": "unnamed step"}[kind]
            what = "recorded values" if node in self.outside else what
            means = n.formula or (n.op.strip("_") if n.plan is not None else "")
            for j, fact in enumerate((n.symbol, "", shape(b), n.axes, means, what, where, self._note(node))):
                if fact:
                    sheet.write_string(i, j, word(fact), form)
            there = f"internal:'{b.sheet}'!{xl_range(b.row - 2, 0, b.row - 2, 0)}"
            sheet.write_url(i, 1, there, formats["link"], word(self._name(node)))
        sheet.autofilter(top - 1, 0, top - 1 + len(self.blocks), len(titles) - 1)

    def _note(self, node: int) -> str:
        n = self.graph.nodes[node]
        if node in self.outside:
            return "computed outside of the chosen part: here it is a value"
        if n.plan is None and node not in self.read:
            return "looked up when written: changing it here changes nothing"
        if n.plan is None and "int" in n.dtype:
            return "where it chooses rows of a table, they were looked up when written"
        return {"noise": "drawn at random", "edited": "changed by an edit"}.get(n.kind, "")


def word(text: str) -> str:
    """A text as a cell holds it: control characters written out, no longer than Excel allows. Always `write_string`
    writes it, so that one that begins with = + - or @ stays a text."""
    text = visible(text)
    return text if len(text) <= CELL_CHARACTERS else text[: CELL_CHARACTERS - 1] + "…"


def shape(b: Block) -> str:
    return "×".join(map(str, b.region.shape)) or "one number"


def _whole(values: list[float]) -> bool:
    return all(v == int(v) for v in values) and max(map(abs, values)) < 1e9


def _shares(values: list[float], width: int) -> bool:
    """Whether every row sums to one: attention, or probabilities."""
    rows = np.asarray(values).reshape(-1, width)
    return width > 1 and bool((rows >= 0).all() and np.abs(rows.sum(-1) - 1).max() < 1e-6)


def headings(n: Node, trace: TraceBase, region: Region) -> tuple[list[str], list[str]]:
    """The headings of rows and columns: the labels of an axis, or indices along it."""

    def words(axis: int) -> list[str]:
        all_words = trace.axis_words(n, axis)
        return [all_words[i] for i in region.indices[axis]]

    rows = [""]
    for axis in range(len(n.shape) - 1):
        letter = n.letter(axis)
        if n.shape[axis] > 1 and (region.shape[axis] > 1 or letter in HEADS):
            few = [f"{letter}{word}" if letter in HEADS else word for word in words(axis)]
            rows = [f"{row} · {word}" if row else word for row in rows for word in few]
    return rows, words(len(n.shape) - 1) if n.shape else [""]


# ---- what is in the workbook, and where


COLUMNS, ROWS = 16_384, 1_048_576  # of a sheet in Excel
CELLS = 1_000_000  # of a workbook that still opens
LONG = 40  # parts of a formula, above which an unnamed step gets cells of its own
FORMULAS, PACKED = 0.45, 0.85  # the share of the time until the formulas are made, and until the file is packed
EDGE = 1  # columns of headings to the left of a block


class TooLarge(UserError):
    """More than a workbook holds."""


def write(
    trace: TraceBase,
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
    total, done, buffer = sum(b.region.size for b in blocks.values()), 0, BytesIO()

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


def opened(trace: TraceBase, of: Sequence[str] = ()) -> tuple[Settled, dict[int, Array] | None]:
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
        return graph, needed(graph, cells, graph.is_constant, 4 * CELLS)
    except TooMany:
        raise TooLarge(f"{', '.join(of)} needs more than the {CELLS:,} values of a workbook that still opens") from None


def formulated(
    graph: Settled, need: Mapping[int, Array] | None, progress: Callable[[float], object]
) -> tuple[dict[int, Block], dict[int, list[Part]]]:
    """A place for every tensor, and the formulas of those that are computed."""
    shown = nodes_with_cells(graph)
    while True:
        blocks = laid_out(graph, sorted(shown), need)
        formulas, cells, done = Formulas(graph, blocks), {}, 0
        computed = [node for node in blocks if graph.nodes[node].plan is not None]
        total = sum(blocks[node].region.size for node in computed)
        try:
            for node in computed:
                cells[node] = formulas.of(node)
                done += blocks[node].region.size
                progress(done / total)
            return blocks, cells
        except Scattered as lists:
            shown |= lists.nodes


def smaller(trace: TraceBase) -> str:
    """The option that chooses a part which fits: of the last block, all, its attention, or one head."""
    parts = [match[0] for name in trace.names if (match := re.match(r"(?:[^.:]+\.)+?\d+(?=[.:]|$)", name))]
    tries = [f"{parts[-1]}.*", f"{parts[-1]}.attn.*", f"{parts[-1]}.attn.*[0,head 1]"] if parts else []
    tries += [f"{name}[0,head 1]" for name in trace.names if name.endswith("pattern")][-1:]
    for address in (*tries, *trace.names[-1:]):
        try:
            graph, need = opened(trace, [address])
            laid_out(graph, sorted(nodes_with_cells(graph)), need)
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
    begun = set(graph.begins.values()) if isinstance(graph, Settled) else set()
    return graph.behind(i for i, n in enumerate(graph.nodes) if n.named or n.kind == "input" or i in begun)


def reads(plan: Plan) -> Iterator[tuple[int, bool]]:
    """The nodes a plan reads, and whether as a list."""
    yield from ((node, listed(leaf)) for leaf in leaves(plan) for node in refs(leaf))


def nodes_with_cells(graph: Settled) -> set[int]:
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
        n, uses = graph.nodes[node], readers.get(node, [])
        weights[node] = 1
        within = 1 + sum(weight(m) for source, _ in reads(n.plan) for m in made(source))
        alone = len(uses) == 1 and not uses[0][1]
        if alone:
            reader = uses[0][0]
            alone = reader != node and not (reduces(n.plan) and graph.nodes[reader].size > n.size)
        if n.named or n.plan is None or not (graph.is_constant(node) or (alone and within <= LONG)):
            shown.add(node)
        elif not graph.is_constant(node):
            weights[node] = within
        return weights[node]

    for node in sorted(need):
        if graph.nodes[node].named or not graph.nodes[node].moves:
            weight(node)
    return {node for node in shown if graph.nodes[node].size}


REMEMBERED = "weights, and what the optimizer remembers, by their names before the step"
BEFORE, AFTER = "before", "after"  # the sheets of the weights of a training step, and of what its optimizer remembers
OPTIMIZER, SETTINGS_ROW = "settings", 3  # the sheet of the optimizer's settings, and its first row with one


def laid_out(graph: Settled, nodes: list[int], need: Mapping[int, Array] | None = None) -> dict[int, Block]:
    """A place for every tensor: those of one block of the model under one another on one sheet.

    What a training step changes is at the same place of two sheets.
    """
    nodes = [node for node in nodes if need is None or node in need]
    regions = {node: Region(graph.nodes[node].shape, None if need is None else need[node]) for node in nodes}
    _check((graph.nodes[node], region.shape) for node, region in regions.items())
    ends: dict[str, int] = {}
    blocks: dict[int, Block] = {}

    def place(node: int, sheet: str) -> None:
        blocks[node] = Block(sheet, ends.get(sheet, 2) + 2, EDGE, regions[node])
        ends[sheet] = blocks[node].last[0] + 2
        if ends[sheet] > ROWS:
            raise TooLarge(f"{graph.nodes[node].name} ends below row {ROWS:,}, where a sheet ends")

    pairs = {new: old for new, old in graph.begins.items() if new in regions and old in regions}
    for new, old in pairs.items():
        if old not in blocks:
            place(old, BEFORE)
        blocks[new] = replace(blocks[old], sheet=AFTER)
    nodes = [node for node in nodes if node not in blocks]
    names = [graph.nodes[node].name for node in nodes]
    paths = {match[0] for name in names if (match := re.match(r"(?:[^.:]+\.)+?\d+(?=[.:])", name))}
    parts = [next((part for part in paths if re.match(rf"{re.escape(part)}(?:[.:]|$)", name)), "") for name in names]
    last = max((i for i, part in enumerate(parts) if part), default=-1)
    sheets: dict[str, str] = {}
    before = ""
    for i, (node, part) in enumerate(zip(nodes, parts, strict=True)):
        before = part or before
        lone = "model" if last < 0 else "begin" if not before else "end" if i > last else f"after {before}"
        wish = part or lone
        place(node, sheets.setdefault(wish, _valid(wish, set(sheets.values()) | {"map", BEFORE, AFTER, OPTIMIZER})))
    return dict(sorted(blocks.items()))


def _valid(wish: str, taken: set[str]) -> str:
    """A sheet's name as Excel allows it: short, without its signs, and unlike the others."""
    name = base = re.sub(r"[\[\]:*?/\\']", "_", visible(wish, one_line=True))[-31:]
    count = 1
    while name.lower() in {t.lower() for t in taken}:
        count += 1
        name = f"{base[: 31 - len(str(count)) - 1]}~{count}"
    return name
