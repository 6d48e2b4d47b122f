"""Checkpoints of the Hugging Face hub: from its cache without a network, or downloaded, at a pinned revision."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from shutil import disk_usage
from types import ModuleType
from typing import NamedTuple

from ..config import UserError, closest, expand_path, install
from ..files import read_text

HUBS = ("hf", "timm", "diffusers")
LOCAL = ("nanogpt",)  # libraries whose checkpoints are files, not on the hub
# beside the weights: settings, tokenizers, how pictures are prepared, how vectors are pooled, the card
OTHERS = re.compile(
    r"(config|generation_config|preprocessor_config|processor_config|tokenizer|tokenizer_config|special_tokens_map"
    r"|added_tokens|vocab|modules|sentence_bert_config|config_sentence_transformers|model_index)\.json"
    r"|chat_template\.jinja|vocab\.txt|merges\.txt|[\w-]+\.(model|spm)|1_Pooling/config\.json|README\.md|LICENSE[\w.]*"
)
NAMES = "model|pytorch_model|diffusion_pytorch_model|open_clip_pytorch_model"
ONE = rf"({NAMES})\.{{}}"
SHARDS = rf"({NAMES})(-\d+-of-\d+\.{{0}}|\.{{0}}\.index\.json)"
# the checkpoints that timm takes for a name without a tag
TIMM_TAGS = {
    "augreg2_in21k_ft_in1k": "vit_base_patch8_224 vit_base_patch16_224",
    "augreg_in21k_ft_in1k": "vit_tiny_patch16_224 vit_tiny_patch16_384 vit_small_patch16_224 vit_small_patch16_384 "
    "vit_small_patch32_224 vit_small_patch32_384 vit_base_patch16_384 vit_base_patch32_224 vit_base_patch32_384 "
    "vit_large_patch16_224 vit_large_patch16_384",
    "orig_in21k": "vit_large_patch32_224 vit_huge_patch14_224",
    "orig_in21k_ft_in1k": "vit_large_patch32_384",
    "dino": "vit_small_patch8_224",
    "fb_in1k": "deit_tiny_patch16_224 deit_small_patch16_224 deit_base_patch16_224 deit_base_patch16_384 "
    "deit3_small_patch16_224 deit3_small_patch16_384 deit3_medium_patch16_224 deit3_base_patch16_224 "
    "deit3_base_patch16_384 deit3_large_patch16_224 deit3_large_patch16_384",
}
PIPELINE, TRANSFORMER = "model_index.json", "transformer/"  # of diffusers: the list of its parts, and ours of them
SECONDS = 20  # to wait for the hub's answer
Notify = Callable[[str], None]


class Fetched(NamedTuple):
    """A checkpoint of the hub on this machine."""

    folder: Path
    revision: str | None  # the commit
    licence: str | None  # by its card


class Place(NamedTuple):
    """A model of the hub."""

    name: str
    revision: str | None


def find_here(what: str) -> tuple[str, Path | None]:
    """The library that a name begins with, and where its files are on this machine; None where they are to be fetched.

    What is neither here nor the name of a checkpoint is refused.
    """
    library, colon, rest = what.partition(":")
    if not colon or Path(what).exists():
        path = expand_path(what)
        if not path.exists():
            hub = f"; on the hub it is hf:{what}" if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", what) else ""
            raise UserError(f"there is no file or folder {what}{hub}")
        return "", path
    path = expand_path(rest)
    if library not in (*HUBS, *LOCAL):
        close = closest(library, (*HUBS, *LOCAL))
        meant = f"did you mean {close}:{rest}?" if close else "it begins with hf:, timm:, diffusers: or nanogpt:"
        raise UserError(f"{what} is neither a path nor the name of a checkpoint; {meant}")
    if path.exists():
        return library, path
    if library in LOCAL:
        raise UserError(f"there is no file or folder {rest}")
    return library, None


def parse_name(what: str) -> Place:
    """hf:OWNER/NAME[@REVISION], timm:NAME or diffusers:OWNER/NAME; without a prefix as with hf."""
    library, colon, rest = what.partition(":")
    library, rest = (library, rest) if colon else ("hf", what)
    name, _, revision = rest.partition("@")
    if library == "timm" and "/" not in name:
        tags = [] if "." in name else [tag for tag, names in TIMM_TAGS.items() if name in names.split()]
        name = f"timm/{name}{'.' if tags else ''}{''.join(tags)}"
    if not re.fullmatch(r"[\w-][\w.-]{0,95}/[\w.-]{1,96}", name) or not re.fullmatch(r"[\w./-]*", revision):
        form = "timm:NAME" if library == "timm" else f"{library}:OWNER/NAME[@REVISION]"
        raise UserError(f"{what} is not a name of the hub, which is written {form}")
    return Place(name, revision or None)


def fetch_checkpoint(what: str, notify: Notify = lambda line: None) -> Fetched:
    """The files of a checkpoint that are needed: those in the hub's cache if they are all there, else downloaded."""
    place = parse_name(what)
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(f"models of the hub need a package: {install('hub')}") from None
    snapshot = _cached(huggingface_hub, place)
    if snapshot is not None and _whole(snapshot):
        fetched = _fetched(snapshot)
        notify(f"{place.name} is in the hub's cache, at revision {fetched.revision}: nothing is downloaded.")
        return fetched
    try:
        info = huggingface_hub.HfApi().model_info(
            place.name, revision=place.revision, files_metadata=True, timeout=SECONDS
        )
        sizes = needed({one.rfilename: one.size or 0 for one in info.siblings or ()}, place)
        pinned = Place(place.name, info.sha)
        _check_space(huggingface_hub, pinned, sizes)
        return _fetched(_download(huggingface_hub, pinned, sizes, notify))
    except UserError:
        raise
    except Exception as error:  # of the package, of its network library, of the system
        raise UserError(_explained(error, place)) from None


