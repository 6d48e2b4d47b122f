"""A run is whole or refused: what was changed or damaged since it was saved is named; `verify`; the lock; moved folders."""

import hashlib
import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest

from conftest import TINY, call
from pencil.api.loading import load, open_run
from pencil.api.run_data import task_of
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.api.verifying import verify_run
from pencil.config import UserError, build
from pencil.runs import files as run_files
from pencil.runs.files import Manifest, _own_hash
from pencil.runs.run import Run
from pencil.train.loop import checkpoint
from pencil.train.loop.checkpointer import differences_of_machine
from pencil.train.loop.trainer import Trainer
from pencil.train.settings import TrainConfig
from training import Killed, bits, interrupt_after, kill_after

MORE = ("--train.steps", 32)
OLD = Path(__file__).parents[1] / "runs-0.6"
pytestmark = pytest.mark.usefixtures("light")


@pytest.fixture
def copy(run, tmp_path):
    """A copy of a run of 30 steps, with checkpoints of 20 and 30."""
    return shutil.copytree(run, tmp_path / "copy")


@pytest.fixture(scope="session")
def sister(notes, tmp_path_factory):
    """Another run of the same sizes, with another seed and checkpoints of the same steps."""
    path = tmp_path_factory.mktemp("sister") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pencil.train.loop.trainer.plot_losses", lambda run: None)
        patch.setattr("pencil.train.loop.evaluator.Evaluator.preview", lambda evaluator: None)
        call("train", "gpt", "--data", notes, "--out", path, *TINY, "--train.steps", 30, "--train.eval_every", 15,
             "--train.save_every", 10, "--train.batch", 7, "--train.warmup", 3, "--train.seed", 7,
             "--train.eval_batches", 1)  # fmt: skip
    return path


