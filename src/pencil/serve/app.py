"""The routes of `pencil serve`, who may ask, and the server.

Bound to 127.0.0.1 unless `--lan` is given, and then only with a token. Any web page can make a browser send requests to
127.0.0.1, so on this machine the Host must be ours; a request from another site is refused, bodies are JSON by their
Content-Type, and no reply has CORS headers. Errors are one sentence in OpenAI's shape, without a path or a traceback;
prompts are written nowhere.
"""

import asyncio
import hmac
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..config import UserError
from ..explore.requests import Refused
from ..explore.uploads import Pictures
from ..families.explore_profile import Prompt
from ..families.family import family
from ..families.predictions import input_transform
from ..runs.run import Loaded
from ..web_server import DeadlineProtocol, quiet
from .chat import Templates
from .engine import Continuation, Piece
from .errors import TOO_LONG, RequestError
from .metrics import Metrics
from .openai_document import document
from .openai_format import (
    Answer,
    Asked,
    chat_request,
    completion_request,
    event,
    input_of,
    messages_of,
    parse,
    texts_of,
    to_json,
)
from .vectors_and_classes import Batches, classes, embeddings, format_of, picture
from .worker import Mailbox, Together, Worker

HEADER_SECONDS, BODY_SECONDS = 10.0, 30.0  # for the headers and the body of a request to arrive
BODY_BYTES, PICTURE_BYTES = 1 << 20, 16 << 20  # of a request, and of one with pictures
MOST_CONNECTIONS = 1000
MOST_RECEIPTS = 256  # of the latest answers
LONG_BODY = 10_000  # bytes from which a request is read in a thread, so that others are answered meanwhile
Read = TypeVar("Read")
HOSTS = ("127.0.0.1", "localhost")
OPEN = ("/healthz", "/readyz")  # what a load balancer asks, without a token
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'",
}


@dataclass
class Served:
    """One run behind the API."""

    name: str
    loaded: Loaded
    worker: Worker
    template: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def takes(self) -> frozenset[str]:
        """What the model reads: a text, and perhaps a picture or a source."""
        explore = family(self.loaded.run.family).explore
        return frozenset(explore.takes(self.loaded)) if explore is not None else frozenset()

    @cached_property
    def batches(self) -> Batches:
        """What computes vectors and classes; measured when it is first asked for."""
        return Batches(self.loaded)

    def read(self, given: Mapping[str, Any], name: str) -> Prompt:
        """A picture or a source, and how the answer begins, as the model reads them."""
        explore = family(self.loaded.run.family).explore
        assert explore is not None
        try:
            return explore.read(self.loaded, given)
        except UserError as error:
            raise RequestError(str(error), field=name) from None

    @property
    def card(self) -> dict[str, Any]:
        c = self.loaded.model.config
        parameters = sum(one.numel() for one in self.loaded.model.parameters())
        about = {"family": self.loaded.run.family, "context": getattr(c, "context", None), "parameters": parameters}
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "pencil", **about}


