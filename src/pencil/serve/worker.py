"""The thread in which one model computes: requests go in from the event loop, pieces of answers come back to it.

Pieces that are ready together are sent together: one call into the event loop for all requests, at most
`EVENT_SECONDS` after the oldest of them; the first and the last piece of a request go at once.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from .engine import Continuation, Engine, Piece
from .errors import RequestError

EVENT_SECONDS = 0.03  # that a piece waits for others
JOBS = 512  # inputs that may wait, beside the sequences of an engine

Mailbox = asyncio.Queue[tuple[int, Piece]]  # which continuation of a request, and what is new of it


class Together(NamedTuple):
    """What is computed of several inputs at once, of how many at most; those with the same key can be together."""

    compute: Callable[[Sequence[Any]], Sequence[Any]]
    most: int
    key: Hashable = None


Job = tuple[Together, Any, Future]  # an input, and who waits for what the model says of it


class Worker:
    """Runs the rounds of an engine, and between them jobs: inputs of a model without one, some at a time."""

    def __init__(self, name: str, engine: Engine | None = None, on_failure: Callable[[Exception], None] = print):
        self.engine, self.on_failure = engine, on_failure
        self._turn = threading.Condition()
        self._inbox: list[Continuation] = []
        self._jobs: deque[Job] = deque()
        self._open = 0  # continuations that have not ended
        self._stopping = False
        self._outbox: list[tuple[Mailbox, int, Piece]] = []
        self._urgent, self._sent = False, 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        if engine is not None:
            engine.on_failure = lambda error: self.on_failure(error)
        self._thread = threading.Thread(target=self._serve, daemon=True, name=f"pencil-{name}")

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def load(self) -> dict[str, int]:
        running = self.engine.running if self.engine is not None else 0
        return {"running": running, "waiting": max(0, self._open - running) + len(self._jobs)}

    def check(self, count: int) -> None:
        """Refuse so many continuations of one request where they would not get into the queue."""
        assert self.engine is not None
        most = self.engine.waiting + sum(map(len, self.engine.rows))
        if self._stopping:
            raise RequestError("the server is stopping", 503)
        if count > most:
            raise RequestError(
                f"{count} texts were asked for, and the server has room for {most}; ask for fewer", 400, "n"
            )
        if self._open + count > most:
            raise RequestError(f"{self._open} texts are being written or wait; try again later", 429)

    def submit(self, continuations: Sequence[Continuation], mailbox: Mailbox) -> None:
        """Add the continuations of one request; all of them, or none where the queue is full."""
        for i, one in enumerate(continuations):
            one.listener = self._listener(mailbox, i)
        with self._turn:
            self.check(len(continuations))
            self._open += len(continuations)
            self._inbox += continuations
            self._turn.notify()

    def _listener(self, mailbox: Mailbox, i: int) -> Callable[[Piece], None]:
        first = True

        def listener(piece: Piece) -> None:
            nonlocal first
            last = piece.reason is not None or piece.error is not None
            self._outbox.append((mailbox, i, piece))
            self._urgent = self._urgent or first or last
            first = False
            if last:
                with self._turn:
                    self._open -= 1

        return listener

    async def call(self, how: Together, one: Any) -> Any:
        """What a model says of an input, computed together with others that wait."""
        future: Future = Future()
        with self._turn:
            if self._stopping:
                raise RequestError("the server is stopping", 503)
            if len(self._jobs) >= JOBS:
                raise RequestError(f"{JOBS} inputs wait; try again later", 429)
            self._jobs.append((how, one, future))
            self._turn.notify()
        return await asyncio.wrap_future(future)

    def stop(self, seconds: float = 5.0) -> None:
        """End everything, and wait a little for the thread."""
        with self._turn:
            self._stopping = True
            self._turn.notify()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    # ---- the thread

    def _serve(self) -> None:
        engine = self.engine
        while True:
            with self._turn:
                idle = engine is None or not engine.busy
                if idle:
                    self._turn.wait_for(lambda: self._inbox or self._jobs or self._stopping)
                arrived, self._inbox = self._inbox, []
                jobs = self._next()
                stopping = self._stopping
            if engine is not None:
                for one in arrived:
                    engine.add(one)
                if stopping:
                    engine.stop()
                if engine.busy:
                    engine.round()
            if jobs:
                self._run(jobs)
            self._send()
            if stopping:
                return

    def _next(self) -> list[Job]:
        """The input that has waited longest, and others with it; those that nobody waits for any more are left out."""
        found, others = [], []
        for job in self._jobs:
            how, _, future = job
            if found and (how != found[0][0] or len(found) == how.most):
                others.append(job)
            elif future.set_running_or_notify_cancel():
                found.append(job)
        self._jobs = deque(others)
        return found

    def _run(self, jobs: Sequence[Job]) -> None:
        try:
            results = jobs[0][0].compute([one for _, one, _ in jobs])
        except Exception as error:
            for *_, future in jobs:
                future.set_exception(error)
        else:
            for (*_, future), result in zip(jobs, results, strict=True):
                future.set_result(result)

    def _send(self) -> None:
        now = time.monotonic()
        idle = self.engine is None or not self.engine.busy
        if not self._outbox or not (self._urgent or idle or now - self._sent >= EVENT_SECONDS):
            return
        sent, self._outbox = self._outbox, []
        self._urgent, self._sent = False, now
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_deliver, sent)


def _deliver(sent: Sequence[tuple[Mailbox, int, Piece]]) -> None:
    for mailbox, i, piece in sent:
        mailbox.put_nowait((i, piece))
