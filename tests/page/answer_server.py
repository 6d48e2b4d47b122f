"""The replies to the view of the answer, and what its tests ask of the page."""

import base64
import json
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import numpy as np

from page import answer_data as data
from page.mock import Events, mocked


class Server:
    """The replies to one page, and what it asked for."""

    def __init__(self, about: dict[str, Any] | None = None, answer: Callable[[dict[str, Any]], Any] = data.captioned):
        self.about, self.answer = about or data.model(), answer
        self.states: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.leading: list[list[int]] | None = None  # for each word the head that attends most to the patches
        self.wrong: Events | None = None  # instead of the next answers

    def replies(self) -> dict[str, Any]:
        return {
            "GET models": {"models": [self.about], "version": "0"},
            "POST answer": self._answer,
            "POST record": self._record,
            "GET light": self._light,
            "GET attention": data.patterns(),
            "GET receipt": self._receipt,
            "GET contributions": {
                "cell": "",
                "against": None,
                "value": 1,
                "total": 1,
                "allowed": 1,
                "held": [],
                "parts": [],
            },
        }

    def _answer(self, request: Any) -> Any:
        self.states.append(json.loads(request.post_data))
        return self.wrong or self.answer(self.states[-1])

    def _record(self, request: Any) -> Any:
        self.asked.append("record")
        return data.outline(len(self.answer(json.loads(request.post_data))["words"]))

    def light(self, how: str = "mean", layer: int | None = data.DEPTH - 1, head: int | None = None) -> dict[str, Any]:
        answer = self.answer(self.states[-1])
        words = [one["text"] for one in answer.get("tokens", [])]
        if "grid" not in answer:
            return data.light(words, answer["words"], how, layer, head)
        rows, columns = answer["grid"]
        keys = [f"patch {1 + i // columns},{1 + i % columns}" for i in range(rows * columns)]
        return data.light(words or (["class"] if "classes" in answer else keys), keys, how, layer, head)

    def _light(self, request: Any) -> Any:
        asked = dict(parse_qsl(urlsplit(request.url).query))
        self.asked.append(f"light {asked['how']}")
        layer, head = (int(asked[name]) if name in asked else None for name in ("layer", "head"))
        return {**self.light(asked["how"], layer, head), "leading": self.leading}

    def _receipt(self, request: Any) -> Any:
        cell = dict(parse_qsl(urlsplit(request.url).query))["cell"]
        self.asked.append(f"receipt {cell}")
        return data.receipt(cell)


@contextmanager
def opened(browser: Any, server: Server, where: str = "", **how: Any):
    with mocked(browser, server.replies(), where, **how) as page:
        page.wait_for_selector(".result:not([aria-busy=true]) .state:has-text('computed')")
        yield page


def given(options: str) -> str:
    """An address with the example's picture and options."""
    return f"#picture={quote(data.scene(), safe='')}&{options}"


def shown(p: float) -> str:
    return "<0.001" if 0 < p < 0.0005 else ">0.999" if 0.9995 < p < 1 else f"{p:.3f}"


def rows_of(light: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(light["rows"]), "<f4").reshape(len(light["words"]), light["patches"])


def receipt_of(page: Any, cell: str) -> bool:
    page.wait_for_function("cell => document.querySelector('#receipt')?.textContent.includes(cell)", arg=cell)
    return True


def until(page: Any, true: Callable[[], bool]) -> None:
    """Wait for something the page does; what is waited for is its last word."""
    for _ in range(2400):
        if true():
            return
        page.wait_for_timeout(25)
    raise AssertionError("it did not come")
