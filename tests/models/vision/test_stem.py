"""Convolutions, before the patches or alone, against torch's own layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from openafm.core.config import ConfigError
from openafm.models.vision.config import ConvolutionConfig, VisionConfig, VisionLayerConfig
from openafm.models.vision.sizes import convolutions, encoder_of, stem_of
from openafm.models.vision.stem import Stem

EPS = 1e-6


def test_a_stem_equals_convolution_gelu_and_norm() -> None:
    configs = (ConvolutionConfig(channels=6, kernel_side=5, stride=2), ConvolutionConfig(channels=4))
    vision = VisionConfig(
        image_side=12, patch_side=2, dim=4, layers=(VisionLayerConfig(num_heads=1, mlp_dim=4),), stem=configs
    )
    stem, generator = Stem(vision), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in stem.parameters():
            weight.normal_(std=0.3, generator=generator)
    theirs: list[nn.Module] = []
    channels = 3
    for index, config in enumerate(configs):
        ours = stem.get_submodule(f"convolutions.{index}")
        conv = nn.Conv2d(channels, config.channels, config.kernel_side, config.stride, config.kernel_side // 2)
        taps = ours.get_parameter("product.weight").view(config.channels, config.kernel_side, config.kernel_side, channels)
        conv.weight.data, conv.bias = taps.detach().permute(0, 3, 1, 2), ours.get_parameter("product.bias")
        norm = nn.LayerNorm(config.channels, EPS)
        norm.load_state_dict({name: ours.get_parameter(f"norm.{name}").detach() for name in ("weight", "bias")})
        theirs += [conv, nn.GELU(), nn.Flatten(2), _Rows(), norm, _Image()]
        channels = config.channels
    x_BYXC = torch.randn(2, 12, 12, 3, generator=generator)
    expected_BCYX = nn.Sequential(*theirs)(x_BYXC.permute(0, 3, 1, 2))
    found = stem(x_BYXC)
    assert found.shape == (2, 6, 6, 4)
    torch.testing.assert_close(found, expected_BCYX.permute(0, 2, 3, 1), atol=1e-5, rtol=0)


class _Rows(nn.Module):
    def forward(self, x_BCP: torch.Tensor) -> torch.Tensor:
        return x_BCP.transpose(1, 2)


class _Image(nn.Module):
    def forward(self, x_BPC: torch.Tensor) -> torch.Tensor:
        side = round(x_BPC.shape[1] ** 0.5)
        return x_BPC.transpose(1, 2).unflatten(2, (side, side))


def test_patches_divide_into_strides() -> None:
    reader = encoder_of("reader.nano")
    assert reader.stem_stride == 8
    joined = replace(encoder_of("rw_vitdet.nano"), stem=reader.stem)
    assert joined.patch_inputs == 4 * 128
    with pytest.raises(ConfigError, match="does not divide into the stem's strides of 8"):
        replace(joined, patch_side=12, image_side=84)
    with pytest.raises(ConfigError, match="must be odd"):
        ConvolutionConfig(channels=3, kernel_side=4)


def test_an_encoder_without_layers_is_its_convolutions() -> None:
    config = convolutions(32, stem_of(8, 12))
    encoder, pixels = config.build(seed=2), torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8)
    with torch.no_grad():
        states = encoder(pixels)
        expected = encoder.stem((pixels / 255 - 0.5) / 0.5)
    assert torch.allclose(states.patches_BYXD, expected, atol=1e-6)
    assert states.registers_BRD.shape == (2, 0, 12)
    assert sum(weight.numel() for weight in encoder.parameters()) == config.num_parameters()
    assert config.flops(64) == config.stem_flops(64)
    with pytest.raises(ConfigError, match="use an encoder with layers for masked patches"):
        encoder(pixels, torch.zeros(2, 1, 1, dtype=torch.long))
    with pytest.raises(ConfigError, match="an image side of 36 pixels must be a multiple of 8"):
        encoder(torch.zeros(1, 36, 36, 3, dtype=torch.uint8))


@pytest.mark.parametrize(
    "change", [{"patch_side": 16}, {"dim": 16}, {"window_side": 2}, {"num_registers": 1}, {"final_norm": True}]
)
def test_an_encoder_without_layers_has_nothing_but_convolutions(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"has patches of its stem's stride \(8\) and dim \(12\)"):
        replace(convolutions(32, stem_of(8, 12)), **change)
    with pytest.raises(ConfigError, match="needs a stem or at least one layer"):
        replace(convolutions(32, stem_of(8, 12)), stem=())
