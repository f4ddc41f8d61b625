"""Byte-level BPE (report 4.1): text to token ids and back, without loss for any text and any bytes.

Ids are laid out once and for all: 64 special tokens, the 256 bytes, then one id per merge in the order learned. Room
among the specials is reserved, so that a later special token moves no id; extending a vocabulary only appends
(`extension.py`).

A tokenizer is its special tokens, its splitting pattern and its merges. `Tokenizer.to_json` writes those as a canonical
`tokenizer.json` that the `tokenizers` library, and what builds on it, can open.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from openafm.core.config import Config
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import atomic_file

if TYPE_CHECKING:
    import tokenizers

NUM_SPECIAL_TOKENS = 64
NUM_BYTE_TOKENS = 256

# Where a text is cut before merging; no token crosses a cut. In this order:
PATTERN = "|".join(
    (
        r"['’]\p{L}{1,2}(?![\p{L}\p{M}])",  # short endings: don't, we're, İstanbul'da
        r"[\p{Han}\p{Hiragana}\p{Katakana}ー\x{3099}\x{309A}]+",  # Chinese and Japanese: apart from Latin, no spaces
        r" ?[[\p{L}\p{M}]&&[^\p{Han}\p{Hiragana}\p{Katakana}ー]]+(?:['’](?=\p{L}{3}))?",  # words, with elision: l'homme
        r"\p{N}",  # each digit alone: numbers are copied and computed digit by digit
        r" ?[^\s\p{L}\p{M}\p{N}]+",  # punctuation and symbols, such as the ":" between a JSON key and its text
        r"\s*[\r\n]+",
        r"\s+(?!\S)",  # spaces, less the one that belongs to the next word
        r"\s+",
    )
)
# The same with spaces apart: a word is the same tokens after a space in a message and after a quotation mark in JSON.
PATTERN_SPACES_APART = PATTERN.replace(" ?", "")


class TokenizerError(OpenAFMError):
    """A tokenizer cannot be read, trained or used; the message says why."""


class EncodingError(UsageError):
    """A text cannot be encoded, or token ids cannot be decoded."""


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Ids of the tokens that no text can produce. The same in every tokenizer."""

    pad: int = 0
    bos: int = 1
    eos: int = 2
    turn_end: int = 3
    instructions: int = 4
    user: int = 5
    assistant: int = 6
    tool: int = 7
    tool_definition: int = 8
    tool_calls: int = 9
    response_format: int = 10
    content: int = 11
    image_start: int = 12
    image: int = 13
    image_end: int = 14


SPECIAL_TOKENS = SpecialTokens()

# Ids by the way special tokens are written in files: `<|bos|>` for `bos`.
SPECIAL_TOKEN_IDS = {f"<|{name}|>": id for name, id in asdict(SPECIAL_TOKENS).items()}


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Config):
    """What to learn from text.

    Attributes:
        vocab_size: number of ids, special tokens and bytes included.
        spaces: whether the space before a word belongs to it, which is shorter, or is a token of its own. Apart, what is
            copied from a text into JSON is the same tokens in both; very small models learn to copy only so.
        min_frequency: a pair seen less often than this is not merged.
        max_token_bytes: longest token. Keeps whole clauses of languages without spaces out of the vocabulary.
    """

    vocab_size: int = 16_384
    spaces: Literal["in_words", "apart"] = "in_words"
    min_frequency: int = 2
    max_token_bytes: int = 24

    def __post_init__(self) -> None:
        smallest = NUM_SPECIAL_TOKENS + NUM_BYTE_TOKENS
        self.require(self.vocab_size >= smallest, f"vocab_size must be at least {smallest}, got {self.vocab_size}")
        self.require(self.min_frequency >= 1, f"min_frequency must be at least 1, got {self.min_frequency}")
        self.require(self.max_token_bytes >= 2, f"max_token_bytes must be at least 2, got {self.max_token_bytes}")


