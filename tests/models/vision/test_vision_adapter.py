"""The adapter: pooled convolution against torch's, token counts of the report."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from openafm.models.layers import count_parameters
from openafm.models.vision.adapter import PooledConvolution, VisionAdapter
from openafm.models.vision.encoder import VisionStates
from openafm.models.vision.sizes import adapter_for, encoder_of


@pytest.mark.parametrize(("grid", "tokens_side"), [((42, 42), 12), ((32, 32), 12), ((14, 14), 3), ((5, 8), 3), ((3, 3), 3)])
def test_pooled_convolution_is_a_convolution_then_pooling(grid: tuple[int, int], tokens_side: int) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = PooledConvolution(6)
    ours.taps.initialize(generator)
    ours.taps.bias.data = torch.randn(6, generator=generator)  # type: ignore[union-attr]
    x_BYXD = torch.randn(2, *grid, 6, generator=generator)
    weight_DDKK = ours.taps.weight.view(6, 3, 3, 6).permute(0, 3, 1, 2)
    convolved = F.conv2d(x_BYXD.permute(0, 3, 1, 2), weight_DDKK, ours.taps.bias, padding=1)
    expected_BTTD = F.adaptive_avg_pool2d(convolved, tokens_side).permute(0, 2, 3, 1)
    torch.testing.assert_close(ours(x_BYXD, tokens_side), expected_BTTD, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("encoder", "side", "tokens_side", "tokens"),
    [("rw_vitdet.large", 672, None, 144), ("vit.giant", 448, None, 144), ("rw_vitdet.large", 224, 3, 9)],
)
def test_token_counts_of_the_report(encoder: str, side: int, tokens_side: int | None, tokens: int) -> None:
    vision = encoder_of(encoder)
    with torch.device("meta"):
        adapter = adapter_for(vision).build(vision.dim, 2048)
        grid = vision.grid_side(side)
        states = VisionStates(
            registers_BRD=torch.empty(2, 1, vision.dim), patches_BYXD=torch.empty(2, grid, grid, vision.dim)
        )
        assert adapter(states, tokens_side).shape == (2, tokens, 2048)


def test_an_image_reaches_the_decoder_at_the_scale_of_tokens() -> None:
    vision = encoder_of("rw_vitdet.nano")
    encoder, adapter = vision.build(seed=1), adapter_for(vision).build(vision.dim, 64, seed=2)
    pixels = torch.rand(1, 224, 224, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        tokens = adapter(encoder(pixels))
    assert 0.002 < tokens.std() < 0.2


def test_parameters_by_arithmetic() -> None:
    config = adapter_for(encoder_of("rw_vitdet.nano"))
    assert config.num_parameters(128, 96) == count_parameters(lambda: VisionAdapter(config, 128, 96))
