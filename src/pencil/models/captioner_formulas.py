"""The formulas of a captioner: of the two parts of its sequence, as its config has them."""

from typing import Any

from .parts import describe

# the symbols of a position scheme, with the part of the sequence it is of
_SYMBOLS = {
    "P": "P_{}", "θ": "θ_{}", "B": "B_{}", "r": "r_{}", "b": "b_{}", "a_K": "a_K,{}", "r_a": "r_{},a", "b_a": "b_{},a",
}  # fmt: skip


def declare(model: Any) -> None:
    """Write the tables that `core/notation.py` reads."""
    c = model.config
    describe(model, model.positions, model.mask.words)
    parts = {"image_positions": "img", "positions": "txt"}
    model.SYMBOLS |= {path: {a: b.format(part) for a, b in _SYMBOLS.items()} for path, part in parts.items()}
    image = "{I′|I}" + ("" if c.delimiter_positions else "⟨ + P_img⟩")
    begin, end = "[IMG]; " if c.begin_marks else "", "; [/IMG]" if c.end_marks else ""
    image = f"[{begin}{image}{end}]" if begin or end else image
    image += ("⟨ + P_img⟩" if c.delimiter_positions else "") + "⟨ + T_img⟩"
    text = "{X_txt|E[t]}⟨ + P_txt⟩⟨ + T_txt⟩"
    model.NAMES = type(model).NAMES | {"picture": ("B M D", "I⁰", image), "text": ("B t D", "X_txt⁰", text)}
    model.INNER = {"patches.out": ("B N E", "I", "X_patch W_patch⟨ + b_patch⟩")}
    model.LETTERS = {}
    for path, letter, axis in (("positions", "t", "1"), ("image_positions", "N", "a")):
        for name, (axes, symbol, formula) in getattr(getattr(model, path), "NAMES", {}).items():
            axes = axes.replace("T", letter) if name in ("embedding", "angles") else axes.replace("a", axis)
            model.INNER[f"{path}.{name}"] = (axes, symbol, formula)
    schemes = (model.image_positions, "img", "image"), (model.positions, "txt", "text")
    biases = [f"{added} within the {name}" for scheme, part, name in schemes if (added := scheme.bias_formula(part))]
    if biases:
        for i in range(c.depth):
            model.INNER[f"blocks.{i}.attn.bias"] = ("B h T S", "B", " + ".join(biases))
