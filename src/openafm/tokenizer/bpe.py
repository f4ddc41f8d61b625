"""Byte-level BPE (report 4.1): text to token ids and back, lossless for any text and any bytes.

The layout of ids is fixed: 64 special tokens, the 256 bytes, then one id per merge in the order learned. Some special ids
are reserved, so a new special token moves no id; extending a vocabulary only appends (`extension.py`).

A tokenizer consists of its special tokens, its splitting pattern and its merges. `Tokenizer.to_json` writes them as a
canonical `tokenizer.json`, which the `tokenizers` library reads.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from openafm.core.config import Config
from openafm.core.files import atomic_file
from openafm.core.regular_files import OversizeFilesError, read_document
from openafm.tokenizer.backend import file_form, filled_backend, make_backend, translated
from openafm.tokenizer.byte_alphabet import bytes_of, characters
from openafm.tokenizer.errors import EncodingError, TokenizerError

if TYPE_CHECKING:
    pass

NUM_SPECIAL_TOKENS = 64
NUM_BYTE_TOKENS = 256

# Regular expression that splits text into words before merging; no token crosses a word boundary. Alternatives, in order:
PATTERN = "|".join(
    (
        r"['’]\p{L}{1,2}(?![\p{L}\p{M}])",  # short endings: don't, we're, İstanbul'da
        r"[\p{Han}\p{Hiragana}\p{Katakana}ー\x{3099}\x{309A}]+",  # Chinese and Japanese: separate from Latin, no spaces
        r" ?[[\p{L}\p{M}]&&[^\p{Han}\p{Hiragana}\p{Katakana}ー]]+(?:['’](?=\p{L}{3}))?",  # words, with elision: l'homme
        r"\p{N}",  # single digits: models copy and compute numbers digit by digit
        r" ?[^\s\p{L}\p{M}\p{N}]+",  # punctuation and symbols, such as the '":"' of JSON
        r"\s*[\r\n]+",
        r"\s+(?!\S)",  # spaces, except the one in front of the next word
        r"\s+",
    )
)
# The same with separate spaces: a word has the same tokens after a space in a message and after a quotation mark in JSON.
PATTERN_SPACES_APART = PATTERN.replace(" ?", "")


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Ids of the tokens that no text encodes to. The same in every tokenizer of openafm."""

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