class Api:
    """What each route answers."""

    def __init__(self, served: Sequence[Served], seconds: float, debug: bool = False, log_prompts: bool = False):
        self.served = {one.name: one for one in served}
        self.metrics = Metrics({one.name: one.worker for one in served})
        self.templates, self.pictures = Templates(), Pictures()
        self.receipts: OrderedDict[str, Answer] = OrderedDict()
        self.stopping = False
        self._sees = any("picture" in one.takes for one in served)
        self._seconds, self._debug, self._log_prompts = seconds, debug, log_prompts

    # ---- generated text

    async def completions(self, request: Request) -> Response:
        data, served = await self._asked(request)
        tokenizer, context = self._text(served)
        if "picture" in served.takes:
            raise RequestError(f"{served.name} describes pictures; ask /v1/chat/completions", field="model")
        read = (lambda text: served.read({"source": text}, "prompt")) if "source" in served.takes else None
        asked = await _aside(request, lambda: completion_request(data, tokenizer, context, read))
        return await self._generate(request, served, asked, chat=False)

    async def chat(self, request: Request) -> Response:
        data, served = await self._asked(request, PICTURE_BYTES if self._sees else BODY_BYTES)
        tokenizer, context = self._text(served)
        messages = messages_of(data)
        if served.takes & {"picture", "source"}:
            given = input_of(messages, served.takes)
            if "picture" in given:
                given["picture"] = await self._decoded(served, given["picture"], "messages")
            before = int(getattr(served.loaded.model.config, "before", 0))
            asked = await _aside(
                request, lambda: chat_request(data, served.read(given, "messages"), tokenizer, context, before)
            )
            return await self._generate(request, served, asked, chat=True)
        if served.template is None:
            raise RequestError(
                f"{served.name} has no chat template, so it was not trained on messages; ask /v1/completions, or start "
                "the server with --chat-template FILE",
                field="messages",
            )
        prompt = await self.templates.render(served.template, messages, special_names(tokenizer))
        asked = await _aside(request, lambda: chat_request(data, prompt, tokenizer, context))
        return await self._generate(request, served, asked, chat=True)

    async def _generate(self, request: Request, served: Served, asked: Asked, chat: bool) -> Response:
        served.worker.check(len(asked.prompts) * asked.n)  # before they are made
        answer = Answer(asked, served.name, served.loaded.tokenizer, chat)
        continuations, mailbox = asked.continuations(self._seconds), Mailbox()
        if self._log_prompts:
            print(f"{answer.id} {asked.prompts}", file=sys.stderr)
        served.worker.submit(continuations, mailbox)
        pieces = self._pieces(request, served, continuations, mailbox)
        if not asked.stream:
            async with aclosing(pieces):
                async for i, new in pieces:
                    answer.add(i, new)
            self._done(served, answer, continuations)
            return reply(answer.whole())
        first = await anext(pieces)  # what fails before the first token is an error with its own status
        headers = {"X-Accel-Buffering": "no"}
        stream = self._stream(served, answer, continuations, first, pieces)
        return StreamingResponse(stream, headers=headers, media_type="text/event-stream")

    async def _pieces(
        self, request: Request, served: Served, continuations: Sequence[Continuation], mailbox: Mailbox
    ) -> AsyncGenerator[tuple[int, list[Piece]], None]:
        """What is new of each continuation, to the last; all are cancelled where nobody waits for them."""
        began, left = time.monotonic(), len(continuations)

        async def cancel_when_closed() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            for one in continuations:
                one.cancelled = True

        connection = asyncio.ensure_future(cancel_when_closed())
        try:
            while left:
                ready = [await mailbox.get()]
                while not mailbox.empty():
                    ready.append(mailbox.get_nowait())
                if began:
                    self.metrics.first.labels(served.name).observe(time.monotonic() - began)
                    began = 0.0
                together: dict[int, list[Piece]] = {}
                for i, piece in ready:
                    if piece.error is not None:
                        raise piece.error
                    left -= piece.reason is not None
                    together.setdefault(i, []).append(piece)
                for i, pieces in together.items():
                    yield i, pieces
        finally:
            connection.cancel()
            for one in continuations:
                one.cancelled = True

    async def _stream(
        self,
        served: Served,
        answer: Answer,
        continuations: Sequence[Continuation],
        first: tuple[int, list[Piece]],
        pieces: AsyncGenerator[tuple[int, list[Piece]], None],
    ) -> AsyncIterator[bytes]:
        try:
            async with aclosing(pieces):
                for chunk in answer.first_chunks():
                    yield event(chunk)
                yield event(answer.add(*first))
                async for i, new in pieces:
                    yield event(answer.add(i, new))
            self._done(served, answer, continuations)
            if answer.asked.include_usage:
                yield event(answer.usage_chunk())
            yield b"data: [DONE]\n\n"
        except Exception as error:  # the stream began with 200, so what failed is in an event
            yield event(self.problem(error).as_json())

    def _done(self, served: Served, answer: Answer, continuations: Sequence[Continuation]) -> None:
        answer.reused = sum(one.reused for one in continuations)
        for kind, count in (("prompt", answer.usage["prompt_tokens"]), ("generated", answer.usage["completion_tokens"]),
                            ("reused", answer.reused)):  # fmt: skip
            self.metrics.tokens.labels(served.name, kind).inc(count)
        self.metrics.whole.labels(served.name).observe(time.time() - answer.head["created"])
        self.receipts[answer.id] = answer  # its receipt is written when somebody asks for it
        while len(self.receipts) > MOST_RECEIPTS:
            self.receipts.popitem(last=False)

    def _text(self, served: Served) -> tuple[Any, int]:
        """The tokenizer and the context of a run that continues texts."""
        if served.worker.engine is None:
            raise RequestError(f"{served.name} is a {served.loaded.run.family}, which does not continue texts",
                               field="model")  # fmt: skip
        return served.loaded.tokenizer, served.worker.engine.context

    # ---- vectors and classes

    async def embeddings(self, request: Request) -> Response:
        data, served = await self._asked(request)
        texts, form = texts_of(data.get("input"), "input"), format_of(data)
        if family(served.loaded.run.family).embed is None:
            raise RequestError(f"{served.name} is a {served.loaded.run.family}, which gives no vector of a text",
                               field="model")  # fmt: skip
        counts = await self._tokens(request, served, texts, data, vector=True)
        batches = served.batches
        how = [Together(batches.vectors, batches.rows, batches.key(count)) for count in counts]
        found = await self._each(request, served, how, texts)
        return reply(embeddings(served.name, found, sum(counts), form))

    async def classify(self, request: Request) -> Response:
        data, served = await self._asked(request, PICTURE_BYTES)
        given = texts_of(data.get("input"), "input")
        explore = family(served.loaded.run.family).explore
        if explore is None or explore.output(served.loaded) != "classes":
            raise RequestError(f"{served.name} is a {served.loaded.run.family} without classes", field="model")
        batches, inputs = served.batches, list[Any](given)
        if "picture" in served.takes:
            keys = [None] * len(given)
            for i, one in enumerate(given):
                with numbered(i, len(given)):
                    inputs[i] = picture(await self._decoded(served, one, "input"))
        else:
            keys = [batches.key(count) for count in await self._tokens(request, served, given, data, vector=False)]
        how = [Together(batches.classes, batches.rows, key) for key in keys]
        return reply(classes(served.name, await self._each(request, served, how, inputs)))

    async def _tokens(
        self, request: Request, served: Served, texts: Sequence[str], data: Mapping[str, Any], vector: bool
    ) -> list[int]:
        """How many tokens the model reads of each text; what it would not read whole is refused, or cut if asked."""
        truncate = data.get("truncate")
        if not isinstance(truncate, bool | None):
            raise RequestError("truncate must be true or false", field="truncate")

        def counted(i: int, text: str) -> int:
            with numbered(i, len(texts)):
                return served.batches.tokens(text, bool(truncate), vector)

        return await _aside(request, lambda: [counted(i, text) for i, text in enumerate(texts)])

    async def _decoded(self, served: Served, url: str, name: str) -> str:
        """A picture as the data URL of a plain PNG at the model's size, decoded in a process of its own."""
        try:
            return await self.pictures.read(url, asdict(input_transform(served.loaded)))
        except Refused as error:
            raise RequestError(str(error), error.status, name) from None

    async def _each(
        self, request: Request, served: Served, how: Sequence[Together], inputs: Sequence[Any]
    ) -> list[Any]:
        """What a model says of each input: some at a time, so that requests take turns and a long one holds up none."""
        found = []
        try:
            async with asyncio.timeout(self._seconds):
                for first in range(0, len(inputs), how[0].most):
                    if await request.is_disconnected():
                        raise ClientDisconnect
                    few = slice(first, first + how[0].most)
                    found += await asyncio.gather(*map(served.worker.call, how[few], inputs[few]))
        except TimeoutError:
            raise RequestError(TOO_LONG, 504) from None
        return found

    # ---- the rest

    async def models(self, request: Request) -> Response:
        return reply({"object": "list", "data": [one.card for one in self.served.values()]})

    async def model(self, request: Request) -> Response:
        return reply(self._served(request.path_params["name"]).card)

    async def receipt(self, request: Request) -> Response:
        name = request.path_params["id"]
        if name not in self.receipts:
            raise RequestError(f"there is no receipt of this answer; those of the latest {MOST_RECEIPTS} are kept", 404)
        return reply(self.receipts[name].receipt())

    async def health(self, request: Request) -> Response:
        good = all(one.worker.alive for one in self.served.values())
        return reply({"status": "ok" if good else "a model's thread has ended"}, 200 if good else 503)

    async def ready(self, request: Request) -> Response:
        return reply({"status": "stopping" if self.stopping else "ok"}, 503 if self.stopping else 200)

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, request: Request) -> Response:
        return reply(document(list(self.served), __version__))

    # ---- requests

    async def _asked(self, request: Request, most: int = BODY_BYTES) -> tuple[dict[str, Any], Served]:
        data = parse(await read_body(request, most))
        name = data.get("model")
        if name is None and len(self.served) == 1:
            return data, next(iter(self.served.values()))
        if not isinstance(name, str):
            raise RequestError("model must be a string: the name of a run", field="model")
        return data, self._served(name)

    def _served(self, name: str) -> Served:
        if name not in self.served:
            raise RequestError(f"there is no model {name[:60]!r} here; these are served: {', '.join(self.served)}", 404,
                               "model", "model_not_found")  # fmt: skip
        return self.served[name]

    def problem(self, error: Exception) -> RequestError:
        """What failed, as a refusal; what is ours to mend is shown in the terminal, if asked for."""
        if isinstance(error, HTTPException):
            sentence = {404: "there is nothing at this address", 405: "this address is asked in another way"}
            return RequestError(sentence.get(error.status_code, error.detail), error.status_code)
        if isinstance(error, ClientDisconnect):
            return RequestError("the request was cancelled", 499)
        if not isinstance(error, RequestError):
            self.failed(error)
        return RequestError.inside(error)

    def failed(self, error: Exception) -> None:
        if self._debug:
            traceback.print_exception(error, file=sys.stderr)

    def answering(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
        """The endpoint, counted; what it raises becomes a sentence."""

        async def answer(request: Request) -> Response:
            try:
                response = await endpoint(request)
            except Exception as error:
                response = await self.refuse(request, error)
            route = request.scope.get("route")
            self.metrics.requests.labels(getattr(route, "path", "?"), str(response.status_code)).inc()
            return response

        return answer

    async def refuse(self, request: Request, error: Exception) -> Response:
        refusal = self.problem(error)
        status = 400 if refusal.status == 499 else refusal.status
        headers = {"Retry-After": "1"} if status in (429, 503) else {}
        if isinstance(error, HTTPException):  # of an address that is asked in another way, which ways there are
            headers |= error.headers or {}
        return Response(to_json(refusal.as_json()), status, headers, "application/json")


def reply(data: object, status: int = 200) -> Response:
    return Response(to_json(data), status, media_type="application/json")


@contextmanager
def numbered(i: int, count: int) -> Iterator[None]:
    """A refusal of one of several inputs says which one it is."""
    try:
        yield
    except RequestError as error:
        error.args = (f"input[{i}]: {error}",) if count > 1 else error.args
        raise


async def _aside(request: Request, work: Callable[[], Read]) -> Read:
    """Read a request; a long one in a thread."""
    length = request.headers.get("content-length", "")
    short = length.isdecimal() and int(length) < LONG_BODY
    return work() if short else await asyncio.to_thread(work)


async def read_body(request: Request, most: int) -> bytes:
    """The bytes of a request; more than `most` are refused before they are read."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise RequestError("the body must be JSON, with the header Content-Type: application/json", 415)
    too_long = RequestError(f"the request is larger than {most / 2**20:g} MiB", 413)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise too_long
    parts, length = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                length += len(part)
                if length > most:
                    raise too_long
                parts.append(part)
    except TimeoutError:
        raise RequestError(f"the request did not arrive within {BODY_SECONDS:g} seconds", 408) from None
    return b"".join(parts)


def special_names(tokenizer: Any) -> dict[str, str]:
    """The special tokens as templates name them."""
    ids = {"bos_token": tokenizer.begin, "eos_token": tokenizer.end, "pad_token": tokenizer.pad}
    return {name: tokenizer.token(id) for name, id in ids.items() if id is not None}


class Guard:
    """Refuses who may not ask, before anything of a request is read; sets the headers of every reply."""

    def __init__(self, app: ASGIApp, port: int, token: str | None, lan: bool):
        self.app, self._token, self._lan = app, token, lan
        self._hosts = {f"{host}:{port}" for host in HOSTS} | ({*HOSTS} if port == 80 else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            return await self.app(scope, receive, send_guarded)
        start = {"type": "http.response.start", "status": refusal.status,
                 "headers": [(b"content-type", b"application/json"), (b"connection", b"close")]}  # fmt: skip
        await send_guarded(start)
        await send_guarded({"type": "http.response.body", "body": to_json(refusal.as_json())})

    def _refusal(self, scope: Scope) -> RequestError | None:
        headers = Headers(scope=scope)
        host = [one.lower() for one in headers.getlist("host")]
        if not self._lan and (len(host) != 1 or host[0] not in self._hosts):
            return RequestError("this is not the server's own address; ask the one that pencil serve printed", 403)
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return RequestError("a request from another site is not answered", 403)
        if any(origin not in {f"http://{one}" for one in host} for origin in headers.getlist("origin")):
            return RequestError("a request from another site is not answered", 403)
        if self._token is not None and scope["path"] not in OPEN:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token.encode()):
                return RequestError("this server asks for its token: Authorization: Bearer TOKEN", 401,
                                    code="invalid_api_key")  # fmt: skip
        return None


ROUTES: dict[str, tuple[str, str]] = {
    "/v1/completions": ("POST", "completions"),
    "/v1/chat/completions": ("POST", "chat"),
    "/v1/embeddings": ("POST", "embeddings"),
    "/v1/classify": ("POST", "classify"),
    "/v1/models": ("GET", "models"),
    "/v1/models/{name:path}": ("GET", "model"),
    "/receipts/{id}": ("GET", "receipt"),
    "/healthz": ("GET", "health"),
    "/readyz": ("GET", "ready"),
    "/metrics": ("GET", "show_metrics"),
    "/openapi.json": ("GET", "openapi"),
}


def application(api: Api, port: int, token: str | None = None, lan: bool = False) -> Guard:
    """The application, with every check before it."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        for one in api.served.values():
            one.worker.start(asyncio.get_running_loop())
        try:
            yield
        finally:
            await api.templates.close()
            await api.pictures.close()
            for one in api.served.values():
                one.worker.stop()

    routes = [
        Route(path, api.answering(getattr(api, name)), methods=[method]) for path, (method, name) in ROUTES.items()
    ]
    return Guard(
        Starlette(routes=routes, exception_handlers={HTTPException: api.refuse}, lifespan=lifespan), port, token, lan
    )


class Protocol(DeadlineProtocol):
    """A connection that does not wait for ever for the end of a request's headers."""

    def header_seconds(self) -> float:
        return HEADER_SECONDS

    def too_slow(self, sentence: str) -> tuple[list[tuple[str, str]], bytes]:
        headers = [("content-type", "application/json"), *HEADERS.items()]
        return headers, to_json(RequestError(sentence, 408).as_json())


class Server(uvicorn.Server):
    """uvicorn that says to load balancers that it stops, and lets what is under way end."""

    def __init__(self, config: uvicorn.Config, api: Api):
        super().__init__(config)
        self._api = api

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._api.stopping = True
        super().handle_exit(sig, frame)


def server_for(api: Api, port: int, token: str | None = None, lan: bool = False, drain: float = 30.0,
               debug: bool = False) -> Server:  # fmt: skip
    """The server of an Api at this port; `drain` is the seconds that what is under way has when it ends."""
    app = application(api, port, token, lan)
    config = quiet(app, Protocol, debug, limit_concurrency=MOST_CONNECTIONS, timeout_graceful_shutdown=int(drain))
    return Server(config, api)
