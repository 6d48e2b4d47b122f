"""Startup time: `import pencil` and `pencil --help`, medians of ten, beside a bare Python.

python benchmarks/startup.py
"""

import subprocess
import sys
import time


def median(*words: str) -> float:
    times = []
    for _ in range(10):
        begun = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        times.append(time.perf_counter() - begun)
    return sorted(times)[5]


bare = median("-c", "pass")
print(f"python -c pass        {bare:.3f} s")
print(f"import pencil         {median('-c', 'import pencil') - bare:.3f} s more")
print(f"pencil --help         {median('-m', 'pencil', '--help'):.3f} s in all")
