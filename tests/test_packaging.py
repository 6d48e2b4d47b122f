"""The wheel and the sdist: every file of the package is in them, and the wheel works outside of a checkout."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile

import pytest

from conftest import HERE
from pencil.cli.doctor import EXTRAS
from pencil.families import FAMILIES
from pencil.train.loop.report import _OPEN

ROOT = HERE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


def _tracked(folder):
    """The files that git has, or would have: all that it does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a checkout")
    return {name for name in done.stdout.splitlines() if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A wheel and an sdist, built by the build backend that is installed."""
    pytest.importorskip("hatchling", reason="hatchling, which builds the package, is not installed")
    folder = tmp_path_factory.mktemp("dist")
    code = "import sys; from hatchling.build import build_sdist, build_wheel; build_sdist(sys.argv[1]); build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, folder], cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


@pytest.mark.long
def test_the_wheel_has_every_file_of_the_package_and_no_other(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {name.removeprefix("src/") for name in _tracked("src/pencil")}
    assert {
        "pencil/data/images/digits.gz",
        "pencil/page/app.css",
        "pencil/examples/walks/004.toml",
        "pencil/py.typed",
    } <= names


@pytest.mark.long
def test_the_wheel_has_the_licences_of_all_that_is_in_it(built):
    with zipfile.ZipFile(built[0]) as wheel:
        found = {name.partition(".dist-info/licenses/")[2] for name in wheel.namelist()}
    assert {"LICENSE", "src/pencil/page/LICENSES.txt"} <= found


def test_the_page_has_the_licences_of_the_packages_in_its_script():
    """The build lists them from what it put into the script; they stand in the script, and so in every exported file."""
    assert "src/pencil/page/LICENSES.txt" in PROJECT["license-files"]
    text = (ROOT / "src/pencil/page/LICENSES.txt").read_text(encoding="utf-8")
    assert (ROOT / "src/pencil/page/app.js").read_text(encoding="utf-8").startswith(f"/*!\n{text}*/\n")
    lock = json.loads((ROOT / "web/package-lock.json").read_text(encoding="utf-8"))["packages"]
    listed = re.findall(r"^([\w@/-]+) (\d\S+) \((.+)\)$", text, re.MULTILINE)
    assert "svelte" in [name for name, _, _ in listed]
    for name, version, licence in listed:
        assert (lock[f"node_modules/{name}"]["version"], lock[f"node_modules/{name}"]["license"]) == (version, licence)
    packages, _, typeface = text.partition("\nSTIX Two (OFL-1.1)")
    assert packages.count("Permission is hereby granted") == packages.count("Copyright ") == len(listed)
    assert "SIL OPEN FONT LICENSE" in typeface


@pytest.mark.long
def test_the_sdist_has_the_sources_the_tests_and_the_docs(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("src", "tests", "docs", "benchmarks"):
        assert _tracked(folder) <= names
    assert not [name for name in names if name.startswith(("runs/", ".venv/", "build/"))]


@pytest.mark.long
def test_the_wheel_works_outside_of_a_checkout(built, tmp_path):
    """An environment with the wheel alone; torch and the other packages are those of this one."""
    venv.create(tmp_path / "env", with_pip=False)
    site = next((tmp_path / "env").rglob("site-packages"))
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(site)
    (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    python = tmp_path / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(*words):
        done = subprocess.run([python, *words], cwd=tmp_path, env=env, input="", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-c", "import pencil; print(pencil.__file__)").strip() == str(site / "pencil" / "__init__.py")
    assert "Train a small model" in run("-m", "pencil", "demo", "--help")
    assert "A Vision Transformer's attention by hand" in run("-m", "pencil", "walk", "004")
    assert "attn.pattern" in run("-m", "pencil", "show", "example:vit-4x4")
    assert run("-m", "pencil", "kata")
    run("-m", "pencil", "trace", "example:vit-4x4", "--html", "page.html", "--xlsx", "sheet.xlsx")
    run("-m", "pencil", "train", "captioner", "--data", "scenes", "--out", "run", "--train.steps", "2", "--train.batch", "2",
        "--train.eval_batches", "1", "--model.width", "16", "--model.heads", "2", "--model.depth", "1")  # fmt: skip
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_the_description_has_the_number_of_kinds_of_model():
    assert f"{WORDS[len(FAMILIES) - 1]} kinds of model" in PROJECT["description"]


def _packages(extra):
    """The packages of an extra, with those of the extras it names."""
    for line in PROJECT["optional-dependencies"][extra]:
        if found := re.fullmatch(r"pencil-transformers\[(.+)\]", line):
            for other in found[1].split(","):
                yield from _packages(other)
        else:
            yield re.split(r"[<>=]", line)[0]


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def _locked(group):
    """The pins of a lock file with their hashes, read as pip reads it: a backslash continues a line."""
    text = (ROOT / "requirements" / f"{group}.lock").read_text().replace("\\\n", "")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {pin: hashes for pin, *hashes in lines}


def test_every_pin_but_torch_has_the_hashes_of_its_wheels():
    pins = {
        _normal(name): version
        for name, version in (line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    }
    assert pins.pop("torch") == "2.13.0"
    locked = [_locked(group) for group in ("runtime", "dev", "models", "docs")]
    assert sorted(pin for one in locked for pin in one) == sorted(
        f"{name}=={version}" for name, version in pins.items()
    ), "run make lock"
    for hashes in (hashes for one in locked for hashes in one.values()):
        assert hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes)


def test_what_pencil_needs_to_be_built_and_to_run_is_locked():
    found = importlib.util.spec_from_file_location("lock", ROOT / "tools" / "lock.py")
    lock = importlib.util.module_from_spec(found)
    found.loader.exec_module(lock)
    assert lock.needed() - {"torch"} == {pin.partition("==")[0] for pin in _locked("runtime")}
    (backend,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert backend in _locked("runtime")


def test_nothing_is_installed_without_its_hash_but_torch_and_pencil_itself():
    lines = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pip install" in line]
    hashed = [line for line in lines if "--require-hashes" in line]
    assert len(hashed) == 1  # the command of all lock files
    assert "--no-deps" in hashed[0]
    assert "--only-binary :all:" in hashed[0]
    assert [line.split()[-1] for line in lines if line not in hashed] == ["torch", "."]


def test_doctor_names_the_extras_that_exist_with_their_packages():
    for extra, (packages, _) in EXTRAS.items():
        assert sorted(_packages(extra)) == sorted(packages)


def test_doctor_says_what_an_extra_enables_and_how_to_install_it(type_in, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "datasets" else real(name, *more)
    )
    monkeypatch.setattr("pencil.cli.doctor.EXTRAS", {"hub-data": EXTRAS["hub-data"]})  # the others take seconds
    out = type_in("doctor").out
    line = next(line for line in out.splitlines() if line.startswith("hub-data"))
    assert "Parquet" in line
    assert line.endswith("datasets missing; pip install '.[hub-data]' in the checkout of Pencil")
    assert re.search(r"^systems +Linux is tested; Windows is tested by simulation only, macOS not at all$", out, re.M)


def test_doctor_says_of_an_installed_package_that_it_cannot_be_imported(type_in, monkeypatch, tmp_path):
    """As pip leaves one that it installed without what it needs."""
    for name, code in (("fine_one", ""), ("lacks_another", "import another_one_that_is_missing"), ("odd", "1 / 0")):
        (tmp_path / f"{name}.py").write_text(code)
        (tmp_path / f"{name}-3.5.dist-info").mkdir()
        (tmp_path / f"{name}-3.5.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.5\n"
        )
    (tmp_path / "a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        "pencil.cli.doctor.EXTRAS", {"all": (["fine_one", "lacks_another", "odd", "absent_one", "a_folder"], "a use")}
    )
    line = type_in("doctor").out.splitlines()[-1]
    assert line == (
        "all              a use: fine_one 3.5, lacks_another 3.5, installed, but cannot be imported: No module named "
        "'another_one_that_is_missing', odd 3.5, installed, but cannot be imported: division by zero, absent_one missing, "
        "a_folder missing; pip install '.[all]' in the checkout of Pencil"
    )


def test_the_extras_that_sentences_name_exist():
    """A refusal that says pip install '.[…]' names an extra of the package, which is on no index."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "pencil-transformers[" not in text, path
        found += re.findall(r"install\('([\w-]+)'\)", text)
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        found += [ast.literal_eval(call.args[2]) for call in calls if ast.unparse(call.func) == "package"]
    assert {"hub-data", "latents"} <= set(found) <= set(PROJECT["optional-dependencies"])
    assert set(_OPEN) <= set(PROJECT["optional-dependencies"]) | {"none"}
