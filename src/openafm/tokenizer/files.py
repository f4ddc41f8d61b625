"""Read a `tokenizer.json`: of a tokenizer trained by openafm, or of an open-weight model."""

from __future__ import annotations

import json
import re

from openafm.tokenizer.bpe import SPECIAL_TOKEN_IDS, Tokenizer
from openafm.tokenizer.imported.byte_level import ImportedTokenizer
from openafm.tokenizer.imported.sentence_piece import SentencePieceTokenizer

_BYTE_FALLBACK = re.compile(r'"byte_fallback"\s*:\s*true')


def read_tokenizer(text: str) -> Tokenizer:
    """Return the tokenizer of a bundle's `tokenizer.json`, trained by openafm or imported.

    Raises:
        TokenizerError: the text is neither.
    """
    is_ours = all(json.dumps(name) in text for name in SPECIAL_TOKEN_IDS)
    return Tokenizer.from_json(text) if is_ours or '"added_tokens"' not in text else read_imported_tokenizer(text)


def read_imported_tokenizer(text: str) -> ImportedTokenizer:
    """Return the tokenizer of an open-weight model.

    Raises:
        TokenizerError: the text is not the `tokenizer.json` of byte-level BPE, or of BPE or Unigram with byte fallback.
    """
    return SentencePieceTokenizer(text) if _BYTE_FALLBACK.search(text) else ImportedTokenizer(text)
