import io
import sys

import numpy as np
import pytest
from PIL import Image

from pencil.config import UserError
from pencil.data.images import open_images as images
from pencil.data.images.augment import ImageTransform
from pencil.data.text import corpus

TRANSFORM = ImageTransform((9, 7), 1)


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    found = pytest.importorskip("datasets", reason="the datasets package (an extra) is not installed")
    monkeypatch.setattr(found.config, "HF_DATASETS_CACHE", tmp_path / "hub-cache")
    return found


def png(value):
    out = io.BytesIO()
    Image.new("L", (7, 9), value).save(out, "PNG")
    return {"bytes": out.getvalue(), "path": None}


def table(datasets, folder, split, values, **columns):
    """A parquet file of flat pictures, as bright as their number."""
    folder.mkdir(exist_ok=True)
    kinds = {"image": datasets.Image()}
    for name, column in columns.items():
        strings = isinstance(column[0], str)
        kinds[name] = datasets.Value("string") if strings else datasets.ClassLabel(names=["cat", "dog"])
    held = datasets.Dataset.from_dict({"image": [png(v) for v in values], **columns}, features=datasets.Features(kinds))
    held.to_parquet(str(folder / f"{split}-00000.parquet"))


def test_a_table_with_labels(datasets, tmp_path):
    for split, values in (("train", range(20)), ("test", range(100, 107))):
        table(datasets, tmp_path / "pets", split, values, label=[v % 2 for v in values])
    data = images.load(f"hf:{tmp_path / 'pets'}", "label")
    assert data.name == "pets"
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.test)) == (20, 7)
    rows, targets = data.train.take([3, 8], TRANSFORM)
    assert rows.shape == (2, 1, 9, 7)
    assert rows[:, 0, 4, 4].tolist() == [3, 8]
    assert targets == [1, 0]
    rows, targets = data.test.take(range(7), TRANSFORM)
    assert rows[:, 0, 0, 0].tolist() == list(range(100, 107))
    assert images.load(f"hf:{tmp_path / 'pets'}", "label").hash == data.hash


def test_a_table_with_captions_and_no_split(datasets, tmp_path):
    table(datasets, tmp_path / "tales", "train", range(30), text=[f"number {v}" for v in range(30)])
    data = images.load(f"hf:{tmp_path / 'tales'}", "caption")
    assert (len(data.train), len(data.test)) == (27, 3)
    seen = set()
    for part in (data.train, data.test):
        rows, targets = part.take(range(len(part)), TRANSFORM)
        assert [f"number {value}" for value in rows[:, 0, 0, 0]] == targets
        seen |= set(targets)
    assert len(seen) == 30
    again = images.load(f"hf:{tmp_path / 'tales'}", "caption")
    assert again.test.targets == data.test.targets


def test_a_broken_picture_of_a_table_is_named(datasets, tmp_path):
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = [png(10), {"bytes": b"words", "path": None}, png(30), png(40)]
    (tmp_path / "pets").mkdir()
    for split in ("train", "test"):
        held = datasets.Dataset.from_dict({"image": rows, "label": [0, 1, 0, 1]}, features=kinds)
        held.to_parquet(str(tmp_path / "pets" / f"{split}-0.parquet"))
    data = images.load(f"hf:{tmp_path / 'pets'}", "label")
    shown, targets = data.train.take(range(4), TRANSFORM, np.random.default_rng(0))
    assert shown[:, 0, 0, 0].tolist() == [10, 30, 30, 40]
    assert targets == [0, 0, 0, 1]
    assert data.skipped == [("train row 1", "not a picture Pillow can read")]


def test_tables_that_cannot_be_used(datasets, tmp_path):
    table(datasets, tmp_path / "tales", "train", range(20), text=["words"] * 20)
    with pytest.raises(UserError, match="has columns image, text: no picture with a label among them"):
        images.load(f"hf:{tmp_path / 'tales'}", "label")
    table(datasets, tmp_path / "pets", "train", range(20), label=[0] * 20)
    with pytest.raises(UserError, match="no picture with a caption among them"):
        images.load(f"hf:{tmp_path / 'pets'}", "caption")
    with pytest.raises(UserError, match="has only one class, cat"):
        images.load(f"hf:{tmp_path / 'pets'}", "label")
    for name, values, want, columns in (
        ("few", (3, 5), "label", {"label": [0, 1]}),
        ("same", (7, 7, 7), "caption", {"text": ["a", "b", "c"]}),
    ):
        table(datasets, tmp_path / name, "train", values, **columns)
        with pytest.raises(UserError, match="too few pictures: none is left to evaluate on; two different ones"):
            images.load(f"hf:{tmp_path / name}", want)


@pytest.mark.parametrize("name", ["nobody/nothing-at-all", "", "no/such/folder/anywhere"])
def test_a_name_that_is_not_there(datasets, monkeypatch, name, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=f"hf:{name} cannot be loaded: .") as error:
        images.load(f"hf:{name}", "label")
    assert "\n" not in str(error.value)


def test_a_failure_without_a_message_is_named_by_its_type(datasets, monkeypatch):
    def fail(name):
        raise RuntimeError

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(UserError, match="hf:a/b cannot be loaded: RuntimeError"):
        images.load("hf:a/b", "label")


def test_the_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"need the datasets package; pip install '\.\[hub-data\]'"):
        images.load("hf:mnist", "label")


@pytest.mark.parametrize("answer, offline", [(OSError("no route"), True), (None, False)])
def test_a_hub_that_gives_no_answer_is_not_asked_again(datasets, monkeypatch, answer, offline):
    """`datasets` would, for half a minute; its cache is still looked into."""
    import huggingface_hub

    def ask(*_, **__):
        if answer is not None:
            raise answer

    def load_dataset(*_, **__):
        seen.append((datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE))
        raise ConnectionError("Couldn't reach it")

    seen, modules = [], (datasets.config, huggingface_hub.constants)
    for module in modules:
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", ask)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for load in (lambda name: images.load(name, "label"), corpus.find):
        with pytest.raises(UserError, match=r"^hf:some/one cannot be (loaded|streamed): Couldn't reach it$"):
            load("hf:some/one@0123456789012345678901234567890123456789")
    assert seen == [(offline, offline)] * 2
    assert not any(module.HF_HUB_OFFLINE for module in modules)
