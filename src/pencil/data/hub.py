"""Images of the Hugging Face hub, through the `datasets` package (an extra)."""

import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ..config import UserError, package, refused
from ..console import note
from ..files import check_links, check_regular
from .cache import hash_files
from .images.datasets import FileExamples, Skipped, Target
from .images.image_data import CAPTIONED_AUGMENTATION, PHOTO_AUGMENTATION, ImageData, check_classes
from .path_patterns import PREFIX
from .split import SPLIT, Picture, copies, hold_out, in_two_classes, not_evaluated

HUB_TIMEOUT_SECONDS = 10
FORMER = "hub:"  # how versions before 0.8 wrote the prefix


def current_form(data: str) -> str:
    """Data of the hub as it is written now: hf:OWNER/NAME."""
    return PREFIX + data.removeprefix(FORMER) if data.startswith(FORMER) else data


@cache
def say_current_form(data: str) -> None:
    """Tell, once, a user who wrote it as before."""
    if (now := current_form(data)) != data:
        note(f"{data} is now written {now}")


@contextmanager
def offline_if_unreachable(name: str, model: bool = False) -> Iterator[None]:
    """Have libraries look into their caches alone where the hub gives no answer: they would ask for half a minute.

    `name` is that of a data set, or of a model.
    """
    import huggingface_hub

    modules: list[Any] = []
    if not Path(name).is_dir():
        api = huggingface_hub.HfApi()
        try:
            (api.model_info if model else api.dataset_info)(name, timeout=HUB_TIMEOUT_SECONDS)
        except (huggingface_hub.errors.HfHubHTTPError, huggingface_hub.errors.HFValidationError):
            pass  # an answer, or a name that is none: loading it says what is wrong
        except Exception:  # of the network library, which other versions have another of
            modules = [huggingface_hub.constants]
            if not model:
                import datasets

                modules.append(vars(datasets)["config"])
    former = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, value in zip(modules, former, strict=True):
            module.HF_HUB_OFFLINE = value


class Cell:
    """One image of a table, read when it is decoded."""

    def __init__(self, table: Any, row: int, column: str, name: str):
        self.table, self.row, self.column, self.name = table, row, column, name

    def open(self) -> io.BufferedIOBase:
        cell = self.table[self.row][self.column]
        if cell["bytes"] is not None:
            return io.BytesIO(cell["bytes"])
        path = Path(cell["path"])
        check_regular(path)
        return path.open("rb")


def from_hub(source: str, want: str, split: int = SPLIT) -> ImageData:
    """What follows hf: (OWNER/NAME, with @REVISION or the newest), or a folder of parquet files for `datasets`.

    `split` is the rule by which a part is held out, where the data set has none.
    """
    name, _, revision = (source, "", "") if Path(source).is_dir() else source.partition("@")
    if Path(name).is_dir():
        check_links(Path(name))
    datasets = package("datasets", "hub data sets need the datasets package", "hub-data")
    with refused(f"hf:{name} cannot be loaded"), offline_if_unreachable(name):
        data_set = datasets.load_dataset(name, revision=revision) if revision else datasets.load_dataset(name)
    features = next(iter(data_set.values())).features
    pictures = [key for key, kind in features.items() if isinstance(kind, datasets.Image)]
    if want == "label":
        targets = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    else:
        words = [key for key, kind in features.items() if getattr(kind, "dtype", None) == "string"]
        targets = [key for key in ("text", "caption") if key in words] or (words if len(words) == 1 else [])
    if not pictures or not targets:
        raise UserError(f"hf:{name} has columns {', '.join(features)}: no picture with a {want} among them")
    column, target = pictures[0], targets[0]
    names = tuple(map(str, features[target].names)) if want == "label" else ()
    skipped: Skipped = []
    notes: list[str] = []

    def cells(part: str, table: Any) -> list[Cell]:
        bare = table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
        return [Cell(bare, i, column, f"{part} row {i}") for i in range(len(table))]

    def examples(part: str, table: Any) -> FileExamples:
        values: list[Target] = list(table[target])
        without = sum(value in (None, "", -1) for value in values)
        if without:
            raise UserError(f"the {part} part of hf:{name} has {without} pictures without a {want}")
        return FileExamples(cells(part, table), values, skipped)

    def divided(part: Any, table: Any) -> dict[str, Any]:
        """The rows to train on and those held out of a data set without parts."""
        if split == 1:
            return dict(table.train_test_split(test_size=0.1, seed=0))
        contents = [_content(cell) for cell in cells(part, table)]
        rows = list(enumerate(table[target]))
        test_rows, train_rows = hold_out(rows, want, contents, split)
        if not test_rows:
            enough = "two different ones of each class" if want == "label" else "two different ones"
            raise UserError(f"hf:{name} has too few pictures: none is left to evaluate on; {enough} would do")
        if want == "label":
            classes = {i: str(names[label]) for i, label in rows if label not in (None, -1)}
            notes.extend(not_evaluated(list(classes.values()), {classes.get(i, "") for i, _ in test_rows}, "pictures"))
            pictures = [Picture(f"row {i}", label, contents[i]) for i, label in classes.items()]
            notes.extend([*in_two_classes(pictures), *copies(pictures)])
        return {"train": table.select([i for i, _ in train_rows]), "test": table.select([i for i, _ in test_rows])}

    # some test splits are published without labels, as -1
    held_out = [key for key in ("test", "validation", "valid", "val") if key in data_set and "train" in data_set]
    held_out = [key for key in held_out if -1 not in set(data_set[key][target])] or held_out
    if held_out:
        parts = {"train": data_set["train"], held_out[0]: data_set[held_out[0]]}
    else:
        parts = divided(*next(iter(data_set.items())))
    train, test = (examples(str(part), table) for part, table in parts.items())
    if want == "label":
        check_classes([str(names[i]) for i in set(train.targets)], f"hf:{name}")
    targets, version = [train.targets, test.targets], _version(Path(name), data_set)
    return ImageData(
        name.rstrip("/").split("/")[-1],
        hashlib.sha256(repr([*targets, version]).encode()).hexdigest(),
        train,
        test,
        names,
        dict(image_size=(64, 64), channels=3, patch=(8, 8)),
        PHOTO_AUGMENTATION if want == "label" else CAPTIONED_AUGMENTATION,
        skipped=skipped,
        select_best="test" not in held_out[:1],
        pinned=f"hf:{name}@{version}" if isinstance(version, str) else "",
        former_hash=lambda: hashlib.sha256(repr(targets).encode()).hexdigest(),
        notes=notes,
        split=1 if held_out else split,
    )


def _content(cell: Cell) -> str:
    """A hash of a picture's bytes; of one that cannot be read, which is left out when it is decoded, its own name."""
    try:
        return hashlib.sha256(cell.open().read()).hexdigest()
    except Exception:  # a path that is missing, or none
        return cell.name


def contents_of(folder: Path) -> list[tuple[str, str]]:
    """The files of a folder with the hash of each, which are its version."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), sha) for path, sha in hash_files(folder, files).items()]


def _version(folder: Path, data_set: Any) -> str | list[tuple[str, str]] | None:
    """The commit of a data set of the hub, which `datasets` names its cached files by; of a folder, its contents."""
    if folder.is_dir():
        return contents_of(folder)
    parts = (part for table in data_set.values() for file in table.cache_files for part in Path(file["filename"]).parts)
    return next((part for part in parts if re.fullmatch("[0-9a-f]{40}", part)), None)
