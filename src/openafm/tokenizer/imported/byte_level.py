"""Tokenizers of open-weight models: any byte-level BPE `tokenizer.json`, with the guarantees of `bpe.py`.

`sentence_piece.py` has those without a byte alphabet.

All added tokens are special here, including those that the original tokenizer matches inside text (`<tool_call>`,
`<think>`). Only a chat template writes them, so no prompt can imitate a turn. All other text encodes as in the original.
"""

from __future__ import annotations

import functools
import json
import unicodedata
from typing import Any

from openafm.tokenizer.backend import make_backend
from openafm.tokenizer.bpe import SpecialTokens, Tokenizer
from openafm.tokenizer.byte_alphabet import bytes_of, characters, characters_of
from openafm.tokenizer.errors import TokenizerError

_MAX_UNUSED = 4096  # ids without a token, in addition to one for each token
_SUPPORTED = "supported are byte-level BPE, and BPE and Unigram with byte fallback"
# Texts that must survive encoding and decoding.
_PROBES = ("a b", "  two\n\n spaces\t", "Kraków 今日は 👍🏽 1234 don't")


class ImportedTokenizer(Tokenizer):
    """Use the tokenizer of an open-weight model, given the text of its `tokenizer.json`.

    Raises:
        TokenizerError: the text is not a `tokenizer.json` of byte-level BPE, or a text could encode to an added token.
    """

    is_imported = True

    def __init__(self, text: str) -> None:
        try:
            self._form = self._normal_form(json.loads(text))
            added = {token["content"]: token["id"] for token in self._form["added_tokens"] if token["special"]}
            self._backend = make_backend(json.dumps(self._backend_form(), ensure_ascii=False))
            self._read_pieces(added)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise TokenizerError(f"not a tokenizer.json ({error!r})") from error
        self._model = self._backend.model
        self._added = added
        self.special_names, self.merges, self.pattern = tuple(added), (), ""
        self._check_round_trips()

    def _normal_form(self, form: dict[str, Any]) -> dict[str, Any]:
        """Return the file with all added tokens special, and without truncation and padding."""
        model, normalizer = form["model"], form.get("normalizer")
        if model.get("dropout"):
            raise TokenizerError("the tokenizer has BPE dropout, so its output is random; set dropout to null")
        if model.get("type", "BPE") != "BPE" or model.get("byte_fallback") or model.get("continuing_subword_prefix"):
            kind = "byte-level BPE with byte fallback" if model.get("byte_fallback") else model.get("type")
            raise TokenizerError(f"the tokenizer is {kind}; {_SUPPORTED}")
        if "ByteLevel" not in kinds(form.get("pre_tokenizer")) or "ByteLevel" not in kinds(form.get("decoder")):
            raise TokenizerError(f"the tokenizer does not work on bytes; {_SUPPORTED}")
        if set(kinds(normalizer)) - {"NFC", "Sequence"}:
            raise TokenizerError(f"the tokenizer normalizes text ({', '.join(kinds(normalizer))}); only NFC is supported")
        added = [token | {"special": True} for token in form["added_tokens"]]
        return form | {"added_tokens": added, "truncation": None, "padding": None}

    def _backend_form(self) -> dict[str, Any]:
        """Return the file that the library reads."""
        return self._form

    def _read_pieces(self, added: dict[str, int]) -> None:
        """Fill the table of bytes by id, and check that no text encodes to an added token."""
        model, vocab = self._form["model"], dict[str, int](self._form["model"]["vocab"])
        _check_unreachable(model, added)
        self._set_bytes(_token_bytes(vocab, added))
        if missing := [character for character in characters() if character not in vocab]:
            raise TokenizerError(f"the vocabulary lacks {len(missing)} of the 256 bytes; {_SUPPORTED}")
        self._byte_ids = [vocab[character] for character in characters()]

    def _set_bytes(self, found: dict[int, bytes]) -> None:
        self._bytes = found
        self._size = max(self._bytes, default=-1) + 1
        if self._size > 2 * len(self._bytes) + _MAX_UNUSED:
            raise TokenizerError(
                f"the tokenizer has {len(self._bytes)} tokens with ids up to {self._size - 1}; too many unused"
            )
        self._bytes |= dict.fromkeys(set(range(self._size)) - self._bytes.keys(), b"")  # unused ids

    def _check_round_trips(self) -> None:
        """Check that texts survive encoding and that no text encodes to an added token."""
        for probe in _PROBES:
            if self.decode(self.encode(probe)) != probe:
                raise TokenizerError(f"{probe!r} does not survive encoding and decoding; {_SUPPORTED}")
        for name, id in self._added.items():
            if self._backend.token_to_id(name) != id:
                raise TokenizerError(f"the token {name} has id {id} in the file and another id once loaded")
            if not set(self.encode(name)).isdisjoint(self._added.values()):
                raise TokenizerError(f"text containing {name!r} would be encoded as a control token")

    def fewest_tokens(self, text: str) -> int:
        is_normalized = "NFC" in kinds(self._form.get("normalizer"))
        return super().fewest_tokens(unicodedata.normalize("NFC", text) if is_normalized else text)

    @property
    def special(self) -> SpecialTokens:
        raise TokenizerError(
            "an imported tokenizer has no special tokens of openafm; encode conversations with its chat template instead"
        )

    @functools.cached_property
    def special_ids(self) -> dict[str, int]:
        return self._added

    @property
    def vocab_size(self) -> int:
        return self._size

    def _file_form(self) -> dict[str, Any]:
        return self._form

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.to_json(),)


def kinds(part: dict[str, Any] | None) -> list[str]:
    """Return the types of a component of the file, and of the members of a sequence."""
    if part is None:
        return []
    below = [*part.get("pretokenizers", ()), *part.get("normalizers", ()), *part.get("decoders", ())]
    return [str(part["type"]), *(kind for child in below for kind in kinds(child))]


def _check_unreachable(model: dict[str, Any], added: dict[str, int]) -> None:
    """Check that no merge produces an added token, and that no whole word is looked up as one."""
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    products = {"".join(pair) for pair in pairs}
    for name in added:
        spelled = characters_of(name.encode())
        if spelled in products or (model.get("ignore_merges") and spelled in model["vocab"]):
            raise TokenizerError(f"text containing {name!r} would be encoded as a control token")


def _token_bytes(vocab: dict[str, int], added: dict[str, int]) -> dict[int, bytes]:
    special = set(added.values())
    try:
        return {id: b"" if id in special else bytes_of(token) for token, id in vocab.items()} | dict.fromkeys(special, b"")
    except KeyError as error:
        raise TokenizerError(f"the vocabulary holds {error}, which is not in the byte alphabet") from None
