"""What a newcomer types first: each wrong word is answered with the one that is meant."""

import json
import shlex
import shutil
import subprocess
import sys

import pytest

from commands import SMALL
from pencil.cli import names
from pencil.cli.main import VERBS
from pencil.cli.parsing import setting_meant
from pencil.config import UserError, setting_types
from pencil.data.text import text_data as text
from pencil.families import FAMILIES
from pencil.train.settings import plain_names
from test_docs import ROOT, commands, words_of

pytestmark = pytest.mark.usefixtures("light")


def test_the_families_are_named_where_one_is_missing(fails):
    for words in (["train"], ["train", "--force"]):
        assert all(name in fails(*words).split("; usage")[0] for name in FAMILIES)


def test_runs_are_named_where_there_is_none_of_that_name(fails, tmp_path):
    for verb in ("sample", "eval", "resume", "verify"):
        assert "there is no run nosuch; there is none in runs/ yet, and pencil train --help" in fails(verb, "nosuch")
    for name in ("alpha", "beta", "gamma", "delta", "digits-one", "my-digits", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").touch()
    (tmp_path / "runs" / "no-run").mkdir()
    named = fails("eval", "digits").partition("known: ")[2]
    assert named.endswith(", … (7 in all)")
    assert named.split(", ")[:2] == ["runs/my-digits", "runs/digits-one"]
    assert named.count("runs/") == 5
    assert "known: runs/gamma, " in fails("eval", "runs/gama")
    assert "known: runs/gamma, " in fails("eval", "elsewhere/gama")
    assert "runs/no-run" not in fails("eval", "no-runs")
    (tmp_path / "cat.png").touch()
    assert "cat.png is a file, and a run is a folder; known: runs/" in fails("sample", "cat.png")
    assert fails("trace", "beta").endswith("did you mean runs/beta?")


def test_data_without_its_option(fails, tmp_path):
    (tmp_path / "photos").mkdir()
    for word in ("photos", "photos/", "notes.txt", "hub:some/one"):
        assert f"train cannot use '{word}' by itself; data is given with --data {word}," in fails("train", "vit", word)
    assert "data is given with --data DATA" in fails("train", "vit", "--model.depth", 3, "thing")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_setting_without_its_section(fails, name):
    sections = plain_names(FAMILIES[name])
    options = sections.pop("options")
    fields = [(section, field) for section, names in sections.items() for field in names if field not in options]
    for section, field in fields:
        meant = setting_meant(f"--{field.replace('_', '-')}", sections) or ""
        assert f"--{section}.{field}" in meant.removeprefix("did you mean ").rstrip("?").split(" or ")
    assert len(fields) > 31
    assert fails("train", name, "--depth", 3).endswith("did you mean --model.depth?")


@pytest.mark.parametrize("words, meant", [
    (["train", "vit", "--epochs", 3], "training is counted in steps, not in epochs: give --train.steps, or --train.minutes"),
    (["train", "vit", "--lr=1e-3"], "did you mean --train.lr?"),
    (["train", "vit", "--batch-size", 7], "did you mean --train.batch?"),
    (["train", "vit", "--stesp", 7], "did you mean --train.steps?"),
    (["train", "vit", "--train.learning_rate", 1], "train.learning_rate is not a setting; did you mean lr?"),
    (["train", "vit", "--train.batch-size", 7], "train.batch_size is not a setting; did you mean batch?"),
    (["train", "vit", "--train.epochs=3"], "training is counted in steps, not in epochs: give train.steps, or train.minutes"),
    (["train", "vit", "--model.dim", 7], "model.dim is not a setting; did you mean width?"),
    (["resume", "RUN", "--train.max_steps", 7], "train.max_steps is not a setting; did you mean steps?"),
    (["cost", "gpt:nano", "--model.n_layer", 3], "model.n_layer is not a setting; did you mean depth?"),
    (["train", "vit", "-data", "photos"], "did you mean --data?"),
    (["train", "vit", "--wat", 7], "pencil train vit --help lists its options"),
    (["resume", "RUN", "--steps", 7], "did you mean --train.steps?"),
    (["shapes", "gpt:nano", "--depth", 3], "did you mean --model.depth?"),
    (["sample", "RUN", "--temprature", 1], "did you mean --temperature?"),
    (["evaluate", "RUN"], "did you mean eval?"),
])  # fmt: skip
def test_other_words_for_it(fails, run, words, meant):
    assert meant in fails(*(run if word == "RUN" else word for word in words))


MISTAKES = [
    "train", "trian gpt", "train vits", "train --train.steps 3 vits", "train vit --data stampz", "train vit --data digit",
    "train gpt --data stampz.txt --model.width 64 --tokenizer bpe --force", "train reader --data stampz.csv",
    "train reader --data stampz.txt", "train seq2seq --data stampz.tsv", "train captioner --data stampz",
    "train dit --data stampz", "train gpt --preset nanoo", "train gpt --from runs/nope", "train gpt --from gpt",
    "train gpt --config nope.toml", "train gpt --train.stepz 5", "train gpt --train.steps abc", "train gpt --train.epochs=3",
    "train gpt --train.lr -1", "train gpt --train.steps 0", "train gpt --train.minutes 1 --train.steps 3",
    "train gpt --train.mixup 0.3", "train reader --train.word_dropout 0.3", "train vit --train.crop 2",
    "train reader --train.class_weights balansed", "train reader --train.class_weights 1,0", "train gpt --data.fit crop",
    "train vit --size 3z", "train dit --size 3z", "train vit --data stampz/*.tar", "train gpt --data stampz-?.txt",
    "train reader --data stampz.txt,more.txt", "train gpt --data.text_column a --data.resize 3",
    "train gpt --model.depht 5", "train gpt --model.depth abc", "train gpt --model.positions ropee",
    "train gpt --model.rope_base 3", "train captioner --model.delimiters perhaps", "train gpt --data.text_colum x",
    "train gpt --optimizer.lr 3", "train gpt --lr 3", "train gpt --dta x", "train gpt notes.txt",
    "resume nope", "resume gpt", "resume RUN --train.stepz 5", "verify nope", "export nope --to hf", "sample nope",
    "eval nope", "embed nope --prompt a", "heads nope", "explore nope@3", "trace nope", "why nope x", "show vit-4x4",
    "shapes nope", "shapes gpt", "shapes nano", "shapes gpt:nano --model.depht 3", "cost vits", "cost gpt:nano --model.dim 3",
    "cost gpt:nano --depth 3", "import nope", "import hff:a/b", "import nanogpt:nope",
]  # fmt: skip
WITHOUT_TORCH = """
import contextlib, io, json, shlex, sys
from pencil.cli import before_torch
from pencil.cli.main import main

mistakes, right = json.loads(sys.argv[1])
answers = []
for line in mistakes:
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main(shlex.split(line))
    answers.append([said.getvalue().rstrip("\\n"), "torch" in sys.modules])
before_torch._check_data = before_torch.check_run = lambda *_: None  # the data and runs of the docs are not here
for words in right:
    before_torch.check_training(words)
print(json.dumps([answers, "torch" in sys.modules]))
"""


def test_a_typing_error_is_answered_before_torch_is_imported_and_in_the_same_words(fails, run):
    """The answers of a process without torch against those of this one, where the records of the families are loaded;
    and no command of the docs is refused."""
    mistakes = [line.replace("RUN", str(run)) for line in MISTAKES]
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    lines = [words_of(line) for page in pages if page.name != "extend.md" for line, _ in commands(page)]
    right = [words[1:] for words in lines if words[0] == "train" and words[1] in FAMILIES and "--config" not in words]
    assert len(right) > 30
    words = [sys.executable, "-c", WITHOUT_TORCH, json.dumps([mistakes, right])]
    answers, loaded = json.loads(subprocess.check_output(words, text=True))
    for line, (said, torch) in zip(mistakes, answers, strict=True):
        assert said == fails(*shlex.split(line)), line
        assert not torch, line
    assert not loaded


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_the_help_of_a_family_is_no_typing_error(type_in, monkeypatch, word):
    def check(words):  # without torch it would look for settings of these names
        raise UserError(f"{words} were checked")

    monkeypatch.setattr("pencil.cli.main.check_training", check)
    assert "Usage: pencil train gpt" in type_in("train", "gpt", word).out


def test_the_names_checked_without_torch_are_those_of_the_records():
    stored, named = json.loads(names.FILE.read_text()), names.collected()
    by_type = {"options": 0, "model": 0}  # compared below: Python's versions write types differently
    assert {name: table | by_type for name, table in stored["families"].items()} == {
        name: table | by_type for name, table in named["families"].items()
    }, "run python -m pencil.cli.names"
    assert stored["examples"] == named["examples"]
    for name, one in names._read_names()[0].items():
        assert setting_types(one.config) == setting_types(FAMILIES[name].config), "run python -m pencil.cli.names"
        assert setting_types(one.train_options) == setting_types(FAMILIES[name].train_options)


def test_what_the_sources_name_and_the_stored_names_do_not_is_left_to_the_records(monkeypatch, tmp_path):
    """Someone who adds a family or a setting need not write the file first."""
    assert not names.outdated(["depth", "depht"], ["vit", "vits"])
    monkeypatch.setattr(names, "FILE", tmp_path / "cli" / "names.json")
    for folder, file, content in (
        ("cli", "names.json", "{}"),
        ("models", "own.py", "class Config:\n    spin: int = 3\n"),
        ("families", "own.py", 'FAMILY = Family(name="own")\n'),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text(content)
    assert names.outdated(["spin"], [])
    assert names.outdated([], ["own"])
    assert not names.outdated(["own", "spi"], ["spin", "ow"])


def test_an_unknown_command_is_answered_with_all(fails):
    assert fails("list").endswith("the commands are " + ", ".join(verb for _, verb, _, _ in VERBS))


def test_an_input_without_its_option(fails, run, vit_run, captioner_run, seq2seq_run, dit_run):
    for held, word, meant in (
        (run, "Once upon", "--prompt 'Once upon'"), (vit_run, "cat.png", "--image cat.png"),
        (captioner_run, "cat.png", "--image cat.png"), (seq2seq_run, "abd", "--source abd"),
        (dit_run, "3", "--label 3 or --prompt 3"),
    ):  # fmt: skip
        assert fails("sample", held, word) == f"pencil: sample cannot use {word!r} by itself; give it with {meant}"


def test_the_input_of_another_family(fails, vit_run, seq2seq_run, dit_run):
    for verb, held, option, meant in (
        ("sample", seq2seq_run, "--prompt", "--source"), ("sample", seq2seq_run, "--text", "--source"),
        ("sample", vit_run, "--input", "--image"), ("sample", dit_run, "--text", "--label or --prompt"),
        ("trace", vit_run, "--image", "--input or --target"),
        ("trace", dit_run, "--input", "--label or --prompt or --target"),
    ):  # fmt: skip
        assert fails(verb, held, option, "a").endswith(f"it takes no {option}; its input is {meant}")


def test_labels_are_listed(fails, dit_run):
    assert fails("sample", dit_run, "--label", 12).endswith("was not trained on a label 12; its labels are 0 to 9")


def test_objects_with_labels_are_announced(type_in, tmp_path):
    rows = [{"text": f"{'good' if i % 2 else 'bad'} film {i}", "label": i % 2} for i in range(31)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    shown = type_in("train", "reader", "--data", "rows.jsonl", *SMALL).err
    assert "rows.jsonl: one JSON object a line; text from text, label from label (2 classes)" in shown.splitlines()


def test_a_text_in_another_encoding_is_converted_by_the_command_in_the_sentence(fails, tmp_path):
    """The byte's place is exact, also where a block ends within a character."""
    words = "é" * (text.CHUNK // 2 - 1) + "x"  # an odd number of bytes: the next é is in both blocks
    (tmp_path / "a b.txt").write_bytes(words.encode() + "é".encode() + "é’ of it".encode("cp1252"))
    sentence = fails("train", "gpt", "--data", "a b.txt")
    assert f"(byte 0xe9 at offset {len(words.encode()) + 2})" in sentence
    (tmp_path / "a b.txt").write_bytes("é’ of it".encode("cp1252"))
    command = fails("train", "gpt", "--data", "a b.txt").partition("convert it: ")[2]
    assert command
    if shutil.which("iconv"):
        subprocess.run(command, shell=True, check=True, cwd=tmp_path)
        assert (tmp_path / "utf8-a b.txt").read_text(encoding="utf-8") == "é’ of it"
    (tmp_path / "a.tsv").write_bytes("a\té\n".encode("latin-1"))
    assert "convert it: iconv -f cp1252 -t utf-8 a.tsv > utf8-a.tsv" in fails("train", "seq2seq", "--data", "a.tsv")


def test_characters_and_folders_that_are_not_known_have_a_mend(fails, run, tmp_path):
    assert fails("sample", run, "--prompt", "ß").endswith(
        "leave it out, or train with --tokenizer byte, which knows every character"
    )
    (tmp_path / "all" / "Training" / "cat").mkdir(parents=True)
    assert fails("train", "vit", "--data", "all").endswith(
        "all has Training/ but no test/ or val/ beside it; add one, or give --data all/Training, of which about a tenth "
        "is held out"
    )


def test_scores_have_a_name(type_in, seq2seq_run, monkeypatch):
    from pencil.families import seq2seq
    from pencil.inference.beam import Hypothesis

    words = ("sample", seq2seq_run, "--source", "abd", "--beams", 3)
    assert "(before each target its score, the log-probability, divided by ((5 + length)/6)^0.6)" in type_in(*words).err
    assert "its score, the log-probability)" in type_in(*words, "--length-penalty", 0).err
    monkeypatch.setattr(seq2seq, "beam_targets", lambda *_: [[("", Hypothesis([], -2.0, -3.0, True))]])
    assert type_in(*words).out == "-3.0000  (empty)\n"
    assert json.loads(type_in(*words, "--json").out)["results"][0]["text"] == ""


def test_an_unknown_column_of_a_table_is_never_proposed(tmp_path):
    from pencil.data.tables import pairs

    rows = [f"{i},a text of some length {i},{'xy'[i % 2]},{'up' if i % 3 else 'down'}" for i in range(31)]
    (tmp_path / "a.csv").write_text("\n".join(["id,note,mood,way", *rows]))
    with pytest.raises(
        UserError, match=r"id \('0'\), note \('.*'\), mood \('x'\), way \('down'\), and which is the label"
    ) as error:
        pairs.load_labelled(str(tmp_path / "a.csv"))
    assert str(error.value).endswith(
        ("label_column mood, whose values repeat", "label_column way, whose values repeat")
    )
