"""A compressed bundle of the `on_device.base` shape with random weights, for measuring speed and memory.

Codes and scales are drawn in their stored form, in seconds, without training. The scales give states and logits the
magnitude of a trained model's. The tokenizer has 150,000 generated tokens, as long as real ones: letters that merge to
syllables, syllables to words with and without a leading space, and pairs of punctuation.

    python benchmarks/native/synthetic.py [--layers 56] [--bundle-folder FOLDER]

Shapes: R outputs, C inputs, P = C / 4 bytes, V vocabulary, D model dim, G = D / 32 groups.
"""

from __future__ import annotations

import argparse
import random
import string
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.bundle import Bundle, open_bundle, write_bundle
from openafm.compression.int4_embedding import GROUP
from openafm.compression.numerics import Numerics
from openafm.core.native_build import cache_home
from openafm.models.config import DecoderConfig
from openafm.models.sizes import named_size, shared_kv_decoder
from openafm.runtime.native.shapes import matrices, norms
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.byte_alphabet import characters_of
from openafm.tokenizer.chat_template import ChatTemplate

NUM_LAYERS, NUM_TOKENS = 56, 150_000
OWN_SHARE = 35 / 56  # of the layers have keys and values of their own
NUMERICS = Numerics(
    weights="int2_balanced", embedding="int4_group32", activations="int8_per_token", kv="int8_per_token_head"
)
_VERSION, _SEED = 1, 0
_LEVEL_STD = sqrt(1.25)  # of -1.5, -0.5, 0.5, 1.5, drawn uniformly
_EMBEDDING_STD, _CODE_STD = 0.05, sqrt((16**2 - 1) / 12)
_LONGEST_WORD = 12


def synthetic_bundle(folder: Path, *, num_layers: int = NUM_LAYERS, own_share: float = OWN_SHARE) -> Bundle:
    """Return the bundle of `num_layers` layers in `folder`; write it if absent: 876 MB and some seconds at 56 layers.

    Args:
        own_share: share of the layers with their own keys and values; with 1 there is no prefill bypass.

    Raises:
        OutOfSpaceError: the disk is full.
    """
    config = synthetic_config(num_layers, own_share)
    path = folder / f"synthetic_{num_layers}_layers_{len(config.own_layers)}_own_{_VERSION}"
    if (path / "signature.json").is_file():
        return open_bundle(path)
    return write_bundle(
        path,
        config=config,
        tokenizer=synthetic_tokenizer(),
        template=ChatTemplate(),
        tensors=random_tensors(config),
        numerics=NUMERICS,
        card="# Random weights of the on_device.base widths\n\nFor measurements of speed and memory only.\n",
    )


def synthetic_config(num_layers: int = NUM_LAYERS, own_share: float = OWN_SHARE) -> DecoderConfig:
    """`on_device.base` with another number of layers, or another share of them with keys and values of their own."""
    base = named_size("on_device.base")
    num_own = max(1, round(own_share * num_layers))
    attention, feed_forward = base.layers[0].attention, base.layers[0].feed_forward
    return shared_kv_decoder(
        vocab_size=base.vocab_size,
        dim=base.dim,
        num_own_layers=num_own,
        num_shared_layers=num_layers - num_own,
        num_heads=attention.num_heads,
        num_kv_heads=base.kv_heads(0),
        head_dim=attention.head_dim,
        hidden_dim=feed_forward.hidden_dim,
        context_length=base.context_length,
    )


def synthetic_folder() -> Path:
    """Default folder of these bundles: next to the caches of the native runtime."""
    return cache_home() / "benchmarks"


def random_tensors(config: DecoderConfig) -> dict[str, NDArray[Any]]:
    """Every tensor of the bundle, as it is stored."""
    generator = np.random.default_rng(_SEED)
    tensors: dict[str, NDArray[Any]] = {}
    for name, (num_outputs, num_inputs) in matrices(config).items():
        # The residual additions are as small as in a model whose initialization depends on the number of layers.
        share = 1 / sqrt(2 * len(config.layers)) if name.rpartition(".")[2] in ("output", "down") else 1.0
        scale = share / (sqrt(num_inputs) * _LEVEL_STD)
        tensors[f"{name}.weight"] = _random_bytes(generator, (num_outputs, num_inputs // 4))
        tensors[f"{name}.weight.scale"] = scale * generator.uniform(0.8, 1.2, num_outputs).astype(np.float32)
    for name, length in norms(config):
        tensors[name] = generator.uniform(0.8, 1.2, length).astype(np.float32)
    scale_VG = generator.uniform(0.8, 1.2, (config.vocab_size, config.dim // GROUP)) * _EMBEDDING_STD / _CODE_STD
    tensors["embedding"] = _random_bytes(generator, (config.vocab_size, config.dim // 2))
    tensors["embedding.scale"] = scale_VG.astype(np.float16)
    tensors["embedding.minimum"] = (-7.5 * scale_VG).astype(np.float16)
    return tensors


def _random_bytes(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.uint8]:
    return np.frombuffer(generator.bytes(shape[0] * shape[1]), np.uint8).reshape(shape)


def synthetic_tokenizer(num_tokens: int = NUM_TOKENS) -> Tokenizer:
    """A deterministic tokenizer of the given size."""
    empty = Tokenizer(merges=())
    merges: list[tuple[str, str]] = []
    known: set[str] = set()
    for left, right in _pairs():
        if len(merges) == num_tokens - empty.vocab_size:
            break
        if left + right not in known:
            known.add(left + right)
            merges.append((left, right))
    return Tokenizer(merges)


def _pairs() -> Iterator[tuple[str, str]]:
    """Merges without end: of two letters, of two marks, of a space and a letter; then ever longer words."""
    draw = random.Random(_SEED)
    letters, space = string.ascii_lowercase, characters_of(b" ")
    syllables = [left + right for left in letters for right in letters]
    yield from ((left, right) for left in letters for right in letters)
    yield from ((left, right) for left in string.punctuation for right in string.punctuation)
    starts = [*letters, *string.ascii_uppercase, *(space + letter for letter in letters)]
    yield from ((space, letter) for letter in letters)
    words = [start + syllable for start in starts for syllable in syllables]
    yield from ((start, syllable) for start in starts for syllable in syllables)
    while True:
        word, syllable = draw.choice(words), draw.choice(syllables)
        if len(word) < _LONGEST_WORD:
            words.append(word + syllable)
            yield word, syllable


def add_bundle_options(parser: argparse.ArgumentParser) -> None:
    """The options of every script that takes the synthetic bundle."""
    parser.add_argument("--bundle-folder", type=Path, default=synthetic_folder(), help="where synthetic bundles are kept")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=NUM_LAYERS)
    add_bundle_options(parser)
    options = parser.parse_args()
    print(synthetic_bundle(options.bundle_folder, num_layers=options.layers).path)


if __name__ == "__main__":
    main()
