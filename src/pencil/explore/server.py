"""The server of `pencil explore`: the page and its requests over HTTP, a thin shell around the sessions.

Bodies are read within limits, jobs are answered as JSON or as events, and failures as sentences. A connection that
closes cancels its job.

The page is built, and the build is committed. One application (Svelte and TypeScript, in `web/`) has two sources of
data behind one interface: the server of `pencil explore`, and a file that holds the graph, the arrays and prepared
views. Ten views over one state would otherwise update each other by hand; the compiler does it, and the types are those
of the JSON that Python sends, so a renamed field fails to build. `make page` writes `src/pencil/page/app.js` and
`app.css`, which are in the wheel: a user needs no Node. Versions are pinned and class names follow from the styles, so
every machine builds the same bytes, and continuous integration builds them again and requires no difference. The
evaluator of plans stays free of the page (`web/src/lib/evaluate`); the tests compare it with Python's on the built
file. All state is in the address, so that a link reproduces what is on screen.
"""

import asyncio
import json
import socket
import sys
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive

from .. import __version__
from ..config import UserError
from ..console import visible
from ..learn.katas.document_words import CHOICES
from ..tracing.trace_base import LISTED
from ..web_server import DeadlineProtocol, listen, quiet
from .ablations import ablations
from .answers import Listener
from .attention_views import attention
from .cells import compare, compare_edit, contributions, receipt, tensor_slice
from .export import export_page
from .json_values import to_json
from .katas_and_walks import Documents, Exercises, list_documents
from .learning import learning
from .lru_cache import Cache
from .outline import outline
from .picture import picture, picture_of
from .request_queue import BACKGROUND, ENDS, LONG, QUICK, Cancelled, Job, Jobs, Work
from .requests import (
    GONE,
    UNKNOWN,
    Refused,
    State,
    entries,
    index,
    needed,
    read_shown,
    seed_of,
    table,
    text,
    whole,
    word,
)
from .security import CLIENT, HEADERS, Guard, Tokens, new_secret, usual_port
from .session import Session
from .tour import tour
from .training import along, training
from .uploads import Pictures

ADDRESS = "127.0.0.1"  # other machines cannot reach it
EVERYWHERE = "0.0.0.0"  # with --lan
SHARED = "This page is shared with a class, and takes no training steps: run pencil explore on your own machine."
HEADER_SECONDS = 30.0  # for the headers of a request to arrive
BODY_SECONDS = 30.0  # for a body to arrive
HEARTBEAT_SECONDS = 10.0  # after which a waiting connection gets a comment, so that nothing between closes it
LAST_SECONDS = 1  # for replies that are under way when the server ends
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


Endpoint = Callable[[Request], Awaitable[Response]]


# ---- bodies


async def body_of(request: Request, most: int) -> dict[str, Any]:
    """The JSON object of a request; one that is too long is refused before it is read."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise _too_long(most)
    parts, length = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                length += len(part)
                if length > most:
                    raise _too_long(most)
                parts.append(part)
    except TimeoutError:
        raise Refused(f"the request did not arrive within {BODY_SECONDS:g} seconds", 408) from None
    except ClientDisconnect:
        raise Cancelled from None
    try:
        data = json.loads(b"".join(parts))
    except (ValueError, RecursionError):
        raise Refused("the request is not valid JSON") from None
    return table(data, "the request")


def _too_long(most: int) -> Refused:
    return Refused(f"the request is larger than {most / 1e6:g} MB; send a smaller picture or a shorter text", 413)


# ---- jobs over HTTP


def framed(event: str, data: object) -> bytes:
    """One server-sent event. JSON is written on one line, so no text within it can end the event."""
    return b"event: " + event.encode() + b"\ndata: " + to_json(data) + b"\n\n"


def job_with_queue(client: str, work: Work, lane: int = LONG, live: str = "") -> tuple[Job, asyncio.Queue]:
    """A job whose events arrive in a queue of the running loop."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()

    def listener(event: str, data: Any) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, (event, data))

    return Job(client, work, listener, lane, live), queue


