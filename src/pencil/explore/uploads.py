"""Uploaded pictures, decoded in a process of their own: limited in bytes, pixels, kinds, memory and time.

The process stays, since starting one for every stroke of a drawing would be slow. It is killed where it takes too long,
and the next picture starts another. What it sends back is raw bytes: a PNG that it wrote, or a sentence. The PNG is the
picture as the model sees it, made of the whole file as `pencil sample` makes it.
"""

import asyncio
import base64
import binascii
import io
import json
import os
import sys
from collections.abc import Mapping
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

from ..config import UserError
from ..data.images import decoding
from ..data.images.augment import ImageTransform
from .lru_cache import Cache
from .requests import Refused

MOST_BYTES = 10_000_000  # of one file
DECODE_SECONDS = 10.0  # for one file
PROCESS_BYTES = 1_000_000_000  # of memory, beside what the process has when it begins
CPU_SECONDS = 3600  # of the process in its whole life
MOST_PNG_BYTES = 32_000_000  # that are taken back
MOST_PICTURES, MOST_PICTURE_BYTES = 32, 64_000_000  # that are not decoded again
BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM")
NOT_A_PICTURE = "this file is not a picture that can be read here; save it as PNG, JPEG, WebP, GIF or BMP"
WORKER = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from pencil.explore import uploads; uploads.work()"


def uploaded(url: str) -> bytes:
    """The bytes of a data URL, refused by their number and by what they begin with."""
    head, comma, body = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise Refused(NOT_A_PICTURE, 415)
    if len(body) > MOST_BYTES * 4 // 3 + 4:
        raise Refused(f"the picture has more than {MOST_BYTES / 1e6:g} MB; make it smaller", 413)
    try:
        content = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(NOT_A_PICTURE, 415) from None
    if not (content.startswith(BEGINNINGS) or (content[:4] == b"RIFF" and content[8:12] == b"WEBP")):
        raise Refused(NOT_A_PICTURE, 415)
    return content


class Pictures:
    """Reads uploads by the process that decodes them, one at a time."""

    def __init__(self, seconds: float = DECODE_SECONDS):
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._pictures = Cache[str, str](MOST_PICTURES, MOST_PICTURE_BYTES, len)

    async def read(self, url: str, transform: dict[str, Any]) -> str:
        """The picture as the data URL of a plain PNG at the model's size, as its transform makes it."""
        content = uploaded(url)
        how = json.dumps({"transform": transform, "fitted": url.startswith(decoding.FITTED)}).encode()
        name = sha256(how + content).hexdigest()
        if name in self._pictures:
            picture = self._pictures[name]
        else:
            async with self._lock:
                png = await self._decode(content, how)
            picture = decoding.FITTED + base64.b64encode(png).decode()
        return self._pictures.put(name, picture)

    async def _decode(self, content: bytes, how: bytes) -> bytes:
        try:
            async with asyncio.timeout(self._seconds):
                process = await self._running()
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(_packed(how) + _packed(content))
                await process.stdin.drain()
                good = await process.stdout.readexactly(1) == b"+"
                length = int.from_bytes(await process.stdout.readexactly(4), "big")
                if length > MOST_PNG_BYTES:
                    raise ValueError
                answer = await process.stdout.readexactly(length)
        except TimeoutError:
            await self.close()
            raise Refused(f"the picture could not be decoded in {self._seconds:g} seconds; make it smaller") from None
        except (OSError, EOFError, ValueError):  # the process ended, or wrote what it should not
            await self.close()
            raise Refused("the picture could not be decoded; save it anew, or make it smaller") from None
        except asyncio.CancelledError:  # half of an exchange is of no use to the next picture
            await self.close()
            raise
        if not good:
            raise Refused(f"the picture cannot be read: {answer.decode(errors='replace')[:500]}", 415)
        return answer

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                WORKER,
                json.dumps(sys.path),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        return self._process

    async def start(self) -> None:
        """Start the process before the first picture comes."""
        await self._running()

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


def _packed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


# ---- the other process


def work() -> None:
    """Decode pictures from standard input until it ends, each answered with a PNG or a sentence."""
    from ..files import limit_process

    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing that a library prints comes between
    limit_process(PROCESS_BYTES, CPU_SECONDS, 0)
    while head := questions.read(4):
        how = json.loads(questions.read(int.from_bytes(head, "big")))
        content = questions.read(int.from_bytes(questions.read(4), "big"))
        try:
            mark, answer = b"+", plain_png(content, how["transform"], how["fitted"])
        except MemoryError:
            mark, answer = b"-", b"it needs too much memory"
        except Exception as error:  # Pillow's readers raise many kinds
            mark, answer = b"-", (str(error) if isinstance(error, UserError) else decoding.reason(error)).encode()
        answers.write(mark + _packed(answer))
        answers.flush()


def plain_png(content: bytes, transform: Mapping[str, Any], fitted: bool = False) -> bytes:
    """The first frame at the model's size and in its channels; one that was fitted to it before stays as it is."""
    # JSON has lists only
    tuples: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in transform.items()
    }
    source = SimpleNamespace(open=lambda: io.BytesIO(content))  # bytes that are opened as a file is
    picture = decoding.fitted(source, ImageTransform(**tuples), fitted)
    out = io.BytesIO()
    picture.info = {}  # nothing of the file but its pixels
    picture.save(out, "PNG", compress_level=1)
    return out.getvalue()
