"""Make the page's typeface: STIX Two, cut down to the letters and signs that the page and its formulas use.

    npm pack @fontsource/stix-two-text@5.3.0 @fontsource/stix-two-math@5.3.0     # in a folder; unpack each there
    pip install fonttools==4.68.0 brotli==1.2.1
    python tools/typeface.py FOLDER                                   # writes web/src/fonts and fonts.css there

FOLDER holds `text` and `math`, the two packages unpacked. The same packages and versions give the same bytes.
"""

import sys
from pathlib import Path

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

OUT = Path(__file__).resolve().parents[1] / "web" / "src" / "fonts"
LATIN = [*range(0x20, 0x7F), *range(0xA0, 0x180), *map(ord, "–—‘’“”„…‒•′″⁄€‐‑‹›")]
GREEK = [*range(0x391, 0x3CA), 0x3D1, 0x3D5]
# superscripts, subscripts, accents over letters, arrows, operators, brackets, shapes, and letters with a meaning
SIGNS = [*range(0x2070, 0x209D), *map(ord, "ˡᵀᵗᵢᴸℓ∂∅∇∈∏∑−∓∘√∝∞∥‖∩∪≈≠≡≤≥≪≫⊕⊖⊗⊙⊤⊥⋅⋮⋯←↑→↓↔↵⇒⌈⌉⌊⌋⟨⟩◐○●▸▾▴✓✗∗×÷±ᾱ𝒰ℝ̂̃̄")]
PARTS = {
    "latin": ("text", ("latin", "latin-ext"), "400-normal", LATIN),
    "latin-italic": ("text", ("latin", "latin-ext"), "400-italic", LATIN),
    "latin-bold": ("text", ("latin",), "700-normal", LATIN),
    "greek": ("text", ("greek",), "400-normal", GREEK),
    "greek-italic": ("text", ("greek",), "400-italic", GREEK),
    "signs": ("math", ("latin",), "400-normal", SIGNS),
}


def cut(source: Path, letters: list[int], out: Path) -> list[int]:
    """Write the part of a font that has these letters; the letters it has."""
    options = Options()
    options.flavor, options.hinting, options.desubroutinize = "woff2", False, True
    options.layout_features = ["kern", "liga", "mark", "mkmk", "ccmp", "tnum", "lnum"]
    options.drop_tables += ["MATH", "DSIG"]
    font = TTFont(source, recalcTimestamp=False)
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=letters)
    subsetter.subset(font)
    font.flavor = "woff2"
    font.save(out)
    return sorted(font.getBestCmap())


def ranges(letters: list[int]) -> str:
    """Letters as CSS has them: U+20-7e, U+a0."""
    runs: list[list[int]] = []
    for one in letters:
        if runs and one == runs[-1][1] + 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    return ", ".join(f"U+{a:x}" if a == b else f"U+{a:x}-{b:x}" for a, b in runs)


def face(name: str, letters: list[int]) -> str:
    style, weight = "italic" if "italic" in name else "normal", 700 if "bold" in name else 400
    return (
        f'@font-face {{\n  font-family: "STIX Two"; font-style: {style}; font-weight: {weight}; font-display: swap;\n'
        f'  src: url("./{name}.woff2") format("woff2");\n  unicode-range: {ranges(letters)};\n}}\n'
    )


def main(folder: Path) -> None:
    OUT.mkdir(exist_ok=True)
    total, faces = 0, list[str]()
    for name, (package, alphabets, style, letters) in PARTS.items():
        for alphabet in alphabets:
            source = folder / package / "files" / f"stix-two-{package}-{alphabet}-{style}.woff2"
            own = "-more" if alphabet == "latin-ext" else ""
            out = OUT / f"{name}{own}.woff2"
            have = set(TTFont(source).getBestCmap())
            wanted = [one for one in letters if one in have]
            if wanted:
                faces.append(face(out.stem, cut(source, wanted, out)))
                total += out.stat().st_size
                print(f"{out.name}: {len(wanted)} letters, {out.stat().st_size:,} bytes")
    (OUT / "fonts.css").write_text("/* Written by tools/typeface.py. */\n" + "".join(faces), encoding="utf-8")
    licence = (folder / "text" / "LICENSE").read_text(encoding="utf-8")
    (OUT / "LICENSE").write_text(licence.strip() + "\n", encoding="utf-8")
    print(f"{total:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
