"""The diffusion transformer of diffusers (DiTTransformer2DModel).

There every block has its own copy of the timestep and label embeddings; here there is one, so the copies must be equal.
Their positions are sinusoids, computed and not saved, in another order than ours: here they are a learned table.

A pipeline has the noise schedule beside it, in scheduler_config.json. A model is trained with a schedule and a
prediction target; the rest of that file (spacing of timesteps, clipping) is a choice of its sampler, and ours has its
own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..config import UserError, with_article
from ..core.patches import grid_positions
from ..core.positions import Sinusoidal
from ..models.dit import DiT, DiTConfig
from .maps import (
    MAPPED,
    NEUTRAL,
    Architecture,
    Fields,
    Rule,
    Tensors,
    Use,
    layers,
    must_have,
    only,
    parts,
    projections,
    same,
    their_word,
    with_defaults,
)

EPS = 1e-6  # of every norm but the one before the MLP, which is in their config
OLDER = "Transformer2DModel"  # the class of several models, which files of a DiT name too
BLOCK = {"norm1.linear": "ada", "attn1.to_out.0": "attn.out", "ff.net.0.proj": "mlp.up", "ff.net.2": "mlp.down"}
EMBED = {
    "timestep_embedder.linear_1.weight": "time.up.weight",
    "timestep_embedder.linear_1.bias": "time.up.bias",
    "timestep_embedder.linear_2.weight": "time.down.weight",
    "timestep_embedder.linear_2.bias": "time.down.bias",
    "class_embedder.embedding_table.weight": "labels.weight",
}

FIELDS: dict[str, Use] = {
    **dict.fromkeys(
        "num_attention_heads attention_head_dim in_channels out_channels num_layers sample_size patch_size "
        "num_embeds_ada_norm norm_eps _class_name scheduler".split(),
        MAPPED,
    ),
    # norm_num_groups and use_linear_projection are of models without patches; upcast_attention is a matter of precision
    **dict.fromkeys(
        "_diffusers_version _name_or_path _use_default_values decay inv_gamma min_decay optimization_step power "
        "update_after_step use_ema_warmup dropout norm_num_groups use_linear_projection upcast_attention".split(),
        NEUTRAL,
    ),
    "norm_type": only("ada_norm_zero"),
    "activation_fn": only("gelu-approximate"),
    "attention_bias": only(True),
    "norm_elementwise_affine": only(False),
    "cross_attention_dim": only(),
    "num_vector_embeds": only(),
    "only_cross_attention": only(False),
    "double_self_attention": only(False),
    "attention_type": only("default"),
    "caption_channels": only(),
    "interpolation_scale": only(1),
    "use_additional_conditions": only(False),
}

BOTH: dict[str, Any] = dict(num_attention_heads=16, out_channels=None, norm_eps=1e-5)  # defaults of both classes
# of DiTTransformer2DModel; OLDER has others, and which of them count differs between versions of diffusers
DEFAULTS: dict[str, Any] = dict(
    attention_head_dim=72,
    in_channels=4,
    num_layers=28,
    sample_size=32,
    patch_size=2,
    num_embeds_ada_norm=1000,
    norm_type="ada_norm_zero",
    activation_fn="gelu-approximate",
    attention_bias=True,
    norm_elementwise_affine=False,
)


def settings(theirs: Fields) -> dict[str, Any]:
    older = theirs.get("_class_name") == OLDER
    for name in DEFAULTS if older else ():  # one that is missing is refused
        theirs[name]
    theirs = Fields(with_defaults(theirs, BOTH | DEFAULTS, theirs.what), theirs.what)
    channels, side = theirs.size("in_channels"), theirs.size("sample_size")
    out = channels if theirs["out_channels"] is None else theirs.size("out_channels")
    if older and side >= 128 and theirs.get("interpolation_scale") is None:
        raise UserError(
            f"this DiT is a {OLDER} of sample_size {side} without interpolation_scale, which scales its positions: "
            "ours are not scaled"
        )
    if out not in (channels, 2 * channels):
        raise UserError(f"this DiT has {channels} input and {out} output channels; ours has as many or twice as many")
    heads = theirs.size("num_attention_heads")
    return dict(
        image_size=(side, side),
        channels=channels,
        patch=(theirs.size("patch_size"),) * 2,
        classes=theirs.size("num_embeds_ada_norm"),
        width=heads * theirs.size("attention_head_dim"),
        depth=theirs.size("num_layers"),
        heads=heads,
        eps=EPS,
        mlp_eps=theirs["norm_eps"],
        positions="learned",
        learned_variance=out != channels,
        downscale_freq_shift=True,
        **schedule_settings(theirs.get("scheduler")),
    )


def describe(c: DiTConfig) -> dict[str, Any]:
    must_have(
        c,
        "DiT of diffusers",
        frames=1,
        vocab=None,
        null_condition=True,
        attention="full",
        adaln="zero",
        positions="learned",
        eps=EPS,
        mlp_width=4 * c.width,
        downscale_freq_shift=True,
        image_size=((c.image_size[0],) * 2,),
        patch=((c.patch[0],) * 2,),
    )
    if c.classes is None:
        raise UserError("model.classes is not set, and a DiT of diffusers always has classes")
    return dict(
        _class_name="DiTTransformer2DModel",
        num_attention_heads=c.heads,
        attention_head_dim=c.head_width,
        in_channels=c.channels,
        out_channels=c.out_channels,
        num_layers=c.depth,
        sample_size=c.image_size[0],
        patch_size=c.patch[0],
        num_embeds_ada_norm=c.classes,
        norm_type="ada_norm_zero",
        norm_elementwise_affine=False,
        activation_fn="gelu-approximate",
        attention_bias=True,
        norm_eps=c.eps if c.mlp_eps is None else c.mlp_eps,
    )


STEPS, FIRST, LAST = 1000, 1e-4, 0.02
SCHEDULES = {"linear": "linear", "squaredcos_cap_v2": "cosine"}
PREDICTIONS = {"epsilon": "eps", "sample": "x0", "v_prediction": "v"}
FLOW = "FlowMatchEulerDiscreteScheduler"
# classes whose defaults are linear betas from FIRST to LAST and a prediction of the noise
USUAL = {
    f"{name}Scheduler"
    for name in "DDIM DDIMInverse DDIMParallel DDPM DDPMParallel DEISMultistep DPMSolverMultistep "
    "DPMSolverMultistepInverse DPMSolverSinglestep EulerAncestralDiscrete EulerDiscrete LMSDiscrete PNDM SASolver "
    "UniPCMultistep".split()
}
# classes whose fields mean the same and have other defaults; those of every other class mean something else
OTHERS = {
    f"{name}Scheduler" for name in "DPMSolverSDE HeunDiscrete KDPM2AncestralDiscrete KDPM2Discrete LCM TCD".split()
}


def schedule_settings(theirs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Our settings from their scheduler; without one, those of the published DiT: linear, and it predicts the noise."""
    fields: Mapping[str, Any] = {} if theirs is None else theirs
    if not isinstance(fields, Mapping):
        raise UserError(f"this DiT's scheduler must be a table of fields, not {fields!r}")
    kind = str(fields.get("_class_name", "DDPMScheduler"))
    _one_of(fields, "num_train_timesteps", STEPS)
    if kind == FLOW:
        return dict(noise_schedule="flow")
    if kind not in USUAL | OTHERS:
        raise UserError(
            f"this scheduler is {with_article(kind)}, whose noise schedule ours does not have: only those of the "
            f"kinds of DDPMScheduler and {FLOW}"
        )
    schedule = fields.get("beta_schedule", "linear")
    if kind not in USUAL:
        for name in ("beta_schedule", "prediction_type", *(("beta_start", "beta_end") if schedule == "linear" else ())):
            if name not in fields:
                raise UserError(
                    f"this scheduler is {with_article(kind)} without {name}, whose default is not that of the "
                    f"schedules that ours has: write {name} into scheduler_config.json"
                )
    _one_of(fields, "beta_schedule", *SCHEDULES)
    _one_of(fields, "prediction_type", *PREDICTIONS)
    for name in ("use_flow_sigmas", "rescale_betas_zero_snr"):
        _one_of({name: bool(fields.get(name))}, name, False)
    if schedule == "linear":
        _one_of(fields, "beta_start", FIRST)
        _one_of(fields, "beta_end", LAST)
    if fields.get("trained_betas") is not None:
        raise UserError("this scheduler has trained_betas, a schedule of its own: ours are linear and cosine")
    prediction = PREDICTIONS[fields.get("prediction_type", "epsilon")]
    return dict(noise_schedule=SCHEDULES[schedule], prediction=prediction)


