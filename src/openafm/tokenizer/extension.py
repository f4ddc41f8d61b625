"""A larger vocabulary for more languages, with every old token where it was (report 4.1: 100k to 150k).

New merges are learned from new text on top of the old ones and appended. Encoding applies merges in the order learned, so
all old ones come first and then new ones join what they left. Guaranteed, for every text:

- old ids, their bytes and the old merges are a prefix of the new vocabulary's;
- `pieces` put in the place of the new ids of the new encoding give exactly the old encoding. A text in which no new merge
  finds its pair therefore encodes as before, and no text encodes to more tokens than before.

`pieces` also say from which rows a model's new embedding rows start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from openafm.core.errors import UsageError
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, TokenizerError, characters_of
from openafm.tokenizer.merges import Merge, learn_merges


@dataclass(frozen=True, kw_only=True)
class Extension:
    """The extended tokenizer, and for each new id the two or more old ids that it stands for."""

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
    """Extend `tokenizer` to `vocab_size` ids with what is frequent in `texts`; deterministic as `train_tokenizer` is.

    Raises:
        UsageError: `vocab_size` is not above the present one.
        TokenizerError: the texts do not repeat enough for `vocab_size`.
    """
    if vocab_size <= tokenizer.vocab_size:
        raise UsageError(f"the vocabulary has {tokenizer.vocab_size} tokens; {vocab_size} would not extend it")
    tokens = {id: tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)}
    known = set(tokens.values())

    def may_merge(left: int, right: int, product: int) -> bool:
        # A known token comes up only where the old merges cannot reach it; a second way to it would make pieces ambiguous.
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
            f"these texts extend {tokenizer.vocab_size} tokens to {len(tokens)}, not the {vocab_size} asked for; "
            "give more text, a smaller vocab_size or min_frequency=1"
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
