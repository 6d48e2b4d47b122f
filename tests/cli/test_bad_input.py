"""Every failure is one sentence on standard error and exit status 2, and nothing is lost."""

import shutil

import pytest
from test_verbs import QUICK, type_in  # noqa: F401

from conftest import TEXT, TINY, pencil

BAD_FILES = {
    "empty.txt": b"",
    "binary.txt": b"ab\0cd",
    "latin.txt": "café au lait".encode("latin-1"),
    "short.txt": b"too short",
}


@pytest.fixture
def fails(type_in, tmp_path):  # noqa: F811
    def call(*words):
        said = type_in(*words, code=2)
        assert not said.out
        sentence = said.err.rstrip("\n")
        assert sentence.startswith("pencil: ")
        assert "\n" not in sentence
        assert "Traceback" not in sentence
        return sentence

    for name, content in BAD_FILES.items():
        (tmp_path / name).write_bytes(content)
    return call


@pytest.mark.parametrize("words, said", [
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
    (["--train.device", "tpu"], "device tpu is not to be had here"),
    (["--tokenizer", "chars"], "did you mean char?"),
    (["--model.vocab", "7"], "model.vocab 7 is smaller than the tokenizer's"),
    (["--wat", "7"], "--wat"),
])  # fmt: skip
def test_training_that_cannot_begin(fails, tmp_path, words, said):
    assert said in fails("train", "gpt", *words)
    assert not (tmp_path / "runs").exists()


def test_unknown_families_and_verbs(fails):
    assert "gtp is not a family of models; did you mean gpt?" in fails("train", "gtp")
    assert "trian" in fails("trian", "gpt")
    assert "gtp2 is neither a preset nor a run's folder; did you mean gpt2?" in fails("shapes", "gtp2")


def test_a_run_is_never_overwritten_unasked(fails, type_in, notes, tmp_path):  # noqa: F811
    type_in("train", "gpt", "--data", notes, "--name", "mine", *QUICK)
    weights = (tmp_path / "runs" / "mine" / "model.safetensors").read_bytes()
    assert "the name mine is already taken by runs/mine" in fails(
        "train", "gpt", "--data", notes, "--name", "mine", *QUICK
    )
    assert "already holds another run" in fails("train", "gpt", "--data", notes, "--out", "runs/mine", *QUICK)
    assert (tmp_path / "runs" / "mine" / "model.safetensors").read_bytes() == weights
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("diary")
    assert "already holds" in fails("train", "gpt", "--data", notes, "--out", "letters", *QUICK)
    type_in("train", "gpt", "--data", notes, "--out", "runs/mine", "--force", "--train.seed", "8", *QUICK)
    assert (tmp_path / "runs" / "mine" / "model.safetensors").read_bytes() != weights


