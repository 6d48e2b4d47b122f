"""Vision transformers of timm: in, beside the original, and back through timm's own loader; its names and arguments."""

import dataclasses
import functools
import inspect
import json
import random
import re

import pytest
import torch
from safetensors.torch import save_file

from both_ways import both_ways, randomise
from pencil.api.interchange.parity import compare
from pencil.config import UserError
from pencil.models.vit import PRESETS, ViT, ViTConfig
from pencil.weights.maps import Source, load, skeleton, write
from pencil.weights.timm_vit import ARGUMENTS, DEFAULTS, FIELDS, PRETRAINED, TIMM_VIT, arguments, label_names, named
from pencil.weights.vit import sides

LONG = pytest.mark.long
SIZES = dict(img_size=(14, 15), patch_size=(7, 5), in_chans=2, num_classes=11, embed_dim=33, depth=2, num_heads=3,
             mlp_ratio=53 / 33)  # fmt: skip
BASE = "vit_base_patch16_224"
ODD = [
    (BASE, SIZES),
    (BASE, SIZES | dict(class_token=False, global_pool="avg", reg_tokens=2, no_embed_class=True, qkv_bias=False)),
    ("vit_base_patch16_clip_224", SIZES | dict(num_heads=1, act_layer="gelu_tanh", in_chans=1)),
    ("deit_tiny_distilled_patch16_224", SIZES | dict(img_size=(6, 10), patch_size=(6, 10), num_classes=1)),
    pytest.param((BASE, SIZES | dict(global_pool="avg", fc_norm=False, pos_embed="none", in_chans=3)), marks=LONG),
    pytest.param((BASE, SIZES | dict(reg_tokens=3, fc_norm=True, norm_layer="rmsnorm", act_layer="relu")), marks=LONG),
    pytest.param((BASE, SIZES | dict(global_pool="avg", reg_tokens=1, class_token=True, pre_norm=True)), marks=LONG),
    pytest.param((BASE, SIZES | dict(no_embed_class=True, dynamic_img_size=True, patch_drop_rate=0.5)), marks=LONG),
]


def config_of(name, arguments):
    """config.json as timm writes it for a model with these arguments."""
    rest = dict(arguments)
    size = [rest.pop("in_chans"), *rest.pop("img_size")]
    cfg = {"input_size": size, "fixed_input_size": True, "num_classes": rest.pop("num_classes")}
    return {"architecture": name, "pretrained_cfg": cfg, "model_args": rest}


@pytest.mark.proof("parity with a reference on random weights", "vit")
@pytest.mark.parametrize("case", ODD)
def test_in_and_back(timm, case, tmp_path):
    name, arguments = case
    torch.manual_seed(2)

    def open_folder(described, written):
        (tmp_path / "config.json").write_text(json.dumps(described))
        save_file(written, tmp_path / "model.safetensors")
        return timm.create_model(f"local-dir:{tmp_path}", pretrained=True)

    both_ways(TIMM_VIT, timm.create_model(name, **arguments), config_of(name, arguments), lambda _: None, open_folder)


CHANGES = dict(
    global_pool=["token", "avg", "map", "max"], qkv_bias=[True, False], qk_norm=[True], init_values=[0.1],
    class_token=[True, False], pos_embed=["learn", "none"], no_embed_class=[True, False], reg_tokens=[0, 1, 3],
    pre_norm=[True, False], final_norm=[True, False], fc_norm=[True, False], pool_include_prefix=[True],
    dynamic_img_size=[True], dynamic_img_pad=[True], proj_bias=[True, False], scale_attn_norm=[True],
    act_layer=["gelu", "relu", "quick_gelu", "silu"], norm_layer=["layernorm", "rmsnorm"], mlp_ratio=[1.7, 2],
    patch_drop_rate=[0.3], drop_path_rate=[0.2], proj_drop_rate=[0.1], weight_init=["jax"], depth=[1],
)  # fmt: skip


@pytest.mark.long
def test_changed_arguments_are_equal_or_refused(timm):
    """Two arguments at a time, at random: what timm builds is computed alike, or refused by an argument's name."""
    draw, equal, refused = random.Random(5), 0, 0
    while equal + refused < 100:
        changed = {name: draw.choice(CHANGES[name]) for name in draw.sample(sorted(CHANGES), 2)}
        arguments = SIZES | changed
        try:
            theirs = timm.create_model(BASE, **arguments).eval()
        except AssertionError:  # not legal in timm
            continue
        randomise(theirs, equal)
        try:
            ours = TIMM_VIT.configure(config_of(BASE, arguments))
        except UserError as error:
            assert any(f"'s {name} " in str(error) for name in changed), (changed, error)  # noqa: PT017
            refused += 1
            continue
        model = load(TIMM_VIT, Source(theirs.state_dict()), ours)
        assert max(one.relative for one in compare(TIMM_VIT, theirs, model)) < 1e-5, changed
        equal += 1
    assert min(equal, refused) > 20


