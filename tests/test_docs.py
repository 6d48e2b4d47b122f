"""Every command in README and docs runs here, shortened, unless it is marked as needing a GPU or a network.

Commands are the lines of fenced blocks that begin with `pencil` (or `$ pencil`, whose printed output is checked too), and
`pencil …` within a sentence or a table, unless it only names a verb or has a placeholder such as RUN. Training is cut to
two steps. Files that a command names are made first, and so are the runs it uses. Benchmarks have tests of their own.
"""

import ast
import importlib
import io
import json
import re
import shlex
import sys
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import unchecked
from foreign import MAKERS
from pencil.cli.main import main
from pencil.learn.walks.data import document as walk_document

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_HERE = [page for page in PAGES if page.name != "extend.md"]  # whose commands need its code: tests/test_extend.py
PROMPT = re.compile(
    r"^\S[\w ]* → [\w ]*\S: (.*)\n", re.M
)  # an answer typed in a transcript; over a pipe there are no prompts
MARK = re.compile(r"#.*needs (a GPU|a network)")
# the other verbs need more words
ALONE = {"pencil kata", "pencil lab", "pencil demo", "pencil doctor", "pencil explore"}
PLACEHOLDER = re.compile(r"…|\b[A-Z]{3,}\b")
SLOW = re.compile(
    r"^pencil (lab|demo|bench|heads runs/twice|cost .*--measure)"
)  # minutes: run by `make test-all`, or elsewhere
SHORT = ["--train.steps", "2", "--train.eval_every", "2", "--train.eval_batches", "1", "--train.save_every", "2",
         "--train.batch", "4", "--train.warmup", "0"]  # fmt: skip
RUNS = {
    "notes-gpt": "gpt --data notes.txt", "pydoc-gpt": "gpt", "digits-vit": "vit", "photos-vit": "vit --data photos/", "mnist-vit": "vit",
    "album-captioner": "captioner --data album/", "scenes-captioner": "captioner", "dates-seq2seq": "seq2seq",
    "reviews-reader": "reader --data reviews.tsv", "notes-reader": "reader --data notes.txt", "digits-dit": "dit",
    "moving-digits-dit": "dit --data moving-digits", "album-dit": "dit --data album/", "pairs-seq2seq": "seq2seq --data pairs.tsv",
}  # fmt: skip


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page: their language and their text."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


NAMED = re.compile(r"^`([\w-]+\.toml)`:\n\n```toml\n(.*?)```", re.M | re.S)  # a file, and what is in it


def write_file(page: Path, words: list[str]) -> None:
    """A csv or toml block is the file that the command in the next block names, unless its own name stands above it."""
    found, named = blocks(page), dict(NAMED.findall(page.read_text(encoding="utf-8")))
    for name, text in named.items():
        Path(name).write_text(text, encoding="utf-8")
    for (language, text), (_, after) in pairwise(found):
        if text.strip() in map(str.strip, named.values()):
            continue
        names = [word for word in words if language in ("csv", "toml") and word.endswith(f".{language}")]
        if names and after.startswith(f"$ {shlex.join(['pencil', *words])}\n"):
            Path(names[0]).write_text(text, encoding="utf-8")


def commands(page: Path, before: str = "") -> list[tuple[str, str | None]]:
    """The commands of a page, and what a transcript shows after each."""
    found: list[tuple[str, str | None]] = []
    for language, text in blocks(page):
        if language in ("python", "csv", "toml", "diff", "text"):
            continue
        shown: list[str] | None = None
        for line in text.splitlines():
            if line.startswith("$ "):
                shown = []
                found.append((line[2:], None))
            elif line.startswith("pencil "):
                shown = None
                found.append((line, None))
            elif shown is not None:
                shown.append(line)
                found[-1] = (found[-1][0], "\n".join(shown))
    found += [(line, None) for line in inline(page, before) if line not in {line for line, _ in found}]
    return [(line, shown) for line, shown in found if line.startswith("pencil ")]


