"""A decoder of a few thousand parameters to put adapters on, and weights for one."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openafm.models.config import DecoderConfig
from openafm.models.decoder import Decoder
from openafm.models.sizes import shared_kv_decoder

VOCAB_SIZE = 61
SIGNATURE = "0123456789abcdef" * 2 + "01234567"


def tiny_config() -> DecoderConfig:
    """Two layers with their own keys and values, and one that shares."""
    return shared_kv_decoder(
        vocab_size=VOCAB_SIZE,
        dim=32,
        num_own_layers=2,
        num_shared_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        hidden_dim=48,
        context_length=64,
    )


def tiny_decoder(seed: int = 0) -> Decoder:
    """With weights so large that a change of any of them changes the logits."""
    torch.set_num_threads(1)
    model = tiny_config().build(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        model.embedding.normal_(std=0.3, generator=torch.Generator().manual_seed(seed))
    return model


def random_tokens(num_rows: int = 2, row_length: int = 9, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB_SIZE, (num_rows, row_length), generator=torch.Generator().manual_seed(seed))


def perturb_adapter(weights: dict[str, Tensor], seed: int = 7) -> None:
    """Fill an adapter's weights, in place, with numbers that change what the decoder computes."""
    generator = torch.Generator().manual_seed(seed)
    for weight in weights.values():
        weight.normal_(std=0.3, generator=generator)


def random_weights(
    rank: int, names: tuple[str, ...] = ("layers.0.attention.query",), seed: int = 0
) -> dict[str, NDArray[np.float32]]:
    """Weights of an adapter of these Linears, with 6 inputs and 5 outputs."""
    generator = np.random.default_rng(seed)
    weights = {}
    for name in names:
        weights[f"{name}.lora.a"] = generator.normal(size=(rank, 6)).astype(np.float32)
        weights[f"{name}.lora.b"] = generator.normal(size=(5, rank)).astype(np.float32)
    return weights
