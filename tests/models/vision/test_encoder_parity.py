"""The encoder compared with transformers: ViT, VitDet in windows, DINOv2 with registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.models.vision.config import VisionConfig, VisionLayerConfig, WindowScopeConfig
from openafm.models.vision.encoder import VisionEncoder

transformers = pytest.importorskip("transformers")
SIDE, PATCH, DIM, HEADS, MLP = 32, 4, 24, 3, 48
GRID = SIDE // PATCH
LAYER = VisionLayerConfig(num_heads=HEADS, mlp_dim=MLP)
SIZES = {"hidden_size": DIM, "num_attention_heads": HEADS, "image_size": SIDE, "patch_size": PATCH}
TOLERANCE = 1e-5


def randomized(module: torch.nn.Module) -> Mapping[str, Tensor]:
    """Fill a module with random weights, norms and scales included, and return them."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * (0.3 if weight.ndim > 1 else 0.1))
            if ("norm" in name and name.endswith("weight")) or "lambda" in name:
                weight.add_(1)
    module.eval()
    return dict(module.named_parameters())


def images() -> Tensor:
    return torch.rand(2, SIDE, SIDE, 3, generator=torch.Generator().manual_seed(2))


def theirs_of(pixels_BYXC: Tensor) -> Tensor:
    """Return the pixels normalized and with channels first, as transformers expects them."""
    return ((pixels_BYXC - 0.5) / 0.5).permute(0, 3, 1, 2)


Parts = Mapping[str, str | tuple[str, ...]]
"""Where each part of our layer is in theirs; several are concatenated."""


def set_layers(ours: VisionEncoder, theirs: Mapping[str, Tensor], prefix: str, parts: Parts) -> None:
    """Copy the weights of all layers; every weight of ours must be named."""
    for index, layer in enumerate(ours.layers):
        weights = {
            f"{our}{kind}": torch.cat([theirs[f"{prefix}{index}.{their}{kind}"] for their in names])
            for our, names in ((our, (name,) if isinstance(name, str) else name) for our, name in parts.items())
            for kind in ((".weight", ".bias") if not our.endswith("scale") else ("",))
        }
        assert {name for name, _ in layer.named_parameters()} == set(weights)
        for name, value in weights.items():
            layer.get_parameter(name).data = value


def set_embeddings(ours: VisionEncoder, projection: torch.nn.Module, position_PD: Tensor, registers_RD: Tensor) -> None:
    ours.patch.weight.data = projection.weight.permute(0, 2, 3, 1).flatten(1)
    ours.patch.bias.data = projection.bias  # type: ignore[union-attr]
    ours.position_GGD.data = position_PD.view(GRID, GRID, DIM)
    ours.registers_RD.data = registers_RD


def set_norm(ours: VisionEncoder, norm: torch.nn.Module) -> None:
    ours.norm.weight.data, ours.norm.bias.data = norm.weight, norm.bias


