"""The server of `pencil explore`: the page and its requests, a thin shell around the subjects."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .. import __version__
from ..console import visible
from ..learn.walks import Source
from . import landing, tours
from . import request_parsing as asked
from .compare import compare
from .errors import Gone, Refused, Unknown
from .jobs import Job
from .katas import Exercises
from .replies import Endpoint, Replies, reply
from .security import Guard, Tokens, new_secret
from .tours import Tours
from .uploads import Pictures

MOST_KEYS = 10_000  # traces whose model is remembered


class Explorer(Replies):
    """The opened models, and what the page asks of them."""

    def __init__(self, subjects: Sequence[Any], debug: bool = False, command: str = "pencil explore", secret: str = ""):
        self.subjects = {one.id: one for one in subjects}
        super().__init__(debug)
        self.pictures, self.secret = Pictures(), secret or new_secret()
        self._models = [one.about() for one in subjects]
        self._transforms = {one.id: one.transform for one in subjects}
        self._traces: dict[str, str] = {}  # which model a trace is of
        self._command = command
        self._exercises, self._tours = Exercises(), Tours()

    # ---- the page

    async def page(self, request: Request) -> Response:
        return Response(landing.PAGE, media_type="text/html")

    async def script(self, request: Request) -> Response:
        return Response(landing.built("app.js"), media_type="text/javascript")

    async def style(self, request: Request) -> Response:
        return Response(landing.built("app.css"), media_type="text/css")

    async def models(self, request: Request) -> Response:
        return reply({"models": self._models, "version": __version__, "command": visible(self._command, one_line=True)})

    # ---- what computes

    async def answer(self, request: Request) -> Response:
        state = await self._state(await asked.body_of(request, asked.STATE_BYTES))
        subject = self._present(state["model"])
        return await self.long(request, "answer", lambda job: subject.answer(state, job.tell, job.stopped))

    async def record(self, request: Request) -> Response:
        state = await self._state(await asked.body_of(request, asked.STATE_BYTES))
        subject = self._present(state["model"])

        def work(job: Job) -> dict[str, Any]:
            subject.record(state, job.tell, job.stopped)
            return self._remember(subject, subject.outline(subject.key(state)))

        return await self.long(request, "outline", work)

    async def compare(self, request: Request) -> Response:
        body = await asked.body_of(request, asked.STATE_BYTES)
        a, b = [await self._state(body.get(side), side) for side in ("a", "b")]
        one, other = self._present(a["model"]), self._present(b["model"])

        def work(job: Job) -> dict[str, Any]:
            first = one.record(a)
            return compare(first, other.record(b))

        return await self.long(request, "difference", work)

    async def edit(self, request: Request) -> Response:
        body = await asked.body_of(request, asked.STATE_BYTES)
        state, edit = await self._state(body.get("state"), "state"), asked.edit(body.get("edit"))
        subject = self._present(state["model"])
        return await self.long(request, "changed", lambda job: subject.edit(state, edit))

    async def export(self, request: Request) -> Response:
        body = await asked.body_of(request, asked.STATE_BYTES)
        state = await self._state(body.get("state"), "state")
        shown = asked.shown(body)
        subject = self._present(state["model"])

        def work(job: Job) -> dict[str, str]:
            return {"html": subject.export(state, shown, job.tell, job.stopped)}

        if self.streamed(request):
            return await self.long(request, "file", work)
        headers = {"Content-Disposition": 'attachment; filename="pencil.html"'}
        html = (await self.result(request, work, quick=False))["html"]
        return Response(html, media_type="text/html", headers=headers)

    # ---- what is read of a trace

    async def slice(self, request: Request) -> Response:
        query = request.query_params
        subject, key = self._traced(request.path_params["key"])
        name, index = asked.needed(query, "name"), asked.index(query)
        other, minus = self._traced(query["minus"]) if query.get("minus") else (None, "")
        return await self.quick(request, lambda job: subject.slice(key, name, index, other and other.trace(minus)))

    async def receipt(self, request: Request) -> Response:
        query = request.query_params
        subject, key = self._traced(request.path_params["key"])
        cell, digits = asked.needed(query, "cell"), asked.whole(query, "digits", 17)
        return await self.quick(request, lambda job: subject.receipt(key, cell, 4 if digits is None else digits))

    async def attention(self, request: Request) -> Response:
        subject, key = self._traced(request.path_params["key"])
        if request.query_params.get("scores") in ("1", "true"):  # measuring what heads do takes several passes
            return await self.long(request, "attention", lambda job: subject.attention(key, scores=True))
        return await self.quick(request, lambda job: subject.attention(key))

    async def light(self, request: Request) -> Response:
        query = request.query_params
        subject, key = self._traced(request.path_params["key"])
        layer, head = asked.whole(query, "layer", 9999), asked.whole(query, "head", 9999)
        how = asked.word(query, "how", "mean")
        return await self.quick(request, lambda job: subject.light(key, layer, head, how))

    async def contributions(self, request: Request) -> Response:
        query = request.query_params
        subject, key = self._traced(request.path_params["key"])
        cell = asked.needed(query, "cell")
        against, part = asked.word(query, "against"), asked.word(query, "part")
        return await self.quick(request, lambda job: subject.contributions(key, cell, against, part))

    # ---- tours and katas

    async def tour_list(self, request: Request) -> Response:
        return await self.quick(request, lambda job: tours.listed())

    async def tour(self, request: Request) -> Response:
        number, source = request.path_params["number"], self._source(request)
        return await self.long(request, "tour", lambda job: self._tours.tour(number, source()))

    async def tour_figure(self, request: Request) -> Response:
        number, source = request.path_params["number"], self._source(request)
        section = asked.whole(request.query_params, "section") or 0
        figure = asked.whole(request.query_params, "figure") or 0
        return await self.long(request, "figure", lambda job: self._tours.figure(number, source(), section, figure))

    async def katas(self, request: Request) -> Response:
        return await self.quick(request, lambda job: self._exercises.listed())

    async def kata(self, request: Request) -> Response:
        name, query = request.path_params["name"], request.query_params
        seed = "new" if query.get("seed") == "new" else asked.whole(query, "seed")
        return await self.quick(request, lambda job: self._exercises.question(job.client, name, seed))

    async def kata_answer(self, request: Request) -> Response:
        name, body = request.path_params["name"], await asked.body_of(request, asked.SMALL_BYTES)
        answers = [asked.text(one, "an answer") for one in asked.entries(body.get("answers"), "answers", 1000)]
        seed = _seed(body)
        return await self.quick(request, lambda job: self._exercises.answered(job.client, name, seed, answers))

    async def kata_working(self, request: Request) -> Response:
        name, body = request.path_params["name"], await asked.body_of(request, asked.SMALL_BYTES)
        seed = _seed(body)
        return await self.quick(request, lambda job: self._exercises.working(job.client, name, seed))

    # ---- how it is asked

    async def _state(self, value: Any, name: str = "the request") -> dict[str, Any]:
        """A state that is safe to compute with: its picture was decoded and written anew."""
        state = asked.state(value, name)
        self._subject(state["model"])
        transform = self._transforms[state["model"]]
        if "picture" in state["input"]:
            if transform is None:
                raise Refused("this model reads no picture")
            state["input"]["picture"] = await self.pictures.read(state["input"]["picture"], transform)
        return state

    def _subject(self, model: str) -> Any:
        if model not in self.subjects:
            raise Unknown(f"there is no model {model[:40]!r} here; open: {', '.join(self.subjects)}")
        return self.subjects[model]

    def _present(self, model: str) -> Any:
        """The subject of a model whose run is still there."""
        subject = self._subject(model)
        run = getattr(getattr(subject, "loaded", None), "run", None)
        if run is not None and not (run.path / "config.toml").is_file():
            raise Gone(f"the run {run.path} is no longer there: put it back, or start pencil explore with another one")
        return subject

    def _remember(self, subject: Any, outline: dict[str, Any]) -> dict[str, Any]:
        self._traces.pop(outline["trace"], None)
        self._traces[outline["trace"]] = subject.id
        while len(self._traces) > MOST_KEYS:
            self._traces.pop(next(iter(self._traces)))
        return outline

    def _traced(self, key: str) -> tuple[Any, str]:
        if key not in self._traces:
            raise Gone("this trace is no longer kept; open it again")
        return self.subjects[self._traces[key]], key

    def _source(self, request: Request) -> Callable[[], Source | None]:
        """The trace that a tour goes through: the one named, or that of a model's example; none of either."""
        query = request.query_params
        named = asked.word(query, "trace") or asked.word(query, "model")
        if named is None:
            return lambda: None
        if named not in self.subjects:
            subject, key = self._traced(named)
            return lambda: Source(subject.about()["name"], subject.trace(key))
        subject = self._present(named)
        about = subject.about()
        state = {"model": named, "input": about["example"], "edits": []}
        return lambda: Source(about["name"], subject.record(state))


def _seed(body: dict[str, Any]) -> int | None:
    seed = body.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= 1_000_000_000):
        raise Refused("seed must be a whole number, or null")
    return seed


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
        routes=[Route(path, explorer.answering(end), methods=[method]) for path, (method, end) in addresses.items()],
        exception_handlers={HTTPException: explorer.failed},
        lifespan=lifespan,
    )
    return Guard(app, tokens, port)
