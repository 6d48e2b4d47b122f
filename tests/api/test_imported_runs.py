"""Checkpoints of other libraries as runs: every verb on them, training from them, and the way back with the same bits.

`python tests/api/test_imported_runs.py` writes the tables of docs/guides/import-export.md anew.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from albums import photos
from conftest import TINY, call
from foreign import MAKERS
from pencil.api.interchange.exporting import LIBRARIES, expressed
from pencil.api.interchange.importing import _by_name, list_architectures
from pencil.config import UserError
from pencil.families import FAMILIES
from pencil.models.gpt import GPT
from pencil.runs.run import Run
from pencil.weights.maps import Source, renamed_names, write
from pencil.weights.nanogpt import NANOGPT

TEXT = "the strip has a seat and the other one has not\n"
FAST = ("GPT-2", "ViT")  # of the makers; the others in the long form
TO = {"transformers": "hf", "timm": "timm", "diffusers": "diffusers"}
QUICK = ["--train.steps", "2", "--train.batch", "3", "--train.eval_batches", "1", "--train.warmup", "1"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Each checkpoint, made when it is first needed."""
    made, root = {}, tmp_path_factory.mktemp("foreign")

    def folder(name):
        if name not in made:
            made[name] = MAKERS[name](root / name.replace(" ", "-"))
        return made[name]

    return folder


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def foreign(request, folders):
    """The checkpoint of that name; timm needs a stand-in for torchvision."""

    def folder(name):
        if name == "timm ViT":
            request.getfixturevalue("timm")
        if name == "DiT":
            pytest.importorskip("diffusers", reason="diffusers (an extra) is not installed")
        return folders(name)

    return folder


def data_for(family):
    """Data of the kind that a family trains on."""
    if family in ("vit", "dit"):
        photos(Path("photos"))
        return "photos"
    if family == "seq2seq":
        Path("pairs.tsv").write_text("".join(f"the strip {i}\tone has {i}\n" for i in range(40)))
        return "pairs.tsv"
    Path("notes.txt").write_text(TEXT * 60)
    return "notes.txt"


def weights_of(folder):
    (file,) = folder.rglob("*.safetensors")
    return load_file(file)


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.long) for n in MAKERS])
def test_in_used_trained_from_and_back(foreign, name):
    folder = foreign(name)
    printed = call("import", folder, "--name", "in").stderr
    run = Run.open(Path("runs/in"))
    assert f"of {run.config['import']['library']}, a {run.family} of" in printed
    call("verify", "runs/in")
    call("shapes", "runs/in")
    assert "parameters" in call("cost", "runs/in").stdout
    check_inside(run)
    data = data_for(run.family)
    check_back(run, folder)
    check_training(run, data)


def check_inside(run):
    """A number of it unfolds into its arithmetic."""
    given = {
        "vit": lambda: ["--input", str(picture())],
        "dit": lambda: ["--label", "3"],
        "seq2seq": lambda: ["--input", "the strip", "--text", "one has"],
    }.get(run.family, lambda: ["--input", "the strip has"])()
    shown = call("show", run.path, *given).stdout
    assert "blocks.1." in shown
    name = "encoder.blocks.1.mid" if "encoder.blocks" in shown else "blocks.1.mid"
    assert "✓" in call("why", run.path, f"{name}[0,1,2]", *given).stdout


def picture():
    from PIL import Image

    Image.effect_noise((31, 29), 80).convert("RGB").save("noise.png")
    return Path("noise.png")


def check_back(run, folder):
    """Exported, it has the same tensors, bit for bit; what is left out is what ours does not need."""
    to = TO[run.config["import"]["library"]]
    call("export", run.path, "--to", to, "--out", "back")
    held, back = weights_of(folder), weights_of(Path("back"))
    record, architecture = next(
        k for k in list_architectures() if k.architecture.name == run.config["import"]["architecture"]
    )
    names = dict(zip(renamed_names(architecture, Source(held)), held, strict=True))
    again = dict(zip(renamed_names(architecture, Source(back)), back, strict=True))
    assert again.keys() <= names.keys()
    for name, place in again.items():
        assert torch.equal(held[names[name]], back[place]), name
    left = [name for name in names if name not in again]
    config = record.read_config(run.config["model"])
    free = [*architecture.unused(config), *map(re.escape, architecture.tied(config)), *architecture.absent(config)]
    assert all(any(re.fullmatch(pattern, name) for pattern in free) or "pos_embed" in name or ".emb." in name
               for name in left), left  # fmt: skip
    config = json.loads((Path("back") / "config.json").read_text())
    assert config.get("model_type", config.get("architecture", config.get("_class_name")))
    assert (Path("back") / "README.md").is_file()


def check_training(run, data):
    """Training from it starts with its weights, on data of one's own."""
    words = ["train", run.family, "--from", run.path, "--data", data, "--name", "on", *QUICK]
    if run.family == "dit":
        words += ["--train.compile", "off"]
    printed = call(*words).stderr
    assert "parameters train" in printed
    assert Run.open(Path("runs/on")).config["run"]["from"] == str(run.path)


NANO = dict(n_layer=2, n_head=3, n_embd=30, block_size=17, bias=False, vocab_size=53, dropout=0.0)
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "import-export.md"
NAMED = {"GPT-2": ("GPT-2", "GPT-2 untied"), "BERT": ("BERT", "BERT with labels", "MiniLM"),
         "VisionTransformer": ("timm ViT",)}  # fmt: skip


