"""The named sizes: exact parameter counts, the report's shape, and configs that need no tensor library."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from openafm.core.config import from_dict, to_dict
from openafm.models.accounting import active_parameters, num_parameters
from openafm.models.config import AttentionConfig, RotaryConfig, SharedKeysValuesConfig, TracksConfig
from openafm.models.feed_forward.experts_config import ExpertsConfig
from openafm.models.size_names import UnknownSizeError
from openafm.models.sizes import SIZES, named_size
from openafm.models.vision.multimodal_config import MultimodalConfig


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("on_device.base", 3_111_368_064),
        ("on_device.draft", 48_765_952),
        ("on_device.nano", 7_541_824),
        ("on_device.nano_draft", 1_115_200),
        ("on_device.small", 31_204_672),
        ("on_device.micro", 1_395_232),
        ("on_device.micro_draft", 229_824),
        ("compact.base", 302_017_024),
    ],
)
def test_parameter_counts_are_exact(name: str, count: int) -> None:
    with torch.device("meta"):
        model = named_size(name).build()
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_layers_of_the_report_s_model_have_the_published_counts() -> None:
    with torch.device("meta"):
        model = named_size("on_device.base").build()
    counts = [sum(parameter.numel() for parameter in layer.parameters()) for layer in model.layers]
    assert counts == [50_336_000] * 35 + [49_287_296] * 21
    assert model.embedding.numel() == 314_572_800
    assert model.output is None


def test_the_report_s_model_shares_the_last_regular_layer_s_keys_and_values() -> None:
    config = named_size("on_device.base")
    assert config.own_layers == tuple(range(35))
    assert config.num_prefill_layers == 35
    assert {layer.attention.keys_values for layer in config.layers[35:]} == {SharedKeysValuesConfig(layer=34)}
    assert {config.kv_heads(index) for index in range(56)} == {2}


@pytest.mark.parametrize(
    ("name", "text", "encoder", "tokens"),
    [
        ("on_device.base_multimodal", 3_111_368_064, 304_906_240, {"balanced": 144, "high": 720, "rapid": 9}),
        ("server.full_multimodal", 147_803_703_296, 1_012_282_368, {"balanced": 144, "high": 720}),
    ],
)
def test_the_report_s_models_with_vision(name: str, text: int, encoder: int, tokens: dict[str, int]) -> None:
    config = named_size(name)
    assert isinstance(config, MultimodalConfig)
    assert {mode.name: mode.num_tokens for mode in config.image_modes} == tokens
    layer, projection = config.vision.layers[0].num_parameters(config.vision.dim), (config.vision.dim + 1) * config.dim
    adapter = layer + 2 * config.vision.dim + projection + (9 * config.dim + 1) * config.dim
    assert num_parameters(config) == text + encoder + adapter
    with torch.device("meta"):
        model = config.build()
    assert sum(parameter.numel() for parameter in model.parameters()) == text + encoder + adapter
    assert config.decoder == named_size(name.removesuffix("_multimodal"))


@pytest.mark.parametrize("name", SIZES)
def test_every_size_survives_json(name: str) -> None:
    config = named_size(name)
    assert from_dict(type(config), to_dict(config)) == config


def test_an_unknown_size_names_the_nearest() -> None:
    with pytest.raises(UnknownSizeError, match=r"unknown size 'on_device\.nanno'; did you mean 'on_device\.nano'"):
        named_size("on_device.nanno")


def test_configs_do_not_import_torch() -> None:
    program = (
        "import sys, openafm.models.accounting\n"
        "from openafm.models.sizes import SIZES\n"
        "[size() for size in SIZES.values()]\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("name", "count", "active"),
    [
        ("server.full", 147_803_703_296, 15_834_122_240),
        ("server.nano", 9_947_264, 7_686_272),
        ("server.micro", 559_680, 461_376),
    ],
)
def test_server_models_count_all_experts_and_those_that_a_token_passes(name: str, count: int, active: int) -> None:
    config = named_size(name)
    assert (num_parameters(config), active_parameters(config)) == (count, active)


def test_the_server_model_has_the_published_shape() -> None:
    config = named_size("server.full")
    assert config.tracks == TracksConfig(num_tracks=8, block_depth=4)
    assert [layer.attention.window for layer in config.layers] == [4096, 4096, 4096, None] * 12
    positions = [layer.attention.position for layer in config.layers if isinstance(layer.attention, AttentionConfig)]
    assert positions == [RotaryConfig(), RotaryConfig(), RotaryConfig(), None] * 12
    assert [isinstance(layer.feed_forward, ExpertsConfig) for layer in config.layers] == [False, True] * 24
