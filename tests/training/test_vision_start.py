"""A vision encoder of an earlier stage as the start: weights copied, positions interpolated, errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_contrastive import clip_config

from openafm.bundle import Bundle, write_bundle
from openafm.models.vision.config import AdapterConfig
from openafm.models.vision.encoder import interpolated
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.pixel_shuffle_config import PixelShuffleAdapterConfig
from openafm.models.vision.sizes import encoder_of
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.training.vision_start import VisionStartError, start_vision

TOKENIZER = Tokenizer([])
CLIP = replace(clip_config(), vocab_size=TOKENIZER.vocab_size)


def multimodal(image_side: int = 8) -> MultimodalConfig:
    text = clip_config()
    vision = replace(CLIP.vision, image_side=image_side)
    adapter = AdapterConfig(layer=vision.layers[0], tokens_side=2)
    return MultimodalConfig(
        vocab_size=text.vocab_size, dim=24, layers=text.layers, context_length=32, vision=vision, adapter=adapter
    )


@pytest.fixture
def clip(tmp_path: Path) -> Bundle:
    model = CLIP.build(seed=3)
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return write_bundle(tmp_path / "clip", config=CLIP, tokenizer=TOKENIZER, template=ChatTemplate(), tensors=tensors)


def test_convolutions_alone_have_no_positions(tmp_path: Path) -> None:
    config = MultimodalConfig.of(CLIP, encoder_of("reader.micro"), PixelShuffleAdapterConfig(factor=3))
    model = config.build(seed=3)
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    bundle = write_bundle(tmp_path / "reader", config=config, tokenizer=TOKENIZER, template=ChatTemplate(), tensors=tensors)
    other = config.build(seed=4)
    start_vision(other, str(bundle.path), bundle.identity)
    for name, weight in other.vision.named_parameters():
        assert torch.equal(weight, model.vision.get_parameter(name))


@pytest.mark.parametrize("image_side", [8, 12], ids=["same", "raised"])
def test_the_encoder_is_copied_and_its_positions_are_interpolated(clip: Bundle, image_side: int) -> None:
    model = multimodal(image_side).build(seed=5)
    adapter = {name: weight.clone() for name, weight in model.adapter.named_parameters()}
    start_vision(model, str(clip.path), clip.identity)
    source = CLIP.build(seed=3).vision
    for name, weight in source.named_parameters():
        expected = interpolated(weight.detach(), image_side // 2) if name == "position_GGD" else weight
        torch.testing.assert_close(model.vision.get_parameter(name), expected, atol=1e-6, rtol=0)
    for name, weight in model.adapter.named_parameters():
        assert torch.equal(weight, adapter[name])


def test_models_and_bundles_that_do_not_fit(clip: Bundle) -> None:
    with pytest.raises(VisionStartError, match="without a vision encoder"):
        start_vision(multimodal().decoder.build(), str(clip.path))
    with pytest.raises(VisionStartError, match="restore that bundle"):
        start_vision(multimodal().build(), str(clip.path), identity="another")
    other = multimodal()
    wide = replace(other, vision=replace(other.vision, patch_side=4))
    with pytest.raises(VisionStartError, match="another shape"):
        start_vision(wide.build(), str(clip.path))
