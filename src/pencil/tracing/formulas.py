"""Plans as spreadsheet formulas, in the functions that Excel, LibreOffice and Google Sheets share.

A formula reads the cells of blocks, the tensors that are in the workbook. What is in none is written out in its place;
what follows from constants alone is a number.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from xlsxwriter.utility import xl_rowcol_to_cell

from ..config import UserError
from .functions import BIG, FUNCTIONS
from .graph import Array, Graph, Node, Plan, refs
from .part import Region

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
LONGEST, ARGUMENTS = 8192, 255  # characters of a formula and arguments of a function, in Excel
# what works on a whole range inside SUMPRODUCT; IF, MAX, AND and ERF do not, or not everywhere
OVER_RANGES = {
    "add", "sub", "mul", "div", "neg", "pow", "square", "sqrt", "exp", "log",
    "sin", "cos", "tan", "atan", "tanh", "abs",
}  # fmt: skip


class Scattered(Exception):
    """A list is cut too often: these nodes, which only move, should be in the workbook too."""

    def __init__(self, nodes: set[int]):
        self.nodes = nodes


class Settled(Graph):
    """A graph in which a choice that was settled by constants alone is no choice any more."""

    def __init__(self, graph: Graph):
        super().__init__(graph.nodes, graph.names)
        self.source, self.tables = graph, graph.tables
        self._constant: dict[int, bool] = {}
        self.nodes = [self._settle(n) for n in graph.nodes]

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


class Formulas:
    """The formulas of one sheet's cells."""

    def __init__(self, graph: Settled, blocks: Mapping[int, Block]):
        self.graph, self.blocks, self.here = graph, blocks, ""
        self._shown = {id(graph.nodes[node]) for node in blocks}

    def of(self, node: int) -> list[Part]:
        """A formula, or a known number, for every cell of a block."""
        n, flat = self.graph.nodes[node], self.blocks[node].region.flat
        self.here = self.blocks[node].sheet
        parts = self._moved(*self.graph.step(node, flat)) if n.moves else self._plan(n.plan, n, flat)
        for part in parts:
            if isinstance(part, tuple) and len(part[0]) >= LONGEST:
                raise UserError(
                    f"a cell of {n.name} needs a longer formula than the {LONGEST:,} characters Excel takes"
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
    while len(terms) > ARGUMENTS:
        groups = [terms[i : i + ARGUMENTS] for i in range(0, len(terms), ARGUMENTS)]
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