# Ids by the spelling of special tokens in files: `<|bos|>` for `bos`.
SPECIAL_TOKEN_IDS = {f"<|{name}|>": id for name, id in asdict(SPECIAL_TOKENS).items()}


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Config):
    """Configure the training of a tokenizer.

    Attributes:
        vocab_size: number of ids, including special tokens and bytes.
        spaces: "in_words" puts the space before a word into its token, which gives fewer tokens. "apart" makes spaces
            separate tokens, so a word has the same tokens in prose and in JSON; very small models learn to copy only then.
        min_frequency: pairs that occur less often are not merged.
        max_token_bytes: length of the longest token. Keeps whole clauses out of the vocabulary of languages without spaces.
    """

    vocab_size: int = 16_384
    spaces: Literal["in_words", "apart"] = "in_words"
    min_frequency: int = 2
    max_token_bytes: int = 24

    def __post_init__(self) -> None:
        smallest = NUM_SPECIAL_TOKENS + NUM_BYTE_TOKENS
        self.require(
            self.vocab_size >= smallest,
            f"vocab_size {self.vocab_size} is below the {smallest} special and byte tokens; use {smallest} or more",
        )
        self.require(self.min_frequency >= 1, f"min_frequency must be at least 1, got {self.min_frequency}")
        self.require(self.max_token_bytes >= 2, f"max_token_bytes must be at least 2, got {self.max_token_bytes}")


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause garbage collection, which takes a third of the time to read a vocabulary."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Tokenizer:
    """Encode text to token ids and decode them. Immutable, picklable and safe to share between threads.

    Args:
        merges: pairs of tokens in the order learned, each token written in the byte alphabet of `characters_of`.
        special_names: spellings of the special tokens, by id.
        pattern: regular expression that splits text into words.

    Attributes:
        is_imported: whether it belongs to an open-weight model, and has none of openafm's special tokens.
        prepend_scheme: where an imported tokenizer inserts a space in front of a text: never, at the start of a whole text
            (`first`) or also after every special token (`always`). Chat templates write these spaces; `encode` does not.
    """

    is_imported = False
    prepend_scheme: Literal["never", "first", "always"] = "never"

    def __init__(self, merges: Iterable[tuple[str, str]], special_names: Sequence[str] = (), pattern: str = PATTERN) -> None:
        self.merges = tuple(merges)
        self.special_names = tuple(special_names or _default_special_names())
        self.pattern = pattern
        if len(self.special_names) != NUM_SPECIAL_TOKENS:
            raise TokenizerError(f"expected {NUM_SPECIAL_TOKENS} special tokens, got {len(self.special_names)}")
        self._vocab = _vocab(self.merges, self.special_names)
        self._backend = filled_backend(self._vocab, self.merges, self.special_names, pattern)
        self._model = self._backend.model
        self._bytes = {id: bytes_of(token) for token, id in self._vocab.items() if id >= NUM_SPECIAL_TOKENS}
        self._bytes |= dict.fromkeys(range(NUM_SPECIAL_TOKENS), b"")
        self._byte_ids = [self._vocab[character] for character in characters()]

    @functools.cached_property
    def _most_bytes(self) -> int:
        """Length of the longest token."""
        return max(map(len, self._bytes.values()))

    @property
    def special(self) -> SpecialTokens:
        """Ids of the special tokens by purpose."""
        return SPECIAL_TOKENS

    @functools.cached_property
    def special_ids(self) -> dict[str, int]:
        """Ids of all special tokens by spelling."""
        return {name: id for id, name in enumerate(self.special_names)}

    @property
    def vocab_size(self) -> int:
        """Number of ids, including special tokens; ids are 0 to `vocab_size - 1`."""
        return len(self._vocab)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, 64 hex digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, none of them special: a special token spelled out in the text is plain text.

        Raises:
            EncodingError: the text holds half of a surrogate pair, or the splitting pattern fails on it.
        """
        check_encodable(text)
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        except BaseException as error:
            raise translated(error, text) from None
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return `encode` of many texts, computed on all cores unless TOKENIZERS_PARALLELISM=false."""
        for text in texts:
            check_encodable(text)
        try:
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException as error:
            raise translated(error, max(texts, key=len, default="")) from None
        return [encoding.ids for encoding in encodings]

    def fewest_tokens(self, text: str) -> int:
        """Return a lower bound of the number of tokens of `text`, from its length in bytes.

        Takes a fraction of the time of `encode`: callers with a limit reject oversized texts with it.
        """
        return -(-len(text.encode(errors="replace")) // self._most_bytes)

    def encode_bytes(self, data: bytes) -> list[int]:
        """Return the token ids of any bytes: valid UTF-8 as `encode` returns it, each other byte as its byte token."""
        ids: list[int] = []
        for part in re.split(r"([\udc80-\udcff]+)", data.decode("utf-8", errors="surrogateescape")):
            if "\udc80" <= part[:1] <= "\udcff":
                ids.extend(self._byte_ids[byte] for byte in part.encode("utf-8", errors="surrogateescape"))
            else:
                ids.extend(self.encode(part))
        return ids

    def split(self, text: str) -> list[str]:
        """Return the words of `text` in the byte alphabet. Tokens are merged inside words only.

        Raises:
            EncodingError: as `encode`.
        """
        check_encodable(text)
        try:
            return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(text)]
        except BaseException as error:
            raise translated(error, text) from None

    def encode_word(self, word: str) -> list[int]:
        """Return the token ids of one word from `split`."""
        return [token.id for token in self._model.tokenize(word)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids. Special tokens have no text; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def spell(self, ids: Iterable[int]) -> str:
        """Return the text of a conversation with its special tokens spelled out, without the spaces of `prepend_scheme`."""
        names = {id: name for name, id in self.special_ids.items()}
        text, is_prefixed = "", self.prepend_scheme != "never"
        for is_special, run in itertools.groupby(ids, key=names.__contains__):
            tokens = list(run)
            part = "".join(map(names.__getitem__, tokens)) if is_special else self.decode(tokens)
            text += part.removeprefix(" ") if is_prefixed and not is_special else part
            is_prefixed = self.prepend_scheme == "always"
        return text

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of token ids: the inverse of `encode_bytes`.

        Raises:
            EncodingError: an id is outside the vocabulary.
        """
        try:
            return b"".join(map(self._bytes.__getitem__, ids))
        except KeyError as error:
            raise EncodingError(f"token {error} is outside the vocabulary, 0 to {self.vocab_size - 1}") from None

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of one token; empty for a special token."""
        return self.decode_bytes((id,))

    def vocabulary(self) -> list[bytes]:
        """Return the bytes of every token by id; empty for special tokens."""
        return list(map(self._bytes.__getitem__, range(self.vocab_size)))

    def to_json(self) -> str:
        """Return the canonical `tokenizer.json`: equal tokenizers give equal text."""
        return json.dumps(self._file_form(), ensure_ascii=False)

    @staticmethod
    @_without_garbage_collection()
    def from_json(text: str) -> Tokenizer:
        """Read the output of `to_json`.

        Raises:
            TokenizerError: the text is not a tokenizer of openafm, or was edited.
        """
        try:
            form = json.loads(text)
            tokenizer = Tokenizer(
                merges=[(left, right) for left, right in form["model"]["merges"]],
                special_names=[token["content"] for token in form["added_tokens"]],
                pattern=form["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"],
            )
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise TokenizerError(
                f"not a tokenizer.json of openafm ({error!r}); train one with `openafm tokenizer`"
            ) from error
        canonical = tokenizer._file_form()
        changed = [key for key in canonical.keys() | form.keys() if canonical.get(key) != form.get(key)]
        if changed:
            raise TokenizerError(f"tokenizer.json does not match its own merges in {', '.join(sorted(changed))}; restore it")
        return tokenizer

    def save(self, path: Path) -> None:
        """Write the JSON of `to_json` to `path`, without white space, atomically."""
        with atomic_file(path, "w") as file:
            file.write(json.dumps(self._file_form(), ensure_ascii=False, separators=(",", ":")))

    @staticmethod
    def load(path: Path) -> Tokenizer:
        """Read a tokenizer from `path`.

        Raises:
            TokenizerError: the file is missing or is not a tokenizer of openafm.
        """
        try:
            return Tokenizer.from_json(read_document(path).decode())
        except (OSError, OversizeFilesError, UnicodeDecodeError, TokenizerError) as error:
            raise TokenizerError(f"cannot read the tokenizer {path}: {error}") from error

    def _file_form(self) -> dict[str, Any]:
        """Return the file format of the `tokenizers` library."""
        return file_form(self._vocab, self.merges, self.special_names, self.pattern)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.merges, self.special_names, self.pattern)


