"""Documents with a repeated sequence of random tokens, which train copying.

    <|bos|> noise x noise <|assistant|> x <|turn_end|>

Only the second x carries loss, from its second token on: its first token cannot be predicted. Tokens are uniform over the
vocabulary, so only the context helps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openafm.core.config import Config
from openafm.data.shards.manifest import Manifest
from openafm.data.shards.token_shards import read_manifest
from openafm.data.shards.writer import write_shards
from openafm.tokenizer.bpe import NUM_SPECIAL_TOKENS

if TYPE_CHECKING:
    from openafm.tokenizer.bpe import Tokenizer


@dataclass(frozen=True, kw_only=True)
class CopiesConfig(Config):
    """Lengths of the repeated sequence, drawn uniformly; the noise before and after it is shorter."""

    lengths: tuple[int, ...] = (4, 8, 12)
    seed: int = 0

    def __post_init__(self) -> None:
        self.require(all(length > 1 for length in self.lengths) and self.lengths != (), "lengths must be at least 2")


@dataclass(frozen=True, kw_only=True)
class CopyDocument:
    """Tokens, and which of them carry loss."""

    tokens: list[int]
    loss_mask: list[bool]


def copies(config: CopiesConfig, count: int, tokenizer: Tokenizer) -> Iterator[CopyDocument]:
    """Yield `count` documents, a function of the config and the vocabulary size."""
    rng = random.Random(config.seed)
    special = tokenizer.special

    def noise(number: int) -> list[int]:
        return [rng.randrange(NUM_SPECIAL_TOKENS, tokenizer.vocab_size) for _ in range(number)]

    for _ in range(count):
        length = rng.choice(config.lengths)
        repeated = noise(length)
        prompt = [special.bos, *noise(rng.randrange(length)), *repeated, *noise(rng.randrange(length)), special.assistant]
        yield CopyDocument(
            tokens=[*prompt, *repeated, special.turn_end],
            loss_mask=[False] * (len(prompt) + 1) + [True] * (length - 1) + [False],
        )


def pack_copies(config: CopiesConfig, count: int, out: Path, tokenizer: Tokenizer) -> Manifest:
    """Write `count` documents as token shards at `out`.

    Raises:
        OutputFolderError: `out` has files that are not a corpus.
        OutOfSpaceError: the disk is full; `out` is unchanged.
    """
    with write_shards(out, tokenizer_digest=tokenizer.digest, vocab_size=tokenizer.vocab_size) as writer:
        for document in copies(config, count, tokenizer):
            writer.add(document.tokens, language="", source="copies", loss_mask=document.loss_mask)
    return read_manifest(out)
