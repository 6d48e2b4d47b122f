"""Requests read: bodies within limits, JSON, and the parts of a state, each of the type that it must be."""

import asyncio
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request

from .errors import Refused
from .export import Shown
from .jobs import Cancelled

STATE_BYTES = 32_000_000  # a body with two pictures
SMALL_BYTES = 100_000  # a body without
SECONDS = 30  # for a body to arrive
TEXT, WORD = 1_000_000, 1_000  # characters of a text, and of a name
MOST_EDITS, MOST_OPTIONS, MOST_OPEN = 64, 32, 256
INDEX = re.compile(r"(?:(?::|\d{1,9})(?:,(?::|\d{1,9})){0,15})?", re.ASCII)
INPUTS = ("text", "source", "picture", "label", "options")


async def body_of(request: Request, most: int) -> dict[str, Any]:
    """The JSON object of a request; one that is too long is refused before it is read."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise too_long(most)
    parts, length = [], 0
    try:
        async with asyncio.timeout(SECONDS):
            async for part in request.stream():
                length += len(part)
                if length > most:
                    raise too_long(most)
                parts.append(part)
    except TimeoutError:
        raise Refused(f"the request did not arrive within {SECONDS} seconds", 408) from None
    except ClientDisconnect:
        raise Cancelled from None
    try:
        data = json.loads(b"".join(parts))
    except (ValueError, RecursionError):
        raise Refused("the request is not valid JSON") from None
    return table(data, "the request")


def too_long(most: int) -> Refused:
    return Refused(f"the request is larger than {most / 1e6:g} MB; send a smaller picture or a shorter text", 413)


def table(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refused(f"{name} must be an object")
    return value


def text(value: Any, name: str, most: int = WORD) -> str:
    """A text of at most so many characters, which can be written as UTF-8."""
    if not isinstance(value, str):
        raise Refused(f"{name} must be a text")
    if len(value) > most:
        raise Refused(f"{name} has {len(value):,} characters; at most {most:,} are read", 413)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(f"{name} has half of a character pair (a lone surrogate), which is no text") from None
    return value


def number(value: Any, name: str) -> float | int:
    """A number; JSON's true is none, and neither is one too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(f"{name} must be a number")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise Refused(f"{name} must be a finite number")
    return value


def entries(value: Any, name: str, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise Refused(f"{name} must be a list")
    if len(value) > most:
        raise Refused(f"{name} has {len(value):,} entries; at most {most} are read", 413)
    return value


def edit(value: Any) -> str:
    return text(value, "an edit")


def state(value: Any, name: str = "the request") -> dict[str, Any]:
    """A state as the page sends it: its model, input and edits; the picture is still as it was uploaded."""
    given = table(value, name)
    edits = [edit(one) for one in entries(given.get("edits", []), "edits", MOST_EDITS)]
    return {"model": text(given.get("model"), "model"), "input": _input(given.get("input", {})), "edits": edits}


def _input(value: Any) -> dict[str, Any]:
    given = {key: one for key, one in table(value, "input").items() if one is not None}
    for key in given:
        if key not in INPUTS:
            raise Refused(f"{key[:40]!r} is not a part of an input; known: {', '.join(INPUTS)}")
    most = {"text": TEXT, "source": TEXT, "picture": STATE_BYTES, "label": WORD}
    found: dict[str, Any] = {key: text(given[key], key, most[key]) for key in most if key in given}
    if "options" in given:
        options = table(given["options"], "options")
        entries(list(options), "options", MOST_OPTIONS)
        found["options"] = {text(key, "an option", 40): number(one, key[:40]) for key, one in options.items()}
    return found


def shown(body: Mapping[str, Any]) -> Shown:
    """What is open on the page, for a file that opens the same."""
    at = table(body.get("shown", {}), "shown")
    more = table(at.get("more", {}), "more")
    entries(list(more), "more", MOST_OPTIONS)
    return Shown(
        text(body.get("view", ""), "view"),
        text(at.get("cell", ""), "cell"),
        {text(name, "a name", 40): text(value, name) for name, value in more.items()},
        [text(one, "a part") for one in entries(at.get("open", []), "open", MOST_OPEN)],
    )


# ---- the parts of an address


def word(query: Mapping[str, str], name: str, usual: str | None = None) -> str | None:
    """A text of the query; none is None, or refused where it is needed."""
    value = query.get(name) or None
    return usual if value is None else text(value, name)


def needed(query: Mapping[str, str], name: str) -> str:
    value = word(query, name)
    if value is None:
        raise Refused(f"{name} is missing")
    return value


def whole(query: Mapping[str, str], name: str, most: int = 1_000_000_000) -> int | None:
    value = query.get(name) or None
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,10}", value, re.ASCII) or int(value) > most:
        raise Refused(f"{name} must be a whole number from 0 to {most}")
    return int(value)


def index(query: Mapping[str, str]) -> list[int | None] | None:
    """An index such as 0,2,:,: where : is an axis that is shown whole; None where there is none."""
    value = query.get("index", "")
    if len(value) > WORD or not INDEX.fullmatch(value):
        raise Refused("an index is numbers and colons with commas between, such as 0,2,:,:")
    return [None if one == ":" else int(one) for one in value.split(",")] if value else None
