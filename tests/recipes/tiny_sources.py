"""Tiny uncompressed bundles with random weights, as large as the formats need them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openafm.bundle import Bundle, write_bundle
from openafm.data.documents import ChatDocument, texts_of
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.models.sizes import shared_kv_decoder
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

QUICK = {"calibration.num_rows": "1", "calibration.corpus.languages": '{"en": 1}', "adapter.rank": "4"}


@cache
def tokenizer() -> Tokenizer:
    conversations = generate(SyntheticConfig(languages={"en": 1.0}), 200)
    return train_tokenizer(
        TokenizerConfig(vocab_size=800), [t for c in conversations for t in texts_of(ChatDocument(conversation=c))]
    )


def write_source(
    path: Path,
    changes: Mapping[str, NDArray[Any] | float] | None = None,
    head_dim: int = 16,
    context_length: int = 1024,
    hidden_dim: int = 48,
) -> Bundle:
    """A bundle at `path`; `changes` replace weights by name, a number standing for a constant matrix."""
    torch.set_num_threads(1)
    config = shared_kv_decoder(
        vocab_size=800,
        dim=32,
        num_own_layers=2,
        num_shared_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=head_dim,
        hidden_dim=hidden_dim,
        context_length=context_length,
    )
    decoder = config.build(seed=1)
    with torch.no_grad():
        decoder.embedding.mul_(25)  # so that small errors of the layers stay small, as in a trained model
    tensors = {name: tensor.detach().numpy() for name, tensor in decoder.state_dict().items()}
    for name, change in (changes or {}).items():
        tensors[name] = np.full_like(tensors[name], change)
    return write_bundle(path, config=config, tokenizer=tokenizer(), template=ChatTemplate(), tensors=tensors)