def refused(*words):
    """A command that is refused in one sentence; the sentence."""
    done = call(*words, code=2)
    assert not done.stdout
    assert done.stderr.startswith("pencil: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def flip(path, at=-5):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def trainer(folder, **settings):
    run = open_run(folder)
    config = build(TrainConfig, {**run.config["train"], **settings})
    return Trainer(task_of(run, config), run, config)


# the manifest


def test_resume_verifies_the_weights_and_never_hashes_damage_anew(copy):
    flip(copy / "model.safetensors")
    assert "model.safetensors is damaged or was changed" in refused("resume", copy, *MORE)
    run = open_run(copy)
    run.write_config(run.config)  # the manifest is written again, and what it has of the weights is carried forward
    assert "model.safetensors is damaged or was changed" in refused("sample", copy)
    shown = call("resume", copy, *MORE, "--allow-changes").stderr
    assert "model.safetensors is damaged or was changed" in shown
    assert "the weights of step 30 take its place" in shown
    assert load(copy).model is not None
    call("verify", copy)


def test_a_finished_run_is_verified_too(copy):
    flip(copy / "model.safetensors")
    assert "model.safetensors is damaged" in refused("resume", copy)
    shutil.copy(copy / "model.safetensors", copy / "spoilt")
    call("resume", copy, "--allow-changes")
    call("verify", copy)


@pytest.mark.parametrize("change, sentence", [
    (lambda table: table | {"files": {}}, "manifest.json does not list it"),
    (lambda table: {k: v for k, v in table.items() if k != "files"}, "manifest.json cannot be read"),
    (lambda table: table | {"files": table["files"] | {"notes.txt": []}}, "a run has no notes.txt"),
    (lambda table: table | {"run": "0" * 16}, "of another run, 0000"),
    (lambda table: {**table, "files": {k: v for k, v in table["files"].items() if k != "model.safetensors"}},
     "model.safetensors is no part of the run"),
])  # fmt: skip
def test_the_list_of_the_manifest_is_required(copy, change, sentence):
    path = copy / "manifest.json"
    changed = change(json.loads(path.read_text()))
    path.write_text(json.dumps(changed))
    assert "manifest.json" in refused("sample", copy)
    path.write_text(json.dumps(changed | {"sha256": _own_hash(changed)}))  # by somebody who knows the form
    assert sentence in refused("sample", copy)
    refused("resume", copy, *MORE)


@pytest.mark.parametrize("how", [Path.unlink, lambda path: edit(path, '"30": "', '"30": "0')])
def test_a_damaged_manifest_is_named_and_made_anew_with_leave_only(copy, how):
    how(copy / "manifest.json")
    for words in (("sample", copy), ("resume", copy, *MORE), ("resume", copy)):
        assert "manifest.json" in refused(*words)
    assert "manifest.json" in call("verify", copy, code=1).stdout
    assert "it is written anew" in call("resume", copy, *MORE, "--allow-changes").stderr
    call("verify", copy)


def test_a_run_has_a_manifest_from_its_beginning(tmp_path, notes):
    run, _, _ = new_run(
        TrainingRequest("gpt", str(notes), model=dict(width=24, heads=3, depth=1, context=31)), out=tmp_path / "new"
    )
    assert sorted(Manifest.read(run.path).files) == ["config.toml", "data.json", "tokenizer.json"]
    assert Manifest.read(run.path).run == run.id == tomllib.loads((run.path / "config.toml").read_text())["run"]["id"]
    call("verify", run.path)
    flip(run.path / "tokenizer.json", 20)
    assert "tokenizer.json is damaged or was changed" in refused("resume", run.path)
    flip(run.path / "tokenizer.json", 20)
    (run.path / "manifest.json").unlink()
    assert "manifest.json is missing, so the run cannot be verified" in refused("resume", run.path)


# settings


@pytest.mark.parametrize("old, new, name", [
    ("\nlr = 0.003", "\nlr = 0.001", "train.lr 0.003"), ("seed = 1337", "seed = 8", "train.seed 1337"),
    ("\nbatch = 7", "\nbatch = 6", "train.batch 7"), ('dtype = "auto"', 'dtype = "bfloat16"', "train.dtype auto"),
    ("rope_theta = 10000.0", "rope_theta = 50.0", "model.rope_theta 10000.0"),
])  # fmt: skip
@pytest.mark.parametrize("hashed", [False, True])
def test_a_setting_changed_in_the_files_is_named_and_refused(copy, old, new, name, hashed):
    edit(copy / "config.toml", old, new)
    if hashed:  # with a manifest that fits: the checkpoint still records what it was trained with
        Run(copy).accept("config.toml")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    sentence = refused("resume", copy, *MORE)
    assert f"was saved with {name}, and config.toml has {new.split(' = ')[1].strip(chr(34))}" in sentence
    assert f"pencil resume {copy} --allow-changes" in sentence
    assert before == {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}


def test_a_change_that_is_allowed_is_recorded_and_needs_no_second_leave(copy):
    edit(copy / "config.toml", "\nlr = 0.003", "\nlr = 0.001")
    shown = call("resume", copy, *MORE, "--allow-changes").stderr
    assert "config.toml was changed since the last save: train.lr 0.003 -> 0.001" in shown
    assert open_run(copy).config["run"]["changes"] == ["step 30: train.lr 0.003 -> 0.001"]
    assert "changed" not in call("resume", copy, "--train.steps", 34).stderr
    call("verify", copy)


def test_where_and_how_long_a_run_goes_on_may_change_freely(copy):
    edit(copy / "config.toml", "steps = 30", "steps = 33")
    edit(copy / "config.toml", "save_every = 10", "save_every = 1")
    shown = call("resume", copy, "--train.eval_batches", 2, "--train.keep", 3, "--train.compile", "off").stderr
    assert "train.steps 30 -> 33" in shown
    assert "Trained 33 steps" in shown
    assert checkpoint.saved_steps(copy) == [31, 32, 33]
    assert "changes" not in open_run(copy).config["run"]


def test_a_setting_changed_on_the_command_line_is_announced_and_recorded(copy):
    step, lines = 31, ["step 30: train.lr 0.003 -> 0.0007"]
    with pytest.raises(Killed):
        kill_after(trainer(copy, steps=40, lr=7e-4), step).train()
    assert open_run(copy).config["run"]["changes"] == lines
    assert checkpoint.saved_steps(copy) == [20, 30]  # nothing was saved with the new rate
    shown = call("resume", copy, "--train.steps", 33).stderr
    assert "Trained 33 steps" in shown
    again = call("resume", copy, "--train.steps", 34, "--train.lr", 0.0005).stderr
    assert "train.lr is 0.0005 from step 33 on; it was 0.0007" in again
    assert open_run(copy).config["run"]["changes"] == [*lines, "step 33: train.lr 0.0007 -> 0.0005"]
    call("verify", copy)


def test_a_record_of_changes_counts_only_in_a_config_as_it_was_written(copy):
    """What says that a change was announced stands in the same file as the change."""
    line = next(line for line in (copy / "config.toml").read_text().splitlines() if line.startswith("lr = "))
    edit(copy / "config.toml", line, "lr = 0.5")
    edit(copy / "config.toml", "[run]\n", f'[run]\nchanges = ["step 30: train.{line.replace(" =", "")} -> 0.5"]\n')
    edit(copy / "config.toml", "eval_every = 15", "eval_every = 16")  # a change that is free
    assert "other settings: it was saved with train.lr" in refused("resume", copy, *MORE)
    assert "train.lr" in call("verify", copy, code=1).stdout


def test_another_tokenizer_is_refused(copy):
    path = copy / "tokenizer.json"
    edit(path, "uw", "uz")
    assert "tokenizer.json is damaged or was changed" in refused("resume", copy, *MORE)
    Run(copy).accept("tokenizer.json")
    assert "was saved with tokenizer" in refused("resume", copy, *MORE)


def test_a_comment_in_the_config_is_a_change_that_needs_leave(copy):
    with (copy / "config.toml").open("a") as file:
        file.write("# mine\n")
    assert "config.toml is damaged or was changed" in refused("resume", copy, *MORE)
    call("resume", copy, *MORE, "--allow-changes")
    call("verify", copy)


# checkpoints


def test_a_missing_folder_of_checkpoints_is_no_start_from_zero(copy):
    weights = (copy / "model.safetensors").read_bytes()
    shutil.rmtree(copy / "checkpoints")
    sentence = refused("resume", copy, *MORE)
    assert "checkpoints" in sentence
    assert (copy / "model.safetensors").read_bytes() == weights
    Manifest.read(copy)._replace(checkpoints=None).write(copy)  # as an older version wrote it
    assert "has no checkpoint, and the run had come to step" in refused("resume", copy, *MORE)
    shown = call("resume", copy, "--train.steps", 2, "--train.warmup", 0, "--allow-changes").stderr
    assert "it starts from step 0" in shown


def test_a_run_killed_before_its_first_save_starts_again(tmp_path, notes):
    sizes, pace = dict(width=24, heads=3, depth=1, context=31), dict(steps=9, eval_every=2, eval_batches=1, batch=3)
    run, task, config = new_run(TrainingRequest("gpt", str(notes), model=sizes, train=pace), out=tmp_path / "new")
    with pytest.raises(Killed):
        kill_after(Trainer(task, run, config), 5).train()
    assert run.weights_step == 4
    assert "had saved no checkpoint yet: it starts from step 0" in call("resume", run.path).stderr


def test_the_newest_checkpoint_is_known_by_its_manifest(copy):
    held = copy / "checkpoints"
    (held / "step-00000030").rename(held / "mine")
    (held / "step-00000020").rename(held / "step-00000099")
    shown = call("resume", copy, *MORE).stderr
    assert "mine was renamed: by its manifest it is the one of step 30" in shown
    assert "Trained 32 steps" in shown
    lines = [json.loads(line)["step"] for line in (copy / "metrics.jsonl").read_text().splitlines()]
    assert lines.count(30) == 2  # training and validation, once each: it went on from 30
    assert checkpoint.saved_steps(copy) == [20, 30, 32]  # what somebody renamed stays


@pytest.mark.parametrize("listed", [True, False])
def test_a_checkpoint_of_another_run_is_refused(copy, sister, listed):
    folder = copy / "checkpoints" / "step-00000030"
    shutil.rmtree(folder)
    shutil.copytree(sister / "checkpoints" / "step-00000030", folder)
    if not listed:  # as if it was saved just before a kill
        manifest = Manifest.read(copy)
        manifest._replace(checkpoints={20: manifest.checkpoints[20]}).write(copy)
    assert "step-00000030 is a checkpoint of another run" in refused("resume", copy, *MORE)
    assert "foreign  " + str(folder) in call("verify", copy, code=1).stdout


def test_a_checkpoint_of_a_copy_that_went_its_own_way_is_refused(copy, tmp_path):
    twin = shutil.copytree(copy, tmp_path / "twin")
    shutil.rmtree(twin / "checkpoints" / "step-00000030")
    call("resume", twin, "--train.eval_batches", 1)
    shutil.rmtree(copy / "checkpoints" / "step-00000030")
    shutil.copytree(twin / "checkpoints" / "step-00000030", copy / "checkpoints" / "step-00000030")
    assert "step-00000030 is not the checkpoint that this run wrote" in refused("resume", copy, *MORE)
    call("verify", twin)


def test_a_damaged_manifest_of_a_checkpoint_falls_back_to_the_one_before(copy):
    path = copy / "checkpoints" / "step-00000030" / "manifest.json"
    edit(path, '"sha256": "', '"sha256": "0')
    shown = call("resume", copy, *MORE).stderr
    assert "step-00000030/manifest.json is damaged" in shown
    assert "Trained 32 steps" in shown
    call("verify", copy)


def test_a_listed_checkpoint_that_is_gone_is_named(copy):
    shutil.rmtree(copy / "checkpoints" / "step-00000030")
    assert "step-00000030 is missing" in call("verify", copy, code=1).stdout
    assert "step-00000030 is missing" in call("resume", copy, *MORE).stderr


# verify


def test_verify_names_every_part_and_what_is_wrong_with_it(copy, tmp_path):
    whole = call("verify", copy).stdout.splitlines()
    kept = [f"step-{step:08d}.safetensors" for step in (0, 1, 2, 3, 4, 6, 8, 11, 16, 23)]  # the snapshots of 30 steps
    names = ["config.toml", "tokenizer.json", "model.safetensors", "data.json", "step-00000030", "step-00000020", *kept]
    assert [line.split()[0] for line in whole] == ["whole"] * len(whole)
    assert [Path(line.split()[1]).name for line in whole][: len(names)] == names
    assert Path(whole[len(names)].split()[1]).name.startswith("tokens-")
    flip(copy / "tokenizer.json", 20)
    flip(copy / "snapshots" / kept[7])
    flip(copy / "checkpoints" / "step-00000020" / "shard-00000.safetensors")
    (copy / "checkpoints" / "step-00000030" / "state.json").unlink()
    (copy / "checkpoints" / "step-00000030" / "more.txt").touch()
    (copy / "checkpoints" / "notes.txt").touch()
    shown = call("verify", copy, code=1)
    expected = {
        ("damaged", "tokenizer.json"), ("damaged", "shard-00000.safetensors"), ("missing", "state.json"),
        ("foreign", "more.txt"), ("foreign", "notes.txt"), ("whole", "config.toml"), ("whole", "model.safetensors"), ("whole", "data.json"),
        ("damaged", kept[7]), *(("whole", name) for name in kept if name != kept[7]),
    }  # fmt: skip
    assert {(line.split()[0], Path(line.split()[1]).name) for line in shown.stdout.splitlines()} == expected
    assert "12 whole, 6 not" in shown.stderr
    assert "there is no run" in refused("verify", tmp_path / "nowhere")


def test_verify_names_what_is_not_hashed_and_what_is_not_of_the_run(copy):
    (copy / "copy-config.toml").touch()
    (copy / "eval").mkdir()
    assert (
        call("verify", copy)
        .stderr.strip()
        .endswith(
            "; not hashed: README.md, eval/, loss.png, metrics.jsonl, samples/; foreign, and not read: copy-config.toml"
        )
    )
    flip(copy / "data.json")
    assert f"damaged  {copy / 'data.json'}" in call("verify", copy, code=1).stdout
    assert load(copy).model is not None  # nothing that the model needs
    manifest = Manifest.read(copy)  # as an older version left it
    manifest._replace(files={n: e for n, e in manifest.files.items() if n != "data.json"}).write(copy)
    shown = call("verify", copy)
    assert "data.json" not in shown.stdout
    assert "; not hashed: README.md, data.json, eval/, " in shown.stderr


def test_damaged_metrics_are_named_and_left_out(copy):
    path = copy / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    nested = b"[" * 200_003 + b"\n"
    huge = b'{"step": 7, "train_loss": ' + b"9" * 400 + b"}\n"  # no float, so no plot, can hold it
    flipped = lines[1].replace(b"step", b"st\xe5p")
    path.write_bytes(lines[0] + nested + flipped + huge + b"".join(lines[2:]) + b'{"step": 31, "tr')
    said = f"{path} is damaged in lines 2, 3, 4: what was measured there cannot be read"
    assert f"damaged  {said}\n" in call("verify", copy, code=1).stdout
    shown = call("resume", copy, *MORE).stderr
    assert shown.count(f"{said}, and is left out") == 1
    call("verify", copy)
    assert path.read_bytes().startswith(lines[0] + b"".join(lines[2:]))


def meanwhile(monkeypatch, name, does, after=False):
    """Do something once, before or after the next call of this function: what another process does meanwhile."""
    module = checkpoint if hasattr(checkpoint, name) else run_files
    function = getattr(module, name)

    def called(*given):
        monkeypatch.setattr(module, name, function)
        if after:
            result = function(*given)
            does()
            return result
        does()
        return function(*given)

    monkeypatch.setattr(module, name, called)


def faults(folder):
    return [str(fault) for _, fault in verify_run(folder) if fault]


@pytest.mark.parametrize("at, after", [
    ("find", False), ("_read_manifest", False), ("find", True), ("faults_of", False), ("matches", False), ("state_of", False),
])  # fmt: skip
def test_a_checkpoint_that_a_training_prunes_meanwhile_is_no_fault(copy, monkeypatch, at, after):
    held = checkpoint.latest(copy)[0]
    tensors, state = dict(held.tensors.items()), held.state | {"step": 31}
    meanwhile(monkeypatch, at, lambda: checkpoint.write(copy, 31, tensors, state, keep=1), after)
    assert faults(copy) == []
    assert checkpoint.saved_steps(copy) == [31]
    meanwhile(monkeypatch, at, lambda: shutil.rmtree(copy / "checkpoints" / "step-00000031"), after)
    assert faults(copy) == [f"{copy / 'checkpoints' / 'step-00000031'} is missing or cannot be read"]


def test_weights_that_a_training_replaces_meanwhile_are_no_fault(copy, monkeypatch):
    content = (copy / "model.safetensors").read_bytes()
    entry = {"size": len(content) + 7, "sha256": hashlib.sha256(content + b"another").hexdigest()}

    def replace():
        Run(copy)._list(
            "model.safetensors", entry, lambda: (copy / "model.safetensors").write_bytes(content + b"another")
        )

    meanwhile(monkeypatch, "_matches", replace)
    assert faults(copy) == []
    meanwhile(monkeypatch, "_matches", lambda: flip(copy / "model.safetensors"))
    assert "model.safetensors is damaged" in faults(copy)[0]


@pytest.mark.parametrize("name", ["gpt", "vit", "dit"])
def test_runs_of_an_older_version_are_verified_by_what_they_have(name):
    shown = call("verify", OLD / name).stdout
    assert {line.split()[0] for line in shown.splitlines()} == {"whole"}


def test_an_older_run_is_resumed_with_a_sentence_on_what_cannot_be_compared(tmp_path):
    old = shutil.copytree(OLD / "vit", tmp_path / "vit")
    shown = call("resume", old, "--train.steps", 6, "--train.device", "cpu").stderr
    assert "is of an older version, which recorded no training settings: they are not compared" in shown
    edit(old / "config.toml", "seed = 1337", "seed = 8")
    assert "was saved with train.seed 1337" in refused("resume", old, "--train.steps", 8)


# the folder


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="there are no links to follow")
def test_the_lock_follows_no_link_and_empties_no_file(copy, tmp_path):
    lock, mine = copy / ".lock", tmp_path / "precious.txt"
    mine.write_text("years of work")
    lock.unlink(missing_ok=True)
    lock.symlink_to(mine)
    assert ".lock is a link" in refused("resume", copy, *MORE)
    lock.unlink()
    os.mkfifo(lock)
    assert "the lock of a run is a plain file" in refused("resume", copy, *MORE)
    lock.unlink()
    os.link(mine, lock)
    call("resume", copy, *MORE)
    assert mine.read_text() == "years of work"


