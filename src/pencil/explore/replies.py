"""How requests that compute are answered: through the queue, as JSON or as events, failures as sentences."""

import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..config import UserError
from ..tracing.trace_base import LISTED
from . import request_parsing as asked
from .events import EventStream, finished, job_with_queue, to_json, unless_closed
from .jobs import Cancelled, Job, Jobs
from .security import CLIENT

Endpoint = Callable[[Request], Awaitable[Response]]


def reply(data: Any, status: int = 200) -> Response:
    return Response(to_json(data), status, media_type="application/json")


class Replies:
    """The queue, and replies from it."""

    def __init__(self, debug: bool):
        self.jobs, self._debug = Jobs(), debug

    async def long(self, request: Request, last: str, work: Callable[[Job], Any]) -> Response:
        """The reply of work that may take long: events where the page wants them, else one JSON."""
        if not self.streamed(request):
            return reply(await self.result(request, work, quick=False))
        live = asked.text(request.headers.get("x-pencil-live", ""), "X-Pencil-Live", 100)
        job, queue = job_with_queue(request.scope[CLIENT], work, False, live)
        return EventStream(self.jobs, job, queue, last, self._problem)

    def streamed(self, request: Request) -> bool:
        """Whether the page wants events."""
        return "text/event-stream" in request.headers.get("accept", "")

    async def quick(self, request: Request, work: Callable[[Job], Any]) -> Response:
        return reply(await self.result(request, work, quick=True))

    async def result(self, request: Request, work: Callable[[Job], Any], quick: bool) -> Any:
        live = asked.text(request.headers.get("x-pencil-live", ""), "X-Pencil-Live", 100)
        job, queue = job_with_queue(request.scope[CLIENT], work, quick, live)
        return await unless_closed(request.receive, finished(self.jobs, job, queue))

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
