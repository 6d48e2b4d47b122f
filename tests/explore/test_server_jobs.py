"""The queue of the server: turns, cancelling, quick requests between the steps of a long one, and the events."""

import asyncio
import threading

import pytest
from served import HANG_SECONDS, KEY, Pretended, serving, state

from pencil.explore import server as module
from pencil.explore.request_queue import BACKGROUND, LONG, MOST_WAITING, QUICK, Cancelled, Job, Jobs, Lane
from pencil.explore.requests import Refused


@pytest.fixture
def jobs():
    made = Jobs()
    yield made
    made.close()


class Told:
    """What a job tells, and when it ends."""

    def __init__(self):
        self.events, self.ended = [], threading.Event()

    def __call__(self, event, data):
        self.events.append((event, data))
        if event in ("done", "failed"):
            self.ended.set()

    @property
    def last(self):
        assert self.ended.wait(HANG_SECONDS)
        return self.events[-1]


def held(jobs, client="x"):
    """A job that runs until it is released."""
    begun, free, told = threading.Event(), threading.Event(), Told()

    def work(job):
        begun.set()
        assert free.wait(HANG_SECONDS)

    jobs.add(Job(client, work, told))
    assert begun.wait(HANG_SECONDS)
    return free, told


def test_clients_take_turns(jobs):
    free, _ = held(jobs)
    order, last = [], Told()
    for name in ("a1", "a2", "a3", "b1", "c1", "b2"):
        jobs.add(Job(name[0], lambda job, name=name: order.append(name), Told()))
    jobs.add(Job("z", lambda job: order.append("z1"), last))
    free.set()
    assert last.last == ("done", None)
    assert order[:4] == ["a1", "b1", "c1", "z1"]  # nobody waits behind the second request of another
    end = Told()
    jobs.add(Job("z", lambda job: None, end))
    assert end.last[0] == "done"
    assert order == ["a1", "b1", "c1", "z1", "a2", "b2", "a3"]


def test_the_place_in_the_queue_is_told_as_it_changes(jobs):
    free, _ = held(jobs)
    second, third = Told(), Told()
    jobs.add(Job("b", lambda job: None, second))
    jobs.add(Job("c", lambda job: None, third))
    assert [data["text"] for _, data in second.events][-1] == "waiting: 1 request is before this one"
    assert [data["text"] for _, data in third.events] == ["waiting: 2 requests are before this one"]
    free.set()
    assert third.last[0] == "done"


def test_a_job_that_is_cancelled_while_it_waits_never_runs(jobs):
    free, _ = held(jobs)
    ran, told = [], Told()
    job = Job("b", lambda job: ran.append(1), told)
    jobs.add(job)
    jobs.cancel(job)
    event, error = told.last
    assert event == "failed"
    assert isinstance(error, Cancelled)
    free.set()
    after = Told()
    jobs.add(Job("b", lambda job: None, after))
    assert after.last[0] == "done"
    assert ran == []


def test_a_running_job_stops_where_it_asks(jobs):
    begun, told, asked = threading.Event(), Told(), []

    def work(job):
        begun.set()
        while not job.stopped():
            asked.append(1)
        job.tell("token", {})  # nobody listens any more
        return "whole"

    job = Job("a", work, told)
    jobs.add(job)
    assert begun.wait(HANG_SECONDS)
    jobs.cancel(job)
    assert told.last[0] == "failed"
    assert [event for event, _ in told.events] == ["failed"]


def test_a_loop_of_the_library_stops_too(jobs):
    from pencil.progress import track

    begun, told, turns = threading.Event(), Told(), []

    def work(job):
        for i in track(range(10**9)):
            turns.append(i)
            begun.set()

    job = Job("a", work, told)
    jobs.add(job)
    assert begun.wait(HANG_SECONDS)
    jobs.cancel(job)
    assert isinstance(told.last[1], Cancelled)


def test_a_newer_live_request_drops_the_older_one_that_waits(jobs):
    free, _ = held(jobs)
    ran, told = [], {name: Told() for name in ("old", "new", "other name", "other page")}
    for name, client, live in (
        ("old", "b", "answer"), ("other name", "b", "attention"), ("other page", "c", "answer"), ("new", "b", "answer"),
    ):  # fmt: skip
        jobs.add(Job(client, lambda job, name=name: ran.append(name), told[name], live=live))
    event, error = told["old"].last
    assert event == "failed"
    assert error.status == 409
    free.set()
    for name in ("new", "other name", "other page"):
        assert told[name].last[0] == "done"
    assert sorted(ran) == ["new", "other name", "other page"]


