"""ViT and DeiT of transformers: in, beside the original, and back through its own loader."""

import json

import pytest
from safetensors.torch import load_file, save_file

from both_ways import both_ways, randomise
from pencil.api.interchange.parity import compare
from pencil.config import UserError
from pencil.models.vit import ViTConfig
from pencil.weights.maps import Source, load
from pencil.weights.vit import DEIT, VIT, class_names

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SIZES = dict(hidden_size=33, num_attention_heads=3, num_hidden_layers=2, intermediate_size=53, image_size=(14, 15),
             patch_size=(7, 5), num_channels=2, num_labels=11)  # fmt: skip
SMALL = dict(SIZES, hidden_size=26, num_attention_heads=1, image_size=(6, 22), patch_size=(6, 2), qkv_bias=False)
ONE_PATCH = dict(SIZES, image_size=7, patch_size=7, num_channels=1, num_labels=2, hidden_act="gelu_new",
                 layer_norm_eps=1e-3)  # fmt: skip
DEEP = dict(SIZES, hidden_size=35, num_attention_heads=7, num_hidden_layers=3, hidden_act="relu")
ONE_CLASS = dict(SIZES, image_size=(26, 6), patch_size=(13, 2), hidden_act="silu", num_labels=1)
PLAIN, TOKEN, TEACHER = (
    "ViTForImageClassification", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher",
)  # fmt: skip
ODD = [(PLAIN, SIZES), (PLAIN, SMALL), (PLAIN, ONE_PATCH), (TOKEN, SIZES), (TEACHER, SIZES), (TEACHER, ONE_PATCH)]
REST = [(PLAIN, DEEP), (PLAIN, ONE_CLASS), (TEACHER, SMALL), (TEACHER, DEEP), (TEACHER, ONE_CLASS), (TOKEN, SMALL)]
CLASSES = {PLAIN: VIT, TOKEN: DEIT, TEACHER: DEIT}


def original(name, sizes):
    import transformers

    kind = "deit" if name.startswith("DeiT") else "vit"
    config = transformers.AutoConfig.for_model(kind, **sizes, architectures=[name])
    return getattr(transformers, name)._from_config(config, attn_implementation="eager")


@pytest.mark.proof("parity with a reference on random weights", "vit")
@pytest.mark.parametrize("name, sizes", [*ODD, *(pytest.param(*case, marks=pytest.mark.long) for case in REST)])
def test_in_and_back(name, sizes, tmp_path):
    import transformers

    def open_file(described, written):
        (tmp_path / "config.json").write_text(json.dumps(described))
        save_file(written, tmp_path / "model.safetensors", metadata={"format": "pt"})
        kind = getattr(transformers, name)
        model, found = kind.from_pretrained(tmp_path, output_loading_info=True, attn_implementation="eager")
        assert not found["missing_keys"]
        assert not found["unexpected_keys"]
        return model

    theirs = original(name, sizes)
    ours = both_ways(CLASSES[name], theirs, theirs.config.to_dict(), lambda described: None, open_file)
    assert ours.config.distilled == name.endswith("Teacher")


def test_a_file_has_other_names_than_a_model_in_memory(tmp_path):
    theirs = original("ViTForImageClassification", SIZES)
    randomise(theirs)
    theirs.eval().save_pretrained(tmp_path)
    held, fields = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert set(held) != set(theirs.state_dict())
    ours = load(VIT, Source(held), VIT.configure(fields))
    assert max(one.relative for one in compare(VIT, theirs, ours)) < 1e-5


@pytest.mark.parametrize("name, what", [
    ("ViTModel", "is a ViTModel, and only ViTForImageClassification"),
    ("ViTForMaskedImageModeling", "is a ViTForMaskedImageModeling"),
    (None, "also has vit.pooler.dense.bias|has no classifier"),
])  # fmt: skip
def test_a_vit_without_classes_is_refused(name, what):
    from transformers import ViTModel

    theirs = original("ViTModel", SIZES)
    fields = theirs.config.to_dict() | {"architectures": [name] if name else None}
    with pytest.raises(UserError, match=what):
        load(VIT, Source(theirs.state_dict()), VIT.configure(fields))
    assert isinstance(theirs, ViTModel)


@pytest.mark.parametrize("values, words", [
    (dict(hidden_act="quick_gelu"), "hidden_act is 'quick_gelu'"),
    (dict(image_size=[14, 15, 3]), "image_size must be one or two whole numbers"),
    (dict(patch_size=0), "patch_size must be one or two whole numbers above 0"),
    (dict(id2label={"0": "cat", "2": "dog"}), "id2label must have a name for each number from 0"),
    (dict(head_dim=7), "head_dim = 7, which Pencil does not know"),
    (dict(image_size=16), "does not divide a picture"),
])  # fmt: skip
def test_a_config_that_ours_cannot_represent_is_refused(values, words):
    fields = original("ViTForImageClassification", SIZES).config.to_dict()
    with pytest.raises(UserError, match=words):
        VIT.configure(fields | values)


@pytest.mark.parametrize("values, words", [
    (dict(pool="mean"), "model.pool is 'mean'"),
    (dict(positions="rope"), "model.positions is 'rope'"),
    (dict(bias=False), "model.bias is False"),
    (dict(norm="rms"), "model.norm is 'rms'"),
    (dict(registers=2), "model.registers is 2"),
    (dict(embed_norm=True), "model.embed_norm is True"),
    (dict(norm_pooled=True), "model.norm_pooled is True"),
    (dict(activation="swiglu"), "model.activation is 'swiglu'"),
    (dict(token_positions=False), "model.token_positions is False"),
])  # fmt: skip
def test_a_model_that_transformers_cannot_express_is_refused_by_the_setting(values, words):
    for architecture in (VIT, DEIT):
        with pytest.raises(UserError, match=words if architecture is VIT else "model"):
            architecture.describe(ViTConfig(**values))


def test_class_names_are_in_the_order_of_the_logits():
    assert class_names({"id2label": {"1": "dog", "0": "cat"}}) == ["cat", "dog"]
    assert class_names({"id2label": {0: "LABEL_0", 1: "LABEL_1"}}) == class_names({}) == []
