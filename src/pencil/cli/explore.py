"""explore."""

import os
import shlex
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..config import UserError
from ..console import note
from .names import check_run

if TYPE_CHECKING:
    from ..explore.subject import Subject

MOST = 2  # models side by side
USAGE = "[RUN] [RUN] [OPTIONS]"


def explore(
    *runs: str,
    port: int = 0,
    browser: bool = True,
    debug: Annotated[bool, Parameter(show=False, negative=())] = False,
) -> int:
    """Open a model in the browser: its answer, why it gave it, and the arithmetic of every number.

    The page is served on this machine only, at 127.0.0.1, and asks nothing of any other. Ctrl-C ends it.

    Parameters
    ----------
    runs
        The run's folder; two runs are shown side by side. RUN@STEP is a run at one of its checkpoints, as in
        runs/notes-gpt@300. Without a run: a small captioner that comes with Pencil.
    port
        The port to serve on; a free one by default.
    browser
        Open the browser; the address is printed in every case.
    """
    if len(runs) > MOST:
        raise UserError(f"at most {MOST} models are shown side by side, not {len(runs)}")
    for path, _ in map(_run_and_step, runs):
        check_run(path)
    # from here on torch is needed
    from ..explore.serving import bind, serve

    found = bind(port)  # before a model is opened, which takes longer
    try:
        subjects = _opened(runs)
        command = shlex.join(["pencil", "explore", *runs])
        serve(subjects, found, debug, command, lambda address: _announce(address, browser))
    finally:
        found.close()
    _end()
    return 0


def _end() -> None:
    """End at once: taking torch apart takes Python seconds, and nothing is left to write."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _opened(runs: tuple[str, ...]) -> "list[Subject]":
    from ..explore.subject import Subject

    if not runs:
        return [Subject.of_example()]
    return [Subject.open(path, id, step) for id, (path, step) in zip("ab", map(_run_and_step, runs), strict=False)]


def _run_and_step(word: str) -> tuple[str, int | None]:
    """runs/a@300 as its folder and its step; a folder of that whole name goes first."""
    path, at, step = word.rpartition("@")
    return (path, int(step)) if at and path and step.isdecimal() and not Path(word).exists() else (word, None)


def _announce(address: str, browser: bool) -> None:
    print(address, flush=True)
    note("Open this address in a browser on this machine; Ctrl-C ends the server.")
    if browser and _has_screen():
        webbrowser.open(address)


def _has_screen() -> bool:
    """Whether a browser has a window to open: without a display Python would start one that fills the terminal."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
