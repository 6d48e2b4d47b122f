"""Checkpoints of the hub: the cache without a network, and a hub that is a folder of this machine."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from pencil.config import UserError
from pencil.weights import hub
from pencil.weights.checkpoint_files import open_checkpoint

huggingface_hub = pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CARD = "---\nlanguage: en\nlicense: apache-2.0\ntags:\n- license\n---\n# A model\nlicense: none of this\n"
WEIGHTS = {"a.weight": torch.arange(15.0).reshape(3, 5)}


class Hub:
    """A hub: files by name, put into the cache as the package puts them there; it counts what is asked of it."""

    def __init__(self, cache):
        self.cache, self.files, self.asked, self.sizes = cache, {}, [], {}
        self.error = None

    def add(self, name, **files):
        self.files[name] = {key.replace("__", "/").replace("_dot_", "."): value for key, value in files.items()}

    def model_info(self, name, revision=None, files_metadata=False, timeout=None):
        self.asked.append(name)
        if self.error:
            raise self.error
        assert files_metadata
        files = self.files[name]
        one = [SimpleNamespace(rfilename=file, size=self.sizes.get(file, len(files[file]))) for file in files]
        return SimpleNamespace(sha=COMMIT, siblings=one)

    def download(self, name, file, revision=None):
        assert revision == COMMIT
        self.asked.append(file)
        place = self.cache / f"models--{name.replace('/', '--')}"
        path, blob = place / "snapshots" / COMMIT / file, place / "blobs" / file.replace("/", "-")
        for one in (path, blob, place / "refs" / "main"):
            one.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(self.files[name][file])
        path.unlink(missing_ok=True)
        path.symlink_to(os.path.relpath(blob, path.parent))
        (place / "refs" / "main").write_text(COMMIT)
        return str(path)


@pytest.fixture
def server(tmp_path, monkeypatch):
    made = Hub(tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(made.cache))
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda _, *words, **given: made.model_info(*words, **given)
    )
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", made.download)
    save_file(WEIGHTS, tmp_path / "w.safetensors")
    made.weights = (tmp_path / "w.safetensors").read_bytes()
    made.add("owner/small", **{
        "config_dot_json": b'{"model_type": "gpt2"}', "model_dot_safetensors": made.weights, "README_dot_md": CARD.encode(),
        "tokenizer_dot_json": b"{}", "pytorch_model_dot_bin": b"pickled", "tf_model_dot_h5": b"other",
        "onnx__model_dot_onnx": b"other", "1_Pooling__config_dot_json": b"{}",
    })  # fmt: skip
    return made


def test_only_what_is_needed_is_downloaded_at_a_pinned_revision(server):
    said = []
    found = hub.fetch_checkpoint("hf:owner/small", said.append)
    assert found.revision == COMMIT
    assert found.licence == "apache-2.0"
    assert sorted(server.asked[1:]) == [
        "1_Pooling/config.json", "README.md", "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert said == [f"Downloading owner/small, 0.0 MB in 5 files, at revision {COMMIT}."]


def test_what_is_in_the_cache_needs_no_network(server):
    hub.fetch_checkpoint("hf:owner/small")
    server.asked.clear()
    said = []
    with open_checkpoint("hf:owner/small", said.append) as found:
        assert torch.equal(found.source.read("a.weight"), WEIGHTS["a.weight"])
        assert (found.library, found.revision, found.licence) == ("hf", COMMIT, "apache-2.0")
        assert found.config == {"model_type": "gpt2"}
    assert server.asked == []
    assert said == [f"owner/small is in the hub's cache, at revision {COMMIT}: nothing is downloaded."]


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json"])
def test_a_cache_that_another_program_filled_in_part_is_completed(server, missing):
    path = hub.fetch_checkpoint("hf:owner/small").folder / missing
    path.unlink()
    server.asked.clear()
    assert hub.fetch_checkpoint(f"hf:owner/small@{COMMIT}").folder == path.parent
    assert missing in server.asked
    assert path.exists()


def test_no_network_says_what_to_copy_where(server):
    server.error = ConnectionError("no route")
    with pytest.raises(UserError) as error:
        hub.fetch_checkpoint("hf:owner/small@v2")
    assert str(error.value) == (
        "owner/small is not in the hub's cache, and the hub cannot be reached (ConnectionError); where it can be, run: "
        "hf download owner/small --revision v2 --local-dir small; then copy that folder here and give its path"
    )
    assert not server.cache.exists()


def test_what_is_not_on_the_hub(server):
    from huggingface_hub import errors

    for kind, why in (("RepositoryNotFoundError", "there is no model owner/small on the hub"),
                      ("GatedRepoError", "asks for its licence to be accepted"),
                      ("RevisionNotFoundError", "has no revision v9")):  # fmt: skip
        made = getattr(errors, kind)
        server.error = made.__new__(made)
        with pytest.raises(UserError, match=why):
            hub.fetch_checkpoint("hf:owner/small@v9")


def test_the_disk_is_checked_before_the_download(server):
    free = shutil.disk_usage("/").free
    server.sizes["model.safetensors"] = 1000 * free
    with pytest.raises(
        UserError, match=r"owner/small needs [\d,.]+ GB to download and .*cache has [\d.]+ GB free; make room"
    ):
        hub.fetch_checkpoint("hf:owner/small")
    assert server.asked == ["owner/small"]


def test_shards_of_the_hub_are_all_fetched(server, tmp_path):
    names = {"model-00001-of-00002.safetensors": "a", "model-00002-of-00002.safetensors": "b"}
    files = {}
    for file, tensor in names.items():
        save_file({tensor: torch.full((3,), 7.0)}, tmp_path / file)
        files[file] = (tmp_path / file).read_bytes()
    index = '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    server.files["owner/big"] = files | {
        "config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors.index.json": index.encode(),
        "pytorch_model-00001-of-00001.bin": b"",
    }  # fmt: skip
    with open_checkpoint("hf:owner/big") as found:
        assert set(found.source.shapes()) == {"a", "b"}
        shard = found.source.entries["b"][0]
    assert "pytorch_model-00001-of-00001.bin" not in server.asked
    shard.unlink()
    server.asked.clear()
    with open_checkpoint("hf:owner/big") as found:
        assert set(found.source.shapes()) == {"a", "b"}
    assert shard.name in server.asked


def test_of_a_pipeline_the_transformer_is_fetched(server):
    server.files["facebook/dit"] = {
        "model_index.json": b"{}", "README.md": b"---\nlicense: other\nlicense_name: cc-by-nc-4.0\n---\n",
        "transformer/config.json": b'{"_class_name": "DiTTransformer2DModel"}',
        "transformer/diffusion_pytorch_model.safetensors": server.weights, "vae/diffusion_pytorch_model.safetensors": b"no",
        "scheduler/scheduler_config.json": b"{}",
    }  # fmt: skip
    for _ in range(2):  # from the hub, and from the cache
        with open_checkpoint("diffusers:facebook/dit") as found:
            assert found.config == {"_class_name": "DiTTransformer2DModel", "scheduler": {}}
            assert found.licence == "cc-by-nc-4.0"
            assert list(found.source.shapes()) == ["a.weight"]
    assert not [name for name in server.asked if name.startswith("vae")]
    assert server.asked.count("facebook/dit") == 1


def test_names_of_timm_have_their_usual_tag(timm):
    named = [(tag, name) for tag, names in hub.TIMM_TAGS.items() for name in names.split()]
    assert len(named) > 25
    for tag, name in named:
        assert timm.get_pretrained_cfg(name).hf_hub_id == f"timm/{name}.{tag}"
        assert hub.parse_name(f"timm:{name}").name == f"timm/{name}.{tag}"


def test_names():
    assert hub.parse_name("hf:a/b@main") == ("a/b", "main")
    assert hub.parse_name("timm:vit_x.tag").name == "timm/vit_x.tag"
    for name in ("hf:gpt2", "hf:a/b/c", "hf:../b", "hf:a/b@c d", "hf:", "diffusers:a"):
        with pytest.raises(UserError, match="is not a name of the hub, which is written"):
            hub.parse_name(name)


@pytest.mark.parametrize("card, licence", [
    (CARD, "apache-2.0"), ("---\r\nlicense: mit\r\n---\r\n", "mit"), ("# no header\nlicense: mit\n", None),
    ("---\nlicense:\n- mit\n- apache-2.0\ntags: [x]\n---\n", "mit, apache-2.0"), ("---\nlicense: 'gpl-3.0'\n---\n", "gpl-3.0"),
    ("---\ntags: x\n---\nlicense: mit\n", None),
])  # fmt: skip
def test_the_licence_is_what_the_card_names(tmp_path, card, licence):
    (tmp_path / "README.md").write_bytes(card.encode())
    assert hub.licence_in(tmp_path) == licence
    assert hub.licence_in(Path(tmp_path, "nothing")) is None


def test_the_former_prefix_of_data_is_read_and_said_once(tmp_path, capsys):
    from pencil.api.run_data import whole_path
    from pencil.data.hub import say_current_form

    say_current_form.cache_clear()
    (tmp_path / "pets").mkdir()
    for _ in range(2):
        assert whole_path(f"hub:{tmp_path / 'pets'}", ()) == f"hf:{tmp_path / 'pets'}"
        assert whole_path("hf:owner/pets", ()) == "hf:owner/pets"
    assert "".join(capsys.readouterr().err.split()) == f"hub:{tmp_path}/petsisnowwrittenhf:{tmp_path}/pets"
