"""The shapes of the explorer's JSON, as data, and their check: {key: shape} (key? may be left out), [shape], (a, b) or."""

import json
from math import isfinite

NUMBER = (float, {"inf", "-inf", "nan"})
CELL = str
INPUT = {"text?": str, "source?": str, "picture?": str, "label?": str, "options?": dict}
STATE = {"model": str, "input": INPUT, "edits": [str]}
CONTROL = {"name": {"temperature", "top_k", "top_p", "min_p", "seed", "tokens", "guidance", "steps", "step"}, "value": float,
           "least": float, "most": float, "whole": bool, "help": str, "within": str}  # fmt: skip
MODEL = {
    "id": str, "name": str, "path": str, "family": str, "summary": str, "parameters": int, "step": (int, None), "depth": int,
    "heads": int, "live": bool,
    "input": {"text?": {"label": str, "longest": int, "optional": bool}, "source?": {"label": str, "longest": int},
              "picture?": {"height": int, "width": int, "channels": int, "frames?": int}, "label?": {"classes": [str]}},
    "output": {"tokens", "classes", "picture", "vector"}, "unmeasured": str,
    "target": ({"label": str, "classes": [str], "picture": ({"height": int, "width": int, "channels": int}, None),
                "examples": [{"name": str, "picture": str}]}, str), "controls": [CONTROL], "example": INPUT,
    "examples": [{"name": str, "input": INPUT}],
}  # fmt: skip
BAR = {"label": str, "id": int, "logit": NUMBER, "probability": NUMBER, "cell": CELL}
CHOSEN = {
    "rows": [{"label": str, "id": int, "logit": NUMBER, "scaled": NUMBER, "probability": NUMBER, "kept": bool,
              "cut": {"", "top-k", "top-p", "min-p"}, "final": NUMBER, "from": NUMBER, "to": NUMBER, "drawn": bool}],
    "uniform": (float, None), "rest": NUMBER,
}  # fmt: skip
OUT_TOKEN = {
    "text": str,
    "id": int,
    "position": int,
    "cell": CELL,
    "probability": NUMBER,
    "top": [BAR],
    "chosen": CHOSEN,
}
ANSWER = {
    "state": STATE, "milliseconds": float, "words": [str], "text?": str, "tokens?": [OUT_TOKEN], "classes?": [BAR],
    "vector?": [NUMBER], "nearest?": [{"text": str, "similarity": NUMBER}], "picture?": str,
    "frames?": [{"step": int, "time": float, "picture": str, "clean?": str, "guide?": {"shape": [int], "values": str, "top": float}}], "grid?": [int], "first_patch?": int,
    "first_word?": int, "notes": [str],
}  # fmt: skip
TENSOR = {"name": str, "symbol": str, "formula": str, "shape": [int], "axes": [str], "kind": str, "op": str, "dtype": str,
          "portions": bool, "path": str, "named": bool}  # fmt: skip
MAP: dict = {
    "path": str, "title": str,
    "kind": {"model", "block", "attention", "mlp", "norm", "matrix", "embedding", "head", "other"},
    "parameters": int, "shape?": [int], "formula?": str, "tensors": [str],
}  # fmt: skip
MAP["children"] = [MAP]
OUTLINE = {"trace": str, "tensors": [TENSOR], "labels": dict, "facts": dict, "legend": dict, "map": MAP, "edges?": [{"from": str, "by": str, "to": str}],
           "start": CELL}  # fmt: skip
SLICE = {"name": str, "index": [(int, None)], "shape": [int], "values": str, "rows": [str], "columns": [str], "low": float,
         "high": float}  # fmt: skip
RECEIPT = {
    "cell": CELL, "label": str, "name": str, "index": [int], "kind": str, "op": str, "formula": str, "meaning": str,
    "lines": [str], "steps": [{"word": str, "formula": str, "value": NUMBER}],
    "terms": [{"cell": CELL, "label": str, "value": NUMBER}], "leading": [int], "reworked": (NUMBER, None),
    "recorded": NUMBER, "allowed": NUMBER, "agrees": bool, "masked": bool, "ends": [str],
}  # fmt: skip
TAKEN = {"loss": NUMBER, "probabilities": [NUMBER]}
LEARNING = {
    "loss": NUMBER, "targets": [{"after": str, "label": str, "probability": NUMBER, "cell": CELL}], "norm": (NUMBER, None),
    "clip": (float, None), "rates": dict,
    "parts": [{"id": str, "norm": NUMBER, "heads": [{"name": str, "norms": [NUMBER]}],
               "pairs": [{"name": str, "symbol": str, "shape": [int], "norm": NUMBER, "thumb": [int], "value": str,
                          "gradient": str}]}],
    "changes": [{"cell": CELL, "label": str, "before": NUMBER, "after": NUMBER, "gradient": NUMBER, "change": NUMBER,
                 "relative": (NUMBER, None)}],
    "history": [TAKEN], "undescribed": [str], "note": str,
}  # fmt: skip
HEAD = {"head": int, "names": [str], "scored": str, "score": (float, None), "baseline": (float, None), "thumbnail": str}
ATTENTION = {"groups": [{"name": {"", "encoder", "decoder", "cross", "text"},
                         "layers": [{"name": str, "layer": int, "heads": [HEAD], "thumb": [int]}],
                         "queries": [str], "keys": [str]}]}  # fmt: skip