@contextlib.contextmanager
def _collecting_later() -> Iterator[None]:
    """No garbage collection inside: looking through the lists of a vocabulary again and again is a third of reading it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Tokenizer:
    """Text to token ids and back. Immutable; safe to share between threads and to send to other processes.

    Args:
        merges: pairs of tokens in the order learned, each token written in the byte alphabet of `characters_of`.
        special_names: names of the special tokens, by id.
        pattern: where a text is cut before merging.
    """

    def __init__(self, merges: Iterable[tuple[str, str]], special_names: Sequence[str] = (), pattern: str = PATTERN) -> None:
        self.merges = tuple(merges)
        self.special_names = tuple(special_names or _default_special_names())
        self.pattern = pattern
        if len(self.special_names) != NUM_SPECIAL_TOKENS:
            raise TokenizerError(f"expected {NUM_SPECIAL_TOKENS} special tokens, got {len(self.special_names)}")
        self._vocab = _vocab(self.merges, self.special_names)
        self._backend = _filled_backend(self._vocab, self.merges, self.special_names, pattern)
        self._model = self._backend.model
        self._bytes = {id: bytes_of(token) for token, id in self._vocab.items() if id >= NUM_SPECIAL_TOKENS}
        self._bytes |= dict.fromkeys(range(NUM_SPECIAL_TOKENS), b"")
        self._byte_ids = [self._vocab[character] for character in _characters()]

    @property
    def special(self) -> SpecialTokens:
        """Ids of the special tokens by what they are for."""
        return SPECIAL_TOKENS

    @functools.cached_property
    def special_ids(self) -> dict[str, int]:
        """Ids of all special tokens by the way they are written."""
        return {name: id for id, name in enumerate(self.special_names)}

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included; ids run from 0 to `vocab_size - 1`."""
        return len(self._vocab)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, 64 hex digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`. A special token spelled out in the text is plain text: this never returns a special id.

        Raises:
            EncodingError: the text holds half of a surrogate pair.
        """
        _check_encodable(text)
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts, on all cores unless TOKENIZERS_PARALLELISM=false."""
        for text in texts:
            _check_encodable(text)
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_bytes(self, data: bytes) -> list[int]:
        """Token ids of any bytes: UTF-8 stretches as `encode` has them, every other byte as its byte token."""
        ids: list[int] = []
        for part in re.split(r"([\udc80-\udcff]+)", data.decode("utf-8", errors="surrogateescape")):
            if "\udc80" <= part[:1] <= "\udcff":
                ids.extend(self._byte_ids[byte] for byte in part.encode("utf-8", errors="surrogateescape"))
            else:
                ids.extend(self.encode(part))
        return ids

    def split(self, text: str) -> list[str]:
        """The words of `text`, in the byte alphabet: the stretches inside which tokens are merged."""
        _check_encodable(text)
        return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(text)]

    def encode_word(self, word: str) -> list[int]:
        """Token ids of one word that `split` gave."""
        return [token.id for token in self._model.tokenize(word)]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids; special tokens render as nothing, bytes that are not UTF-8 as U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Bytes of token ids: the inverse of `encode_bytes`.

        Raises:
            EncodingError: an id outside the vocabulary.
        """
        try:
            return b"".join(map(self._bytes.__getitem__, ids))
        except KeyError as error:
            raise EncodingError(f"token {error} is not one of the {self.vocab_size} of this tokenizer") from None

    def token_bytes(self, id: int) -> bytes:
        """Bytes of one token; empty for a special token."""
        return self.decode_bytes((id,))

    def to_json(self) -> str:
        """Canonical `tokenizer.json`: the same tokenizer gives the same text."""
        return json.dumps(self._file_form(), ensure_ascii=False)

    @staticmethod
    @_collecting_later()
    def from_json(text: str) -> Tokenizer:
        """Read what `to_json` wrote.

        Raises:
            TokenizerError: the text is no tokenizer of openafm, or one that was edited.
        """
        try:
            form = json.loads(text)
            tokenizer = Tokenizer(
                merges=[(left, right) for left, right in form["model"]["merges"]],
                special_names=[token["content"] for token in form["added_tokens"]],
                pattern=form["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"],
            )
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise TokenizerError(f"this is not a tokenizer.json of openafm ({error!r}); train one with it") from error
        canonical = tokenizer._file_form()
        changed = [key for key in canonical.keys() | form.keys() if canonical.get(key) != form.get(key)]
        if changed:
            raise TokenizerError(f"tokenizer.json differs from what its merges say in {', '.join(sorted(changed))}")
        return tokenizer

    def save(self, path: Path) -> None:
        """Write the same JSON as `to_json` to `path`, without white space, atomically."""
        with atomic_file(path, "w") as file:
            file.write(json.dumps(self._file_form(), ensure_ascii=False, separators=(",", ":")))

    @staticmethod
    def load(path: Path) -> Tokenizer:
        """Read a tokenizer from `path`.

        Raises:
            TokenizerError: the file is absent or is no tokenizer of openafm.
        """
        try:
            return Tokenizer.from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, TokenizerError) as error:
            raise TokenizerError(f"cannot read the tokenizer {path}: {error}") from error

    def _file_form(self) -> dict[str, Any]:
        """The tokenizer as the `tokenizers` library stores it."""
        return _file_form(self._vocab, self.merges, self.special_names, self.pattern)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.merges, self.special_names, self.pattern)


def train_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Learn merges from texts. Depends on the texts alone, not on their order, the machine or the number of cores.

    Raises:
        TokenizerError: the texts do not repeat enough for `config.vocab_size`.
    """
    import tokenizers

    pattern = {"in_words": PATTERN, "apart": PATTERN_SPACES_APART}[config.spaces]
    backend = _backend(Tokenizer(merges=(), pattern=pattern).to_json())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        max_token_length=config.max_token_bytes,
        special_tokens=_default_special_names(),
        initial_alphabet=_characters(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    merges = ((left, right) for left, right in json.loads(backend.to_str())["model"]["merges"])
    tokenizer = Tokenizer(merges, pattern=pattern)
    if tokenizer.vocab_size != config.vocab_size:
        raise TokenizerError(
            f"these texts give {tokenizer.vocab_size} tokens, not the {config.vocab_size} asked for; "
            "give more text, a smaller vocab_size (in a recipe that of the tokenizer and of the model) or min_frequency=1"
        )
    return tokenizer


def bytes_of(token: str) -> bytes:
    """The bytes of a token written in the byte alphabet."""
    return bytes(map(_byte_of_character().__getitem__, token))


def characters_of(data: bytes) -> str:
    """`data` in the byte alphabet: one printable character for each byte, the convention of `tokenizer.json` files."""
    return "".join(map(_characters().__getitem__, data))


@functools.cache
def _characters() -> list[str]:
    """By byte: printable Latin-1 characters stand for themselves, the other bytes for U+0100 and on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)]


@functools.cache
def _byte_of_character() -> dict[str, int]:
    return {character: byte for byte, character in enumerate(_characters())}


def _default_special_names() -> list[str]:
    names = {id: name for name, id in SPECIAL_TOKEN_IDS.items()}
    return [names.get(id, f"<|reserved_{id}|>") for id in range(NUM_SPECIAL_TOKENS)]


def _vocab(merges: Iterable[tuple[str, str]], special_names: Sequence[str]) -> dict[str, int]:
    """Ids by token. A token that two merges produce has the id of the first."""
    tokens = [*special_names, *sorted(_characters())]
    vocab = {token: id for id, token in enumerate(tokens)}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    return vocab


def _file_form(
    vocab: dict[str, int], merges: Iterable[tuple[str, str]], special_names: Sequence[str], pattern: str
) -> dict[str, Any]:
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


def _filled_backend(
    vocab: dict[str, int], merges: Sequence[tuple[str, str]], special_names: Sequence[str], pattern: str
) -> tokenizers.Tokenizer:
    """What `_backend` makes of the whole file, in half the time: the library takes the merges as they are, not as text."""
    import tokenizers

    backend = _backend(json.dumps(_file_form(_vocab((), special_names), (), special_names, pattern)))
    try:
        backend.model = tokenizers.models.BPE(vocab=vocab, merges=list(merges))
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"the merges of this tokenizer do not fit together: {error}") from error
    return backend


def _backend(text: str) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"the merges or the pattern of this tokenizer do not fit together: {error}") from error
    backend.encode_special_tokens = True  # that is: encode their spelling as text
    return backend


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EncodingError(
            f"character {error.start} of the text is half of a surrogate pair ({text[error.start]!r}); "
            "mend the text, or give its bytes to encode_bytes"
        ) from None
