"""The server of `pencil serve` under load: errors, wrong texts, tokens a second; and under attack: who else has to wait.

    python benchmarks/serving.py [RUN] [--preset nano] [--clients 64] [--seconds 120] [--tokens 64] [--device auto]
                                 [--dtype auto]
    python benchmarks/serving.py --attack [--seconds 60]

RUN is a run of a gpt; without one, a model with random weights is made, whose tokens are nearly random too. Each of the
prompts is first answered by the idle server, for one client; under load every text must be the same. One client is
compared with `pencil sample`: the same prompts, continued in this process, ten by the one and ten by the other in turn,
so that whatever else the machine does concerns both. On one H200, for 256 streams of a model of 124 M parameters:
--preset gpt2 --clients 256.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from pencil.api.loading import load
from pencil.bench.load import Reply, ask, closed_loop, latencies, quantile, serving
from pencil.bench.models import make
from pencil.bench.serve import body_of, write_run
from pencil.data.tokenizers.tokenizer import ByteTokenizer
from pencil.device import pick_device
from pencil.families.gpt import FAMILY
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling

WARM = 3
TURN = 10  # requests of one client between two measurements of `pencil sample`
HEALTH_SECONDS = 0.02  # from one question about the server's health to the next


def memory(process: int) -> float:
    """Megabytes that a process has in memory."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def requests(count: int, tokens: int, context: int, vocab: int) -> list[dict]:
    """Requests of several lengths; a third is sampled with a seed, some begin alike."""
    drawn, common, made = random.Random(0), [random.Random(1).randrange(vocab) for _ in range(context)], []
    for i in range(count):
        prompt = [drawn.randrange(vocab) for _ in range(drawn.randint(1, max(1, min(100, context - tokens))))]
        if i % 4 == 0:
            prompt = common[: len(prompt)] + prompt[-1:]
        rule = dict(temperature=0.9, top_p=drawn.choice([0.9, 1.0]), seed=i) if i % 3 == 0 else {}
        made.append(body_of(prompt[: max(1, context - tokens)], tokens, **rule))
    return made


def show(name: str, replies: list[Reply], seconds: float) -> float:
    """A line for a load; its tokens a second."""
    good = [one for one in replies if one.whole]
    rate = sum(one.tokens for one in good) / seconds
    waits = latencies([one.first for one in good], [gap for one in good for gap in one.between])
    first, between = ([f"{1e3 * value:.1f}" for value in one] for one in waits.values())
    print(f"{name}: {len(replies)} requests, {len(replies) - len(good)} errors, {rate:,.1f} tokens/s; first token after "
          f"{first[0]} ms (p99 {first[1]}), then the next piece after {between[0]} ms (p99 {between[1]})", flush=True)  # fmt: skip
    return rate


