"""The page of a trace: one file that opens from disk, needs no network, and unfolds any cell into its receipt.

The data it carries is plain: the graph as `file.pack` gives it, with the functions its plans are written in and where
each array begins, then the arrays as little-endian bytes; and, as JSON, whatever was prepared of the other views. Both
are packed by gzip. The script is the application of `pencil explore`, built from web/.
"""

import base64
import hashlib
import json
import struct
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ..config import UserError
from ..console import visible
from ..files import write_aside
from .file import pack
from .graph import LEAST, ROUNDING, TINY, Array
from .module_graph import module_graph
from .plan_functions import FUNCTIONS
from .receipt import DEPTH, ORIGINS, SHOWN, WIDE, format_number
from .trace_base import COUNTING, TraceBase, ViewBase

HEAVY = 10_000_000  # bytes above which a page is no longer something to mail
ABOUT = "Every number here was computed by the numbers before it. Choose one and its arithmetic unfolds."
Progress = Callable[[float], object]
PACKED = 0.2  # the share of the time before gzip begins
LEVEL, GZIP_HEADER = 9, b"\x1f\x8b\x08\0\0\0\0\0\x02\xff"  # the same bytes whenever it is packed
MOST = 24  # rows and columns of a table without scripts
BLUE, RED = "38,103,178", "196,58,40"


def page(
    trace: TraceBase,
    title: str,
    about: str = ABOUT,
    start: str = "",
    progress: Progress = lambda share: None,
    views: Mapping[str, Any] | None = None,
    pieces: dict[bytes, bytes] | None = None,
) -> str:
    """A trace as one self-contained HTML page; `start` is the cell it opens on, such as "attn.scores[0,0,0,2]".

    `progress` is called with the share done. `views` is what other views show (see web/src/lib/file.ts). `pieces` keeps
    the packed arrays, so that none is packed twice when a page is made again with fewer of them.
    """
    graph, chunks = _laid_out(trace)
    progress(PACKED)
    packed = _packed(chunks, {} if pieces is None else pieces, lambda share: progress(PACKED + (1 - PACKED) * share))
    graph |= {"title": title, "about": [about, COUNTING], "start": start}
    script, style = _asset("app.js"), _asset("app.css")
    # nothing may be loaded, sent or embedded: only this script and this style run; pictures are within
    own = f"script-src 'sha256-{_digest(script)}'; style-src 'sha256-{_digest(style)}'"
    policy = f"default-src 'none'; {own}; img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(visible(title))}</title>
<style>{style}</style>
</head>
<body>
<div id="app"><p class="wait">Unfolding…</p><noscript>Scripts are off, and this page needs its own.</noscript></div>
<script type="application/json" id="graph">{_inert(graph)}</script>
<script type="text/plain" id="arrays">{packed}</script>
<script type="text/plain" id="views">{_packed([visible(_json(views or {})).encode()], {})}</script>
<script>{script}</script>
</body>
</html>
"""


def explorer(
    trace: TraceBase,
    title: str,
    about: str = ABOUT,
    start: str = "",
    progress: Progress = lambda share: None,
) -> str:
    """The page of a trace with all views, where its model can be asked; else with its numbers, and the reason."""
    reason = trace.alone
    if trace.shared is not None:
        try:
            return trace.shared(getattr(trace, "edits", ()), title, start, progress)
        except UserError as error:
            reason = str(error)
    drawn = {"stacks": [], "columns": [], "graph": module_graph(trace.graph)}
    views = {"left_out": [f"Answer, Why and Heads: {reason}."], "picture": drawn}
    return page(trace, title or "trace", about, start, progress, views)


def write(
    trace: TraceBase,
    path: str | Path,
    title: str = "",
    about: str = ABOUT,
    start: str = "",
    warn: Callable[[str], object] = warnings.warn,
    progress: Progress = lambda share: None,
) -> int:
    """Write a trace's page, and return its size in bytes; `warn` is called for one too large to mail."""
    path = Path(path)
    content = explorer(trace, title or path.stem, about or ABOUT, start, progress).encode()
    write_aside(path, content)
    if len(content) > HEAVY:
        size = f"{len(content) / 1e6:.0f} MB"
        warn(f"{path} is {size}: above {HEAVY // 1_000_000} MB a page is slow to open and hard to mail")
    return len(content)


