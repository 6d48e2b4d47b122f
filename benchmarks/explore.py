"""The server of `pencil explore` under load, the time until its page is drawn, that of the picture of a model and of what
it shows for one token, and that of a receipt of GPT-2's shape.

    python benchmarks/explore.py [RUN] [--clients 20] [--seconds 60] [--receipts 50] [--depth 12] [--width 768]

RUN is a run that takes a text, or the example that comes with Pencil. The receipts, and the second picture, are those of
a GPT of 12 blocks of 768 with random weights, at 64 tokens. Each server is a process of its own, as a user starts it.
"""

import argparse
import base64
import hmac
import http.client
import io
import json
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

WORDS = "the pencil draws seven strips and a reader counts the strips of every picture".split()
WARM = 8  # inputs before memory is first measured: more than the traces that are kept
PAINTS = 5
# "load" may come before the first paint
PAINTED = """() => new Promise(done => new PerformanceObserver(list => {
  const found = list.getEntriesByName("first-contentful-paint")
  if (found.length) done(found[0].startTime)
}).observe({type: "paint", buffered: true}))"""


class Client:
    """One page: its token, its connection, and how long each kind of request took."""

    def __init__(self, address: str):
        self.address, self.times, self.errors = urlsplit(address), {}, []
        self.ask("page", "GET", "/", token="")
        server = json.loads(self.ask("server", "GET", "/server", token=""))["server"]
        secret = self.address.fragment.removeprefix("secret=")
        proof = hmac.new(secret.encode(), f"{self.address.port} {server}".encode(), "sha256").hexdigest()
        self.token = f"{proof}.{secrets.token_urlsafe(9)}"

    def ask(self, kind: str, method: str, path: str, body: object = None, token: str | None = None) -> bytes:
        began = time.perf_counter()
        connection = http.client.HTTPConnection(self.address.hostname or "", self.address.port, timeout=600)
        headers = {"X-Pencil-Token": self.token if token is None else token}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        if reply.status != 200:
            self.errors.append(f"{kind}: {reply.status} {content[:200].decode(errors='replace')}")
        self.times.setdefault(kind, []).append(time.perf_counter() - began)
        return content

    def get(self, kind: str, path: str) -> dict:
        return json.loads(self.ask(kind, "GET", path))

    def post(self, kind: str, path: str, body: object) -> dict:
        return json.loads(self.ask(kind, "POST", path, body))