def under_load(run: Path, given: argparse.Namespace) -> bool:
    loaded = load(run, pick_device(given.device), dtype=given.dtype)
    context, end = loaded.model.config.context, loaded.tokenizer.end
    tokens = min(given.tokens, context // 2)
    bodies = requests(given.prompts, tokens, context, min(loaded.tokenizer.vocab, 256))
    for body in bodies:
        body["logit_bias"] = {} if end is None else {str(end): -100}

    def sample(some: list[dict]) -> float:
        """The seconds that `pencil sample` takes for these prompts, without its start."""
        began = time.perf_counter()
        for body in some:
            for _ in Generation(loaded.model, [body["prompt"]], tokens, Sampling(0), vocab=loaded.tokenizer.vocab):
                pass
        return time.perf_counter() - began

    options = ["--rows", str(given.clients), "--waiting", str(given.clients), "--device", given.device]
    options += ["--dtype", given.dtype]
    with serving(run, *options) as (address, process):
        sample(bodies[:WARM])
        asyncio.run(closed_loop(address, iter(bodies[:WARM]), 1, 600))
        idle, sampled, asked = [], 0.0, 0.0
        for some in (bodies[i : i + TURN] for i in range(0, len(bodies), TURN)):
            sampled += sample(some)
            began = time.perf_counter()
            idle += asyncio.run(closed_loop(address, iter(some), 1, 3600))
            asked += time.perf_counter() - began
        sampled = tokens * len(bodies) / sampled
        print(f"pencil sample, in one process: {sampled:,.1f} tokens/s", flush=True)
        one = show("one client", idle, asked)
        texts = {id(reply.body): reply.text for reply in idle}
        before, began = memory(process.pid), time.perf_counter()
        replies = asyncio.run(closed_loop(address, cycle(bodies), given.clients, given.seconds))
        many = show(f"{given.clients} clients", replies, time.perf_counter() - began)
        wrong = sum(reply.text != texts[id(reply.body)] for reply in replies if reply.whole)
        errors = sum(not reply.whole for reply in [*idle, *replies])
        print(f"{wrong} wrong texts of {len(replies)}; {many / one:.2f} times one client's tokens/s; one client has "
              f"{one / sampled:.2f} of pencil sample's; {memory(process.pid) - before:+.1f} MB of memory")  # fmt: skip
        return not wrong and not errors and process.poll() is None


# ---- attacks


def attacks(address: str) -> dict[str, bytes]:
    """What a stranger sends, by name: each sends once, and leaves its connection to be closed later."""
    place = urlsplit(address)
    head = f"Host: {place.netloc}\r\nContent-Type: application/json\r\n"

    def post(body: bytes, path: str = "/v1/completions", length: int | None = None) -> bytes:
        count = len(body) if length is None else length
        return f"POST {path} HTTP/1.1\r\n{head}Content-Length: {count}\r\n\r\n".encode() + body

    def completion(**fields: object) -> bytes:
        return post(json.dumps({"prompt": "a", "max_tokens": 5} | fields).encode())

    picture = '{"model": "run", "input": "data:image/png;base64,' + "A" * 900_000 + '"}'
    return {
        "headers that do not end": b"GET /healthz HTTP/1.1\r\nHost: ",
        "a body that does not come": post(b"{", length=1000),
        "300 MB announced": post(b"x" * 100_000, length=300_000_000),
        "a body of 3 MB": post(b"x" * 3_000_000),
        "chunks without end": f"POST /v1/completions HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n".encode()
        + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 20,
        "nested lists": post(b"[" * 900_000),
        "very many values": post(b'{"prompt": [' + b"1," * 400_000 + b"1]}"),
        "a number of 900,000 digits": post(b'{"max_tokens": ' + b"9" * 900_000 + b"}"),
        "the longest texts": completion(prompt="ab " * 300_000),
        "64 prompts of 16 samples": completion(prompt=["a"] * 64, n=16, max_tokens=1),
        "every token wanted, then gone": completion(prompt=["a"] * 40, max_tokens=60, stream=True),
        "stop strings": completion(stop=["a" * 1000] * 4, max_tokens=60),
        "a long chat": post(json.dumps({"messages": [{"role": "user", "content": "a" * 900}] * 999}).encode(),
                            "/v1/chat/completions"),
        "a picture that is none": post(picture.encode(), "/v1/classify"),
        "another host": b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "no HTTP": random.Random(0).randbytes(5000),
    }  # fmt: skip


def attacked(run: Path, given: argparse.Namespace) -> bool:
    """Attack from many sockets; how long the health check takes meanwhile, and what stays in memory."""
    with serving(run, "--rows", "16", "--waiting", "16", "--device", given.device) as (address, process):
        place, sent = urlsplit(address), attacks(address)
        good = body_of([97, 98, 99], 8)
        expected = asyncio.run(ask(address, good))
        for what in [*sent.values()] * 2:  # what the first of each takes in memory is not growth
            _send(place, what).close()
        time.sleep(1)
        before, end, counts, held = memory(process.pid), time.perf_counter() + given.seconds, dict.fromkeys(sent, 0), []

        def attack(seed: int) -> None:
            drawn = random.Random(seed)
            mine: list[socket.socket] = []
            while time.perf_counter() < end:
                name = drawn.choice([*sent])
                try:
                    mine.append(_send(place, sent[name]))
                    counts[name] += 1
                except OSError:
                    pass
                if len(mine) > given.sockets // given.attackers:
                    mine.pop(0).close()
                time.sleep(given.pause)
            held.extend(mine)

        threads = [threading.Thread(target=attack, args=(i,)) for i in range(given.attackers)]
        for thread in threads:
            thread.start()
        watch = subprocess.run([sys.executable, __file__, "--watch", address, "--seconds", str(given.seconds)],
                               stdout=subprocess.PIPE, text=True, check=True)  # fmt: skip
        for thread in threads:
            thread.join()
        for one in held:
            one.close()
        times, failed = json.loads(watch.stdout)
        time.sleep(2)
        after, answer = memory(process.pid), asyncio.run(ask(address, good))
        alive = process.poll() is None
    growth, p99 = after - before, 1e3 * quantile(times, 0.99)
    print(f"{sum(counts.values())} attacks of {len(counts)} kinds from {given.sockets} sockets: {len(times)} health checks, "
          f"{failed} failed, median {1e3 * quantile(times, 0.5):.1f} ms, p99 {p99:.1f} ms, longest {1e3 * max(times):.1f} ms; "
          f"{growth:+.1f} MB; the server {'went on' if alive else 'ended'}, and "
          f"{'answers as before' if answer.text == expected.text and answer.whole else 'answers otherwise'}")  # fmt: skip
    return alive and not failed and p99 < 100 and growth < 100 and answer.whole and answer.text == expected.text


def _send(place: SplitResult, what: bytes) -> socket.socket:
    one = socket.create_connection((place.hostname, place.port), timeout=0.5)
    with suppress(OSError):  # it was refused before it was read
        one.sendall(what)
    return one


def watch(address: str, seconds: float) -> None:
    """Ask for the server's health again and again; the seconds of each answer, and how many were none."""
    times, failed, end = [], 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        try:
            with urllib.request.urlopen(f"{address}/healthz", timeout=10) as reply:
                failed += reply.status != 200
        except OSError:
            failed += 1
        times.append(time.perf_counter() - began)
        time.sleep(HEALTH_SECONDS)
    print(json.dumps([times, failed]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=100, help="different requests")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--attack", action="store_true")
    parser.add_argument("--attackers", type=int, default=4, help="threads that attack")
    parser.add_argument("--sockets", type=int, default=400, help="connections that they keep open")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two attacks of a thread")
    parser.add_argument("--watch", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.watch:
        watch(given.watch, given.seconds)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        run = given.run
        if run is None:
            run, tokenizer = Path(folder) / "run", ByteTokenizer(ended=True)
            sizes = dict(FAMILY.preset_values(given.preset))
            sizes = ({"context": 256} if "context" not in sizes else {}) | {"vocab": tokenizer.vocab}
            write_run(run, make(FAMILY, FAMILY.configure(given.preset, **sizes), pick_device("cpu")), tokenizer)
        return 0 if (attacked if given.attack else under_load)(run, given) else 1


if __name__ == "__main__":
    sys.exit(main())