def test_files_that_training_writes_replace_a_link(copy, tmp_path):
    from pencil.train.loop.report import Metrics, plot_losses

    mine = tmp_path / "precious"
    for steps, name in enumerate(("loss.png", "metrics.jsonl", "README.md", "manifest.json"), 31):
        kept = (copy / name).read_bytes()
        mine.write_bytes(kept)
        (copy / name).unlink()
        (copy / name).symlink_to(mine)
        before = mine.read_bytes()
        if name == "loss.png":
            plot_losses(copy)
        elif name == "metrics.jsonl":
            Metrics(copy, 30).write(step=31)
        else:
            call("resume", copy, "--train.steps", steps)
        assert mine.read_bytes() == before
        assert not (copy / name).is_symlink()


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="there are no links to follow")
@pytest.mark.parametrize("name", ["samples", "checkpoints", "eval"])
def test_a_folder_that_is_a_link_out_of_the_run_is_refused_before_anything_is_written(copy, tmp_path, name):
    outside = tmp_path / "outside"
    (copy / name).rename(outside) if (copy / name).exists() else outside.mkdir()
    for mine in (".config.deadbeef", ".step-00000030.txt.0123abcd", "step-diary/precious.txt"):
        (outside / mine).parent.mkdir(exist_ok=True)
        (outside / mine).touch()
    (copy / name).symlink_to(outside)
    before = sorted(outside.rglob("*"))
    for verb in ("resume", "eval") if name == "eval" else ("resume",):
        assert f"{name} is a link that leads out of" in refused(verb, copy, *(MORE if verb == "resume" else ()))
    assert sorted(outside.rglob("*")) == before
    (copy / name).unlink()
    outside.rename(copy / name)
    (copy / ".config.deadbeef").touch()
    (copy / ".config.toml.deadbeef").touch()
    with open_run(copy).writing():  # of what a killed writer left only its own names go
        assert (copy / name / ".config.deadbeef").exists()
        assert (copy / ".config.deadbeef").exists()
        assert not (copy / ".config.toml.deadbeef").exists()
        assert (copy / name / ".step-00000030.txt.0123abcd").exists() == (name != "samples")


