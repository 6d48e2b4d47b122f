"""The arrows of the house, what loads torch, and what is never used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "pencil"

# each room may import itself, what is listed, and the files at the root that everyone may use
ARROWS = {
    "core": set(),
    "config": set(),
    "files": set(),
    "draw": set(),
    "data": {"config", "files"},
    "models": {"core", "config", "data", "files"},
    "generate": {"models", "core", "config", "data", "files"},
    "beam": {"generate", "models", "core", "config", "data", "files"},
    "diffusion": {"models", "core", "config"},
    "runs": {"generate", "models", "core", "config", "data", "files"},
    "weights": {"runs", "generate", "models", "core", "config", "data", "files"},
    "train": {"draw", "beam", "diffusion", "runs", "generate", "models", "core", "config", "data", "files"},
    "tracing": {"page", "draw", "core", "config", "files"},
    "cost": {"models", "core", "config", "data", "files"},
    "learn": {
        "tracing",
        "train",
        "diffusion",
        "runs",
        "generate",
        "draw",
        "page",
        "cost",
        "models",
        "core",
        "config",
        "data",
        "files",
        "examples",
    },
    "cli": {
        "learn",
        "cost",
        "diffusion",
        "tracing",
        "draw",
        "weights",
        "train",
        "runs",
        "generate",
        "models",
        "core",
        "config",
        "data",
        "files",
    },
    "__init__": set(),
    "__main__": {"cli"},
}


def room(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports(path: Path):
    """The rooms of the package this file imports, and the other packages."""
    ours, others = set(), set()
    package = path.relative_to(SRC).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            base = [part for part in base if part]
            ours.update([base[0]] if base else (alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            (ours if node.module.split(".")[0] == "pencil" else others).add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            others.update(alias.name.split(".")[0] for alias in node.names)
    return ours, others


FILES = sorted(SRC.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_arrows(path):
    ours, others = imports(path)
    mine = room(path)
    assert ours - {mine, "__version__"} <= ARROWS[mine], f"{path} imports {ours - ARROWS[mine]}"
    if mine == "core":
        assert others <= {"torch", "jaxtyping", *sys.stdlib_module_names}
    assert not others & {"pencil", "pickle", "torchvision", "yaml", "jinja2", "requests"}


def test_every_room_has_its_arrows():
    assert {room(path) for path in FILES} == set(ARROWS)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_nothing_unpickles_or_evaluates(path):
    calls = [ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    assert not set(calls) & {"torch.load", "torch.save", "eval", "exec", "compile", "np.load", "pickle.load"}


def test_torch_loads_only_when_needed():
    code = "import sys, pencil, pencil.cli.main; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "False"]


def test_public_names_all_resolve():
    import pencil

    modules = {path.stem for path in SRC.glob("*.py")} | {path.name for path in SRC.iterdir() if path.is_dir()}
    for name in pencil.__all__:
        assert getattr(pencil, name) is not None
        assert name not in modules, f"{name} is both a module and a public name"
    with pytest.raises(AttributeError):
        _ = pencil.nothing
