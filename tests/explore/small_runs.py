"""Small runs of every family, written to a folder: untrained, with weights large enough that the numbers differ."""

from pathlib import Path

import torch

from pencil.api.loading import SETTINGS_VERSION
from pencil.data.builtin import WORDS
from pencil.data.tokenizers.tokenizer import CharTokenizer, train_bpe
from pencil.families import create, family
from pencil.runs.run import Run

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:-/'\n"
PICTURE = dict(image_size=(8, 8), channels=1, patch=(2, 2))


def _captions():
    return train_bpe([" above ".join((a, b)) + f" left of {a} at the top" for a in WORDS for b in WORDS], 280)


def _characters(ended=True):
    return CharTokenizer(LETTERS, ended)


# family, the model's settings, its tokenizer, and what its run knows besides
RUNS = {
    "gpt": ("gpt", dict(context=31, width=24, depth=3, heads=3, hidden=40), _characters, {}),
    "vit": ("vit", dict(PICTURE, classes=10, width=20, depth=2, heads=5, hidden=30), None,
            dict(data="digits", classes=[str(i) for i in range(10)])),
    "vit-mean": ("vit", dict(image_size=(10, 15), channels=3, patch=(5, 3), classes=3, width=14, depth=1, heads=7, hidden=22,
                             pool="mean"), None, dict(classes=["cat", "dog", "owl"])),
    "captioner": ("captioner", dict(image_size=(16, 16), channels=1, patch=(4, 4), context=24, width=24, depth=3, heads=4,
                                    hidden=36), _captions, dict(data="scenes")),
    "seq2seq": ("seq2seq", dict(context=17, source_context=37, width=28, depth=2, heads=2, hidden=30), _characters,
                dict(data="dates")),
    "reader": ("reader", dict(context=29, width=18, depth=2, heads=3, hidden=26), _characters, {}),
    "reader-label": ("reader", dict(context=29, width=18, depth=2, heads=3, hidden=26, classes=3),
                     _characters, dict(classes=["calm", "glad", "sad"])),
    "reader-vector": ("reader", dict(context=29, width=18, depth=2, heads=3, hidden=26, head="states"),
                      _characters, {}),
    "dit": ("dit", dict(PICTURE, classes=10, width=24, depth=2, heads=3, hidden=30), None,
            dict(data="digits", classes=[str(i) for i in range(10)])),
    "dit-text": ("dit", dict(image_size=(16, 16), channels=1, patch=(4, 4), context=24, width=16, depth=2, heads=2, hidden=22),
                 _captions, dict(data="scenes")),
    "dit-video": ("dit", dict(image_size=(6, 8), channels=1, patch=(3, 4), frames=4, patch_frames=2, classes=5, width=12,
                              depth=2, heads=2, hidden=18, attention="factored", noise_schedule="linear"), None,
                  dict(classes=["a", "b", "c", "d", "e"])),
    "dit-none": ("dit", dict(PICTURE, width=12, depth=1, heads=2, hidden=18), None, {}),
}  # fmt: skip
FIRST = ("gpt", "vit", "captioner", "seq2seq", "reader", "dit")  # one of each family


def stirred(model, deviation=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator) * deviation
            p.copy_(1 + noise / 3 if p.ndim == 1 and p.mean() > 0.5 else noise)
    return model.eval()


def write_run(name: str, folder: Path, seed: int = 0, **changed) -> Path:
    """One of the runs, in a folder of its own."""
    kind, settings, tokenizer, facts = RUNS[name]
    made = tokenizer() if tokenizer else None
    settings = {**settings, **changed}
    if made is not None and "vocab" not in settings:
        settings["vocab"] = made.vocab + (name == "reader")  # one more is the mask
    config = family(kind).read_config(settings)
    model = stirred(create(kind, config), seed=seed)
    tables = {
        "run": {"family": kind, "settings": SETTINGS_VERSION, "pencil": "0.7.0", **facts},
        "model": {key: value for key, value in settings.items() if value is not None},
        "train": {},
    }
    run = Run.create(folder / name, tables, made)
    run.write_weights(model, {"step": 300})
    return folder / name