def plain(value):
    """An argument as the table has it."""
    if isinstance(value, functools.partial):
        words = ", ".join(f"{key}={getattr(one, '__name__', one)}" for key, one in value.keywords.items())
        return f"{value.func.__name__}({words})"
    return getattr(value, "__name__", value)


def test_the_table_has_the_arguments_of_every_name(timm, monkeypatch):
    """Every model of the two files in which timm defines plain vision transformers."""
    modules = [timm.models.vision_transformer, timm.models.deit]
    found = {}

    class Stop(Exception):
        pass

    def create(variant, pretrained=False, **arguments):
        for other in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
            arguments.pop(other, None)
        found[variant] = {name: plain(value) for name, value in arguments.items()}
        raise Stop

    monkeypatch.setattr(modules[0], "_create_vision_transformer", create)
    monkeypatch.setattr(modules[1], "_create_deit", create)
    for name in timm.list_models():
        if timm.models.model_entrypoint(name).__module__ in {module.__name__ for module in modules}:
            with pytest.raises(Stop):
                timm.create_model(name)
    assert found == named()
    assert len(found) > 150


def test_every_argument_and_every_field_has_a_use(timm):
    assert set(inspect.signature(timm.models.VisionTransformer).parameters) | {"distilled"} == set(ARGUMENTS)
    fields = {one.name for one in dataclasses.fields(timm.models.PretrainedCfg)}
    assert fields | {"global_pool"} == set(PRETRAINED)
    assert set(PRETRAINED) < set(FIELDS)


def configured(timm, name):
    """With two blocks: the table is compared as it is."""
    cfg = timm.models.get_pretrained_cfg(name).to_dict()
    return TIMM_VIT.configure({"architecture": name, "pretrained_cfg": cfg, "model_args": {"depth": 2}})


def rebuilt(timm, name):
    """Our model of this name has the tensors of timm's."""
    ours = configured(timm, name)
    wanted = {one: tuple(t.shape) for one, t in timm.create_model(name, device="meta", depth=2).state_dict().items()}
    found = {one: tuple(t.shape) for one, t in write(TIMM_VIT, skeleton(ViT, ours).state_dict(), ours)}
    assert wanted == found, name


REFUSED = r"(init_values|qk_norm|scale_attn_norm|scale_mlp_norm|proj_bias|final_norm|pool_include_prefix|block_fn|" \
          r"mlp_layer|attn_layer|embed_norm_layer|act_layer|norm_layer|global_pool|num_classes)\b"  # fmt: skip


@LONG
def test_every_name_is_rebuilt_or_refused_by_an_argument(timm):
    imported = 0
    for name in named():
        try:
            rebuilt(timm, name)
            imported += 1
        except UserError as error:
            if not re.search(rf"\({name}\)'s {REFUSED}", str(error)):
                raise
    assert imported >= 55


@pytest.mark.parametrize("name", ["vit_tiny_patch16_384", "vit_base_patch16_224_miil", "vit_small_patch32_224",
                                  "vit_base_patch16_reg4_gap_256", "vit_xsmall_patch16_clip_224",
                                  "vit_base_patch16_siglip_gap_224", "deit_tiny_distilled_patch16_224"])  # fmt: skip
def test_models_known_by_name(timm, name):
    if "siglip" in name:
        with pytest.raises(UserError, match="num_classes"):
            rebuilt(timm, name)
    else:
        rebuilt(timm, name)
        whole = TIMM_VIT.configure(
            {"architecture": name, "pretrained_cfg": timm.models.get_pretrained_cfg(name).to_dict()}
        )
        described = TIMM_VIT.describe(whole)
        assert described["architecture"] == name
        assert "model_args" not in described


@pytest.mark.parametrize("values, words", [
    (dict(init_values=0.1), "init_values is 0.1"),
    (dict(qk_norm=True), "qk_norm is True"),
    (dict(global_pool="map"), "global_pool is 'map'"),
    (dict(global_pool=""), "global_pool is ''"),
    (dict(act_layer="quick_gelu"), "act_layer is 'quick_gelu'"),
    (dict(norm_layer="batchnorm"), "norm_layer is 'batchnorm'"),
    (dict(block_fn="ResPostBlock"), "block_fn is 'ResPostBlock'"),
    (dict(num_classes=0), "num_classes must be a whole number above 0"),
    (dict(pos_embed="rope"), "pos_embed is 'rope'"),
    (dict(mlp_ratio="4"), "mlp_ratio must be a number"),
    (dict(rotary=True), "rotary = True, which Pencil does not know"),
])  # fmt: skip
def test_arguments_that_ours_cannot_represent_are_refused_by_name(values, words):
    config = config_of(BASE, SIZES)
    with pytest.raises(UserError, match=words):
        TIMM_VIT.configure(config | {"model_args": config["model_args"] | values})


