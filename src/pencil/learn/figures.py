"""The figures of document 002, drawn again: every number and shape in them comes from a trace."""

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import draw
from ..tracing.live_trace import LiveTrace
from .worked.examples import mha_demo, nanogpt_block, soft_lookup

INK, GREY, PAPER, SUM = "#222222", "#777777", "#f4f4f4", "#dce9f2"  # orange is for attention alone
KEYS = ("similar", "opposite", "at a right angle")
PLACES = ((0.12, -0.1, "left", "top"), (0.0, -0.12, "center", "top"), (0.0, 0.1, "center", "bottom"))  # of their labels


def geometric() -> Any:
    """Attention as a soft lookup: one query, three keys, and the weighted sum of their values."""
    trace = soft_lookup()
    q, keys, values = (np.asarray(trace[name].value)[0, 0] for name in ("want", "have", "give"))
    scores, weights, out = (np.asarray(trace[name].value)[0, 0, 0] for name in ("scores", "pattern", "z"))
    figure = draw.canvas(10.4, 4.6)
    figure.suptitle("Attention as a soft lookup", fontsize=13)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    _arrow(left, q[0], draw.GOOD, f"q {_pair(q[0])}", 2.6, (0.0, 0.1, "left", "bottom"))
    for i, (key, score, kind, place) in enumerate(zip(keys, scores, KEYS, PLACES, strict=True)):
        _arrow(left, key, INK, f"k{i + 1} {_pair(key)}, {kind}\nq·k{i + 1}/√2 = {_text(score)}", 1.4, place)
    left.set(xlim=(-2.6, 2.6), ylim=(-2.1, 2.1), aspect="equal", title="query and keys")
    left.axhline(0, color=GREY, linewidth=0.5)
    left.axvline(0, color=GREY, linewidth=0.5)
    right.set(xlim=(0, 10), ylim=(0, 10), title="weights and values")
    right.axis("off")
    top = float(weights.max())
    for i, (weight, value) in enumerate(zip(weights, values, strict=True)):
        x = 1.7 + 3.3 * i
        colour = draw.attention_colours()(weight / top)
        _box(right, x, 8.3, 2.7, 1.5, f"α{i + 1} = {weight:.2f}", colour, "white" if weight > 0.6 * top else INK)
        _box(right, x, 5.2, 2.7, 1.5, f"v{i + 1} {_pair(value)}", PAPER)
        _line(right, (x, 7.5), (x, 6.0))
        _line(right, (x, 4.4), (5, 2.4), 0.6 + 3 * weight)
        right.text(
            x + (5 - x) * 0.35,
            3.75,
            f"× {weight:.2f}",
            ha="center",
            va="center",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )
    _box(right, 5, 1.5, 5.4, 1.6, f"y = Σ α v = ({_text(out[0])}, {_text(out[1])})", PAPER)
    right.text(5, 9.6, f"softmax(q·k/√2): the weights add up to {weights.sum():.0f}", ha="center", fontsize=9)
    return figure


