"""Vision transformers of timm (VisionTransformer, and the distilled one of DeiT).

A config.json of timm names a model, and gives only some of its arguments: those that the name stands for are in
timm_vits.json. The rest comes from `pretrained_cfg`, as in timm.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ..config import UserError
from ..models.vit import ViT, ViTConfig
from .maps import (
    MAPPED,
    NEUTRAL,
    Architecture,
    Fields,
    Rule,
    Use,
    check_fields,
    must_have,
    only,
    parts,
    reshaped,
    same,
    their_word,
    with_defaults,
)
from .vit import patch_rules, random_pictures, sides

# of timm's constructor, and distilled, which chooses between its two classes
ARGUMENTS: dict[str, Use] = {
    **dict.fromkeys(
        "img_size patch_size in_chans num_classes global_pool embed_dim depth num_heads mlp_ratio qkv_bias class_token "
        "pos_embed no_embed_class reg_tokens pre_norm fc_norm norm_layer act_layer distilled".split(), MAPPED,
    ),
    **dict.fromkeys(
        # of other image sizes; of training
        "dynamic_img_size dynamic_img_pad drop_rate pos_drop_rate patch_drop_rate proj_drop_rate attn_drop_rate "
        "drop_path_rate weight_init fix_init device dtype".split(), NEUTRAL,
    ),
    **dict.fromkeys("qk_norm scale_attn_norm scale_mlp_norm pool_include_prefix".split(), only(False)),
    **dict.fromkeys("proj_bias final_norm".split(), only(True)),
    "init_values": only(),  # layer scale
    **dict.fromkeys("embed_layer embed_norm_layer block_fn mlp_layer".split(), only()),
    "attn_layer": only("", "attn"),
}  # fmt: skip
# of the constructor
DEFAULTS: dict[str, Any] = dict(
    img_size=224,
    patch_size=16,
    in_chans=3,
    num_classes=1000,
    global_pool="token",
    embed_dim=768,
    depth=12,
    num_heads=12,
    mlp_ratio=4.0,
    qkv_bias=True,
    class_token=True,
    pos_embed="learn",
    no_embed_class=False,
    reg_tokens=0,
    pre_norm=False,
    fc_norm=None,
    norm_layer=None,
    act_layer=None,
    qk_norm=False,
    scale_attn_norm=False,
    scale_mlp_norm=False,
    pool_include_prefix=False,
    proj_bias=True,
    final_norm=True,
)
PRETRAINED: dict[str, Use] = {
    **dict.fromkeys(
        "input_size fixed_input_size num_classes interpolation crop_pct crop_mode mean std label_names "
        "label_descriptions".split(),
        MAPPED,
    ),
    **dict.fromkeys(
        "url file state_dict hf_hub_id hf_hub_filename source architecture tag custom_load test_input_size "
        "min_input_size test_crop_pct label_offset pool_size test_pool_size first_conv classifier license description "
        "origin_url paper_name paper_ids notes".split(),
        NEUTRAL,
    ),
    "global_pool": MAPPED,
}
# older files have the fields of pretrained_cfg beside the others
FIELDS: dict[str, Use] = PRETRAINED | {
    "architecture": MAPPED,
    "model_args": MAPPED,
    "pretrained_cfg": MAPPED,
    "num_features": NEUTRAL,
    "labels": MAPPED,
}
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu-tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
NORMS = {"layernorm": ("layer", 1e-6), "layernorm(eps=1e-05)": ("layer", 1e-5), "rmsnorm": ("rms", 1e-6),
         "rmsnorm(eps=1e-05)": ("rms", 1e-5)}  # fmt: skip
POOLS = {"token": "class", "avg": "mean"}
WHAT = "VisionTransformer"
BLOCK = {"norm1": "attn_norm", "attn.proj": "attn.out", "norm2": "mlp_norm", "mlp.fc1": "mlp.up", "mlp.fc2": "mlp.down"}
NORM_PARTS = ("norm1", "norm2")


@lru_cache
def named() -> dict[str, dict[str, Any]]:
    """The arguments that each name of a model stands for."""
    return json.loads(files("pencil").joinpath("weights", "timm_vits.json").read_text(encoding="utf-8"))


def pretrained(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """How the model was trained: the size and the preparation of its images, and its classes."""
    beside = {name: theirs[name] for name in PRETRAINED if name in theirs and name != "architecture"}
    inner = theirs.get("pretrained_cfg", beside)
    if not isinstance(inner, Mapping) or not inner:
        raise UserError(f"the config of this {WHAT} has no pretrained_cfg, which has the size of its images")
    labels = {"label_names": theirs["labels"]} if theirs.get("labels") else {}
    outer = {name: theirs[name] for name in ("num_classes", "label_names", "label_descriptions") if name in theirs}
    fields = {name: value for name, value in {**labels, **inner, **outer}.items() if value is not None}
    check_fields(fields, PRETRAINED, WHAT)
    return fields


def label_names(theirs: Mapping[str, Any]) -> list[str]:
    """The names of the classes, in the order of the logits; empty where the config has none."""
    cfg = pretrained(theirs)
    names, words = cfg.get("label_names") or [], cfg.get("label_descriptions") or {}
    return [str(words.get(name, name)) for name in names]


def arguments(theirs: Mapping[str, Any]) -> Fields:
    """The arguments of timm's constructor, as timm puts them together."""
    name, stated, cfg = theirs["architecture"], theirs.get("model_args") or {}, pretrained(theirs)
    if not isinstance(stated, Mapping):
        raise UserError(f"this {WHAT}'s model_args must be a table of arguments, not {stated!r}")
    values = {**named()[name], **stated}
    size = cfg.get("input_size", (3, 224, 224))
    if not isinstance(size, list | tuple) or len(size) != 3:
        raise UserError(f"this {WHAT}'s input_size must be channels, height and width, not {size!r}")
    usual = {"num_classes": cfg.get("num_classes", 1000), "in_chans": size[0], "global_pool": cfg.get("global_pool")}
    usual |= {"img_size": list(size[1:])} if cfg.get("fixed_input_size") else {}
    values = {key: value for key, value in usual.items() if value is not None} | values
    values = with_defaults(values, DEFAULTS, f"{WHAT} ({name})")
    check_fields(values, ARGUMENTS, f"{WHAT} ({name})")
    return Fields(values, f"{WHAT} ({name})")


