"""Exercises on the KV cache: one step with it, and how many bytes it takes."""

import torch
from torch import Tensor, nn

from ...core.cache import Cache
from ...core.probe import OFF, Off
from .exercise import Question, Table
from .making import Draws, Later, Numbers, Work, blanks, heads, maker, mistake, work
from .parts import FORGOT_SCALE, SCALE_HINT, Look, by_hand, softmax_cells, strips

Rows = list[list[float]]


class Step(nn.Module):
    """One more token after those a cache has kept; `keep` False forgets to write it first."""

    def __init__(self, scale: float | None = None, keep: bool = True):
        super().__init__()
        self.look, self.keep = Look(scale), keep

    def forward(
        self, kept_have: Tensor, kept_give: Tensor, want: Tensor, have: Tensor, give: Tensor, probe: Off = OFF
    ) -> Tensor:
        before, width = kept_have.shape[2:]
        layer = Cache(1, 1, 1, before + 1, width, dtype=want.dtype)[0]
        keys, values = layer.write(slice(0, before), kept_have, kept_give)
        if self.keep:
            keys, values = layer.write(slice(before, before + 1), have, give)
        return self.look(want, keys, values, probe=probe)


def _step(kept_have: Rows, kept_give: Rows, want: Rows, have: Rows, give: Rows) -> Question:
    given = [heads(rows) for rows in (kept_have, kept_give, want, have, give)]

    def step(scale: float | None = None, keep: bool = True) -> Work:
        return work(Step(scale, keep), *given)

    done, count, width = step(), len(kept_have) + 1, len(want[0])
    hand = by_hand(want, kept_have + have, kept_give + give)
    slots = [f"slot {i + 1}" for i in range(width)]
    old, forgot = step(keep=False), step(1.0)
    values, products = done["z"][0].tolist(), done["scores"].size
    ways = [[*way[0].tolist(), products] for way in hand.ways("z", 2)]
    found = blanks([*slots], values, 2, [way[:-1] for way in ways]) + blanks(["matches"], [products], 0)
    cells = [(f"score {j + 1}", f"scores[0,0,0,{j}]") for j in range(count)]
    sums = [(slot, f"z[0,0,0,{i}]") for i, slot in enumerate(slots)]
    before = strips(count - 1)
    return Question(
        "", None, "", (
            Table("HAVE in the cache", kept_have, None, before),
            Table("GIVE in the cache", kept_give, None, before),
            Table(f"s{count}, new", want + have + give, None, ["WANT", "HAVE", "GIVE"]),
        ),
        f"The cache holds the HAVE and GIVE of s1 … s{count - 1}. Now s{count} comes: keep its HAVE and GIVE, then "
        f"match (÷√{width}), softmax, weighted sum. Its new numbers? And how many matches (WANT with HAVE) does this "
        f"step work out?",
        found,
        (
            mistake("new one not kept first", f"s{count} sees itself too: its HAVE and GIVE go into the cache first.",
                    old.run("z"), old.run("scores").size),
            mistake(FORGOT_SCALE, SCALE_HINT, forgot.run("z"), products),
            mistake("all worked out again", "The others' rows are not needed again: only the new WANT looks.",
                    values, products**2),
        ),
        Later(lambda: [*hand.lines(*cells, *softmax_cells(0, count), *sums), f"matches = {products}"]),
    )  # fmt: skip


def _bytes(layers: int, kv_heads: int, context: int, head_width: int, number: int = 2) -> int:
    """What a cache takes: asked of a real one, on a device that holds no numbers."""
    dtype = {2: torch.bfloat16, 4: torch.float32}[number]
    return Cache(layers, 1, kv_heads, context, head_width, device="meta", dtype=dtype).store.nbytes


def _cache_bytes(layers: int, query_heads: int, kv_heads: int, head_width: int, context: int, number: int) -> Question:
    one, all_of_them = (_bytes(layers, kv_heads, length, head_width, number) for length in (1, context))
    every, every_one = (_bytes(layers, query_heads, length, head_width, number) for length in (context, 1))
    single, single_one = (_bytes(1, kv_heads, length, head_width, number) for length in (context, 1))

    def sizes(total: float) -> list[float]:
        return [total / 1e9, total / 2**30]

    kept = [("layers", layers), ("query heads", query_heads), ("key-value heads", kv_heads)]
    kept += [("head width", head_width), ("tokens", context), ("bytes a number", number)]
    return Question(
        "", None, "", (Table("model", [[float(size)] for _, size in kept], None, [name for name, _ in kept]),),
        "How large is the KV cache of one sequence? Bytes for one token in all layers; then for all tokens in GB (10⁹ "
        "bytes) and in GiB (2³⁰ bytes).",
        blanks(["bytes a token"], [one], 0) + blanks(["GB", "GiB"], sizes(all_of_them), 2),
        (
            mistake("keys only", "Both a key and a value are kept: times 2.", one / 2, sizes(all_of_them / 2)),
            mistake("query heads counted", "Only the key-value heads are kept, however many query heads share them.",
                    every_one, sizes(every)),
            mistake("one layer", "Every layer keeps its own keys and values.", single_one, sizes(single)),
            mistake("GB and GiB mixed up", "A GiB is the larger one, 2³⁰ bytes, so there are fewer of them.",
                    one, sizes(all_of_them)[::-1]),
        ),
        Later(lambda: [
            f"2 · {layers} layers · {kv_heads} heads · {head_width} · {number} bytes = {one:,} bytes a token",
            f"{one:,} · {context:,} tokens = {all_of_them:,} bytes",
            f"÷ 10⁹ = {all_of_them / 1e9:.3f} GB, ÷ 2³⁰ = {all_of_them / 2**30:.3f} GiB",
        ]),
    )  # fmt: skip


def _draw_step(d: Draws) -> Numbers:
    count = d.pick([2, 3])
    tables = {"kept_have": d.table(count, 4, 0, 2), "kept_give": d.table(count, 4, 0, 5)}
    return tables | {name: d.table(1, 4, 0, 3) for name in ("want", "have", "give")}


def _draw_bytes(d: Draws) -> Numbers:
    query = d.pick([16, 32, 64])
    return {
        "layers": d.pick([24, 32, 48, 80]),
        "query_heads": query,
        "kv_heads": query // d.pick([2, 4, 8]),
        "head_width": d.pick([64, 128]),
        "context": d.pick([4096, 8192, 32768, 131072]),
        "number": d.pick([2, 4]),
    }


_STEP = {
    "kept_have": [[1.0, 0, 0, 0], [3.0, 0, 2, 0]], "kept_give": [[2.0, 0, 0, 1], [0.0, 3, 1, 0]],
    "want": [[1.0, 1, 0, 0]], "have": [[2.0, 0, 0, 1]], "give": [[4.0, 0, 2, 0]],
}  # fmt: skip
_LLAMA = {"layers": 80, "query_heads": 64, "kv_heads": 8, "head_width": 128, "context": 4096, "number": 2}

MAKES = {
    "kv-cache": maker("kv-cache", _STEP, _draw_step, _step),
    "cache-bytes": maker("cache-bytes", _LLAMA, _draw_bytes, _cache_bytes),
}
