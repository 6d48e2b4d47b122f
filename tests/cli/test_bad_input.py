"""Every failure is one sentence on standard error and exit status 2, and nothing is lost."""

import io
import json
import os
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from test_verbs import QUICK

from albums import album, idx, idx_bytes, photos, picture, write_rows
from commands import SMALL
from conftest import TEXT, TINY, pencil
from pencil.cli.main import main
from pencil.config import UserError
from pencil.runs.files import Manifest

BAD_FILES = {
    "empty.txt": b"",
    "binary.txt": b"ab\0cd",
    "latin.txt": "café au lait".encode("latin-1"),
    "short.txt": b"too short",
}


pytestmark = pytest.mark.usefixtures("light")


@pytest.fixture(autouse=True)
def bad_files(tmp_path):
    for name, content in BAD_FILES.items():
        (tmp_path / name).write_bytes(content)


@pytest.mark.parametrize("words, sentence", [
    (["--data", "nowhere.txt"], "no file or folder nowhere.txt"),
    (["--data", "empty.txt"], "empty.txt cannot be trained on: empty"),
    (["--data", "binary.txt"], "binary.txt cannot be trained on: binary data"),
    (["--data", "latin.txt"], "latin.txt cannot be trained on: not UTF-8 text"),
    (["--data", "short.txt"], "fewer than the context of 64 needs"),
    (["--preset", "nanogtp"], "nanogtp is not a preset of gpt; did you mean nanogpt?"),
    (["--model.heads", "5"], "model.heads 5 does not divide model.width 128; 2, 4, 8 would"),
    (["--model.widht", "5"], "model.widht is not a setting; did you mean width?"),
    (["--train.stesp", "5"], "train.stesp is not a setting; did you mean steps?"),
    (["--train.steps", "many"], "train.steps must be a whole number, not 'many'"),
    (["--train.optimizer", "sgd"], "train.optimizer must be one of muon, adamw, not 'sgd'"),
    (["--train.device", "tpu"], "device tpu is not available on this machine; try auto or cpu"),
    (["--tokenizer", "chars"], "did you mean char?"),
    (["--model.vocab", "7"], "model.vocab 7 is smaller than the tokenizer's"),
    (["--wat", "7"], "--wat"),
    (["--size", "32"], "a gpt takes no --size; pencil train gpt --help lists its options"),
])  # fmt: skip
def test_training_that_cannot_start(fails, tmp_path, words, sentence):
    assert sentence in fails("train", "gpt", *words)
    assert not (tmp_path / "runs").exists()


def test_unknown_families_and_verbs(fails):
    assert "gtp is not a family of models; did you mean gpt?" in fails("train", "gtp")
    assert "trian" in fails("trian", "gpt")
    assert "vit is a kind of model, and there is no run of that name; train one: pencil train vit" in fails(
        "sample", "vit"
    )
    assert "gtp2 is neither a preset nor a run's folder; did you mean gpt2?" in fails("shapes", "gtp2")


@pytest.mark.parametrize("words", [
    ["sample", "dit_run", "--steps", "1.5"], ["cost", "gpt2", "--batch", "-2.5"], ["kata", "--print", ".5"],
    ["lab", "residual", "--seeds", "3.7"], ["why", "example:vit-4x4", "out[0,0,0]", "--digits", "many"],
])  # fmt: skip
def test_whole_numbers_are_not_rounded(fails, request, words):
    words = [request.getfixturevalue(word) if word == "dit_run" else word for word in words]
    assert fails(*words) == f"pencil: Invalid value for {words[-2]}: {words[-1]} is not a whole number"


def test_a_whole_number_may_have_a_point(type_in):
    assert "B 2 batch size" in type_in("cost", "gpt:nano", "--batch", "2.0").out


def test_a_run_is_never_overwritten_without_force(fails, type_in, notes, tmp_path):
    type_in("train", "gpt", "--data", notes, "--name", "mine", *QUICK)
    weights = (tmp_path / "runs" / "mine" / "model.safetensors").read_bytes()
    assert "the name mine is already taken by runs/mine" in fails(
        "train", "gpt", "--data", notes, "--name", "mine", *QUICK
    )
    assert "already holds another run" in fails("train", "gpt", "--data", notes, "--out", "runs/mine", *QUICK)
    assert (tmp_path / "runs" / "mine" / "model.safetensors").read_bytes() == weights
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("diary")
    assert "already holds something that is not a run" in fails(
        "train", "gpt", "--data", notes, "--out", "letters", *QUICK
    )
    type_in("train", "gpt", "--data", notes, "--out", "runs/mine", "--force", "--train.seed", "8", *QUICK)
    assert (tmp_path / "runs" / "mine" / "model.safetensors").read_bytes() != weights


