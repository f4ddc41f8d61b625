"""SentencePiece's own form of BPE (pieces with scores and kinds, as in GGUF files) as a `tokenizer.json`.

It has no list of merges: the two neighbors whose concatenation is the piece with the highest score are merged first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from openafm.tokenizer.errors import TokenizerError
from openafm.tokenizer.imported.sentence_piece import SPACE, WHITE

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_MAX_LENGTH = 512  # the merges of a piece take time that is quadratic in its length


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece: its text with "▁" for a space, its score, and its kind (`NORMAL`, ...)."""

    text: str
    score: float
    kind: int

    @property
    def is_space(self) -> bool:
        """Whether it is white space that is matched before all other pieces."""
        return self.kind == USER_DEFINED and not self.text.strip(WHITE)


def sentence_piece_form(pieces: Sequence[Piece], *, prepend_scheme: Literal["never", "always"]) -> dict[str, Any]:
    """Return the content of a `tokenizer.json` with the same tokens for every text.

    Args:
        pieces: by id.

    Raises:
        TokenizerError: there is no piece for unknown characters, or a piece is too long.
    """
    longest = max((len(piece.text) for piece in pieces), default=0)
    if longest > _MAX_LENGTH:
        raise TokenizerError(f"a piece has {longest:,} characters; the most is {_MAX_LENGTH}. Restore the file")
    texts = [piece.text.replace(SPACE, " ") if piece.is_space else piece.text for piece in pieces]
    unknown = next((id for id, piece in enumerate(pieces) if piece.kind == UNKNOWN), None)
    if unknown is None:
        raise TokenizerError("the tokenizer has no piece for unknown characters; restore the file")
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = [{"type": "Prepend", "prepend": SPACE}] if prepend_scheme == "always" else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prepend else []
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": id, "content": texts[id], "special": piece.kind != USER_DEFINED, **flags}
            for id, piece in enumerate(pieces)
            if piece.kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ],
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": {
            "type": "BPE",
            "unk_token": texts[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {text: id for id, text in enumerate(texts) if pieces[id].kind != UNUSED},
            "merges": list(_merges(pieces)),
        },
    }


def _merges(pieces: Sequence[Piece]) -> Iterator[list[str]]:
    """Yield every pair of pieces whose concatenation is a piece, in the order of its score."""
    normal = {piece.text: piece for piece in pieces if piece.kind == NORMAL}
    for piece in sorted(normal.values(), key=lambda piece: -piece.score):
        text = piece.text
        for split in range(1, len(text)):
            if text[:split] in normal and text[split:] in normal:
                yield [text[:split], text[split:]]