def _text(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _pair(values: np.ndarray) -> str:
    return f"({values[0]:g}, {values[1]:g})".replace("-", "−")


def _arrow(
    axes: Any, end: np.ndarray, colour: str, text: str, width: float, place: tuple[float, float, str, str]
) -> None:
    axes.annotate("", end, (0, 0), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": width, "shrinkA": 0})
    right, up, across, down = place
    axes.text(end[0] + right, end[1] + up, text, color=colour, fontsize=9, ha=across, va=down)


def _box(axes: Any, x: float, y: float, width: float, height: float, text: str, colour: Any, ink: str = INK) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = (x - width / 2, y - height / 2)
    axes.add_patch(FancyBboxPatch(shape, width, height, boxstyle="round,pad=0.05", facecolor=colour, edgecolor=INK))
    axes.text(x, y, draw.literal(text), ha="center", va="center", fontsize=9.5, color=ink)


def _line(axes: Any, start: tuple[float, float], end: tuple[float, float], width: float = 1.2) -> None:
    axes.annotate(
        "", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "lw": width, "shrinkA": 0, "shrinkB": 0}
    )


def block() -> Any:
    """A block as it is computed: its parts in their order, and what each residual addition adds."""
    trace = nanogpt_block()
    steps = _steps(trace)
    figure = draw.canvas(7.2, 1.3 + 0.95 * len(steps))
    axes = figure.add_subplot()
    axes.set(xlim=(0, 12), ylim=(-0.6, len(steps) - 0.3), title="A block, as it is computed")
    axes.axis("off")
    place = {name: len(steps) - 1 - i for i, (name, _, _) in enumerate(steps)}
    for name, text, added in steps:
        y = place[name]
        if added is None:
            _box(axes, 6.6, y, 8.6, 0.56, text, PAPER)
        else:
            _box(axes, 6.6, y, 8.6, 0.56, f"⊕  {text}", SUM)
            # the residual: what is added to the output of the part just above
            start, end = place[added] - 0.14, y + 0.14
            axes.plot([2.25, 1.2, 1.2], [start, start, end], color=draw.GOOD, linestyle="--", lw=1.5)
            axes.annotate(
                "", (2.25, end), (1.2, end), arrowprops={"arrowstyle": "-|>", "color": draw.GOOD, "shrinkA": 0}
            )
            axes.text(
                0.9,
                (start + end) / 2,
                f"residual {trace[added].node.symbol}",
                rotation=90,
                ha="center",
                va="center",
                fontsize=9,
                color=draw.GOOD,
            )
        if y:
            _line(axes, (6.6, y - 0.33), (6.6, y - 0.67))
    return figure


PARTS = {"attn_norm": "norm", "attn.out": "attention", "mlp_norm": "norm", "mlp.out": "MLP"}


def _steps(trace: LiveTrace) -> list[tuple[str, str, str | None]]:
    """(name, text, the earlier name that is added to it) for each step of the first block, as recorded.

    A step is a residual addition if its receipt adds an earlier step to the one before it.
    """
    first = "blocks.0."
    names = ["input", *(name for name in trace.names if name.removeprefix(first) in (*PARTS, "mid", "post"))]
    steps: list[tuple[str, str, str | None]] = []
    for i, name in enumerate(names):
        node = trace[name].node
        symbol = f"{node.symbol} = {node.formula}" if node.formula else node.symbol
        short, shape = name.removeprefix(first), " × ".join(map(str, node.shape[1:]))
        sources = {term.where.partition("[")[0] for term in trace[f"{name}[0,0,0]"].why().terms}
        added = next(
            (earlier for earlier in names[: max(i - 1, 0)] if earlier in sources and names[i - 1] in sources), None
        )
        what = _described(trace, short)
        steps.append((name, f"{what}: {symbol}   ({shape})" if what else f"{symbol}   ({shape})", added))
    return steps


def _described(trace: LiveTrace, short: str) -> str:
    if short not in PARTS:
        return {"input": "input"}.get(short, "")
    if short == "attn.out":
        heads, width = np.asarray(trace["blocks.0.attn.q"].shape)[[1, 3]]
        return f"attention, {heads} head{'s' * bool(heads > 1)} of {width}"
    if short == "mlp.out":
        wide, act = trace["blocks.0.mlp_norm"].shape[-1], trace["blocks.0.mlp.act"].node
        return f"MLP, {wide} → {act.shape[-1]} → {wide}, {act.symbol} = {act.formula}"
    return PARTS[short]


def attention_demo() -> Any:
    """One head over six words: scores, weights, and why scores are divided by √d_k."""
    trace = mha_demo()
    figure = draw.canvas(13.2, 4.4)
    scores, weights, curve = figure.subplots(1, 3, width_ratios=(1, 1, 1.1))
    _heat(figure, scores, trace, "one.scores", 0, "scores Q Kᵀ/√d_k")
    _heat(figure, weights, trace, "one.pattern", 0, "weights: softmax of each row")
    widths, plain, scaled = zip(*trace.facts["curve"], strict=True)
    curve.plot(widths, plain, "o-", color=draw.BAD, label="q·k")
    curve.plot(widths, scaled, "s-", color=draw.GOOD, label="q·k/√d_k")
    for width, unscaled, scaled_value in zip(widths, plain, scaled, strict=True):
        curve.annotate(
            f"{unscaled:.2f}", (width, unscaled), (0, 6), textcoords="offset points", ha="center", fontsize=8
        )
        curve.annotate(
            f"{scaled_value:.2f}", (width, scaled_value), (0, -12), textcoords="offset points", ha="center", fontsize=8
        )
    curve.axhline(1.0, color=GREY, linestyle="--", linewidth=1)
    curve.set(
        xscale="log", xlabel="head width d_k", ylabel="standard deviation", title="why scores are divided by √d_k"
    )
    curve.set_xticks(widths, [str(width) for width in widths])
    curve.minorticks_off()
    curve.set_ylim(-1.5, max(plain) * 1.12)
    curve.legend(fontsize=9)
    return figure


def multi_head_demo() -> Any:
    """The same words through four heads, on one scale."""
    trace = mha_demo()
    count = trace["many.pattern"].shape[1]
    figure = draw.canvas(3.3 * count + 0.8, 3.9)
    figure.suptitle(f"{count} heads over the same words", fontsize=12)
    panels = figure.subplots(1, count)
    top = float(np.asarray(trace["many.pattern"].value).max())
    shown = [_heat(None, panel, trace, "many.pattern", i, f"head {i}", top) for i, panel in enumerate(panels)]
    figure.colorbar(shown[-1], ax=list(panels), fraction=0.02)
    return figure


def _heat(figure: Any, axes: Any, trace: LiveTrace, name: str, head: int, title: str, top: float | None = None) -> Any:
    """One head of scores or weights with its numbers; attention is orange."""
    values, node = np.asarray(trace[name].value)[0, head], trace[name].node
    rows, columns = (draw.numbered(trace.words(letter, len(values))) for letter in ("T", "S"))
    top = float(np.abs(values).max()) if top is None else top
    colours, low = (draw.attention_colours(), 0.0) if node.portions else ("RdBu_r", -top)
    shown = axes.imshow(values, aspect="equal", cmap=colours, vmin=low, vmax=top)
    for (i, j), value in np.ndenumerate(values):
        dark = abs(value) > 0.6 * top
        axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(len(columns)), columns, fontsize=8)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set(xlabel="key", ylabel="query")
    axes.set_title(title, fontsize=10)
    if figure is not None:
        figure.colorbar(shown, ax=axes, fraction=0.046)
    return shown


FIGURES: dict[str, dict[str, Callable[[], Any]]] = {
    "002": {
        "1-soft-lookup": geometric,
        "2-block": block,
        "3-attention": attention_demo,
        "4-heads": multi_head_demo,
    },
}


def drawn(figure: Any, kind: str) -> bytes:
    """A figure as the bytes of an SVG or PNG file; the text of an SVG stays text."""
    from matplotlib import rc_context

    out = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none", "svg.hashsalt": "pencil"}):
        warnings.simplefilter("ignore")  # characters the font lacks
        figure.savefig(out, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()
