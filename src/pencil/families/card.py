"""README.md of a run that was imported, and of a checkpoint that was exported."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from ..runs import Run
from .record import Family

LOADED_BY = {
    "transformers": "from transformers import {kind}\nmodel = {kind}.from_pretrained({folder!r})",
    "timm": "import timm\nmodel = timm.create_model({local!r}, pretrained=True)",
    "diffusers": "from diffusers import {kind}\nmodel = {kind}.from_pretrained({folder!r})",
}


def usage(run: Run, path: Path | None = None) -> str:
    """The command that uses a run."""
    place = shlex.quote(str(path or run.path))
    if "vocab" in run.config["model"] and not (run.path / "tokenizer.json").exists():
        return f"pencil shapes {place}"
    if run.config["model"].get("head") in ("pool", "states"):
        return f'pencil embed {place} --prompt "a text"'
    return f"pencil sample {place}"


def imported_card(path: Path, record: Family, parameters: int, run: Run) -> str:
    """What the run is and where it is from; how it is used."""
    origin, place = run.config["import"], shlex.quote(str(path))
    revision = f", revision {origin['revision']}" if "revision" in origin else ""
    licence = origin.get("licence") or "not stated: look at the original"
    return f"""# {path.name}

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


def exported_card(path: Path, source: Path, library: str, kind: str, facts: Mapping[str, Any]) -> str:
    """What the checkpoint is, and how the library loads it."""
    folder = str(path)
    loading = LOADED_BY[library].format(kind=kind, folder=folder, local=f"local-dir:{path}")
    licence = facts.get("licence")
    head = (
        f"---\nlicense: {licence}\nlibrary_name: {library}\n---\n\n"
        if licence
        else f"---\nlibrary_name: {library}\n---\n\n"
    )
    return f"""{head}# {path.name}

A model for {library}, exported by Pencil {__version__} from the run `{source}`.

```python
{loading}
```
"""
