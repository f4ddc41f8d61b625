"""New tokens start as the mean of the rows they replace; old weights stay bit-identical."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny_decoders import VOCAB_SIZE, decoder_config, layer, perturbed, random_tokens

from openafm.models.config import DecoderConfig, UntiedHeadConfig
from openafm.models.initialization.vocabulary_extension import VocabularyExtensionError, extend_vocabulary

TIED = decoder_config(layer(), layer(source=0))
UNTIED = dataclasses.replace(TIED, head=UntiedHeadConfig())
PIECES = {VOCAB_SIZE: (3, 5), VOCAB_SIZE + 1: (7, 7, 2), VOCAB_SIZE + 2: (60,)}


@torch.no_grad()
@pytest.mark.parametrize("config", [pytest.param(TIED, id="tied"), pytest.param(UNTIED, id="untied")])
def test_new_rows_are_the_mean_of_their_pieces_and_old_weights_stay(config: DecoderConfig) -> None:
    model = perturbed(config)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    extended = extend_vocabulary(model, PIECES, VOCAB_SIZE + 3)
    assert extended.config == dataclasses.replace(config, vocab_size=VOCAB_SIZE + 3)
    tables = {"embedding"} if config is TIED else {"embedding", "output.weight"}
    for name, weight in extended.state_dict().items():
        assert torch.equal(model.state_dict()[name], before[name])
        assert torch.equal(weight[:VOCAB_SIZE] if name in tables else weight, before[name])
    for name in tables:
        old, new = before[name], extended.state_dict()[name][VOCAB_SIZE:]
        assert torch.allclose(new[0], (old[3] + old[5]) / 2, atol=1e-7)
        assert torch.allclose(new[1], (2 * old[7] + old[2]) / 3, atol=1e-7)
        assert torch.equal(new[2], old[60])


@torch.no_grad()
@pytest.mark.parametrize("config", [pytest.param(TIED, id="tied"), pytest.param(UNTIED, id="untied")])
def test_logits_of_old_tokens_stay_and_those_of_new_ones_are_means(config: DecoderConfig) -> None:
    model, tokens_BS = perturbed(config), random_tokens(2, 9)
    old, new = model(tokens_BS), extend_vocabulary(model, PIECES, VOCAB_SIZE + 3)(tokens_BS)
    assert torch.allclose(new[..., :VOCAB_SIZE], old, atol=1e-5)
    assert torch.allclose(new[..., VOCAB_SIZE], (old[..., 3] + old[..., 5]) / 2, atol=1e-5)


def test_compute_dtype_and_mode_are_kept() -> None:
    model = perturbed(TIED).eval()
    model.compute_dtype = torch.bfloat16
    extended = extend_vocabulary(model, PIECES, VOCAB_SIZE + 3)
    assert extended.compute_dtype is torch.bfloat16
    assert not extended.training
    assert all(parameter.requires_grad for parameter in extended.parameters())


@pytest.mark.parametrize(
    ("pieces", "vocab_size", "text"),
    [
        ({}, VOCAB_SIZE, "the decoder has 61 tokens; a vocabulary of 61 does not extend it"),
        ({61: (1,), 63: (2,)}, 64, "new ids 61 to 63 as keys; missing or unexpected: 62"),
        ({61: (1,), 62: (2,)}, 62, "new ids 61 to 61 as keys; missing or unexpected: 62"),
        ({60: (1,), 61: (2,)}, 62, "missing or unexpected: 60"),
        ({61: (1, 61)}, 62, r"the pieces of token 61 must be one or more ids from 0 to 60, got \[1, 61\]"),
        ({61: (-1,)}, 62, r"ids from 0 to 60, got \[-1\]"),
        ({61: ()}, 62, r"one or more ids from 0 to 60, got \[\]"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(pieces: dict[int, tuple[int, ...]], vocab_size: int, text: str) -> None:
    with pytest.raises(VocabularyExtensionError, match=text):
        extend_vocabulary(perturbed(TIED), pieces, vocab_size)
