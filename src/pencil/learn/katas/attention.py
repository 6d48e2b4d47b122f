"""Exercises on attention: its steps, masks, several heads, two sequences, and the KV cache.

The models' own `attend` gives the answers; the same step by step gives the working.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.attention import Attention, attend
from ...core.cache import Cache
from ...core.masks import Mask, causal, full, prefix
from ...core.probe import OFF, Probe
from ...core.span import Span
from .builder import Draws, Maker, Numbers, Work, blanks, heads, mistake, rows, tensor, work
from .exercise import Mistake, Question, Table, numbered

FORGOT_SCALE = "forgot ÷√d"
SCALE_HINT = "Each score is divided by the root of the key's width before the softmax."
COLUMNS = "column softmax"
COLUMNS_HINT = "Each row has the weights of one query: the softmax goes along the row, not down the column."
WIDEST = 5.0  # between two scores: e^−5 is the smallest weight that three decimals show well
FUTURE = "future not blocked"
FUTURE_HINT = "A later token is set to −inf before the softmax, so that its weight is 0."
Rows = list[list[float]]
Cells = list[tuple[str, str]]


# ---- the computations


def visible(mask: Mask | None, count: int) -> Tensor | None:
    """Which of `count` keys each of as many queries sees under a mask."""
    index = torch.arange(count)
    return None if mask is None else mask(index[:, None], index)[None, None]


def attention(queries, keys, values, scale: float | None = None, mask: Mask | None = None) -> Work:
    """The models' own attention over these queries, keys and values."""

    def attended(queries: Tensor, keys: Tensor, values: Tensor, probe: Probe = OFF) -> Tensor:
        seen = visible(mask, queries.shape[2])
        return probe("z", attend(queries, keys, values, seen, scale=scale, probe=probe))

    return work(attended, heads(queries), heads(keys), heads(values))


def attend_by_hand(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float | None = None,
    mask: Mask | None = None,
    probe: Probe = OFF,
) -> Tensor:
    """Attention step by step: dot products, scale, mask, raise e to each, divide by the total, sum."""
    divisor = math.sqrt(queries.shape[-1]) if scale is None else 1 / scale if scale else math.inf
    # a tensor, so that a receipt ends at the dot product, which the exercise shows
    scores = probe("products", queries @ keys.mT) / queries.new_tensor(divisor)
    seen = visible(mask, queries.shape[2])
    scores = probe("scores", scores if seen is None else scores.masked_fill(~seen, -torch.inf))
    raised = probe("raised", scores.exp())
    pattern = probe("pattern", raised / probe("total", raised.sum(-1, keepdim=True)))
    return probe("z", pattern @ values)


def by_hand(queries, keys, values, scale: float | None = None, mask: Mask | None = None) -> Work:
    return work(partial(attend_by_hand, scale=scale, mask=mask), heads(queries), heads(keys), heads(values))


def column_softmax(queries, keys) -> np.ndarray:
    """The weights with the softmax taken down the columns instead of along the rows."""
    return attention(keys, queries, queries)["pattern"].T


def masked(run: Callable[..., Work], scores: Rows, mask: Mask | None) -> Work:
    """These scores under a mask: they are the queries, and the keys are the identity."""
    identity = np.eye(len(scores)).tolist()
    return run(scores, identity, identity, 1.0, mask)


