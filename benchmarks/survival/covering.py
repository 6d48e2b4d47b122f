"""Which tests cover which lines, and how long each takes: one pass over the tests, kept in a file by their hashes."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from forked_tests import Child, Result, cpu_time, in_parallel, pytest_child

OWN_TEST = "test_mutants.py"  # tests this very script
PASS_LIMIT = 1800  # seconds of CPU time for the tests of one file


class Recorder:
    """A pytest plugin: the lines that each test covers, and its CPU time.

    A fixture that several tests share counts as covered by each of them, and its time as spent by each.
    """

    def __init__(self, folder: Path, sources: list[str]):
        self.folder, self.sources = folder, sources
        self.tests: dict[str, dict[str, Any]] = {}
        self.fixtures: dict[str, float] = {}
        self.stack = [""]

    def begin(self) -> None:
        from coverage import Coverage

        self.coverage = Coverage(
            data_file=None, include=[str(self.folder / name) for name in self.sources], config_file=False
        )
        self.coverage.start()

    @contextmanager
    def context(self, name: str) -> Iterator[list[float]]:
        self.stack.append(name)
        self.coverage.switch_context(name)
        begun, spent = cpu_time(), [0.0]
        try:
            yield spent
        finally:
            spent[0] = cpu_time() - begun
            self.stack.pop()
            self.coverage.switch_context(self.stack[-1])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any):
        shared = [_key(one[-1]) for one in item._fixtureinfo.name2fixturedefs.values() if _shared(one[-1])]
        self.tests[item.nodeid] = {"fixtures": shared, "passed": False, "seconds": 0.0}
        before = sum(self.fixtures.values())
        with self.context(item.nodeid) as spent:
            result = yield
        self.tests[item.nodeid]["seconds"] = round(spent[0] - (sum(self.fixtures.values()) - before), 3)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any):
        if not _shared(fixturedef):
            return (yield)
        with self.context(_key(fixturedef)) as spent:
            result = yield
        self.fixtures[_key(fixturedef)] = round(spent[0], 3)
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.nodeid in self.tests:
            self.tests[report.nodeid]["passed"] = report.passed

    def found(self) -> dict[str, Any]:
        self.coverage.stop()
        data, lines = self.coverage.get_data(), {}
        for name in self.sources:
            by_line = data.contexts_by_lineno(str(self.folder / name))
            covered = {line: [c for c in contexts if c] for line, contexts in by_line.items()}
            lines[name] = {line: contexts for line, contexts in covered.items() if contexts}
        return {"tests": self.tests, "fixtures": self.fixtures, "lines": lines}


def _key(fixture: Any) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


def _shared(fixture: Any) -> bool:
    return fixture.scope != "function"


class Covering:
    """The tests of each line, quickest first."""

    def __init__(self, files: dict[str, dict[str, Any]]):
        self.cost: dict[str, float] = {}
        users: dict[str, set[str]] = defaultdict(set)
        fixtures = {key: spent for one in files.values() for key, spent in one["fixtures"].items()}
        for one in files.values():
            for nodeid, test in one["tests"].items():
                if test["passed"]:
                    self.cost[nodeid] = test["seconds"] + sum(fixtures.get(key, 0.0) for key in test["fixtures"])
                    for key in test["fixtures"]:
                        users[key].add(nodeid)
        self.lines: dict[tuple[str, int], set[str]] = defaultdict(set)
        for one in files.values():
            for name, lines in one["lines"].items():
                for line, contexts in lines.items():
                    for context in contexts:
                        self.lines[name, int(line)] |= users.get(context, {context})

    def tests(self, file: str, lines: Iterable[int]) -> list[str]:
        found = set().union(*(self.lines.get((file, line), ()) for line in lines)) & self.cost.keys()
        return sorted(found, key=lambda nodeid: (self.cost[nodeid], nodeid))


def cover(
    root: Path, slots: list[Path], sources: list[str], tests: list[str], options: list[str], kept: Path, fresh: bool
) -> Covering:
    """What the tests cover, from the file where it is as they are now; only the others are run again."""
    known = json.loads(kept.read_text()) if kept.is_file() and not fresh else {}
    keys = test_files(root, tests)
    files = {name: one for name, one in known.items() if keys.get(name) == one["key"]}
    missing = [name for name in keys if name not in files]
    if missing:
        print(f"which lines the tests of {len(missing)} files cover…", flush=True)

    def start(name: str, slot: Path) -> Child:
        return Child(slot, pytest_child(slot, [name], options, Recorder(slot, sources)), PASS_LIMIT)

    def end(name: str, result: Result) -> None:
        if result.code not in (0, 1, 5):
            raise SystemExit(f"the tests of {name} could not be run:\n{result.log.read_text()[-3000:]}")
        failed = [nodeid for nodeid, test in result.found["tests"].items() if not test["passed"]]
        print(
            f"  {name}: {len(result.found['tests'])} tests, {len(failed)} not passed, {result.seconds:.0f} s",
            flush=True,
        )
        files[name] = {"key": keys[name], **result.found}
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(files))

    in_parallel(missing, slots, start, end)
    # through JSON, as a later run reads it
    return Covering(json.loads(json.dumps(files)))


def test_files(root: Path, folders: list[str]) -> dict[str, str]:
    """The test files, each with a hash of itself, of the sources and of what tests share."""
    every = sorted((root / "tests").rglob("*.py"))
    common = hashlib.sha256()
    for path in [*sorted((root / "src").rglob("*.py")), *(p for p in every if not p.name.startswith("test_"))]:
        common.update(str(path.relative_to(root)).encode() + path.read_bytes())
    named = [p for p in every if p.name.startswith("test_") and any(p.is_relative_to(root / f) for f in folders)]
    named = [p for p in named if p.name != OWN_TEST]
    return {
        str(path.relative_to(root)): hashlib.sha256(common.digest() + path.read_bytes()).hexdigest() for path in named
    }
