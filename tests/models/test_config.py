"""The settings that the configs of the models share."""

from dataclasses import dataclass, fields

import pytest

from pencil.models.config import BlockConfig
from pencil.models.vit import ViTConfig


@dataclass(frozen=True)
class Config(BlockConfig, without=("norm", "kv_heads", "activation")):
    """Settings of its own before, between and after those of all blocks."""

    first: int = 3
    heads: int = 2
    second: int = 5
    eps: float = 0.125
    last: int = 7


def test_a_setting_stands_where_its_config_writes_it():
    names = [one.name for one in fields(Config)]
    assert names[:8] == ["width", "depth", "first", "heads", "head_dim", "hidden", "second", "eps"]
    assert names[8:12] == ["bias", "dropout", "attention_dropout", "key_dropout"]
    assert names[-3:] == ["rope_factor", "rope_original_context", "last"]
    assert len(names) == len(set(names)) == 21 - 3 + 3


def test_a_config_has_its_own_defaults_and_the_shared_ones():
    config = Config(width=12)
    assert (config.width, config.heads, config.eps, config.depth) == (12, 2, 0.125, 4)
    assert (config.head_width, config.kv_head_count, config.mlp_width) == (6, 2, 48)


def test_what_a_config_is_without_is_no_setting_and_has_one_value():
    assert "kv_heads" not in {one.name for one in fields(ViTConfig)}
    assert (ViTConfig().kv_heads, ViTConfig().rope_scaling, Config().norm) == (None, None, "layer")
    with pytest.raises(TypeError, match="kv_heads"):
        ViTConfig(kv_heads=2)
