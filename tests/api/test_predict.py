"""`pencil.predict`: what `pencil sample` prints, from Python; pictures in every form; refusals in one sentence."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import pencil
from conftest import call, unchecked
from pencil.config import UserError
from pencil.families import FAMILIES

OLD = Path(__file__).parents[1] / "runs-0.6"


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two pictures in colour, neither of them square."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.Generator(np.random.Philox(key=3))
    for name, shape in (("one", (17, 29, 3)), ("two", (31, 13, 3))):
        Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8)).save(folder / f"{name}.png")
    return [folder / "one.png", folder / "two.png"]


def classes(text):
    """Lines of a class and its probability."""
    return [(name, float(p)) for name, p in (line.rsplit(" ", 1) for line in text.splitlines())]


def top(prediction):
    return [(name, round(p, 4)) for _, name, p in prediction.top()]


def test_every_family_predicts():
    assert all(record.predict for record in FAMILIES.values() if record.sample and record.name != "parity")


def test_a_vit_says_what_sample_prints_and_what_its_formula_gives(vit_run, pictures):
    loaded = pencil.load(vit_run)
    one, two = loaded.predict(pictures)
    printed = call("sample", vit_run, "--image", pictures[0], "--device", "cpu").stdout
    assert classes(printed) == top(one)
    both = call("sample", vit_run, "--image", *pictures, "--device", "cpu").stdout.split(str(pictures[1]))[1]
    assert classes(both.strip()) == top(two)
    # the same with Pillow and torch alone: the middle of the picture, resized, from −1 to 1
    c = loaded.model.config
    grey = Image.open(pictures[0]).convert("L")
    bytes_ = np.asarray(grey.resize(c.image_size[::-1], Image.Resampling.BICUBIC, (6, 0, 23, 17)))
    x = torch.from_numpy(bytes_.astype(np.float32) / 127.5 - 1)[None, None]
    with torch.no_grad():
        expected = loaded.model(x).softmax(-1)[0].numpy()
    np.testing.assert_allclose(one.probabilities, expected, atol=1e-6)
    assert abs(one.probabilities.sum() - 1) < 1e-6
    assert one.label == loaded.classes[one.number] == str(one.number)
    assert one.probability == one.probabilities.max()
    assert repr(one) == f"Prediction('{one.label}' {one.probability:.4f}, " + ", ".join(
        f"'{name}' {p:.4f}" for name, p in top(one)[1:3]) + ", …)"  # fmt: skip


def test_a_picture_in_memory_is_the_picture_of_its_file(vit_run, pictures):
    loaded = pencil.load(vit_run)
    expected = loaded.predict(pictures[0]).probabilities
    with Image.open(pictures[0]) as image:
        array = np.asarray(image)
        opaque = np.concatenate([array, np.full((*array.shape[:2], 1), 255, np.uint8)], 2)
        for form in (image, array, torch.from_numpy(array.copy()), opaque, str(pictures[0])):
            assert np.array_equal(loaded.predict(form).probabilities, expected)
    grey = np.asarray(Image.open(pictures[0]).convert("L"))
    assert np.array_equal(loaded.predict(grey).probabilities, loaded.predict(grey[..., None]).probabilities)
    several = loaded.predict(np.stack([array, array[::-1]]))
    alone = loaded.predict(array[::-1])
    assert [several[0].label, several[1].label] == [loaded.predict(array).label, alone.label]
    np.testing.assert_allclose(several[1].probabilities, alone.probabilities, atol=1e-6)


def test_more_inputs_than_a_batch_are_all_predicted(vit_run, pictures, monkeypatch):
    monkeypatch.setattr("pencil.families.vit.BATCH", 3)
    loaded = pencil.load(vit_run)
    many = loaded.predict([pictures[i % 2] for i in range(7)])
    assert len(many) == 7
    for i, one in enumerate(many):
        np.testing.assert_allclose(one.probabilities, many[i % 2].probabilities, atol=1e-6)


def test_the_turn_of_a_picture_in_memory_is_undone(vit_run, pictures, tmp_path):
    with Image.open(pictures[0]) as image:
        exif = image.getexif()
        exif[0x0112] = 6  # to be turned by 90 degrees
        image.save(tmp_path / "turned.png", exif=exif)
    loaded = pencil.load(vit_run)
    with Image.open(tmp_path / "turned.png") as turned:
        found = loaded.predict(turned).probabilities
    assert np.array_equal(found, loaded.predict(tmp_path / "turned.png").probabilities)
    assert not np.array_equal(found, loaded.predict(pictures[0]).probabilities)


def test_a_gpt_continues_as_sample_does(run):
    words = ("sample", run, "--max-new-tokens", 11, "--seed", 3, "--device", "cpu", "--top-k", 5)
    one = pencil.predict(run, "line 3: ", max_new_tokens=11, seed=3, top_k=5)
    assert f"{one}\n" == call(*words, "--prompt", "line 3: ").stdout
    assert one.text == "line 3: " + one.new
    assert one.ended == "length"
    two = pencil.predict(run, ["line", "the"], max_new_tokens=11, seed=3, top_k=5, count=2)
    printed = call(*words, "--prompt", "line", "--prompt", "the", "--count", 2).stdout
    assert ("\n" + "-" * 40 + "\n").join(str(text) for row in two for text in row) + "\n" == printed
    assert repr(one).startswith("Text('line 3: ")
    full = pencil.predict(run, "line 3: ", max_new_tokens=99)
    assert full.ended == "context"


def test_a_captioner_describes_as_sample_does(captioner_run, pictures):
    words = ("sample", captioner_run, "--max-new-tokens", 7, "--device", "cpu")
    one, two = pencil.predict(captioner_run, pictures, max_new_tokens=7)
    assert call(*words, "--image", *pictures).stdout == f"{pictures[0]}: {one}\n{pictures[1]}: {two}\n"
    drawn = pencil.predict(captioner_run, Image.open(pictures[0]), max_new_tokens=7, count=2, temperature=1.0)
    printed = call(*words, "--image", pictures[0], "--count", 2, "--temperature", 1).stdout
    assert "\n".join(map(str, drawn)) + "\n" == printed


def test_a_seq2seq_translates_as_sample_does(seq2seq_run):
    words = ("sample", seq2seq_run, "--device", "cpu")
    one, two = pencil.predict(seq2seq_run, ["abc", "cde"])
    assert call(*words, "--source", "abc", "--source", "cde").stdout == f"abc: {one}\ncde: {two}\n"
    beams = pencil.predict(seq2seq_run, "abc", beams=3, length_penalty=0.2)
    printed = call(*words, "--source", "abc", "--beams", 3, "--length-penalty", 0.2).stdout
    assert "".join(f"{text.score:.4f}  {str(text) or '(empty)'}\n" for text in beams) == printed
    (few,) = pencil.predict(seq2seq_run, ["abc"], beams=3, count=2, length_penalty=0.2)
    assert list(map(str, few)) == list(map(str, beams[:2]))


def test_a_reader_classifies_and_fills_in_as_sample_does(classifier_run, masked_run):
    one, two = pencil.predict(classifier_run, ["it is fine here", "a plot so grim"])
    printed = call("sample", classifier_run, "--prompt", "it is fine here", "--device", "cpu").stdout
    assert [name for name, _ in classes(printed)] == [name for _, name, _ in one.top()]
    assert {one.label, two.label} <= {"so good", "bad"}
    masks = pencil.predict(masked_run, "the [mask]encil dr[MASK]ws")
    printed = call("sample", masked_run, "--prompt", "the [mask]encil dr[MASK]ws", "--device", "cpu").stdout
    assert [classes(part) for part in printed.split("\n\n")] == [top(mask) for mask in masks]


def test_a_dit_samples_the_images_of_its_grid(dit_run, tmp_path):
    image = pencil.predict(dit_run, 7, steps=2, seed=5)
    call("sample", dit_run, "--label", 7, "--steps", 2, "--seed", 5, "--device", "cpu", "--out", tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as grid:
        scale = grid.width // image.width
        assert np.array_equal(np.asarray(grid.convert("L"))[::scale, ::scale], np.asarray(image))
    one, two = pencil.predict(dit_run, ["7", "3"], steps=2, seed=5, count=2)
    assert [type(each) for each in (*one, *two)] == [type(image)] * 4
    assert np.array_equal(np.asarray(one[0]), np.asarray(image))


def test_a_dit_of_texts_takes_texts_and_one_of_nothing_takes_nothing():
    image = pencil.predict(OLD / "dit", "1 2", steps=1, guidance=1.0)
    assert image.size == (16, 16)
    model = pencil.create("dit", pencil.configure("dit", width=24, heads=3, depth=1, image_size=6, patch=3, channels=3))
    made = pencil.predict(model, steps=1, count=2)
    assert [one.size for one in made] == [(6, 6)] * 2
    video = pencil.create("dit", dict(width=24, heads=3, depth=1, image_size=6, patch=3, channels=1, classes=3, frames=4,
                                      patch_frames=2))  # fmt: skip
    (frames,) = pencil.predict(video, [2], steps=1, guidance=1.0)
    assert [one.size for one in frames] == [(6, 6)] * 4


def test_a_bare_model_has_numbers_for_classes_unless_they_are_named(pictures):
    torch.manual_seed(5)
    model = pencil.create(
        "vit", dict(width=24, heads=3, depth=1, image_size=6, patch=3, classes=7, channels=3, dropout=0.5)
    )
    assert model.training
    one = pencil.predict(model, pictures[0])
    assert np.array_equal(one.probabilities, pencil.predict(model, pictures[0]).probabilities)  # without dropout
    assert model.training
    assert one.label == str(one.number)
    assert one.label in map(str, range(7))
    named = pencil.predict(model, pictures[0], classes="abcdefg")
    assert named.label == "abcdefg"[one.number]


def test_a_run_opened_is_still_three_things(vit_run):
    loaded = pencil.load(vit_run)
    model, tokenizer, run = loaded
    assert loaded._replace(model=model).predict is not None
    assert tokenizer is None
    assert run.path == vit_run


def refusals(run, vit, dit, seq2seq, masked, pictures):
    array, model = np.zeros((4, 5, 3), np.uint8), pencil.load(run).model
    return [
        (vit, (array / 255,), {}, "an array of a picture is uint8, from 0 to 255, not float64"),
        (vit, (array.transpose(2, 0, 1),), {}, "not (3, 4, 5); .transpose(1, 2, 0) brings its channels to the end"),
        (vit, (array[0, 0],), {}, "an array of pictures has 4 axes"),
        (vit, (np.zeros((0, 5, 3), np.uint8),), {}, "not (0, 5, 3)"),
        (vit, ("nowhere.png",), {}, "there is no picture nowhere.png"),
        (vit, (pictures[0].parent,), {}, "is a folder, not a picture"),
        (vit, (3,), {}, "a picture is a path, a PIL image or an array of uint8, not int"),
        (vit, ([],), {}, "the list of inputs is empty"),
        (vit, (3.5,), {}, "the inputs are one input or a list of them, not float"),
        (vit, (pictures[0],), {"temperature": 1}, "temperature is not an option of a vit's predictions"),
        (run, (Image.new("L", (3, 3)),), {}, "the input of this model is a str, not a picture"),
        (run, (None,), {}, "the input of this model is a str, not None"),
        (run, ("line " * 20,), {}, "the prompt has 100 tokens and the context is 31; shorten it"),
        (run, ("line",), {"temprature": 1}, "did you mean temperature?"),
        (run, ("line",), {"temperature": -1}, "temperature must be at least 0"),
        (run, ("line",), {"out": "a.txt"}, "a gpt has no inputs to predict from"),
        (run, ("line",), {"classes": "ab"}, "a run has its own tokenizer and classes"),
        (model, ("line",), {}, "give its tokenizer too"),
        (torch.nn.Linear(2, 3), ("line",), {}, "Linear is neither a run nor a model of a family"),
        (seq2seq, ("abc",), {"length_penalty": 1.0}, "give --beams too"),
        (seq2seq, ("a" * 99,), {}, "the source context is"),
        (run, (["line", None],), {}, "inputs[1]: the input of this model is a str, not None"),
        (masked, (["a [mask]", "a " * 500],), {}, "inputs[1]: the text “a a a"),
        (masked, ("the pencil",), {}, "write [mask] where one is to be predicted"),
        (dit, (), {}, "is conditioned on labels: give one, or a list"),
        (dit, ("eleven",), {}, "was not trained on a label eleven"),
        (dit, (Image.new("L", (3, 3)),), {}, "images are sampled from a label or a text, not Image"),
    ]


def test_what_cannot_be_predicted_is_refused_in_one_sentence(
    run, vit_run, dit_run, seq2seq_run, masked_run, pictures, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for what, inputs, options, sentence in refusals(run, vit_run, dit_run, seq2seq_run, masked_run, pictures):
        with pytest.raises(UserError) as refused:
            pencil.predict(what, *inputs, **options)
        assert sentence in str(refused.value)
        assert "\n" not in str(refused.value)
    model = pencil.create("vit", dict(width=24, heads=3, depth=1, image_size=6, patch=3, classes=7))
    with pytest.raises(UserError, match="6 names of classes were given, and the model has 7"):
        pencil.predict(model, pictures[0], classes="abcdef")


def test_a_run_of_pictures_that_are_padded_pads_those_it_predicts(vit_run, pictures, tmp_path):
    """The fit is the run's own, whatever form the picture has."""
    loaded = pencil.load(vit_run)
    cropped = loaded.predict(pictures[0]).probabilities
    loaded.run.config["data"] = {"fit": "squash"}
    squashed = loaded.predict(pictures[0]).probabilities
    with Image.open(pictures[0]) as image:
        size = loaded.model.config.image_size[::-1]
        small = np.asarray(image.convert("L").resize(size, Image.Resampling.BICUBIC))
    assert np.array_equal(loaded.predict(small).probabilities, squashed)
    assert not np.array_equal(cropped, squashed)


