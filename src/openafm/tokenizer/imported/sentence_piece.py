"""Tokenizers of SentencePiece: a `tokenizer.json` of BPE or Unigram pieces with byte fallback (Llama 2, Gemma, Mistral).

A piece has "▁" for a space, and characters without a piece are encoded as bytes. Many of these tokenizers insert a space in
front of a text, at its start or after every special token. That depends on what precedes the text, so the chat template
writes these spaces (`prepend_scheme`); `encode` inserts none, which makes it lossless.

Two texts encode differently from the original, where that is not lossless: "▁" itself is encoded as bytes, and a text that
would become a special or byte token is encoded in two parts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from openafm.tokenizer.errors import TokenizerError
from openafm.tokenizer.imported.byte_level import ImportedTokenizer, kinds

SPACE = "▁"
WHITE = f" \t\r\n{SPACE}"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def byte_piece(byte: int) -> str:
    """Return the piece of a byte."""
    return f"<0x{byte:02X}>"


class SentencePieceTokenizer(ImportedTokenizer):
    """Use a SentencePiece tokenizer, given the text of its `tokenizer.json`.

    Added tokens of white space are text, as in Gemma; all others are special.

    Raises:
        TokenizerError: the text is not a `tokenizer.json` with byte fallback, or the tokenizer changes texts.
    """

    def _normal_form(self, form: dict[str, Any]) -> dict[str, Any]:
        model = form["model"]
        if model.get("type", "BPE") not in ("BPE", "Unigram") or not model.get("byte_fallback"):
            raise TokenizerError(f"the tokenizer is {model.get('type')} without byte fallback; that is not supported")
        if model.get("dropout"):
            raise TokenizerError("the tokenizer has BPE dropout, so its output is random; set dropout to null")
        normalizers, pre_tokenizers = _steps(form.get("normalizer")), _steps(form.get("pre_tokenizer"))
        for step in (*normalizers, *pre_tokenizers):
            if not _is_lossless(step):
                raise TokenizerError(
                    f"the tokenizer changes texts ({_stated(step)}); supported are NFC and {SPACE!r} for spaces"
                )
        added = [token | {"special": bool(token["content"].strip(WHITE))} for token in form["added_tokens"]]
        self.prepend_scheme = _scheme(normalizers, pre_tokenizers)
        if self.prepend_scheme == "always" and not all(token["special"] for token in added):
            raise TokenizerError("the tokenizer inserts spaces between tokens of white space; that is not supported")
        return form | {"added_tokens": added, "truncation": None, "padding": None}

    def _backend_form(self) -> dict[str, Any]:
        """The form without inserted spaces."""
        return self._form | {
            "normalizer": _sequence("normalizers", _steps(self._form.get("normalizer"))),
            "pre_tokenizer": _sequence("pretokenizers", _steps(self._form.get("pre_tokenizer"))),
        }

    def _read_pieces(self, added: dict[str, int]) -> None:
        model = self._form["model"]
        is_unigram = model.get("type") == "Unigram"
        vocab = {piece: id for id, (piece, _) in enumerate(model["vocab"])} if is_unigram else dict(model["vocab"])
        unknown = model.get("unk_id") if is_unigram else vocab.get(model.get("unk_token"))
        special = {*added.values(), *([] if unknown is None else [unknown])}
        texts = {token["content"]: token["id"] for token in self._form["added_tokens"] if not token["special"]}
        found = {id: b"" if id in special else _bytes_of(piece) for piece, id in (vocab | texts).items()}
        self._set_bytes(found | dict.fromkeys(special, b""))
        if missing := [byte for byte in range(256) if byte_piece(byte) not in vocab]:
            raise TokenizerError(f"the vocabulary lacks {len(missing)} of the 256 bytes; byte fallback needs all of them")
        self._byte_ids = [vocab[byte_piece(byte)] for byte in range(256)]
        reachable = set(vocab) if is_unigram else _products(model)
        names = {piece for piece, id in vocab.items() if id in special or _BYTE.fullmatch(piece)} | added.keys()
        self._cuts = _cuts(sorted(names & reachable))
        self._is_normalized = "NFC" in kinds(self._form.get("normalizer"))

    def encode(self, text: str) -> list[int]:
        parts = self._parts(text)
        return super().encode(text) if parts == [text] else self._joined(parts, iter(super().encode_batch(parts)))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        parts = [self._parts(text) for text in texts]
        encoded = iter(super().encode_batch([part for each in parts for part in each]))
        return [self._joined(each, encoded) for each in parts]

    def _joined(self, parts: Iterable[str], encoded: Iterator[list[int]]) -> list[int]:
        """Return the tokens of a text from those of its parts; "▁" is encoded as bytes."""
        ids: list[int] = []
        for part in parts:
            tokens = next(encoded)
            ids += [self._byte_ids[byte] for byte in SPACE.encode()] if part == SPACE else tokens
        return ids

    def split(self, text: str) -> list[str]:
        raise TokenizerError("a SentencePiece tokenizer has no words; vocabulary extension needs a tokenizer of openafm")

    def _parts(self, text: str) -> list[str]:
        """Return parts that are encoded alone: texts, and each "▁"."""
        if self._is_normalized:
            text = unicodedata.normalize("NFC", text)  # before the cuts: the Kelvin sign becomes "K"
        parts, done = list[str](), 0
        for match in self._cuts.finditer(text):
            parts += [text[done : match.start()], SPACE] if match[0] == SPACE else [text[done : match.end()]]
            done = match.end()
        return [*parts, text[done:]]


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the members of a component of the file in order."""
    if part is None:
        return []
    below = [*part.get("pretokenizers", ()), *part.get("normalizers", ())]
    return [step for child in below for step in _steps(child)] if part["type"] == "Sequence" else [part]