def test_a_name_with_a_line_break_or_without_utf8_is_written_out(copy, notes, tmp_path):
    broken = copy.rename(tmp_path / "a\nwhole    b")
    walk = ("walk", "000", "--run", broken, "--input", "a")
    for words in (("verify", broken), ("resume", broken, *MORE), ("shapes", broken), walk):
        shown = call(*words)
        printed = (shown.stdout + shown.stderr).splitlines()
        assert not any(line.startswith("whole    b") for line in printed)
        assert any("a\\x0awhole    b" in line for line in printed)
    assert (broken / "README.md").read_text().startswith("# a\\x0awhole    b\n")
    unreadable = tmp_path / os.fsdecode(b"run-\xff")
    assert "run-\\udcff is not a name in UTF-8" in refused("train", "gpt", "--data", notes, *TINY, "--out", unreadable)
    assert not unreadable.exists()
    broken.rename(unreadable)
    call("verify", unreadable)
    assert "run-\\udcff/model.safetensors cannot be read, since its path is not UTF-8" in refused("eval", unreadable)
    assert "run-\\udcff is not a name in UTF-8" in refused("resume", unreadable, "--train.steps", 33)


@pytest.mark.parametrize("taken", [False, True])
def test_a_run_renamed_while_training_does_not_grow_a_second_folder(copy, tmp_path, taken):
    made, away = trainer(copy, steps=60, save_every=4), tmp_path / "renamed"
    update = made.update

    def renaming():
        seen = update()
        if made.step == 38:
            made.checkpointer.writer.settle()
            copy.rename(away)
            if taken:
                copy.mkdir()
        return seen

    made.update = renaming
    with pytest.raises(UserError, match="was renamed or removed while it was being written") as error:
        made.train()
    assert str(away) in str(error.value)
    assert list(copy.iterdir()) == [] if taken else not copy.exists()
    assert checkpoint.saved_steps(away) == [32, 36]
    whole = trainer(away, steps=42)
    assert whole.train().finished


