"""The server of `pencil explore`: the page and its requests, a thin shell around the sessions.

The page is built, and the build is committed. One application (Svelte and TypeScript, in `web/`) has two sources of
data behind one interface: the server of `pencil explore`, and a file that holds the graph, the arrays and prepared
views. Ten views over one state would otherwise update each other by hand; the compiler does it, and the types are those
of the JSON that Python sends, so a renamed field fails to build. `make page` writes `src/pencil/page/app.js` and
`app.css`, which are in the wheel: a user needs no Node. Versions are pinned and class names follow from the styles, so
every machine builds the same bytes, and continuous integration builds them again and requires no difference. The
evaluator of plans stays free of the page (`web/src/lib/evaluate`); the tests compare it with Python's on the built
file. All state is in the address, so that a link reproduces what is on screen.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .. import __version__
from ..console import visible
from ..learn.walks import Source
from . import tours
from .attention_views import attention, light
from .cache import Cache
from .cells import contributions, receipt, tensor_slice
from .compare import compare, compare_edit
from .export import export_page
from .jobs import Job, Jobs
from .katas import Exercises
from .outline import outline
from .replies import Endpoint, Replies, body_of, reply
from .requests import Gone, State, Unknown, entries, index, needed, read_shown, seed_of, table, text, whole, word
from .security import Guard, Tokens, new_secret
from .session import Session
from .tours import Tours
from .uploads import Pictures

STATE_BYTES = 32_000_000  # of a body with two pictures
SMALL_BYTES = 100_000  # of a body without
MOST_TRACES = 10_000  # whose model is remembered
FILES = Path(__file__).parents[1] / "page"
# an empty document, the same for everyone: the application fills it
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Pencil</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/app.css">
</head>
<body>
<div id="app"></div>
<noscript><p>This page computes and draws with JavaScript: allow it for this address.</p></noscript>
<script type="module" src="/app.js"></script>
</body>
</html>
"""


