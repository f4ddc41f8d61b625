"""The `tokenizers` library: its file format, and its errors as typed ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from openafm.tokenizer.errors import EncodingError, TokenizerError

if TYPE_CHECKING:
    import tokenizers


def file_form(
    vocab: dict[str, int], merges: Iterable[tuple[str, str]], special_names: Sequence[str], pattern: str
) -> dict[str, Any]:
    """Return the content of `tokenizer.json`."""
    whole = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id, "content": name, **whole} for id, name in enumerate(special_names)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [list(pair) for pair in merges],
        },
    }


def filled_backend(
    vocab: dict[str, int], merges: Sequence[tuple[str, str]], special_names: Sequence[str], pattern: str
) -> tokenizers.Tokenizer:
    """Return `make_backend` of the whole file in half the time: the merges are passed as objects, not as text."""
    import tokenizers

    backend = make_backend(json.dumps(file_form({name: vocab[name] for name in special_names}, (), special_names, pattern)))
    try:
        backend.model = tokenizers.models.BPE(vocab=vocab, merges=list(merges))
    except BaseException as error:
        raise _invalid(error) from error
    return backend


def make_backend(text: str) -> tokenizers.Tokenizer:
    """Return the library's tokenizer of a `tokenizer.json`, set to encode the spellings of special tokens as text."""
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except BaseException as error:
        raise _invalid(error) from error
    backend.encode_special_tokens = True  # the library's name for: encode their spelling as text
    return backend


def _invalid(error: BaseException) -> BaseException:
    """The library raises no class narrower than Exception; KeyboardInterrupt and the like pass."""
    if not isinstance(error, Exception) and not _is_panic(error):
        return error
    return TokenizerError(f"the vocabulary, merges or pattern of this tokenizer are invalid: {error}")


def _is_panic(error: BaseException) -> bool:
    """Whether the Rust library panicked. Its exception derives from BaseException and cannot be imported."""
    return type(error).__name__ == "PanicException"


def translated(error: BaseException, text: str) -> BaseException:
    """Return the typed form of an error of the library, such as a pattern over the retry limit of its regex engine."""
    if not _is_panic(error):
        return error
    return EncodingError(f"the tokenizer fails on a text of {len(text):,} characters ({error}); split the text")
