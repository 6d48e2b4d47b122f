"""slides: the tour of a model as a lecture, in one file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..config import UserError, check_output, expand_path
from ..console import note
from .names import check_run
from .screens.terminal import progress_bar

if TYPE_CHECKING:
    from ..explore.session import Session


def slides(
    run: str,
    /,
    *,
    out: Annotated[str, Parameter(help="The file to write, such as talk.html.")],
    text: Annotated[str | None, Parameter(help="The text, the source or the class to tell of.")] = None,
    image: Annotated[Path | None, Parameter(help="The picture to tell of.")] = None,
) -> int:
    """Write the tour of a model as slides: one file, which needs no network and no server.

    It opens as a lecture: → and ← go on and back, n shows the notes and the time, s is a spotlight; Esc leaves the
    lecture for the page, in which every number still opens its arithmetic. Without --text or --image it tells of the
    model's own example.

    Parameters
    ----------
    run
        The run's folder, or a model that comes with Pencil: example:scenes, example:english.
    """
    check_run(run)
    path = expand_path(out)
    check_output("--out", path, ".html", ".htm")
    # from here on torch is needed
    from ..explore.answers import Listener
    from ..explore.export import slides_page
    from ..explore.session import Session
    from ..files import write_aside

    session = Session.open(run)
    given = _input(session, text, image)
    with progress_bar(str(path)) as progress:

        def on_event(name: str, content: dict[str, Any]) -> None:
            if name == "progress" and content["total"]:
                progress(content["done"] / content["total"])

        page = slides_page(session, {"input": given}, Listener(on_event))
    write_aside(path, page.encode())
    note(f"{path}: {len(page.encode()) / 1e6:.2f} MB")
    return 0


def _input(session: "Session", text: str | None, image: Path | None) -> dict[str, Any]:
    """The model's own example, with what was given in its place."""
    from ..data.images.decoding import FITTED
    from ..families.explore_profile import data_address
    from ..families.predictions import input_transform, read_picture

    given, takes = dict(session.about()["example"]), session.takes
    if text is not None:
        name = next((name for name in ("source", "text", "label") if name in takes), None)
        if name is None:
            raise UserError(f"{session.name} reads no text; give it --image")
        given[name] = text
    if image is not None:
        if "picture" not in takes:
            raise UserError(f"{session.name} reads no picture; give it --text")
        picture = read_picture(str(image), input_transform(session.loaded))
        given["picture"] = FITTED + data_address(picture).partition(",")[2]
    return given