def _one_of(fields: Mapping[str, Any], name: str, *values: object) -> None:
    if fields.get(name, values[0]) not in values:
        allowed = " or ".join(map(repr, values))
        raise UserError(f"this scheduler's {name} is {fields[name]!r}, which ours does not have: only {allowed}")


def describe_schedule(config: DiTConfig, latents: bool) -> dict[str, Any]:
    """Their scheduler_config.json for a model of ours; x₀ is clipped for images, not for latents, as we do."""
    if config.noise_schedule == "flow":
        return dict(_class_name=FLOW, num_train_timesteps=STEPS, shift=1.0)
    beta_schedule = their_word(SCHEDULES, config.noise_schedule)
    prediction = their_word(PREDICTIONS, config.prediction)
    return dict(
        _class_name="DDIMScheduler",
        num_train_timesteps=STEPS,
        beta_schedule=beta_schedule,
        beta_start=FIRST,
        beta_end=LAST,
        prediction_type=prediction,
        clip_sample=not latents,
        set_alpha_to_one=True,
        steps_offset=0,
    )


def rules(c: DiTConfig) -> Iterator[Rule]:
    yield _patches(c)
    yield same("pos_embed.proj.bias", "patches.proj.bias")
    for name, ours in EMBED.items():
        yield _copies([f"transformer_blocks.{i}.norm1.emb.{name}" for i in range(c.depth)], ours)
    for i in range(c.depth):
        block = f"transformer_blocks.{i}"
        names = [f"{block}.attn1.to_{part}" for part in "qkv"]
        yield from projections(names, f"blocks.{i}.attn.qkv", [c.width] * 3)
        yield from layers(block, f"blocks.{i}", BLOCK)
    yield from parts(same, "proj_out_1", "last")
    for kind in ("weight", "bias"):
        yield channels_first(f"proj_out_2.{kind}", f"head.{kind}", c)