def frame(trace: TraceBase, title: str = "", about: str = ABOUT, start: str = "", height: int = 720) -> str:
    """The page inside a frame, for a notebook."""
    inside = escape(explorer(trace, title, about, start))
    named = escape(title or "trace")
    about_it = f'sandbox="allow-scripts" title="{named}" style="width:100%;height:{height}px;border:0"'
    return f'<iframe srcdoc="{inside}" {about_it}></iframe>'


def data(trace: TraceBase) -> tuple[dict[str, Any], bytes]:
    """What the scripts work on: the graph, and the bytes of its arrays."""
    graph, chunks = _laid_out(trace)
    return graph, b"".join(chunks)


def _laid_out(trace: TraceBase) -> tuple[dict[str, Any], list[bytes]]:
    """The graph, and the bytes of each array, one after another."""
    graph, arrays = pack(trace)
    chunks, placed, at = [], {}, 0
    for key, array in arrays.items():
        kind, raw = _bytes(array)
        placed[key] = [kind, at, array.size * (2 if np.iscomplexobj(array) else 1)]
        raw += b"\0" * (-len(raw) % 8)  # so that every array is aligned
        chunks.append(raw)
        at += len(raw)
    for n in graph["nodes"]:
        n["plan"] = _whole_marked(n["plan"])
    words = ("text", "binds", "reduces", "smooth")
    forms = {name: {word: getattr(f, word) for word in words} for name, f in FUNCTIONS.items()}
    from ..core.probe import LEGEND  # here, because it loads torch

    rules = {
        "shown": SHOWN,
        "depth": DEPTH,
        "wide": WIDE,
        "origins": ORIGINS,
        "rounding": ROUNDING,
        "least": LEAST,
        "tiny": TINY,
    }
    return {**graph, "functions": forms, "rules": rules, "legend": LEGEND, "arrays": placed}, chunks


def _bytes(array: Array) -> tuple[str, bytes]:
    """An array as the page reads it: its dtype, and its bytes."""
    array = np.ascontiguousarray(array)
    if np.iscomplexobj(array):
        array = np.stack((np.real(array), np.imag(array)), -1)
    if array.dtype == bool:
        array = array.astype(np.uint8)
    elif array.dtype.kind in "iu":
        small = not array.size or (array.min() >= -(2**31) and array.max() < 2**31)
        array = array.astype(np.int32 if small else np.float64)
    elif array.dtype == np.float16:
        array = array.astype(np.float32)
    kind = {"u1": "u8", "i4": "i32", "f4": "f32", "f8": "f64"}[array.dtype.str[1:]]
    return kind, array.astype(array.dtype.newbyteorder("<")).tobytes()


def _packed(chunks: Sequence[bytes], pieces: dict[bytes, bytes], progress: Progress = lambda share: None) -> str:
    """Bytes packed by gzip, as base64: one stream, of which each chunk is a part that does not look back.

    So a chunk that is in `pieces` already, by its hash, is not packed again.
    """
    total, done, checksum, parts = sum(map(len, chunks)), 0, 0, [GZIP_HEADER]
    for chunk in chunks:
        key = hashlib.sha256(chunk).digest()
        if key not in pieces:
            packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
            pieces[key] = packer.compress(chunk) + packer.flush(zlib.Z_FULL_FLUSH)
        parts.append(pieces[key])
        checksum, done = zlib.crc32(chunk, checksum), done + len(chunk)
        progress(done / max(total, 1))
    end = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS).flush()
    return base64.b64encode(b"".join((*parts, end, struct.pack("<II", checksum, total & 0xFFFFFFFF)))).decode()


