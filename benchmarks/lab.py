"""The table of the removal lab, from the results of a run into the documentation.

`pencil lab all --quick && python benchmarks/lab.py lab/all/results.json` writes the table into docs/explain/ablations.md, between its
two marks.
"""

import json
import sys
from pathlib import Path

from pencil.files import write_aside
from pencil.learn.lab.report import table

DOCS = Path(__file__).parents[1] / "docs" / "explain" / "ablations.md"
BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def main(results: str) -> None:
    before, _, rest = DOCS.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    made = table(json.loads(Path(results).read_text(encoding="utf-8")))
    write_aside(DOCS, f"{before}{BEGIN}\n\n{made}\n{END}{after}".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
