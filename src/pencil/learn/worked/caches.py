"""A KV cache in less memory, by hand: in eight bits, of the last tokens alone, and in pages."""

import numpy as np
import torch
from torch import Tensor, nn

from ...core.attention import Attention, attend
from ...core.probe import OFF, Probe
from ...tracing.live_trace import LiveTrace, trace

PAGE = 2  # tokens of a page
WINDOW = 2  # tokens that a sliding window keeps
LEVELS = 127  # the largest whole number of eight bits with a sign


class OneQuery(nn.Module):
    """The attention of the newest token over what a cache has."""

    NAMES = {name: Attention.NAMES[name] for name in ("scores", "pattern")} | {"z": ("B h T d", "H", "A V")}

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, probe: Probe = OFF) -> Tensor:
        return probe("z", attend(query[:, None], keys[:, None], values[:, None], probe=probe))


class SmallerCaches(nn.Module):
    """One query over the same keys and values, kept in four ways."""

    NAMES = {
        "key_scales": ("B S 1", "s_K", "max|K|/127"),
        "int8_keys": ("B S d", "K_8", "round(K/s_K)"),
        "restored_keys": ("B S d", "K̂", "K_8·s_K"),
        "value_scales": ("B S 1", "s_V", "max|V|/127"),
        "int8_values": ("B S d", "V_8", "round(V/s_V)"),
        "restored_values": ("B S d", "V̂", "V_8·s_V"),
        "window_keys": ("B W d", "K_w", "the last 2 of K"),
        "window_values": ("B W d", "V_w", "the last 2 of V"),
        "key_pages": ("P p d", "K_page", "keys in pairs, each in its page π"),
        "value_pages": ("P p d", "V_page", "values in pairs, each in its page π"),
        "read_keys": ("B S d", "K", "K_page in the order π"),
        "read_values": ("B S d", "V", "V_page in the order π"),
    }
    INPUTS = {"query": "q", "keys": "K", "values": "V", "page_table": "π"}
    INPUT_AXES = {"query": "B T d", "keys": "B S d", "values": "B S d"}

    def __init__(self):
        super().__init__()
        self.full, self.int8, self.window, self.pages = (OneQuery() for _ in range(4))

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, page_table: Tensor, probe: Probe = OFF
    ) -> tuple[Tensor, ...]:
        full = self.full(query, keys, values, probe / "full")
        restored = []
        for name, x in (("key", keys), ("value", values)):
            scales = probe(f"{name}_scales", x.abs().amax(-1, keepdim=True) / LEVELS)
            whole = probe(f"int8_{name}s", (x / scales).round())
            restored.append(probe(f"restored_{name}s", whole * scales))
        int8 = self.int8(query, *restored, probe / "int8")
        last = (probe("window_keys", keys[:, -WINDOW:]), probe("window_values", values[:, -WINDOW:]))
        window = self.window(query, *last, probe / "window")
        read = []
        for name, x in (("key", keys), ("value", values)):
            pages = x[0].unflatten(0, (-1, PAGE))
            store = probe(f"{name}_pages", torch.zeros_like(pages).index_copy(0, page_table, pages))
            read.append(probe(f"read_{name}s", store[page_table].flatten(0, 1)[None]))
        return full, int8, window, self.pages(query, *read, probe / "pages")


def kv_caches() -> LiveTrace:
    """A KV cache of six tokens in less memory: in eight bits (quantised), the last two (a sliding window), in pages.

    Eight bits change the output a little, the window more; pages change nothing: a table says where each is.
    """
    words = ["The", "cat", "sat", "on", "the", "mat"]
    rng = np.random.Generator(np.random.Philox(key=10))
    drawn = (torch.from_numpy(np.round(rng.normal(0, 1, (1, n, 4)), 1)) for n in (1, 6, 6))
    labels = {"S": words, "T": words[-1:], "W": words[-WINDOW:], "window.S": words[-WINDOW:]}
    return trace(SmallerCaches(), *drawn, torch.tensor([2, 0, 1]), words=labels)