def _is_lossless(step: dict[str, Any]) -> bool:
    match step:
        case {"type": "Prepend", "prepend": text}:
            return bool(text == SPACE)
        case {"type": "Replace", "pattern": {"String": " "}, "content": text}:
            return bool(text == SPACE)
        case {"type": "Metaspace"}:
            return bool(step.get("replacement", SPACE) == SPACE)
        case {"type": "Split"}:
            return bool(step["behavior"] != "Removed")
    return step["type"] in ("NFC", "Digits")


def _stated(step: dict[str, Any]) -> str:
    return f"{step['type']} {step['pattern']!r:.60}" if "pattern" in step else str(step["type"])


def _scheme(normalizers: Iterable[dict[str, Any]], pre_tokenizers: Iterable[dict[str, Any]]) -> Any:
    """Return where the tokenizer inserts a space: `never`, `first` or `always`."""
    if any(step["type"] == "Prepend" for step in normalizers):
        return "always"
    stated = [
        step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
        for step in pre_tokenizers
        if step["type"] == "Metaspace"
    ]
    return stated[0] if stated else "never"


def _sequence(key: str, steps: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    kept = [_without_prefix(step) for step in steps if step["type"] != "Prepend"]
    return {"type": "Sequence", key: kept} if kept else None


def _without_prefix(step: dict[str, Any]) -> dict[str, Any]:
    if step["type"] != "Metaspace":
        return step
    return {key: value for key, value in step.items() if key != "add_prefix_space"} | {"prepend_scheme": "never"}


def _bytes_of(piece: str) -> bytes:
    byte = _BYTE.fullmatch(piece)
    return bytes.fromhex(byte[1]) if byte else piece.replace(SPACE, " ").encode()


def _products(model: dict[str, Any]) -> set[str]:
    """Return the pieces that merges produce."""
    return {"".join(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]}


def _cuts(names: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of "▁", and of the first character of each name."""
    spelled = [name.replace(SPACE, " ") for name in names]
    return re.compile("|".join([SPACE, *(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in spelled)]))