def test_force_replaces_runs_only(fails, notes, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("diary")
    assert "is not a run" in fails("train", "gpt", "--data", notes, "--out", "letters", "--force", *QUICK)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "diary"


def test_prompts_that_cannot_be_used(fails, run):
    assert "the prompt has 40 tokens and the context is 31; shorten it" in fails("sample", run, "--prompt", "e" * 40)
    assert "'ß' is not among the" in fails("sample", run, "--prompt", "traße")
    assert "the prompt is empty" in fails("sample", run, "--prompt", "")
    assert "top-p must be at least" in fails("sample", run, "--top-p", 3)
    assert "temperature must be at least 0" in fails("sample", run, "--temperature", "-1")


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def test_folders_that_are_not_runs(fails, tmp_path):
    (tmp_path / "bare").mkdir()
    for verb in ("sample", "eval", "resume"):
        assert "there is no run nowhere" in fails(verb, "nowhere")
        assert fails(verb, "bare").endswith("bare is not a run: it has no config.toml")
    (tmp_path / "bare" / "config.json").touch()
    for verb in ("sample", "why"):
        assert "another library: pencil import bare makes a run of it" in fails(verb, "bare")


def test_a_run_without_weights(fails, copy):
    from pencil.runs.run import Run

    (copy / "model.safetensors").unlink()
    for verb in ("sample", "eval", "resume"):
        assert "model.safetensors is missing" in fails(verb, copy)
    Run(copy).drop_weights()
    for verb in ("sample", "eval"):
        assert f"has no weights yet; train it with: pencil resume {copy}" in fails(verb, copy)


def test_damaged_weights(fails, copy):
    path = copy / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    assert "model.safetensors is damaged or was changed" in fails("sample", copy)
    (copy / "manifest.json").unlink()
    assert "no manifest.json to check them by" in fails("sample", copy)


def test_weights_of_another_model(fails, type_in, copy, notes):
    type_in("train", "gpt", "--data", notes, "--name", "other", *QUICK, "--model.width", "36")
    from pencil.runs.run import Run

    shutil.copy("runs/other/model.safetensors", copy)
    assert "was changed" in fails("sample", copy)
    Run(copy)._replace("model.safetensors", (copy / "model.safetensors").read_bytes())
    assert "is of another model" in fails("sample", copy)
    shutil.copy("runs/other/manifest.json", copy)
    assert "was changed" in fails("sample", copy)


def test_a_checkpoint_of_another_model(fails, type_in, copy, notes):
    type_in(
        "train", "gpt", "--data", notes, "--name", "other", *QUICK, "--model.width", "36", "--train.save_every", "2"
    )
    shutil.rmtree(copy / "checkpoints")
    shutil.copytree("runs/other/checkpoints", copy / "checkpoints")
    assert "is a checkpoint of another run" in fails("resume", copy)


def test_a_checkpoint_of_the_same_shapes_but_another_model(fails, type_in, copy, notes):
    type_in("train", "gpt", "--data", notes, "--name", "other", *QUICK, "--model.rope_theta", "500")
    shutil.rmtree(copy / "checkpoints")
    shutil.copytree("runs/other/checkpoints", copy / "checkpoints")
    assert "is a checkpoint of another run" in fails("resume", copy, "--train.steps", "99")


def test_a_change_that_cannot_be_resumed_with_leaves_the_run_as_it_was(fails, copy):
    config = (copy / "config.toml").read_bytes()
    more = ("--train.steps", "99")
    assert "was trained with muon and cannot be resumed with adamw" in fails(
        "resume", copy, *more, "--train.optimizer", "adamw"
    )
    assert "device cuda:9 is not available on this machine" in fails("resume", copy, *more, "--train.device", "cuda:9")
    assert "only --train settings can be changed here" in fails("resume", copy, "--model.width", "64")
    assert (copy / "config.toml").read_bytes() == config


def test_places_that_cannot_be_written(fails, run, notes, tmp_path):
    assert "there is no folder nowhere" in fails("sample", run, "--out", "nowhere/x.txt")
    assert "is a folder" in fails("sample", run, "--out", tmp_path)
    (tmp_path / "file").touch()
    assert "file" in fails("train", "gpt", "--data", notes, "--out", "file/run", *QUICK)
    assert "file is a file" in fails("train", "gpt", "--data", notes, "--out", "file", *QUICK)
    assert "not UTF-8" in fails("sample", run, "--prompt", "a\udcff")


@pytest.mark.parametrize("words", [("--model.width", 1 << 17), ("--train.batch", 10**8)])
def test_a_model_that_does_not_fit_in_memory(fails, notes, words, tmp_path):
    assert "needs about" in fails("train", "gpt", "--data", notes, *words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [("--model.width", 4 * 10**10), ("--model.depth", 3_000_000)])
def test_a_model_that_is_too_large_for_anything(fails, notes, words, tmp_path):
    assert f"{words[0][2:]} must be at most" in fails("train", "gpt", "--data", notes, *words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words, sentence", [
    (["--data", ""], "--data is empty"), (["--name", ""], "--name must be"), (["--name", ".."], "--name must be"),
    (["--name", "a/b"], "--name must be"), (["--model.eps", "-1"], "model.eps must be above 0"),
    (["--model.rope_theta", "0"], "model.rope_theta must be above 0"),
])  # fmt: skip
def test_values_that_make_no_sense(fails, words, sentence):
    assert sentence in fails("train", "gpt", *words)


def test_values_of_options_that_make_no_sense(fails, run):
    assert "--batch must be at least 1" in fails("shapes", "nano", "--batch", "0")
    assert "--stop cannot be empty" in fails("sample", run, "--stop", "")
    assert "--count must be at least 1" in fails("sample", run, "--count", "0")
    for option, most in (("--count", "10,000"), ("--max-new-tokens", "10,000,000")):
        assert f"{option} must be at most {most}, not 100,000,007" in fails("sample", run, option, 100_000_007)
    assert "temperature must be" in fails("sample", run, "--temperature", "inf")
    assert "seed must be" in fails("sample", run, "--seed", "-1")


def test_data_that_changed_under_a_run(fails, type_in, tmp_path):
    (tmp_path / "tale.txt").write_text(TEXT)
    type_in("train", "gpt", "--data", "tale.txt", *QUICK)
    (tmp_path / "tale.txt").write_text(TEXT + "more")
    assert "tale.txt has changed since" in fails("resume", "runs/tale-gpt", "--train.steps", 9)
    (tmp_path / "tale.txt").write_text(TEXT + "Ж")  # which the tokenizer has never met
    assert "tale.txt has changed since" in fails("eval", "runs/tale-gpt")
    folder = tmp_path / "runs" / "tale-gpt"
    manifest = Manifest.read(folder)  # as older versions left it: nothing says that the record of the data is damaged
    manifest._replace(files={n: e for n, e in manifest.files.items() if n != "data.json"}).write(folder)
    (tmp_path / "tale.txt").write_text(TEXT + "more")
    whole = (folder / "data.json").read_text()
    for old, new in (
        ("lines_a_block", "lines_a_blocj"),
        ('"lines": ', '"lines": 1.'),
        ('"blocks": [', '"blocks": 7, "_": ['),
    ):
        (folder / "data.json").write_text(whole.replace(old, new))
        assert "tale.txt has changed since" in fails("eval", "runs/tale-gpt")