PART = {"id": str, "label": str, "kind": {"block", "head", "mlp", "token", "patch", "pixel", "position", "bias", "norm",
                                          "condition", "embedding", "rest"},
        "value": NUMBER, "share": NUMBER, "cell": (CELL, None), "parts": int}  # fmt: skip
CONTRIBUTIONS = {"cell": CELL, "against": (str, None), "value": NUMBER, "total": NUMBER, "allowed": NUMBER, "held": [str],
                 "parts": [PART]}  # fmt: skip
PICTURE = {
    "stacks": [{"id": str, "title": str, "stream": str, "grid?": [int],
                "lanes": [{"label": str, "kind": {"token", "patch", "class", "special", "condition"}, "at?": [int],
                           "written": bool}]}],
    "columns": [{"path": str, "kind": {"attn", "cross", "mlp"}, "stack": str, "keys": str, "block": int, "heads": int,
                 "pattern": str, "stream": str, "normed": {"before", "after"}, "thumb": [int], "thumbs": str,
                 "condition?": str}],
    "graph?": {"nodes": [{"path": str, "title": str, "operations": int}], "edges": [[int]]},
}  # fmt: skip
PICTURE_PART = {"id": str, "label": str, "value": float, "cell": (CELL, None)}
PICTURE_OF = {
    "cell": CELL, "label": str, "value": float, "allowed": float, "held": [str], "stack": str, "query": [int],
    "columns": [{"rows": str, "added": str, "ids": [str]}], "rest": [PICTURE_PART], "noInput": [PICTURE_PART],
    "inputs": [{"stack": str, "lane": int, "value": float, "cell": (CELL, None)}], "pixels?": {"shape": [int], "values": str},
    "lens": [{"after": int, "value": float, "cell": CELL, "probability?": float, "rank?": int, "picture?": str,
              "top?": [{"id": int, "label": str, "probability": float, "cell": CELL}]}],
    "unlensed?": str,
}  # fmt: skip
DIFFERENCE = {
    "tensors": [{"name": str, "shape": [int], "most": NUMBER, "relative": NUMBER, "cell": CELL, "counted": bool}],
    "first": (str, None),
    "only_a": [str], "only_b": [str], "notes": [str],
}  # fmt: skip
CHANGED = {**DIFFERENCE, "before": ANSWER, "after": ANSWER}


def check(value, shape, where="it"):
    """Fail where a value, which JSON must be able to write, is not of the shape."""
    json.dumps(value, allow_nan=False)
    _check(value, shape, where)


def _check(value, shape, where):
    if isinstance(shape, dict):
        assert isinstance(value, dict), f"{where} is no object: {value!r}"
        needed = {key for key in shape if not key.endswith("?")}
        known = {key.rstrip("?") for key in shape}
        assert needed <= set(value) <= known, f"{where}: {needed - set(value)} missing, {set(value) - known} unknown"
        for key, one in value.items():
            _check(one, shape.get(key, shape.get(f"{key}?")), f"{where}.{key}")
    elif isinstance(shape, list):
        assert isinstance(value, list), f"{where} is no list: {value!r}"
        for i, one in enumerate(value):
            _check(one, shape[0], f"{where}[{i}]")
    elif isinstance(shape, set):
        assert value in shape, f"{where} is {value!r}, not one of {shape}"
    elif isinstance(shape, tuple):
        for one in shape:
            try:
                return _check(value, one, where)
            except (AssertionError, TypeError):
                continue
        raise AssertionError(f"{where} is {value!r}")
    elif shape is None:
        assert value is None, f"{where} is {value!r}"
    elif shape is float:
        assert type(value) in (int, float), f"{where} is {value!r}"
        assert isfinite(value), where
    else:
        assert type(value) is shape, f"{where} is {value!r}, not {shape}"
    return None