class Explorer:
    """The opened models, and what the page asks of them."""

    def __init__(
        self, sessions: Sequence[Session], debug: bool = False, command: str = "pencil explore", secret: str = ""
    ):
        self.sessions = {one.id: one for one in sessions}
        self.jobs = Jobs()
        self.replies = Replies(self.jobs, debug)
        self.pictures, self.secret = Pictures(), secret or new_secret()
        self._models = [one.about() for one in sessions]
        self._sessions_of_traces = Cache[str, Session](MOST_TRACES)
        self._command = command
        self._exercises, self._tours = Exercises(), Tours()

    # ---- the page

    async def page(self, request: Request) -> Response:
        return Response(PAGE, media_type="text/html")

    async def script(self, request: Request) -> Response:
        return Response(_built("app.js"), media_type="text/javascript")

    async def style(self, request: Request) -> Response:
        return Response(_built("app.css"), media_type="text/css")

    async def models(self, request: Request) -> Response:
        return reply({"models": self._models, "version": __version__, "command": visible(self._command, one_line=True)})

    # ---- what computes

    async def answer(self, request: Request) -> Response:
        session, state = await self._state(await body_of(request, STATE_BYTES))
        return await self.replies.long(request, "answer", lambda job: session.answer(state, job.tell, job.stopped))

    async def record(self, request: Request) -> Response:
        session, state = await self._state(await body_of(request, STATE_BYTES))

        def work(job: Job) -> dict[str, Any]:
            session.record(state, job.tell, job.stopped)
            shown = outline(session, state.key)
            self._sessions_of_traces.put(state.key, session)
            return shown

        return await self.replies.long(request, "outline", work)

    async def compare(self, request: Request) -> Response:
        body = await body_of(request, STATE_BYTES)
        (one, a), (other, b) = [await self._state(body.get(side), side) for side in ("a", "b")]
        return await self.replies.long(request, "difference", lambda job: compare(one.record(a), other.record(b)))

    async def edit(self, request: Request) -> Response:
        body = await body_of(request, STATE_BYTES)
        session, state = await self._state(body.get("state"), "state")
        edit = text(body.get("edit"), "an edit")
        return await self.replies.long(request, "changed", lambda job: compare_edit(session, state, edit))

    async def export(self, request: Request) -> Response:
        body = await body_of(request, STATE_BYTES)
        session, state = await self._state(body.get("state"), "state")
        shown = read_shown(body)

        def work(job: Job) -> dict[str, str]:
            return {"html": export_page(session, state, shown, job.tell, job.stopped)}

        if self.replies.streamed(request):
            return await self.replies.long(request, "file", work)
        headers = {"Content-Disposition": 'attachment; filename="pencil.html"'}
        html = (await self.replies.result(request, work, quick=False))["html"]
        return Response(html, media_type="text/html", headers=headers)

    # ---- what is read of a trace

    async def slice(self, request: Request) -> Response:
        query = request.query_params
        session, key = self._traced(request.path_params["key"])
        name, at = needed(query, "name"), index(query)
        other, minus = self._traced(query["minus"]) if query.get("minus") else (None, "")
        return await self.replies.quick(
            request, lambda job: tensor_slice(session, key, name, at, other and other.trace(minus))
        )

    async def receipt(self, request: Request) -> Response:
        query = request.query_params
        session, key = self._traced(request.path_params["key"])
        cell, digits = needed(query, "cell"), whole(query, "digits", 17)
        return await self.replies.quick(
            request, lambda job: receipt(session, key, cell, 4 if digits is None else digits)
        )

    async def attention(self, request: Request) -> Response:
        session, key = self._traced(request.path_params["key"])
        if request.query_params.get("scores") in ("1", "true"):  # measuring what heads do takes several passes
            return await self.replies.long(request, "attention", lambda job: attention(session, key, scores=True))
        return await self.replies.quick(request, lambda job: attention(session, key))

    async def light(self, request: Request) -> Response:
        query = request.query_params
        session, key = self._traced(request.path_params["key"])
        layer, head = whole(query, "layer", 9999), whole(query, "head", 9999)
        how = word(query, "how") or "mean"
        return await self.replies.quick(request, lambda job: light(session, key, layer, head, how))

    async def contributions(self, request: Request) -> Response:
        query = request.query_params
        session, key = self._traced(request.path_params["key"])
        cell = needed(query, "cell")
        against, part = word(query, "against"), word(query, "part")
        return await self.replies.quick(request, lambda job: contributions(session, key, cell, against, part))

    # ---- tours and katas

    async def tour_list(self, request: Request) -> Response:
        return await self.replies.quick(request, lambda job: tours.listed())

    async def tour(self, request: Request) -> Response:
        number, source = request.path_params["number"], self._source(request)
        return await self.replies.long(request, "tour", lambda job: self._tours.tour(number, source()))

    async def tour_figure(self, request: Request) -> Response:
        number, source = request.path_params["number"], self._source(request)
        section = whole(request.query_params, "section") or 0
        figure = whole(request.query_params, "figure") or 0
        return await self.replies.long(
            request, "figure", lambda job: self._tours.figure(number, source(), section, figure)
        )

    async def katas(self, request: Request) -> Response:
        return await self.replies.quick(request, lambda job: self._exercises.listed())

    async def kata(self, request: Request) -> Response:
        name, query = request.path_params["name"], request.query_params
        seed = "new" if query.get("seed") == "new" else whole(query, "seed")
        return await self.replies.quick(request, lambda job: self._exercises.question(job.client, name, seed))

    async def kata_answer(self, request: Request) -> Response:
        name, body = request.path_params["name"], await body_of(request, SMALL_BYTES)
        answers = [text(one, "an answer") for one in entries(body.get("answers"), "answers", 1000)]
        seed = seed_of(body)
        return await self.replies.quick(request, lambda job: self._exercises.answered(job.client, name, seed, answers))

    async def kata_working(self, request: Request) -> Response:
        name, body = request.path_params["name"], await body_of(request, SMALL_BYTES)
        seed = seed_of(body)
        return await self.replies.quick(request, lambda job: self._exercises.working(job.client, name, seed))

    # ---- what a request is about

    async def _state(self, raw: object, name: str = "the request") -> tuple[Session, State]:
        """A state that is safe to compute with, its picture decoded and written anew; and the session of its model."""
        session = self._session(text(table(raw, name).get("model"), "model"))
        assert isinstance(raw, Mapping)
        state = session.state(raw)
        if session.transform is not None and "picture" in state.input:
            state = state.with_picture(await self.pictures.read(state.input["picture"], session.transform))
        return self._present(session), state

    def _session(self, model: str) -> Session:
        if model not in self.sessions:
            raise Unknown(f"there is no model {model[:40]!r} here; open: {', '.join(self.sessions)}")
        return self.sessions[model]

    def _present(self, session: Session) -> Session:
        """The session of a model whose run is still there."""
        if not (session.folder / "config.toml").is_file():
            raise Gone(
                f"the run {session.folder} is no longer there: put it back, or start pencil explore with another one"
            )
        return session

    def _traced(self, key: str) -> tuple[Session, str]:
        if key not in self._sessions_of_traces:
            raise Gone("this trace is no longer kept; open it again")
        return self._sessions_of_traces[key], key

    def _source(self, request: Request) -> Callable[[], Source | None]:
        """The trace that a tour goes through: the one named, or that of a model's example; none of either."""
        query = request.query_params
        named = word(query, "trace") or word(query, "model")
        if named is None:
            return lambda: None
        if named not in self.sessions:
            session, key = self._traced(named)
            return lambda: Source(session.name, session.trace(key))
        session = self._present(self._session(named))
        example = session.about()["example"]
        return lambda: Source(session.name, session.record({"input": example}))


