"""Tokens per character of each language, before and after an extension of the vocabulary (report 4.1)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.errors import TokenizerError

_SUFFIXES = (".jsonl", ".txt")
_BATCH_SIZE = 256


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Iterate over the texts of one language in one file; each iteration reads the file again."""

    language: str
    path: Path

    def __iter__(self) -> Iterator[str]:
        try:
            with _open(self.path) as file:
                if ".jsonl" in self.path.suffixes:
                    yield from (_text(json.loads(line)["text"]) for line in file if line.strip())
                else:
                    yield file.read()
        except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
            raise TokenizerError(f"cannot read {self.path} as UTF-8 text or JSON lines with a 'text': {error!r}") from error


@dataclass(frozen=True, kw_only=True)
class LanguageCost:
    """Hold the number of tokens of a language's texts with two tokenizers. Characters are code points."""

    language: str
    num_characters: int
    num_tokens_before: int
    num_tokens_after: int

    @property
    def tokens_per_character_before(self) -> float:
        return self.num_tokens_before / self.num_characters

    @property
    def tokens_per_character_after(self) -> float:
        return self.num_tokens_after / self.num_characters


def find_corpora(folder: Path) -> dict[str, Corpus]:
    """Return the corpora of a folder by language: one file per language, named after it.

    Raises:
        TokenizerError: the folder is missing or holds no corpus, or two files have the same language.
    """
    corpora: dict[str, Corpus] = {}
    for path in sorted(folder.glob("[!.]*")):
        if not path.name.removesuffix(".gz").endswith(_SUFFIXES):
            continue
        language = path.name.split(".")[0]
        if language in corpora:
            raise TokenizerError(f"{path} and {corpora[language].path} are both for '{language}'; remove one of them")
        corpora[language] = Corpus(language=language, path=path)
    if not corpora:
        raise TokenizerError(
            f"no texts in {folder}; it needs one file per language, named after it: "
            "en.txt, or en.jsonl with a 'text' in each line (both also gzip-compressed: en.jsonl.gz)"
        )
    return corpora


def language_costs(before: Tokenizer, after: Tokenizer, texts: Mapping[str, Iterable[str]]) -> list[LanguageCost]:
    """Return the costs of each language, in the order of `texts`.

    Raises:
        TokenizerError: the texts of a language are empty.
    """
    return [_language_cost(before, after, language, its_texts) for language, its_texts in texts.items()]


def _language_cost(before: Tokenizer, after: Tokenizer, language: str, texts: Iterable[str]) -> LanguageCost:
    num_characters, num_before, num_after = 0, 0, 0
    for batch in _batches(texts):
        num_characters += sum(map(len, batch))
        num_before += sum(map(len, before.encode_batch(batch)))
        num_after += sum(map(len, after.encode_batch(batch)))
    if not num_characters:
        raise TokenizerError(f"the texts for '{language}' are empty; at least one character is needed")
    return LanguageCost(
        language=language, num_characters=num_characters, num_tokens_before=num_before, num_tokens_after=num_after
    )


def _open(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the text is {value!r}")
    return value


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == _BATCH_SIZE:
            yield batch
            batch = []
    if batch:
        yield batch