def test_data_that_cannot_be_opened_for_another_reason_has_not_changed(fails, run, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "file"))
    for verb in ("eval", "resume"):
        sentence = fails(verb, run, *(["--train.steps", 31] if verb == "resume" else []))
        assert "cannot write the cache folder" in sentence
        assert "changed" not in sentence


@pytest.mark.parametrize("lines", [997, 2003, 3001])  # blocks of 1, 3 and 4 lines, of which the last may have fewer
def test_the_lines_that_changed_are_lines_of_the_file(tmp_path, lines):
    from pencil.api.run_data import _changed_lines, _contents

    path = tmp_path / "notes.txt"
    path.write_text("\n".join(map(str, range(lines))))
    was = _contents(str(path), ())
    assert _changed_lines(was, _contents(str(path), (), was["lines_a_block"])) == ""
    path.write_text("\n".join(map(str, range(lines - 1))) + "\nx")
    found = _changed_lines(was, _contents(str(path), (), was["lines_a_block"]))
    assert found.startswith("the first that differs is ")
    assert found.rpartition(" ")[2] == f"{lines:,}"


@pytest.mark.parametrize(
    "text, sentence", [("[run", "cannot be read"), ("[run]\n", "has no [model]"), ("", "has no [run]")]
)
def test_a_config_that_cannot_be_read(fails, copy, text, sentence):
    (copy / "config.toml").write_text(text)
    assert sentence in fails("sample", copy)
    assert sentence in fails("resume", copy)


def test_a_config_that_was_changed(fails, copy):
    text = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(text.replace("heads = 3", "heads = 6"))
    for verb in ("sample", "eval"):
        assert "config.toml is damaged or was changed" in fails(verb, copy)


def test_hostile_weights_are_refused_quickly(fails, copy):
    from pencil.runs.run import Run

    for content in (b"", b"\xff" * 8 + b"{}", (1 << 40).to_bytes(8, "little") + b"{}", b"\x02\0\0\0\0\0\0\0{}"):
        Run(copy)._replace("model.safetensors", content)
        assert "model.safetensors" in fails("sample", copy)


def test_debug_shows_where():
    with pytest.raises(UserError, match="there is no run nowhere"):  # with its traceback
        main(["sample", "nowhere", "--debug"])


@pytest.mark.long
def test_one_sentence_from_a_process_of_its_own(tmp_path):
    (tmp_path / "empty").mkdir()
    done = pencil("train", "gpt", "--data", "nowhere", *TINY, code=2, cwd=tmp_path / "empty")
    assert done.stderr.count("\n") == 1
    assert not done.stdout
    assert not list((tmp_path / "empty").iterdir())


# of pictures


@pytest.mark.parametrize(
    "size, patch", [("16", "5"), ("8x15", "4"), ("30x20", "8"), ("24x36", "16"), ("30x20", "8x5"), ("7", "16")]
)
def test_a_patch_that_does_not_divide_the_picture_and_what_would(fails, size, patch):
    words = ("train", "vit", "--model.image_size", size, "--model.patch", patch)
    shown = fails(*words)
    found = re.search(
        r"model\.patch (\d+)×(\d+) does not divide a picture of (\d+)×(\d+); a patch of (.+) would, "
        r"or a model\.image_size of (.+)$",
        shown,
    )
    assert found, shown
    patches, sides = [int(found[1]), int(found[2])], [int(found[3]), int(found[4])]
    assert any(side % part for side, part in zip(sides, patches, strict=True))

    def pair(word):
        both = [int(side) for side in re.split("[x×]", word)]
        return both * 2 if len(both) == 1 else both

    # each is typed as it stands in the sentence
    for better in re.split(", | or ", found[5]):
        assert not any(side % part for side, part in zip(sides, pair(better), strict=True)), f"{shown}: {better}"
    for better in re.split(", | or ", found[6]):
        assert not any(side % part for side, part in zip(pair(better), patches, strict=True)), f"{shown}: {better}"


@pytest.mark.parametrize("words, sentence", [
    (["vit", "--model.channels", "5"], "model.channels cannot be 5"),
    (["captioner", "--model.channels", "2"], "model.channels cannot be 2"),
    (["vit", "--model.patch", "0"], "model.patch must be at least 1"),
    (["vit", "--model.image_size", "8x8x8"], "model.image_size must be whole numbers like 16x24"),
    (["vit", "--model.classes", "7"], "model.classes 7 is fewer than the 10 classes of digits"),
    (["vit", "--data", "scenes"], "scenes has captions, and labels are needed; try digits"),
    (["captioner", "--data", "digits"], "digits has labels, and captions are needed; try scenes"),
    (["vit", "--data", "digit"], "did you mean digits?"),
    (["vit", "--data", ""], "--data is empty"),
    (["vit", "--data", "empty.txt"], "empty.txt is an empty file; pictures come in a folder"),
    (["captioner", "--data", "short.txt"], "short.txt is a file; pictures come in a folder"),
    (["vit", "--tokenizer", "bpe"], "a vit takes no --tokenizer"),
    (["gpt", "--train.flip", "true"], "train.flip has no effect on a gpt: leave it out"),
    (["gpt", "--train.mixup", "0.2"], "train.mixup has no effect on a gpt: leave it out"),
    (["captioner", "--train.mixup", "0.2"], "train.mixup has no effect on a captioner: leave it out"),
    (["vit", "--train.mixup", "-1"], "train.mixup cannot be negative"),
    (["vit", "--train.crop", "0"], "train.crop must be above 0"),
    (["vit", "--train.flip", "perhaps"], "train.flip must be true or false"),
    (["vit", "--preset", "b/61"], "b/61 is not a preset of vit; did you mean b/16?"),
    (["captioner", "--preset", "gpt2"], "gpt2 is not a preset of captioner"),
    (["captioner", "--model.context", "3"], "captions of scenes will not fit into model.context 3"),
    (["captioner", "--model.vocab", "9"], "model.vocab 9 is smaller than the tokenizer's"),
    (["captioner", "--vocab", "100"], "--vocab must be at least 257"),
    (["captioner", "--tokenizer", "bqe"], "did you mean bpe?"),
])  # fmt: skip
def test_training_on_images_that_cannot_start(fails, tmp_path, words, sentence):
    assert sentence in fails("train", *words)
    assert not (tmp_path / "runs").exists()


