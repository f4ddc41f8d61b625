"""Image tokens made of letters: against a loop over cells, gradients, and configs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_tokenizer import TOKENIZER

from openafm.core.config import ConfigError
from openafm.models.attention.spans import SpanError
from openafm.models.config import DecoderConfig
from openafm.models.vision.letters import CELL, NO_LETTER, NUM_CLASSES, OTHER, class_of
from openafm.models.vision.letters_adapter import LettersAdapter
from openafm.models.vision.letters_adapter_config import LettersAdapterConfig
from openafm.models.vision.multimodal import MultimodalDecoder, with_eyes
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.sizes import convolutions, stem_of, windowed_encoder
from openafm.recipes.catalog import build_run

CONVOLUTIONS = convolutions(64, stem_of(8, 12))
LAYERS = windowed_encoder(
    image_side=64, patch_side=16, window_side=2, dim=16, num_layers=2, num_heads=2, mlp_dim=24, num_global_layers=1
)


def reader(has_layers: bool = False, factor: int = 2, num_before: int = 2) -> tuple[MultimodalDecoder, LettersAdapter]:
    compact, vision = build_run("vision.transcribe", "micro").trainer.model, LAYERS if has_layers else CONVOLUTIONS
    decoder = DecoderConfig(vocab_size=330, dim=compact.dim, layers=compact.layers, context_length=64)
    adapter = LettersAdapterConfig(patch_side=vision.patch_side, factor=factor, num_before=num_before)
    model = MultimodalConfig.of(decoder, vision, adapter).build(seed=4)
    assert isinstance(model.adapter, LettersAdapter)
    with torch.no_grad():
        model.embedding.normal_(generator=torch.Generator().manual_seed(1))
        model.adapter.letters.weight.mul_(8)
        for seed, scale in enumerate((model.adapter.scale_ND, model.adapter.scale_before_PND)):
            scale.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(seed))
    return model, model.adapter


@torch.no_grad()
@pytest.mark.parametrize(("has_layers", "factor", "num_before"), [(False, 1, 2), (False, 2, 3), (True, 1, 1), (True, 2, 2)])
def test_image_tokens_are_the_embeddings_of_their_letters_and_of_those_before(
    has_layers: bool, factor: int, num_before: int
) -> None:
    model, adapter = reader(has_layers, factor, num_before)
    side = 64 // adapter.config.patch_side // factor
    pixels = torch.tensor(np.random.default_rng(3).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8))
    assert adapter.letters.bias is not None
    gap = adapter.letters(model.vision(pixels).patches_BYXD).unflatten(-1, (-1, NUM_CLASSES)).logsumexp(-1)
    adapter.letters.bias.unflatten(0, (-1, NUM_CLASSES))[:, NO_LETTER] += gap.quantile(0.99)  # many cells have no letter
    found = model.encode_images(pixels, side**2).unflatten(0, (2, side, side))
    states, expected, empty = model.vision(pixels), torch.zeros_like(found), {}
    letters = torch.zeros(num_before, *found.shape)
    num_rows, num_columns = 64 // CELL[0], 64 // CELL[1]
    height, width = adapter.config.cells
    seen: dict[tuple[int, int, int], int] = {}
    # Cells of a token in the order of their scales: patch by patch, and the cells of a patch.
    order = sorted(
        ((row, column) for row in range(num_rows) for column in range(num_columns)),
        key=lambda place: (place[0] // height, place[1] // width, place[0] % height, place[1] % width),
    )
    spelled = {letter: TOKENIZER.encode(letter)[0] for letter in map(chr, range(33, 127))}
    for image in range(2):
        for row, column in order:
            at = torch.tensor([image]), torch.tensor([row]), torch.tensor([column])
            probabilities = adapter.letter_logits(states, *at)[0].softmax(-1)
            token = (image, row * CELL[0] * side // 64, column * CELL[1] * side // 64)
            number = seen[token] = seen.get(token, -1) + 1
            mean = sum(probabilities[class_of(letter)] * model.embedding[each] for letter, each in spelled.items())
            expected[token] += adapter.scale_ND[number] * mean
            letters[:, *token] += adapter.scale_before_PND[:, number] * mean
            empty[token] = empty.get(token, 1.0) * probabilities[NO_LETTER]
    assert max(empty.values()) > 0.03
    for image, row, column in itertools.product(range(2), range(side), range(side)):
        shares = torch.eye(num_before)[0]  # the probabilities that 0, 1, ... tokens between here and there have letters
        for before in reversed(range(column)):
            expected[image, row, column] += shares @ letters[:, image, row, before]
            is_empty = empty[image, row, before]
            shares = shares * is_empty + torch.cat([torch.zeros(1), shares[:-1]]) * (1 - is_empty)
    assert set(seen.values()) == set(range(adapter.config.cells_of_token)[-1:])
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@torch.no_grad()
def test_cells_without_a_letter_add_nothing() -> None:
    model, adapter = reader()
    assert adapter.letters.bias is not None
    for empty in (NO_LETTER, OTHER):
        adapter.letters.weight.zero_()
        adapter.letters.bias.copy_(200 * torch.eye(NUM_CLASSES)[empty].repeat(math.prod(adapter.config.cells)))
        assert not model.encode_images(torch.zeros(1, 64, 64, 3, dtype=torch.uint8), 16).any()


def test_fresh_scales_tell_the_letters_of_a_token_from_those_before_it() -> None:
    adapter = LettersAdapterConfig().build(8, 64, seed=3)
    assert torch.equal(adapter.scale_ND, torch.ones(8, 64))
    signs_PD = adapter.scale_before_PND[:, 0]
    assert torch.equal(signs_PD.abs(), torch.ones(2, 64))
    assert max(abs(signs_PD.sum(1))) < 32
    assert abs(signs_PD[0] @ signs_PD[1]) < 32
    assert torch.equal(adapter.scale_before_PND, signs_PD[:, None].expand(2, 8, 64))


def test_a_reader_is_made_of_a_text_decoder() -> None:
    config = reader()[0].config
    decoder = config.decoder.build(seed=2)
    assert torch.equal(with_eyes(decoder, config, seed=3).embedding, decoder.embedding)


def test_a_batch_without_images_gives_zero_gradients() -> None:
    model, _ = reader()
    model.embed(torch.tensor([[3, 4]])).sum().backward()
    weights = [*model.vision.parameters(), *model.adapter.parameters()]
    assert len(weights) > 6
    assert all(weight.grad is not None and not weight.grad.any() for weight in weights)


def test_a_wrong_number_of_tokens_is_refused() -> None:
    with pytest.raises(SpanError, match="8 patches of a side give 4 tokens of a side, not 3"):
        reader()[0].encode_images(torch.zeros(1, 64, 64, 3, dtype=torch.uint8), 9)


def test_texts_train_the_layer_of_letters_and_the_scales() -> None:
    model, adapter = reader()
    model.encode_images(torch.full((1, 64, 64, 3), 90, dtype=torch.uint8), 16).square().sum().backward()
    for weight in (adapter.letters.weight, adapter.scale_ND, adapter.scale_before_PND, model.embedding):
        assert weight.grad is not None
        assert weight.grad.abs().sum() > 0
    assert adapter.scale_before_PND.grad is not None
    assert adapter.scale_before_PND.grad.flatten(1).any(1).all()


def test_configs_are_checked() -> None:
    config = reader()[0].config
    with pytest.raises(ConfigError, match="the encoder has patches of 8 pixels, the adapter of 16"):
        replace(config, adapter=LettersAdapterConfig(patch_side=16))
    with pytest.raises(ConfigError, match="patches of 12 pixels do not divide into cells of 8 x 4 pixels"):
        LettersAdapterConfig(patch_side=12)
    for num_before in (0, 9):
        with pytest.raises(ConfigError, match=f"num_before is a number from 1 to 8, got {num_before}"):
            LettersAdapterConfig(num_before=num_before)
    with pytest.raises(ConfigError, match="letters need a vocab_size of 158 or more, got 157"):
        replace(config, vocab_size=157)
    with pytest.raises(ConfigError, match="a view of 64 pixels has 16 tokens, got 9"):
        replace(config, modes=(replace(config.image_modes[0], tokens=9),))