def test_quick_jobs_run_between_the_steps_of_a_long_one_and_never_beside_it(jobs):
    begun, stepped, told, inside = threading.Event(), threading.Event(), Told(), []
    order = []

    def long(job):
        for step in range(3):
            inside.append("long")
            assert inside == ["long"]
            order.append(f"step {step}")
            begun.set()
            if step == 0:
                assert stepped.wait(HANG_SECONDS)
            inside.remove("long")
            job.stopped()

    def quick(job, name):
        inside.append(name)
        assert inside == [name]
        order.append(name)
        inside.remove(name)

    jobs.add(Job("a", long, told))
    assert begun.wait(HANG_SECONDS)
    ends = [Told(), Told()]
    for name, end in zip(("receipt", "slice"), ends, strict=True):
        jobs.add(Job("a", lambda job, name=name: quick(job, name), end, lane=QUICK))
    assert order == ["step 0"]
    stepped.set()
    assert told.last == ("done", None)
    assert [end.last[0] for end in ends] == ["done", "done"]
    assert order == ["step 0", "receipt", "slice", "step 1", "step 2"]


def test_an_answer_and_its_quick_requests_go_before_what_nobody_waits_for(jobs):
    """One computes at any time, and a job of a later lane never begins between the steps of an earlier one."""
    order, now, begun, go = [], [], threading.Event(), threading.Event()

    def work(name, steps, more=None):
        def run(job):
            for step in range(steps):
                now.append(name)
                assert now == [name]
                order.append(f"{name} {step}")
                begun.set()
                assert go.wait(HANG_SECONDS)
                if more is not None and step == 0:
                    more()
                now.remove(name)
                job.stopped()

        return run

    ends = {name: Told() for name in ("heads", "answer", "receipt")}

    def add(name, steps, lane, more=None):
        jobs.add(Job("a", work(name, steps, more), ends[name], lane))

    add("heads", 3, BACKGROUND)
    assert begun.wait(HANG_SECONDS)
    add("answer", 2, LONG, more=lambda: add("receipt", 1, QUICK))
    go.set()
    assert [end.last for end in ends.values()] == [("done", None)] * 3
    assert order == ["heads 0", "answer 0", "receipt 0", "answer 1", "heads 1", "heads 2"]


def test_a_job_that_fails_leaves_the_next_one_alone(jobs):
    told, after = Told(), Told()
    jobs.add(Job("a", lambda job: 1 / 0, told))
    jobs.add(Job("a", lambda job: 7, after))
    assert isinstance(told.last[1], ZeroDivisionError)
    assert after.last == ("done", 7)


def test_a_page_cannot_fill_the_queue():
    lane = Lane()
    for _ in range(MOST_WAITING):
        lane.add(Job("a", lambda job: None, Told()))
    with pytest.raises(Refused, match="already wait") as error:
        lane.add(Job("a", lambda job: None, Told()))
    assert error.value.status == 429
    lane.add(Job("b", lambda job: None, Told()))
    assert len(lane.jobs) == MOST_WAITING + 1


def test_closing_ends_everything():
    jobs = Jobs()
    begun, told, waiting = threading.Event(), Told(), Told()

    def work(job):
        begun.set()
        while not job.stopped():
            pass

    jobs.add(Job("a", work, told))
    assert begun.wait(HANG_SECONDS)
    jobs.add(Job("b", lambda job: None, waiting))
    jobs.close()
    for one in (told, waiting):
        assert "was stopped" in str(one.last[1])
    with pytest.raises(Refused, match="stopping"):
        jobs.add(Job("a", lambda job: None, Told()))


def test_ctrl_c_stops_a_generation_at_its_next_step(monkeypatch):
    monkeypatch.setattr(module, "LAST_SECONDS", 600)  # that replies end by themselves is not waited for
    session = Pretended()
    session.stepwise = 1000
    with serving(session) as served, served.stream("/api/answer", state()) as events:
        assert session.begun.wait(HANG_SECONDS)
        served.server.should_exit = True
        assert served.explorer.jobs.stopping.wait(HANG_SECONDS)
        session.steps.release(1000)
        *_, (name, data) = events
        assert (name, data["error"]) == ("error", "the server was stopped: start it again")
        assert session.was_stopped


# ---- over HTTP


def until_stopped(session):
    """Allow steps one by one: each asks whether to stop, until the closed connection was noticed."""
    for _ in range(2000):
        session.steps.release()
        if session.ended.wait(0.01):
            return


