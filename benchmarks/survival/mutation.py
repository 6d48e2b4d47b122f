"""Mutants: small faults put into a source file through its syntax tree, one at a time.

Only code inside functions is changed: what runs at import cannot be attributed to a test. Messages, annotations and
docstrings are left alone, and `strict=` of zip: it guards against mistakes that the code does not make.
"""

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
NEGATED_BY_SWAP = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitAnd,
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min", "amin": "amax", "amax": "amin"}
MESSAGES = {"print", "note", "report"}  # functions whose arguments are words for the user
NO_NUMBERS = (ast.JoinedStr, ast.List, ast.ListComp, ast.Dict, ast.DictComp)


class Mutant(NamedTuple):
    """One fault: where it is, what it changes, and the number by which `mutated` makes it."""

    file: str
    number: int
    function: str
    operator: str
    lines: tuple[int, ...]  # of what is changed
    statement: tuple[int, ...]  # of the statement it is in; of a compound one, of its head
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.lines[0]} {self.function} [{self.operator}] {self.before} -> {self.after}"


class _Site(NamedTuple):
    """A place in a tree where a node can be replaced by another."""

    parent: Any
    field: str
    index: int | None
    new: ast.AST
    operator: str
    function: str
    statement: ast.stmt

    def replace(self) -> Callable[[], None]:
        """Put the new node in; what undoes it."""
        old, whole = self.old, self.index is None
        if whole:
            setattr(self.parent, self.field, self.new)
            return lambda: setattr(self.parent, self.field, old)
        place, index = getattr(self.parent, self.field), self.index
        place[index] = self.new
        return lambda: place.__setitem__(index, old)

    @property
    def old(self) -> Any:
        value = getattr(self.parent, self.field)
        return value if self.index is None else value[self.index]


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    found = []
    for number, site in enumerate(_sites(ast.parse((root / file).read_text(encoding="utf-8")))):
        lines, statement = _lines(site.old), _head_lines(site.statement)
        deleted = site.old is site.statement
        before = _head(site.statement)
        undo = site.replace()
        after = _head(site.new if deleted else site.statement)
        undo()
        if before != after:
            found.append(Mutant(file, number, site.function, site.operator, lines, statement, before, after))
    return found