def train_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Return a tokenizer with merges learned from texts. Independent of their order, the machine and the number of cores.

    Raises:
        TokenizerError: the texts have too few repeated pairs for `config.vocab_size`.
    """
    import tokenizers

    pattern = {"in_words": PATTERN, "apart": PATTERN_SPACES_APART}[config.spaces]
    backend = make_backend(Tokenizer(merges=(), pattern=pattern).to_json())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        max_token_length=config.max_token_bytes,
        special_tokens=_default_special_names(),
        initial_alphabet=characters(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    merges = ((left, right) for left, right in json.loads(backend.to_str())["model"]["merges"])
    tokenizer = Tokenizer(merges, pattern=pattern)
    if tokenizer.vocab_size != config.vocab_size:
        raise TokenizerError(
            f"the texts give {tokenizer.vocab_size} tokens, vocab_size is {config.vocab_size}; use more text, "
            "a smaller vocab_size (in a recipe: of the tokenizer and of the model) or min_frequency=1"
        )
    return tokenizer


def _default_special_names() -> list[str]:
    names = {id: name for name, id in SPECIAL_TOKEN_IDS.items()}
    return [names.get(id, f"<|reserved_{id}|>") for id in range(NUM_SPECIAL_TOKENS)]


def _vocab(merges: Iterable[tuple[str, str]], special_names: Sequence[str]) -> dict[str, int]:
    """Ids by token. A token that two merges produce has the id of the first merge."""
    tokens = [*special_names, *sorted(characters())]
    vocab = {token: id for id, token in enumerate(tokens)}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    return vocab


def check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EncodingError(_unencodable(text, error.start)) from None


def _unencodable(text: str, position: int) -> str:
    character = text[position]
    if "\udc80" <= character <= "\udcff":  # Python's form of a byte that it could not decode
        return (
            f"character {position} of the text is the byte 0x{ord(character) - 0xDC00:02X}, which is not UTF-8; convert the"
            " text, such as with iconv -f latin1 -t utf-8"
        )
    return (
        f"character {position} of the text is half of a surrogate pair ({character!r}); fix the text, such as with"
        " text.encode('utf-16', 'surrogatepass').decode('utf-16') for two halves"
    )
