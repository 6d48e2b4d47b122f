"""Jobs over HTTP: as one JSON answer, or as server-sent events; a connection that closes cancels its job."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .jobs import ENDS, Cancelled, Job, Jobs

T = TypeVar("T")
BEAT = 10.0  # seconds after which a waiting connection gets a comment, so that nothing between closes it
Problem = Callable[[Exception], tuple[int, dict[str, Any]]]


def to_json(data: Any) -> bytes:
    """Data as JSON; a number that is not finite is the word inf, -inf or nan, since JSON has none."""
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else "nan" if math.isnan(data) else "inf" if data > 0 else "-inf"
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, (list, tuple)) else data


def framed(event: str, data: Any) -> bytes:
    """One server-sent event. JSON is written on one line, so no text within it can end the event."""
    return b"event: " + event.encode() + b"\ndata: " + to_json(data) + b"\n\n"


async def follow(
    jobs: Jobs, job: Job, queue: "asyncio.Queue[tuple[str, Any]]"
) -> AsyncGenerator[tuple[str, Any], None]:
    """The events of a job to its last; ("", None) where none came for a while. Left early, the job is cancelled."""
    jobs.add(job)
    try:
        while True:
            try:
                async with asyncio.timeout(BEAT):  # not wait_for, which may swallow being cancelled
                    event, data = await queue.get()
            except TimeoutError:
                yield "", None
                continue
            yield event, data
            if event in ENDS:
                return
    finally:
        jobs.cancel(job)


def job_with_queue(client: str, work: Callable[[Job], Any], quick: bool = False, live: str = "") -> tuple[Job, Any]:
    """A job whose events arrive in a queue of the running loop."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()

    def listener(event: str, data: Any) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, (event, data))

    return Job(client, work, listener, quick, live), queue


async def finished(jobs: Jobs, job: Job, queue: Any) -> Any:
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

    def __init__(self, jobs: Jobs, job: Job, queue: Any, last: str, problem: Problem):
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
                        yield framed("error", self._problem(data)[1])
                    else:
                        yield framed(event, data) if event else b": waiting\n\n"
        except Exception as error:  # a full queue, a result that is no JSON
            yield framed("error", self._problem(error)[1])
