"""Long documents with hidden needles, which train retrieval over long contexts.

    <|bos|> text x text y text <|assistant|> y <|turn_end|> <|assistant|> x <|turn_end|>

The text is that of the built-in corpus. A needle is a few random tokens at one place of the document. Its first token is the
question, and only the others carry loss. With several needles, the answer depends on the question.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from openafm.core.config import Config
from openafm.core.progress import progress
from openafm.data.copies import CopyDocument
from openafm.data.documents import ChatDocument, texts_of
from openafm.data.shards.manifest import Manifest
from openafm.data.shards.token_shards import read_manifest
from openafm.data.shards.writer import write_shards
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.tokenizer.bpe import NUM_SPECIAL_TOKENS

if TYPE_CHECKING:
    from openafm.tokenizer.bpe import Tokenizer

TEXTS_AT_ONCE = 256  # conversations that are generated and encoded together
ENDLESS = 10**9


@dataclass(frozen=True, kw_only=True)
class NeedlesConfig(Config):
    """Tokens of a document, drawn uniformly from `lengths`, and the number and size of its needles."""

    lengths: tuple[int, ...]
    num_needles: int = 4
    needle_tokens: int = 4
    text: SyntheticConfig = field(default_factory=SyntheticConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        self.require(self.num_needles > 0, f"num_needles must be at least 1, got {self.num_needles}")
        self.require(self.needle_tokens > 1, f"needle_tokens must be at least 2, got {self.needle_tokens}")
        self.require(
            self.lengths != () and all(length > self.overhead for length in self.lengths),
            f"lengths must be above {self.overhead}, the tokens of {self.num_needles} needles and their questions",
        )

    @property
    def overhead(self) -> int:
        """Tokens of a document that are not text: its start, the needles, and their questions and answers."""
        return 1 + self.num_needles * (2 * self.needle_tokens + 2)


def needles(config: NeedlesConfig, count: int, tokenizer: Tokenizer) -> Iterator[CopyDocument]:
    """Yield `count` documents, a function of the config and the tokenizer."""
    rng = random.Random(config.seed)
    text = _Text(config.text, tokenizer)
    special = tokenizer.special
    for _ in range(count):
        drawn = rng.sample(range(NUM_SPECIAL_TOKENS, tokenizer.vocab_size), config.num_needles * config.needle_tokens)
        hidden = [drawn[at : at + config.needle_tokens] for at in range(0, len(drawn), config.needle_tokens)]
        filler = text.without(drawn, rng.choice(config.lengths) - config.overhead)
        places = sorted(rng.randrange(len(filler) + 1) for _ in hidden)
        tokens = [special.bos]
        for start, stop, needle in zip([0, *places[:-1]], places, hidden, strict=True):
            tokens += [*filler[start:stop], *needle]
        tokens += filler[places[-1] :]
        loss_mask = [False] * len(tokens)
        for needle in rng.sample(hidden, len(hidden)):
            tokens += [special.assistant, *needle, special.turn_end]
            loss_mask += [False, False, *[True] * (len(needle) - 1), False]
        yield CopyDocument(tokens=tokens, loss_mask=loss_mask)


def pack_needles(config: NeedlesConfig, count: int, out: Path, tokenizer: Tokenizer) -> Manifest:
    """Write `count` documents as token shards at `out`.

    Raises:
        OutputFolderError: `out` has files that are not a corpus.
        OutOfSpaceError: the disk is full; `out` is unchanged.
    """
    with (
        progress(f"hide needles in {count:,} documents", count) as bar,
        write_shards(out, tokenizer_digest=tokenizer.digest, vocab_size=tokenizer.vocab_size) as writer,
    ):
        for done, document in enumerate(needles(config, count, tokenizer), start=1):
            writer.add(document.tokens, language="", source="needles", loss_mask=document.loss_mask)
            bar.update(done, f"{done:,} documents")
    return read_manifest(out)


class _Text:
    """An endless stream of the tokens of the built-in corpus."""

    def __init__(self, config: SyntheticConfig, tokenizer: Tokenizer) -> None:
        self._conversations, self._tokenizer = generate(config, ENDLESS), tokenizer
        self._ready: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def without(self, tokens: list[int], length: int) -> list[int]:
        """Return the next `length` tokens without those of the needles."""
        while len(kept := np.flatnonzero(~np.isin(self._ready, tokens))) < length:
            self._ready = np.concatenate([self._ready, self._more()])
        found, self._ready = self._ready[kept[:length]], self._ready[kept[length - 1] + 1 :]
        return [int(token) for token in found]

    def _more(self) -> npt.NDArray[np.int64]:
        documents = (ChatDocument(conversation=conversation) for conversation in islice(self._conversations, TEXTS_AT_ONCE))
        texts = ["\n".join(texts_of(document)) + "\n" for document in documents]
        return np.array([token for ids in self._tokenizer.encode_batch(texts) for token in ids], dtype=np.int64)