def _whole_marked(plan: Any) -> Any:
    """A plan with whole floats marked: JSON in a browser does not distinguish 2.0 from 2."""
    if isinstance(plan, float) and plan.is_integer():
        return ["num", str(plan)]
    if not isinstance(plan, list | tuple) or plan[0] in ("ref", "list", "cat", "table", "axis", "num"):
        return plan
    return [plan[0], *(_whole_marked(part) for part in plan[1:])]


def _inert(value: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element: nothing in it can end one, and all of it can be written as UTF-8."""
    return visible(_json(value)).replace("<", "\\u003c")


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _asset(name: str) -> str:
    return files("pencil").joinpath("page", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# ---- without scripts, for a notebook's cell


def table(view: ViewBase) -> str:
    """A part of a trace as an HTML table, without script or style sheet; of a large one its first corner."""
    node = view.node
    # the first of everything but the last two axes
    places = view.flat[(slice(None, 1),) * max(0, view.flat.ndim - 2)]
    places = places.reshape(-1, *view.shape[-1:]) if places.size else places.reshape(0, 0)
    places = places if view.shape else places.reshape(1, 1)
    value = view.trace.graph.cells(view.id, places.reshape(-1)).reshape(places.shape)
    sizes = np.abs(value) if np.iscomplexobj(value) else value
    finite = np.abs(sizes[np.isfinite(sizes)])
    top = 1.0 if node.kind == "softmax" or not finite.any() else float(finite.max())
    cells, corner = sizes[:MOST, :MOST], places[:MOST, :MOST]
    rows, columns = _along(view, corner[:, :1].reshape(-1)), _along(view, corner[:1].reshape(-1))
    about = [escape(node.formula)] if node.formula else []
    about += ["×".join(map(str, view.shape)) or "a single number"]
    if len(view.shape) > 2:
        about += [f"shown: [{'0, ' * (len(view.shape) - 2)}:, :]"]
    if cells.shape != value.shape:
        about += [f"the first {cells.shape[0]} rows and {cells.shape[1]} columns"]
    name = f"<i>{escape(node.symbol)}</i> " if node.symbol else ""
    caption = f"{name}<code>{escape(node.name)}</code> &ensp;{' · '.join(about)}"
    lines = (
        f"<tr>{_head(row)}{''.join(_cell(float(v), top) for v in line)}</tr>"
        for row, line in zip(rows, cells, strict=True)
    )
    return (
        f'<table style="{TABLE}"><caption style="text-align:left;padding-bottom:.4em">{caption}</caption>'
        f"<thead><tr>{_head('')}{''.join(map(_head, columns))}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def _along(view: ViewBase, places: Array) -> list[str]:
    """The headings of a line of cells: the label, or the index, along the one axis that changes."""
    node = view.node
    index = np.unravel_index(places, node.shape) if node.shape and len(places) else ()
    changing = [d for d, i in enumerate(index) if (i != i[0]).any()]
    if len(changing) != 1:
        return [""] * len(places)
    words = view.trace.axis_words(node, changing[0])
    return [words[i] for i in index[changing[0]]]


TABLE = "color:inherit;border-collapse:collapse;font-size:.85em;font-variant-numeric:tabular-nums"
EDGE = "text-align:right;padding:.2em .5em;border:1px solid rgba(128,128,128,.3)"
HATCHED = "background:repeating-linear-gradient(135deg,rgba(128,128,128,.4) 0 1px,transparent 1px 5px)"


def _head(word: str) -> str:
    style = "text-align:right;font-weight:normal;opacity:.65;padding:.2em .5em;background:none"
    return f'<th style="{style}">{escape(word)}</th>'


def _cell(value: float, top: float) -> str:
    """One value, its colour thin enough to be read on any background."""
    if not np.isfinite(value):
        colour = HATCHED
    else:
        colour = f"background:rgba({BLUE if value < 0 else RED},{min(1, abs(value) / top) * 0.6:.3f})"
    return f'<td style="{EDGE};{colour}">{format_number(value, 3)}</td>'
