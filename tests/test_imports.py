"""The arrows between packages, no circle between files, what loads torch, and what is never used."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "pencil"

# lowest first: a package may import those before it, and itself
LAYERS = (
    {
        "core",
        "config",
        "console",
        "files",
        "collectives",
        "progress",
        "tensors",
        "draw",
        "page",
        "examples",
        "web_server",
    },
    {"data", "device"},
    {"models", "runs"},
    {"tracing", "inference", "cost"},
    {"weights", "train"},
    {"families", "listings"},
    {"api"},
    {"learn", "bench"},
    {"explore"},
    {"serve"},
    {"cli"},
)
ORDER = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
# what a package does not import although it comes before it
FORBIDDEN = {
    "tracing": {"models", "data", "runs", "inference", "cost"},  # it works on any module
    "inference": {"cost", "tracing"},
    "cost": {"tracing", "inference", "data", "runs"},
    "weights": {"tracing", "inference", "cost", "train", "runs", "data"},
    "train": {"tracing", "cost", "weights"},
    "models": {"data", "runs", "device", "draw"},
    "runs": {"models", "device", "draw"},
}
# inside a package: the subfolder, and those of its neighbours that it does not import
SUBFOLDERS = {
    "train/losses": {"train/tasks", "train/parallel", "train/loop", "train"},
    "train/tasks": {"train/parallel", "train/loop"},
    "train/parallel": {"train/tasks", "train/loop"},
    "train": {"train/tasks", "train/loop"},
    "data/text": {"data/images"},
    "data/tables": {"data/images", "data/text"},
    "data/tokenizers": {"data/images", "data/text", "data/tables"},
    "data/images": {"data/text", "data/tables", "data/tokenizers"},
    "api": {"api/interchange"},
    "learn/check": {"learn/katas", "learn/lab", "learn/walks", "learn/heads", "learn/worked"},
    "learn/worked": {"learn/check", "learn/katas", "learn/lab", "learn/walks", "learn/heads"},
    "cli/screens": {"cli"},
}
RECORDS = {("families", name) for name in ("gpt", "vit", "captioner", "dit", "reader", "seq2seq")}
FILES = sorted(SRC.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def module_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(SRC).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


MODULES = {module_of(path): path for path in FILES}


def statements(body: list[ast.stmt], types: bool = False) -> Iterator[ast.stmt]:
    """Every statement of a body, inside functions and classes too; with `types` also what only type checkers read."""
    for statement in body:
        yield statement
        only_for_types = isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test)
        for name in ("orelse", "finalbody") if only_for_types and not types else ("body", "orelse", "finalbody"):
            yield from statements(getattr(statement, name, []), types)
        for branch in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from statements(branch.body, types)


@functools.cache
def imported(path: Path, types: bool = False) -> tuple[set[tuple[str, ...]], set[str]]:
    """The modules of the package that a file imports, inside functions too, and the other packages."""
    package = path.relative_to(SRC).parts[:-1]
    return imports_of(ast.parse(path.read_text(encoding="utf-8")), package, types)


def imports_of(
    tree: ast.Module, package: tuple[str, ...], types: bool = False
) -> tuple[set[tuple[str, ...]], set[str]]:
    ours, others = set(), set()
    for node in statements(tree.body, types):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = (*package[: len(package) - node.level + 1], *(node.module or "").split("."))
            base = tuple(part for part in base if part)
            for alias in node.names:
                inner = (*base, alias.name)
                ours.add(inner if inner in MODULES else base)
        elif isinstance(node, ast.ImportFrom):
            others.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Import):
            others.update(alias.name.split(".")[0] for alias in node.names)
    return {one for one in ours if one}, others


def import_graph() -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """What each file imports, for types too; a package may name the types of its own files."""
    graph = {}
    for path in FILES:
        module, packages_own = module_of(path), path.name == "__init__.py"
        for_types = {one for one in imported(path, types=True)[0] if not packages_own or one[:-1] != module}
        graph[module] = imported(path)[0] | for_types
    return graph


# templates are rendered in one module, in the sandbox, in a process that is limited; scikit-learn is what a classifier
# is compared with, where it is installed
ALLOWED = {"serve/chat.py": {"jinja2"}, "train/tasks/baselines.py": {"sklearn"}}
NOT_OURS = {"pencil", "pickle", "torchvision", "yaml", "jinja2", "requests", "sklearn", "scipy"}


def faults(path: Path, ours: set[tuple[str, ...]], others: set[str]) -> list[str]:
    """What a file imports and must not, as sentences."""
    mine, name = room(path), path.relative_to(SRC).as_posix()
    found = [f"{name} imports {other}" for other in sorted((others & NOT_OURS) - ALLOWED.get(name, set()))]
    if mine in ("__init__", "__main__"):
        return found
    used = {one[0] for one in ours} - {mine}
    found += [
        f"{name} imports {other}, which does not stand below it"
        for other in sorted(used)
        if other in FORBIDDEN.get(mine, set())
        or not (ORDER[other] < ORDER[mine] or (ORDER[other] == ORDER[mine] == 0 and mine != "core"))
    ]
    if mine == "core":
        found += [
            f"{name} imports {other}" for other in sorted(others - {"torch", "jaxtyping"} - sys.stdlib_module_names)
        ]
    if module_of(path) in RECORDS:
        found += [f"{name} imports {'.'.join(one)}" for one in sorted(ours & RECORDS)]
    forbidden = SUBFOLDERS.get(folder(module_of(path)), set())
    return found + [f"{name} imports {'.'.join(one)}" for one in sorted(ours) if folder(one) in forbidden]


def folder(module: tuple[str, ...]) -> str:
    """The folder of a module, from src/pencil on; a package is its own folder."""
    return "/".join(module if MODULES[module].name == "__init__.py" else module[:-1])


def test_packages_import_only_what_stands_below_them():
    found = [fault for path in FILES for fault in faults(path, *imported(path))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "path, ours, others",
    [
        ("core/masks.py", {("config",)}, set()),
        ("core/masks.py", set(), {"numpy"}),
        ("models/gpt.py", {("data", "cache")}, set()),
        ("tracing/tape.py", {("models", "gpt")}, set()),
        ("families/gpt.py", {("api", "loading")}, set()),
        ("families/captioner.py", {("families", "vit")}, set()),
        ("train/tasks/captioning.py", {("train", "loop", "trainer")}, set()),
        ("cli/train.py", set(), {"pickle"}),
    ],
)
def test_an_import_upwards_is_found(path, ours, others):
    assert faults(SRC / path, ours, others)


def test_every_folder_named_is_there():
    assert all((SRC / name).is_dir() for one, others in SUBFOLDERS.items() for name in (one, *others))


def test_every_package_has_its_layer():
    assert {room(path) for path in FILES} - {"__init__", "__main__"} <= set(ORDER)


def circles(graph: dict[tuple[str, ...], set[tuple[str, ...]]]) -> list[list[tuple[str, ...]]]:
    """Groups of files that import one another, directly or by way of others (Tarjan)."""
    index: dict = {}
    low: dict = {}
    stack: list = []
    found = []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while True:
                group.append(stack.pop())
                if group[-1] == node:
                    break
            if len(group) > 1:
                found.append(group)

    for node in graph:
        if node not in index:
            visit(node)
    return found


def test_no_circle_between_files():
    assert circles(import_graph()) == []


def test_a_circle_between_two_files_is_found():
    one, other = ("data", "text", "text_data"), ("data", "tokenizers", "tokenizer")
    graph = import_graph()
    assert other in graph[one]
    graph[other] = graph[other] | {one}
    assert any({one, other} <= set(group) for group in circles(graph))


def test_imports_inside_functions_count_and_those_for_types_do_not():
    code = """
