"""Vocabulary extension for more languages; old ids keep their meaning (report 4.1: 100k to 150k).

New merges are learned from new text on top of the old merges and appended. Encoding applies merges in the order learned, so
old merges are applied first. Guaranteed for every text:

- old ids, their bytes and the old merges are a prefix of the new vocabulary;
- replacing the new ids of the new encoding by their `pieces` gives exactly the old encoding. So text without the pair of any
  new merge encodes as before, and no text encodes to more tokens than before.

`pieces` also give the old embedding rows that a new row is initialized from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from openafm.core.errors import UsageError
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig
from openafm.tokenizer.byte_alphabet import characters_of
from openafm.tokenizer.errors import TokenizerError
from openafm.tokenizer.merges import Merge, learn_merges


@dataclass(frozen=True, kw_only=True)
class Extension:
    """Hold the extended tokenizer and, for each new id, the two or more old ids that it replaces."""

    tokenizer: Tokenizer
    pieces: dict[int, tuple[int, ...]]


def extend_tokenizer(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    vocab_size: int,
    *,
    min_frequency: int = TokenizerConfig.min_frequency,
    max_token_bytes: int = TokenizerConfig.max_token_bytes,
) -> Extension:
    """Return `tokenizer` extended to `vocab_size` ids by frequent pairs of `texts`; deterministic like `train_tokenizer`.

    Raises:
        UsageError: `vocab_size` is not larger than the current one.
        TokenizerError: the texts have too few repeated pairs for `vocab_size`.
    """
    if vocab_size <= tokenizer.vocab_size:
        raise UsageError(f"vocab_size {vocab_size} does not exceed the current {tokenizer.vocab_size}; use a larger one")
    tokens = {id: tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)}
    known = set(tokens.values())

    def may_merge(left: int, right: int, product: int) -> bool:
        # The old merges cannot produce this known token here. A second merge for it would make pieces ambiguous.
        token = tokens[left] + tokens[right]
        if token in known or len(token) > max_token_bytes:
            return False
        known.add(token)
        tokens[product] = token
        return True

    words = _encoded_words(tokenizer, texts)
    merges: list[Merge] = []
    for merge in learn_merges(words, tokenizer.vocab_size, may_merge, min_frequency):
        merges.append(merge)
        if len(tokens) == vocab_size:
            break
    if len(tokens) < vocab_size:
        raise TokenizerError(
            f"the texts extend {tokenizer.vocab_size} tokens to {len(tokens)}, vocab_size is {vocab_size}; "
            "use more text, a smaller vocab_size or min_frequency=1"
        )
    new = [(characters_of(tokens[merge.left]), characters_of(tokens[merge.right])) for merge in merges]
    extended = Tokenizer([*tokenizer.merges, *new], tokenizer.special_names, tokenizer.pattern)
    return Extension(tokenizer=extended, pieces=_pieces(merges))


def _encoded_words(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[tuple[int, ...], int]:
    """Distinct words of the texts as token ids, with their counts."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenizer.split(text))
    return {tuple(tokenizer.encode_word(word)): count for word, count in counts.items()}


def _pieces(merges: list[Merge]) -> dict[int, tuple[int, ...]]:
    pieces: dict[int, tuple[int, ...]] = {}
    for merge in merges:
        pieces[merge.product] = sum((pieces.get(id, (id,)) for id in (merge.left, merge.right)), ())
    return pieces