def test_folders_without_pictures(fails, tmp_path):
    (tmp_path / "bare").mkdir()
    assert "bare holds no picture" in fails("train", "vit", "--data", "bare")
    assert "bare has no metadata.jsonl" in fails("train", "captioner", "--data", "bare")
    (tmp_path / "words" / "a").mkdir(parents=True)
    (tmp_path / "words" / "a" / "note.txt").write_text(TEXT)
    assert "words holds no picture" in fails("train", "vit", "--data", "words")
    assert not (tmp_path / "runs").exists()


def test_pictures_none_of_which_can_be_read(fails, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "a.png").write_text("words")
    shown = fails("train", "vit", "--data", "photos")
    assert "photos holds no picture that can be read; a.png: not a picture Pillow can read" in shown


def test_one_class_alone(fails, tmp_path):
    photos(tmp_path / "photos", {"cat": 5})
    assert "photos has only one class, cat; a classifier needs at least two" in fails(
        "train", "vit", "--data", "photos"
    )


def test_a_class_of_which_there_is_nothing_to_train_on(fails, tmp_path):
    photos(tmp_path / "photos" / "train", {"cat": 3, "dog": 2})
    photos(tmp_path / "photos" / "test", {"cat": 1, "emu": 2})
    assert "no training picture of emu" in fails("train", "vit", "--data", "photos")
    shutil.rmtree(tmp_path / "photos" / "test")
    assert "photos has train/ but no test/ or val/" in fails("train", "vit", "--data", "photos")


def test_pictures_without_a_label_are_counted_and_named(fails, tmp_path):
    photos(tmp_path / "photos")
    for i in range(5):
        picture(tmp_path / "photos" / f"loose{i}.png", seed=50 + i)
    shown = fails("train", "vit", "--data", "photos")
    assert "photos has 5 pictures without a label (loose0.png, loose1.png, loose2.png, …)" in shown


@pytest.mark.parametrize("family, key", [("captioner", "text"), ("vit", "label")])
def test_an_album_whose_lines_and_pictures_differ(fails, tmp_path, family, key):
    folder = album(tmp_path / "album", [f"kind {i % 2}" for i in range(8)], key)
    (folder / "p03.png").unlink()
    (folder / "p06.png").unlink()
    shown = fails("train", family, "--data", "album")
    assert "metadata.jsonl has lines for 2 pictures not there (p03.png, p06.png)" in shown
    picture(folder / "p03.png")
    picture(folder / "p06.png")
    picture(folder / "deep" / "extra.png")
    assert "album has 1 picture without a line in metadata.jsonl (extra.png)" in fails(
        "train", family, "--data", "album"
    )


@pytest.mark.parametrize("line, sentence", [
    ("words", "line 3: not a JSON object with a file_name"),
    ("[1, 2]", "line 3: not a JSON object with a file_name"),
    ('{"text": "a dot"}', "line 3: not a JSON object with a file_name"),
    ('{"file_name": 7, "text": "a dot"}', "line 3: not a JSON object with a file_name"),
    ('{"file_name": "p00.png"}', "line 3: p00.png has no text"),
    ('{"file_name": "p00.png", "text": "  "}', "line 3: p00.png has no text"),
    ('{"file_name": "p00.png", "text": null}', "line 3: p00.png has no text"),
    ('{"file_name": "../secret.png", "text": "a dot"}', "line 3: ../secret.png lies outside the folder"),
    ('{"file_name": "/etc/passwd", "text": "a dot"}', "line 3: /etc/passwd lies outside the folder"),
    ('{"file_name": "way/out.png", "text": "a dot"}', "line 3: way/out.png lies outside the folder"),
    ('{"file_name": "a\\u0000b.png", "text": "a dot"}', "line 3: "),
    ('{"file_name": "' + "a" * 5000 + '.png", "text": "a dot"}', "aaa"),
    ("[" * 100_000, "line 3: not a JSON object with a file_name"),
])  # fmt: skip
def test_lines_of_metadata_that_cannot_be_used(fails, tmp_path, line, sentence):
    folder = album(tmp_path / "album", ["a dot"] * 5)
    picture(tmp_path / "secret.png")
    (tmp_path / "outside").mkdir()
    picture(tmp_path / "outside" / "out.png")
    (folder / "way").symlink_to(tmp_path / "outside")
    lines = (folder / "metadata.jsonl").read_text().splitlines()
    (folder / "metadata.jsonl").write_text("\n".join([lines[0], "", line, *lines[1:]]))
    assert sentence in fails("train", "captioner", "--data", "album")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("family", ["captioner", "dit"])