def inline(page: Path, before: str = "") -> list[str]:
    """The whole commands within sentences and tables; those before a heading, if one is given."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    if before:
        text = text[: text.index(before)]
    spans = [" ".join(span.replace("\\|", "|").split()) for span in re.findall(r"`(pencil [^`]+)`", text)]
    return [
        span for span in dict.fromkeys(spans) if span in ALONE or (" " in span[7:] and not PLACEHOLDER.search(span))
    ]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    """A folder with one of each file that the pages name."""
    folder = tmp_path_factory.mktemp("docs")
    rng = np.random.Generator(np.random.Philox(key=7))

    def picture(path: Path, size: int = 16) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(path)

    lines = [f"Once the cat sat on mat {i}, and the quick brown fox jumps over a lazy dog.\n" for i in range(300)]
    (folder / "notes").mkdir()
    for name in ("notes.txt", "notes/one.txt", "letters.txt", "twice.txt", "tinyshakespeare.txt"):
        (folder / name).write_text("".join(lines))
    for kind in ("cat", "dog"):
        for i in range(4):
            for place in ("photos", "others"):
                picture(folder / place / kind / f"{i}.png")
    for place in ("album", "walks"):
        for i in range(9):
            picture(folder / place / f"{i}.png")
    rows = [{"file_name": f"{i}.png", "text": f"a photo of cat {i % 3}"} for i in range(9)]
    (folder / "album" / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    picture(folder / "cat.png")
    (folder / "token.txt").write_text("0123456789abcdef\n")
    (folder / "pairs.tsv").write_text("".join(f"say {i}\t{i} times\n" for i in range(40)))
    (folder / "reviews.tsv").write_text(
        "".join(f"{'not bad' if i % 2 else 'so dull'} at all {i}\t{'good' if i % 2 else 'bad'}\n" for i in range(60))
    )
    marked = [f'{i};"{"not bad; fine" if i % 2 else "so dull, dull"} {i}";{5 if i % 2 else 1}\n' for i in range(60)]
    (folder / "reviews.csv").write_text("id;review;stars\n" + "".join(marked))
    mnist(folder / "mnist", rng)
    corpus_and_shards(folder, rng)
    walk = ROOT / "docs" / "teach" / "write-a-walk.md"
    for name, text in NAMED.findall(walk.read_text(encoding="utf-8")):
        (folder / name).write_text(text, encoding="utf-8")
    for name, walked in (("post.md", str(folder / "two-words.toml")), ("vit-by-hand.md", "004")):
        sections = walk_document(walked).sections
        lines = [""] * sections[-1].lines[1]
        for section in sections:
            lines[section.lines[0] - 1] = section.heading
        (folder / name).write_text("\n".join(lines), encoding="utf-8")
    return folder


def corpus_and_shards(folder: Path, rng: np.random.Generator) -> None:
    """Files of records, and pictures in tar files."""
    for name in ("corpus", "shards"):
        (folder / name).mkdir()
    for k in range(2):
        rows = [{"text": f"document {k} {i} of a cat on a mat, and of a lazy dog"} for i in range(200)]
        (folder / "corpus" / f"part-{k:02}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with tarfile.open(folder / "shards" / f"part-{k:03}.tar", "w") as shard:
            for i in range(9):
                picture = io.BytesIO()
                Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(picture, "PNG")
                for ending, content in (("png", picture.getvalue()), ("cls", str(i % 2).encode())):
                    about = tarfile.TarInfo(f"{i:04}.{ending}")
                    about.size = len(content)
                    shard.addfile(about, io.BytesIO(content))


@pytest.fixture(scope="module")
def checkpoint(sandbox):
    """A small GPT-2, as transformers saves it: what docs/guides/import-export.md imports."""
    return MAKERS["GPT-2"](sandbox / "gpt2")


def mnist(folder: Path, rng: np.random.Generator) -> None:
    folder.mkdir()
    for split, count in (("train", 40), ("t10k", 20)):
        images = rng.integers(0, 255, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, array, axes in (("images-idx3", images, 3), ("labels-idx1", labels, 1)):
            head = bytes((0, 0, 8, axes)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
            (folder / f"mnist-{split}-{name}-ubyte").write_bytes(head + array.tobytes())


@pytest.fixture(autouse=True)
def not_served(monkeypatch):
    """`pencil explore` opens its models and prints an address, and does not serve until it is interrupted."""
    monkeypatch.setattr("pencil.explore.server.serve", lambda *given, **named: given[-1]("http://127.0.0.1:8000/"))
    monkeypatch.setattr("pencil.cli.explore.end_at_once", lambda: None)  # which would end the tests
    # and `pencil serve` at a free port
    monkeypatch.setattr("pencil.serve.app.Server.run", lambda *given, **named: None)
    monkeypatch.setattr("pencil.cli.serve.end_at_once", lambda: None)
    listen = importlib.import_module("pencil.web_server").listen
    monkeypatch.setattr("pencil.web_server.listen", lambda address, port: listen("127.0.0.1", 0))
    monkeypatch.setattr("webbrowser.open", lambda address: True)


def run(words: list[str], capsys) -> str:
    """Run one command in the sandbox; its standard output."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended, unchecked():
        main(words)
    out, err = capsys.readouterr()
    assert ended.value.code in (0, None) or (words[0] in ("check", "diff") and ended.value.code == 1), err
    return out