def concatenated_heads(queries: Rows, keys: Rows, values: Rows, count: int, scale: float | None = None) -> Work:
    """The models' multi-head attention over vectors side by side in its input; its matrices are identities."""
    width = len(queries[0])
    module = Attention(3 * width, count, head_width=width // count, bias=False)
    module.qkv.weight.data, module.out.weight.data = torch.eye(3 * width), torch.eye(3 * width, width)

    def concatenated(vectors: Tensor, probe: Probe = OFF) -> Tensor:
        span = replace(Span.whole(vectors.shape[1]).under(full), scale=scale)
        return probe("out", module(vectors, span, probe=probe / "attn")[..., :width])

    return work(concatenated, torch.cat([tensor(part) for part in (queries, keys, values)], -1)[None], modules=[module])


def heads_by_hand(queries: Tensor, keys: Tensor, values: Tensor, probe: Probe = OFF) -> Tensor:
    """Two heads step by step, each in its own columns, and their results concatenated."""
    parts = zip(*(whole[None, None].chunk(2, -1) for whole in (queries, keys, values)), strict=True)
    results = [attend_by_hand(*part, probe=probe / f"head {i + 1}") for i, part in enumerate(parts)]
    return probe("out", torch.cat(results, -1)[0])


def decode_step(tensors: list[Tensor], scale: float | None = None, cached: bool = True) -> Work:
    """One more token after those in a cache; unless `cached`, it is not written into the cache first."""

    def decode(
        old_keys: Tensor, old_values: Tensor, query: Tensor, key: Tensor, value: Tensor, probe: Probe = OFF
    ) -> Tensor:
        before, width = old_keys.shape[2:]
        cache = Cache(1, 1, 1, before + 1, width, dtype=query.dtype)
        keys, values = cache[0].write(cache.place(cache.next(before)), old_keys, old_values)
        if cached:
            keys, values = cache[0].write(cache.place(cache.next(1)), key, value)
        return probe("z", attend(query, keys, values, scale=scale, probe=probe))

    return work(decode, *tensors)


def cells(step: str, row: int, labels: list[str]) -> Cells:
    """The cells of one row of a step, each with its label."""
    return [(label, f"{step}[0,0,{row},{j}]") for j, label in enumerate(labels)]


def softmax_cells(row: int, count: int) -> Cells:
    """The cells of the softmax of one row of scores, step by step."""
    raised, weights = (
        cells(*part)
        for part in (("raised", row, numbered("e^score", count)), ("pattern", row, numbered("weight", count)))
    )
    return [*raised, ("total", f"total[0,0,{row},0]"), *weights]


def all_cells(row: int, keys: int, width: int) -> Cells:
    """The cells of one row of attention from its scores to its output."""
    outputs = cells("z", row, numbered("dim", width))
    return cells("scores", row, numbered("score", keys)) + softmax_cells(row, keys) + outputs


def informative_row(query, keys, scale: float | None = None, zero: bool = True) -> bool:
    """Whether the scores of one query are all different, and close enough for every weight to be seen.

    With `zero` False none of them may be 0, which no scaling changes.
    """
    products = np.asarray(keys) @ np.asarray(query)
    spread = (products.max() - products.min()) * (1 / math.sqrt(len(query)) if scale is None else scale)
    return len(set(products.tolist())) == len(products) and bool(spread <= WIDEST) and (zero or bool(products.all()))


# ---- the questions


def vectors(name: str, table) -> Table:
    """Queries, keys or values, one row per token."""
    return Table(name, [list(row) for row in table], None, numbered("token", len(table)))


def qkv(queries: Rows, keys: Rows, values: Rows) -> tuple[Table, ...]:
    return vectors("queries (Q)", queries), vectors("keys (K)", keys), vectors("values (V)", values)


def row_question(
    tables: tuple[Table, ...],
    ask: str,
    work: tuple[Work, Work],
    answer: tuple[str, int, list[str], int],
    mistakes: tuple[Mistake, ...],
    shown: Cells,
) -> Question:
    """A question about one row of a step of attention.

    `work` is the models' attention and that by hand, `answer` the step, its row, the labels of its cells and the number
    of decimals, and `shown` the cells of the working.
    """
    done, hand = work
    step, row, labels, decimals = answer
    answers = blanks(labels, done[step][row], decimals, rows(hand.roundings(step, decimals), row))
    return Question(tables, ask, answers, mistakes, lambda: hand.lines(*shown))


def both(*inputs: Any) -> tuple[Work, Work]:
    """Attention by the models' code, and step by step."""
    return attention(*inputs), by_hand(*inputs)


def _products(queries: Rows, keys: Rows) -> Question:
    done, hand = both(queries, keys, keys, 1.0)
    swapped, queries_alone = attention(keys, queries, queries, 1.0), attention(queries, queries, queries, 1.0)
    pairs = [(i, j) for i in range(len(queries)) for j in range(len(keys))]
    labels = [f"q{i + 1}·k{j + 1}" for i, j in pairs]
    shown = [(label, f"products[0,0,{i},{j}]") for label, (i, j) in zip(labels, pairs, strict=True)]
    return Question(
        qkv(queries, keys, keys)[:2],
        "The dot product of every query with every key, not scaled yet. Row by row: q1·k2 is the query of token 1 with "
        "the key of token 2.",
        blanks(labels, done["scores"], 0),
        (
            mistake(
                "queries and keys swapped",
                "Each row belongs to one token's query and each column to one token's key.",
                swapped["scores"],
            ),
            mistake(
                "queries with queries",
                "A query is multiplied with a key, never with a query.",
                queries_alone["scores"],
            ),
        ),
        lambda: hand.lines(*shown),
    )


def _scale(queries: Rows, keys: Rows, row: int) -> Question:
    done, hand = both(queries, keys, keys)
    width, names = len(queries[0]), numbered("token", len(keys))
    forgot, whole, times = (
        attention(queries, keys, keys, s)["scores"][row] for s in (1.0, 1 / width, math.sqrt(width))
    )
    return row_question(
        (Table("q·k", [hand["products"][row].tolist()], names, [f"token {row + 1}"]),),
        f"Queries and keys have {width} dimensions, so each dot product of a query with a key is divided by √{width}. "
        f"The scores of token {row + 1}'s query with each key?",
        (done, hand),
        ("scores", row, [f"→ {name}" for name in names], 2),
        (
            mistake(FORGOT_SCALE, SCALE_HINT, forgot),
            mistake("divided by d", "It is divided by the root of the key's width, not by the width.", whole),
            mistake("multiplied", "Scaling makes the dot product smaller: divide, do not multiply.", times),
        ),
        cells("scores", row, [f"→ {name}" for name in names]),
    )


def _softmax(queries: Rows, keys: Rows, row: int) -> Question:
    done, hand = both(queries, keys, keys)
    width, names = len(queries[0]), numbered("token", len(keys))
    scores = done["scores"][row]
    return row_question(
        (
            Table(
                "q·k", hand["products"].tolist(), [f"key of {name}" for name in names], numbered("token", len(queries))
            ),
        ),
        f"Each row has the dot products of one token's query with every key; queries and keys have {width} dimensions. "
        f"Divide the row of token {row + 1} by √{width}, then take its softmax: the attention weights, which add up to "
        f"1.",
        (done, hand),
        ("pattern", row, [f"token {row + 1} → {name}" for name in names], 3),
        (
            mistake(FORGOT_SCALE, SCALE_HINT, attention(queries, keys, keys, 1.0)["pattern"][row]),
            mistake(COLUMNS, COLUMNS_HINT, column_softmax(queries, keys)[row]),
            mistake(
                "did not raise e",
                "Each score is first an exponent of e; only then divide by the total.",
                scores / scores.sum() if scores.sum() else scores,
            ),
        ),
        cells("scores", row, numbered("score", len(keys))) + softmax_cells(row, len(keys)),
    )


def _weighted(queries: Rows, keys: Rows, values: Rows, row: int) -> Question:
    done, hand = both(queries, keys, values)
    dims, other = numbered("dim", len(values[0])), (row + 1) % len(queries)
    pattern = done["pattern"]
    weights = [[round(float(weight), 3) for weight in line] for line in pattern]
    return row_question(
        (
            Table("attention weights", weights, numbered("token", len(keys)), numbered("token", len(queries))),
            vectors("values (V)", values),
        ),
        f"The output of attention for token {row + 1}: the sum of all values, each times its weight in the row of "
        f"token {row + 1}. Dimension by dimension?",
        (done, hand),
        ("z", row, dims, 3),
        (
            mistake("another token's weights", f"Token {row + 1} uses the weights in its own row.", done["z"][other]),
            mistake(
                "plain average",
                "Each value is multiplied by its weight, not counted equally.",
                attention(queries, keys, values, 0.0)["z"][row],
            ),
            mistake(
                "only the largest",
                "Every token adds its value times its weight, the small ones too.",
                attention(queries, keys, values, 1e6)["z"][row],
            ),
            mistake(
                "column of weights",
                "The weights of a token are its row, not its column.",
                pattern.T[row] @ np.asarray(values, dtype=float),
            ),
        ),
        cells("z", row, dims),
    )


def _attention(queries: Rows, keys: Rows, values: Rows, row: int) -> Question:
    width, columns = len(queries[0]), column_softmax(queries, keys)[row]
    return row_question(
        qkv(queries, keys, values),
        f"Attention for token {row + 1}: the dot product of its query with every key, divided by √{width}, then the "
        f"softmax, then the sum of the values by these weights. Its output?",
        both(queries, keys, values),
        ("z", row, numbered("dim", len(values[0])), 2),
        (
            mistake(FORGOT_SCALE, SCALE_HINT, attention(queries, keys, values, 1.0)["z"][row]),
            mistake(COLUMNS, COLUMNS_HINT, columns @ np.asarray(values, dtype=float)),
            mistake(
                "queries and keys swapped",
                "It is this token's query with every token's key.",
                attention(keys, queries, values)["z"][row],
            ),
        ),
        all_cells(row, len(keys), len(values[0])),
    )


def _mask_question(scores: Rows, row: int, mask: Mask, rule: str, mistakes: tuple[Mistake, ...]) -> Question:
    """The weights of one token under a mask, from scores that are scaled already."""
    count = len(scores)
    columns = numbered("j", count, "")
    return row_question(
        (Table("scores", scores, columns, numbered("i", count, "")),),
        f"{rule} Row i has the scores of token i's query with the key of each token j, scaled already. Token {row + 1} "
        f"of {count}: its weights after the softmax?",
        (masked(attention, scores, mask), masked(by_hand, scores, mask)),
        ("pattern", row, [f"i{row + 1} → {name}" for name in columns], 2),
        mistakes,
        softmax_cells(row, count),
    )


def _causal(scores: Rows, row: int) -> Question:
    strictly = Mask("strictly before", lambda q, k: k < q)
    ahead = Mask("only ahead", lambda q, k: k >= q)
    right, everything, before, after = (
        masked(attention, scores, mask)["pattern"][row] for mask in (causal, None, strictly, ahead)
    )
    late = "Block before the softmax, or the weights no longer add to 1."
    return _mask_question(
        scores,
        row,
        causal,
        "Causal mask: token i sees no later token j.",
        (
            mistake(FUTURE, FUTURE_HINT, everything),
            mistake("blocked after the softmax", late, everything * (right > 0)),
            mistake("blocked itself too", "A token sees itself: only cells with j > i are blocked.", before),
            mistake("blocked the past", "Later tokens are blocked, j > i, not earlier ones.", after),
        ),
    )


def _prefix(scores: Rows, first: int, row: int) -> Question:
    everything, only_past = (masked(attention, scores, mask)["pattern"][row] for mask in (None, causal))
    return _mask_question(
        scores,
        row,
        prefix(first),
        f"Prefix mask: the first {first} tokens all see each other, every later one sees all up to itself.",
        (
            mistake(
                "causal throughout", "A token of the prefix sees the whole prefix, later tokens of it too.", only_past
            ),
            mistake(FUTURE, "For the prefix, all tokens after it are the future: −inf before the softmax.", everything),
        ),
    )


def _heads(queries: Rows, keys: Rows, values: Rows, row: int) -> Question:
    done = concatenated_heads(queries, keys, values, 2)
    hand = work(heads_by_hand, tensor(queries), tensor(keys), tensor(values))
    wide, forgot = (
        concatenated_heads(queries, keys, values, 2, scale)["out"][row] for scale in (1 / math.sqrt(4), 1.0)
    )
    one_head = concatenated_heads(queries, keys, values, 1)["out"][row]
    every = cells("scores", row, numbered("score", 2)) + softmax_cells(row, 2), cells("z", row, numbered("dim", 2))
    return row_question(
        qkv(queries, keys, values),
        f"Two heads: head 1 has dimensions 1–2 of every query, key and value, head 2 dimensions 3–4. Each head divides "
        f"its dot products by √2, takes the softmax and sums its own values; their outputs are concatenated, head 1 "
        f"first. Token {row + 1}'s output?",
        (done, hand),
        ("out", row, numbered("dim", 4), 2),
        (
            mistake("one head", "Each head has the dot products of its own dimensions, and its own weights.", one_head),
            mistake(
                "divided by the root of the whole width", "The root is that of a head's width, 2, not of all 4.", wide
            ),
            mistake(FORGOT_SCALE, SCALE_HINT, forgot),
            mistake("head 2 first", "Head 1's numbers come first.", done["out"][row, [2, 3, 0, 1]]),
        ),
        [(f"head {h}: {label}", f"head {h}.{where}") for part in every for h in (1, 2) for label, where in part],
    )


def _cross(queries: Rows, own: Rows, own_values: Rows, keys: Rows, values: Rows, row: int) -> Question:
    width, words = len(queries[0]), numbered("word", len(queries))
    patches = numbered("patch", len(keys))
    own_output = attention(queries, own, own_values)["z"][row]
    forgot, average = (attention(queries, keys, values, scale)["z"][row] for scale in (1.0, 0.0))
    return row_question(
        (
            Table("queries of the words", queries, None, words),
            Table("keys of the words", own, None, words),
            Table("values of the words", own_values, None, words),
            Table("keys of the patches", keys, None, patches),
            Table("values of the patches", values, None, patches),
        ),
        f"Cross-attention: the words attend to the patches of an image. Dot products, ÷√{width}, softmax, weighted "
        f"sum: the output for word {row + 1}?",
        both(queries, keys, values),
        ("z", row, numbered("dim", len(values[0])), 2),
        (
            mistake(
                "self-attention",
                "In cross-attention keys and values come from the other sequence, the patches.",
                own_output,
            ),
            mistake(FORGOT_SCALE, SCALE_HINT, forgot),
            mistake("plain average", "Each value is multiplied by its weight, not counted equally.", average),
        ),
        all_cells(row, len(keys), len(values[0])),
    )


def _decode(old_keys: Rows, old_values: Rows, query: Rows, key: Rows, value: Rows) -> Question:
    tensors = [heads(table) for table in (old_keys, old_values, query, key, value)]
    done, count, width = decode_step(tensors), len(old_keys) + 1, len(query[0])
    hand = by_hand(query, old_keys + key, old_values + value)
    uncached, forgot = decode_step(tensors, cached=False), decode_step(tensors, 1.0)
    output, products = done["z"][0].tolist(), done["scores"].size
    roundings = [rounded[0].tolist() for rounded in hand.roundings("z", 2)]
    before = numbered("token", count - 1)
    return Question(
        (
            Table("keys in the cache", old_keys, None, before),
            Table("values in the cache", old_values, None, before),
            Table(f"token {count}, new", query + key + value, None, ["query", "key", "value"]),
        ),
        f"The KV cache holds the keys and values of tokens 1 to {count - 1}. Token {count} comes: its key and value "
        f"are added to the cache, and its query attends to all {count} (÷√{width}, softmax, weighted sum). Its output? "
        f"And how many dot products of a query with a key does this step compute?",
        blanks(numbered("dim", width), output, 2, roundings) + blanks(["dot products"], [products], 0),
        (
            mistake(
                "new token not cached",
                f"Token {count} also sees itself: its key and value go into the cache first.",
                uncached["z"],
                uncached["scores"].size,
            ),
            mistake(FORGOT_SCALE, SCALE_HINT, forgot["z"], products),
            mistake(
                "all computed again",
                "Only the new query is needed: the rows of the others are not computed again.",
                output,
                products**2,
            ),
        ),
        lambda: [*hand.lines(*all_cells(0, count, width)), f"dot products = {products}"],
    )


def _cache_bytes(
    layers: int, query_heads: int, kv_heads: int, head_width: int, context: int, value_bytes: int
) -> Question:
    dtype = {2: torch.bfloat16, 4: torch.float32}[value_bytes]

    def size(tokens: int, layers: int = layers, heads: int = kv_heads) -> int:
        """The bytes of a real cache, made on the meta device."""
        return Cache(layers, 1, heads, tokens, head_width, device="meta", dtype=dtype).nbytes

    def units(total: float) -> list[float]:
        return [total / 1e9, total / 2**30]

    token, whole = size(1), size(context)
    model = {
        "layers": layers, "query heads": query_heads, "key-value heads": kv_heads, "head width": head_width,
        "tokens": context, "bytes per value": value_bytes,
    }  # fmt: skip
    return Question(
        (Table("model", [[float(number)] for number in model.values()], None, list(model)),),
        "How large is the KV cache of one sequence? Bytes for one token in all layers; then for all tokens in GB (10⁹ "
        "bytes) and in GiB (2³⁰ bytes).",
        blanks(["bytes per token"], [token], 0) + blanks(["GB", "GiB"], units(whole), 2),
        (
            mistake("keys only", "Both a key and a value are cached: times 2.", token / 2, units(whole / 2)),
            mistake(
                "query heads counted",
                "Only the key-value heads are cached, however many query heads share them.",
                size(1, heads=query_heads),
                units(size(context, heads=query_heads)),
            ),
            mistake(
                "one layer",
                "Every layer caches its own keys and values.",
                size(1, layers=1),
                units(size(context, layers=1)),
            ),
            mistake(
                "GB and GiB mixed up",
                "A GiB is the larger one, 2³⁰ bytes, so there are fewer of them.",
                token,
                units(whole)[::-1],
            ),
        ),
        lambda: [
            f"2 · {layers} layers · {kv_heads} heads · {head_width} · {value_bytes} bytes = {token:,} bytes per token",
            f"{token:,} · {context:,} tokens = {whole:,} bytes",
            f"÷ 10⁹ = {whole / 1e9:,.2f} GB, ÷ 2³⁰ = {whole / 2**30:,.2f} GiB",
        ],
    )


# ---- fresh numbers


def _draw_products(d: Draws) -> Numbers:
    width = d.pick([3, 4])
    return {"queries": d.vectors(2, width, 0, 3), "keys": d.vectors(2, width, 0, 3)}


def _draw_scale(d: Draws) -> Numbers:
    width, count = d.pick([2, 3, 4, 5]), d.pick([2, 3])
    return {"queries": d.vectors(2, width, 0, 3), "keys": d.vectors(count, width, 0, 3), "row": d.whole(0, 1)}


def _draw_vectors(d: Draws, keys: int = 2, width: int = 0) -> Numbers:
    """Queries and keys of a width whose root is whole, with small scores; and two values that differ everywhere."""
    numbers = {"queries": d.vectors(2, 4, 0, 2), "keys": d.vectors(keys, 4, 0, 2), "row": d.whole(0, 1)}
    columns = [d.distinct(2, 0, 5) for _ in range(width)]
    return numbers | ({"values": [list(row) for row in zip(*columns, strict=True)]} if width else {})


def _scores(d: Draws) -> Rows:
    """Rows without equal scores, so that each weight is a different number."""
    return [d.distinct(4, -1, 3) for _ in range(4)]


def _draw_prefix(d: Draws) -> Numbers:
    first = d.pick([2, 3])
    return {"scores": _scores(d), "first": first, "row": d.whole(0, first - 2)}


def _draw_heads(d: Draws) -> Numbers:
    return {name: d.vectors(2, 4, 0, 3) for name in ("queries", "keys", "values")} | {"row": d.whole(0, 1)}


def _draw_cross(d: Draws) -> Numbers:
    words = {"queries": d.vectors(2, 4, 0, 2), "own": d.vectors(2, 4, 0, 2), "own_values": d.vectors(2, 2, 0, 5)}
    return words | {"keys": d.vectors(3, 4, 0, 2), "values": d.vectors(3, 2, 0, 5), "row": d.whole(0, 1)}


def _draw_decode(d: Draws) -> Numbers:
    count = d.pick([2, 3])
    tables = {"old_keys": d.vectors(count, 4, 0, 2), "old_values": d.vectors(count, 4, 0, 5)}
    return tables | {name: d.vectors(1, 4, 0, 3) for name in ("query", "key", "value")}


def _draw_bytes(d: Draws) -> Numbers:
    query_heads = d.pick([16, 32, 64])
    return {
        "layers": d.pick([24, 32, 48, 80]),
        "query_heads": query_heads,
        "kv_heads": query_heads // d.pick([2, 4, 8]),
        "head_width": d.pick([64, 128]),
        "context": d.pick([4096, 8192, 32768, 131072]),
        "value_bytes": d.pick([2, 4]),
    }


def _different_scores(numbers: Numbers) -> bool:
    """The scores of the row differ."""
    return informative_row(numbers["queries"][numbers["row"]], numbers["keys"])


def _different_rows(numbers: Numbers) -> bool:
    """The scores of the row differ, and so do the two rows."""
    products = np.asarray(numbers["queries"]) @ np.asarray(numbers["keys"]).T
    return _different_scores(numbers) and bool((products[0] != products[1]).any())


def _different_halves(numbers: Numbers) -> bool:
    """Each head's scores differ, and so do the values in every dimension."""
    query, (first, second) = numbers["queries"][numbers["row"]], numbers["values"]
    halves = (slice(0, 2), slice(2, 4))
    return all(informative_row(query[half], [key[half] for key in numbers["keys"]]) for half in halves) and all(
        a != b for a, b in zip(first, second, strict=True)
    )


_QK = {"queries": [[2, 0, 1, 0], [0, 0, 2, 0]], "keys": [[1, 0, 0, 0], [3, 0, 2, 0]]}
_QKV = _QK | {"values": [[2, 0, 0, 1], [0, 3, 1, 0]]}
_CROSS = {
    "queries": [[1, 0, 1, 0], [0, 2, 0, 0]], "own": [[2, 0, 0, 0], [0, 1, 0, 1]], "own_values": [[1, 1], [0, 2]],
    "keys": [[2, 0, 0, 0], [0, 2, 2, 0], [0, 0, 0, 1]], "values": [[4, 0], [0, 4], [2, 2]],
}  # fmt: skip
_DECODE = {
    "old_keys": [[1.0, 0, 0, 0], [3.0, 0, 2, 0]], "old_values": [[2.0, 0, 0, 1], [0.0, 3, 1, 0]],
    "query": [[1.0, 1, 0, 0]], "key": [[2.0, 0, 0, 1]], "value": [[4.0, 0, 2, 0]],
}  # fmt: skip
_LLAMA = {"layers": 80, "query_heads": 64, "kv_heads": 8, "head_width": 128, "context": 4096, "value_bytes": 2}

MAKES = {
    maker.name: maker
    for maker in (
        Maker("match", _QK, _draw_products, _products),
        Maker(
            "scale",
            _QK | {"row": 0},
            _draw_scale,
            _scale,
            lambda n: informative_row(n["queries"][n["row"]], n["keys"], 0.0, zero=False),
        ),
        Maker("softmax", _QK | {"row": 1}, partial(_draw_vectors, keys=3), _softmax, _different_rows),
        Maker("weighted-sum", _QKV | {"row": 0}, partial(_draw_vectors, width=3), _weighted, _different_rows),
        Maker("attention", _QKV | {"row": 1}, partial(_draw_vectors, width=2), _attention, _different_rows),
        Maker(
            "causal",
            {"scores": [[0.0] * 3] * 3, "row": 1},
            lambda d: {"scores": _scores(d), "row": d.whole(1, 2)},
            _causal,
        ),
        Maker("prefix", {"scores": [[0.0] * 4] * 4, "first": 3, "row": 1}, _draw_prefix, _prefix),
        Maker("heads", _QKV | {"row": 0}, _draw_heads, _heads, _different_halves),
        Maker("cross", _CROSS | {"row": 1}, _draw_cross, _cross, _different_scores),
        Maker(
            "kv-cache",
            _DECODE,
            _draw_decode,
            _decode,
            lambda n: informative_row(n["query"][0], n["old_keys"] + n["key"]),
        ),
        Maker("cache-bytes", _LLAMA, _draw_bytes, _cache_bytes),
    )
}