@contextmanager
def explored(*words: str):
    """A server of its own: its address and its process."""
    command = [sys.executable, "-m", "pencil", "explore", *words, "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise SystemExit("the server did not start")
        yield address, process.pid
    finally:
        process.terminate()
        process.wait(60)


def memory(process: int) -> float:
    """Megabytes that a process has in memory."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def quantiles(times: list[float]) -> list[float]:
    ordered = sorted(times)
    return [ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 for share in (0.5, 0.95, 0.99, 1.0)]


# ---- many clients


def use(client: Client, model: dict, rng: random.Random) -> None:
    """What somebody does with the page: another input, then a look inside."""
    state = {"model": model["id"], "input": another(model, rng), "edits": []}
    client.post("answer", "/api/answer", state)
    outline = client.post("record", "/api/record", state)
    trace = f"/api/trace/{outline['trace']}"
    for _ in range(3):
        tensor = rng.choice([one for one in outline["tensors"] if one["named"] and all(one["shape"])])
        cell = f"{tensor['name']}[{','.join(str(rng.randrange(n)) for n in tensor['shape'])}]"
        client.get("receipt", f"{trace}/receipt?cell={quote(cell if tensor['shape'] else tensor['name'])}")
        client.get("slice", f"{trace}/slice?name={quote(tensor['name'])}")
    client.get("attention", f"{trace}/attention")


def another(model: dict, rng: random.Random) -> dict:
    """An input that nobody has sent before."""
    given, takes = dict(model["example"]), model["input"]
    if "text" in takes and not takes["text"].get("optional"):
        given["text"] = " ".join(rng.choices(WORDS, k=4))[: max(1, takes["text"]["longest"] - 8)]
    if "source" in takes:
        given["source"] = " ".join(rng.choices(WORDS, k=4))[: takes["source"]["longest"]]
    if "picture" in takes and "picture" in given:
        from PIL import Image

        size = takes["picture"]
        image = Image.frombytes("L", (size["width"], size["height"]), rng.randbytes(size["width"] * size["height"]))
        out = io.BytesIO()
        image.save(out, "PNG")
        given["picture"] = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    return given


def many(address: str, process: int, clients: int, seconds: float) -> None:
    first = Client(address)
    model = first.get("models", "/api/models")["models"][0]
    for seed in range(WARM):
        use(first, model, random.Random(seed))
    before = memory(process)
    end, all_clients = time.perf_counter() + seconds, [Client(address) for _ in range(clients)]

    def work(client: Client, seed: int) -> None:
        rng = random.Random(seed)
        while time.perf_counter() < end:
            try:
                use(client, model, rng)
            except Exception as error:
                client.errors.append(repr(error))

    threads = [threading.Thread(target=work, args=(one, 1000 + i)) for i, one in enumerate(all_clients)]
    highest = [before]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.5)
            highest.append(memory(process))
    errors = [error for one in all_clients for error in one.errors]
    print(f"{clients} clients for {seconds:g} s on {model['name']} ({model['parameters']:,} parameters)")
    print(f"{'request':12}{'count':>8}{'median ms':>12}{'95 %':>9}{'99 %':>9}{'most':>9}")
    for kind in ("answer", "record", "receipt", "slice", "attention"):
        times = [one for client in all_clients for one in client.times.get(kind, ())]
        if times:
            print(
                f"{kind:12}{len(times):8}"
                + "".join(f"{q:{w}.0f}" for q, w in zip(quantiles(times), (12, 9, 9, 9), strict=True))
            )
    after = memory(process)
    print(f"errors: {len(errors)}")
    for error in errors[:5]:
        print(f"  {error}")
    print(f"memory: {before:.0f} MB before, {max(highest):.0f} at most, {after:.0f} after ({after / before - 1:+.1%})")


# ---- the page


def painted(address: str) -> None:
    """The time from asking for the page until something is drawn, each time in a new browser profile."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        print("first paint: not measured, since chromium or playwright is not installed")
        return
    times = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(PAINTS):
            page = browser.new_context().new_page()
            page.goto(address)
            times.append(page.evaluate(PAINTED) / 1000)
            page.context.close()
        browser.close()
    print(
        f"first paint of the page: median {quantiles(times)[0]:.0f} ms, at most {max(times) * 1000:.0f} ms ({PAINTS} times)"
    )


# ---- the picture of a model, and a receipt


def pictures(address: str) -> None:
    """The time and the size of the picture of a model, and of what it shows for each token of the answer."""
    client = Client(address)
    model = client.get("models", "/api/models")["models"][0]
    given = {**model["example"], **({"text": " ".join(WORDS)[:60]} if "text" in model["example"] else {})}
    state = {"model": model["id"], "input": {**given, "options": {"tokens": 4}}, "edits": []}
    tokens = client.post("answer", "/api/answer", state)["tokens"]
    trace = f"/api/trace/{client.post('record', '/api/record', state)['trace']}"
    sizes = {"picture": [len(client.ask("picture", "GET", f"{trace}/picture"))], "choice": []}
    for token in tokens:
        sizes["choice"].append(len(client.ask("choice", "GET", f"{trace}/picture/of?cell={quote(token['cell'])}")))
    lines = [
        f"{kind} {', '.join(f'{1000 * one:.0f}' for one in client.times[kind])} ms, at most {max(sizes[kind]) / 1000:.0f} kB"
        for kind in sizes
    ]
    print(f"{model['name']} ({model['parameters']:,} parameters): {'; '.join(lines)}; errors: {len(client.errors)}")
    for error in client.errors[:5]:
        print(f"  {error}")


def shaped(folder: Path, depth: int, width: int) -> str:
    """A run of GPT-2's shape with random weights: a small one is trained for a step, and its model replaced."""
    import torch

    import pencil
    from pencil.runs.run import Run

    (folder / "notes.txt").write_text("".join(f"line {i}: " + " ".join(WORDS) + "\n" for i in range(200)))
    words = "--model.depth=1 --model.width=24 --model.heads=2 --model.context=64 --train.steps=1 --train.warmup=0"
    command = [sys.executable, "-m", "pencil", "train", "gpt", "--data", "notes.txt", "--out", "small", *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    small = pencil.load(folder / "small")
    torch.manual_seed(0)
    model = {**small.run.config["model"], "depth": depth, "width": width, "heads": 12, "hidden": 4 * width}
    run = Run.create(folder / "shaped", {**small.run.config, "model": model}, small.tokenizer)
    run.write_weights(pencil.create("gpt", type(small.model.config)(**model)), {"step": 0})
    return str(folder / "shaped")


def receipts(address: str, count: int) -> None:
    client, rng = Client(address), random.Random(0)
    model = client.get("models", "/api/models")["models"][0]
    given = {**model["example"], "text": " ".join(WORDS)[:60], "options": {"tokens": 1}}
    outline = client.post("record", "/api/record", {"model": model["id"], "input": given, "edits": []})
    tensors = [
        one for one in outline["tensors"] if one["named"] and one["shape"] and one["kind"] not in ("weight", "input")
    ]
    for _ in range(count):
        tensor = rng.choice(tensors)
        cell = f"{tensor['name']}[{','.join(str(rng.randrange(n)) for n in tensor['shape'])}]"
        client.get("receipt", f"/api/trace/{outline['trace']}/receipt?cell={quote(cell)}")
    times = quantiles(client.times["receipt"])
    print(
        f"{count} receipts of a GPT of {model['depth']} blocks ({model['parameters']:,} parameters): median {times[0]:.0f} ms, "
        f"95 % {times[1]:.0f} ms, at most {times[3]:.0f} ms; recorded in {client.times['record'][0]:.1f} s; "
        f"errors: {len(client.errors)}"
    )
    for error in client.errors[:5]:
        print(f"  {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="*")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--receipts", type=int, default=50)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    given = parser.parse_args()
    with explored(*given.run) as (address, process):
        painted(address)
        pictures(address)
        many(address, process, given.clients, given.seconds)
    with (
        tempfile.TemporaryDirectory() as folder,
        explored(shaped(Path(folder), given.depth, given.width)) as (address, _),
    ):
        pictures(address)
        receipts(address, given.receipts)


if __name__ == "__main__":
    main()
