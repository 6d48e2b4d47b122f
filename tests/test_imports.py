"""The arrows between packages, no circle between files, what loads torch, and what is never used."""

import ast
import subprocess
import sys
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
        "manifest",
        "processes",
        "progress",
        "tensors",
        "torchrun",
        "draw",
        "page",
        "examples",
    },
    {"data", "device"},
    {"run_files"},
    {"models", "runs"},
    {"tracing", "inference", "cost"},
    {"weights", "train"},
    {"families"},
    {"learn", "bench"},
    {"explore"},
    {"cli"},
)
ORDER = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
# what a package does not import although it comes before it
FORBIDDEN = {
    "tracing": {"models", "data", "run_files", "runs", "inference", "cost"},  # it works on any module
    "inference": {"cost", "tracing"},
    "cost": {"tracing", "inference", "data", "run_files", "runs"},
    "weights": {"tracing", "inference", "cost", "train", "run_files", "runs", "data"},
    "train": {"tracing", "cost", "weights"},
    "models": {"data", "run_files", "runs", "device", "draw"},
    "run_files": {"device", "draw"},
    "runs": {"models", "device", "draw"},
}
FILES = sorted(SRC.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def module_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(SRC).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


MODULES = {module_of(path): path for path in FILES}


def imported(path: Path) -> tuple[set[tuple[str, ...]], set[str]]:
    """The modules of the package that a file imports, inside functions too, and the other packages."""
    ours, others = set(), set()
    package = path.relative_to(SRC).parts[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
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


GRAPH = {module_of(path): imported(path)[0] for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_packages_import_only_what_stands_below_them(path):
    ours, others = imported(path)
    mine = room(path)
    assert not others & {"pencil", "pickle", "torchvision", "yaml", "jinja2", "requests", "sklearn", "scipy"}
    if mine in ("__init__", "__main__"):
        return
    used = {one[0] for one in ours} - {mine}
    for other in used:
        level = ORDER[other]
        assert level < ORDER[mine] or (level == ORDER[mine] == 0 and mine != "core"), f"{path} imports {other}"
    assert not used & FORBIDDEN.get(mine, set()), f"{path} imports {used & FORBIDDEN[mine]}"
    if mine == "core":
        assert not used
        assert others <= {"torch", "jaxtyping", *sys.stdlib_module_names}


def test_every_package_has_its_layer():
    assert {room(path) for path in FILES} - {"__init__", "__main__"} <= set(ORDER)


def circles() -> list[list[tuple[str, ...]]]:
    """Groups of files that import one another, directly or by way of others (Tarjan)."""
    index: dict = {}
    low: dict = {}
    stack: list = []
    found = []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in GRAPH.get(node, ()):
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

    for node in GRAPH:
        if node not in index:
            visit(node)
    return found


def test_no_circle_between_files():
    assert circles() == []


def test_a_circle_hidden_in_a_function_is_found(tmp_path, monkeypatch):
    one, other = ("data", "text"), ("data", "tokenizers")
    monkeypatch.setitem(GRAPH, other, GRAPH[other] | {one})
    assert other in GRAPH[one]
    assert any({one, other} <= set(group) for group in circles())


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_nothing_unpickles_or_evaluates(path):
    calls = [ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    known = {"torch.load"} if path == SRC / "weights" / "pickled.py" else set()  # see test_load_paths.py
    assert set(calls) & {"torch.load", "torch.save", "eval", "exec", "compile", "np.load", "pickle.load"} == known


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
        assert name not in modules or callable(getattr(pencil, name)), f"{name} is both a module and a public name"
    with pytest.raises(AttributeError):
        _ = pencil.nothing
