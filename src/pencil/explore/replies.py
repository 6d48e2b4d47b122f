"""Requests over HTTP: bodies read within limits, jobs answered as JSON or as events, failures as sentences.

A connection that closes cancels its job.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..config import UserError
from ..tracing.trace_base import LISTED
from .jobs import ENDS, Cancelled, Job, Jobs, Work
from .json_values import to_json
from .requests import Refused, table, text
from .security import CLIENT

T = TypeVar("T")
BODY_SECONDS = 30.0  # for a body to arrive
HEARTBEAT_SECONDS = 10.0  # after which a waiting connection gets a comment, so that nothing between closes it
Queue = asyncio.Queue[tuple[str, Any]]
Problem = Callable[[Exception], tuple[int, dict[str, Any]]]
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


def framed(event: str, data: Any) -> bytes:
    """One server-sent event. JSON is written on one line, so no text within it can end the event."""
    return b"event: " + event.encode() + b"\ndata: " + to_json(data) + b"\n\n"


async def follow(jobs: Jobs, job: Job, queue: Queue) -> AsyncGenerator[tuple[str, Any], None]:
    """The events of a job to its last; ("", None) where none came for a while. Left early, the job is cancelled."""
    jobs.add(job)
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
        jobs.cancel(job)


def job_with_queue(client: str, work: Work, quick: bool = False, live: str = "") -> tuple[Job, Queue]:
    """A job whose events arrive in a queue of the running loop."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()

    def listener(event: str, data: Any) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, (event, data))

    return Job(client, work, listener, quick, live), queue


async def finished(jobs: Jobs, job: Job, queue: Queue) -> Any:
    """The result of a job; what it failed with is raised."""
    async with aclosing(follow(jobs, job, queue)) as events:
        async for event, data in events:
            if event == "done":
                return data
            if event == "failed":
                raise data
    raise Cancelled


async def unless_closed(receive: Receive, work: Awaitable[T]) -> T:
    """The result of the work; where the connection closes first, the work is cancelled."""
    task, closed = asyncio.ensure_future(work), asyncio.ensure_future(_closed(receive))
    try:
        await asyncio.wait({task, closed}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Cancelled
        return task.result()
    finally:
        for one in (task, closed):
            one.cancel()
        await asyncio.gather(task, closed, return_exceptions=True)


async def _closed(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """The events of a job as they come; the last is `last` with the result, or error with a sentence."""

    media_type = "text/event-stream"

    def __init__(self, jobs: Jobs, job: Job, queue: Queue, last: str, problem: Problem):
        self.status_code, self.background = 200, None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._parts, self._last, self._problem = (jobs, job, queue), last, problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_closed(receive, self._send(send))
        except (Cancelled, OSError):
            return  # nobody listens any more

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._frames()) as frames:
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(follow(*self._parts)) as events:
                async for event, data in events:
                    if event == "done":
                        yield framed(self._last, data)
                    elif event == "failed":
                        yield self._error(data)
                    else:
                        yield framed(event, data) if event else b": waiting\n\n"
        except Exception as error:  # a full queue, a result that is no JSON
            yield self._error(error)

    def _error(self, error: Exception) -> bytes:
        """A failure as an event; the stream began with status 200, so the failure's own is beside the sentence."""
        status, content = self._problem(error)
        return framed("error", {**content, "status": status})


# ---- replies


def reply(data: Any, status: int = 200) -> Response:
    return Response(to_json(data), status, media_type="application/json")


def _job_of(request: Request, work: Work, quick: bool) -> tuple[Job, Queue]:
    live = text(request.headers.get("x-pencil-live", ""), "X-Pencil-Live", 100)
    return job_with_queue(request.scope[CLIENT], work, quick, live)


class Replies:
    """Replies from the queue of jobs."""

    def __init__(self, jobs: Jobs, debug: bool):
        self._jobs, self._debug = jobs, debug

    async def long(self, request: Request, last: str, work: Work) -> Response:
        """The reply of work that may take long: events where the page wants them, else one JSON."""
        if not self.streamed(request):
            return reply(await self.result(request, work, quick=False))
        job, queue = _job_of(request, work, quick=False)
        return EventStream(self._jobs, job, queue, last, self._problem)

    def streamed(self, request: Request) -> bool:
        """Whether the page wants events."""
        return "text/event-stream" in request.headers.get("accept", "")

    async def quick(self, request: Request, work: Work) -> Response:
        return reply(await self.result(request, work, quick=True))

    async def result(self, request: Request, work: Work, quick: bool) -> Any:
        job, queue = _job_of(request, work, quick)
        return await unless_closed(request.receive, finished(self._jobs, job, queue))

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