# complete and stream


def test_a_string_is_one_prompt_and_gives_a_string(run):
    model, tokenizer, _ = pencil.load(run)
    found = pencil.complete(model, tokenizer, "line 7", temperature=0.2, max_new_tokens=9, seed=2)
    assert isinstance(found, str)
    assert len(found) == 9
    sampling = pencil.Sampling(temperature=0.2, seed=2)
    assert pencil.complete(model, tokenizer, ["line 7", "the"], 9, sampling)[0] == found
    assert "".join(piece for (piece,) in pencil.stream(model, tokenizer, "line 7", 9, sampling)) == found
    assert found != pencil.complete(model, tokenizer, "line 7", temperature=5.0, max_new_tokens=9, seed=2)
    cut = pencil.complete(model, tokenizer, "line 7", 9, sampling, stop=found[3:5])
    assert cut == found[: found.index(found[3:5])]


def test_settings_of_sampling_are_checked(run):
    model, tokenizer, _ = pencil.load(run)
    for given, sentence in (
        (dict(temprature=1), "did you mean temperature"), (dict(sampling=0.2), "sampling is a pencil.Sampling"),
        (dict(sampling=pencil.Sampling(), top_k=3), "top_k is a setting of sampling: give one of the two"),
        (dict(top_p=2), "top-p must be"), (dict(max_new_tokens=0.2), "max_new_tokens must be a whole number"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=sentence):
            pencil.complete(model, tokenizer, "line", **given)


@pytest.mark.parametrize("name", ["gpt", "reader", "seq2seq"])
def test_a_run_of_an_older_version_predicts(name, tmp_path):
    shutil.copytree(OLD / name, tmp_path / name)
    given = {"gpt": "def", "reader": "the [mask]", "seq2seq": "3 May 99"}[name]
    assert pencil.load(tmp_path / name).predict(given)
