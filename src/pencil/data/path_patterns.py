"""What --data names besides one path: several paths with commas between them, patterns (*, ?, [..]) and {000..099}."""

import glob
import os
import re
from itertools import takewhile
from pathlib import Path

from ..config import UserError, expand_path
from ..files import check_inside

PREFIX = "hf:"  # of a data set of the hub
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_CHOICE = re.compile(r"\{([^{}]*,[^{}]*)\}")
_COMMA = re.compile(r",(?![^{]*\})")  # not between braces
MOST = 1_000_000  # names that braces may stand for


def is_several(data: str) -> bool:
    """Whether --data is a list or a pattern; a name that is there as it is written is neither."""
    if not data or data == "-" or data.startswith(PREFIX) or os.path.exists(expand_path(data)):
        return False
    return bool(set("*?[,") & set(data)) or bool(_RANGE.search(data))


def expand(data: str) -> list[tuple[Path, bool]]:
    """The paths that a list or a pattern names, in order, each once; and whether each was named without a pattern.

    What lies in a folder that it names, too, comes with the folder.
    """
    named_paths: dict[Path, bool] = {}
    for part in filter(None, map(str.strip, _COMMA.split(data))):
        names = [str(expand_path(name)) for name in _braces(part)]
        matched = [(name, sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else None) for name in names]
        if all(paths == [] for _, paths in matched):
            raise UserError(f"no file matches {part}")
        for name, paths in matched:
            for path in [name] if paths is None else paths:
                if not os.path.exists(path):
                    raise UserError(f"there is no file or folder {path}, which --data {data} names")
                if paths is not None:  # a pattern meets links that nobody named, on the way to a file too
                    _check_way(Path(path), _before_pattern(name))
                named_paths.setdefault(Path(path), paths is None)
    if not named_paths:
        raise UserError(f"--data {data} names no file")
    places = {path: path.resolve() for path in named_paths}
    folders = {place for place in places.values() if place.is_dir()}
    first = {place: path for path, place in reversed(places.items())}
    return [
        (path, named)
        for path, named in named_paths.items()
        if first[places[path]] == path and not folders.intersection(places[path].parents)
    ]


def _check_way(path: Path, folder: Path) -> None:
    """Refuse links out of the folder in which a pattern has found a path, on the whole way to it."""
    for place in takewhile(lambda place: place != folder, (path, *path.parents)):
        check_inside(place, folder)


def _before_pattern(name: str) -> Path:
    """The folder in which a pattern searches."""
    return Path(name[: next(i for i in range(len(name)) if glob.has_magic(name[: i + 1]))] + "x").parent


def _braces(part: str) -> list[str]:
    """A name with its braces written out: {7..12} counts, with the zeros it is written with; {a,b} is one or other."""
    braces = _RANGE.search(part) or _CHOICE.search(part)
    if braces is None:
        return [part]
    if braces.re is _CHOICE:
        values = braces[1].split(",")
    else:
        first, last = int(braces[1]), int(braces[2])
        if not 0 <= last - first < MOST:
            raise UserError(f"{braces[0]} in --data should count up, to at most {MOST:,} names")
        values = [f"{number:0{len(braces[1])}}" for number in range(first, last + 1)]
    return [name for value in values for name in _braces(part[: braces.start()] + value + part[braces.end() :])]


def absolute(data: str) -> str:
    """A list or a pattern that means the same from any working folder."""
    parts = filter(None, map(str.strip, _COMMA.split(data)))
    return ",".join(os.path.abspath(expand_path(part)) for part in parts)


def common_name(paths: list[Path]) -> str:
    """A name for several files: that of the folder they are in, or of the first."""
    folders = {path.resolve().parent for path in paths}
    return (folders.pop().name if len(folders) == 1 else paths[0].stem.partition(".")[0]) or "root"
