"""Byte-level BPE of other houses: any such `tokenizer.json`, with the guarantees of `bpe.py`.

All its added tokens count as special here, those too that their house lets match inside a text (`<tool_call>`, `<think>`):
only a chat template places them, so that no prompt can imitate a turn. Any other text encodes as it does at home.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from openafm.tokenizer.bpe import (
    SPECIAL_TOKEN_IDS,
    SpecialTokens,
    Tokenizer,
    TokenizerError,
    _backend,
    _characters,
    bytes_of,
    characters_of,
)

_MOST_UNUSED = 4096  # ids without a token, beside as many as there are tokens
# Texts on which decoding must undo encoding.
_PROBES = ("a b", "  two\n\n spaces\t", "Kraków 今日は 👍🏽 1234 don't")


class ImportedTokenizer(Tokenizer):
    """A tokenizer that another house trained, from the text of its `tokenizer.json`.

    Raises:
        TokenizerError: it is not byte-level BPE, or a text could encode to one of its added tokens.
        TokenizerError: the text is no `tokenizer.json`.
    """

    def __init__(self, text: str) -> None:
        try:
            self._form = _normal_form(json.loads(text))
            self._vocab: dict[str, int] = dict(self._form["model"]["vocab"])
            added = {token["content"]: token["id"] for token in self._form["added_tokens"]}
            _check_unreachable(self._form["model"], added)
            self._backend = _backend(json.dumps(self._form, ensure_ascii=False))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TokenizerError(f"this is not a tokenizer.json ({error!r})") from error
        self._model = self._backend.model
        self._added = added
        self._bytes = _token_bytes(self._vocab, added)
        self._size = max(self._bytes, default=-1) + 1
        if self._size > 2 * len(self._bytes) + _MOST_UNUSED:
            raise TokenizerError(f"it has {len(self._bytes)} tokens with numbers up to {self._size - 1}")
        self._bytes |= dict.fromkeys(set(range(self._size)) - self._bytes.keys(), b"")  # ids that nobody uses
        if missing := [character for character in _characters() if character not in self._vocab]:
            raise TokenizerError(f"its vocabulary lacks {len(missing)} of the 256 bytes; it must be byte-level")
        self._byte_ids = [self._vocab[character] for character in _characters()]
        self.special_names, self.merges, self.pattern = tuple(added), (), ""
        for probe in _PROBES:
            if self.decode(self.encode(probe)) != probe:
                raise TokenizerError(f"it does not give {probe!r} back: only byte-level BPE can be used here")
        for name, id in added.items():
            if self._backend.token_to_id(name) != id:
                raise TokenizerError(f"its token {name} is number {id} in the file, another when it is read")
            if not set(self.encode(name)).isdisjoint(added.values()):
                raise TokenizerError(f"a text that spells {name} would encode to that token")

    @property
    def special(self) -> SpecialTokens:
        raise TokenizerError(
            "an imported tokenizer has no special tokens of openafm: give it conversations, which its chat template encodes"
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
        return ImportedTokenizer, (self.to_json(),)


def read_tokenizer(text: str) -> Tokenizer:
    """A tokenizer of this house or an imported one, from the text of a bundle's `tokenizer.json`.

    Raises:
        TokenizerError: it is neither.
    """
    is_ours = all(json.dumps(name) in text for name in SPECIAL_TOKEN_IDS)
    return Tokenizer.from_json(text) if is_ours or '"added_tokens"' not in text else ImportedTokenizer(text)


def _normal_form(form: dict[str, Any]) -> dict[str, Any]:
    """The file with all added tokens special, and without what only batches of training need."""
    model, normalizer = form["model"], form.get("normalizer")
    if model.get("dropout"):
        raise TokenizerError("it drops merges at random, so that a text has no tokens of its own")
    if model.get("type", "BPE") != "BPE" or model.get("byte_fallback") or model.get("continuing_subword_prefix"):
        kind = "BPE with byte fallback" if model.get("byte_fallback") else model.get("type")
        raise TokenizerError(f"it is {kind}; only byte-level BPE can be used here")
    if "ByteLevel" not in _kinds(form.get("pre_tokenizer")) or "ByteLevel" not in _kinds(form.get("decoder")):
        raise TokenizerError("it does not work on bytes; only byte-level BPE can be used here")
    if set(_kinds(normalizer)) - {"NFC", "Sequence"}:
        raise TokenizerError(f"it changes texts ({', '.join(_kinds(normalizer))}); only NFC is supported")
    added = [token | {"special": True} for token in form["added_tokens"]]
    return form | {"added_tokens": added, "truncation": None, "padding": None}


def _kinds(part: dict[str, Any] | None) -> list[str]:
    """Names of a part of the file, and of what a sequence holds."""
    if part is None:
        return []
    below = [*part.get("pretokenizers", ()), *part.get("normalizers", ()), *part.get("decoders", ())]
    return [str(part["type"]), *(kind for child in below for kind in _kinds(child))]


def _check_unreachable(model: dict[str, Any], added: dict[str, int]) -> None:
    """No merge may make an added token, and no word may be looked up as one."""
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    products = {"".join(pair) for pair in pairs}
    for name in added:
        spelled = characters_of(name.encode())
        if spelled in products or (model.get("ignore_merges") and spelled in model["vocab"]):
            raise TokenizerError(f"a text that spells {name} would encode to that token")


def _token_bytes(vocab: dict[str, int], added: dict[str, int]) -> dict[int, bytes]:
    special = set(added.values())
    try:
        return {id: b"" if id in special else bytes_of(token) for token, id in vocab.items()} | dict.fromkeys(special, b"")
    except KeyError as error:
        raise TokenizerError(f"its vocabulary holds {error}, which stands for no byte") from None