def test_force_replaces_runs_only(fails, notes, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("diary")
    assert "is not a run" in fails("train", "gpt", "--data", notes, "--out", "letters", "--force", *QUICK)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "diary"


def test_prompts_that_cannot_be_used(fails, run):
    assert "the prompt has 40 tokens and the context holds 31" in fails("sample", run, "--prompt", "e" * 40)
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
        assert "bare is not a run: it has no config.toml" in fails(verb, "bare")


def test_a_run_without_weights(fails, copy):
    (copy / "model.safetensors").unlink()
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


def test_weights_of_another_model(fails, type_in, copy, notes):  # noqa: F811
    type_in("train", "gpt", "--data", notes, "--name", "other", *QUICK, "--model.width", "36")
    for name in ("model.safetensors", "manifest.json"):
        shutil.copy(f"runs/other/{name}", copy / name)
    assert "was changed" in fails("sample", copy)
    from pencil.runs import Run, fingerprint

    run = Run(copy)
    weights = (copy / "model.safetensors").read_bytes()
    run._replace("model.safetensors", weights)
    assert fingerprint(copy / "model.safetensors")["size"] == len(weights)
    assert "is of another model" in fails("sample", copy)


def test_a_checkpoint_of_another_model(fails, type_in, copy, notes):  # noqa: F811
    type_in(
        "train", "gpt", "--data", notes, "--name", "other", *QUICK, "--model.width", "36", "--train.save_every", "2"
    )
    shutil.rmtree(copy / "checkpoints")
    shutil.copytree("runs/other/checkpoints", copy / "checkpoints")
    assert "is a checkpoint of another model" in fails("resume", copy)


def test_a_checkpoint_of_the_same_shapes_but_another_model(fails, type_in, copy, notes):  # noqa: F811
    type_in("train", "gpt", "--data", notes, "--name", "other", *QUICK, "--model.rope_base", "500")
    shutil.rmtree(copy / "checkpoints")
    shutil.copytree("runs/other/checkpoints", copy / "checkpoints")
    assert "is a checkpoint of another model" in fails("resume", copy, "--train.steps", "99")


def test_a_change_that_cannot_be_gone_on_with_leaves_the_run_as_it_was(fails, copy):
    config = (copy / "config.toml").read_bytes()
    more = ("--train.steps", "99")
    assert "is trained with muon, and cannot go on with adamw" in fails(
        "resume", copy, *more, "--train.optimizer", "adamw"
    )
    assert "device cuda:9 is not to be had" in fails("resume", copy, *more, "--train.device", "cuda:9")
    assert "only --train settings can change" in fails("resume", copy, "--model.width", "64")
    assert (copy / "config.toml").read_bytes() == config


def test_places_that_cannot_be_written(fails, run, notes, tmp_path):
    assert "there is no folder nowhere" in fails("sample", run, "--out", "nowhere/x.txt")
    assert "is a folder" in fails("sample", run, "--out", tmp_path)
    (tmp_path / "file").touch()
    assert "file" in fails("train", "gpt", "--data", notes, "--out", "file/run", *QUICK)
    assert "file is a file" in fails("train", "gpt", "--data", notes, "--out", "file", *QUICK)
    assert "not UTF-8" in fails("sample", run, "--prompt", "a\udcff")


@pytest.mark.parametrize("words", [("--model.width", 1 << 24), ("--train.batch", 10**8), ("--model.width", 4 * 10**10)])
def test_a_model_that_does_not_fit_in_memory(fails, notes, words, tmp_path):
    assert "needs about" in fails("train", "gpt", "--data", notes, *words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words, said", [
    (["--data", ""], "--data is empty"), (["--name", ""], "--name must be"), (["--name", ".."], "--name must be"),
    (["--name", "a/b"], "--name must be"), (["--model.eps", "-1"], "model.eps must be above 0"),
    (["--model.rope_base", "0"], "model.rope_base must be above 0"),
])  # fmt: skip
def test_values_that_make_no_sense(fails, words, said):
    assert said in fails("train", "gpt", *words)


def test_small_things_that_make_no_sense(fails, run):
    assert "--batch must be at least 1" in fails("shapes", "nano", "--batch", "0")
    assert "--stop cannot be empty" in fails("sample", run, "--stop", "")
    assert "--count must be at least 1" in fails("sample", run, "--count", "0")
    assert "temperature must be" in fails("sample", run, "--temperature", "inf")
    assert "seed must be" in fails("sample", run, "--seed", "-1")


def test_data_that_changed_under_a_run(fails, type_in, tmp_path):  # noqa: F811
    (tmp_path / "tale.txt").write_text(TEXT)
    type_in("train", "gpt", "--data", "tale.txt", *QUICK)
    (tmp_path / "tale.txt").write_text(TEXT + "more")
    assert "tale.txt has changed since" in fails("resume", "runs/tale-gpt", "--train.steps", 9)
    assert "tale.txt has changed since" in fails("eval", "runs/tale-gpt")


@pytest.mark.parametrize(
    "text, said", [("[run", "cannot be read"), ("[run]\n", "has no [model]"), ("", "has no [run]")]
)
def test_a_config_that_cannot_be_read(fails, copy, text, said):
    (copy / "config.toml").write_text(text)
    assert "config.toml is damaged or was changed" in fails("sample", copy)
    assert said in fails("resume", copy)


def test_hostile_weights_are_refused_quickly(fails, copy):
    from pencil.runs import Run

    for content in (b"", b"\xff" * 8 + b"{}", (1 << 40).to_bytes(8, "little") + b"{}", b"\x02\0\0\0\0\0\0\0{}"):
        Run(copy)._replace("model.safetensors", content)
        assert "model.safetensors" in fails("sample", copy)


def test_debug_shows_where():
    done = pencil("sample", "nowhere", "--debug", code=1)
    assert "Traceback" in done.stderr


def test_one_sentence_from_a_process_of_its_own(tmp_path):
    done = pencil("train", "gpt", "--data", "nowhere", *TINY, code=2, cwd=tmp_path)
    assert done.stderr.count("\n") == 1
    assert not done.stdout
    assert not list(tmp_path.iterdir())
