"""Mutation testing: faults put into the training and generation code, and how many of them the tests find.

    python benchmarks/survival/mutants.py                    # 200 mutants, seed 0
    python benchmarks/survival/mutants.py --count 12 --seed 1

A mutant is a small fault (mutation.py), put into a copy of the sources; only tests that cover its line run, the quickest
first. One that every test passes survives: it is listed, unless survivors.toml accepts it, with a reason.

Why this is not mutmut, which has the same parts (a server that forks, a limit of CPU time, tests chosen for each
mutant). Version 3.8.1 was tried on inference/sampling.py alone with tests/inference/test_choosing.py. It leaves out
every decorated function but static and class methods: of the sources below 82 of 634 functions, with 428 of 3,919
statements, among them all under `torch.no_grad` and all properties. It made 302 mutants of the file where this makes
117, and 80 of them stand in the one method that is mostly the sentence of a refusal, whose prose no test has to repeat.
It chooses tests for a function, not for a line. It has no sample by a seed, and a survivor is accepted only by a comment
in the source. On a machine that others kept busy it copied the sources for 47 s and had not come to its first mutant
after 500 s. cosmic-ray 8.7.0 starts one test command anew for every mutant, which imports torch each time, and does
not choose tests by what they cover.
"""

import argparse
import collections
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from covering import Covering, cover
from forked_tests import BROKEN, Child, Result, Select, copy_project, in_parallel, preload, pytest_child
from mutation import Mutant, choose, mutants_of, mutated

HERE = Path(__file__).resolve().parent
SOURCES = ["src/pencil/train/*.py", "src/pencil/train/*/*.py", "src/pencil/inference/generation.py", "src/pencil/inference/beam.py",
           "src/pencil/inference/sampling.py"]  # fmt: skip
# of the command line, the tests that train or generate
TESTS = ["tests/train", "tests/inference", "tests/api", "tests/families", "tests/processes/test_training.py",
         *(f"tests/cli/test_{name}.py" for name in (
             "verbs", "dit_verbs", "image_verbs", "text_verbs", "latent_verbs", "options", "bad_input"))]  # fmt: skip
OPTIONS = "-p no:xdist --strict-markers"  # tests/conftest.py has the shapes checked where they are written
PRELOAD = ("torch", "torch._dynamo", "pytest", "hypothesis", "beartype", "jaxtyping", "numpy", "PIL.Image", "rich.progress",
           "cyclopts", "safetensors.torch", "tokenizers", "matplotlib.figure", "matplotlib.backends.backend_agg",
           "xlsxwriter", "anyio", "coverage")  # fmt: skip
QUICK_SECONDS = 4.0  # of CPU time: the tests that are tried first


class Fate(NamedTuple):
    """What became of a mutant: the test that found it, or None."""

    mutant: Mutant
    by: str | None
    tests: int


class Job(NamedTuple):
    mutant: Mutant
    now: list[str]
    later: list[str]


class Hunt:
    """Mutants tried one after the other, each in a copy of the project."""

    def __init__(self, root: Path, covering: Covering, options: list[str], total: int):
        self.root, self.covering, self.options, self.total = root, covering, options, total
        self.fates: list[Fate] = []

    def job(self, mutant: Mutant) -> Job:
        tests = self.covering.tests(mutant.file, mutant.lines) or self.covering.tests(mutant.file, mutant.statement)
        spent, quick = 0.0, 0
        while quick < len(tests) and (spent := spent + self.covering.cost[tests[quick]]) <= QUICK_SECONDS:
            quick += 1
        # of the rest all tests of a file together, so that what they share is made once
        later = sorted(tests[max(1, quick) :], key=lambda nodeid: nodeid.partition("::")[0])
        return Job(mutant, tests[: max(1, quick)], later)

    def start(self, job: Job, slot: Path) -> Child:
        path, source = slot / job.mutant.file, self.root / job.mutant.file
        path.write_text(mutated(self.root, job.mutant), encoding="utf-8")
        # a time of its own, so that no compiled file fits it
        when = source.stat().st_mtime + 10 + job.mutant.number
        os.utime(path, (when, when))
        spent = sum(self.covering.cost[nodeid] for nodeid in job.now)
        return Child(slot, self._tests(job.now, slot), 10 * spent + 20)

    def _tests(self, nodeids: list[str], slot: Path):
        files = list(dict.fromkeys(nodeid.partition("::")[0] for nodeid in nodeids))
        return pytest_child(slot, files, ["-x", *self.options], Select(nodeids))

    def end(self, job: Job, result: Result) -> Job | None:
        shutil.copy2(self.root / job.mutant.file, result.log.parent / job.mutant.file)
        if result.code in (4, BROKEN):
            raise SystemExit(f"the tests could not be run:\n{result.log.read_text()[-3000:]}")
        if result.code == 0 and job.later:
            return Job(job.mutant, job.later, [])
        by = (
            None
            if result.code == 0
            else "the limit of time"
            if result.code is None
            else (result.found or ["pytest"])[0]
        )
        self._keep(Fate(job.mutant, by, len(job.now)))
        return None

    def _keep(self, fate: Fate) -> None:
        self.fates.append(fate)
        how = f"caught by {fate.by}" if fate.by else f"SURVIVED {fate.tests} tests"
        print(f"{len(self.fates)}/{self.total} {fate.mutant}\n    {how}", flush=True)

    def run(self, mutants: list[Mutant], slots: list[Path]) -> list[Fate]:
        jobs = [self.job(mutant) for mutant in mutants]
        for job in jobs:
            if not job.now:
                self._keep(Fate(job.mutant, None, 0))
        in_parallel([job for job in jobs if job.now], slots, self.start, self.end)
        return sorted(self.fates, key=lambda fate: mutants.index(fate.mutant))

    def control(self, slots: list[Path]) -> list[str]:
        """The tests that found a mutant, without any: those that fail all the same prove nothing."""
        tests = sorted({fate.by for fate in self.fates if fate.by in self.covering.cost})
        failed: list[str] = []

        def start(nodeids: list[str], slot: Path) -> Child:
            return Child(slot, pytest_child(slot, [nodeids[0].partition("::")[0]], self.options, Select(nodeids)), 3600)

        def end(nodeids: list[str], result: Result) -> None:
            failed.extend(nodeids if result.found is None else result.found)

        groups = collections.defaultdict(list)
        for nodeid in tests:
            groups[nodeid.partition("::")[0]].append(nodeid)
        in_parallel(list(groups.values()), slots, start, end)
        return failed


