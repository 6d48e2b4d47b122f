"""The replies to the view of the answer, and what its tests ask of the page."""

import json
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from page import answer_data as data
from page.mock import Events, mocked


class Server:
    """The replies to one page, and what it asked for."""

    def __init__(self, about: dict[str, Any] | None = None, answer: Callable[[dict[str, Any]], Any] = data.captioned):
        self.about, self.answer = about or data.model(), answer
        self.states: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.wrong: Events | None = None  # instead of the next answers

    def replies(self) -> dict[str, Any]:
        return {
            "GET models": {"models": [self.about], "version": "0"},
            "POST answer": self._answer,
            "POST record": self._record,
            "GET picture": self._picture,
            "GET of": self._picture_of,
            "GET slice": self._slice,
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
        outline = data.outline(len(self.answer(json.loads(request.post_data))["words"]))
        return outline | {"trace": f"k{self.asked.count('record')}"}

    def _picture(self, request: Any) -> Any:
        self.asked.append("picture")
        return data.picture(self.answer(self.states[-1]))

    def _picture_of(self, request: Any) -> Any:
        cell = dict(parse_qsl(urlsplit(request.url).query))["cell"]
        self.asked.append(f"of {cell}")
        return data.picture_of(self.answer(self.states[-1]), cell)

    def _slice(self, request: Any) -> Any:
        """The pattern of one head."""
        asked = dict(parse_qsl(urlsplit(request.url).query))
        index = [None if one == ":" else int(one) for one in asked["index"].split(",")]
        answer, block = self.answer(self.states[-1]), int(asked["name"].split(".")[1])
        words = answer["words"]
        rows = [data.rows_of_heads(answer, block, query)[index[1] or 0] for query in range(len(words))]
        return {
            "name": asked["name"], "index": index, "shape": [len(words)] * 2, "values": data.packed(rows, "<f8"),
            "rows": words, "columns": words, "low": 0, "high": 1,
        }  # fmt: skip

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