def _built(name: str) -> bytes:
    """A file of the built application."""
    try:
        return (FILES / name).read_bytes()
    except OSError:
        raise Unknown(f"the page was not built: {name} is missing; run make page in the checkout of Pencil") from None


def application(explorer: Explorer, port: int) -> Guard:
    """The application for one port, with every check before it."""
    tokens = Tokens(explorer.secret, port)

    async def server(request: Request) -> Response:
        """The name of this server, of which a page that knows the secret makes its token."""
        return reply({"server": tokens.server})

    trace = "/api/trace/{key}"
    addresses: dict[str, tuple[str, Endpoint]] = {
        "/": ("GET", explorer.page),
        "/server": ("GET", server),
        "/app.js": ("GET", explorer.script),
        "/app.css": ("GET", explorer.style),
        "/api/models": ("GET", explorer.models),
        "/api/answer": ("POST", explorer.answer),
        "/api/record": ("POST", explorer.record),
        "/api/compare": ("POST", explorer.compare),
        "/api/edit": ("POST", explorer.edit),
        "/api/export": ("POST", explorer.export),
        f"{trace}/slice": ("GET", explorer.slice),
        f"{trace}/receipt": ("GET", explorer.receipt),
        f"{trace}/attention": ("GET", explorer.attention),
        f"{trace}/light": ("GET", explorer.light),
        f"{trace}/contributions": ("GET", explorer.contributions),
        "/api/tours": ("GET", explorer.tour_list),
        "/api/tours/{number}": ("GET", explorer.tour),
        "/api/tours/{number}/figure": ("GET", explorer.tour_figure),
        "/api/katas": ("GET", explorer.katas),
        "/api/katas/{name}": ("GET", explorer.kata),
        "/api/katas/{name}/answer": ("POST", explorer.kata_answer),
        "/api/katas/{name}/working": ("POST", explorer.kata_working),
    }

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with suppress(OSError):  # else the first picture says so
            await explorer.pictures.start()
        try:
            yield
        finally:
            await explorer.pictures.close()

    app = Starlette(
        routes=[
            Route(path, explorer.replies.answering(end), methods=[method]) for path, (method, end) in addresses.items()
        ],
        exception_handlers={HTTPException: explorer.replies.failed},
        lifespan=lifespan,
    )
    return Guard(app, tokens, port)
