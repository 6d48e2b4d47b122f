"""The recording of README: draw, read the words, point, ask why, open the arithmetic; in Chromium, on the example.

    python benchmarks/recording.py [--out docs/explore/recording.webp] [--frames FOLDER]

Every picture is taken when the page has settled, and shown as long as a hand would take, so that a slow machine records
the same as a fast one. The cursor is drawn into the pictures. Needs Playwright, a Chromium and Pillow.
"""

import argparse
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

OUT = Path(__file__).parents[1] / "docs" / "explore" / "recording.webp"
WINDOW, SHOWN = (1360, 850), (1020, 638)  # of the browser, and of the recording
MOST = 3_000_000  # bytes
SECONDS = (12.0, 18.0)  # how long it may be
BUSY = "[aria-busy=true], [role=progressbar], .working"
FRAME, STROKE = 90, 70  # milliseconds of a moment of moving, and of drawing
QUIET = [f"--disable-{one}" for one in ("gpu", "quic", "background-networking")] + ["--no-sandbox", "--no-first-run"]
ARROW = ((0, 0), (0, 17), (4, 13), (7, 19), (10, 18), (7, 12), (12, 12))
# strokes of a seven and a one, in pixels of the model's picture
SEVEN = ((2.5, 4.5), (6.5, 4.5), (6.2, 6.0), (4.8, 8.5), (3.8, 11.0))
ONE = ((11.0, 5.5), (12.2, 4.3), (12.2, 8.0), (12.2, 11.0))
Point = tuple[float, float]


@dataclass
class Recording:
    """The pictures taken so far and how long each is shown; `where` is the cursor."""

    page: Any
    where: Point = (640.0, 380.0)
    frames: list[Image.Image] = field(default_factory=list)
    milliseconds: list[int] = field(default_factory=list)

    def take(self, milliseconds: int) -> None:
        """One picture, with the cursor."""
        image = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        points = [(self.where[0] + 1.4 * x, self.where[1] + 1.4 * y) for x, y in ARROW]
        ImageDraw.Draw(image).polygon(points, fill="black", outline="white", width=2)
        self.frames.append(image.resize(SHOWN, Image.Resampling.LANCZOS))
        self.milliseconds.append(milliseconds)

    def settle(self, wait: int = 350) -> None:
        """Wait until nothing is computed or moves."""
        for _ in range(2):
            self.page.wait_for_timeout(wait)
            while self.page.locator(BUSY).count():
                self.page.wait_for_timeout(100)

    def move(self, to: Point, moments: int = 4) -> None:
        """The hand goes somewhere, in a few moments."""
        x, y = self.where
        for i in range(1, moments + 1):
            part = i / moments
            self.where = (x + (to[0] - x) * part, y + (to[1] - y) * part)
            self.page.mouse.move(*self.where)
            if i < moments:
                self.take(FRAME)

    def centre(self, locator: Any) -> Point:
        locator.scroll_into_view_if_needed()
        box = locator.bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def point(self, locator: Any, hold: int) -> None:
        self.move(self.centre(locator))
        self.settle()
        self.take(hold)

    def click(self, locator: Any, hold: int) -> None:
        self.move(self.centre(locator))
        self.take(FRAME)
        self.page.mouse.down()
        self.page.mouse.up()
        self.settle()
        self.take(hold)

    def draw(self, stroke: Sequence[Point]) -> None:
        """One stroke of the pen; the answer follows it."""
        box = self.page.locator(".sheet canvas").first.bounding_box()
        at = [(box["x"] + box["width"] * x / 16, box["y"] + box["height"] * y / 16) for x, y in stroke]
        self.move(at[0], 3)
        self.page.mouse.down()
        for to in at[1:]:
            self.move(to, 2)
            self.take(STROKE)
        self.page.mouse.up()
        self.settle()

    def write(self, path: Path) -> None:
        """An animated WebP within the limits; what is the same in the next picture is stored once."""
        seconds = sum(self.milliseconds) / 1000
        for quality in (80, 70, 60, 45, 30):
            out = io.BytesIO()
            self.frames[0].save(
                out, "WEBP", save_all=True, append_images=self.frames[1:], duration=self.milliseconds, loop=0,
                quality=quality, method=4, minimize_size=True, allow_mixed=True,
            )  # fmt: skip
            if out.tell() <= MOST:
                path.write_bytes(out.getvalue())
                print(f"{path}: {out.tell() / 1e6:.2f} MB, {len(self.frames)} pictures, {seconds:.1f} s")
                break
        else:
            raise SystemExit(f"the recording is larger than {MOST / 1e6:g} MB")
        if not SECONDS[0] <= seconds <= SECONDS[1]:
            raise SystemExit(f"the recording lasts {seconds:.1f} s, and {SECONDS[0]:g} to {SECONDS[1]:g} are wanted")


def record(page: Any) -> Recording:
    """Draw → words → point → why → arithmetic."""
    made = Recording(page)
    made.settle(800)
    made.take(700)
    made.click(page.get_by_role("button", name="clear"), 250)
    made.draw(SEVEN)
    made.take(250)
    made.draw(ONE)
    made.settle(600)
    made.take(1100)
    words = page.locator(".tokens button")
    made.click(words.nth(1), 1100)
    made.point(page.locator(".labels .label").nth(10), 700)
    made.move((made.where[0] + 560, made.where[1]), 3)
    made.settle()
    made.take(900)
    made.click(page.locator("button.why").first, 500)
    page.mouse.wheel(0, 330)
    made.settle()
    made.take(1200)
    made.click(page.get_by_role("button", name="Receipt of block").first, 1400)
    weights = [float(one.replace("−", "-")) for one in page.locator("#receipt .chip").all_inner_texts()]
    made.click(page.locator("#receipt .chip").nth(weights.index(max(weights))), 2200)
    return made


@contextmanager
def explored():
    """A server of its own; its address."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "pencil", "explore", "example:scenes", "--no-browser"]
        server = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PENCIL_DATA": folder},
        )
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--frames", type=Path, help="a folder for the single pictures, too")
    parser.add_argument("--chromium", help="the browser's path; Playwright's own without it")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with explored() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(args=QUIET, executable_path=options.chromium)
        page = browser.new_page(viewport={"width": WINDOW[0], "height": WINDOW[1]}, color_scheme="light")
        # someone who knows the page: the words of the first minute are gone
        page.add_init_script("localStorage.setItem('pencil.coached', 'draw point why open')")
        page.goto(address)
        page.wait_for_selector(".tokens button")
        made = record(page)
        browser.close()
    if options.frames:
        options.frames.mkdir(parents=True, exist_ok=True)
        for i, frame in enumerate(made.frames):
            frame.save(options.frames / f"{i:03}.png")
    made.write(options.out)


if __name__ == "__main__":
    main()
