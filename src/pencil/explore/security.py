"""Who may ask: only pages that this server gave out, in a browser on this machine.

Any web page can make a browser send requests to 127.0.0.1, and a name of its own can be made to point there. So the
Host must be ours, a request must not come from another site, and everything under /api needs a token that only the
page has. Nothing here answers with CORS headers: other sites cannot read a reply.
"""

import hmac
import re
import secrets
from asyncio import timeout
from collections.abc import Sequence
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .events import to_json

HOSTS = ("127.0.0.1", "localhost")
TOKEN = "x-pencil-token"
CLIENT = "pencil.client"  # in the scope: the page that asks
SMALL, SECONDS = 1 << 16, 2.0  # of the body of a refused request that is read, and for how long
PAGE = re.compile(r"[\w-]{1,32}", re.ASCII)
OUR_PAGES = ("same-origin", "none")  # of Sec-Fetch-Site: our own page, or an address that was typed
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
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


class Tokens:
    """One secret a server; a page's token is the secret and a name of that page's own, by which it takes turns."""

    def __init__(self):
        self._secret = secrets.token_urlsafe(32)

    def new(self) -> str:
        return f"{self._secret}.{secrets.token_urlsafe(9)}"

    def client(self, token: str) -> str | None:
        """The page of a token; None where the token is not of this server."""
        secret, _, page = token.rpartition(".")
        right = hmac.compare_digest(secret.encode(), self._secret.encode())
        return page if right and PAGE.fullmatch(page) else None


class Guard:
    """Refuses what is not from our own page, before anything of a request is read; sets the headers of every reply."""

    def __init__(self, app: ASGIApp, tokens: Tokens, port: int):
        self.app, self._tokens = app, tokens
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
        if not _is_one_of(headers.getlist("host"), self._hosts):
            return 400, "this address is not the server's own; open the one that pencil explore printed"
        origins = {f"http://{host}" for host in self._hosts}
        if headers.getlist("origin") and not _is_one_of(headers.getlist("origin"), origins):
            return 403, "a request from another site is not answered"
        if headers.get("sec-fetch-site", "none") not in OUR_PAGES and not _opens_the_page(scope, headers):
            return 403, "a request from another site is not answered"
        if scope["path"].startswith("/api"):
            scope[CLIENT] = self._tokens.client(headers.get(TOKEN, ""))
            if scope[CLIENT] is None:
                return 403, "this page belongs to a server that has ended, or to none: reload it"
        return None


async def _leave_unread(receive: Receive) -> None:
    """Take a small body off the connection: closed with bytes unread, it would be reset, and the refusal lost."""
    taken = 0
    with suppress(TimeoutError):
        async with timeout(SECONDS):
            while taken < SMALL:
                message = await receive()
                taken += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def _is_one_of(values: Sequence[str], known: set[str]) -> bool:
    return len(values) == 1 and values[0].lower() in known


def _opens_the_page(scope: Scope, headers: Headers) -> bool:
    """Whether a link in another site's page was followed: that shows our page to the user, and the site nothing."""
    whole = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return whole and scope["method"] == "GET" and scope["path"] == "/"
