"""The pictures of docs/guides/explore.md, made again: each view of `pencil explore` in Chromium, on real runs.

    python benchmarks/screenshots.py [RUNS] [--out docs/explore] [--only answer,why]

RUNS is a folder of runs under the names that `pencil train FAMILY` gives them with its own data. Without it: the views of
the captioner that comes with Pencil. A picture has at most 256 colours, so that the repository stays small.
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

DOCS = Path(__file__).parents[1] / "docs" / "explore"
MOST = 150_000  # bytes of one picture
BUSY = "[aria-busy=true], [role=progressbar], .working"


def nothing(page: Any) -> None:
    """The address alone shows what is wanted."""


@dataclass
class Shot:
    """One picture: the run (none: the example), the address, what is done there, and the size of the window."""

    name: str
    run: str = ""
    address: str = ""
    act: Callable[[Any], None] = nothing
    height: int = 860
    width: int = 1280
    dark: bool = False


def settled(page: Any, wait: int = 700) -> None:
    """Wait until nothing is computed any more, also not what follows from it, and all of it is drawn."""
    for _ in range(3):
        page.wait_for_timeout(wait)
        while page.locator(BUSY).count():  # the page's rules forbid wait_for_function, which evaluates a string
            page.wait_for_timeout(200)


def point(page: Any) -> None:
    """Point at the second word, and the patches it attended to light up; then open the weight of the brightest."""
    page.locator(".result button").nth(1).hover()
    settled(page)
    page.get_by_role("grid", name="Patches of the picture").get_by_role("gridcell").nth(9).click()
    settled(page)
    page.mouse.move(5, 5)
    page.evaluate("scrollTo(0, 0)")
    settled(page)


def down_to_a_pixel(page: Any) -> None:
    """The second token; then the largest part of each kind on the way: a head, a patch, its embedding, a pixel."""
    page.locator(".choice").nth(1).click()
    settled(page)
    for kind in ("head", "patch", "embedding", "pixel"):
        found = page.locator(f"[data-kind={kind}]:not([aria-expanded=true])")
        page.wait_for_timeout(500)
        if found.count():
            found.first.click()
            settled(page)
    page.evaluate("scrollTo(0, 0)")


def forget_to_scale(page: Any) -> None:
    """Forget to scale: the mistake has a name."""
    for box, answer in zip(page.locator(".blanks input").all(), ("0.018", "0.982"), strict=True):
        box.fill(answer)
    page.get_by_role("button", name="Check").click()
    settled(page)


def another_picture(page: Any) -> None:
    """Compare the picture on screen with the last example."""
    page.get_by_label("Compared with").locator("button:has(img)").nth(5).click()
    page.get_by_text("Input: its own").click()
    settled(page, 2500)
    page.mouse.move(5, 5)


def light_a_patch(page: Any) -> None:
    page.get_by_role("grid", name="Patches of the picture").get_by_role("gridcell").nth(5).hover()
    settled(page)


def forget_the_root(page: Any) -> None:
    """The third step of the tour, answered with what one has before dividing."""
    page.get_by_role("button", name="A query meets a key").click()
    settled(page)
    asked = page.get_by_label("Question").locator(".figure").first.inner_text()
    page.get_by_label("Question").get_by_role("textbox").fill(asked)
    page.get_by_role("button", name="Check").click()
    settled(page)


def down_to_the_answer(page: Any) -> None:
    page.get_by_role("heading", name="Answer").scroll_into_view_if_needed()
    page.mouse.wheel(0, 600)
    settled(page)


def switch_a_head_off(page: Any) -> None:
    page.get_by_role("button", name="head 3 of block 3").click()
    settled(page, 2500)
    page.mouse.move(5, 5)


def first_thumb(page: Any) -> None:
    page.locator("button.thumb").nth(10).click()
    settled(page, 1500)


def ten_steps(page: Any) -> None:
    """Ten steps towards another description, and the receipt of a gradient."""
    page.get_by_label("The right description").fill("a seven above a three")
    page.get_by_label("The right description").press("Enter")
    settled(page, 1500)
    page.get_by_role("button", name="Ten steps").click()
    settled(page, 2500)
    page.locator("a[data-cell^='grad:']").first.click()
    settled(page)
    page.mouse.move(5, 5)
    page.evaluate("scrollTo(0, 0)")


SHOTS = [
    Shot("answer", address="view=look&token=1&attention=head:2:2", act=point, height=1060),
    Shot("why", address="view=look&open=why", act=down_to_a_pixel, height=1060),
    Shot("heads", address="view=heads", height=720),
    Shot("head", address="view=heads", act=first_thumb, height=900),
    Shot("numbers", address="view=numbers&cell=blocks.1.attn.scores[0,1,19,6]", height=1000),
    Shot("change", address="view=change", act=switch_a_head_off, height=1150),
    Shot("learn", address="view=learn", act=ten_steps, height=1300),
    Shot("compare", address="view=compare", act=another_picture, height=1150),
    Shot("tour", address="view=tour", act=forget_the_root, height=1000),
    Shot("katas", address="view=katas&kata=softmax", act=forget_to_scale, height=800),
    Shot("share", address="view=share", height=760),
    Shot("phone", address="view=look&token=1", act=down_to_the_answer, height=844, width=390, dark=True),
    Shot("gpt", "pydoc-gpt", "view=look&text=def%20open&o.temperature=0.8&o.top_k=8", height=1240),
    Shot("vit", "digits-vit", "view=look", height=900),
    Shot("dit", "digits-dit", "view=look&label=3", act=light_a_patch, height=1120),
    Shot("seq2seq", "dates-seq2seq", "view=look&source=the%203rd%20of%20May,%201999&token=8", height=860),
    Shot("reader", "pydoc-reader", "view=look&text=the%20na[mask]e%20of%20the%20file", height=900),
]


@contextmanager
def explored(*words: str):
    """A server of its own, with a reader's first progress; its address."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pencil", "explore", *words, "--no-browser"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PENCIL_DATA": folder}
        )
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            if not address:
                raise SystemExit("the server did not start")
            yield address
        finally:
            process.terminate()
            process.wait(60)


