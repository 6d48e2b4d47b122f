"""Time from the command to the first shown rate, for every family's default data; and to the first evaluation.

python benchmarks/first_rate.py [FAMILY ...]

Each training runs in a process of its own with two threads, and is stopped by Ctrl-C as soon as its rate is shown.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time

# as a pipe shows it: before the first evaluation, or while training; a terminal has a bar
RATE = re.compile(r"about [\d.,]+ \S+/s|step +\d+/\d+ .*/s .*left")


def first_rate(family: str, folder: str) -> tuple[float, float | None, str]:
    """Seconds until the rate, seconds until step 0 was evaluated (None: not before the rate), and the line."""
    environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    began, evaluated = time.perf_counter(), None
    process = subprocess.Popen(
        [sys.executable, "-m", "pencil", "train", family, "--name", family],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout
    try:
        for line in process.stdout:
            now = time.perf_counter() - began
            if re.match(r"step +0 ", line):
                evaluated = now
            elif RATE.match(line):
                return now, evaluated, line.strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()
    raise SystemExit(f"{family}: it ended without a rate")


def main() -> None:
    from pencil.families import FAMILIES

    print(f"{'family':<10} {'first rate':>10} {'step 0 evaluated':>17}  line")
    for family in sys.argv[1:] or list(FAMILIES):
        with tempfile.TemporaryDirectory() as folder:
            seconds, evaluated, line = first_rate(family, folder)
        shown = "after the rate" if evaluated is None else f"{evaluated:.1f} s"
        print(f"{family:<10} {seconds:>8.1f} s {shown:>17}  {line}", flush=True)


if __name__ == "__main__":
    main()