def test_one_caption_far_longer_than_the_others_is_named(fails, tmp_path, family):
    """It alone would decide the context, and with it the memory and the time that every caption takes."""
    long = " ".join(f"{i:x}" for i in range(4001))
    album(tmp_path / "album", ["a cat"] * 9 + [long])
    sentence = fails("train", family, "--data", "album", "--tokenizer", "byte")
    assert f"album/p09.png has a text of {len(long):,} tokens, which begins '0 1 2 3" in sentence
    assert f"or have a context for it with --model.context {-(-(len(long) + 1) // 8) * 8}" in sentence
    assert not (tmp_path / "runs").exists()


def test_texts_that_are_all_long_decide_the_context_and_one_that_is_alone_does_not(fails, tmp_path):
    from pencil.train.task import Request

    request = Request(None, "pairs.tsv", "", options=object())
    assert request.context_for(["a" * 4001, "b" * 503, "c" * 509], len) == {"context": 4008}
    assert request.context_for(["a" * 499, "b" * 2, "c"], len) == {"context": 504}
    with pytest.raises(UserError, match="pairs.tsv has a text of 4,001 tokens, which begins 'aaa"):
        request.context_for(["a" * 4001, "b", "b"], len)
    assert Request(None, "", "", {"context": "7"}, options=object()).context_for(["a" * 4001, "b", "b"], len) == {}
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\td\ne\t" + "f" * 1009)
    sentence = fails("train", "seq2seq", "--data", "pairs.tsv", "--tokenizer", "byte")
    assert "pairs.tsv has a text of 1,009 tokens" in sentence
    assert "--model.context 1016" in sentence


def test_metadata_that_cannot_be_read(fails, tmp_path):
    folder = album(tmp_path / "album")
    (folder / "metadata.jsonl").write_bytes(b"")
    assert "metadata.jsonl is empty" in fails("train", "captioner", "--data", "album")
    (folder / "metadata.jsonl").write_bytes("café".encode("latin-1"))
    assert "metadata.jsonl cannot be read" in fails("train", "captioner", "--data", "album")
    write_rows(folder, [{"file_name": f"p{i:02}.png", "text": "a dot"} for i in range(12)])
    assert "line 1: p00.png has no label" in fails("train", "vit", "--data", "album")


def test_captions_longer_than_the_context_are_counted(fails, tmp_path):
    album(tmp_path / "album", ["a dot"] * 9 + ["many words " * 7] * 6)
    words = ("train", "captioner", "--data", "album", "--tokenizer", "byte", "--model.context")
    shown = fails(*words, 31)
    assert "pencil: 6 captions of album will not fit into model.context 31: the longest needs 78" in shown
    assert "“many words many" in shown
    # held-out captions count too
    album(tmp_path / "split" / "train", ["a dot"] * 5)
    album(tmp_path / "split" / "test", ["a dot", "many words " * 7])
    shown = fails("train", "captioner", "--data", "split", "--tokenizer", "byte", "--model.context", 31)
    assert "pencil: 1 caption of split" in shown


def test_one_image_alone_cannot_be_held_out_too(fails, tmp_path):
    album(tmp_path / "album", ["a dot"])
    assert "album has too few pictures" in fails("train", "captioner", "--data", "album")


def spoil(name, content):
    def write(folder):
        (folder / name).write_bytes(content)

    return write


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
SQUARES = idx_bytes(np.zeros((5, 6, 9), np.uint8))


@pytest.mark.parametrize("change, sentence", [
    (spoil(LABELS, b""), "train-labels-idx1-ubyte cannot be read: it is empty (0 bytes)"),
    (spoil(IMAGES, b""), "train-images-idx3-ubyte cannot be read: it is empty (0 bytes)"),
    (spoil(IMAGES, SQUARES), "has 5 train pictures and 23 labels"),
    (spoil(IMAGES, SQUARES[:-1]), "bytes by its header, and does not"),
    (spoil(IMAGES, SQUARES[:9]), "train-images-idx3-ubyte"),
    (spoil(IMAGES, SQUARES[:16]), "train-images-idx3-ubyte"),
    (spoil(IMAGES, b"not idx at all"), "is not an idx file of bytes with 3 axes"),
    (spoil(IMAGES, b"\0\0\x0d" + SQUARES[3:]), "is not an idx file of bytes"),
    (spoil(IMAGES, b"\0\0\x08\x03" + b"\xff" * 12), "bytes by its header, and at most"),
    (spoil(IMAGES, idx_bytes(np.zeros(23, np.uint8))), "train-images-idx3-ubyte"),
    (spoil(LABELS, idx_bytes(np.zeros((23, 2), np.uint8))), "train-labels-idx1-ubyte"),
    (spoil(LABELS, idx_bytes(np.zeros(23, np.uint8))), "only one class, 0"),
    (lambda folder: (folder / LABELS).unlink(), "has no train-labels-idx1-ubyte file"),
    (lambda folder: (folder / "t10k-images-idx3-ubyte").unlink(), "has no t10k-images-idx3-ubyte file"),
    (lambda folder: idx(folder, train=0), "idx"),
])  # fmt: skip
def test_idx_files_that_cannot_be_used(fails, tmp_path, change, sentence):
    idx(tmp_path / "idx")
    change(tmp_path / "idx")
    assert sentence in fails("train", "vit", "--data", "idx")


def test_idx_files_of_which_the_packing_is_broken(fails, tmp_path):
    idx(tmp_path / "idx", packed=True)
    path = tmp_path / "idx" / (IMAGES + ".gz")
    whole = path.read_bytes()
    for content in (b"", b"plain", whole[:-9], whole[:-8] + b"\0" * 8, whole[:10] + b"\7" + whole[11:]):
        path.write_bytes(content)
        assert "train-images-idx3-ubyte.gz cannot be read" in fails("train", "vit", "--data", "idx")
    assert "have labels; a captioner needs a folder with metadata.jsonl" in fails("train", "captioner", "--data", "idx")