@torch.no_grad()
def test_vit() -> None:
    config = transformers.ViTConfig(**SIZES, num_hidden_layers=2, intermediate_size=MLP, layer_norm_eps=1e-6)
    model = transformers.ViTModel(config, add_pooling_layer=False)
    theirs = randomized(model)
    ours = VisionConfig(image_side=SIDE, patch_side=PATCH, dim=DIM, layers=(LAYER,) * 2).build()
    position_PD = theirs["embeddings.position_embeddings"][0]
    class_token = theirs["embeddings.cls_token"][0] + position_PD[:1]
    set_embeddings(ours, model.embeddings.patch_embeddings.projection, position_PD[1:], class_token)
    set_norm(ours, model.layernorm)
    attention = ("attention.q_proj", "attention.k_proj", "attention.v_proj")
    parts: Parts = {
        "attention_norm": "layernorm_before",
        "query_key_value": attention,
        "output": "attention.o_proj",
        "mlp_norm": "layernorm_after",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    }
    set_layers(ours, theirs, "layers.", parts)
    states = ours(images())
    expected = model(theirs_of(images())).last_hidden_state
    torch.testing.assert_close(states.registers_BRD, expected[:, :1], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(states.patches_BYXD.flatten(1, 2), expected[:, 1:], atol=TOLERANCE, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("side", [SIDE, 2 * SIDE])
def test_vitdet(side: int) -> None:
    config = transformers.VitDetConfig(
        **SIZES, num_hidden_layers=3, mlp_ratio=2, window_size=4, window_block_indices=[0, 2], pretrain_image_size=SIDE
    )
    model = transformers.VitDetModel(config)
    theirs = randomized(model)
    window = replace(LAYER, scope=WindowScopeConfig())
    shape = VisionConfig(
        image_side=SIDE, patch_side=PATCH, dim=DIM, layers=(window, LAYER, window), window_side=4, num_registers=0
    )
    ours = shape.build()
    position_PD = theirs["embeddings.position_embeddings"][0, 1:]  # the first is a class token's, which VitDet drops
    set_embeddings(ours, model.embeddings.projection, position_PD, torch.empty(0, DIM))
    parts: Parts = {
        "attention_norm": "norm1",
        "query_key_value": "attention.qkv",
        "output": "attention.proj",
        "mlp_norm": "norm2",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    }
    set_layers(ours, theirs, "encoder.layer.", parts)
    pixels = torch.rand(2, side, side, 3, generator=torch.Generator().manual_seed(2))
    expected_BYXD = model(theirs_of(pixels)).last_hidden_state.permute(0, 2, 3, 1)
    # VitDet has no final norm
    expected_BYXD = F.layer_norm(expected_BYXD, (DIM,), ours.norm.weight, ours.norm.bias, ours.norm.eps)
    torch.testing.assert_close(ours(pixels).patches_BYXD, expected_BYXD, atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_dino_with_registers() -> None:
    config = transformers.Dinov2WithRegistersConfig(**SIZES, num_hidden_layers=2, mlp_ratio=2, num_register_tokens=3)
    model = transformers.Dinov2WithRegistersModel(config)
    theirs = randomized(model)
    layer = replace(LAYER, layer_scale=1.0)
    ours = VisionConfig(image_side=SIDE, patch_side=PATCH, dim=DIM, layers=(layer,) * 2, num_registers=4).build()
    position_PD = theirs["embeddings.position_embeddings"][0]
    class_token = theirs["embeddings.cls_token"][0] + position_PD[:1]
    registers = torch.cat((class_token, theirs["embeddings.register_tokens"][0]))
    set_embeddings(ours, model.embeddings.patch_embeddings.projection, position_PD[1:], registers)
    set_norm(ours, model.layernorm)
    parts: Parts = {
        "attention_norm": "norm1",
        "query_key_value": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        "output": "attention.o_proj",
        "attention_scale": "layer_scale1.lambda1",
        "mlp_norm": "norm2",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
        "mlp_scale": "layer_scale2.lambda1",
    }
    set_layers(ours, theirs, "encoder.layer.", parts)
    states = ours(images())
    expected = model(theirs_of(images())).last_hidden_state
    torch.testing.assert_close(states.registers_BRD, expected[:, :4], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(states.patches_BYXD.flatten(1, 2), expected[:, 4:], atol=TOLERANCE, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("factor", [1.5, 0.5], ids=["raised", "lowered"])
def test_positions_of_another_resolution(factor: float) -> None:
    """Compare with ViT's interpolation of position embeddings, whose class token keeps its own."""
    config = transformers.ViTConfig(**SIZES, num_hidden_layers=1, intermediate_size=MLP)
    embeddings = transformers.ViTModel(config, add_pooling_layer=False).embeddings
    randomized(embeddings)
    side = round(SIDE * factor)
    ours = VisionConfig(image_side=SIDE, patch_side=PATCH, dim=DIM, layers=(LAYER,)).build()
    ours.position_GGD.data = embeddings.position_embeddings[0, 1:].view(GRID, GRID, DIM)
    ours.resize_positions(side)
    pixels = torch.zeros(1, 3, side, side)
    grid = side // PATCH
    theirs = embeddings.interpolate_pos_encoding(torch.zeros(1, grid * grid + 1, DIM), *pixels.shape[2:])[0, 1:]
    torch.testing.assert_close(ours.position_GGD.flatten(0, 1), theirs, atol=1e-6, rtol=0)