def mutated(root: Path, mutant: Mutant) -> str:
    """The source of the file with this fault in it."""
    tree = ast.parse((root / mutant.file).read_text(encoding="utf-8"))
    site = list(_sites(tree))[mutant.number]
    site.replace()
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def choose(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """`count` of them by the hashes of what they change: a change elsewhere in the code leaves the others chosen."""
    times: Counter[str] = Counter()
    ranked = []
    for at, mutant in enumerate(mutants):
        what = "\n".join((mutant.file, mutant.function, mutant.operator, mutant.before, mutant.after))
        times[what] += 1
        ranked.append((hashlib.sha256(f"{seed} {times[what]} {what}".encode()).digest(), at))
    return [mutants[at] for at in sorted(at for _, at in sorted(ranked)[:count])]


def _lines(node: Any) -> tuple[int, ...]:
    return tuple(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _head_lines(statement: ast.stmt) -> tuple[int, ...]:
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno
    return tuple(range(statement.lineno, max(statement.lineno, last or 0) + 1))


def _head(node: Any) -> str:
    text = ast.unparse(ast.fix_missing_locations(copy.copy(node)))
    return text.split("\n")[0] if hasattr(node, "body") else text


def _sites(tree: ast.Module) -> Iterator[_Site]:
    """Every place inside a function, depth first."""

    def functions(node: ast.AST, name: str) -> Iterator[tuple[str, Any]]:
        for child in ast.iter_child_nodes(node):
            inner = f"{name}.{child.name}".strip(".") if isinstance(child, ast.ClassDef | ast.FunctionDef) else name
            if isinstance(child, ast.FunctionDef):
                yield inner, child
            else:
                yield from functions(child, inner)

    for name, function in functions(tree, ""):
        yield from _Walk(name, function).body(function)


class _Walk:
    """The places of one function, its inner functions among them."""

    def __init__(self, name: str, function: ast.FunctionDef):
        self.name, self.function = name, function

    def body(self, owner: Any) -> Iterator[_Site]:
        docstring = isinstance(owner, ast.FunctionDef) and ast.get_docstring(owner) is not None
        for field in ("body", "orelse", "finalbody"):
            for index, statement in enumerate(getattr(owner, field, ())):
                if not (docstring and field == "body" and index == 0):
                    yield from self.statement(owner, field, index, statement)

    def statement(self, parent: Any, field: str, index: int, statement: ast.stmt) -> Iterator[_Site]:
        if isinstance(statement, ast.Raise | ast.Import | ast.ImportFrom | ast.Assert):
            return
        if isinstance(statement, ast.FunctionDef):
            inner = _Walk(f"{self.name}.{statement.name}", statement)
            yield from inner.body(statement)
            return
        for operator, new in self.whole(statement):
            yield _Site(parent, field, index, new, operator, self.name, statement)
        for name, value in ast.iter_fields(statement):
            if name not in ("body", "orelse", "finalbody", "annotation", "target", "targets", "handlers"):
                yield from self.inside(statement, name, value, statement)
        yield from self.body(statement)
        for handler in getattr(statement, "handlers", ()):
            yield from self.body(handler)

    def inside(self, parent: Any, field: str, value: Any, statement: ast.stmt) -> Iterator[_Site]:
        """Places in an expression, or in a list of them."""
        nodes = value if isinstance(value, list) else [value]
        for at, node in enumerate(nodes):
            if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr | ast.arguments):
                continue
            index = at if isinstance(value, list) else None
            condition = field == "test" or (field == "ifs" and isinstance(parent, ast.comprehension))
            for operator, new in [*_negated(node, condition), *_changed(node)]:
                yield _Site(parent, field, index, new, operator, self.name, statement)
            if isinstance(node, ast.Call) and _called(node) in MESSAGES:
                continue
            if isinstance(node, ast.keyword) and node.arg == "strict":
                continue
            for name, child in ast.iter_fields(node):
                yield from self.inside(node, name, child, statement)

    def whole(self, statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
        """A statement left out or turned into another."""
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield "call deleted", ast.Pass()
        if isinstance(statement, ast.AugAssign):
            yield "assignment deleted", ast.Pass()
            if type(statement.op) in ARITHMETIC and not isinstance(statement.value, NO_NUMBERS):
                yield "arithmetic", _with(statement, op=ARITHMETIC[type(statement.op)]())
        if isinstance(statement, ast.Delete) or (isinstance(statement, ast.Assign) and self._bound_before(statement)):
            yield "assignment deleted", ast.Pass()
        if isinstance(statement, ast.With) and not any(item.optional_vars for item in statement.items):
            yield "context dropped", ast.If(ast.Constant(True), statement.body, [])
        if isinstance(statement, ast.Return) and statement.value is not None:
            for value in _other_result(statement.value, self.function.returns):
                yield "return value", ast.Return(value)

    def _bound_before(self, statement: ast.Assign) -> bool:
        """Whether all targets exist without this assignment; a missing name would be found by any test."""
        arguments = self.function.args
        bound = {one.arg for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
        bound |= {
            node.id
            for node in ast.walk(self.function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno < statement.lineno
        }
        names = [node for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        return all(not isinstance(node.ctx, ast.Store) or node.id in bound for node in names)


def _with(node: ast.AST, **fields: Any) -> Any:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _called(node: ast.Call) -> str:
    function = node.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _negated(node: ast.AST, condition: bool) -> Iterator[tuple[str, ast.AST]]:
    """A condition turned around, unless another operator does the same."""
    if not condition or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        return
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], NEGATED_BY_SWAP):
        return
    yield "condition negated", ast.UnaryOp(ast.Not(), node)


def _changed(node: Any) -> Iterator[tuple[str, ast.AST]]:
    """What an expression can be replaced by."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield "comparison", _with(node, ops=[*node.ops[:i], COMPARISONS[type(op)](), *node.ops[i + 1 :]])
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        texts = [part for part in (node.left, node.right) if isinstance(getattr(part, "value", None), str)]
        if not texts and not isinstance(node.left, NO_NUMBERS) and not isinstance(node.right, NO_NUMBERS):
            yield "arithmetic", _with(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield "and/or", _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield "not or sign removed", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "True/False", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "number", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call) and _called(node) in EXTREMES:
        other = EXTREMES[_called(node)]
        function = node.func
        new = _with(function, **{"id" if isinstance(function, ast.Name) else "attr": other})
        yield "min/max", _with(node, func=new)


def _other_result(value: ast.expr, annotation: ast.expr | None) -> Iterator[ast.expr]:
    """Another value of the annotated type: one of the wrong type would be found by any test."""
    kind = "" if annotation is None else ast.unparse(annotation).strip("'\"")
    if kind == "bool":
        yield ast.UnaryOp(ast.Not(), value)
    elif kind in ("int", "float"):
        yield ast.BinOp(value, ast.Add(), ast.Constant(1))
    elif kind.endswith("| None"):
        yield ast.Constant(None)
    elif kind.startswith(("list", "Sequence")):
        yield ast.List([], ast.Load())
    elif kind.startswith(("dict", "Mapping")):
        yield ast.Dict([], [])
    elif kind in ("str", "bytes"):
        yield ast.Constant("" if kind == "str" else b"")
    elif kind == "Tensor" or kind.startswith(("Float[", "Int[")):
        yield ast.UnaryOp(ast.USub(), value)
