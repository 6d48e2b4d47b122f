"""Every field that another library's config can have is mapped, neutral, neutral at some values, or refused by name."""

import dataclasses
import inspect

import pytest

from pencil.config import UserError
from pencil.families.family import FAMILIES
from pencil.weights.maps import MAPPED, NEUTRAL, Only, check_fields
from pencil.weights.timm_vit import ARGUMENTS

ARCHITECTURES = {f"{one.name} of {one.library}": one for record in FAMILIES.values() for one in record.checkpoints}
# architectures whose fields are the arguments of a constructor that no package has
WRITTEN_OUT = {"dit", "llama", "nanogpt"}


def fields_of_transformers(kind):
    """Of a config: those of an instance, of its class and every class above it, and their other names."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind)
    kinds = [one for one in type(config).__mro__ if one.__module__.startswith("transformers")]
    names = set(config.to_dict()) | {field.name for field in dataclasses.fields(config)}
    for one in kinds:
        names |= set(inspect.signature(one.__init__).parameters)
        names |= set(getattr(one, "__annotations__", {}))
    names |= set(config.attribute_map)
    # what is about the class, and how a call is made
    about = {"self", "kwargs", "args", "base_config_key", "sub_configs", "sub_configs_defaults", "attribute_map", "has_no_defaults_at_init",
             "keys_to_ignore_at_inference", "model_type", "ignore_keys_at_rope_validation"}  # fmt: skip
    return {name for name in names - about if not name.startswith(("base_model_", "_auto_class"))}


def fields_of_diffusers(kind):
    import diffusers

    return set(inspect.signature(getattr(diffusers, kind).__init__).parameters) - {"self"}


def fields_of_timm(timm):
    return set(inspect.signature(timm.models.VisionTransformer.__init__).parameters) - {"self"}


def fields_of(architecture, timm):
    """The fields of the library's own classes, for each name that a config may have."""
    if architecture.library == "transformers":
        return set().union(*map(fields_of_transformers, architecture.types))
    if architecture.library == "diffusers":
        return set().union(*map(fields_of_diffusers, architecture.types))
    return fields_of_timm(timm)


def test_every_field_has_a_use(capsys, timm):
    count, unknown = 0, []
    for what, architecture in ARCHITECTURES.items():
        if architecture.library in WRITTEN_OUT:
            continue
        found = fields_of(architecture, timm)
        count += len(found)
        plain = {architecture.aliases.get(name, name) for name in found}
        # timm's files hold the arguments of the constructor as a table of their own
        uses = ARGUMENTS if architecture.library == "timm" else architecture.fields
        unknown += [f"{what}: {name}" for name in sorted(plain - uses.keys())]
    with capsys.disabled():
        print(f"\n{count} fields of configs, {len(unknown)} without a use")
    assert not unknown, unknown
    assert count > 325


@pytest.mark.parametrize("what", ARCHITECTURES)
def test_a_use_is_one_of_four(what):
    architecture = ARCHITECTURES[what]
    assert architecture.fields, what
    for name, use in architecture.fields.items():
        assert use in (MAPPED, NEUTRAL) or isinstance(use, Only), name
    # an alias leads to a field that has a use
    assert set(architecture.aliases.values()) <= set(architecture.fields)


def test_the_fields_of_rotations_have_a_use_too():
    """They are a table of their own in a config."""
    from transformers.modeling_rope_utils import RopeParameters

    from pencil.weights.llama import ROPE

    assert set(RopeParameters.__annotations__) <= ROPE.keys()


def test_a_field_without_a_use_is_refused_by_its_name():
    for architecture in ARCHITECTURES.values():
        with pytest.raises(UserError, match="has sinks = 3, which Pencil does not know"):
            check_fields({"sinks": 3}, architecture.fields, architecture.name)
        for name, use in architecture.fields.items():
            if isinstance(use, Only):
                with pytest.raises(UserError, match=name):
                    check_fields({name: "another value"}, architecture.fields, architecture.name)


def test_defaults_are_those_of_the_library():
    """Of fields that a file may leave out; what is not neutral and has a default that ours does not have is among them."""
    from diffusers import DiTTransformer2DModel, Transformer2DModel
    from transformers import CONFIG_MAPPING

    from pencil.weights import dit

    read_otherwise = {"rotary_pct", "rotary_emb_base"}  # no fields of the class, which moves them into rope_parameters
    for architecture in ARCHITECTURES.values():
        for kind in architecture.types if architecture.library == "transformers" else ():
            usual = {field.name: field.default for field in dataclasses.fields(CONFIG_MAPPING[kind])}
            for name in architecture.defaults.keys() - read_otherwise:
                # of a class without the field the model takes None
                assert architecture.defaults[name] == usual.get(name), (kind, name)
            for name, (_, rate) in architecture.dropout.items():
                assert rate == usual[name], (kind, name)
            for name, use in architecture.fields.items():
                if isinstance(use, Only) and usual.get(name) is not None and usual[name] not in use.values:
                    assert name in architecture.defaults, (kind, name)

    def usual_of(kind):
        return {name: one.default for name, one in inspect.signature(kind.__init__).parameters.items()}

    ours, older = usual_of(DiTTransformer2DModel), usual_of(Transformer2DModel)
    assert all(ours[name] == value for name, value in (dit.BOTH | dit.DEFAULTS).items())
    assert all(older[name] == value for name, value in dit.BOTH.items())
    mapped = {name for name, use in dit.FIELDS.items() if use != NEUTRAL and ours.get(name) is not None}
    assert mapped <= dit.BOTH.keys() | dit.DEFAULTS.keys()