def _copies(theirs: Sequence[str], ours: str) -> Rule:
    """A tensor that every block of theirs has again, and ours has once."""

    def read(tensors: Tensors) -> Tensors:
        for name, tensor in zip(theirs, tensors, strict=True):
            if not torch.equal(tensor, tensors[0]):
                raise UserError(
                    f"this DiT's {name} is another than {theirs[0]}, and ours has one timestep and label embedding for "
                    "all blocks"
                )
        return tensors[:1]

    return Rule(tuple(theirs), (ours,), read, lambda tensors: [tensors[0]] * len(theirs))


def _patches(c: DiTConfig) -> Rule:
    """The patch embedding, a convolution there; and beside it the positions, which their files do not hold."""

    def read(tensors: Tensors) -> Tensors:
        return [tensors[0].flatten(1), sinusoids(c).to(tensors[0])]

    def write(tensors: Tensors) -> Tensors:
        weight, table = tensors
        if not table.is_meta and not _are_sinusoids(table, c):
            raise UserError(
                "positions.table has been trained, and a DiT of diffusers computes its positions: train with "
                "--freeze positions.table to be able to export"
            )
        return [weight.unflatten(1, (c.channels, *c.patch))]

    return Rule(("pos_embed.proj.weight",), ("patches.proj.weight", "positions.table"), read, write)


def channels_first(theirs: str, ours: str, c: DiTConfig) -> Rule:
    """The rows of the output matrix: a patch's channels last there, first here."""

    def read(tensors: Tensors) -> Tensors:
        return [tensors[0].unflatten(0, (*c.patch, c.out_channels)).movedim(2, 0).flatten(0, 2)]

    def write(tensors: Tensors) -> Tensors:
        return [tensors[0].unflatten(0, (c.out_channels, *c.patch)).movedim(0, 2).flatten(0, 2)]

    return Rule((theirs,), (ours,), read, write)


def sinusoids(config: DiTConfig) -> Tensor:
    """Their positions: the column's sines and cosines, then the row's."""
    if config.width % 4:
        raise UserError(f"sines and cosines of rows and columns need a width divisible by 4, not {config.width}")
    half, positions = Sinusoidal(config.width // 2, halves=True), grid_positions(config.grid)
    return torch.cat([half.embedding(positions[None, :, axis, None])[0] for axis in (1, 0)], -1)


def _are_sinusoids(table: Tensor, c: DiTConfig) -> bool:
    # a table kept in half precision is off by its rounding
    atol = 1e-6 + torch.finfo(table.dtype).eps
    return torch.allclose(table.cpu().double().reshape(-1, c.width), sinusoids(c), atol=atol, rtol=0)


def _other_positions(table: Tensor, c: DiTConfig) -> str | None:
    if table.numel() != c.grid[0] * c.grid[1] * c.width or not _are_sinusoids(table, c):
        return "holds other positions than the sinusoids that diffusers computes"
    return None


def random_inputs(c: DiTConfig, generator: torch.Generator, length: int) -> tuple[Tensor, ...]:
    """For `inputs`: noised images, the last, a random and the first timestep, and labels of which one is the null
    class."""
    picture = torch.randn(3, c.channels, *c.image_size, generator=generator)
    timestep = torch.tensor([STEPS - 1, int(torch.randint(STEPS, (1,), generator=generator)), 0])
    return picture, timestep, torch.tensor([0, c.classes or 0, (c.classes or 1) - 1])


def _exact_sines(module: Any, given: tuple[Tensor, ...], rounded: Tensor) -> Tensor:
    """The output of diffusers' Timesteps in float64: it rounds frequencies and angles to float32."""
    pairs = module.num_channels // 2
    frequency = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / (pairs - module.downscale_freq_shift))
    angles = module.scale * given[0].double()[:, None] * frequency
    both = [angles.sin(), angles.cos()]
    return torch.cat(both[::-1] if module.flip_sin_to_cos else both, -1)


DIT = Architecture(
    "DiT",
    "diffusers",
    ("DiTTransformer2DModel", OLDER),
    DiT,
    DiTConfig,
    FIELDS,
    settings,
    describe,
    rules,
    unused=lambda c: {r"pos_embed\.pos_embed": _other_positions},
    inputs=random_inputs,
    ask=lambda original, given: original(*given).sample,
    outputs=lambda c: {f"blocks.{i}.post": f"transformer_blocks.{i}" for i in range(c.depth)},
    exact={"time_proj": _exact_sines},
    rounds="the sines of its timesteps",
)