@pytest.mark.parametrize("taken", [False, True])
def test_a_run_renamed_while_a_checkpoint_is_written_is_one_sentence(copy, tmp_path, monkeypatch, taken):
    made, away = trainer(copy, steps=60, save_every=4), tmp_path / "renamed"
    before, write = checkpoint.saved_steps(copy), checkpoint._write_shards

    def renaming(*given):
        copy.rename(away)
        if taken:
            copy.mkdir()
        return write(*given)

    monkeypatch.setattr(checkpoint, "_write_shards", renaming)
    with pytest.raises(UserError, match="was renamed or removed while it was being written"):
        made.train()
    assert list(copy.iterdir()) == [] if taken else not copy.exists()
    assert checkpoint.saved_steps(away) == before


# data


def test_moved_data_is_pointed_to_and_must_be_the_same(tmp_path, notes):
    here, there = tmp_path / "here.txt", tmp_path / "elsewhere" / "there.txt"
    shutil.copy(notes, here)
    whole, moved = (tmp_path / name for name in ("whole", "moved"))
    for out in (whole, moved):
        sizes, pace = dict(width=24, heads=3, depth=1, context=31), dict(steps=6, eval_every=3, eval_batches=1, batch=3)
        run, task, config = new_run(TrainingRequest("gpt", str(here), model=sizes, train=pace), out=out)
        made = Trainer(task, run, config)
        (interrupt_after(made, 3) if out == moved else made).train()
    there.parent.mkdir()
    here.rename(there)
    assert f"if it was moved: pencil resume {moved} --data PATH" in refused("resume", moved)
    other = tmp_path / "other.txt"
    other.write_text(there.read_text() + "more")
    assert "other.txt is not the data that" in refused("resume", moved, "--data", other)
    assert "Trained 6 steps" in call("resume", moved, "--data", there).stderr
    assert bits(moved, 6) == bits(whole, 6)
    assert open_run(moved).config["run"]["data_path"] == str(there)
    call("verify", moved)
    call("eval", moved)


