"""Exact inference between integer products: same weights and names, different last bits."""

from __future__ import annotations

import copy

import numpy as np
import tiny_models
import torch
from torch import nn

from openafm.compression.config import QATConfig
from openafm.compression.deploy import build_decoder, packed_tensors
from openafm.compression.exact import ExactFeedForward, ExactNorm, compute_exactly
from openafm.compression.low_bit import RoundedNorm
from openafm.compression.numerics import Numerics
from openafm.compression.qat import install
from openafm.models.attention.grouped_query import Attention
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.gated import FeedForward
from openafm.models.layers import RMSNorm


def deployed() -> Decoder:
    config = QATConfig()
    decoder = tiny_models.decoder()
    install(decoder, config).advance(1.0)
    return build_decoder(tiny_models.CONFIG, config.numerics, packed_tensors(decoder))


def test_every_part_with_sums_is_exact() -> None:
    plain = deployed()
    exact = copy.deepcopy(plain)
    compute_exactly(exact)
    assert list(exact.state_dict()) == list(plain.state_dict())
    assert isinstance(exact.norm, RoundedNorm)
    for module in exact.modules():
        assert not isinstance(module, RMSNorm) or isinstance(module, ExactNorm)
        assert not isinstance(module, FeedForward) or isinstance(module, ExactFeedForward)
        assert not isinstance(module, Attention) or not isinstance(module.slot, nn.Identity)
    tokens_BS = tiny_models.tokens()
    with torch.inference_mode():
        expected, found = plain(tokens_BS), exact(tokens_BS)
    assert found.dtype is torch.float32
    assert (expected - found).abs().median() < 1e-5


def test_a_norm_multiplies_by_the_nearest_factor() -> None:
    draw = torch.Generator().manual_seed(0)
    norm = RMSNorm(300, 1e-5)
    norm.weight.data = torch.rand(300, generator=draw) + 0.5
    x_ND = torch.randn(500, 300, generator=draw)
    factor_N1 = (1 / np.sqrt(np.square(x_ND.double().numpy()).mean(-1, keepdims=True) + 1e-5)).astype(np.float32)
    with torch.no_grad():
        y_ND = ExactNorm(norm)(x_ND).numpy()
    np.testing.assert_array_equal(y_ND, x_ND.numpy() * factor_N1 * norm.weight.detach().numpy())


def test_only_integer_products_are_exact() -> None:
    assert Numerics(weights="int2_unbalanced", activations="int8_per_token").multiplies_integers
    assert not Numerics(weights="int2_balanced").multiplies_integers
    assert not Numerics(activations="int8_per_token").multiplies_integers
