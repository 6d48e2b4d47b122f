"""Serve the explorer on this machine until it is interrupted."""

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn

from ..config import UserError
from ..files import WINDOWS
from .server import Explorer, application

ADDRESS = "127.0.0.1"  # other machines cannot reach it
BACKLOG = 128
LAST_SECONDS = 1  # for replies that are under way when the server ends


def bind(port: int = 0) -> socket.socket:
    """A socket on a port of this machine; 0 is any free one."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port is a number from 1 to 65535, not {port}")
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if not WINDOWS:  # where it would let two servers share a port
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((ADDRESS, port))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        raise UserError(f"port {port} cannot be used ({error.strerror}); choose another --port, or none") from None
    return found


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
        application(explorer, port), http="h11", ws="none", loop="asyncio", lifespan="on", log_config=None,
        access_log=False, server_header=False, proxy_headers=False, timeout_graceful_shutdown=LAST_SECONDS,
    )  # fmt: skip
    return Server(config, explorer)


def serve(
    subjects: Sequence[Any], found: socket.socket, debug: bool, command: str, ready: Callable[[str], None]
) -> None:
    """Serve until Ctrl-C; `ready` is called with the address, and the page shows how to start it again."""
    port = found.getsockname()[1]
    explorer = Explorer(subjects, debug, command)
    try:
        server = server_for(explorer, port, debug)
        ready(f"http://{ADDRESS}:{port}/")
        server.run(sockets=[found])
    except KeyboardInterrupt:
        pass
    except SystemExit:  # so uvicorn ends where it cannot start
        raise UserError("the server could not start; pencil explore --debug shows why") from None
    finally:
        found.close()
        explorer.jobs.close()
