"""README.md of a run that was imported, and of a checkpoint that was exported."""

import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ... import __version__
from ...console import visible
from ...families.family import Family, family
from ...runs.run import Run

EXPORTED = "exported by Pencil"  # the words of a card by which an export is known
LOADED_BY = {
    "transformers": "from transformers import {kind}\nmodel = {kind}.from_pretrained({folder!r})",
    "timm": "import timm\nmodel = timm.create_model({local!r}, pretrained=True)",
    "diffusers": "from diffusers import {kind}\nmodel = {kind}.from_pretrained({folder!r})",
}
# of a picture model whose folder has no image processor; after the lines that load it
PREPARED = """
No image processor of the library prepares pictures as the run does. These lines do; the folder names the classes:

```python
{pictures}

import torch

with torch.no_grad():
    logits = model.eval()(torch.from_numpy(pixels("picture.png"))).logits[0]
best = int(logits.argmax())
print(model.config.id2label[best], float(logits.softmax(-1)[best]))
```
"""


def usage(run: Run, path: Path | None = None) -> str:
    """The command that uses a run."""
    place = shlex.quote(str(path or run.path))
    if "vocab" in run.config["model"] and not (run.path / "tokenizer.json").exists():
        return f"pencil shapes {place}"
    if run.config["model"].get("head") in ("pool", "states"):
        return f'pencil embed {place} --prompt "a text"'
    options = {field.name for field in fields(family(run.family).sample_options)}
    for name, value in (("image", "picture.png"), ("source", '"a text"')):
        if name in options:
            return f"pencil sample {place} --{name} {value}"
    if "prompt" in options and not options & {"max_new_tokens", "label"}:  # it begins with nothing of its own
        text = '"a text"' if run.config["model"].get("classes") else '"a [mask]"'
        return f"pencil sample {place} --prompt {text}"
    return f"pencil sample {place}"


def imported_card(path: Path, record: Family, parameters: int, run: Run) -> str:
    """What the run is and where it is from; how it is used."""
    origin, place = run.config["import"], shlex.quote(str(path))
    revision = f", revision {origin['revision']}" if "revision" in origin else ""
    licence = origin.get("licence") or "not stated: look at the original"
    return f"""# {visible(path.name, one_line=True)}

A {record.name} of {parameters:,} parameters, imported by Pencil {__version__} from `{origin["from"]}`{revision}
({origin["architecture"]} of {origin["library"]}). It was not trained by Pencil. Licence of the original: {licence}.

```
{usage(run, path)}
pencil eval {place} --data DATA
pencil train {record.name} --from {place} --data DATA
```

```python
import pencil
model, tokenizer, run = pencil.load("{path}")
```

`config.toml` has every setting and where the weights are from.
"""


def exported_card(
    path: Path, source: Path, library: str, kind: str, origin: Mapping[str, Any], pictures: str = ""
) -> str:
    """What the checkpoint is, and how the library loads it; `origin` is what a run records of imported weights.

    `pictures` is the code that prepares a picture, where the library has nothing that does.
    """
    folder = str(path)
    loading = LOADED_BY[library].format(kind=kind, folder=folder, local=f"local-dir:{path}")
    head = {"license": origin.get("from_licence"), "base_model": origin.get("from_hub"), "library_name": library}
    lines = "".join(f"{name}: {value}\n" for name, value in head.items() if value)
    first = f" Its first weights are those of `{origin['from_origin']}`." if origin.get("from_origin") else ""
    return f"""---
{lines}---

# {path.name}

A model for {library}, {EXPORTED} {__version__} from the run `{source}`.{first}

```python
{loading}
```
{PREPARED.format(pictures=pictures) if pictures else ""}"""


def onnx_card(path: Path, source: Path, example: str, quantize: str | None) -> str:
    """What the ONNX files are, and the lines of Python that use them, in their folder."""
    rounded = f", with matrices in {quantize}" if quantize else ""
    return f"""# {path.name}

ONNX files, {EXPORTED} {__version__} from the run `{source}`{rounded}. Numbers of rows and of tokens
may be any. In a mask 1 is a token and 0 is padding. The metadata of each file has the labels, how pictures are
prepared and what the tokenizer is, as JSON. In this folder:

```python
{example}```
"""
