"""Real answers of every family as JSON files, for whoever draws them: python -m tests.explore.dump FOLDER [RUN …]."""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from small_runs import RUNS, write_run

from pencil.config import UserError
from pencil.explore.attention_views import attention as attention_of
from pencil.explore.cells import compare, compare_edit, contributions, tensor_slice
from pencil.explore.cells import receipt as receipt_of
from pencil.explore.outline import outline as outline_of
from pencil.explore.picture import picture, picture_of
from pencil.explore.session import Session


def views(session: Session) -> dict:
    """Every view of one model on its example."""
    about = session.about()
    state = {"model": session.id, "input": about["example"], "edits": []}
    found = {"model": about, "answer": session.answer(state)}
    key = session.state(state).key
    session.record(state)
    found["outline"] = outline_of(session, key)
    found["attention"] = attention_of(session, key)
    found["picture"] = picture(session, key)
    found["picture_of"] = picture_of(session, key, found["outline"]["start"])
    pattern = found["attention"]["groups"][0]["layers"][0]["name"]
    found["slice"] = tensor_slice(session, key, pattern)
    found["receipt"] = receipt_of(session, key, found["outline"]["start"])
    edit = f"{pattern.removesuffix('pattern')}z[:,1]=0"
    found["changed"] = compare_edit(session, state, edit)
    found["difference"] = compare(session.record(state), session.record({**state, "edits": [edit]}))
    try:
        found["contributions"] = contributions(session, key, found["outline"]["start"])
        deep = max(found["contributions"]["parts"], key=lambda part: part["parts"])
        found["contributions-part"] = contributions(session, key, found["outline"]["start"], part=deep["id"])
    except (AttributeError, UserError) as error:
        found["contributions"] = {"error": str(error)}
    return found


def write(session: Session, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in views(session).items():
        (folder / f"{name}.json").write_text(json.dumps(content, allow_nan=False, ensure_ascii=False, indent=1))


def main(out: str, *runs: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in RUNS:
            write(Session.open(write_run(name, Path(folder))), Path(out) / name)
            print(name, flush=True)
    for path in runs:
        write(Session.open(path), Path(out) / Path(path).name)
        print(path, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
