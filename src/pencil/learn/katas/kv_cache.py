"""Exercises on the KV cache: one step with it, and how many bytes it takes."""

import torch
from torch import Tensor

from ...core.attention import attend
from ...core.cache import Cache
from ...core.probe import OFF, Probe
from .attention_by_hand import FORGOT_SCALE, SCALE_HINT, by_hand, informative_row, softmax_cells, strips
from .builder import Draws, Maker, Numbers, Work, blanks, heads, mistake, work
from .exercise import Question, Table

Rows = list[list[float]]


def step(given: list[Tensor], scale: float | None = None, keep: bool = True) -> Work:
    """One more token after those in a cache; with `keep` False it is not written into the cache first."""

    def decode(
        kept_have: Tensor, kept_give: Tensor, want: Tensor, have: Tensor, give: Tensor, probe: Probe = OFF
    ) -> Tensor:
        before, width = kept_have.shape[2:]
        cache = Cache(1, 1, 1, before + 1, width, dtype=want.dtype)
        keys, values = cache[0].write(cache.place(cache.next(before)), kept_have, kept_give)
        if keep:
            keys, values = cache[0].write(cache.place(cache.next(1)), have, give)
        return probe("z", attend(want, keys, values, scale=scale, probe=probe))

    return work(decode, *given)


def _step(kept_have: Rows, kept_give: Rows, want: Rows, have: Rows, give: Rows) -> Question:
    given = [heads(rows) for rows in (kept_have, kept_give, want, have, give)]
    done, count, width = step(given), len(kept_have) + 1, len(want[0])
    hand = by_hand(want, kept_have + have, kept_give + give)
    slots = [f"slot {i + 1}" for i in range(width)]
    old, forgot = step(given, keep=False), step(given, 1.0)
    values, products = done["z"][0].tolist(), done["scores"].size
    roundings = [one[0].tolist() for one in hand.roundings("z", 2)]
    found = blanks([*slots], values, 2, roundings) + blanks(["matches"], [products], 0)
    cells = [(f"score {j + 1}", f"scores[0,0,0,{j}]") for j in range(count)]
    sums = [(slot, f"z[0,0,0,{i}]") for i, slot in enumerate(slots)]
    before = strips(count - 1)
    return Question(
        (
            Table("HAVE in the cache", kept_have, None, before),
            Table("GIVE in the cache", kept_give, None, before),
            Table(f"s{count}, new", want + have + give, None, ["WANT", "HAVE", "GIVE"]),
        ),
        f"The cache holds the HAVE and GIVE of s1 … s{count - 1}. Now s{count} comes: keep its HAVE and GIVE, then "
        f"match (÷√{width}), softmax, weighted sum. Its new numbers? And how many matches (WANT with HAVE) does this "
        f"step compute?",
        found,
        (
            mistake(
                "new token not cached",
                f"s{count} also sees itself: its HAVE and GIVE go into the cache first.",
                old["z"],
                old["scores"].size,
            ),
            mistake(FORGOT_SCALE, SCALE_HINT, forgot["z"], products),
            mistake(
                "all computed again",
                "Only the new WANT is matched: the rows of the others are not needed again.",
                values,
                products**2,
            ),
        ),
        lambda: [*hand.lines(*cells, *softmax_cells(0, count), *sums), f"matches = {products}"],
    )


def _bytes(layers: int, kv_heads: int, context: int, head_width: int, value_bytes: int = 2) -> int:
    """The bytes of a real cache, made on the meta device."""
    dtype = {2: torch.bfloat16, 4: torch.float32}[value_bytes]
    return Cache(layers, 1, kv_heads, context, head_width, device="meta", dtype=dtype).nbytes


def _cache_bytes(
    layers: int, query_heads: int, kv_heads: int, head_width: int, context: int, value_bytes: int
) -> Question:
    one, all_of_them = (_bytes(layers, kv_heads, length, head_width, value_bytes) for length in (1, context))
    every, every_one = (_bytes(layers, query_heads, length, head_width, value_bytes) for length in (context, 1))
    single, single_one = (_bytes(1, kv_heads, length, head_width, value_bytes) for length in (context, 1))

    def sizes(total: float) -> list[float]:
        return [total / 1e9, total / 2**30]

    kept = [("layers", layers), ("query heads", query_heads), ("key-value heads", kv_heads)]
    kept += [("head width", head_width), ("tokens", context), ("bytes per value", value_bytes)]
    return Question(
        (Table("model", [[float(size)] for _, size in kept], None, [name for name, _ in kept]),),
        "How large is the KV cache of one sequence? Bytes for one token in all layers; then for all tokens in GB (10⁹ "
        "bytes) and in GiB (2³⁰ bytes).",
        blanks(["bytes per token"], [one], 0) + blanks(["GB", "GiB"], sizes(all_of_them), 2),
        (
            mistake("keys only", "Both a key and a value are cached: times 2.", one / 2, sizes(all_of_them / 2)),
            mistake(
                "query heads counted",
                "Only the key-value heads are cached, however many query heads share them.",
                every_one,
                sizes(every),
            ),
            mistake("one layer", "Every layer caches its own keys and values.", single_one, sizes(single)),
            mistake(
                "GB and GiB mixed up",
                "A GiB is the larger one, 2³⁰ bytes, so there are fewer of them.",
                one,
                sizes(all_of_them)[::-1],
            ),
        ),
        lambda: [
            f"2 · {layers} layers · {kv_heads} heads · {head_width} · {value_bytes} bytes = {one:,} bytes per token",
            f"{one:,} · {context:,} tokens = {all_of_them:,} bytes",
            f"÷ 10⁹ = {all_of_them / 1e9:.3f} GB, ÷ 2³⁰ = {all_of_them / 2**30:.3f} GiB",
        ],
    )


def _draw_step(d: Draws) -> Numbers:
    count = d.pick([2, 3])
    tables = {"kept_have": d.tags(count, 4, 0, 2), "kept_give": d.tags(count, 4, 0, 5)}
    return tables | {name: d.tags(1, 4, 0, 3) for name in ("want", "have", "give")}


def _informative_step(numbers: Numbers) -> bool:
    return informative_row(numbers["want"][0], numbers["kept_have"] + numbers["have"])


def _draw_bytes(d: Draws) -> Numbers:
    query = d.pick([16, 32, 64])
    return {
        "layers": d.pick([24, 32, 48, 80]),
        "query_heads": query,
        "kv_heads": query // d.pick([2, 4, 8]),
        "head_width": d.pick([64, 128]),
        "context": d.pick([4096, 8192, 32768, 131072]),
        "value_bytes": d.pick([2, 4]),
    }


_STEP = {
    "kept_have": [[1.0, 0, 0, 0], [3.0, 0, 2, 0]], "kept_give": [[2.0, 0, 0, 1], [0.0, 3, 1, 0]],
    "want": [[1.0, 1, 0, 0]], "have": [[2.0, 0, 0, 1]], "give": [[4.0, 0, 2, 0]],
}  # fmt: skip
_LLAMA = {"layers": 80, "query_heads": 64, "kv_heads": 8, "head_width": 128, "context": 4096, "value_bytes": 2}

MAKES = {
    "kv-cache": Maker("kv-cache", _STEP, _draw_step, _step, _informative_step),
    "cache-bytes": Maker("cache-bytes", _LLAMA, _draw_bytes, _cache_bytes),
}
