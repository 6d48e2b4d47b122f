"""Who may ask: only pages that this server gave out, in a browser on this machine.

Any web page can make a browser send requests to 127.0.0.1, and a name of its own can be made to point there. So the
Host must be ours, and a request must not come from another site. Nothing here answers with CORS headers: other sites
cannot read a reply. Any user of this machine can connect to 127.0.0.1, too. So everything under /api needs a token that
follows from a secret, which is in the printed address and in a file that only the user can read.

Only its own page is answered. Any site can send requests to 127.0.0.1, so Host, Origin and Sec-Fetch-Site are checked.
Any user of the machine can connect there, so everything under `/api` needs a token: an HMAC of the port and the
server's name (made anew by each server) with the user's secret. The secret itself is never sent, since after a server
has ended another user may listen at its port. It follows the `#` of the printed address, so no request has it; the tab
keeps it in sessionStorage, the user in a file of mode 0600. With the same secret and the same port a restarted server
is found again by the pages that are open: their requests wait, and are sent once more. Headers that do not end within
30 seconds are refused (408). Requests name models, traces and cells, never files. An uploaded image is decoded in
another process with limits, and only its pixels come back.

With `--lan` a class is served, on the local network and read-only. A page that comes from another machine over HTTP has
no cryptography in its browser, so it sends the token itself, as clients of `pencil serve --lan` do: who listens on the
network can read it, and it opens no more than the page does. The Host may then be any name of this machine; a request
must still come from our own page.
"""

import hashlib
import hmac
import re
import secrets
from asyncio import timeout
from collections.abc import Sequence
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..config import UserError
from ..files import read_private, user_folder, write_private
from .json_values import to_json

HOSTS = ("127.0.0.1", "localhost")
TOKEN = "x-pencil-token"
CLIENT = "pencil.client"  # in the scope: the page that asks
UNREAD_BYTES, UNREAD_SECONDS = 1 << 16, 2.0  # of the body of a refused request that is read, and for how long
PAGE = re.compile(r"[\w-]{1,32}", re.ASCII)
SECRET = re.compile(r"[\w-]{43}", re.ASCII)
FIRST_PORT, PORTS = 20_000, 12_000  # of explorers; below the ports that systems give to connections
OUR_PAGES = ("same-origin", "none")  # of Sec-Fetch-Site: our own page, or an address that was typed
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


def kept_secret() -> str:
    """The user's secret, made once and kept: an open page knows it still when its server is started again."""
    path = user_folder() / "explorer-secret"
    try:
        secret = read_private(path)
    except FileNotFoundError:
        write_private(path, new_secret())
        secret = read_private(path)
    if not SECRET.fullmatch(secret):
        raise UserError(f"{path} is damaged: remove it, and a new one is made")
    return secret


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def usual_port(secret: str) -> int:
    """The port of this user's explorer unless another is asked for, so that an open page finds a restarted server."""
    return FIRST_PORT + int(hashlib.sha256(secret.encode()).hexdigest(), 16) % PORTS


class Tokens:
    """The tokens of pages: an HMAC, which proves that a page knows the secret, and an id of the page, for taking turns.

    The secret itself is never sent. A token is of one port and one server: when a server has ended, another user may
    listen at its port, and what an open page sends there opens no other server. With `plain` it is sent: the secret is
    then a token made for a class.
    """

    def __init__(self, secret: str, port: int, plain: bool = False):
        self.server = secrets.token_urlsafe(9)
        message = f"{port} {self.server}"
        self._proof = secret if plain else hmac.new(secret.encode(), message.encode(), "sha256").hexdigest()

    def new(self) -> str:
        return f"{self._proof}.{secrets.token_urlsafe(9)}"

    def client(self, token: str) -> str | None:
        """The page of a token; None where the token is not of this server."""
        proof, _, page = token.rpartition(".")
        right = hmac.compare_digest(proof.encode(), self._proof.encode())
        return page if right and PAGE.fullmatch(page) else None


class Guard:
    """Refuses what is not from our own page, before anything of a request is read; sets the headers of every reply."""

    def __init__(self, app: ASGIApp, tokens: Tokens, port: int, lan: bool = False):
        self.app, self._tokens, self._lan = app, tokens, lan
        self._hosts = {f"{host}:{port}" for host in HOSTS} | ({*HOSTS} if port == 80 else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        refusal = self._refusal(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if refusal is None:
            return await self.app(scope, receive, send_guarded)
        status, sentence = refusal
        await _leave_unread(receive)
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send_guarded({"type": "http.response.start", "status": status, "headers": headers})
        await send_guarded({"type": "http.response.body", "body": to_json({"error": sentence})})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        hosts = {host.lower() for host in headers.getlist("host")} if self._lan else self._hosts
        if not _is_one_of(headers.getlist("host"), hosts):
            return 400, "this address is not the server's own; open the one that pencil explore printed"
        origins = {f"http://{host}" for host in hosts}
        if headers.getlist("origin") and not _is_one_of(headers.getlist("origin"), origins):
            return 403, "a request from another site is not answered"
        if headers.get("sec-fetch-site", "none") not in OUR_PAGES and not _opens_the_page(scope, headers):
            return 403, "a request from another site is not answered"
        if scope["path"].startswith("/api"):
            scope[CLIENT] = self._tokens.client(headers.get(TOKEN, ""))
            if scope[CLIENT] is None:
                return (
                    403,
                    "this page does not know the secret of this server; open the address that pencil explore printed",
                )
        return None


async def _leave_unread(receive: Receive) -> None:
    """Take a small body off the connection: closed with bytes unread, it would be reset, and the refusal lost."""
    taken = 0
    with suppress(TimeoutError):
        async with timeout(UNREAD_SECONDS):
            while taken < UNREAD_BYTES:
                message = await receive()
                taken += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def _is_one_of(values: Sequence[str], allowed: set[str]) -> bool:
    return len(values) == 1 and values[0].lower() in allowed


def _opens_the_page(scope: Scope, headers: Headers) -> bool:
    """Whether a link in another site's page was followed: that shows our page to the user, and the site nothing."""
    whole = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return whole and scope["method"] == "GET" and scope["path"] == "/"
