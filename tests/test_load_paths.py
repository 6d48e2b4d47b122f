"""Nothing that is opened can run: no pickle, no eval, no template and no remote code in the whole source.

One file unpickles, and only tensors: weights/pickled.py, with `weights_only`, in a process of its own.
"""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "pencil"
FILES = sorted(SRC.rglob("*.py"))
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jinja2", "mako", "yaml",
           "runpy", "code", "codeop"}  # fmt: skip
BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint"}
# calls by their last two names, and the argument that makes one harmless
CALLS = {
    "torch.load": None, "jit.load": None, "hub.load": None, "package.PackageImporter": None, "pd.read_pickle": None,
    "os.system": None, "os.popen": None, "np.load": ("allow_pickle", False), "np.fromfile": None,
}  # fmt: skip
KEYWORDS = {"trust_remote_code", "weights_only", "shell", "auto_map"}


def dotted(node: ast.expr) -> str:
    """The last two names of what is called: torch.load."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names += [node.id] if isinstance(node, ast.Name) else []
    return ".".join(reversed(names[:2]))


def faults(source: str) -> list[str]:
    """What could run something that was opened, by line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            level = getattr(node, "level", 0)
            found += [f"{line}: import {n}" for n in names if n.split(".")[0] in MODULES and not level]
        if not isinstance(node, ast.Call):
            continue
        given = {k.arg: k.value.value if isinstance(k.value, ast.Constant) else ... for k in node.keywords}
        if isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
            found.append(f"{line}: {node.func.id}")
        name = dotted(node.func)
        if name in CALLS and (CALLS[name] is None or given.get(CALLS[name][0], ...) != CALLS[name][1]):
            found.append(f"{line}: {name}")
        if name.endswith("from_pretrained") and given.get("use_safetensors") is not True:
            found.append(f"{line}: {name} without use_safetensors=True")
        found += [f"{line}: {word}" for word in KEYWORDS & given.keys()]
    return found


UNPICKLES = SRC / "weights" / "pickled.py"
TEMPLATES = SRC / "serve" / "chat.py"  # renders the template of a run, in a sandbox, in a process that is limited


def test_nothing_that_is_opened_can_run():
    found = [
        f"{path}:{one}"
        for path in FILES
        if path not in (UNPICKLES, TEMPLATES)
        for one in faults(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_the_one_file_that_renders_templates_uses_the_sandbox():
    source = TEMPLATES.read_text(encoding="utf-8")
    assert {line.split(": ")[1] for line in faults(source)} == {"import jinja2", "import jinja2.sandbox"}
    names = {a.name for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom) for a in n.names
             if (n.module or "").startswith("jinja2")}  # fmt: skip
    assert names == {"TemplateError", "ImmutableSandboxedEnvironment"}


def test_the_one_file_that_unpickles_reads_tensors_only():
    source = UNPICKLES.read_text(encoding="utf-8")
    assert sorted(line.split(": ")[1] for line in faults(source)) == ["torch.load", "weights_only"]
    (call,) = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and dotted(n.func) == "torch.load")
    (given,) = (k.value for k in call.keywords if k.arg == "weights_only")
    assert isinstance(given, ast.Constant)
    assert given.value is True


@pytest.mark.parametrize("source", [
    "import pickle", "from pickle import loads", "import torch\ntorch.load('a')", "eval('1')", "exec(x)",
    "AutoencoderKL.from_pretrained('a')", "M.from_pretrained('a', use_safetensors=False)", "np.load('a')",
    "np.load('a', allow_pickle=True)", "load_dataset('a', trust_remote_code=True)", "import yaml", "os.system('ls')",
    "subprocess.run('ls', shell=True)", "from jinja2 import Template", "__import__('os')",
])  # fmt: skip
def test_the_search_finds_each_kind(source):
    assert faults(source)


@pytest.mark.parametrize("source", [
    "model.eval()", "re.compile('a')", "from .code import x", "np.load('a', allow_pickle=False)",
    "M.from_pretrained('a', use_safetensors=True)",
])  # fmt: skip
def test_the_search_lets_the_harmless_pass(source):
    assert faults(source) == []
