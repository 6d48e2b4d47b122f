"""Serve the explorer on this machine until it is interrupted."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..config import UserError
from ..files import WINDOWS
from .json_values import to_json
from .security import HEADERS, usual_port
from .server import Explorer, application
from .session import Session

ADDRESS = "127.0.0.1"  # other machines cannot reach it
BACKLOG = 128
HEADER_SECONDS = 30.0  # for the headers of a request; its body has as many again
LAST_SECONDS = 1  # for replies that are under way when the server ends


def bind_usual(secret: str) -> socket.socket:
    """A socket on the port that this user's explorer usually has; on any free one while that is taken."""
    try:
        return bind(usual_port(secret))
    except UserError:
        return bind(0)


def bind(port: int = 0) -> socket.socket:
    """A socket on a port of this machine; 0 is any free one."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port is a number from 1 to 65535, not {port}")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if not WINDOWS:  # where it would let two servers share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((ADDRESS, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise UserError(f"port {port} cannot be used ({error.strerror}); choose another --port, or none") from None
    return listening


class Protocol(H11Protocol):
    """A connection that does not wait for ever for the end of a request's headers."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """The time runs from the first byte to the end of the headers, however the bytes between arrive."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._refuse)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self) -> None:
        sentence = f"the headers of this request did not end within {HEADER_SECONDS:g} seconds"
        headers = [("content-type", "application/json"), ("connection", "close")]
        events = (
            h11.Response(status_code=408, headers=[*headers, *HEADERS.items()], reason=b"Request Timeout"),
            h11.Data(data=to_json({"error": sentence})),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn that ends the jobs first: it waits for replies, and these wait for their jobs."""

    def __init__(self, config: uvicorn.Config, explorer: Explorer):
        super().__init__(config)
        self._explorer = explorer

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._explorer.jobs.stop()
        await super().shutdown(sockets)


def server_for(explorer: Explorer, port: int, debug: bool = False) -> uvicorn.Server:
    """uvicorn with nothing that is not needed: no logs of requests, no headers of proxies, no websockets."""
    # what fails is a sentence in the page; uvicorn's own lines would only be noise in the terminal
    logging.getLogger("uvicorn.error").setLevel(logging.INFO if debug else logging.CRITICAL)
    config = uvicorn.Config(
        application(explorer, port),
        http=Protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    return Server(config, explorer)


def serve(
    sessions: Sequence[Session],
    listening: socket.socket,
    debug: bool,
    command: str,
    secret: str,
    ready: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C; `ready` is called with the address, and the page shows the command that starts it again."""
    port = listening.getsockname()[1]
    explorer = Explorer(sessions, debug, command, secret)
    try:
        server = server_for(explorer, port, debug)
        ready(f"http://{ADDRESS}:{port}/#secret={secret}")
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    except SystemExit:  # so uvicorn ends where it cannot start
        raise UserError("the server could not start; pencil explore --debug shows why") from None
    finally:
        listening.close()
        explorer.jobs.close()
