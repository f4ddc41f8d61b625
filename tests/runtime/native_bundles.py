"""Compressed bundles with random weights that the native engine runs, and adapters for them."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tiny_tokenizer import TOKENIZER

from openafm.adapters.config import LoRAConfig
from openafm.adapters.lora import adapter_weights, install
from openafm.adapters.package import AdapterPackage, write_adapter
from openafm.bundle import Bundle, RecoveryAdapter, write_bundle
from openafm.compression.config import QATConfig
from openafm.compression.deploy import packed_tensors
from openafm.models.config import DecoderConfig
from openafm.models.sizes import shared_kv_decoder
from openafm.tokenizer.chat_template import ChatTemplate

CONTEXT_LENGTH = 96  # more than a page of keys and values
CONFIG = shared_kv_decoder(
    vocab_size=TOKENIZER.vocab_size + 3,  # not a whole tile
    dim=64,
    num_own_layers=2,
    num_shared_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    hidden_dim=96,
    context_length=CONTEXT_LENGTH,
)
LORA = LoRAConfig(rank=4)


def write_compressed(
    path: Path, seed: int = 3, config: DecoderConfig = CONFIG, recovery: RecoveryAdapter | None = None
) -> Bundle:
    """A 2-bit bundle of random weights whose norms are not 1 and whose attention is not nearly uniform."""
    torch.set_num_threads(1)
    decoder = config.build(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5, generator=generator)
        decoder.embedding.normal_(std=0.1, generator=generator)
    qat = QATConfig()
    qat.install(decoder)
    return write_bundle(
        path,
        config=config,
        tokenizer=TOKENIZER,
        template=ChatTemplate(),
        tensors=packed_tensors(decoder),
        numerics=qat.numerics,
        recovery=recovery,
    )


def random_adapter_weights(
    seed: int, config: DecoderConfig = CONFIG, lora: LoRAConfig = LORA
) -> dict[str, NDArray[np.float32]]:
    decoder = config.build(seed=0)
    install(decoder, lora)
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(w.shape, generator=generator).mul(0.2).numpy() for name, w in adapter_weights(decoder).items()}


def write_random_adapter(path: Path, bundle: Bundle, seed: int) -> AdapterPackage:
    weights = random_adapter_weights(seed, bundle.config)
    return write_adapter(path, weights=weights, config=LORA, base_signature=bundle.signature, name=f"seed_{seed}")


@functools.cache
def compressed_bundle() -> Bundle:
    """Shared by all tests that only read it."""
    folder = Path(tempfile.mkdtemp(prefix="openafm-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_compressed(folder / "compressed")
