"""The cache of the values used last: by their number, by their bytes, and what goes with them."""

import pytest

from pencil.explore.lru_cache import Cache


def never():
    pytest.fail("made although it is kept")


def test_the_values_used_last_are_kept():
    cache = Cache[str, int](2)
    assert [cache.get_or_make(key, lambda key=key: ord(key)) for key in "ab"] == [97, 98]
    assert cache.get_or_make("a", never) == 97
    cache.put("c", 99)
    assert [key in cache for key in "abc"] == [True, False, True]
    assert (cache["a"], cache.get("b"), cache.get("c")) == (97, None, 99)
    cache.put("d", 100)  # reading was no use of "a"
    assert [key in cache for key in "acd"] == [False, True, True]
    assert (cache.pop("c"), cache.pop("c")) == (99, None)


def test_bytes_are_counted_anew_and_the_value_used_last_is_always_kept():
    dropped = []
    cache = Cache[str, list[int]](9, 100, sum, on_drop=dropped.append)
    values = {key: cache.put(key, [40]) for key in "ab"}
    values["b"].append(30)  # it has grown since
    assert dropped == []
    cache.put("b", values["b"])
    assert dropped == ["a"]
    cache.put("c", [1000])
    assert dropped == ["a", "b"]
    assert cache["c"] == [1000]


def test_a_value_may_need_others_while_it_is_made():
    cache = Cache[str, int](3)
    assert cache.get_or_make("edited", lambda: 1 + cache.get_or_make("plain", lambda: 6)) == 7
    assert (cache["plain"], cache["edited"]) == (6, 7)
