"""Hostile files of every kind, each met by the command in a process of its own.

None may be executed or end in a traceback; each is refused in one sentence, within 2 s of CPU time and 300 MB beyond
what the same verb takes on a benign file. `python benchmarks/survival/hostile.py [--only trace] [--list]`
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import hostile_files  # noqa: F401  adds its cases to those of hostile
from hostile import BYTES, CASES, SECONDS, Outcome, benign, faults, run_case
from hostile_data import CASES as DATA_CASES


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--only", default="", help="cases whose name holds this word")
    options.add_argument("--list", action="store_true", help="name the cases, and run none")
    given = options.parse_args()
    cases = {name: make for name, make in (CASES | DATA_CASES).items() if given.only in name}
    if given.list:
        print(*cases, sep="\n")
        return 0
    usual: dict[str, Outcome] = {}
    bad, slowest, largest = 0, 0.0, 0
    for name, make in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            words = [str(word) for word in make(Path(folder))]
            known = start_up(words, usual)
            outcome = run_case(words, Path(folder))
            found = faults(outcome, known, Path(folder))
        bad += bool(found)
        slowest = max(slowest, outcome.cpu_seconds - known.cpu_seconds)
        largest = max(largest, outcome.rss_bytes - known.rss_bytes)
        print(f"{'BAD' if found else 'refused':8} {name}{': ' if found else ''}{'; '.join(found)}", flush=True)
    kinds = Counter(name.partition(":")[0] for name in cases)
    print(f"{len(cases)} hostile files of {len(kinds)} kinds, {len(cases) - bad} refused as they should be; at most "
          f"{max(0.0, slowest):.2f} s of CPU time (limit {SECONDS:g}) and {max(0, largest) / 1e6:.0f} MB "
          f"(limit {BYTES / 1e6:.0f}) beyond start-up")  # fmt: skip
    return 1 if bad else 0


def start_up(words: list[str], usual: dict[str, Outcome]) -> Outcome:
    """What the same verb takes on a benign file, measured once."""
    with tempfile.TemporaryDirectory() as folder:
        verb, plain = benign(words, Path(folder))
        if verb not in usual:
            usual[verb] = run_case(plain, Path(folder))
            if usual[verb].returncode:
                raise SystemExit(f"{verb} fails on a benign file: {usual[verb].stderr}")
    return usual[verb]


if __name__ == "__main__":
    sys.exit(main())