@pytest.mark.parametrize("values, words", [
    (dict(reg_tokens=2), "reg_tokens is 2"), (dict(no_embed_class=True), "no_embed_class is True"),
    (dict(fc_norm=True), "fc_norm is True"),
])  # fmt: skip
def test_arguments_that_a_distilled_one_ignores_are_refused(values, words):
    config = config_of("deit_tiny_distilled_patch16_224", SIZES)
    with pytest.raises(UserError, match=words):
        TIMM_VIT.configure(config | {"model_args": config["model_args"] | values})


def test_a_config_is_read_as_timm_reads_it():
    """An older file without pretrained_cfg, and values that are given twice."""
    config = config_of(BASE, SIZES)
    flat = {"architecture": BASE, "labels": ["cat", "dog"], **config["pretrained_cfg"], "num_classes": 2}
    old = TIMM_VIT.configure(flat | {"input_size": [3, 32, 48]})
    assert (old.image_size, old.classes, old.patch, old.width) == ((32, 48), 2, (16, 16), 768)
    assert label_names(flat) == ["cat", "dog"]
    assert label_names(config | {"label_names": ["n1", "n2"], "label_descriptions": {"n1": "cat"}}) == ["cat", "n2"]
    assert TIMM_VIT.configure(config | {"num_classes": 7}).classes == 7  # the outer one, as in timm
    with pytest.raises(UserError, match="two values of global_pool: 'avg' and 'token'"):
        TIMM_VIT.configure(config | {"global_pool": "avg"})
    with pytest.raises(UserError, match="no pretrained_cfg"):
        TIMM_VIT.configure({"architecture": BASE})
    with pytest.raises(UserError, match="input_size must be"):
        TIMM_VIT.configure({"architecture": BASE, "pretrained_cfg": {"input_size": 224}})


def test_arguments_that_are_missing_null_or_given_twice_are_those_of_timm(timm, monkeypatch, tmp_path):
    """What timm's constructor gets from a folder, and what ours reads: equal, or refused."""
    built, signature = timm.models.VisionTransformer, inspect.signature(timm.models.VisionTransformer)
    usual = {name: one.default for name, one in signature.parameters.items() if name in DEFAULTS}
    assert usual == DEFAULTS

    class Stop(Exception):
        pass

    def captured(self, **given):
        raise Stop(usual | {name: plain(value) for name, value in given.items()})

    monkeypatch.setattr(built, "__init__", captured)
    outer = {"num_classes": [7, None], "global_pool": ["avg", "token"]}
    inner = {"input_size": [[3, 14, 14], None], "fixed_input_size": [False, None], "num_classes": [None, 5]}
    changed = dict(img_size=28, patch_size=7, in_chans=1, num_classes=5, global_pool="avg", embed_dim=12, depth=3,
                   num_heads=4, mlp_ratio=2.0, qkv_bias=False, class_token=False, no_embed_class=True, reg_tokens=2,
                   pre_norm=True, fc_norm=True, norm_layer="rmsnorm", act_layer="relu")  # fmt: skip
    changes = [({}, {}, {})] + [({name: value}, {}, {}) for name, values in outer.items() for value in values]
    changes += [({}, {name: value}, {}) for name, values in inner.items() for value in values]
    changes += [({}, {}, {name: value}) for name in DEFAULTS for value in (None, changed.get(name, usual[name]))]
    equal = 0
    for name in (BASE, "vit_base_patch16_clip_224", "vit_small_patch32_224"):
        for over, cfg, args in changes:
            config = {"architecture": name, "pretrained_cfg": {"input_size": [2, 32, 32], "fixed_input_size": True} | cfg,
                      "model_args": args, **over}  # fmt: skip
            try:
                TIMM_VIT.configure(config)
            except UserError:
                continue
            (tmp_path / "config.json").write_text(json.dumps(config))
            with pytest.raises(Stop) as stop:
                timm.create_model(f"local-dir:{tmp_path}")
            theirs, ours = stop.value.args[0], arguments(config)
            for argument in DEFAULTS:
                mine, other = ours[argument], theirs[argument]
                if argument == "img_size":
                    mine, other = sides(ours, argument), sides({argument: other}, argument)
                assert mine == other, (config, argument, mine, other)
            equal += 1
    assert equal > 75


@pytest.mark.parametrize("preset, name", [("ti/16", "vit_tiny_patch16_224"), ("l/16", "vit_large_patch16_224")])
def test_a_published_size_is_exported_under_its_name(preset, name):
    described = TIMM_VIT.describe(ViTConfig(**PRESETS[preset]))
    assert described["architecture"] == name
    assert "model_args" not in described


@pytest.mark.parametrize("values, words", [
    (dict(positions="rope"), "model.positions is 'rope'"), (dict(bias=False), "model.bias is False"),
    (dict(eps=1e-3), "model.eps is 0.001"), (dict(norm="rms", eps=1e-5), "model.eps is 1e-05"),
    (dict(distilled=True, registers=2), "model.registers is 2"), (dict(activation="swiglu"), "model.activation"),
])  # fmt: skip
def test_a_model_that_timm_cannot_express_is_refused_by_the_setting(values, words):
    with pytest.raises(UserError, match=words):
        TIMM_VIT.describe(ViTConfig(**values))