def test_events_arrive_one_by_one_and_text_cannot_break_them():
    session = Pretended()
    session.stepwise = 2
    hostile = "a\r\n\r\nevent: error\ndata: {}\u2028"
    with serving(session) as served, served.stream("/api/answer", state(hostile)) as found:
        assert next(found) == ("token", {"text": "word\n0"})  # before the answer is whole
        session.steps.release(2)
        assert next(found) == ("token", {"text": "word\n1"})
        name, answer = next(found)
        assert (name, answer["words"]) == ("answer", [hostile])
        assert next(found, None) is None


def test_a_closed_connection_cancels_what_it_asked_for():
    session = Pretended()
    session.stepwise = 10**6
    with serving(session) as served:
        with served.stream("/api/answer", state()) as found:
            assert next(found)[0] == "token"
        until_stopped(session)
        assert session.was_stopped


def test_a_plain_request_is_cancelled_too():
    session = Pretended()
    session.stepwise = 10**6
    with serving(session) as served:
        connection = served.connection()
        served.send(connection, "POST", "/api/answer", state())
        assert session.begun.wait(HANG_SECONDS)
        connection.close()
        until_stopped(session)
        assert session.was_stopped


def test_a_receipt_does_not_wait_for_a_generation():
    session = Pretended()
    with serving(session) as served:
        served.post("/api/record", state())
        session.stepwise = 3
        with served.stream("/api/answer", state()) as found:
            assert next(found)[0] == "token"
            replies = []
            other = threading.Thread(
                target=lambda: replies.append(served.get(f"/api/trace/{KEY}/receipt?cell=x").data), daemon=True
            )
            other.start()
            lane = served.explorer.jobs._lanes[QUICK]
            assert any(lane.jobs or threading.Event().wait(0.01) for _ in range(2000))  # it waits for the next step
            session.steps.release()
            other.join(HANG_SECONDS)
            assert replies[0]["thread"] == "pencil-quick"
            assert not session.ended.is_set()
            session.steps.release(2)
            assert list(found)[-1][0] == "answer"


def test_two_pages_do_not_disturb_each_other():
    session = Pretended()
    session.stepwise = 1
    with serving(session) as served:
        tokens = [served.token, served.new_page()]
        with (
            served.stream("/api/answer", state("one"), token=tokens[0]) as first,
            served.stream("/api/answer", state("two"), token=tokens[1], X_Pencil_Live="answer") as second,
        ):
            assert next(first)[0] == "token"
            assert next(second) == (
                "progress",
                {"done": 0, "total": 0, "text": "waiting: 1 request is before this one"},
            )
            session.steps.release(2)
            assert list(first)[-1][1]["words"] == ["one"]
            assert list(second)[-1][1]["words"] == ["two"]


def test_a_superseded_request_is_told_so():
    session = Pretended()
    session.stepwise = 1
    with serving(session) as served, served.stream("/api/answer", state("first")) as first:
        assert next(first)[0] == "token"
        live = {"X_Pencil_Live": "answer"}
        with served.stream("/api/answer", state("old"), **live) as old:
            assert next(old)[0] == "progress"
            with served.stream("/api/answer", state("new"), **live) as new:
                assert next(new)[0] == "progress"
                assert list(old)[-1] == ("error", {"error": "a newer request replaces this one", "status": 409})
                session.steps.release(2)
                assert list(new)[-1][1]["words"] == ["new"]
    assert [one["input"]["text"] for one in session.asked] == ["first", "new"]


def test_a_waiting_connection_is_kept_alive(monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.01)
    session = Pretended()
    session.stepwise = 1
    with serving(session) as served, served.stream("/api/answer", state()) as found:
        names = [""]
        while names[-1] != "token":  # a slow machine waits before the first token too
            names.append(next(found)[0])
        assert set(names) == {"", "token"}
        assert next(found) == ("", "waiting")
        session.steps.release()
        assert list(found)[-1][0] == "answer"


def test_a_result_that_is_no_json_is_an_error_and_not_silence():
    session = Pretended()
    session.answer = lambda state, listener: {"value": object()}
    with serving(session) as served:
        with served.stream("/api/answer", state()) as found:
            assert [name for name, _ in found] == ["error"]
        assert served.post("/api/answer", state()).status == 500


def test_numbers_that_are_not_finite_are_words():
    inf = float("inf")
    assert module.to_json({"a": [inf, (-inf, 1.5)], "b": float("nan")}) == b'{"a":["inf",["-inf",1.5]],"b":"nan"}'


def test_leaving_the_events_early_cancels_the_job(jobs):
    async def leave():
        job, queue = module.job_with_queue("a", lambda job: [job.tell("token", 1), job.stopped()])
        events = module.follow(jobs, job, queue, asyncio.Event().wait)  # a connection that stays open
        assert (await anext(events))[0] in ("token", "progress")
        await events.aclose()
        return job

    assert asyncio.run(leave()).cancelled