async def follow(jobs: Jobs, job: Job, queue: asyncio.Queue, receive: Receive) -> AsyncGenerator[tuple[str, Any], None]:
    """The events of a job to its last; ("", None) where none came for a while.

    Left early, or with its connection closed, the job is cancelled.
    """

    async def fail_when_closed() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        queue.put_nowait(("failed", Cancelled()))

    jobs.add(job)
    connection = asyncio.ensure_future(fail_when_closed())
    try:
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):  # not wait_for, which may swallow being cancelled
                    event, data = await queue.get()
            except TimeoutError:
                yield "", None
                continue
            yield event, data
            if event in ENDS:
                return
    finally:
        connection.cancel()
        jobs.cancel(job)


def reply(data: object, status: int = 200) -> Response:
    return Response(to_json(data), status, media_type="application/json")


class Replies:
    """Replies from the queue of jobs."""

    def __init__(self, jobs: Jobs, debug: bool):
        self._jobs, self._debug = jobs, debug

    async def long(self, request: Request, last: str, work: Work, lane: int = LONG) -> Response:
        """The reply of work that may take long: events where the page wants them, of which the last is `last` or error.

        Else one JSON.
        """
        if not self.streamed(request):
            return reply(await self.result(request, work, lane))
        frames = self._frames(self._events(request, work, lane), last)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(frames, headers=headers, media_type="text/event-stream")

    def streamed(self, request: Request) -> bool:
        """Whether the page wants events."""
        return "text/event-stream" in request.headers.get("accept", "")

    async def quick(self, request: Request, work: Work) -> Response:
        return reply(await self.result(request, work, QUICK))

    async def result(self, request: Request, work: Work, lane: int) -> Any:
        """The result of a job; what it failed with is raised."""
        async with aclosing(self._events(request, work, lane)) as events:
            async for event, data in events:
                if event == "done":
                    return data
                if event == "failed":
                    raise data
        raise Cancelled

    def _events(self, request: Request, work: Work, lane: int) -> AsyncGenerator[tuple[str, Any], None]:
        live = text(request.headers.get("x-pencil-live", ""), "X-Pencil-Live", 100)
        return follow(self._jobs, *job_with_queue(request.scope[CLIENT], work, lane, live), receive=request.receive)

    async def _frames(self, events: AsyncGenerator[tuple[str, Any], None], last: str) -> AsyncGenerator[bytes, None]:
        """The events of a job as they come; a failure's status is in its event, since the stream began with 200."""
        try:
            async with aclosing(events):
                async for event, data in events:
                    if event == "failed":
                        raise data
                    yield framed(last if event == "done" else event, data) if event else b": waiting\n\n"
        except Exception as error:  # what the job failed with, a full queue, a result that is no JSON
            status, content = self._problem(error)
            yield framed("error", {**content, "status": status})

    def _problem(self, error: Exception) -> tuple[int, dict[str, Any]]:
        """The status and the sentence of a failure; one that is ours to mend is shown in the terminal, if asked for."""
        if isinstance(error, UserError):
            sentence = str(error).replace(LISTED, "press / to search the names")  # in a page, not in a terminal
            return getattr(error, "status", 400), {"error": sentence}
        if isinstance(error, Cancelled):
            return 499, {"error": "the request was cancelled"}
        if isinstance(error, MemoryError):
            return 500, {"error": "there is not enough memory for this; try a shorter input"}
        if self._debug:
            traceback.print_exception(error, file=sys.stderr)
            hint = "the terminal shows where"
        else:
            hint = "pencil explore --debug shows where in the terminal"
        return 500, {"error": f"this failed inside Pencil ({type(error).__name__}); {hint}"}

    def answering(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint; what it raises becomes a sentence."""

        async def answer(request: Request) -> Response:
            try:
                return await endpoint(request)
            except Exception as error:
                return await self.failed(request, error)

        return answer

    async def failed(self, request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            sentence = {404: "there is nothing at this address", 405: "this address is asked in another way"}
            return reply({"error": sentence.get(error.status_code, error.detail)}, error.status_code)
        status, data = self._problem(error)
        return reply(data, status)


# ---- the page and its requests


class Explorer:
    """The opened models, and what the page asks of them.

    `shared` is for a class: what is asked for is computed and nothing is kept of it, no training steps and no progress,
    and neither folders nor the command are named.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        debug: bool = False,
        command: str = "pencil explore",
        secret: str = "",
        shared: bool = False,
    ):
        self.shared = shared
        self.sessions = {session.id: session for session in sessions}
        self.jobs = Jobs()
        self.replies = Replies(self.jobs, debug)
        self.pictures, self.secret = Pictures(), secret or new_secret()
        self._models = [self._about(session) for session in sessions]
        self._sessions_of_traces = Cache[str, Session](MOST_TRACES)
        self._command = "pencil explore" if shared else command
        self._exercises, self._documents = Exercises(guests=shared), Documents()

    def _about(self, session: Session) -> dict[str, Any]:
        hidden = {"path": session.path_elsewhere, "target": SHARED} if self.shared else {}
        return {**session.about(), **hidden}

    # ---- the page

    async def page(self, request: Request) -> Response:
        return Response(PAGE, media_type="text/html")

    async def models(self, request: Request) -> Response:
        return reply({"models": self._models, "version": __version__, "command": visible(self._command, one_line=True)})

    # ---- what computes

    async def answer(self, request: Request) -> Response:
        session, state = await self._state(await body_of(request, STATE_BYTES))
        return await self.replies.long(request, "answer", lambda job: session.answer(state, _listener(job)))

    async def record(self, request: Request) -> Response:
        session, state = await self._state(await body_of(request, STATE_BYTES))

        def work(job: Job) -> dict[str, Any]:
            (session.record if state.step is None else session.record_step)(state, _listener(job))
            shown = outline(session, state.key)
            self._sessions_of_traces.put(state.key, session)
            return shown

        return await self.replies.long(request, "outline", work)

    async def compare(self, request: Request) -> Response:
        body = await body_of(request, STATE_BYTES)
        (first, a), (other, b) = [await self._state(body.get(side), side) for side in ("a", "b")]
        return await self.replies.long(request, "difference", lambda job: compare(first.record(a), other.record(b)))

    async def edit(self, request: Request) -> Response:
        body = await body_of(request, STATE_BYTES)
        session, state = await self._state(body.get("state"), "state")
        edit = text(body.get("edit"), "an edit")
        return await self.replies.long(request, "changed", lambda job: compare_edit(session, state, edit))

    async def ablations(self, request: Request) -> Response:
        body = await body_of(request, STATE_BYTES)
        session, state = await self._state(body.get("state"), "state")
        cell, to = text(body.get("cell"), "a cell"), text(body.get("to", "0"), "to")
        return await self.replies.long(
            request, "ablations", lambda job: ablations(session, state, cell, to, _listener(job))
        )

    async def training(self, request: Request) -> Response:
        session = self._present(self._session(request.path_params["model"]))
        return await self.replies.quick(request, lambda job: training(session))

    async def along(self, request: Request) -> Response:
        body = await body_of(request, STATE_BYTES)
        session, state = await self._state(body.get("state"), "state")
        cell = text(body.get("cell"), "a cell")
        return await self.replies.long(request, "along", lambda job: along(session, state, cell, _listener(job)))

    async def export(self, request: Request) -> Response:
        body = await body_of(request, STATE_BYTES)
        session, state = await self._state(body.get("state"), "state")
        shown = read_shown(body)

        def work(job: Job) -> dict[str, str]:
            return {"html": export_page(session, state, shown, _listener(job))}

        if self.replies.streamed(request):
            return await self.replies.long(request, "file", work)
        headers = {"Content-Disposition": 'attachment; filename="pencil.html"'}
        html = (await self.replies.result(request, work, LONG))["html"]
        return Response(html, media_type="text/html", headers=headers)

    # ---- what is read of a trace

    def of_trace(self, view: Callable[[QueryParams], Callable[..., Any]]) -> Endpoint:
        """The endpoint of a view of a trace, with what the view is asked for by the query."""

        async def endpoint(request: Request) -> Response:
            session, key = self._traced(request.path_params["key"])
            shown = view(request.query_params)
            return await self.replies.quick(request, lambda job: shown(session, key))

        return endpoint

    def slice(self, query: QueryParams) -> Callable[[Session, str], dict[str, Any]]:
        name, at = needed(query, "name"), index(query)
        other, minus = self._traced(query["minus"]) if query.get("minus") else (None, "")
        return lambda session, key: tensor_slice(session, key, name, at, other and other.any_trace(minus))

    async def attention(self, request: Request) -> Response:
        session, key = self._traced(request.path_params["key"])
        if request.query_params.get("scores") in ("1", "true"):  # measuring what heads do takes many passes
            return await self.replies.long(
                request, "attention", lambda job: attention(session, key, True, _listener(job)), BACKGROUND
            )
        return await self.replies.quick(request, lambda job: attention(session, key))

    # ---- documents and katas

    async def document_list(self, request: Request) -> Response:
        return await self.replies.quick(request, lambda job: list_documents())

    async def document(self, request: Request) -> Response:
        number = request.path_params["number"]
        return await self.replies.long(request, "document", lambda job: self._documents.document(number))

    async def document_figure(self, request: Request) -> Response:
        number = request.path_params["number"]
        section = whole(request.query_params, "section") or 0
        figure = whole(request.query_params, "figure") or 0
        return await self.replies.long(request, "figure", lambda job: self._documents.figure(number, section, figure))

    async def katas(self, request: Request) -> Response:
        return await self.replies.quick(request, lambda job: self._exercises.listed(job.client))

    async def kata(self, request: Request) -> Response:
        name, query = request.path_params["name"], request.query_params
        seed = "new" if query.get("seed") == "new" else whole(query, "seed")
        words = word(query, "words") or "field"
        if words not in CHOICES:
            raise Refused(f"the words are {' or '.join(CHOICES)}")
        return await self.replies.quick(request, lambda job: self._exercises.question(job.client, name, seed, words))

    async def kata_answer(self, request: Request) -> Response:
        name, body = request.path_params["name"], await body_of(request, SMALL_BYTES)
        answers = [text(answer, "an answer") for answer in entries(body.get("answers"), "answers", 1000)]
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
        if self.shared and (state.lessons or state.step is not None):
            raise Refused(SHARED, 403)
        if session.transform is not None and (given := sorted(state.pictures)):
            read = [await self.pictures.read(picture, session.transform) for picture in given]
            state = state.with_pictures(dict(zip(given, read, strict=True)))
        return self._present(session), state

    def _session(self, model: str) -> Session:
        if model not in self.sessions:
            raise Refused(f"there is no model {model[:40]!r} here; open: {', '.join(self.sessions)}", UNKNOWN)
        return self.sessions[model]

    def _present(self, session: Session) -> Session:
        """The session of a model whose run is still there."""
        if not (session.folder / "config.toml").is_file():
            raise Refused(
                f"the run {session.folder} is no longer there: put it back, or start pencil explore with another one",
                GONE,
            )
        return session

    def _traced(self, key: str) -> tuple[Session, str]:
        if key not in self._sessions_of_traces:
            raise Refused("this trace is no longer kept; open it again", GONE)
        return self._sessions_of_traces[key], key


