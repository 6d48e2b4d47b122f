"""The load that `pencil bench serve` makes: what it measures of each stream, and streams that are not whole."""

import asyncio
import time
from itertools import cycle

import pytest

from pencil.bench.load import ask, closed_loop, latencies, open_loop, quantile
from serving import HANG_SECONDS, client, server


@pytest.fixture(scope="module")
def served():
    with server() as running:
        yield running


def body(prompt, tokens=7):
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0}


def test_each_loop_gets_the_texts_that_the_client_gets(served):
    bodies = [body("abc"), body("b", 11), body("cd", 3)]
    texts = [client(served).completions.create(model="small", **one).choices[0].text for one in bodies]
    closed = asyncio.run(closed_loop(served.url, iter(bodies), 2, HANG_SECONDS))
    opened = asyncio.run(open_loop(served.url, bodies, rate=100))
    for replies in (closed, opened):
        assert all(one.whole and one.status == 200 for one in replies)
        assert {id(one.body): one.text for one in replies} == dict(zip(map(id, bodies), texts, strict=True))
        assert sorted(one.tokens for one in replies) == [3, 7, 11]
        for one in replies:
            assert len(one.between) == len(one.arrivals) - 1
            assert one.began + one.first == pytest.approx(one.arrivals[0])


def test_a_loop_ends_with_its_time_after_what_is_under_way(served):
    replies = asyncio.run(closed_loop(served.url, cycle([body("abc")]), 3, 0))
    assert [one.whole for one in replies] == [True] * 3


def test_a_stream_that_is_refused_is_not_whole(served):
    reply = asyncio.run(ask(served.url, body("abc", 1000)))
    assert (reply.status, reply.whole, reply.text) == (400, False, "")
    began = time.perf_counter()
    assert not asyncio.run(ask("http://127.0.0.1:1", body("abc"))).whole  # where nobody listens
    assert reply.began < began


def test_quantiles_and_latencies():
    values = [float(i) for i in range(100)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([3.0], 0.99), quantile([], 0.5)) == (50, 99, 3, 0)
    assert latencies(values, [2.0]) == {"first_seconds": [50, 99], "between_seconds": [2, 2]}
