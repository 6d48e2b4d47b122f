"""Real answers of every family as JSON files, for whoever draws them: python -m tests.explore.dump FOLDER [RUN …]."""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from small_runs import RUNS, write_run

from pencil.config import UserError
from pencil.explore.compare import compare
from pencil.explore.session import Subject


def views(subject: Subject) -> dict:
    """Every view of one model on its example."""
    about = subject.about()
    state = {"model": subject.id, "input": about["example"], "edits": []}
    found = {"model": about, "answer": subject.answer(state)}
    key = subject.key(state)
    subject.record(state)
    found["outline"] = subject.outline(key)
    found["attention"] = subject.attention(key)
    for how in ("head", "mean", "rollout"):
        layer, head = (0, 1) if how == "head" else (0, None) if how == "mean" else (None, None)
        try:
            found["light" if how == "mean" else f"light-{how}"] = subject.light(key, layer, head, how)
        except UserError as error:
            found[f"light-{how}"] = {"error": str(error)}
    pattern = found["attention"]["groups"][0]["layers"][0]["name"]
    found["slice"] = subject.slice(key, pattern)
    found["receipt"] = subject.receipt(key, found["outline"]["start"])
    edit = f"{pattern.removesuffix('pattern')}z[:,1]=0"
    found["changed"] = subject.edit(state, edit)
    found["difference"] = compare(subject.record(state), subject.record({**state, "edits": [edit]}))
    try:
        found["contributions"] = subject.contributions(key, found["outline"]["start"])
        deep = max(found["contributions"]["parts"], key=lambda part: part["parts"])
        found["contributions-part"] = subject.contributions(key, found["outline"]["start"], part=deep["id"])
    except (AttributeError, UserError) as error:
        found["contributions"] = {"error": str(error)}
    return found


def write(subject: Subject, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in views(subject).items():
        (folder / f"{name}.json").write_text(json.dumps(content, allow_nan=False, ensure_ascii=False, indent=1))


def main(out: str, *runs: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in RUNS:
            write(Subject.open(write_run(name, Path(folder))), Path(out) / name)
            print(name, flush=True)
    for path in runs:
        write(Subject.open(path), Path(out) / Path(path).name)
        print(path, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