def words_of(line: str) -> list[str]:
    words = shlex.split(line, comments=True)[1:]
    while "|" in words:
        words = words[: words.index("|")]
    return words[: words.index(">")] if ">" in words else words


def prepare(words: list[str], capsys) -> None:
    """Train the runs that a command uses and that are not there yet."""
    for word in words:
        name = word.removeprefix("runs/").split("/")[0]
        if word.startswith("runs/") and name in RUNS and not Path("runs", name).exists():
            run(["train", *RUNS[name].split(), "--out", f"runs/{name}", *SHORT], capsys)


def shortened(words: list[str]) -> list[str]:
    if "--train.minutes" in words:
        return [*words, "--settings"]  # a time budget is trained in tests of its own
    if words[0] in ("train", "resume") and "--settings" not in words and "--help" not in words:
        extra = SHORT if words[0] == "train" else ["--train.steps", "3"]
        given = {words[i + 1] for i, word in enumerate(words[:-1]) if word == "--preset"}
        small = ["--model.width", "48", "--model.depth", "2", "--model.heads", "4"] if given else []
        # what a command sets itself stays as it is, but for the length of the training
        words = [w for i, w in enumerate(words) if w != "--train.steps" and (i == 0 or words[i - 1] != "--train.steps")]
        pairs = zip(small[::2], small[1::2], strict=True)
        return [*words, *(part for pair in pairs if pair[0] not in words for part in pair), *extra]
    return words


@pytest.mark.long
@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: page.name)
def test_every_command_of_a_page_runs(page, sandbox, capsys, monkeypatch, request):
    monkeypatch.chdir(sandbox)
    if page.name == "import-export.md":
        request.getfixturevalue("checkpoint")
    found = commands(page)
    if page == PAGES[0]:  # the others have the next test
        earlier = commands(page, "## Figures")
        found = [one for one in found if one not in earlier]
    run_all(page, found, capsys, monkeypatch)


def test_the_commands_of_the_first_page_run(sandbox, capsys, monkeypatch):
    """But for those beside the figures, which take longer."""
    monkeypatch.chdir(sandbox)
    run_all(PAGES[0], commands(PAGES[0], "## Figures"), capsys, monkeypatch)