# what --allow-changes takes over


def allowed(folder, **settings):
    made = trainer(folder, **settings)
    made.allow_changes = True
    return made


def test_an_allowed_tokenizer_is_in_the_manifest_afterwards(copy):
    edit(copy / "tokenizer.json", "{", "{ ")
    assert any(fault for _, fault in open_run(copy).check_files("tokenizer.json"))
    allowed(copy, steps=32).restore()
    assert not any(fault for _, fault in open_run(copy).check_files("tokenizer.json"))


def test_lost_weights_are_those_of_the_checkpoint_even_if_better_ones_were_lost(copy):
    flip(copy / "model.safetensors")
    made = allowed(copy, steps=32)
    made.restore()
    assert made.state.best["step"] == 30
    weights = load(copy).model.state_dict()
    assert all((weights[name] == tensor).all() for name, tensor in made.model.state_dict().items())


def test_another_number_of_threads_is_announced(copy):
    state = next((copy / "checkpoints").glob("step-*30")) / "state.json"
    threads = json.loads(state.read_text())["threads"]
    made = trainer(copy, steps=32)
    kept, _ = checkpoint.latest(copy)
    sentence = f"threads was {threads + 4} and is {threads} now: the result may differ in its last bits"
    assert differences_of_machine(made.checkpointer, kept.state | {"threads": threads + 4}) == [sentence]
    assert differences_of_machine(made.checkpointer, kept.state) == []
