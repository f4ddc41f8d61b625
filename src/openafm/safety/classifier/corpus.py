"""The corpus that comes with openafm: requests by subcategory, harmless ones with the same words, and classes of words.

`patterns/LOCALE.toml` holds patterns with slots, such as `hide {weapon} from the police`. Each pattern is filled until every
word of its longest slot was used, at most `_MOST_FILLS` times, and each fill is put into one frame. Slots and frames are
chosen by digests of the pattern, so the texts are the same everywhere. `classes` are word stems by meaning, with the same
names in all languages; see `word_classes.py`.
"""

from __future__ import annotations

import re
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

LOCALES = ("de", "en", "es", "fr", "it", "pt")
_MOST_FILLS = 16
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class CorpusText:
    """A filled pattern. `category` is None if it is harmless."""

    text: str
    act: str
    pattern: str
    category: str | None
    is_response: bool = False


def corpus_texts(locale: str) -> Iterator[CorpusText]:
    """Return the filled patterns of a language, as prompts and as responses."""
    data = corpus_data(locale)
    slots = {name: [word.strip() for word in words.split("|")] for name, words in data["slots"].items()}
    for part in ("acts", "harmless", "prompts", "harmless_prompts"):
        for key, patterns in data[part].items():
            category = None if part.startswith("harmless") else key.partition(".")[0]
            for pattern in patterns.split("\n"):
                for act in _fills(pattern, slots) if pattern else ():
                    prompt = act if part.endswith("prompts") else _framed(act, data["frames"])
                    yield CorpusText(text=prompt, act=act, pattern=pattern, category=category)
                    if not part.endswith("prompts"):
                        response = _framed(act, data["responses"])
                        yield CorpusText(text=response, act=act, pattern=pattern, category=category, is_response=True)


@lru_cache(maxsize=len(LOCALES))
def corpus_data(locale: str) -> Mapping[str, Any]:
    """Return the corpus file of a language."""
    return tomllib.loads(files("openafm.safety.classifier").joinpath(f"patterns/{locale}.toml").read_text(encoding="utf-8"))


def _framed(act: str, frames: Sequence[str]) -> str:
    return frames[zlib.crc32(act.encode()) % len(frames)].replace("{}", act)


def _fills(pattern: str, slots: Mapping[str, Sequence[str]]) -> Iterator[str]:
    options = [slots[name] for name in _SLOT.findall(pattern)]
    start = zlib.crc32(pattern.encode())
    for index in range(min(_MOST_FILLS, max(map(len, options), default=1))):
        # Slots advance in different steps, so that their words meet in different pairs.
        text = pattern
        for place, words in enumerate(options):
            text = _SLOT.sub(words[(start + index * (1 + 6 * place)) % len(words)], text, count=1)
        yield text