def needed(sizes: Mapping[str, int], place: Place) -> dict[str, int]:
    """The files of a model that are read, with their sizes; of the weights one kind, safetensors before pickles."""
    part = TRANSFORMER if PIPELINE in sizes else ""
    inner = [name.removeprefix(part) for name in sizes if name.startswith(part)]
    weights = _weights(inner)
    if not weights:
        raise UserError(
            f"{place.name} on the hub holds no weights that can be read: neither safetensors nor pytorch_model.bin"
        )
    names = {part + name for name in weights} | {name for name in sizes if OTHERS.fullmatch(name.removeprefix(part))}
    names |= {name for name in sizes if part and re.fullmatch(rf"scheduler/\w+\.json|{PIPELINE}|README\.md", name)}
    return {name: sizes[name] for name in sorted(names)}


def _weights(names: Iterable[str]) -> list[str]:
    names = list(names)
    for ending in ("safetensors", "bin"):
        for pattern in (SHARDS, ONE):
            matching = [name for name in names if re.fullmatch(pattern.format(ending), name)]
            if matching and (pattern is ONE or any(name.endswith(".index.json") for name in matching)):
                return matching
        matching = [name for name in names if re.fullmatch(rf"[\w.-]+\.{ending}", name)]
        if len(matching) == 1 and ending == "safetensors":
            return matching
    return []


def _cached(hub: ModuleType, place: Place) -> Path | None:
    """The snapshot of a model in the hub's cache."""
    for name in (PIPELINE, "config.json"):
        path = hub.try_to_load_from_cache(place.name, name, revision=place.revision)
        if isinstance(path, str):
            return Path(path).parent
    return None


