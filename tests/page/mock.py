"""The built page over replies made up by a test: the policy of the server, and no network at all."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from page.blank import blank_page

ORIGIN = "http://127.0.0.1:7"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Pencil</title><link rel="icon" href="data:,"><link rel="stylesheet" href="/app.css"></head>
<body><div id="app"></div><script type="module" src="/app.js"></script></body></html>"""
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"

GROUPS = {
    "Inside": ("Numbers", "Heads"),
    "Try": ("Change", "Compare", "Learn"),
    "Lessons": ("Tour", "Documents", "Katas"),
}

Reply = Any | Callable[[Any], Any]  # JSON, or a function of the request


class Status:
    """A reply that is not 200: its status, and its sentence."""

    def __init__(self, code: int, sentence: str):
        self.code, self.sentence = code, sentence


class Events:
    """A reply by server-sent events: pairs of a name and its data."""

    def __init__(self, *events: tuple[str, Any]):
        self.text = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)


def printed(origin: str, secret: str, where: str = "") -> str:
    """The address that `pencil explore` prints, at a place of the page such as #view=why."""
    return f"{origin}/#secret={secret}" + (where and f"&{where.removeprefix('#')}")


@contextmanager
def mocked(
    browser: Any, replies: Mapping[str, Reply], where: str = "", wrong: list[str] | None = None, **how: Any
) -> Iterator[Any]:
    """Open the page; `replies` has "GET models", "POST answer", "GET receipt" …, by the last word of the path.

    "GET katas" is the list and "GET katas/NAME" one of them, where that key is there. Afterwards the console must be
    empty, and nothing may have been requested from elsewhere; with `wrong` the messages are put there instead.
    """
    console = [] if wrong is None else wrong
    with blank_page(browser, console, **how) as (page, requested):
        page.route("**/*", lambda route: _fulfil(route, replies))
        page.goto(printed(ORIGIN, "known", where))
        yield page
    assert [url for url in requested if not url.startswith((ORIGIN, "data:", "blob:"))] == []
    assert wrong is not None or console == []


def _fulfil(route: Any, replies: Mapping[str, Reply]) -> None:
    request = route.request
    path = urlsplit(request.url).path
    headers = {"Content-Security-Policy": POLICY}
    if path == "/":
        return route.fulfill(body=PAGE, content_type="text/html", headers=headers)
    if path == "/server":
        return route.fulfill(json={"server": "mocked"})
    if path in ("/app.js", "/app.css"):
        kind = "text/javascript" if path.endswith("js") else "text/css"
        body = files("pencil").joinpath("page", path[1:]).read_text(encoding="utf-8")
        return route.fulfill(body=body, content_type=kind, headers=headers)
    words = path.removeprefix("/api/").split("/")
    keys = [f"{request.method} {'/'.join(words)}", f"{request.method} {words[-1]}", f"{request.method} {words[0]}"]
    found = next((key for key in keys if key in replies), None)
    if found is None:
        return route.fulfill(status=404, json={"error": f"nothing is prepared for {keys[0]}"})
    reply = replies[found]
    reply = reply(request) if callable(reply) else reply
    if isinstance(reply, Status):
        return route.fulfill(status=reply.code, json={"error": reply.sentence})
    if isinstance(reply, Events):
        return route.fulfill(body=reply.text, content_type="text/event-stream")
    if reply is None:
        return route.abort()
    return route.fulfill(json=reply)


def turn_to(page: Any, view: str) -> None:
    """Open a view by its name on the page: its group first, where that is not open."""
    if view not in page.locator(".tabs a").all_inner_texts():
        group = next((group for group, views in GROUPS.items() if view in views), view)
        page.click(f":is(.groups, .tools) a:text-is('{group}')")
    if page.locator(f".tabs a:text-is('{view}')").count():
        page.click(f".tabs a:text-is('{view}')")


def axe(page: Any) -> list[str]:
    """What axe-core finds wrong with a page: one line a violation."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci in web/")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:200]}" for one in found for node in one["nodes"]
    ]
