"""Streaming detokenization in whole characters."""

from __future__ import annotations

import codecs

from openafm.tokenizer.bpe import Tokenizer


class Detokenizer:
    """Decode a stream of token ids. The returned texts concatenate to `Tokenizer.decode` of all ids.

    A character whose bytes span several tokens is returned with the last of them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        """Add a token and return the text that it completes, which may be empty.

        Raises:
            EncodingError: the id is outside the vocabulary.
        """
        return self._decoder.decode(self._tokenizer.token_bytes(id))

    def finish(self) -> str:
        """Return the rest and reset: U+FFFD if the stream ended inside a character, else nothing."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