def _whole(folder: Path) -> bool:
    """Whether a snapshot has the weights, and what text or pictures need; other programs fetch files one by one."""
    pipeline = (folder / PIPELINE).exists()
    inner = folder / TRANSFORMER if pipeline else folder
    names = [path.name for path in inner.iterdir() if path.exists()] if inner.is_dir() else []
    weights = _weights(names)
    for index in [name for name in weights if name.endswith(".index.json")]:
        shards = set(re.findall(r'"([\w.-]+\.(?:safetensors|bin))"', read_text(inner / index, 50_000_000)))
        if not shards <= set(names):
            return False
    prepares = any("tokenizer" in name or "processor" in name or name.startswith("vocab") for name in names)
    timm = not pipeline and "config.json" in names and '"architecture"' in read_text(inner / "config.json")
    return bool(weights) and "config.json" in names and (prepares or pipeline or timm)


def _check_space(hub: ModuleType, place: Place, sizes: Mapping[str, int]) -> None:
    """Refuse a download that does not fit on the disk; what is in the cache already is not downloaded."""
    from huggingface_hub import constants

    cached = {name: hub.try_to_load_from_cache(place.name, name, revision=place.revision) for name in sizes}
    missing = [name for name, path in cached.items() if not isinstance(path, str)]
    folder = Path(constants.HF_HUB_CACHE)
    there = next(one for one in (folder, *folder.parents) if one.exists())
    wanted, free = sum(sizes[name] for name in missing), disk_usage(there).free
    if wanted > free:
        raise UserError(
            f"{place.name} needs {_size(wanted)} to download and {folder} has {_size(free)} free; make room, or set "
            "HF_HOME to a folder with more"
        )


def _download(hub: ModuleType, place: Place, sizes: Mapping[str, int], notify: Notify) -> Path:
    """The snapshot's folder, with these files in it; small ones first."""
    from huggingface_hub import utils

    total = _size(sum(sizes.values()))
    notify(f"Downloading {place.name}, {total} in {len(sizes)} files, at revision {place.revision}.")
    bars = sys.stderr.isatty()
    if not bars:
        utils.disable_progress_bars()
    folder = None
    try:
        for name in sorted(sizes, key=lambda one: sizes[one]):
            if not bars and sizes[name] > 10_000_000:
                notify(f"  {name}, {_size(sizes[name])}")
            path = Path(hub.hf_hub_download(place.name, name, revision=place.revision))
            folder = path.parents[name.count("/")]
    finally:
        if not bars:
            utils.enable_progress_bars()
    assert folder is not None  # the weights at least
    return folder


def _fetched(folder: Path) -> Fetched:
    revision = folder.name if re.fullmatch("[0-9a-f]{40}", folder.name) else None
    return Fetched(folder, revision, licence_in(folder))


def licence_in(folder: Path) -> str | None:
    """The licence that a model card names in the lines before its text; None where it names none."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    try:
        head = re.match(r"\A---\n(.*?)\n---", read_text(card).replace("\r", ""), re.DOTALL)
    except UserError:
        return None
    lines = head[1] if head else ""
    if listed := re.search(r"^license:[ \t]*((?:\n[ \t]*- .+)+)", lines, re.MULTILINE):
        return ", ".join(line.strip(" -\t'\"") for line in listed[1].strip().splitlines())
    about = dict(re.findall(r"^(license|license_name):[ \t]*['\"]?([\w.+ -]+?)['\"]?[ \t]*$", lines, re.MULTILINE))
    return about.get("license_name") or about.get("license")


def _explained(error: Exception, place: Place) -> str:
    """One sentence for what the hub's package raised, with what to do."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "GatedRepoError" in kinds:
        return f"{place.name} asks for its licence to be accepted: do so on its page of the hub, then: hf auth login"
    if "RevisionNotFoundError" in kinds:
        return f"{place.name} has no revision {place.revision} on the hub"
    if "RepositoryNotFoundError" in kinds:
        return f"there is no model {place.name} on the hub, or it is private and you are not logged in"
    folder, revision = place.name.split("/")[1], f" --revision {place.revision}" if place.revision else ""
    return (
        f"{place.name} is not in the hub's cache, and the hub cannot be reached ({type(error).__name__}); where it "
        f"can be, run: hf download {place.name}{revision} --local-dir {folder}; then copy that folder here and give "
        "its path"
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
