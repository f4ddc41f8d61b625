"""Text from tokens as they arrive, in whole characters."""

from __future__ import annotations

import codecs

from openafm.tokenizer.bpe import Tokenizer


class Detokenizer:
    """Turns a stream of token ids into pieces of text that together are what `Tokenizer.decode` gives for all of them.

    A character whose bytes are spread over several tokens comes out with its last one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        """The text that is certain now that token `id` arrived; often the token's own, sometimes none yet.

        Raises:
            EncodingError: an id outside the vocabulary.
        """
        return self._decoder.decode(self._tokenizer.token_bytes(id))

    def finish(self) -> str:
        """What is left at the end: U+FFFD when the stream broke off inside a character, else nothing. Ready for another."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
