"""Operations counted by arithmetic are those that torch counts while it computes."""

from __future__ import annotations

import pytest
import torch
from tiny_decoders import VOCAB_SIZE, decoder_config, layer, perturbed, random_tokens
from torch.utils.flop_counter import FlopCounterMode

from openafm.models.accounting import flops_per_token, num_parameters, training_flops
from openafm.models.attention.context import PackedDocuments, Span
from openafm.models.config import DecoderConfig
from openafm.models.sizes import named_size

CONFIG = decoder_config(layer(), layer(), layer(source=1), layer(source=0))
NUM_ROWS, ROW_LENGTH = 2, 12
PAIR = 4 * 4 * 8
"""One query and one key, in all heads."""


@pytest.mark.parametrize("num_targets", [1, 10, 24])
def test_training_takes_three_times_the_matrix_products_that_torch_counts_forward(num_targets: int) -> None:
    model = perturbed(CONFIG)
    documents = [Span(row=row, start=at, stop=at + 1) for row in range(NUM_ROWS) for at in range(ROW_LENGTH)]
    context = PackedDocuments(documents, NUM_ROWS, ROW_LENGTH)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.head(model.hidden_at(random_tokens(NUM_ROWS, ROW_LENGTH), context, torch.arange(num_targets)))
    products = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    # A document of one token is one pair in each layer: all of them in the first, the targets alone from the second on.
    pairs = PAIR * (len(documents) + 3 * num_targets)
    assert training_flops(CONFIG, [1] * len(documents), num_targets) == 3 * (products + pairs)


@pytest.mark.parametrize("window", [None, 1, 3, 5, 9])
def test_a_query_pairs_with_the_keys_it_sees(window: int | None) -> None:
    def of(*lengths: int) -> int:
        return training_flops(decoder_config(layer(window=window)), lengths, sum(lengths))

    seen = sum(min(place + 1, window or place + 1) for length in (2, 5, 7) for place in range(length))
    assert of(2, 5, 7) - of(*[1] * 14) == 3 * PAIR * (seen - 14)


def test_a_shared_beginning_is_counted_once() -> None:
    config = decoder_config(layer())
    pairs = sum(range(8, 11)) + sum(range(1, 13)) - sum(range(1, 16))
    branched = training_flops(config, [10, 12], 15, repeated=[7])
    assert branched - training_flops(config, [15], 15) == 3 * PAIR * pairs


def test_a_token_takes_two_operations_a_weight_and_its_pairs() -> None:
    weights = num_parameters(CONFIG)
    norms = 4 * (2 * 32 + 8) + 2 * 8 + 32
    assert flops_per_token(CONFIG, num_keys=0) == 2 * (weights - norms)
    assert flops_per_token(CONFIG, num_keys=100) == 2 * (weights - norms) + 4 * 100 * PAIR


def test_parameters_are_counted_without_storage() -> None:
    assert num_parameters(named_size("on_device.base")) == 3_111_368_064
    tiny = DecoderConfig(vocab_size=VOCAB_SIZE, dim=32, layers=(layer(),))
    assert num_parameters(tiny) == sum(parameter.numel() for parameter in tiny.build().parameters())