def _listener(job: Job) -> Listener:
    return Listener(job.tell, job.stopped)


def _receipt(query: QueryParams) -> Callable[..., dict[str, Any]]:
    digits = whole(query, "digits", 17)
    return partial(receipt, cell=needed(query, "cell"), digits=4 if digits is None else digits)


def _picture_of(query: QueryParams) -> Callable[..., dict[str, Any]]:
    return partial(picture_of, cell=needed(query, "cell"))


def _contributions(query: QueryParams) -> Callable[..., dict[str, Any]]:
    cell = needed(query, "cell")
    return partial(contributions, cell=cell, against=word(query, "against"), part=word(query, "part"))


async def _built(name: str, media_type: str, request: Request) -> Response:
    """A file of the built application."""
    try:
        return Response((FILES / name).read_bytes(), media_type=media_type)
    except OSError:
        raise Refused(
            f"the page was not built: {name} is missing; run make page in the checkout of Pencil", UNKNOWN
        ) from None


def application(explorer: Explorer, port: int) -> Guard:
    """The application for one port, with every check before it."""
    tokens = Tokens(explorer.secret, port, explorer.shared)

    async def server(request: Request) -> Response:
        """The name of this server, of which a page that knows the secret makes its token; a class sends the token."""
        return reply({"server": tokens.server, "shared": explorer.shared})

    trace = "/api/trace/{key}"
    addresses: dict[str, tuple[str, Endpoint]] = {
        "/": ("GET", explorer.page),
        "/server": ("GET", server),
        "/app.js": ("GET", partial(_built, "app.js", "text/javascript")),
        "/app.css": ("GET", partial(_built, "app.css", "text/css")),
        "/api/models": ("GET", explorer.models),
        "/api/answer": ("POST", explorer.answer),
        "/api/record": ("POST", explorer.record),
        "/api/compare": ("POST", explorer.compare),
        "/api/edit": ("POST", explorer.edit),
        "/api/ablations": ("POST", explorer.ablations),
        "/api/along": ("POST", explorer.along),
        "/api/models/{model}/training": ("GET", explorer.training),
        "/api/export": ("POST", explorer.export),
        f"{trace}/slice": ("GET", explorer.of_trace(explorer.slice)),
        f"{trace}/receipt": ("GET", explorer.of_trace(_receipt)),
        f"{trace}/attention": ("GET", explorer.attention),
        f"{trace}/picture": ("GET", explorer.of_trace(lambda query: picture)),
        f"{trace}/picture/of": ("GET", explorer.of_trace(_picture_of)),
        f"{trace}/contributions": ("GET", explorer.of_trace(_contributions)),
        f"{trace}/learning": ("GET", explorer.of_trace(lambda query: learning)),
        f"{trace}/tour": ("GET", explorer.of_trace(lambda query: tour)),
        "/api/documents": ("GET", explorer.document_list),
        "/api/documents/{number}": ("GET", explorer.document),
        "/api/documents/{number}/figure": ("GET", explorer.document_figure),
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
    return Guard(app, tokens, port, explorer.shared)


# ---- uvicorn


def bind_usual(secret: str) -> socket.socket:
    """A socket on the port that this user's explorer usually has; on any free one while that is taken."""
    try:
        return bind(usual_port(secret))
    except UserError:
        return bind(0)


def bind(port: int = 0, lan: bool = False) -> socket.socket:
    """A socket on a port of this machine; 0 is any free one."""
    return listen(EVERYWHERE if lan else ADDRESS, port)


def address_on_network() -> str:
    """The address by which other machines reach this one; its name where it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks which of our addresses would be used
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostname()


class Protocol(DeadlineProtocol):
    """A connection that does not wait for ever for the end of a request's headers."""

    def header_seconds(self) -> float:
        return HEADER_SECONDS

    def too_slow(self, sentence: str) -> tuple[list[tuple[str, str]], bytes]:
        return [("content-type", "application/json"), *HEADERS.items()], to_json({"error": sentence})


class Server(uvicorn.Server):
    """uvicorn that ends the jobs first: it waits for replies, and these wait for their jobs."""

    def __init__(self, config: uvicorn.Config, explorer: Explorer):
        super().__init__(config)
        self._explorer = explorer

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._explorer.jobs.stop()
        await super().shutdown(sockets)


def server_for(explorer: Explorer, port: int, debug: bool = False) -> uvicorn.Server:
    """The server of a page at this port."""
    app = application(explorer, port)
    return Server(quiet(app, Protocol, debug, timeout_graceful_shutdown=LAST_SECONDS), explorer)


def serve(
    sessions: Sequence[Session],
    listening: socket.socket,
    debug: bool,
    command: str,
    secret: str,
    ready: Callable[[str], None],
    lan: bool = False,
) -> None:
    """Serve until Ctrl-C; `ready` is called with the address, and the page shows the command that starts it again."""
    port = listening.getsockname()[1]
    explorer = Explorer(sessions, debug, command, secret, shared=lan)
    try:
        server = server_for(explorer, port, debug)
        ready(f"http://{address_on_network() if lan else ADDRESS}:{port}/#secret={secret}")
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    except SystemExit:  # so uvicorn ends where it cannot start
        raise UserError("the server could not start; pencil explore --debug shows why") from None
    finally:
        listening.close()
        explorer.jobs.close()