if TYPE_CHECKING:
    from ..api import loading
else:
    import numpy
class Reader:
    def read(self):
        try:
            from .text import text_data
        except ImportError:
            import scipy
        match self:
            case _:
                import regex
"""
    ours, others = imports_of(ast.parse(code), ("data",))
    assert others == {"numpy", "scipy", "regex"}
    assert ours == {("data", "text", "text_data")}
    ours, _ = imports_of(ast.parse(code), ("data",), types=True)
    assert ours == {("data", "text", "text_data"), ("api", "loading")}  # as circles count them


def test_torch_loads_only_when_needed():
    names = ("torch", "numpy", "starlette", "uvicorn")
    code = f"import sys, pencil, pencil.cli.main; print([name for name in {names} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_public_names_all_resolve():
    import pencil

    modules = {path.stem for path in SRC.glob("*.py")} | {path.name for path in SRC.iterdir() if path.is_dir()}
    for name in pencil.__all__:
        assert getattr(pencil, name) is not None
        # a package shadows a function of its name, so it must be that function as well
        meant = name == "listings" or callable(getattr(pencil, name))  # a module that users name themselves
        assert name not in modules or meant, f"{name} is both a module and a public name"
    with pytest.raises(AttributeError):
        _ = pencil.nothing


def test_code_in_strings_names_modules_that_are_there():
    """What is started in a process of its own imports by names that no linter sees."""
    found = []
    for path in [*FILES, *Path(__file__).parent.rglob("*.py")]:
        for line in path.read_text(encoding="utf-8").splitlines():
            for package, names in re.findall(r"from (pencil(?:\.\w+)*) import ((?:\w+(?:, )?)+)", line):
                where = SRC.joinpath(*package.split(".")[1:])
                if not where.with_suffix(".py").is_file() and not where.is_dir():
                    found.append(f"{path.name}: {package}")
                elif where.is_dir() and where != SRC:
                    text = (where / "__init__.py").read_text(encoding="utf-8")
                    ours = {one.stem for one in where.iterdir()} | set(re.findall(r"\w+", text))
                    found += [
                        f"{path.name}: {package}.{name}" for name in names.split(", ") if name and name not in ours
                    ]
    assert not found, "\n".join(found)
