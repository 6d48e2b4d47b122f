"""A large corpus is tokenized by several processes, in parts that outlast a kill: the same ids, in little memory."""

import codecs
import gzip
import json
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import small_tokenizers
from pencil.config import UserError
from pencil.data import cache
from pencil.data.text import chunks, corpus
from pencil.data.text import text_data as text
from pencil.data.tokenizers.hf_tokenizers import LibraryTokenizer
from pencil.data.tokenizers.tokenizer import ByteTokenizer, train_bpe

WORDS = "pencil paper été 東京 naïve 0 17 … , . ( _ # \t \r\n \n \n\n ' ’s 's   x".split(" ")


def prose(seed, length):
    """A text of words, signs, runs of spaces and long lines without a space; no two alike."""
    rng, found = random.Random(seed), []
    while len(found) < length:
        found += [*rng.choices(WORDS, k=97), "\n" if rng.random() < 0.1 else " ", "x" * rng.choice((0, 0, 3001))]
    return " ".join(found)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own; every corpus counts as large, and pieces and units are small."""
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PENCIL_WORKERS", "2")
    monkeypatch.setattr(text, "LARGE_BYTES", 1)
    monkeypatch.setattr(text, "UNIT_BYTES", 1 << 14)
    monkeypatch.setattr(text, "units_of", lambda *how: chunks.units_of(*how, 1 << 14))
    for module in (corpus, chunks):
        monkeypatch.setattr(module, "CHUNK", 4099)
    return tmp_path / "cache"


def one_process(found, tokenizer):
    """The ids as one process has them that reads from the beginning to the end."""
    return np.concatenate(list(chunks.encoded(found, tokenizer)))


def mixed(folder):
    folder.mkdir()
    (folder / "a.txt").write_bytes(codecs.BOM_UTF8 + prose(2, 9000).encode())
    (folder / "b.txt").write_text("x" * 50_021)  # nowhere to cut
    rows = [{"id": i, "text": prose(i, 31) if i % 7 else "", "n": None} for i in range(211)]
    (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with gzip.open(folder / "d.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows[:31]))
    (folder / "e.txt").write_text("one line\n")
    return folder


TOKENIZERS = {
    "byte": ByteTokenizer,
    "bpe": lambda: train_bpe([prose(1, 3000)], 397),
    "other regex": lambda: LibraryTokenizer(small_tokenizers.llama3()),
    "whole documents": lambda: LibraryTokenizer(small_tokenizers.unigram()),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_several_processes_give_the_ids_of_one(tmp_path, folder, kind):
    tokenizer = TOKENIZERS[kind]()
    found = text.find(str(mixed(tmp_path / "mixed")))
    ids = text.tokenize(found, tokenizer)
    assert isinstance(ids, np.memmap)
    assert np.array_equal(ids, one_process(found, tokenizer))
    kept = text.tokens_path(found.hash, tokenizer)[0]
    assert sorted(path.name for path in folder.glob("*tokens*")) == [kept.name, f"{kept.name}.json"]


def test_ids_do_not_depend_on_where_units_are_cut(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(prose(3, 9000))
    found, bpe = text.find(str(path)), TOKENIZERS["bpe"]()
    whole = one_process(found, bpe)
    for size in (1, 5003, 40_009, 1 << 30):
        made = list(chunks.units_of(found, True, size))
        assert (len(made) == 1) == (size == 1 << 30)
        assert sum(unit.size for unit in made) == path.stat().st_size
        parts = [ids for unit in made for ids in chunks.encode_unit(unit, bpe, chunks.closing(found, bpe))]
        assert np.array_equal(np.concatenate(parts), whole)


KILLED = """
import contextlib, os, signal, sys
from pencil.data.text import corpus, text_data as text, chunks
text.LARGE_BYTES, text.UNIT_BYTES, corpus.CHUNK, chunks.CHUNK = 1, 1 << 14, 4099, 4099
text.units_of = lambda *how: chunks.units_of(*how, 1 << 14)
done = []
def advance(size):
    done.append(size)
    if len(done) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