def reduced(picture: bytes) -> bytes:
    """The picture in as many colours as fit."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    for colours in (256, 128, 64, 32):
        kept = io.BytesIO()
        image.quantize(colours, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE).save(
            kept, "PNG", optimize=True
        )
        if len(kept.getvalue()) <= MOST:
            break
    return kept.getvalue()


def take(browser: Any, server: str, shot: Shot, folder: Path) -> None:
    page = browser.new_page(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme="dark" if shot.dark else "light",
        reduced_motion="reduce",
    )
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{server}&{shot.address}" if shot.address else server)
    page.locator("h1").wait_for()
    settled(page, 1500)
    shot.act(page)
    picture = reduced(page.screenshot())
    (folder / f"{shot.name}.png").write_bytes(picture)
    print(f"{shot.name}.png  {len(picture) / 1000:.0f} KB{''.join(f'  {problem}' for problem in problems)}", flush=True)
    page.close()


def main(runs: Path | None, folder: Path, only: list[str]) -> None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise SystemExit("the pictures need Playwright: pip install playwright") from None
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [shot for shot in SHOTS if not only or shot.name in only]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for run in dict.fromkeys(shot.run for shot in wanted):
            path = [] if not run else [str((runs or Path()) / run)]
            if run and not (runs and (runs / run).exists()):
                print(f"no {run}: train it first; its picture stays as it is")
                continue
            with explored(*path) as server:
                for shot in wanted:
                    if shot.run == run:
                        take(browser, server, shot, folder)
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=DOCS)
    parser.add_argument("--only", default="", help="names of pictures, with commas between them")
    given = parser.parse_args()
    main(given.runs, given.out, [name for name in given.only.split(",") if name])