def accepted(path: Path) -> list[dict[str, str]]:
    """Survivors that are known, each with its reason."""
    return tomllib.loads(path.read_text(encoding="utf-8")).get("survivor", []) if path.is_file() else []


def is_accepted(mutant: Mutant, known: list[dict[str, str]]) -> str | None:
    for one in known:
        if (one["file"], one["function"], one["before"], one["after"]) == (
            mutant.file, mutant.function, mutant.before, mutant.after,
        ):  # fmt: skip
            return one["reason"]
    return None


def report(fates: list[Fate], known: list[dict[str, str]]) -> int:
    """Print the figures; how many survivors are not accepted."""
    by_operator = collections.Counter(fate.mutant.operator for fate in fates)
    caught = collections.Counter(fate.mutant.operator for fate in fates if fate.by)
    print("\noperator              caught  of")
    for operator, count in sorted(by_operator.items()):
        print(f"{operator:<21} {caught[operator]:>6} {count:>3}")
    survivors = [fate.mutant for fate in fates if not fate.by]
    unlisted = 0
    for mutant in survivors:
        reason = is_accepted(mutant, known)
        unlisted += reason is None
        print(f"\nsurvivor: {mutant}\n  {reason or 'NOT LISTED in survivors.toml'}")
    share = sum(caught.values()) / max(1, len(fates))
    print(
        f"\n{sum(caught.values())} of {len(fates)} caught ({share:.1%}); {len(survivors)} survived, {unlisted} of them not listed"
    )
    return unlisted


def arguments(words: list[str] | None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--coverage", type=Path, help="where to keep which test covers which line")
    parser.add_argument("--fresh", action="store_true", help="find out again which test covers which line")
    parser.add_argument("--results", type=Path, help="a JSON file to write the fate of every mutant into")
    parser.add_argument("--again", type=Path, help="only the mutants that survived in this file of results")
    parser.add_argument(
        "--only", default="", help="of the chosen ones, those with this in their line: train/loop/trainer.py"
    )
    parser.add_argument("--survivors", type=Path, default=HERE / "survivors.toml")
    parser.add_argument("--root", type=Path, default=HERE.parents[1])
    parser.add_argument("--sources", nargs="+", default=SOURCES)
    parser.add_argument("--tests", nargs="+", default=TESTS)
    parser.add_argument("--options", default=OPTIONS, help="for pytest")
    parser.add_argument("--preload", nargs="*", default=PRELOAD, help="modules to import once")
    return parser.parse_args(words)


def warm(slot: Path, tests: list[str], options: list[str]) -> None:
    """Compile everything once, for all copies."""
    result = None
    child = Child(slot, pytest_child(slot, tests, ["--collect-only", *options], Select([])), 3600, bytecode=True)
    while result is None:
        time.sleep(0.05)
        result = child.ended()
    if result.code not in (0, 5):
        raise SystemExit(f"the tests could not be collected:\n{result.log.read_text()[-3000:]}")


def main(words: list[str] | None = None) -> int:
    args = arguments(words)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # copies and children are cleared away
    preload(args.preload)
    options = [*args.options.split(), "-m", "not long"]
    temporary = Path(tempfile.mkdtemp(prefix="mutants-"))
    try:
        # a copy first: others may be writing into the project
        root = copy_project(args.root, temporary / "original")
        warm(root, args.tests, options)
        slots = [copy_project(root, temporary / f"copy-{n}", bytecode=True) for n in range(args.workers)]
        sources = sorted({str(path.relative_to(root)) for glob in args.sources for path in root.glob(glob)})
        every = [mutant for file in sources for mutant in mutants_of(root, file)]
        mutants = [mutant for mutant in choose(every, args.count, args.seed) if args.only in str(mutant)]
        if args.again:
            survived = [one[:6] for one in json.loads(args.again.read_text()) if not one[6]]
            mutants = [m for m in mutants if [m.file, m.number, m.function, m.operator, m.before, m.after] in survived]
        print(f"{len(mutants)} of {len(every)} mutants of {len(sources)} files", flush=True)
        kept = args.coverage or Path(tempfile.gettempdir()) / f"pencil-mutants-coverage-{os.getuid()}.json"
        covering = cover(root, slots, sources, args.tests, options, kept, args.fresh)
        hunt = Hunt(root, covering, options, len(mutants))
        fates = hunt.run(mutants, slots)
        if args.results:
            rows = [(m.file, m.number, m.function, m.operator, m.before, m.after, by, n) for m, by, n in fates]
            args.results.write_text(json.dumps(rows, indent=1))
        unlisted = report(fates, accepted(args.survivors))
        for nodeid in (failed := hunt.control(slots)):
            print(f"{nodeid} fails without a mutant, too: what it caught does not count")
        return 1 if unlisted or failed else 0
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
