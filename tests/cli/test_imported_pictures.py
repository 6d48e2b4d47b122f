"""An imported picture model in every verb: its pixels, its classes and its answers are the original's."""

import json
import tomllib

import numpy as np
import pytest
import torch
from PIL import Image

from both_ways import randomise
from commands import SMALL

NAMES = ["cat", "dog", "fox"]
SIZES = dict(
    hidden_size=24, num_attention_heads=3, num_hidden_layers=1, intermediate_size=31, image_size=20, patch_size=5
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of two classes; the pictures are larger than the model's, and one is transparent."""
    folder, draw = tmp_path_factory.mktemp("pictures"), np.random.default_rng(3)
    for name in NAMES[:2]:
        (folder / name).mkdir()
        for i in range(4):
            bands = 4 if i == 0 else 3
            Image.fromarray(draw.integers(0, 256, (53 + i, 71, bands), np.uint8)).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A small DeiT with its processor, in a folder."""
    from transformers import DeiTConfig, DeiTForImageClassificationWithTeacher, DeiTImageProcessorPil

    folder = tmp_path_factory.mktemp("original")
    labels = dict(id2label=dict(enumerate(NAMES)), label2id={name: i for i, name in enumerate(NAMES)})
    model = DeiTForImageClassificationWithTeacher(DeiTConfig(**SIZES, **labels)).eval()
    randomise(model)
    model.save_pretrained(folder)
    processor = DeiTImageProcessorPil(size={"height": 26, "width": 24}, crop_size={"height": 20, "width": 20},
                                      image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.25])  # fmt: skip
    processor.save_pretrained(folder)
    return folder, model, processor


def answers(model, processor, path):
    with torch.no_grad(), Image.open(path) as image:
        return model(**processor(image.convert("RGB"), return_tensors="pt")).logits[0].softmax(-1)


def test_every_verb_reads_a_picture_as_the_original_does(original, pictures, type_in, light):
    import transformers

    import pencil

    folder, model, processor = original
    type_in("import", folder, "--name", "deit")
    paths = [pictures / name / f"{i}.png" for name in NAMES[:2] for i in (0, 3)]
    expected = [answers(model, processor, path) for path in paths]
    words = [word for path in paths for word in ("--image", path)]
    rows = json.loads(type_in("sample", "runs/deit", *words, "--json").out)["results"]
    for row, wanted in zip(rows, expected, strict=True):
        found = torch.tensor([row["probabilities"][name] for name in NAMES])
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    found = pencil.predict("runs/deit", Image.open(paths[0]))
    torch.testing.assert_close(torch.from_numpy(found.probabilities), expected[0], atol=1e-5, rtol=0)

    metrics = json.loads(type_in("eval", "runs/deit", "--data", pictures, "--json").out)
    every = [(answers(model, processor, path), label) for label, name in enumerate(NAMES[:2])
             for path in sorted((pictures / name).iterdir())]  # fmt: skip
    loss = -sum(likely[label].log().item() for likely, label in every) / len(every)
    assert metrics["val_loss"] == pytest.approx(loss, abs=1e-4)
    assert "32 images" not in type_in("heads", "runs/deit", "--data", pictures).out
    for verb in (("shapes", "runs/deit"), ("cost", "runs/deit"),
                 ("trace", "runs/deit", "--input", paths[0], "--out", "t.safetensors"),
                 ("why", "runs/deit", "logits[0,1]", "--input", paths[0])):  # fmt: skip
        assert type_in(*verb).out is not None

    type_in("export", "runs/deit", "--to", "hf", "--out", "back")
    back = transformers.AutoModelForImageClassification.from_pretrained("back").eval()
    again = transformers.DeiTImageProcessorPil.from_pretrained("back")
    assert torch.equal(answers(back, again, paths[0]), expected[0])
    assert list(back.config.id2label.values()) == NAMES


def test_a_training_from_it_reads_pictures_in_the_same_way(original, pictures, type_in, light):
    type_in("import", original[0], "--name", "deit")
    type_in("train", "vit", "--from", "runs/deit", "--data", pictures, *SMALL[6:], "--name", "tuned")

    def data(name):
        with open(f"runs/{name}/config.toml", "rb") as file:
            return tomllib.load(file)["data"]

    assert data("tuned") == data("deit")
    assert data("tuned")["resize"] == [26, 24]
    assert data("tuned")["mean"] == [0.4, 0.5, 0.6]


def test_heads_of_an_imported_run_need_data(original, fails, type_in):
    type_in("import", original[0], "--name", "deit")
    assert "was imported, and has no data of its own: name some with --data" in fails("heads", "runs/deit")
    assert "give one" in fails("heads", "runs/deit", "--data", "x", "--prompt", "y")


def test_a_folder_without_a_processor_or_names_says_so(type_in, tmp_path):
    from transformers import ViTConfig, ViTForImageClassification

    ViTForImageClassification(ViTConfig(**SIZES, num_labels=5)).save_pretrained(tmp_path / "plain")
    shown = type_in("import", tmp_path / "plain", "--name", "plain")
    assert "without preprocessor_config.json: images are cropped, and their pixels are from −1 to 1" in shown.err
    assert "does not name its 5 classes: they are numbers here" in shown.err
