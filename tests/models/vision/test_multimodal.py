"""Decoders with images: embeddings at the right tokens, text unchanged, gradients of all parts, sizes of the report."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from tiny_decoders import decoder_config, layer
from torch import Tensor

from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.models.accounting import num_parameters
from openafm.models.attention.spans import EmbeddingSpan, ImageKey, SpanError
from openafm.models.config import DecoderConfig
from openafm.models.layers import count_parameters
from openafm.models.sizes import named_size, on_device_base
from openafm.models.vision.config import RegisterWindowScopeConfig, VisionConfig, VisionLayerConfig
from openafm.models.vision.image_modes import ImageModeConfig
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.sizes import adapter_for, encoder_of

VISION = VisionConfig(
    image_side=16,
    patch_side=2,
    dim=16,
    window_side=4,
    layers=(
        VisionLayerConfig(num_heads=2, mlp_dim=24, scope=RegisterWindowScopeConfig()),
        VisionLayerConfig(num_heads=2, mlp_dim=24),
    ),
)
TEXT = decoder_config(layer(), layer(), layer(source=1))
CONFIG = MultimodalConfig.of(TEXT, VISION, adapter_for(VISION, tokens_side=2))
SPANS = [EmbeddingSpan(0, 2, 6, "a"), EmbeddingSpan(1, 0, 8, "b"), EmbeddingSpan(1, 9, 13, "a")]
TOKENS_BS = torch.arange(32).view(2, 16) % 61


def images() -> dict[ImageKey, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        ImageKey("a", 4): torch.randint(0, 256, (1, 16, 16, 3), generator=generator, dtype=torch.uint8),
        ImageKey("b", 8): torch.randint(0, 256, (2, 16, 16, 3), generator=generator, dtype=torch.uint8),
    }


def test_images_replace_the_embeddings_of_their_tokens() -> None:
    model = CONFIG.build(seed=4)
    x_BSD = model.embed(TOKENS_BS, model.embed_images(SPANS, images()))
    plain_BSD = model.embed(TOKENS_BS)
    view_a = model.encode_images(images()[ImageKey("a", 4)], 4)
    views_b = [model.encode_images(images()[ImageKey("b", 8)][index : index + 1], 4) for index in range(2)]
    close = {"atol": 1e-6, "rtol": 0}
    torch.testing.assert_close(x_BSD[0, 2:6], view_a, **close)
    torch.testing.assert_close(x_BSD[1, 9:13], view_a, **close)
    torch.testing.assert_close(x_BSD[1, 0:8], torch.cat(views_b), **close)
    untouched = torch.ones(2, 16, dtype=torch.bool)
    for span in SPANS:
        untouched[span.row, span.start : span.stop] = False
    torch.testing.assert_close(x_BSD[untouched], plain_BSD[untouched])


def test_text_is_that_of_the_decoder_alone() -> None:
    model = CONFIG.build(seed=4)
    alone = CONFIG.decoder.build(seed=4)
    torch.testing.assert_close(model(TOKENS_BS), alone(TOKENS_BS))
    assert {name for name, _ in model.named_parameters() if not name.startswith(("vision.", "adapter."))} == {
        name for name, _ in alone.named_parameters()
    }


def test_tracks_and_experts_are_those_of_the_server_model() -> None:
    """Text alone has equal bits; with images, the decoder computes what the plain one does from these embeddings."""
    server = named_size("server.micro")
    config = MultimodalConfig.of(server, VISION, adapter_for(VISION, tokens_side=2))
    model, alone = config.build(seed=4), server.build(seed=4)
    assert torch.equal(model(TOKENS_BS), alone(TOKENS_BS))
    inserted = model.embed_images(SPANS, images())
    seen = model(TOKENS_BS, inserted=inserted)
    assert torch.equal(seen, alone(TOKENS_BS, inserted=inserted))
    assert not torch.equal(seen, model(TOKENS_BS))
    seen.logsumexp(-1).sum().backward()
    eyes = [*model.vision.parameters(), *model.adapter.parameters()]
    assert all(weight.grad is not None and weight.grad.any() for weight in eyes)


def test_all_parts_learn_with_images_and_have_zero_gradients_without() -> None:
    model = CONFIG.build()
    model(TOKENS_BS, inserted=model.embed_images(SPANS, images())).logsumexp(-1).sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())
    model.zero_grad()
    model(TOKENS_BS).logsumexp(-1).sum().backward()
    eyes = [*model.vision.parameters(), *model.adapter.parameters()]
    assert all(weight.grad is not None and not weight.grad.any() for weight in eyes)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([EmbeddingSpan(0, 2, 6, "c")], "pixels of image c are missing"),
        ([EmbeddingSpan(0, 2, 5, "d")], "square number"),
        ([EmbeddingSpan(0, 2, 7, "e")], "2 views do not divide"),
    ],
)
def test_spans_that_do_not_fit(spans: list[EmbeddingSpan], message: str) -> None:
    views = images()
    more = {ImageKey("d", 3): views[ImageKey("a", 4)], ImageKey("e", 5): views[ImageKey("b", 8)]}
    with pytest.raises(SpanError, match=message):
        CONFIG.build().embed_images(spans, views | more)


def test_a_decoder_without_eyes_takes_no_images() -> None:
    with pytest.raises(SpanError, match="no vision encoder"):
        TEXT.build().embed_images(SPANS, images())


@dataclass(frozen=True, kw_only=True)
class AnyModel(Config):
    model: DecoderConfig


def test_config_keeps_its_decoder_and_round_trips() -> None:
    assert CONFIG.decoder == TEXT
    assert from_dict(MultimodalConfig, to_dict(CONFIG)) == CONFIG
    assert from_dict(AnyModel, to_dict(AnyModel(model=CONFIG))).model == CONFIG


def test_modes_state_what_the_model_is_trained_for() -> None:
    rapid, high = ImageModeConfig(name="rapid", side=8, tokens=1), ImageModeConfig(name="high", side=16, tokens=4, grid=2)
    config = replace(CONFIG, modes=(high, rapid))
    assert config.image_modes == (high, rapid)
    assert [mode.num_tokens for mode in config.modes] == [20, 1]
    assert CONFIG.image_modes == (ImageModeConfig(name="balanced", side=16, tokens=4),)
    for modes, message in [
        ((high, high), "distinct names"),
        ((high, replace(rapid, tokens=20)), "distinct names and tokens"),
        ((replace(rapid, side=12),), "must be a multiple of 8"),
        ((replace(rapid, tokens=3),), "square"),
    ]:
        with pytest.raises(ConfigError, match=message):
            replace(CONFIG, modes=modes)


def test_parameters_of_the_reports_models() -> None:
    vision = encoder_of("rw_vitdet.large")
    config = MultimodalConfig.of(on_device_base(), vision, adapter_for(vision))
    adapter = config.adapter.num_parameters(vision.dim, 2048)
    assert (
        num_parameters(config)
        == 3_111_368_064 + 304_906_240 + adapter
        == count_parameters(lambda: MultimodalDecoder(config))
    )


def test_seeds_of_the_parts_differ() -> None:
    wide = replace(CONFIG, adapter=adapter_for(VISION))
    model = wide.build(seed=1)
    first, second = model.vision.layers[0], model.adapter.layer
    assert not torch.equal(first.get_parameter("up.weight"), second.get_parameter("up.weight"))
