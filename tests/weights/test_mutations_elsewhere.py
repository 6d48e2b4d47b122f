"""Configs beside those of transformers (timm's, diffusers', nanoGPT's, those of LLaMA's and DiT's authors) with a field
that is missing, null, given twice or changed: what ours computes is what the original computes, or it is refused."""

import inspect
import json
import random
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import test_dit_original
import test_nanogpt
import torch
import torch.nn.functional as F
from test_mutations import MISSING, others
from torch import nn

from both_ways import CLOSE, randomise
from conftest import unchecked
from pencil.api.interchange.parity import compare
from pencil.config import UserError
from pencil.families.family import FAMILIES
from pencil.inference.diffusion import make_process
from pencil.weights.dit import DIT, FLOW, PREDICTIONS, schedule_settings
from pencil.weights.dit_original import DIT_ORIGINAL
from pencil.weights.llama_original import LLAMA_ORIGINAL
from pencil.weights.maps import Architecture, Source, load
from pencil.weights.nanogpt import NANOGPT
from pencil.weights.timm_vit import TIMM_VIT


class Layer(nn.Module):
    """A block of LLaMA as its authors wrote it: pairs of adjacent channels are complex numbers."""

    def __init__(self, width, heads, kv_heads, head, hidden, eps, theta, window):
        super().__init__()
        self.shape, self.theta, self.window = (heads, kv_heads, head), theta, window
        self.attention, self.feed_forward = nn.Module(), nn.Module()
        for name, rows, columns in (("wq", heads, width), ("wk", kv_heads, width), ("wv", kv_heads, width)):
            setattr(self.attention, name, nn.Linear(columns, rows * head, bias=False))
        self.attention.wo = nn.Linear(heads * head, width, bias=False)
        for name, rows, columns in (("w1", hidden, width), ("w2", width, hidden), ("w3", hidden, width)):
            setattr(self.feed_forward, name, nn.Linear(columns, rows, bias=False))
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)

    def turned(self, x):
        frequency = self.theta ** -(torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
        angle = torch.arange(x.shape[1])[:, None, None] * frequency
        pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2).to(x)

    def forward(self, x):
        (heads, kv_heads, head), normed, n = self.shape, self.attention_norm(x), x.shape[1]
        q, k, v = (getattr(self.attention, f"w{part}")(normed).unflatten(-1, (-1, head)) for part in "qkv")
        q, k, v = (t.transpose(1, 2) for t in (self.turned(q), self.turned(k), v))
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        back = torch.arange(n)[:, None] - torch.arange(n)
        seen = (back >= 0) & (back < (n if self.window is None else self.window))
        pattern = (q @ k.mT / head**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
        x = x + self.attention.wo((pattern @ v).transpose(1, 2).flatten(2))
        normed, mlp = self.ffn_norm(x), self.feed_forward
        return x + mlp.w2(F.silu(mlp.w1(normed)) * mlp.w3(normed))


class Llama(nn.Module):
    """LLaMA by its params.json, where LLaMA 2's code has a default; MLPs are 59 wide, the vocabulary has 53 tokens."""

    def __init__(self, dim, n_layers, n_heads, n_kv_heads=None, head_dim=None, norm_eps=1e-5, rope_theta=10000.0,
                 sliding_window=None, vocab_size=-1, max_seq_len=2048):  # fmt: skip
        super().__init__()
        head, kv_heads = dim // n_heads if head_dim is None else head_dim, n_kv_heads or n_heads
        rows = 53 if vocab_size == -1 else vocab_size
        self.tok_embeddings, self.norm = nn.Embedding(rows, dim), nn.RMSNorm(dim, norm_eps)
        self.layers = nn.ModuleList(
            Layer(dim, n_heads, kv_heads, head, 59, norm_eps, rope_theta, sliding_window) for _ in range(n_layers)
        )
        self.output = nn.Linear(dim, rows, bias=False)

    def forward(self, ids):
        x = self.tok_embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def nanogpt(fields, folder):
    """Its model; null is no bias there, and only a config that lacks the field is one of before it."""
    known = {name: value for name, value in fields.items() if name not in ("iter_num", "best_val_loss")}
    if known.get("bias", True) is None:
        known["bias"] = False
    return test_nanogpt.Reference(**known)


def llama(fields, folder):
    unused = ("multiple_of", "ffn_dim_multiplier", "max_batch_size", "model_parallel_size")  # of sizes and machines
    return Llama(**{name: value for name, value in fields.items() if name not in unused})


def dit(fields, folder):
    return test_dit_original.Reference(**{k: v for k, v in fields.items() if k != "class_dropout_prob"})


def diffusers_dit(fields, folder):
    """As `from_pretrained` chooses the class, with one embedding of the time and the label in every block."""
    import diffusers
    from diffusers.models.model_loading_utils import _fetch_remapped_cls_from_config

    quiet()
    kind = getattr(diffusers, fields["_class_name"])
    if kind is diffusers.Transformer2DModel:
        kind = _fetch_remapped_cls_from_config(fields, kind)
    made = kind.from_config({name: value for name, value in fields.items() if name != "scheduler"})
    for block in made.transformer_blocks[1:]:
        block.norm1.emb = made.transformer_blocks[0].norm1.emb
    return made


def timm_vit(fields, folder):
    import timm

    (folder / "config.json").write_text(json.dumps(fields))
    return timm.create_model(f"local-dir:{folder}")


def quiet():
    """Without a warning for every field that a class does not know."""
    import diffusers

    diffusers.utils.logging.set_verbosity_error()


class Kind(NamedTuple):
    architecture: Architecture
    original: Callable[[dict[str, Any], Any], nn.Module]
    fields: dict[str, Any]  # of a small model, a path through tables as one name with dots
    changes: dict[str, list[Any]]  # other values, of these fields and of some that it lacks


NAN = dict(n_layer=2, n_head=3, n_embd=24, block_size=17, bias=True, vocab_size=53, dropout=0.1)
PARAMS = dict(
    dim=24, n_layers=2, n_heads=6, n_kv_heads=2, norm_eps=1e-3, vocab_size=53, max_seq_len=17, rope_theta=97.0
)
SIZES = dict(input_size=12, patch_size=3, in_channels=4, hidden_size=24, depth=2, num_heads=3, num_classes=7,
             mlp_ratio=2.5, learn_sigma=True)  # fmt: skip
DIFFUSERS = dict(_class_name="DiTTransformer2DModel", num_attention_heads=3, attention_head_dim=8, in_channels=4,
                 out_channels=8, num_layers=2, sample_size=6, patch_size=2, num_embeds_ada_norm=7, norm_eps=1e-3,
                 norm_type="ada_norm_zero", activation_fn="gelu-approximate", attention_bias=True,
                 norm_elementwise_affine=False, dropout=0.1, norm_num_groups=32, upcast_attention=False)  # fmt: skip
ARGS = dict(embed_dim=24, depth=2, num_heads=3, patch_size=7, mlp_ratio=1.7, qkv_bias=True, class_token=True,
            global_pool="token", no_embed_class=False, reg_tokens=0, pre_norm=False, fc_norm=None)  # fmt: skip
TIMM = {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "pretrained_cfg.input_size": [3, 14, 14],
        "pretrained_cfg.num_classes": 5, "pretrained_cfg.fixed_input_size": True,
        **{f"model_args.{name}": value for name, value in ARGS.items()}}  # fmt: skip
OTHER_ARGS = dict(global_pool=["avg", "map"], act_layer=["gelu_tanh", "relu", "quick_gelu"], norm_layer=["rmsnorm", "layernorm"],
                  img_size=[14, 21, [14, 21]], in_chans=[1, 3], num_classes=[2, 5], fc_norm=[True, False], init_values=[0.1],
                  pos_embed=["none", "learn"], qk_norm=[True], proj_bias=[False], final_norm=[False], drop_rate=[0.1],
                  dynamic_img_size=[True], patch_size=[2, [7, 14]])  # fmt: skip
KINDS = {
    "nanoGPT": Kind(NANOGPT, nanogpt, NAN, dict(iter_num=[7], best_val_loss=[1.5])),
    "original LLaMA": Kind(
        LLAMA_ORIGINAL, llama, PARAMS,
        dict(head_dim=[4, 8], sliding_window=[5, 64], multiple_of=[256], ffn_dim_multiplier=[1.3], use_scaled_rope=[True, False],
             vocab_size=[-1, 54], n_kv_heads=[1, 3, 6, 4], max_batch_size=[3], rope_theta=[97, 10000.0, 5e5]),
    ),
    "original DiT": Kind(DIT_ORIGINAL, dit, SIZES, dict(class_dropout_prob=[0.2], patch_size=[2, 5])),
    "DiT": Kind(
        DIT, diffusers_dit, DIFFUSERS,
        dict(_class_name=["Transformer2DModel"], out_channels=[4, 5], activation_fn=["geglu", "gelu"], norm_type=["ada_norm", "layer_norm"],
             cross_attention_dim=[24], num_vector_embeds=[5], only_cross_attention=[True, False], attention_type=["gated", "default"],
             double_self_attention=[True, False], caption_channels=[5], interpolation_scale=[1, 2.0], sample_size=[7, 128],
             use_additional_conditions=[True, False], use_linear_projection=[True]),
    ),
    "VisionTransformer": Kind(
        TIMM_VIT, timm_vit, TIMM,
        {"num_classes": [7], "global_pool": ["avg", "token"], "architecture": ["vit_base_patch16_clip_224", "deit_tiny_distilled_patch16_224"],
         "pretrained_cfg.input_size": [[1, 14, 14], [3, 14, 21]], "pretrained_cfg.fixed_input_size": [False],
         "pretrained_cfg.num_classes": [7], "pretrained_cfg.label_names": [["a", "b"]],
         **{f"model_args.{name}": values for name, values in OTHER_ARGS.items()}},
    ),
}  # fmt: skip


def test_every_architecture_of_the_table_is_mutated():
    """Here, or in the file of those of transformers."""
    every = [one for record in FAMILIES.values() for one in record.checkpoints]
    assert {one.name for one in every if one.library != "transformers"} == set(KINDS)
    assert all(kind.architecture in every for kind in KINDS.values())


def mutations(kind):
    """Changes of single fields: a name and its value, or MISSING."""
    fields, changes = KINDS[kind].fields, KINDS[kind].changes
    for name in fields | changes:
        values = changes.get(name) or others(name, fields[name])
        # by these an architecture is found
        left_out = () if name in ("_class_name", "architecture") else (MISSING, None)
        yield from ((name, value) for value in (*left_out, *values))
    yield "a_field_that_nobody_has", 3


def tables(fields):
    """Fields by their paths as the tables of a file."""
    made = {}
    for path, value in fields.items():
        *outer, name = path.split(".")
        place = made
        for one in outer:
            place = place.setdefault(one, {})
        if value is not MISSING:
            place[name] = value
    return made


def cases(kind, count, seed):
    """Each change alone, and then several at once: what was changed, and the fields."""
    draw, singles, several = random.Random(seed), list(mutations(kind)), 1
    made = 0
    while made < count:
        draw.shuffle(singles)
        for one in singles[: count - made]:
            changed = dict([one, *draw.sample(singles, several - 1)])
            yield changed, tables(KINDS[kind].fields | changed)
            made += 1
        several = several % 3 + 1


def outcome(kind, fields, changed, folder):
    """Whether a config is refused by ours, cannot be built by the original, or computes the same in every block."""
    architecture, original = KINDS[kind][:2]
    try:
        torch.manual_seed(1)
        theirs = original(fields, folder).eval()
        randomise(theirs)
    except Exception:
        return "no original"
    source = Source(theirs.state_dict())
    try:
        ours = load(architecture, source, architecture.configure(fields, source))
    except UserError:
        return "refused"
    asked = architecture.inputs(ours.config, torch.Generator().manual_seed(0), 17)
    try:
        with torch.no_grad():
            architecture.ask(theirs, asked)
    except Exception:
        return "no original"
    for difference in compare(architecture, theirs, ours):
        assert difference.relative <= CLOSE, (kind, changed, difference)
    return "equal"


def check(count, counts):
    """Neither everything refused nor everything without effect."""
    assert counts["equal"] > count / 5, counts
    assert counts["refused"] > count / 20, counts


def check_computed(kind, count, seed, folder):
    with unchecked(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of matrices without a row
        check(count, Counter(outcome(kind, fields, changed, folder) for changed, fields in cases(kind, count, seed)))


@pytest.mark.parametrize("kind", ["nanoGPT", "original LLaMA", "original DiT"])
def test_what_is_not_refused_computes_what_the_original_computes(kind, tmp_path):
    check_computed(kind, 50, 11, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_several_changes_at_once_are_computed_alike_or_refused(kind, tmp_path, timm):
    check_computed(kind, 160 if kind in ("DiT", "VisionTransformer") else 400, 12, tmp_path)


@pytest.mark.parametrize("count", [300, pytest.param(4_000, marks=pytest.mark.long)])
def test_the_fields_of_a_dit_are_resolved_as_by_diffusers_or_refused(count):
    """The arguments that its class gets; those of timm's are in test_timm_vit.py."""
    from diffusers import DiTTransformer2DModel

    quiet()
    parameters = inspect.signature(DiTTransformer2DModel.__init__).parameters
    usual, counts = {name: one.default for name, one in parameters.items()}, Counter()
    for changed, fields in cases("DiT", count, 13):
        try:
            ours = DIT.configure(fields)
        except UserError:
            counts["refused"] += 1
            continue
        theirs = usual | DiTTransformer2DModel.extract_init_dict(fields)[0]
        if theirs["out_channels"] is None:
            theirs["out_channels"] = theirs["in_channels"]
        described = DIT.describe(ours)
        described.pop("_class_name")
        assert described == {name: theirs[name] for name in described}, changed
        counts["equal"] += 1
    check(count, counts)


SCHEDULE = dict(
    num_train_timesteps=1000, beta_start=1e-4, beta_end=0.02, beta_schedule="linear", prediction_type="epsilon"
)
OTHER_SCHEDULES = dict(
    num_train_timesteps=[500], beta_start=[1e-3], beta_end=[0.012, 0.02], prediction_type=["sample", "v_prediction", "flow"],
    beta_schedule=["squaredcos_cap_v2", "squaredcos_cap_v2", "scaled_linear", "sigmoid"], trained_betas=[[0.1] * 1000, []],
    rescale_betas_zero_snr=[True, False], use_flow_sigmas=[True, False], use_karras_sigmas=[True], clip_sample=[True, False],
    timestep_spacing=["trailing"], steps_offset=[1], shift=[3.0], sigma_min=[0.1], snr_shift_scale=[1.0],
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of classes that divide by a signal of zero
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_noise_schedule_is_that_of_the_class_or_refused(every):
    """The shares of the signal that the class computes, whatever its file says, leaves out or has as null."""
    import diffusers

    quiet()
    some = ["DDIMScheduler", "DDPMScheduler", "EulerDiscreteScheduler", "HeunDiscreteScheduler", "LCMScheduler",
            "CogVideoXDDIMScheduler", "EDMEulerScheduler", "FlowMatchHeunDiscreteScheduler", FLOW]  # fmt: skip
    names = [one for one in dir(diffusers) if one.endswith("Scheduler")] if every else some
    draw, counts, count = random.Random(14), Counter(), 4000 if every else 300
    words = {ours: theirs for theirs, ours in PREDICTIONS.items()}
    for _ in range(count):
        fields = {"_class_name": draw.choice(names)} | (SCHEDULE if draw.random() < 0.7 else {})
        for name in draw.sample(sorted(OTHER_SCHEDULES), draw.choice([1, 2, 3])):
            value = draw.choice([*OTHER_SCHEDULES[name], None, MISSING])
            fields = {key: one for key, one in (fields | {name: value}).items() if one is not MISSING}
        try:
            ours = schedule_settings(fields)
        except UserError:
            counts["refused"] += 1
            continue
        try:
            theirs = getattr(diffusers, fields["_class_name"]).from_config(fields)
        except Exception:
            continue
        counts["equal"] += 1
        if ours == dict(noise_schedule="flow"):
            assert fields["_class_name"] == FLOW
            continue
        alphas = make_process(ours["noise_schedule"], ours["prediction"]).alphas_cumprod
        assert words[ours["prediction"]] == theirs.config.prediction_type, fields
        torch.testing.assert_close(alphas, theirs.alphas_cumprod.double(), atol=1e-5, rtol=0, msg=str(fields))
    check(count, counts)
