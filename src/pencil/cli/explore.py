"""explore."""

import os
import re
import shlex
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..config import UserError
from ..console import end_at_once, note
from ..files import user_folder, write_private
from .names import check_run
from .parsing import read_token

if TYPE_CHECKING:
    from ..explore.session import Session

MOST_MODELS = 2  # side by side
USAGE = "[RUN] [RUN] [OPTIONS]"


def explore(
    *runs: str,
    port: int = 0,
    lan: Annotated[bool, Parameter(negative=())] = False,
    token_file: Path | None = None,
    browser: bool = True,
    debug: Annotated[bool, Parameter(show=False, negative=())] = False,
) -> int:
    """Open a model in the browser: its answer, why it gave it, and the arithmetic of every number.

    The page is served on this machine only, at 127.0.0.1, and asks nothing of any other; with --lan, to a class on the
    local network, which can look at everything and keeps nothing. Ctrl-C ends it.

    Parameters
    ----------
    runs
        The run's folder; two runs are shown side by side. RUN@STEP is a run at one of its checkpoints, as in
        runs/notes-gpt@300. Without a run: the two small models that come with Pencil, one that describes pictures and
        one that writes English.
    port
        The port to serve on; by default the one your explorer had before, or a free one while that is taken.
    lan
        Answer other machines, too, at every address of this one; needs --token-file. No training steps are taken, and
        nobody's progress in katas is kept.
    token_file
        A file with the token that the printed address carries: letters, digits, - and _, such as openssl rand -hex 32.
    browser
        Open the browser; the address is printed in every case.
    """
    if len(runs) > MOST_MODELS:
        raise UserError(f"at most {MOST_MODELS} models are shown side by side, not {len(runs)}")
    token = read_token(token_file)
    if lan and token is None:
        raise UserError("--lan answers other machines: it needs --token-file with a token that they must send")
    if token is not None and not lan:
        raise UserError("--token-file is for --lan; on this machine the printed address holds a secret of its own")
    if token is not None and not re.fullmatch(r"[\w-]+", token, re.ASCII):
        raise UserError(f"the token in {token_file} stands in an address: write it of letters, digits, - and _ alone")
    for path, _ in map(_run_and_step, runs):
        check_run(path)
    # from here on torch is needed
    from ..explore.server import bind, bind_usual, serve

    secret = token or _secret()
    listening = bind(port, lan) if port or lan else bind_usual(secret)  # before a model is opened, which takes longer
    page = user_folder().absolute() / f"explorer-{listening.getsockname()[1]}.html"
    try:
        sessions = _opened(runs)
        command = shlex.join(["pencil", "explore", *runs, *(["--port", str(port)] if port else [])])
        serve(
            sessions,
            listening,
            debug,
            command,
            secret,
            lambda address: _announce(address, page if browser and not lan else None, lan),
            lan=lan,
        )
    finally:
        listening.close()
        with suppress(OSError):
            page.unlink(missing_ok=True)
    end_at_once()
    return 0


def _opened(runs: tuple[str, ...]) -> "list[Session]":
    from ..explore.session import Session

    if not runs:
        return Session.of_examples()
    return [Session.open(path, id, step) for id, (path, step) in zip("ab", map(_run_and_step, runs), strict=False)]


def _run_and_step(word: str) -> tuple[str, int | None]:
    """runs/a@300 as its folder and its step; a folder of that whole name goes first."""
    path, at, step = word.rpartition("@")
    return (path, int(step)) if at and path and step.isdecimal() and not Path(word).exists() else (word, None)


def _secret() -> str:
    """The user's secret; where it cannot be kept, one for this server alone."""
    from ..explore.security import kept_secret, new_secret

    try:
        return kept_secret()
    except OSError as error:
        note(
            f"The secret of this address cannot be kept in {user_folder()} ({error.strerror}): set PENCIL_DATA to "
            "another folder, or open pages will not find the server when it is started again."
        )
        return new_secret()


def _announce(address: str, page: Path | None, lan: bool = False) -> None:
    """Print the address, and open it by a page that leads there: any user can read what a browser was started with."""
    print(address, flush=True)
    if lan:
        note("Whoever has this address and is on your network can look; it is read-only. Ctrl-C ends the server.")
    else:
        note("Open this address in a browser on this machine; Ctrl-C ends the server.")
    if page and _has_screen():
        with suppress(OSError):  # then the printed address is opened by hand
            write_private(page, f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
            webbrowser.open(page.as_uri())


def _has_screen() -> bool:
    """Whether a browser has a window to open: without a display Python would start one that fills the terminal."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
