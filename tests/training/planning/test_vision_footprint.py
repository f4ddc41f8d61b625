"""Memory and operations of images: against autograd's hooks and torch's counter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from openafm.core.errors import UsageError
from openafm.data.loading.batch import Batch
from openafm.models.accounting import num_parameters
from openafm.models.attention.spans import ImageKey
from openafm.models.config import DecoderConfig
from openafm.models.sizes import named_size
from openafm.models.vision.config import GlobalScopeConfig, WindowScopeConfig
from openafm.models.vision.layer_norm import LayerNorm
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.pixel_shuffle_config import PixelShuffleAdapterConfig
from openafm.models.vision.sizes import encoder_of, stem_of
from openafm.training.objectives.base import image_flops
from openafm.training.planning.chips import named_chip
from openafm.training.planning.plan import Workload
from openafm.training.planning.search import Axes, make_plan
from openafm.training.planning.vision_footprint import vision_bytes


def config_of(scope: WindowScopeConfig | None = None) -> MultimodalConfig:
    config = named_size("on_device.micro_multimodal")
    assert isinstance(config, MultimodalConfig)
    if scope is None:
        return config
    layers = tuple(
        layer if isinstance(layer.scope, GlobalScopeConfig) else replace(layer, scope=scope)
        for layer in config.vision.layers
    )
    return replace(config, vision=replace(config.vision, layers=layers))


def config_with_stem() -> MultimodalConfig:
    config = config_of()
    return replace(config, vision=replace(config.vision, stem=stem_of(8, 16, 16)))


def convolutions_alone() -> MultimodalConfig:
    return MultimodalConfig.of(config_of().decoder, encoder_of("reader.micro"), PixelShuffleAdapterConfig(factor=3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "config",
    [config_of(), config_of(WindowScopeConfig()), config_with_stem(), convolutions_alone()],
    ids=["register window", "window", "convolutions", "convolutions alone"],
)
def test_what_autograd_saves_of_images(
    dtype: torch.dtype, config: MultimodalConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LayerNorm, "forward", _norm_of_a_chip)
    model = config.build()
    model.compute_dtype = dtype
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            held.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    mode = config.image_modes[0]
    pixels = torch.zeros(2, mode.side, mode.side, 3, dtype=torch.uint8)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.encode_images(pixels, mode.tokens)
    expected = sum(tensor.untyped_storage().nbytes() for tensor in held.values())
    assert vision_bytes(config, 2, dtype.itemsize) == pytest.approx(expected, rel=0.01)
    assert vision_bytes(config, 0, dtype.itemsize) == 0


@pytest.mark.parametrize(
    "config", [config_of(), named_size("server.nano_multimodal"), config_with_stem(), convolutions_alone()]
)
def test_operations_of_a_view(config: DecoderConfig) -> None:
    assert isinstance(config, MultimodalConfig)
    model = config.build()
    for mode in config.image_modes:
        pixels = torch.zeros(mode.num_views, mode.side, mode.side, 3, dtype=torch.uint8)
        # The counter knows the products of plain attention only.
        with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            model.encode_images(pixels, mode.tokens)
        assert config.image_flops(mode) == pytest.approx(counter.get_total_flops(), rel=1e-6)


def _norm_of_a_chip(self: LayerNorm, x: Tensor) -> Tensor:
    """Normalize as chips do, for which memory is planned: they save inputs of 16 bits in fp32, and a CPU as they are."""
    return F.layer_norm(x.float(), self.weight.shape, self.weight, self.bias, self.eps).to(x.dtype)


def plan_of(size: str, row_images: int) -> dict[str, float]:
    workload = Workload(rows_per_step=8, row_tokens=4096, microbatch_rows=1, row_images=row_images)
    axes = Axes(shard=None, expert=None, track=None)
    return make_plan(named_size(size), num_devices=8, chip=named_chip("tpu-v5p"), workload=workload, axes=axes).to_dict()


def test_a_plan_counts_vision() -> None:
    text, idle, seeing = (
        plan_of(size, images)
        for size, images in (("on_device.base", 0), ("on_device.base_multimodal", 0), ("on_device.base_multimodal", 10))
    )
    config = named_size("on_device.base_multimodal")
    assert isinstance(config, MultimodalConfig)
    assert idle["parameters"] == num_parameters(config)
    assert idle["parameters"] - text["parameters"] == config.other_parameters()
    assert idle["flops_per_step"] == text["flops_per_step"]
    images = 8 * 10 * 3 * config.image_flops(config.image_modes[0])
    assert seeing["flops_per_step"] - idle["flops_per_step"] == pytest.approx(images)
    assert seeing["memory_per_device"]["activations"] > idle["memory_per_device"]["activations"]  # type: ignore[index]


def test_images_that_a_row_cannot_hold_are_refused() -> None:
    with pytest.raises(UsageError, match="need a model with vision"):
        plan_of("on_device.base", 1)
    with pytest.raises(UsageError, match="29 images take 4176 tokens, more than the 4096 of a row"):
        plan_of("on_device.base_multimodal", 29)


def test_a_step_counts_the_operations_of_its_images() -> None:
    config = named_size("on_device.micro_multimodal")
    assert isinstance(config, MultimodalConfig)
    views = {
        ImageKey(mode.name, mode.num_tokens): np.zeros((mode.num_views, mode.side, mode.side, 3), np.uint8)
        for mode in config.image_modes
    }
    none = np.zeros((1, 1), np.int64)
    batch = Batch(tokens_BS=none, targets_BS=none, loss_mask_BS=none.astype(bool), documents=(), images=views)
    assert image_flops(config, batch) == pytest.approx(3 * sum(map(config.image_flops, config.image_modes)))
    assert image_flops(config.decoder, batch) == 0