@pytest.mark.parametrize("at", [".", "cat"])
def test_a_folder_that_cannot_be_read(fails, tmp_path, monkeypatch, at):
    photos(tmp_path / "photos")
    closed, scandir = (tmp_path / "photos" / at).resolve(), os.scandir

    def guarded(path="."):
        if os.path.realpath(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    shown = fails("train", "vit", "--data", "photos")
    assert "photos" in shown
    assert "cannot be read: Permission denied" in shown


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_closed_to_its_reader(fails, tmp_path):
    photos(tmp_path / "photos")
    (tmp_path / "photos" / "cat").chmod(0)
    try:
        assert "cannot be read: Permission denied" in fails("train", "vit", "--data", "photos")
    finally:
        (tmp_path / "photos" / "cat").chmod(0o755)


def test_images_that_cannot_be_opened(fails, vit_run, captioner_run, tmp_path):
    (tmp_path / "note.png").write_text("words")
    cases = {
        "nowhere.png": "there is no picture nowhere.png",
        "empty.txt": "empty.txt is empty (0 bytes)",
        "note.png": "note.png cannot be read as a picture: not a picture Pillow can read",
        ".": "is a folder, not a picture",
    }
    for run in (vit_run, captioner_run):
        for name, sentence in cases.items():
            assert sentence in fails("sample", run, "--image", name)


def test_images_that_each_family_needs(fails, vit_run, captioner_run, run, tmp_path):
    one, two = (picture(tmp_path / name, seed=3) for name in ("one.png", "two.png"))
    assert "--image is missing: give an image file" in fails("sample", vit_run)
    assert "--image is missing: give an image file" in fails("sample", captioner_run)
    assert "is a gpt: it takes no --image" in fails("sample", run, "--image", one)
    assert "it takes no --attention" in fails("sample", run, "--attention", "attention.png")
    assert "it takes no --prompt" in fails("sample", vit_run, "--image", one, "--prompt", "a")
    for held in (vit_run, captioner_run):
        words = ("sample", held, "--image", one, "--image", two, "--attention", "attention.png")
        assert "--attention shows one image and its output, and 2 were requested" in fails(*words)
        assert "there is no folder nowhere" in fails(
            "sample", held, "--image", one, "--attention", "nowhere/attention.png"
        )
        assert "is a folder" in fails("sample", held, "--image", one, "--attention", ".")
        assert "is a file" in fails("eval", held, "--out", one)
    long = ("sample", captioner_run, "--image", one, "--prompt", "ab " * 99)
    assert "the prompt has 200 tokens and the context is 16; shorten it" in fails(*long)
    assert not (tmp_path / "attention.png").exists()


def test_picture_data_that_changed_under_a_run(fails, type_in, tmp_path):
    photos(tmp_path / "photos")
    type_in("train", "vit", "--data", "photos", *SMALL, "--model.image_size", "16")
    picture(tmp_path / "photos" / "cat" / "0.png", seed=991)
    assert "photos has changed since" in fails("resume", "runs/photos-vit", "--train.steps", 9)
    assert "photos has changed since" in fails("eval", "runs/photos-vit")
    shutil.rmtree(tmp_path / "photos")
    assert "photos-vit, is not there; if it was moved: pencil resume" in fails("eval", "runs/photos-vit")


def test_a_picture_model_that_does_not_fit_in_memory(fails, tmp_path):
    assert "needs about" in fails(
        "train", "vit", "--model.image_size", "16384", "--model.patch", "8", "--model.width", 1 << 16
    )
    assert "needs about" in fails("train", "captioner", "--train.batch", 10**9)
    assert not (tmp_path / "runs").exists()


def test_a_picture_that_unpacks_to_too_much_is_refused(fails, vit_run, tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_MAX_MEGAPIXELS", "0.001")
    Image.new("L", (101, 67)).save(tmp_path / "large.png")
    assert "large.png: 101×67 pixels is more than 1,000" in fails("sample", vit_run, "--image", "large.png")


def test_every_line_of_metadata_is_one_line(type_in, tmp_path):
    """A line of JSON may hold marks that other programs break lines at."""
    album(tmp_path / "album", ["one\u2028two", "three\x85four", "five\u2029six", "a dot"])
    assert json.loads((tmp_path / "album" / "metadata.jsonl").read_text().split("\n")[0])
    type_in("train", "captioner", "--data", "album", *SMALL, "--model.image_size", "16")


# of pairs of texts and of texts to be read


@pytest.mark.parametrize("family", ["seq2seq", "reader"])
@pytest.mark.parametrize("content, sentence", [
    (b"a\tb\nno tab\nc\td\n", "mine.tsv, line 2: no tab in 'no tab'; write the "),
    (b"a\tb\nc\td\te\n", "mine.tsv, line 2: 2 tabs in "),
    (b"a\tb\n\tc\n", "mine.tsv, line 2: the "),
    (b"a\tb\nc\t \n", "mine.tsv, line 2: the "),
    (b"a\tb\n\nc\td\n", "mine.tsv, line 2: empty; take the line out"),
    ("a\tb\nc\tcaf\u00e9\n".encode("latin-1"), "mine.tsv, line 2: byte 0xe9, number 6 of the line, is not UTF-8"),
    ("a\tb\nc\td\n".encode("utf-16"), "mine.tsv is UTF-16 text; save it as UTF-8"),
    (b"a\tb\nc\0\td\n", "mine.tsv, line 2: binary data"),
    (b"", "mine.tsv is empty; write one pair a line"),
    (b"a\tb\n", "; at least two are needed, one to train on and one to evaluate on"),
    (None, "there is no file mine.tsv"),
])  # fmt: skip
def test_tables_that_cannot_be_used(fails, tmp_path, family, content, sentence):
    if content is not None:
        (tmp_path / "mine.tsv").write_bytes(content)
    assert sentence in fails("train", family, "--data", "mine.tsv", *SMALL)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("line, sentence", [
    ("words", "line 2: not JSON"), ("[1, 2]", "line 2: a list, not an object"), ("{}", "line 2: no keys, not "),
    ('{"source": "a"}', "line 2: the keys 'source', not "),
    ('{"source": "a", "target": 7}', "line 2: the target is a number, not a text"),
    ('{"source": "a", "target": ""}', "line 2: the target is empty"),
])  # fmt: skip
def test_lines_of_json_that_cannot_be_used(fails, tmp_path, line, sentence):
    (tmp_path / "mine.jsonl").write_text('{"source": "a", "target": "b"}\n' + line + "\n")
    assert sentence in fails("train", "seq2seq", "--data", "mine.jsonl", *SMALL)


@pytest.mark.parametrize("words, sentence", [
    (["--model.norm_position", "middle"], "model.norm_position must be one of pre, post, not 'middle'"),
    (["--model.positions", "banana"], "model.positions must be one of learned, sinusoidal, "),
    (["--model.source_vocab", "97"], "so the two cannot share one table: --model.share_embeddings false gives the source its own"),
    (["--model.source_vocab", "3", "--model.share_embeddings", "false"], "model.source_vocab 3 is smaller than the tokenizer's 5"),
    (["--model.vocab", "3"], "model.vocab 3 is smaller than the tokenizer's 5"),
    (["--model.width", "15", "--model.heads", "3"], "the head width must be even, not 5"),
    (["--model.rope_fraction", "0"], "model.rope_fraction must be above 0 and at most 1 (the whole head), not 0"),
    (["--model.rope_fraction", "1.5"], "model.rope_fraction must be above 0 and at most 1 (the whole head), not 1.5"),
    (["--model.width", "15", "--model.heads", "3", "--model.positions", "sinusoidal"], "model.width must be even, not 15"),
    (["--model.context", "2"], "targets of mine will not fit into model.context 2: the longest needs 4"),
    (["--model.source_context", "2"], "sources of mine will not fit into model.source_context 2: the longest needs 4"),
    (["--train.label_smoothing", "1"], "train.label_smoothing must be at least 0 and under 1, not 1"),
    (["--train.label_smoothing", "-0.1"], "train.label_smoothing must be at least 0 and under 1"),
    (["--train.word_dropout", "0.1"], "train.word_dropout has no effect on a seq2seq: leave it out"),
    (["--train.flip", "true"], "train.flip has no effect on a seq2seq: leave it out"),
    (["--train.schedule", "papre"], "train.schedule must be one of cosine, wsd, inverse-sqrt, constant"),
    (["--preset", "bse"], "bse is not a preset of seq2seq; did you mean base?"),
    (["--tokenizer", "bqe"], "did you mean bpe?"),
    (["--data", ""], "--data is empty; give a file with one source, a tab and its target a line, or dates"),
    (["--data", "date"], "there is no file date, and no embedded pairs of that name; did you mean dates?"),
    (["--data", "."], "is a folder"),
])  # fmt: skip
def test_training_on_pairs_that_cannot_start(fails, tmp_path, words, sentence):
    (tmp_path / "mine.tsv").write_text("".join(f"{a}{b}c\tc{b}{a}\n" for a in "abc" for b in "abcd"))
    usual = {"--data": "mine.tsv", "--tokenizer": "char"}
    given = [*words, *(word for name, value in usual.items() if name not in words for word in (name, value))]
    assert sentence in fails("train", "seq2seq", *SMALL, *given)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words, sentence", [
    (["--data", "nowhere.tsv"], "there is no file nowhere.tsv"), (["--data", "nowhere"], "there is no file or folder nowhere"),
    (["--data", "empty.txt"], "empty.txt cannot be trained on: empty"),
    (["--data", "digits"], "no file or folder digits"),
    (["--model.norm_position", "middle"], "model.norm_position must be one of pre, post"),
    (["--model.pool", "last"], "model.pool must be one of class, mean"),
    (["--model.token_types", "-1"], "model.token_types must be at least 0, not -1"),
    (["--model.classes", "3"], "model.classes is for text with labels"),
    (["--train.label_smoothing", "0.1"], "train.label_smoothing has no effect on a reader: leave it out"),
    (["--train.mask_fraction", "1"], "train.mask_fraction must be at least 0 and under 1"),
    (["--train.word_dropout", "0.1"], "train.word_dropout is now called train.mask_fraction for a reader"),
])  # fmt: skip
def test_a_reader_that_cannot_start(fails, tmp_path, words, sentence):
    assert sentence in fails("train", "reader", *SMALL, *words)
    assert not (tmp_path / "runs").exists()


