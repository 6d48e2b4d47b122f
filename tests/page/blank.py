"""Empty pages of the browser, used again: a new page starts a process, which costs more than most tests."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

VIEWPORT = {"width": 1280, "height": 900}
BLANK = "about:blank"
FORGET = (
    "() => { try { localStorage.clear(); sessionStorage.clear() } catch { /* a page without an origin has none */ } }"
)


@contextmanager
def blank_page(
    browser: Any,
    console: list[str],
    viewport: dict[str, int] = VIEWPORT,
    color_scheme: str = "light",
    reduced_motion: str = "no-preference",
    permissions: Sequence[str] = (),
    seconds: float = 60,
) -> Iterator[tuple[Any, list[str]]]:
    """An empty page, and the addresses it asks for; `console` gets its messages and errors.

    A page that a test leaves in order is emptied and serves the next one: it forgets what it stored. One that is left
    by an error is closed.
    """
    idle = (page for context in browser.contexts for page in context.pages if page.url == BLANK)
    page = next(idle, None) or browser.new_context(viewport=VIEWPORT).new_page()
    requested: list[str] = []
    listeners = {
        "console": lambda message: console.append(message.text),
        "pageerror": lambda error: console.append(str(error)),
        "dialog": lambda dialog: (console.append(dialog.message), dialog.dismiss()),
        "request": lambda request: requested.append(request.url),
    }
    page.set_default_timeout(1000 * seconds)
    page.set_viewport_size(viewport)
    page.emulate_media(color_scheme=color_scheme, reduced_motion=reduced_motion)
    page.context.grant_permissions(list(permissions))
    for event, listener in listeners.items():
        page.on(event, listener)
    try:
        yield page, requested
        page.evaluate(FORGET)
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
        page.unroute_all(behavior="ignoreErrors")
        page.context.clear_permissions()
        page.goto(BLANK)
    except BaseException:
        page.context.close()
        raise
