"""What the servers share: a connection that does not wait for ever for headers, the socket, and the quiet uvicorn."""

import asyncio
import logging
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .config import UserError
from .files import WINDOWS

BACKLOG = 128


class DeadlineProtocol(H11Protocol):
    """A connection that ends where the headers of a request do not arrive in time."""

    _deadline: asyncio.TimerHandle | None = None

    def header_seconds(self) -> float:
        """For the headers of a request to arrive."""
        raise NotImplementedError

    def too_slow(self, sentence: str) -> tuple[list[tuple[str, str]], bytes]:
        """The headers and the body of the refusal."""
        raise NotImplementedError

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
            self._deadline = self.loop.call_later(self.header_seconds(), self._refuse)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self) -> None:
        sentence = f"the headers of this request did not end within {self.header_seconds():g} seconds"
        headers, body = self.too_slow(sentence)
        events = (
            h11.Response(status_code=408, headers=[*headers, ("connection", "close")], reason=b"Request Timeout"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def listen(address: str, port: int) -> socket.socket:
    """A socket on a port of this machine; 0 is any free one."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port is a number from 1 to 65535, not {port}")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if not WINDOWS:  # where it would let two servers share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise UserError(f"port {port} cannot be used ({error.strerror}); choose another --port, or none") from None
    return listening


def quiet(app: Any, protocol: type[DeadlineProtocol], debug: bool, **settings: Any) -> uvicorn.Config:
    """uvicorn with nothing that is not needed: no logs of requests, no headers of proxies, no websockets.

    What fails is a sentence in the answer; uvicorn's own lines would only be noise in the terminal.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.INFO if debug else logging.CRITICAL)
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        **settings,
    )