def settings(theirs: Fields) -> dict[str, Any]:
    values = arguments(theirs)
    pool, named = values.one_of("global_pool", POOLS), values["global_pool"]
    if (stated := theirs.get("global_pool", named)) != named:
        raise UserError(f"this {values.what}'s config has two values of global_pool: {stated!r} and {named!r}")
    norm = str(values.get("norm_layer") or "layernorm").replace("_", "").lower()
    if norm not in NORMS:
        raise UserError(f"this {values.what}'s norm_layer is {values['norm_layer']!r}, which ours does not have")
    distilled, width = bool(values.get("distilled")), values.size("embed_dim")
    if distilled:
        for name, plain in (("reg_tokens", 0), ("no_embed_class", False), ("fc_norm", False), ("class_token", True)):
            if values[name] not in (plain, None):
                raise UserError(f"this {values.what}'s {name} is {values[name]!r}, which a distilled ViT does not have")
    registers = 1 if distilled else values["reg_tokens"]
    learned = values["pos_embed"] == "learn"
    if not learned and values["pos_embed"] not in ("", "none"):
        raise UserError(f"this {values.what}'s pos_embed is {values['pos_embed']!r}, which ours does not have")
    class_token = bool(values["class_token"])
    placed = not values.get("no_embed_class") or not learned or not (class_token or registers)
    if type(ratio := values["mlp_ratio"]) not in (int, float):
        raise UserError(f"this {values.what}'s mlp_ratio must be a number, not {ratio!r}")
    return dict(
        image_size=sides(values, "img_size"),
        channels=values.size("in_chans"),
        patch=sides(values, "patch_size"),
        classes=values.size("num_classes"),
        width=width,
        depth=values.size("depth"),
        heads=values.size("num_heads"),
        hidden=int(width * ratio),
        norm=NORMS[norm][0],
        eps=NORMS[norm][1],
        activation=values.one_of("act_layer", ACTIVATIONS | {"SiLU": "silu"}, "gelu"),
        positions="learned" if learned else "none",
        pool=pool,
        class_token=None if class_token == (pool == "class") else class_token,
        registers=registers,
        token_positions=placed,
        qkv_bias=None if values["qkv_bias"] else False,
        embed_norm=bool(values.get("pre_norm")),
        norm_pooled=bool(values.given("fc_norm", pool == "mean")),
        distilled=distilled,
    )


def _described(c: ViTConfig) -> dict[str, Any]:
    """The arguments of timm's constructor without the sizes that pretrained_cfg has."""
    ratio = c.mlp_width / c.width
    ratio = ratio if int(c.width * ratio) == c.mlp_width else (c.mlp_width + 0.5) / c.width
    norm = next(name for name, norm_and_eps in NORMS.items() if norm_and_eps == (c.norm, c.eps))
    return dict(
        patch_size=c.patch[0] if c.patch[0] == c.patch[1] else list(c.patch),
        embed_dim=c.width,
        depth=c.depth,
        num_heads=c.heads,
        mlp_ratio=ratio,
        qkv_bias=c.qkv_bias is not False,
        class_token=c.before > c.registers,
        pos_embed="learn" if c.positions == "learned" else "none",
        no_embed_class=not c.token_positions,
        reg_tokens=0 if c.distilled else c.registers,
        pre_norm=c.embed_norm,
        fc_norm=c.norm_pooled,
        global_pool="token" if c.pool == "class" else "avg",
        norm_layer=norm,
        act_layer=their_word(ACTIVATIONS, c.activation),
    )


