"""Decoders of a few thousand parameters with widths that fit every format, and a bundle of one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from openafm.bundle import FULL_PRECISION, Bundle, Numerics, write_bundle
from openafm.models.config import DecoderConfig
from openafm.models.decoder import Decoder
from openafm.models.sizes import shared_kv_decoder
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

CONFIG: DecoderConfig = shared_kv_decoder(
    vocab_size=320,
    dim=32,
    num_own_layers=2,
    num_shared_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    hidden_dim=48,
    context_length=128,
)


def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(vocab_size=CONFIG.vocab_size), ["a few words of text"])


def decoder(seed: int = 0) -> Decoder:
    """With random norm weights, so that a missing norm changes the output."""
    model = CONFIG.build(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    return model


def tokens(count: int = 24, seed: int = 0) -> torch.Tensor:
    return torch.randint(CONFIG.vocab_size, (1, count), generator=torch.Generator().manual_seed(seed))


def bundle(path: Path, model: Decoder, numerics: Numerics = FULL_PRECISION) -> Bundle:
    tensors = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in model.state_dict().items()}
    return write_bundle(
        path, config=CONFIG, tokenizer=tokenizer(), template=ChatTemplate(), tensors=tensors, numerics=numerics
    )
