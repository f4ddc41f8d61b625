"""The model of letters: logits of cells against convolutions by hand, weights, operations and configs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from openafm.core.config import ConfigError
from openafm.models.accounting import num_parameters
from openafm.models.vision.config import VisionLayerConfig
from openafm.models.vision.letters import CELL, NO_LETTER, NUM_CLASSES
from openafm.models.vision.letters_model import LettersModel
from openafm.models.vision.multimodal_config import LettersModelConfig
from openafm.models.vision.sizes import convolutions, stem_of

CONFIG = LettersModelConfig(vocab_size=320, vision=convolutions(64, stem_of(8, 12)))


def images(side: int) -> Tensor:
    return torch.tensor(np.random.default_rng(side).integers(0, 256, (2, side, side, 3), dtype=np.uint8))


@torch.no_grad()
@pytest.mark.parametrize("side", [64, 96])
def test_logits_of_a_cell_are_those_of_its_place(side: int) -> None:
    model, pixels = CONFIG.build(seed=3), images(side)
    weights = {name: weight.uniform_(-0.5, 0.5) for name, weight in model.named_parameters()}
    x_BCYX = (pixels.float() / 255 - 0.5).permute(0, 3, 1, 2) / 0.5
    for index, (kernel_side, stride) in enumerate([(7, 4), (3, 2)]):
        name = f"vision.stem.convolutions.{index}"
        weight_OKKC = weights[f"{name}.product.weight"].unflatten(1, (kernel_side, kernel_side, -1))
        kernel_OCKK, bias = weight_OKKC.permute(0, 3, 1, 2), weights[f"{name}.product.bias"]
        x_BCYX = F.gelu(F.conv2d(x_BCYX, kernel_OCKK, bias, stride, kernel_side // 2))
        norm = weights[f"{name}.norm.weight"], weights[f"{name}.norm.bias"]
        x_BCYX = F.layer_norm(x_BCYX.permute(0, 2, 3, 1), x_BCYX.shape[1:2], *norm, eps=1e-6).permute(0, 3, 1, 2)
    logits_BRCK = model.letter_logits(pixels)
    assert logits_BRCK.shape == (2, side // CELL[0], side // CELL[1], NUM_CLASSES)
    for row, column in ((0, 0), (2, 5), (7, 14)):
        of_half = slice(NUM_CLASSES * (column % 2), NUM_CLASSES * (column % 2 + 1))  # a patch has two cells
        state_BD = x_BCYX[:, :, row, column // 2]
        expected_BK = state_BD @ weights["letters.weight"][of_half].T + weights["letters.bias"][of_half]
        torch.testing.assert_close(logits_BRCK[:, row, column], expected_BK, atol=1e-5, rtol=1e-5)


def test_weights_are_those_of_the_encoder_and_the_layer() -> None:
    model = CONFIG.build()
    assert isinstance(model, LettersModel)
    names = {name.partition(".convolutions.")[0] for name in model.state_dict()}
    assert names == {"vision.stem", "letters.weight", "letters.bias"}
    assert num_parameters(CONFIG) == sum(weight.numel() for weight in model.parameters())
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), CONFIG.build().parameters(), strict=True))
    assert not torch.equal(model.letters.weight, CONFIG.build(seed=1).letters.weight)
    with torch.device("meta"):
        assert CONFIG.build().device.type == "meta"


def test_a_fresh_model_finds_no_letters() -> None:
    logits_BRCK = CONFIG.build().letter_logits(images(64))
    assert (logits_BRCK.argmax(-1) == NO_LETTER).float().mean() > 0.95
    # Of 97 classes, one has a logit that is higher by 5.
    assert 0.3 < logits_BRCK.softmax(-1)[..., NO_LETTER].mean() < 0.7


def test_it_computes_in_its_dtype() -> None:
    model = CONFIG.build()
    exact = model.letter_logits(images(64))
    model.compute_dtype = torch.bfloat16
    rounded = model.letter_logits(images(64))
    assert rounded.dtype == torch.bfloat16
    assert 0 < (rounded - exact).abs().max() < 0.1


def test_operations_of_a_view() -> None:
    for side in (64, 96):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            CONFIG.build().letter_logits(images(side)[:1])
        assert CONFIG.view_flops(side) == pytest.approx(counter.get_total_flops(), rel=1e-6)


def test_configs_are_checked() -> None:
    layered = convolutions(64, stem_of(8, 12))
    layered = replace(layered, layers=(VisionLayerConfig(num_heads=2, mlp_dim=8),), num_registers=1)
    with pytest.raises(ConfigError, match="convolutions alone"):
        replace(CONFIG, vision=layered)
    with pytest.raises(ConfigError, match="patch_side must be 8 pixels as cells, got 4"):
        replace(CONFIG, vision=replace(CONFIG.vision, patch_side=4, stem=stem_of(12, 8)[:1]))
    with pytest.raises(ConfigError, match="has no decoder; leave dim, layers and tracks out"):
        replace(CONFIG, dim=8)
    with pytest.raises(ConfigError, match="must be positive"):
        replace(CONFIG, vocab_size=0)