def describe(c: ViTConfig) -> dict[str, Any]:
    must_have(
        c,
        WHAT,
        bias=True,
        positions=("learned", "none"),
        activation=tuple(ACTIVATIONS.values()),
        eps=tuple(eps for norm, eps in NORMS.values() if norm == c.norm),
        **({"registers": 1, "token_positions": True} if c.distilled else {}),
    )
    wanted = _described(c)
    name = _name(c, wanted)
    own = _described(_config(name, c))
    others = {key: value for key, value in wanted.items() if value != own[key]}
    if "global_pool" in others:
        others["fc_norm"] = c.norm_pooled  # whose default follows from it
    if others.get("norm_layer", "").endswith(")"):
        raise UserError(f"model.eps is {c.eps}, which a {WHAT} with model.norm {c.norm} has only at 1e-06")
    cfg = dict(
        input_size=[c.channels, *c.image_size],
        fixed_input_size=True,
        num_classes=c.classes,
        custom_load=False,
        classifier=["head", "head_dist"] if c.distilled else "head",
        **({"first_conv": "patch_embed.proj"} if c.channels == 3 else {}),  # timm changes a first_conv of others
    )
    return {
        "architecture": name,
        "num_classes": c.classes,
        "num_features": c.width,
        "global_pool": wanted["global_pool"],
        "pretrained_cfg": cfg,
        **({"model_args": others} if others else {}),
    }


def _name(c: ViTConfig, wanted: Mapping[str, Any]) -> str:
    """The model of timm that has these arguments, or one that becomes it by others."""
    side = f"_{c.image_size[0]}"
    for name in sorted(named(), key=lambda name: (not name.endswith(side), not name.startswith("vit_"), name)):
        if bool(named()[name].get("distilled")) == c.distilled:
            try:
                if _described(_config(name, c)) == wanted:
                    return name
            except UserError:  # it has what ours does not
                continue
    if c.distilled:
        return "deit_tiny_distilled_patch16_224"
    return "vit_base_patch16_clip_224" if c.norm == "layer" and c.eps == 1e-5 else "vit_base_patch16_224"


def _config(name: str, c: ViTConfig) -> ViTConfig:
    """Our config of a model that timm knows by name, for images whose patches divide them."""
    entry = named()[name]
    patch = entry.get("patch_size", 16)
    cfg = {"input_size": [c.channels, patch, patch], "fixed_input_size": True, "num_classes": c.classes}
    values = settings(Fields({"architecture": name, "pretrained_cfg": cfg, "model_args": {"img_size": patch}}, WHAT))
    return ViTConfig(**values)


def rules(c: ViTConfig) -> Iterator[Rule]:
    norm = ("weight", "bias") if c.norm == "layer" else ("weight",)
    if c.before > c.registers:
        yield same("cls_token", "class_token")
    if c.registers:
        yield same("dist_token" if c.distilled else "reg_token", "registers")
    if c.positions == "learned":
        rows = c.grid[0] * c.grid[1] + (c.before if c.token_positions else 0)
        yield reshaped("pos_embed", "positions.table", (1, rows, c.width), (rows, c.width))
    yield from patch_rules("patch_embed.proj", c)
    if c.embed_norm:
        yield from parts(same, "norm_pre", "embed_norm", norm)
    for i in range(c.depth):
        kinds = ("weight", *["bias"] * (c.qkv_bias is not False))
        yield from parts(same, f"blocks.{i}.attn.qkv", f"blocks.{i}.attn.qkv", kinds)
        for theirs, ours in BLOCK.items():
            kinds = norm if theirs in NORM_PARTS else ("weight", "bias")
            yield from parts(same, f"blocks.{i}.{theirs}", f"blocks.{i}.{ours}", kinds)
    yield from parts(same, "fc_norm" if c.norm_pooled else "norm", "norm", norm)
    yield from parts(same, "head", "head")
    if c.distilled:
        yield from parts(same, "head_dist", "distilled_head")


TIMM_VIT = Architecture(
    WHAT,
    "timm",
    tuple(named()),
    ViT,
    ViTConfig,
    FIELDS,
    settings,
    describe,
    rules,
    inputs=random_pictures,
    outputs=lambda c: (
        {f"blocks.{i}.post": f"blocks.{i}" for i in range(c.depth)}
        | ({"pooled_norm": "fc_norm"} if c.norm_pooled else {"norm": "norm"})
    ),
)
