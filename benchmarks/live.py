"""The time of a live answer in `pencil explore`: a letter typed, a stroke drawn, a class chosen.

    python benchmarks/live.py [FAMILY:PRESET …] [--answers 40] [--steps 1]

Each preset is trained for a step on data that come with Pencil, opened by a server of its own, and asked as the page asks
it. Printed are the milliseconds until the first token (or frame) of an answer is there, and until all of it is: the median
and the 95 % quantile. Presets of more than ten million parameters are named and left out.
"""

import argparse
import base64
import http.client
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from explore import WORDS, Client, explored, quantiles

PRESETS = (
    "gpt:nano", "gpt:nanogpt", "vit:nano", "vit:small", "captioner:nano", "captioner:small", "reader:nano",
    "reader:small", "seq2seq:nano", "seq2seq:small", "dit:nano",
)  # fmt: skip
WARM = 3  # answers before any is measured


def trained(family: str, preset: str, folder: Path, steps: int) -> str:
    """A run of a preset; families of text get a text of a few thousand words."""
    words = [
        "--preset",
        preset,
        f"--train.steps={steps}",
        "--train.warmup=0",
        "--train.batch=2",
        "--out",
        str(folder / "run"),
    ]
    if family in ("gpt", "reader"):
        rng = random.Random(0)
        (folder / "notes.txt").write_text("\n".join(" ".join(rng.choices(WORDS, k=9)) for _ in range(900)))
        words += ["--data", str(folder / "notes.txt")]
    command = [sys.executable, "-m", "pencil", "train", family, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return str(folder / "run")


def changed(model: dict, turn: int, rng: random.Random) -> dict:
    """The input after one more letter, one more stroke, or another class."""
    given, takes = dict(model["example"]), model["input"]
    for name in ("text", "source"):
        if given.get(name):
            given[name] = (given[name] + " ".join(WORDS))[: min(takes[name]["longest"] - 16, 12 + turn % 24)]
            if "[mask]" in model["example"][name]:
                given[name] += "[mask]"
    if "picture" in given:
        from PIL import Image, ImageDraw

        size = takes["picture"]["width"], takes["picture"]["height"]
        image = Image.new("L" if takes["picture"]["channels"] == 1 else "RGB", size)
        points = [(rng.randrange(size[0]), rng.randrange(size[1])) for _ in range(2 + turn % 5)]
        ImageDraw.Draw(image).line(points, "white", 2)
        out = io.BytesIO()
        image.save(out, "PNG")
        given["picture"] = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    if "label" in given:
        given["label"] = takes["label"]["classes"][turn % len(takes["label"]["classes"])]
    return given


def asked(client: Client, model: dict, given: dict) -> tuple[float, float]:
    """Seconds until the first token or frame of the answer, and until its end."""
    began, first = time.perf_counter(), 0.0
    connection = http.client.HTTPConnection(client.address.hostname or "", client.address.port, timeout=600)
    headers = {"X-Pencil-Token": client.token, "Accept": "text/event-stream"}
    connection.request("POST", "/api/answer", json.dumps({"model": model["id"], "input": given, "edits": []}), headers)
    for line in connection.getresponse():
        if line.startswith(b"event: error"):
            raise SystemExit("the answer failed")
        if not first and line.startswith((b"event: token", b"event: frame", b"event: answer")):
            first = time.perf_counter() - began
    connection.close()
    return first, time.perf_counter() - began


def measure(address: str, name: str, answers: int) -> None:
    client, rng = Client(address), random.Random(1)
    model = client.get("models", "/api/models")["models"][0]
    size = f"{name:18}{model['parameters']:>12,}"
    if not model["live"]:
        print(f"{size}  left out: more than ten million parameters")
        return
    times = [asked(client, model, changed(model, turn, rng)) for turn in range(answers + WARM)][WARM:]
    first, whole = (quantiles([pair[i] for pair in times]) for i in (0, 1))
    print(f"{size}{first[0]:12.0f}{first[1]:8.0f}{whole[0]:12.0f}{whole[1]:8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=PRESETS)
    parser.add_argument("--answers", type=int, default=40)
    parser.add_argument("--steps", type=int, default=1)
    given = parser.parse_args()
    print(f"{'preset':18}{'parameters':>12}{'first, ms':>12}{'95 %':>8}{'whole, ms':>12}{'95 %':>8}")
    for name in given.presets:
        with tempfile.TemporaryDirectory() as folder:
            run = trained(*name.split(":"), Path(folder), given.steps)
            with explored(run) as (address, _):
                measure(address, name, given.answers)


if __name__ == "__main__":
    main()
