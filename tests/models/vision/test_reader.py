"""The letters in the image tokens of a reader: against a loop, their tokens in the tokenizer, and configs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_tokenizer import TOKENIZER

from openafm.core.config import ConfigError
from openafm.models.attention.spans import SpanError
from openafm.models.config import DecoderConfig
from openafm.models.vision.config import ConvolutionConfig
from openafm.models.vision.letters import CELL, NO_LETTER, NUM_CLASSES, OTHER, class_of
from openafm.models.vision.multimodal import with_eyes
from openafm.models.vision.multimodal_config import ReaderConfig
from openafm.models.vision.pixel_shuffle_config import PixelShuffleAdapterConfig
from openafm.models.vision.reader import Reader
from openafm.models.vision.sizes import adapter_for, windowed_encoder
from openafm.recipes.catalog import build_run

STEM = (ConvolutionConfig(channels=8, stride=4), ConvolutionConfig(channels=12, stride=2))
VISION = windowed_encoder(
    image_side=64, patch_side=16, window_side=2, dim=16, num_layers=2, num_heads=2, mlp_dim=24, num_global_layers=1
)


def reader(stem: tuple[ConvolutionConfig, ...], factor: int) -> Reader:
    compact = build_run("vision.transcribe", "micro").trainer.model
    decoder = DecoderConfig(vocab_size=330, dim=compact.dim, layers=compact.layers, context_length=64)
    config = ReaderConfig.of(decoder, replace(VISION, stem=stem), PixelShuffleAdapterConfig(factor=factor))
    model = config.build(seed=4)
    with torch.no_grad():
        model.embedding.normal_(generator=torch.Generator().manual_seed(1))
        model.letters.weight.mul_(8)
        model.letter_scale_ND.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(2))
    return model


@torch.no_grad()
@pytest.mark.parametrize("stem", [STEM, ()])
@pytest.mark.parametrize("factor", [1, 2])
def test_image_tokens_have_the_embeddings_of_their_letters(stem: tuple[ConvolutionConfig, ...], factor: int) -> None:
    model, side = reader(stem, factor), 4 // factor
    pixels = torch.tensor(np.random.default_rng(3).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8))
    found = model.encode_images(pixels, side**2).unflatten(0, (2, side, side))
    expected = model.adapter(model.vision(pixels), side).unflatten(1, (side, side)).clone()
    num_rows, num_columns = 64 // CELL[0], 64 // CELL[1]
    height, width = model.config.cells
    seen: dict[tuple[int, int, int], int] = {}
    # Cells of a token in the order of their scales: state by state, and the cells of a state.
    order = sorted(
        ((row, column) for row in range(num_rows) for column in range(num_columns)),
        key=lambda place: (place[0] // height, place[1] // width, place[0] % height, place[1] % width),
    )
    for image in range(2):
        for row, column in order:
            at = torch.tensor([image]), torch.tensor([row]), torch.tensor([column])
            probabilities = model.letter_logits(pixels, *at)[0].softmax(-1)
            token = (image, row * CELL[0] * side // 64, column * CELL[1] * side // 64)
            number = seen[token] = seen.get(token, -1) + 1
            for letter in map(chr, range(33, 127)):
                (spelled,) = TOKENIZER.encode(letter)
                weight = probabilities[class_of(letter)] * model.letter_scale_ND[number]
                expected[token] += weight * model.embedding[spelled]
    assert set(seen.values()) == {model.config.cells_of_token - 1}
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_cells_without_a_letter_add_nothing() -> None:
    model = reader(STEM, 1)
    assert model.letters.bias is not None
    pixels = torch.zeros(1, 64, 64, 3, dtype=torch.uint8)
    with torch.no_grad():
        for empty in (NO_LETTER, OTHER):
            model.letters.weight.zero_()
            model.letters.bias.copy_(
                200 * torch.eye(NUM_CLASSES)[empty].repeat(model.config.cells[0] * model.config.cells[1])
            )
            without = model.adapter(model.vision(pixels), 4)
            assert torch.equal(model.encode_images(pixels, 16), without.flatten(0, 1))


def test_a_reader_is_made_of_a_text_decoder() -> None:
    config = reader(STEM, 1).config
    decoder = config.decoder.build(seed=2)
    model = with_eyes(decoder, config, seed=3)
    assert isinstance(model, Reader)
    assert torch.equal(model.embedding, decoder.embedding)
    assert torch.equal(model.letter_scale_ND, torch.ones(config.cells_of_token, config.dim))


def test_a_batch_without_images_gives_zero_gradients() -> None:
    model = reader(STEM, 1)
    model.embed(torch.tensor([[3, 4]])).sum().backward()
    names = {name for name, weight in model.named_parameters() if name.startswith(("vision", "adapter", "letter"))}
    weights = dict(model.named_parameters())
    assert {"letters.weight", "letters.bias", "letter_scale_ND"} < names
    for name in names:
        gradient = weights[name].grad
        assert gradient is not None, name
        assert not gradient.any(), name


def test_a_wrong_number_of_tokens_is_refused() -> None:
    with pytest.raises(SpanError, match="tokens"):
        reader(STEM, 1).encode_images(torch.zeros(1, 64, 64, 3, dtype=torch.uint8), 9)


def test_texts_train_the_layer_of_letters_and_the_scales() -> None:
    model = reader(STEM, 1)
    model.encode_images(torch.full((1, 64, 64, 3), 90, dtype=torch.uint8), 16).square().sum().backward()
    for weight in (model.letters.weight, model.letter_scale_ND, model.embedding):
        assert weight.grad is not None
        assert weight.grad.abs().sum() > 0


def test_a_reader_needs_tokens_of_whole_patches_and_a_vocabulary_of_bytes() -> None:
    config = reader(STEM, 1).config
    with pytest.raises(ConfigError, match="use a PixelShuffleAdapterConfig, got AdapterConfig"):
        replace(config, adapter=adapter_for(config.vision, 2))
    with pytest.raises(ConfigError, match="vocab_size must be 158 or more to spell letters, got 157"):
        replace(config, vocab_size=157)