text._progress = lambda corpus, workers: contextlib.nullcontext(advance)
text.load(sys.argv[1], "byte")
"""


def test_a_killed_tokenization_goes_on_with_the_parts_that_are_whole(tmp_path, folder, capsys):
    path = tmp_path / "a.txt"
    path.write_text(prose(5, 9000))
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True)
    assert done.returncode == -9, done.stderr
    parts = sorted(folder.glob("tokens-*-part-???????-????????????????"))
    assert len(parts) >= 5
    (folder / f".{parts[0].name}.0123abcd").write_bytes(
        b"half"
    )  # as a process leaves it that is killed while it writes
    damaged = parts[1]
    damaged.write_bytes(damaged.read_bytes()[:-2])
    kept = {part.name: part.stat().st_ino for part in parts}
    made = []
    plain = text.Workers.submit

    def submit(workers, unit, path):
        made.append(path.name)
        return plain(workers, unit, path)

    text.Workers.submit = submit
    try:
        data = text.load(str(path), "byte")
    finally:
        text.Workers.submit = plain
    assert bytes(data.ids.astype(np.uint8)) == path.read_bytes()
    assert damaged.name in made
    assert not set(made) & (kept.keys() - {damaged.name})
    shown = capsys.readouterr().err.replace("\n", "")
    assert f"{damaged.name} is damaged" in shown
    assert f"{len(parts) - 1} of the" in shown
    assert not list(folder.glob(".*"))
    assert not list(folder.glob("*-part-*"))


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, folder, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text(prose(7, 3000))
    found = text.find(str(path))
    content = bytearray(path.read_bytes())
    content[20_011] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.txt has changed while it was read: leave it as it is, and run"):
        text.tokenize(found, ByteTokenizer())
    # between the pass that makes the units and the process that reads one
    unit = next(iter(chunks.units_of(text.find(str(path)), True, 1)))
    path.write_bytes(bytes(content[:7]) + b"?" + bytes(content[8:]))
    with pytest.raises(UserError, match="has changed while it was read"):
        list(chunks.encode_unit(unit, ByteTokenizer(), np.zeros(0, int)))
    assert not list(folder.glob("tokens-*.uint16"))


def test_what_a_process_refuses_is_one_sentence(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": prose(i, 1)}) for i in range(97)]
    path.write_text("\n".join([*lines[:50], '{"text": 7}', *lines[50:]]))
    with pytest.raises(UserError, match=r"a\.jsonl, line 51: text is no text; leave the record out") as error:
        text.tokenize(text.find(str(path)), ByteTokenizer())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("code", ["import sys; sys.stdin.readline(); sys.exit(3)", "import os; os._exit(3)"])
def test_a_process_that_dies_is_said_so(tmp_path, monkeypatch, code):
    monkeypatch.setattr(text, "WORKER", code)
    # more than a pipe holds: it is not read before the process ends
    monkeypatch.setattr(text.Workers, "_about", lambda self: b"x" * 1_000_003 + b"\n")
    path = tmp_path / "a.txt"
    path.write_text(prose(9, 3000))
    with pytest.raises(UserError, match=r"ended \(exit status 3\).*run the command again, which keeps what is done"):
        text.tokenize(text.find(str(path)), ByteTokenizer())
    monkeypatch.setenv("PENCIL_WORKERS", "many")
    with pytest.raises(UserError, match="PENCIL_WORKERS in the environment is 'many'"):
        text.tokenize(text.find(str(path)), ByteTokenizer())


def test_a_process_that_starts_while_the_others_are_ended_ends_too(tmp_path, monkeypatch):
    """The refusal comes while a thread is still starting its process."""
    plain, late = text.Workers._start, threading.Event()

    def start(workers):
        late.wait(30)
        return plain(workers)

    def refuse(*how):
        yield next(chunks.units_of(*how, 1 << 14))
        raise UserError("refused")

    shutdown = ThreadPoolExecutor.shutdown
    monkeypatch.setattr(text.Workers, "_start", start)
    monkeypatch.setattr(text, "units_of", refuse)
    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", lambda self, **how: late.set() or shutdown(self, **how))
    path = tmp_path / "a.txt"
    path.write_text(prose(15, 3000))
    with pytest.raises(UserError, match="refused"):
        text.tokenize(text.find(str(path)), ByteTokenizer())


class Own(ByteTokenizer):
    def to_json(self):
        return "no JSON"


def test_a_tokenizer_that_cannot_be_written_down_is_used_here(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **more: pytest.fail("another process"))
    path = tmp_path / "a.txt"
    path.write_text(prose(11, 3000))
    assert bytes(text.tokenize(text.find(str(path)), Own()).astype(np.uint8)) == path.read_bytes()


MEMORY = """
import atexit, sys
from pathlib import Path
from pencil.data.text import text_data as text
from pencil.data.tokenizers.tokenizer import ByteTokenizer
# a process that was forked counts its parent's memory in ru_maxrss; this is only its own
OWN = "int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
report = Path(sys.argv[2])
text.WORKER = (
    f"import sys; from pencil.data.text import text_data; before = {OWN}; import atexit; "
    f"atexit.register(lambda: open({str(report)!r}, 'a').write(str({OWN} - before) + ' ')); text_data.work()"
)
before = eval(OWN)
ids = text.tokenize(text.find(sys.argv[1]), ByteTokenizer())
print(len(ids), eval(OWN) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
@pytest.mark.parametrize("workers, bits", [pytest.param(1, 29, marks=pytest.mark.long), (2, 27)])
@pytest.mark.long
def test_memory_does_not_grow_with_the_corpus(tmp_path, monkeypatch, workers, bits):
    """What each process needs beside its modules is a small part of the corpus."""
    monkeypatch.setenv("PENCIL_WORKERS", str(workers))
    path, line = tmp_path / "large.txt", "the quick brown fox jumps over the lazy dog, again and again\n"
    size = (1 << bits) // len(line) * len(line)
    path.write_text(line * (size // len(line)))
    report = tmp_path / "report"
    done = subprocess.run([sys.executable, "-c", MEMORY, str(path), str(report)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    count, grown = map(int, done.stdout.split())
    each = [grown, *map(int, report.read_text().split())] if workers > 1 else [grown]
    assert count == size
    assert len(each) == (1 if workers == 1 else 1 + workers)
    assert 1 < max(each) * 1024 < size / 4, each


AT_ONCE = (
    "import sys; from pencil.data.text import text_data as text; print(len(text.load(sys.argv[1], 'bpe', 300).ids))"
)


def test_processes_that_need_one_corpus_take_turns(tmp_path, folder):
    """As those of a training on several devices do: one makes the tokenizer and the ids, and all read them."""
    path = tmp_path / "a.txt"
    path.write_text(prose(13, 30_000))
    several = [
        subprocess.Popen([sys.executable, "-c", AT_ONCE, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    shown = [process.communicate() for process in several]
    assert [process.returncode for process in several] == [0, 0, 0], shown
    assert len({out for out, _ in shown}) == 1
    assert not [err for _, err in shown if b"made again" in err]
    assert len(list(folder.glob("tokens-*.uint16"))) == 1
    assert not list(folder.glob(".*"))


def test_parts_of_other_bytes_are_not_taken_for_those_of_the_corpus(tmp_path, folder, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text(prose(13, 5000))
    content, found = path.read_bytes(), text.find(str(path))
    path.write_bytes(b"?" + content[1:])
    with monkeypatch.context() as patch:  # a run that was killed before it came to the end of the file
        patch.setattr(chunks, "check_same", lambda *given: None)
        patch.setattr(text, "_join", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            text.tokenize(found, ByteTokenizer())
    assert len(list(folder.glob("*-part-*.json"))) > 2
    path.write_bytes(content)
    assert bytes(text.tokenize(text.find(str(path)), ByteTokenizer()).astype(np.uint8)) == content
    assert not list(folder.glob("*-part-*"))


def test_a_small_or_compressed_file_that_changes_is_refused(tmp_path, folder, monkeypatch):
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(b"".join(json.dumps({"text": prose(i, 1)}).encode() + b"\n" for i in range(7))))
    (unit,) = chunks.units_of(text.find(str(packed)), True)
    assert list(chunks.encode_unit(unit, ByteTokenizer(), np.zeros(0, int)))
    packed.write_bytes(packed.read_bytes())  # written again
    os.utime(packed, ns=(1, 1))
    with pytest.raises(UserError, match="has changed while it was read"):
        list(chunks.encode_unit(unit, ByteTokenizer(), np.zeros(0, int)))
    monkeypatch.setattr(text, "LARGE_BYTES", 1 << 30)
    path = tmp_path / "b.txt"
    path.write_text("one text\n")
    found = text.find(str(path))
    path.write_text("two text\n")
    with pytest.raises(UserError, match="has changed while it was read"):
        text.tokenize(found, ByteTokenizer())
    assert not list(folder.glob("tokens-*"))


def test_parts_stay_until_the_whole_is_sealed(tmp_path, folder, monkeypatch, capsys):
    path = tmp_path / "a.txt"
    path.write_text(prose(17, 5000))
    found = text.find(str(path))
    with monkeypatch.context() as patch:
        patch.setattr(text, "seal", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            text.tokenize(found, ByteTokenizer())
    assert list(folder.glob("*-part-*"))
    (folder / f".{text.tokens_path(found.hash, ByteTokenizer())[0].name}.0123abcd").write_bytes(b"half")
    assert bytes(text.tokenize(found, ByteTokenizer()).astype(np.uint8)) == path.read_bytes()
    assert "parts were there from an earlier run" in capsys.readouterr().err
    assert len(list(folder.glob("*"))) == 2


def test_one_process_of_a_training_reads_a_large_file_of_the_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cache, "LARGE_BYTES", 1 << 14)
    path = tmp_path / "a.txt"
    path.write_text(prose(19, 3000))
    found = text.find(str(path))
    text.tokenize(found, ByteTokenizer())
    kept, read = text.tokens_path(found.hash, ByteTokenizer())[0], []
    plain = cache.fingerprint
    monkeypatch.setattr(cache, "fingerprint", lambda path: read.append(path) or plain(path))
    monkeypatch.setattr(cache, "SETTLED_NANOSECONDS", -1)  # a file that was just written is remembered, too
    for rank, times in ((None, 1), ("0", 2), ("1", 2), ("7", 2)):
        monkeypatch.setenv("RANK", rank) if rank else monkeypatch.delenv("RANK", raising=False)
        assert cache.usable(kept)
        assert read == [kept] * times
    content = bytearray(kept.read_bytes())
    content[-1] ^= 1
    kept.write_bytes(content)
    assert not cache.usable(kept)
    assert "is damaged" in capsys.readouterr().err