def run_all(page, found, capsys, monkeypatch):
    for line, shown in found:
        typed = "".join(f"{answer}\n" for answer in PROMPT.findall(shown or ""))
        shown = None if shown is None else PROMPT.sub("", shown)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
        if MARK.search(line) or SLOW.match(line):
            continue
        words = words_of(line)
        write_file(page, words)
        prepare(words, capsys)
        out = run(shortened(words), capsys)
        if shown is not None:
            assert matches(shown, out), f"{page.name}: {line} prints\n{out}"


def matches(shown: str, out: str) -> bool:
    """Whether a transcript is what was printed; a line of … stands for any lines."""
    parts = re.split(r"^\s*…\s*$", shown.strip("\n"), flags=re.M)
    at = 0
    for part in parts:
        text = "\n".join(line.rstrip() for line in part.strip("\n").splitlines())
        found = "\n".join(line.rstrip() for line in out.splitlines()).find(text, at)
        if found < 0:
            return False
        at = found + len(text)
    return True


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_slow_command_of_a_page_runs(page, sandbox, capsys, monkeypatch):
    monkeypatch.chdir(sandbox)
    earlier = {line for before in PAGES[: PAGES.index(page)] for line, _ in commands(before)}
    for line, _ in commands(page):
        words = words_of(line)
        if line in earlier:
            continue
        if not SLOW.match(line) or MARK.search(line) or words[:2] == ["lab", "all"] or words[0] in ("demo", "bench"):
            continue  # these have tests of their own, and `lab all` is every other claim
        if "runs/twice" in words and not Path("runs/twice").exists():
            run(["train", "gpt", "--data", "notes.txt", "--out", "runs/twice", *SHORT], capsys)
        prepare(words, capsys)
        quick = ["--quick", "--force"] if words[0] == "lab" and len(words) > 1 and not words[1].startswith("-") else []
        run([*words, *(q for q in quick if q not in words)], capsys)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for name in re.findall(r"`(?:python |pytest )((?:benchmarks|tests)/[\w/.]+)", text):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_the_python_of_the_readme_runs(sandbox, capsys, monkeypatch):
    monkeypatch.chdir(sandbox)
    prepare(["runs/notes-gpt"], capsys)
    (source,) = [text for language, text in blocks(ROOT / "README.md") if language == "python"]
    code = compile(ast.parse(source), "README.md", "exec")
    exec(code, {"__name__": "readme"})
    assert "torch.Size([1," in capsys.readouterr().out


def test_the_readme_is_short():
    """One picture, fewer than 15 links, and at most ten rows of figures."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(re.findall(r"!\[", text)) == 1
    assert len(re.findall(r"\]\(", text)) < 15
    table = text[text.index("## Figures") : text.index("## More")]
    assert len([line for line in table.splitlines() if line.startswith("| ")]) - 1 <= 10


def test_a_changed_transcript_is_noticed():
    assert matches("a\n…\nc", "a\nb\nc\n")
    assert not matches("a\nd", "a\nb\nc\n")


def test_no_page_names_a_machine():
    for page in PAGES:
        assert not re.search(r"/(?:root|home|work|tmp)/\w", page.read_text(encoding="utf-8")), page


def files_that_are_missing(text: str) -> set[str]:
    """Of the files that a text names with their folders, those that are in no place that it could mean."""
    named = set(re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.\w+)`", text))
    places = (ROOT / "src" / "pencil", ROOT)
    return {name for name in named if not any((place / name).is_file() for place in places)}


def test_every_file_that_the_design_names_is_there():
    text = (ROOT / "docs" / "project" / "design.md").read_text(encoding="utf-8")
    assert text.count(".py`") > 40
    assert files_that_are_missing(text) == set()
    assert files_that_are_missing("in `core/no_such_file.py`") == {"core/no_such_file.py"}


def test_every_file_that_a_docstring_names_is_there():
    sources = sorted((ROOT / "src" / "pencil").rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in sources}
    missing = {path.name: files_that_are_missing(text) for path, text in texts.items() if files_that_are_missing(text)}
    assert not missing