def table(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def architectures():
    """What each architecture can do; the tests above do it, except for those that no library makes."""
    words = {library: f"`--to {word}`" for word, library in LIBRARIES.items()}
    rows = []
    for record, one in list_architectures():
        out = words.get(one.library, "no") if one.describe is not None else "no"
        reads = "no text" if record.name in ("vit", "dit") else "yes"
        reads = "`--tokenizer`" if one.library in ("nanogpt", "llama") else reads
        rows.append([one.name, one.library, f"`{record.name}`", "yes", out, "yes", "yes", reads])
    return table(["architecture", "library", "becomes a", "import", "export", "train from", "trace", "tokenizer"], rows)


def presets():
    """Where each preset can be exported to, or what keeps it from it."""
    rows = []
    for record in FAMILIES.values():
        for preset in record.presets:
            try:
                config = record.configure(preset)
            except UserError:
                continue
            for library in dict.fromkeys(
                one.library for one in record.checkpoints if one.library in LIBRARIES.values()
            ):
                try:
                    found = f"as {expressed(record, config, library)[0].name}"
                except UserError as error:
                    found = f"no: {error}"
                rows.append([f"`{record.name}:{preset}`", library, found])
    return table(["preset", "library", "export"], rows)


def written():
    """The page with both tables made anew."""
    text = PAGE.read_text(encoding="utf-8")
    for name, made in (("architectures", architectures()), ("presets", presets())):
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text, flags=re.S
        )
    return text


def test_the_tables_of_the_page_are_those_of_the_records():
    assert PAGE.read_text(encoding="utf-8") == written()
    makers = {one for name in {k.architecture.name for k in list_architectures()} for one in NAMED.get(name, (name,))}
    assert set(MAKERS) <= makers


@pytest.mark.parametrize(
    "config, words",
    [
        ({"model_type": "GPT-2"}, "is a GPT-2 of transformers, which cannot be imported; did you mean gpt2?"),
        ({"model_type": "olmo"}, "is an olmo of transformers, which cannot be imported; known: "),
        ({"model_type": "gemma2"}, "is a gemma2 of transformers, which cannot be imported; known: "),
        ({"_class_name": "PixArtTransformer2DModel"}, "is a PixArtTransformer2DModel of diffusers, which cannot be"),
        ({"architecture": "resnet50"}, "is a resnet50 of timm, which cannot be imported"),
        ({}, "does not say what kind of model it is"),
    ],
)
def test_another_architecture_is_refused_by_its_name(foreign, config, words):
    folder = Path("other")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"weight": torch.ones(3, 5)}, folder / "model.safetensors")
    assert words in call("import", "other", code=2).stderr
    assert not Path("runs").exists()


def test_no_other_architecture_is_proposed():
    """Every type of model of transformers that is not ours, and spellings of ours."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    ours = {
        name
        for one in list_architectures()
        if one.architecture.library == "transformers"
        for name in one.architecture.types
    }
    refusals = {}
    for name in {*CONFIG_MAPPING_NAMES, "gpt3", "llama4"} - ours:
        with pytest.raises(UserError) as refused:
            _by_name("transformers", name, "x")
        refusals[name] = str(refused.value)
    assert len(refusals) > 300
    assert [name for name, text in refusals.items() if "did you mean" in text] == []
    assert "x is an mt5 of" in refusals["mt5"]
    assert "x is a mixtral of" in refusals["mixtral"]
    for spelt, meant in {"GPT2": "gpt2", "gpt-neox": "gpt_neox", "Qwen_3": "qwen3", "RoBERTa": "roberta"}.items():
        with pytest.raises(UserError, match=rf"did you mean {meant}\?"):
            _by_name("transformers", spelt, "x")


def test_a_checkpoint_of_nanogpt_is_read_from_its_file():
    config = NANOGPT.configure(NANO)
    torch.manual_seed(7)
    ours = GPT(config)
    held = {f"_orig_mod.{name}": tensor for name, tensor in write(NANOGPT, ours.state_dict(), config)}
    torch.save({"model": held, "model_args": NANO, "iter_num": 3, "config": {"dataset": "notes"}}, "ckpt.pt")
    printed = call("import", "nanogpt:ckpt.pt", "--name", "nano").stderr
    assert "nanoGPT keeps its characters in meta.pkl, which is not read, since a pickle can run code" in printed
    taken = load_file("runs/nano/model.safetensors")
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in taken.items())
    assert (
        "runs/nano has no tokenizer.json: import it again with --tokenizer FILE"
        in call("sample", "runs/nano", "--prompt", "a", code=2).stderr
    )


def test_an_imported_run_has_no_data_of_its_own(foreign):
    call("import", foreign("GPT-2"), "--name", "in")
    refusal = call("eval", "runs/in", code=2).stderr
    assert (
        "runs/in was imported, and has no data of its own: name some with --data, or train from it: pencil" in refusal
    )
    for words in ([], ["--data", "notes.txt"]):
        refusal = call("resume", "runs/in", *words, code=2).stderr
        assert "there is no training to continue; train from it: pencil train gpt --from runs/in --data DATA" in refusal
    assert "name some with --data, or a text with --prompt" in call("heads", "runs/in", code=2).stderr


@pytest.mark.long
def test_a_run_that_a_library_cannot_express_is_refused_by_the_setting(notes):
    call("train", "gpt", "--data", notes, *TINY, "--model.positions", "alibi", "--out", "own")
    refusal = call("export", "own", "--to", "hf", code=2).stderr
    assert (
        "own cannot be exported to transformers: model.positions is 'alibi', and only 'learned' is there in" in refusal
    )
    assert "a gpt has no counterpart in timm: use --to hf\n" in call("export", "own", "--to", "timm", code=2).stderr
    assert "--to is one of hf, timm, diffusers, onnx, not ggml" in call("export", "own", "--to", "ggml", code=2).stderr
    assert not Path("exports").exists()


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
