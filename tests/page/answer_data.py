"""Answers of small made-up models, as the page is given them; every number follows from random logits."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

WORDS = ["end", "one", "two", "three", "four", "five", "seven", "eight", "nine", "ten", "eleven"]
HEIGHT, WIDTH, ROWS, COLUMNS, DEPTH, HEADS = 14, 22, 2, 3, 3, 2


def png(pixels: np.ndarray) -> str:
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def pixels(address: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.split(",", 1)[1]))).convert("RGB"))


def scene() -> str:
    """White strokes on black, as the pictures a small captioner knows."""
    picture = np.zeros((HEIGHT, WIDTH))
    picture[2:12, 5:7] = picture[3:5, 11:19] = picture[5:12, 15:17] = 255
    return png(picture)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


def token(
    word: int, position: int, temperature: float = 1.0, top_k: int = 0, uniform: float | None = 0.5, seed: int = 5
) -> dict[str, Any]:
    """An output token: `word` is the id with the largest logit, what is drawn follows from the random number."""
    z = np.random.default_rng(seed + position).normal(0, 1.5, len(WORDS))
    z[word] = z.max() + 0.7
    order = np.argsort(-z, kind="stable")
    likely = softmax(z) if uniform is None else softmax(z / temperature)
    kept = np.isin(np.arange(len(z)), order[:top_k] if top_k else order)
    final = likely * kept / (likely * kept).sum()
    if uniform is None:
        kept = np.arange(len(z)) == word
        final = kept.astype(float)
    ends = final.cumsum()
    drawn = word if uniform is None else int(np.searchsorted(ends, uniform, side="right"))
    cell = f"logits[0,{position},{{}}]"
    row = [
        {
            "label": WORDS[i], "id": int(i), "logit": z[i], "scaled": z[i] / (temperature or 1), "probability": likely[i],
            "kept": bool(kept[i]), "cut": "" if kept[i] or uniform is None else "top-k", "final": final[i],
            "from": ends[i] - final[i], "to": ends[i], "drawn": bool(i == drawn),
        }
        for i in order[:7]
    ]  # fmt: skip
    if drawn not in order[:7]:
        raise AssertionError("choose another random number: the drawn token is to be listed")
    plain = softmax(z)
    top = [
        {"label": WORDS[i], "id": int(i), "logit": z[i], "probability": plain[i], "cell": cell.format(i)}
        for i in order[:5]
    ]
    return {
        "text": WORDS[drawn], "id": drawn, "position": position, "cell": cell.format(drawn), "probability": plain[drawn],
        "top": top, "chosen": {"rows": row, "uniform": uniform, "rest": float(likely[order[7:]].sum())},
    }  # fmt: skip


def control(name: str, value: float, least: float, most: float, whole: bool) -> dict[str, Any]:
    return {"name": name, "value": value, "least": least, "most": most, "whole": whole, "help": f"What {name} does."}


SAMPLING = [
    control("tokens", 3, 1, 8, True), control("temperature", 1, 0, 2, False), control("top_k", 0, 0, 100, True),
    control("seed", 0, 0, 9999, True),
]  # fmt: skip


def model(**changes: Any) -> dict[str, Any]:
    return {
        "id": "a", "name": "little", "family": "captioner", "summary": "3 blocks of width 24", "parameters": 12345,
        "step": 600, "depth": DEPTH, "heads": HEADS, "live": True,
        "input": {"picture": {"height": HEIGHT, "width": WIDTH, "channels": 1},
                  "text": {"label": "the caption begins with", "longest": 9, "optional": True}},
        "output": "tokens", "controls": SAMPLING, "example": {"picture": scene()},
        "examples": [{"name": "a scene", "input": {"picture": scene()}}], **changes,
    }  # fmt: skip


def gpt(**changes: Any) -> dict[str, Any]:
    given = {"text": {"label": "text", "longest": 31, "optional": False}}
    example = {"text": "one two"}
    return model(
        family="gpt", input=given, example=example, examples=[{"name": "one two", "input": example}], **changes
    )


def captioned(state: dict[str, Any]) -> dict[str, Any]:
    """What the captioner answers to a state."""
    options = state["input"].get("options", {})
    temperature = options.get("temperature", 1)
    uniform = None if temperature == 0 else 0.5
    some = [token(w, 8 + i, temperature or 1, int(options.get("top_k", 0)), uniform) for i, w in enumerate((6, 7, 0))]
    return {
        "state": state, "milliseconds": 12.5, "words": ["[IMG]", "[IMG]", *(f"patch {i}" for i in range(6)), "begin", *WORDS[6:8]],
        "text": " ".join(one["text"] for one in some[:2]), "tokens": some, "picture": state["input"]["picture"],
        "grid": [ROWS, COLUMNS], "first_patch": 2, "first_word": 8, "notes": [],
    }  # fmt: skip


def continued(state: dict[str, Any]) -> dict[str, Any]:
    """What the text model answers."""
    words = state["input"]["text"].split()
    some = [token(w, len(words) - 1 + i) for i, w in enumerate((3, 4))]
    return {
        "state": state, "milliseconds": 3.0, "words": [*words, some[0]["text"]], "text": "".join(f" {t['text']}" for t in some),
        "tokens": some, "first_word": len(words), "notes": [],
    }  # fmt: skip


def vit(**changes: Any) -> dict[str, Any]:
    given = {"picture": {"height": HEIGHT, "width": WIDTH, "channels": 1}}
    return model(family="vit", input=given, output="classes", controls=[], **changes)


def classified(state: dict[str, Any]) -> dict[str, Any]:
    """The classes of a picture, likeliest first."""
    z = np.random.default_rng(9).normal(0, 2, 7)
    p = softmax(z)
    classes = [
        {"label": f"kind{i}", "id": int(i), "logit": z[i], "probability": p[i], "cell": f"logits[0,{i}]"}
        for i in np.argsort(-z)
    ]
    return {
        "state": state, "milliseconds": 4.0, "words": ["class", *(f"patch {i}" for i in range(6))], "classes": classes,
        "picture": state["input"]["picture"], "grid": [ROWS, COLUMNS], "first_patch": 1, "notes": [],
    }  # fmt: skip


def packed(values: np.ndarray, kind: str = "<f4") -> str:
    return base64.b64encode(np.asarray(values).astype(kind).tobytes()).decode()


def lanes(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for each word that a model reads."""
    found, first = [], answer.get("first_patch", -1)
    rows, columns = answer.get("grid", (0, 0))
    for i, word in enumerate(answer["words"]):
        patch = i - first if "grid" in answer else -1
        if 0 <= patch < rows * columns:
            at = [patch // columns, patch % columns]
            found.append({"label": f"patch {at[0] + 1},{at[1] + 1}", "kind": "patch", "at": at, "written": False})
        else:
            kind = "class" if word == "class" else "special" if word in ("[IMG]", "begin") else "token"
            found.append({"label": word, "kind": kind, "written": i > answer.get("first_word", len(answer["words"]))})
    return found


def rows_of_heads(answer: dict[str, Any], block: int, query: int) -> np.ndarray:
    """Where the heads of a block look from one line: [head, key], nothing after it where a model writes."""
    count = len(answer["words"])
    seen = query + 1 if answer.get("tokens") else count
    rows = np.zeros((HEADS, count))
    rows[:, :seen] = np.random.default_rng([7, block, query]).dirichlet(np.full(seen, 0.4), HEADS)
    return rows


def picture(answer: dict[str, Any]) -> dict[str, Any]:
    stack = {"id": "blocks", "title": "", "lanes": lanes(answer), "stream": "input"}
    stack |= {"grid": answer["grid"]} if "grid" in answer else {}
    columns = [
        {
            "path": f"blocks.{i}.{kind}", "kind": kind, "stack": "blocks", "keys": "blocks", "block": i,
            "heads": HEADS if kind == "attn" else 1, "pattern": f"blocks.{i}.attn.pattern" if kind == "attn" else "",
            "stream": f"blocks.{i}.{'mid' if kind == 'attn' else 'post'}", "normed": "before",
            "thumb": [2, 3] if kind == "attn" else [0, 0],
            "thumbs": packed(np.full((HEADS, 2, 3), 60 * (i + 1)), "u1") if kind == "attn" else "",
        }
        for i in range(DEPTH) for kind in ("attn", "mlp")
    ]  # fmt: skip
    return {"stacks": [stack], "columns": columns}


def picture_of(answer: dict[str, Any], cell: str) -> dict[str, Any]:
    """What all of it did for one logit: random parts, which sum to a value by two ways."""
    tokens = {one["cell"]: one for one in answer.get("tokens", [])}
    query = tokens[cell]["position"] if cell in tokens else 0
    count, generator = len(answer["words"]), np.random.default_rng(11)
    added = [generator.normal(size=HEADS if i % 2 == 0 else 1) for i in range(2 * DEPTH)]
    value = float(sum(one.sum() for one in added)) + 0.5
    inputs = generator.normal(size=count)
    columns = [
        {
            "rows": packed(rows_of_heads(answer, i // 2, query)) if i % 2 == 0 else "", "added": packed(one),
            "ids": [f"blocks.{i // 2}.attn.z:{h}" if i % 2 == 0 else f"blocks.{i // 2}.mlp.act" for h in range(len(one))],
        }
        for i, one in enumerate(added)
    ]  # fmt: skip
    index = ",".join(cell.partition("[")[2].rstrip("]").split(",")[:-1])
    lens = [
        {
            "after": k, "value": float(k), "cell": f"lens.{k - 1}.logits[{index},{k}]", "probability": 0.1 * k, "rank": 1,
            "top": [{"id": k, "label": WORDS[k], "probability": 0.9 - 0.1 * k, "cell": f"lens.{k - 1}.logits[{index},{k}]"}],
        }
        for k in range(DEPTH + 1)
    ]  # fmt: skip
    given = [
        {"id": f"blocks:{i}", "label": lane["label"], "stack": "blocks", "lane": i, "value": inputs[i], "cell": None}
        for i, lane in enumerate(lanes(answer)) if lane["kind"] in ("patch", "token")
    ]  # fmt: skip
    rest = value - sum(one["value"] for one in given)
    return {
        "cell": cell, "label": cell, "value": value, "allowed": 1e-6, "held": [], "stack": "blocks", "query": [query],
        "columns": columns, "rest": [{"id": "bias", "label": "bias", "value": 0.5, "cell": None}], "inputs": given,
        "noInput": [{"id": "positions", "label": "positions", "value": rest, "cell": "positions[0,1]"}], "lens": lens,
    }  # fmt: skip


def patterns() -> dict[str, Any]:
    def layer(i: int) -> dict[str, Any]:
        heads = [
            {"head": h, "names": [], "scored": "", "score": None, "baseline": None, "thumbnail": ""}
            for h in range(HEADS)
        ]
        return {"name": f"blocks.{i}.attn.pattern", "layer": i, "heads": heads, "thumb": [0, 0]}

    return {"groups": [{"name": "", "layers": [layer(i) for i in range(DEPTH)], "queries": [], "keys": []}]}


def outline(tokens: int) -> dict[str, Any]:
    def tensor(name: str, shape: list[int], axes: list[str]) -> dict[str, Any]:
        return {"name": name, "symbol": "A", "formula": "", "shape": shape, "axes": axes, "kind": "softmax", "op": "softmax",
                "dtype": "float32", "portions": "pattern" in name, "path": name.rsplit(".", 1)[0], "named": True}  # fmt: skip

    found = [tensor(f"blocks.{i}.attn.pattern", [1, HEADS, tokens, tokens], ["B", "h", "T", "S"]) for i in range(DEPTH)]
    found.append(tensor("logits", [1, tokens, len(WORDS)], ["B", "T", "V"]))
    node = {
        "path": "",
        "title": "model",
        "kind": "model",
        "parameters": 12345,
        "tensors": [t["name"] for t in found],
        "children": [],
    }
    return {"trace": "k1", "tensors": found, "labels": {}, "facts": {}, "map": node, "start": "logits[0,6,6]"}


def receipt(cell: str) -> dict[str, Any]:
    name, index = cell.rstrip("]").split("[")
    return {
        "cell": cell, "label": cell, "name": name, "index": [int(i) for i in index.split(",")], "kind": "dot", "op": "mm",
        "formula": "1.5 · 2 = 3", "meaning": "", "lines": [f"{cell} = 1.5 · 2 = 3"], "steps": [], "terms": [], "leading": [],
        "reworked": 3.0, "recorded": 3.0, "allowed": 1e-6, "agrees": True, "masked": False,
    }  # fmt: skip


def denoised(state: dict[str, Any]) -> dict[str, Any]:
    """A picture out of noise, in five frames."""
    rng, clean = np.random.default_rng(3), np.zeros((10, 16))
    clean[3:7, 4:12] = 255
    frames = [
        {"step": 4 * i, "time": 1 - i / 4, "picture": png(clean * i / 4 + rng.uniform(0, 255, clean.shape) * (1 - i / 4)),
         **({"clean": png(clean)} if i < 4 else {})}
        for i in range(5)
    ]  # fmt: skip
    return {"state": state, "milliseconds": 900.0, "words": [f"patch {i}" for i in range(8)], "picture": frames[-1]["picture"], "frames": frames,
            "grid": [2, 4], "first_patch": 0, "notes": []}  # fmt: skip


def dit(**changes: Any) -> dict[str, Any]:
    controls = [control("steps", 16, 1, 50, True), control("guidance", 2, 1, 8, False), control("seed", 0, 0, 9999, True),
                control("step", 0, 0, 49, True)]  # fmt: skip
    return model(family="dit", input={"label": {"classes": ["cat", "dog", "none"]}}, output="picture", controls=controls,
                 example={"label": "cat"}, examples=[], **changes)  # fmt: skip
