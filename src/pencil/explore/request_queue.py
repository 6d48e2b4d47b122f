"""The queue before the models: one job computes at a time, and clients take turns.

Jobs run in threads of the server's own process. Models and traces stay in memory, and a click reads them without being
sent anything; a process would have to be given every trace, and killing it would lose them all. What a thread cannot do
is to be stopped within one forward pass: a job is asked to stop between tokens, sampling steps and blocks.

There are three lanes: quick jobs (a receipt, a slice), long ones (answers, recordings), and those that nobody waits for
(what every head does). Each lane has a thread, so that what torch keeps for each thread (inference mode, dispatch
modes) is not mixed. Only one of them runs at any time: a job hands over to those that wait in the lanes before its own
whenever it asks whether it is to stop.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from ..progress import watched
from .requests import Refused

MOST_WAITING = 32  # jobs of one client
ENDS = ("done", "failed")  # the last event of every job is one of these
QUICK, LONG, BACKGROUND = range(3)  # the lanes; an earlier one goes first
Listener = Callable[[str, Any], None]
Work = Callable[["Job"], Any]


class Cancelled(Exception):
    """Nobody waits for the job any more."""


class Job:
    """Work for one client; `listener(event, data)` is called from the thread that does it."""

    def __init__(self, client: str, work: Work, listener: Listener, lane: int = LONG, live: str = ""):
        self.client, self.work, self.lane, self.live = client, work, lane, live
        self._listener = listener
        self._stop, self._ended = threading.Event(), threading.Event()
        self.hand_over: Callable[[], None] = lambda: None  # lets others run between two steps

    def tell(self, event: str, data: Any) -> None:
        """Send one event; none follows the last."""
        if self._ended.is_set() or (self._stop.is_set() and event not in ENDS):
            return
        if event in ENDS:
            self._ended.set()
        self._listener(event, data)

    def stopped(self) -> bool:
        """Whether to stop. A job calls this between steps: those that wait in earlier lanes run meanwhile."""
        if not self._stop.is_set():
            self.hand_over()
        return self._stop.is_set()

    def stop(self) -> None:
        """Ask the job to end at its next step."""
        self._stop.set()

    @property
    def cancelled(self) -> bool:
        return self._stop.is_set()

    def check(self, done: int, total: int) -> None:
        """Ends the loops of the library that can be stopped, where nothing else asks."""
        if self._stop.is_set():
            raise Cancelled


class Lane:
    """Waiting jobs in the order in which they run: the first of each client, then the second of each."""

    def __init__(self):
        self._turns: dict[Job, int] = {}
        self._turn = 0  # of the job that was taken last

    @property
    def jobs(self) -> list[Job]:
        return list(self._turns)

    def add(self, job: Job) -> None:
        turns = [turn for waiting, turn in self._turns.items() if waiting.client == job.client]
        if len(turns) >= MOST_WAITING:
            raise Refused(f"{MOST_WAITING} requests of this page already wait; try again when they are done", 429)
        self._turns[job] = 1 + max(turns, default=self._turn)
        self._turns = dict(sorted(self._turns.items(), key=lambda entry: entry[1]))

    def take(self) -> Job:
        job = next(iter(self._turns))
        self._turn = self._turns.pop(job)
        return job

    def remove(self, job: Job) -> bool:
        """Whether the job waited; it does no longer."""
        return self._turns.pop(job, None) is not None


class Jobs:
    """Runs jobs one at a time."""

    def __init__(self):
        self._turn = threading.Condition()
        self._lanes = [Lane() for _ in (QUICK, LONG, BACKGROUND)]
        self._now: Job | None = None  # the job that computes
        self._begun: list[Job | None] = [None for _ in self._lanes]  # each computes, or has handed over
        self._done = [0 for _ in self._lanes]
        self.stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._serve, args=(lane,), daemon=True, name=f"pencil-{name}")
            for lane, name in enumerate(("quick", "model", "background"))
        ]
        for thread in self._threads:
            thread.start()

    def add(self, job: Job) -> None:
        """Put a job in the queue; a live one replaces those of its name that wait."""
        lane = self._lanes[job.lane]
        with self._turn:
            if self.stopping.is_set():
                raise Refused("the server is stopping", 503)
            name = job.live and (job.client, job.live)
            superseded = [waiting for waiting in lane.jobs if name and (waiting.client, waiting.live) == name]
            for waiting in superseded:
                lane.remove(waiting)
            job.hand_over = lambda: self._hand_over(job)
            lane.add(job)
            self._turn.notify_all()
        for waiting in superseded:
            waiting.stop()
            waiting.tell("failed", Refused("a newer request replaces this one", 409))
        self._tell_places(job.lane)

    def cancel(self, job: Job) -> None:
        """Nobody waits for the job: it leaves the queue, or is asked to stop."""
        job.stop()
        with self._turn:
            waited = self._lanes[job.lane].remove(job)
        if waited:
            job.tell("failed", self._cancelled())
            self._tell_places(job.lane)

    def stop(self) -> None:
        """End everything: waiting jobs at once, the one that runs at its next step. No other is taken."""
        with self._turn:
            self.stopping.set()
            left = [job for lane in self._lanes for job in lane.jobs]
            running = [job for job in self._begun if job is not None]
            self._turn.notify_all()
        for job in running:
            job.stop()
        for job in left:
            self.cancel(job)

    def close(self, seconds: float = 1.0) -> None:
        """End everything, and wait a little for the job that runs."""
        self.stop()
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    # ---- the threads

    def _may_run(self, lane: int) -> bool:
        """Whether a lane takes its next job: nothing computes, and in earlier lanes none waits or was begun."""
        before = range(lane)
        first = not any(self._lanes[i].jobs or self._begun[i] for i in before)
        return self._now is None and first and bool(self._lanes[lane].jobs)

    def _serve(self, lane: int) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self.stopping.is_set() or self._may_run(lane))
                if self.stopping.is_set():
                    return
                job = self._now = self._begun[lane] = self._lanes[lane].take()
            self._tell_places(lane)
            self._run(job)
            with self._turn:
                self._now = self._begun[lane] = None
                self._done[lane] += 1
                self._turn.notify_all()

    def _run(self, job: Job) -> None:
        try:
            if job.cancelled:
                raise Cancelled
            with watched(job.check):
                result = job.work(job)
            if job.cancelled:
                raise Cancelled
        except Exception as error:
            job.tell("failed", self._cancelled() if job.cancelled else error)
        else:
            job.tell("done", result)

    def _cancelled(self) -> Exception:
        return Refused("the server was stopped: start it again", 503) if self.stopping.is_set() else Cancelled()

    def _hand_over(self, job: Job) -> None:
        """Let the jobs that wait now in the lanes before run, in their threads, and go on after them."""
        before = range(job.lane)
        with self._turn:
            waiting = sum(len(self._lanes[i].jobs) for i in before)
            if not waiting or self.stopping.is_set():
                return
            until = sum(self._done[i] for i in before) + waiting

            def they_are_done() -> bool:
                if self.stopping.is_set():
                    return True
                none = not any(self._lanes[i].jobs for i in before)
                ended = not any(self._begun[i] for i in before)
                return ended and (none or sum(self._done[i] for i in before) >= until)

            self._now = None
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._now is None and they_are_done())
            self._now = job

    def _tell_places(self, lane: int) -> None:
        with self._turn:
            busy = int((self._now if lane == QUICK else self._begun[lane]) is not None)
            waiting = self._lanes[lane].jobs
        for before, job in enumerate(waiting, busy):
            if before:
                what = "request is" if before == 1 else "requests are"
                job.tell("progress", {"done": 0, "total": 0, "text": f"waiting: {before} {what} before this one"})
