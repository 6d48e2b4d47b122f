"""Load on a server that speaks OpenAI's completions: streams over plain sockets, and when each piece of them arrived.

Closed loop: so many clients, each of which asks again when it has its answer. Open loop: requests arrive at random
times, however many are under way, as those of people who know nothing of one another do.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..config import UserError

LONGEST_LINE = 1 << 22
END_SECONDS = 60.0


@dataclass
class Reply:
    """One request: when it was sent, when each piece of its text arrived, and the text."""

    body: Mapping[str, Any]
    began: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    tokens: int = 0
    status: int = 0
    whole: bool = False  # whether it ended as it should

    @property
    def first(self) -> float:
        """Seconds to the first piece."""
        return self.arrivals[0] - self.began

    @property
    def between(self) -> list[float]:
        """Seconds from each piece to the next."""
        return [b - a for a, b in pairwise(self.arrivals)]


async def ask(address: str, body: Mapping[str, Any]) -> Reply:
    """Stream one completion."""
    place, reply = urlsplit(address), Reply(body, time.perf_counter())
    content = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    writer = None
    with suppress(OSError, ValueError, IndexError, asyncio.IncompleteReadError):  # a reply that is not whole says so
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=LONGEST_LINE)
        writer.write(head.encode() + content)
        reply.status = int((await reader.readline()).split()[1])
        async for line in reader:
            if line.startswith(b"data: [DONE]"):
                reply.whole = True
                break
            if line.startswith(b"data: "):
                _take(reply, json.loads(line[len(b"data: ") :]))
    if writer is not None:
        writer.close()
    return reply


def _take(reply: Reply, data: Mapping[str, Any]) -> None:
    for choice in data.get("choices", ()):
        reply.arrivals.append(time.perf_counter())
        reply.text += choice["text"]
    if data.get("usage"):
        reply.tokens = data["usage"]["completion_tokens"]


async def closed_loop(address: str, bodies: Iterator[Mapping[str, Any]], clients: int, seconds: float) -> list[Reply]:
    """Ask from so many clients until the bodies or the seconds end."""
    replies, end = [], time.perf_counter() + seconds

    async def client() -> None:
        for body in bodies:
            replies.append(await ask(address, body))
            if time.perf_counter() >= end:
                return

    await asyncio.gather(*(client() for _ in range(clients)))
    return replies


async def open_loop(address: str, bodies: Sequence[Mapping[str, Any]], rate: float, seed: int = 0) -> list[Reply]:
    """Ask at random times, `rate` requests a second on average."""
    return await asyncio.gather(
        *[asyncio.ensure_future(ask(address, body)) async for body in _arriving(bodies, rate, seed)]
    )


async def _arriving(bodies: Sequence[Mapping[str, Any]], rate: float, seed: int) -> AsyncIterator[Mapping[str, Any]]:
    drawn = random.Random(seed)
    for body in bodies:
        yield body
        await asyncio.sleep(drawn.expovariate(rate))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed; 0 of none."""
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def latencies(first: Sequence[float], between: Sequence[float]) -> dict[str, list[float]]:
    """The median and the 99th percentile of the seconds to the first piece, and between pieces."""
    return {
        name: [quantile(values, share) for share in (0.5, 0.99)]
        for name, values in (("first_seconds", first), ("between_seconds", between))
    }


@contextmanager
def serving(run: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`pencil serve` in a process of its own, as a user starts it: its address and its process."""
    command = [sys.executable, "-m", "pencil", "serve", str(run), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip().removesuffix("/v1")
            if not address:
                raise UserError("pencil serve did not start; what it wrote above says why")
            yield address, process
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
