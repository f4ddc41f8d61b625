"""Windows, registers, masking and resolution of the encoder, against slow references."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from openafm.core.config import ConfigError
from openafm.models.layers import count_parameters
from openafm.models.vision.config import (
    GlobalScopeConfig,
    RegisterWindowScopeConfig,
    ScopeConfig,
    VisionConfig,
    VisionLayerConfig,
    WindowScopeConfig,
)
from openafm.models.vision.encoder import VisionEncoder
from openafm.models.vision.sizes import ENCODERS, encoder_of

SHAPE = VisionConfig(
    image_side=24,
    patch_side=3,
    dim=16,
    window_side=4,
    num_registers=2,
    layers=(VisionLayerConfig(num_heads=2, mlp_dim=24, scope=RegisterWindowScopeConfig()),),
)


def images(side: int = 24) -> Tensor:
    return torch.rand(2, side, side, 3, generator=torch.Generator().manual_seed(0))


def reference_attention(scope: ScopeConfig, q_BTHC: Tensor, k_BTHC: Tensor, v_BTHC: Tensor) -> Tensor:
    """Compute each query of each window by itself: 2 registers, then 4 windows of 16 patches."""
    o_BTHC = torch.zeros_like(q_BTHC)
    for window in range(4):
        patches = list(range(2 + 16 * window, 18 + 16 * window))
        sees = [0, 1, *patches] if isinstance(scope, RegisterWindowScopeConfig) else patches
        for token in sees:
            scores_BHS = torch.einsum("bhc,bshc->bhs", q_BTHC[:, token], k_BTHC[:, sees]) / q_BTHC.shape[-1] ** 0.5
            output_BHC = torch.einsum("bhs,bshc->bhc", scores_BHS.softmax(-1), v_BTHC[:, sees])
            o_BTHC[:, token] += output_BHC / (4 if token < 2 else 1)
    return o_BTHC


@pytest.mark.parametrize("scope", [RegisterWindowScopeConfig(), WindowScopeConfig()], ids=["register_window", "window"])
def test_windows_equal_a_loop_over_queries(scope: ScopeConfig) -> None:
    q, k, v = torch.randn(3, 2, 66, 2, 8, generator=torch.Generator().manual_seed(0))
    expected = reference_attention(scope, q, k, v)
    torch.testing.assert_close(scope.build().attend(q, k, v, 2, 4), expected, atol=1e-6, rtol=0)


def test_one_window_with_registers_is_global_attention() -> None:
    one_window = replace(SHAPE, window_side=8)
    ours = one_window.build(seed=3)
    whole = replace(one_window, layers=(replace(SHAPE.layers[0], scope=GlobalScopeConfig()),)).build(seed=3)
    torch.testing.assert_close(ours(images()).patches_BYXD, whole(images()).patches_BYXD, atol=1e-6, rtol=0)


@pytest.mark.parametrize("scope", [WindowScopeConfig(), RegisterWindowScopeConfig()])
def test_a_patch_changes_its_window_only(scope: ScopeConfig) -> None:
    encoder = replace(SHAPE, layers=(replace(SHAPE.layers[0], scope=scope),)).build()
    changed = images()
    changed[:, 13, 5] = 0  # row 4, column 1 of the 8 x 8 patches: the window below the first
    difference_YX = (encoder(changed).patches_BYXD - encoder(images()).patches_BYXD).abs().amax((0, 3))
    assert (difference_YX[4:, :4] > 1e-7).all()
    difference_YX[4:, :4] = 0
    assert difference_YX.max() == 0


def test_registers_carry_information_between_windows() -> None:
    two_layers = replace(SHAPE, layers=SHAPE.layers * 2).build()
    changed = images()
    changed[:, 13, 5] = 0
    difference_YX = (two_layers(changed).patches_BYXD - two_layers(images()).patches_BYXD).abs().amax((0, 3))
    assert (difference_YX > 0).all()


def test_masking_keeps_patches_as_if_they_were_alone() -> None:
    layer = replace(SHAPE.layers[0], scope=WindowScopeConfig())
    encoder: VisionEncoder = replace(SHAPE, layers=(layer,)).build()
    kept_BNK = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(s))[:5] for s in range(8)]).view(
        2, 4, 5
    )
    masked = encoder(images(), kept_BNK).patches_BYXD
    assert masked.shape == (2, 1, 20, 16)
    everything_BNK = torch.arange(16).expand(2, 4, -1)
    whole = encoder(images(), everything_BNK).patches_BYXD.view(2, 2, 2, 4, 4, 16).transpose(2, 3).reshape(2, 8, 8, 16)
    torch.testing.assert_close(whole, encoder(images()).patches_BYXD, atol=1e-6, rtol=0)
    # the first kept patch attends to the kept ones of its window only
    black = images()
    left_out = min(set(range(16)) - set(kept_BNK[0, 0].tolist()))
    row, column = divmod(left_out, 4)
    black[0, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3] = 0
    torch.testing.assert_close(encoder(black, kept_BNK).patches_BYXD, masked, atol=0, rtol=0)


def test_bytes_and_floats_of_pixels_are_equal() -> None:
    encoder = SHAPE.build()
    pixels = (images() * 255).round().to(torch.uint8)
    torch.testing.assert_close(encoder(pixels).patches_BYXD, encoder(pixels.float() / 255).patches_BYXD)


def test_positions_of_another_resolution() -> None:
    encoder = SHAPE.build()
    doubled = torch.nn.functional.interpolate(
        encoder.position_GGD.permute(2, 0, 1)[None].detach(), scale_factor=2, mode="bicubic"
    )[0].permute(1, 2, 0)
    before = encoder(images(48)).patches_BYXD
    encoder.resize_positions(48)
    torch.testing.assert_close(encoder.position_GGD.detach(), doubled, atol=1e-6, rtol=0)
    torch.testing.assert_close(encoder(images(48)).patches_BYXD, before)


@pytest.mark.parametrize("side", [23, 12 + 3, 0])
def test_images_must_divide_into_windows(side: int) -> None:
    with pytest.raises(ConfigError, match="multiple of 12"):
        SHAPE.grid_side(side)


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_parameters_by_arithmetic(name: str) -> None:
    config = encoder_of(name)
    assert config.num_parameters() == count_parameters(config.build)


def test_sizes_of_the_report() -> None:
    large, giant = encoder_of("rw_vitdet.large"), encoder_of("vit.giant")
    assert large.num_parameters() == 304_906_240
    assert giant.num_parameters() == 1_012_282_368
    assert large.windows(672) == (9, 196)
    assert large.windows(224) == (1, 196)
    assert sum(isinstance(layer.scope, GlobalScopeConfig) for layer in large.layers) == 3
