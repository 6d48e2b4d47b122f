"""The explorer's server on a free port, asked by plain HTTP, with a model that only pretends."""

import hmac
import http.client
import itertools
import json
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pencil
from pencil.data.images.augment import ImageTransform
from pencil.explore import server
from pencil.explore.requests import GONE, Refused, State, read_state
from pencil.explore.server import Explorer, bind, server_for
from pencil.families.explore_profile import Control

KEY = "0123456789abcdef"
COMMAND = 'pencil explore "runs/a"'
PAGES = itertools.count()
HANG_SECONDS = 300  # until a test that hangs fails; a busy machine changes nothing
EXAMPLE = Path(pencil.__file__).parent / "examples" / "runs" / "scenes"
PICTURE = {"height": 7, "width": 5, "channels": 3}


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return self.data["error"]


class PretendedState(State):
    """A state whose key the tests know."""

    key = KEY


class Pretended:
    """A session without a model: it answers at once, or in steps that the test allows one by one."""

    def __init__(self, id="a", name="pretended"):
        self.id, self.name, self.folder = id, name, EXAMPLE
        self.takes = {"text": {}, "picture": PICTURE}
        self.controls = (Control("temperature", 1, 0, 2, False, "The logits are divided by it."),)
        self.asked = []
        self.begun, self.ended = threading.Event(), threading.Event()
        self.steps = threading.Semaphore(0)
        self.stepwise = 0
        self.fails = None
        self.was_stopped = None
        self.transform = asdict(ImageTransform((PICTURE["height"], PICTURE["width"]), PICTURE["channels"]))

    def about(self):
        return {"id": self.id, "name": self.name, "input": self.takes, "example": {"text": "x"}}

    path_elsewhere = "runs/scenes"

    def state(self, raw):
        return PretendedState(**vars(read_state(raw, self.id, "pretended", self.takes, self.controls)))

    def answer(self, state, listener):
        self.asked.append(state.as_json())
        if self.fails is not None:
            raise self.fails
        self.was_stopped = False
        for step in range(self.stepwise):
            self.begun.set()
            listener.tell("token", {"text": f"word\n{step}"})
            self.steps.acquire(timeout=HANG_SECONDS)
            if listener.stopped():
                self.was_stopped = True
                break
        self.ended.set()
        return {"state": state.as_json(), "words": [state.input.get("text", "")]}

    def record(self, state, listener=None):
        self.asked.append(state.as_json())
        return "a trace"

    def outline(self, key):
        return {"trace": key, "tensors": []}

    def trace(self, key):
        return f"trace of {self.id}"

    any_trace = trace

    def slice(self, key, name, index, minus=None):
        return {"name": name, "index": index, "minus": minus, "low": float("-inf"), "high": float("nan")}

    def receipt(self, key, cell, digits):
        if cell == "dropped":
            raise Refused("this trace is no longer kept; open it again", GONE)
        return {"cell": cell, "digits": digits, "thread": threading.current_thread().name}

    def attention(self, key, scores=False, listener=None):
        return {"groups": [], "scores": scores}

    def picture(self, key):
        return {"stacks": [], "columns": []}

    def picture_of(self, key, cell):
        return {"cell": cell}

    def contributions(self, key, cell, against=None, part=None):
        return {"cell": cell, "against": against, "part": part}

    def edit(self, state, edit):
        return {"edit": edit, "before": state.as_json()}

    def export(self, state, shown, listener):
        listener.tell("progress", {"done": 0, "total": 1, "text": "writing"})
        return f"<!doctype html><title>{shown.view}</title>"


# the views of the server, and the methods that a pretended session has in their place
VIEWS = {
    "outline": "outline",
    "tensor_slice": "slice",
    "receipt": "receipt",
    "attention": "attention",
    "picture": "picture",
    "picture_of": "picture_of",
    "contributions": "contributions",
    "compare_edit": "edit",
    "export_page": "export",
}


def view_of(real, method, session, *given, **named):
    return (
        getattr(session, method)(*given, **named) if isinstance(session, Pretended) else real(session, *given, **named)
    )


class Served:
    """A running server; `ask` sends one request, by default with everything that our own page sends."""

    def __init__(self, explorer, port):
        self.explorer, self.port = explorer, port
        self.token = self.new_page()

    def new_page(self):
        """The token of one more page: it follows from the secret, the port, and the name of this server."""
        named = self.ask("GET", "/server", token=None).data
        if named["shared"]:
            return f"{self.explorer.secret}.{next(PAGES)}"
        server = named["server"]
        message = f"{self.port} {server}".encode()
        proof = hmac.new(self.explorer.secret.encode(), message, "sha256").hexdigest()
        return f"{proof}.{next(PAGES)}"

    def address(self, where=""):
        """The address as it is printed, at a place of the page such as #view=why."""
        return f"http://127.0.0.1:{self.port}/#secret={self.explorer.secret}" + (
            where and f"&{where.removeprefix('#')}"
        )

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_SECONDS)

    def send(self, connection, method, path, body=None, token="own", host=None, **headers):
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", f"127.0.0.1:{self.port}" if host is None else host)
        if token is not None:
            connection.putheader("X-Pencil-Token", self.token if token == "own" else token)
        content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if content is not None and "Content-Length" not in headers and "Transfer-Encoding" not in headers:
            headers["Content-Length"] = str(len(content))
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(content)

    def ask(self, method, path, body=None, **how):
        connection = self.connection()
        try:
            self.send(connection, method, path, body, **how)
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            connection.close()

    def get(self, path, **how):
        return self.ask("GET", path, **how)

    def post(self, path, body, **how):
        return self.ask("POST", path, body, **how)

    @contextmanager
    def stream(self, path, body, **how):
        """The events of a request, one by one as (name, data); a comment is ("", text)."""
        connection = self.connection()
        try:
            self.send(connection, "POST", path, body, Accept="text/event-stream", **how)
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            assert reply.headers["Content-Type"].startswith("text/event-stream")
            yield events(reply)
        finally:
            connection.close()
            reply.close()


def events(reply):
    """Server-sent events as the standard reads them: lines until an empty one."""
    name, data = "message", []
    for line in reply:
        line = line.decode().rstrip("\n")
        if line.startswith(":"):
            yield "", line[1:].strip()
        elif line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data.append(line.removeprefix("data: "))
        elif not line and data:
            yield name, json.loads("\n".join(data))
            name, data = "message", []


@contextmanager
def serving(*sessions, debug=False, port=0, secret="", shared=False):
    with ExitStack() as stack:
        for name, method in VIEWS.items():
            stack.enter_context(mock.patch.object(server, name, partial(view_of, getattr(server, name), method)))
        yield stack.enter_context(running(*sessions, debug=debug, port=port, secret=secret, shared=shared))


@contextmanager
def running(*sessions, debug, port, secret, shared):
    found = bind(port, shared)
    port = found.getsockname()[1]
    explorer = Explorer(sessions or [Pretended()], debug, COMMAND, secret, shared)
    running = server_for(explorer, port, debug)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [found]})
    thread.start()
    try:
        client = Served(explorer, port)
        client.server = running
        yield client
    finally:
        running.should_exit = True
        for one in explorer.sessions.values():  # a job that still waits for the test
            if isinstance(one, Pretended):
                one.steps.release(100)
        thread.join(HANG_SECONDS)
        explorer.jobs.close()
        found.close()
        assert not thread.is_alive()


def state(text="abc", model="a", **more):
    return {"model": model, "input": {"text": text, **more}, "edits": []}