def test_a_gpt_smooths_no_labels(fails):
    assert "train.label_smoothing has no effect on a gpt: leave it out" in fails(
        "train", "gpt", "--train.label_smoothing", "0.1"
    )


def test_sources_that_cannot_be_read(fails, seq2seq_run):
    assert "--source is missing: give the text to translate" in fails("sample", seq2seq_run)
    assert "the source is empty: give at least one word" in fails("sample", seq2seq_run, "--source", "")
    long = fails("sample", seq2seq_run, "--source", "abc" * 17)
    assert "has 52 tokens with its end token, and the source context is 16; shorten it" in long
    assert "the source “abcabc" in long
    assert len(long) < 160
    assert "'z' is not among the 5 characters" in fails("sample", seq2seq_run, "--source", "abz")
    assert "not UTF-8" in fails("sample", seq2seq_run, "--source", "a\udcff")


def test_standard_input_that_is_not_text(fails, seq2seq_run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff"), encoding="utf-8"))
    assert fails("sample", seq2seq_run, "--source", "-") == "pencil: standard input is not UTF-8 text"


@pytest.mark.parametrize("words, sentence", [
    (["--beams", 0], "--beams must be at least 1, not 0"),
    (["--beams", 3, "--count", 5], "--count 5 is more than the 3 targets that --beams 3 returns"),
    (["--attention", "a.jpg"], "--attention writes a .png file, not a.jpg"),
    (["--beams", 3, "--temperature", 0.7], "--temperature has no effect on a beam search: leave it or --beams out"),
    (["--beams", 3, "--top-k", 5], "--top-k has no effect on a beam search"),
    (["--beams", 3, "--stop", "a"], "--stop has no effect on a beam search"),
    (["--beams", 3, "--repetition-penalty", 2], "--repetition-penalty has no effect on a beam search"),
    (["--length-penalty", 0.6], "--length-penalty is for a beam search: give --beams too"),
    (["--beams", 3, "--length-penalty", "nan"], "length-penalty must be at least -10 and at most 10, not nan"),
    (["--beams", 3, "--length-penalty", 1000], "length-penalty must be at least -10 and at most 10"),
    (["--prompt", "a"], "it takes no --prompt"),
    (["--image", "a.png"], "it takes no --image"),
    (["--slide"], "it takes no --slide"),
    (["--count", 0], "--count must be at least 1"),
    (["--source", "c", "--attention", "attention.png"], "--attention shows one source and its target, and 2 were given"),
    (["--attention", "nowhere/attention.png"], "there is no folder nowhere"),
])  # fmt: skip
def test_options_of_a_seq2seq_that_are_refused(fails, seq2seq_run, tmp_path, words, sentence):
    assert sentence in fails("sample", seq2seq_run, "--source", "abc", *words)
    assert not (tmp_path / "attention.png").exists()


def test_text_options_of_each_family(fails, run, vit_run, captioner_run, seq2seq_run, classifier_run, masked_run):
    assert "is a gpt: it takes no --source" in fails("sample", run, "--source", "line")
    assert "it takes no --beams" in fails("sample", run, "--prompt", "line", "--beams", 3)
    assert "it takes no --length-penalty" in fails("sample", run, "--prompt", "line", "--length-penalty", 1)
    for held, family in ((vit_run, "vit"), (captioner_run, "captioner")):
        assert f"is a {family}" in fails("sample", held, "--source", "a")
    for held in (classifier_run, masked_run):
        assert "--prompt is missing: give the text to read" in fails("sample", held)
        assert "it takes no --source" in fails("sample", held, "--source", "a")
        assert "it takes no --temperature" in fails("sample", held, "--prompt", "a", "--temperature", 1)
        assert "it takes no --repetition-penalty" in fails("sample", held, "--prompt", "a", "--repetition-penalty", 2)
        assert "it takes no --count" in fails("sample", held, "--prompt", "a", "--count", 2)
        assert "the text is empty: give at least one word" in fails("sample", held, "--prompt", "")
    assert "--input is missing: give the text the model reads" in fails("why", seq2seq_run, "logits[0,0,0]")
    masked_text = fails("why", classifier_run, "logits[0,0]", "--input", "a", "--text", "b")
    assert "--text has what stands at [mask], and this model predicts no masked tokens: leave it out" in masked_text
    assert "is a reader" in fails("why", classifier_run, "logits[0,0]", "--input", "a", "--step", 3)


def test_texts_a_reader_cannot_read(fails, type_in, classifier_run, masked_run):
    assert "predicts masked tokens: write [mask] where one is to be predicted, in “the line”" in fails(
        "sample", masked_run, "--prompt", "the line"
    )
    assert "'Z' is not among the" in fails("sample", masked_run, "--prompt", "Z[mask]")
    assert "tokens and the context is 31; shorten it" in fails("sample", masked_run, "--prompt", "[mask]" + "e" * 40)
    assert "has 701 tokens and the context is 16; shorten it, or have it cut with truncate" in fails(
        "sample", classifier_run, "--prompt", "Q" * 700
    )
    begun, cut = (
        type_in("sample", classifier_run, "--prompt", *given) for given in (["Q" * 15], ["Q" * 700, "--truncate"])
    )
    assert begun == cut  # the context has the first token too


def test_targets_that_cannot_be_traced(fails, seq2seq_run):
    words = ("why", seq2seq_run, "logits[0,0,0]", "--input")
    assert "the source is empty" in fails(*words, "")
    assert "has 52 tokens with its end" in fails(*words, "abc" * 17)
    assert "the target with its first token has 52 tokens and the context is 16; shorten it" in fails(
        *words, "abc", "--text", "abc" * 17
    )


def test_pairs_that_changed_under_a_run(fails, type_in, tmp_path):
    rows = "".join(f"{a}{b}\t{b}{a}\n" for a in "abc" for b in "abcd")
    (tmp_path / "mine.tsv").write_text(rows)
    type_in("train", "seq2seq", "--data", "mine.tsv", "--tokenizer", "char", *SMALL)
    (tmp_path / "mine.tsv").write_text(rows + "dd\tdd\n")
    assert "mine.tsv has changed since" in fails("resume", "runs/mine-seq2seq", "--train.steps", 9)
    assert "mine.tsv has changed since" in fails("eval", "runs/mine-seq2seq")
    (tmp_path / "mine.tsv").unlink()
    assert "mine-seq2seq, is not there; if it was moved: pencil resume" in fails("eval", "runs/mine-seq2seq")
