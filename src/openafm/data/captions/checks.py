"""Checks of generated texts. Answers that are empty, refuse, repeat themselves or are not language have a reason."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from openafm.data.captions.cache import Answer, NoAnswer, Outcome

REASONS = ("empty", "endless", "refused", "echo", "garbled", "repetitive", "too_short", "too_long", "format")
"""Reasons for which an answer is dropped. `endless`: it did not end within its limits of tokens and seconds."""

_FENCE = re.compile(r"^```[\w-]*\n(.*?)\n?```$", re.DOTALL)
_LEAD = re.compile(r"^(?:(?:image )?(?:caption|description|keywords|answer)s?)\s*[:：]\s*", re.IGNORECASE)
_REFUSAL = re.compile(
    r"^(?:i(?:'|\N{RIGHT SINGLE QUOTATION MARK})?m sorry|i am sorry|sorry,|i (?:can(?:no|')t|cannot|am (?:not able|unable))"
    r"|as an? (?:ai|language model)|unfortunately, i)",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+(?:['\N{RIGHT SINGLE QUOTATION MARK}][^\W_]+)*")
_SPACELESS = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_SEPARATORS = re.compile(r"[,;\n\u3001\uff0c\u060c\uff1b]+")
_BULLET = re.compile(r"^\s*(?:[-*\u2022]|\d{1,2}[.)])\s*")
_CONTROL_TOKEN = re.compile(r"<\|[^|>]{1,40}\|>|</?(?:s|unk|pad|bos|eos)>|\[/?INST\]")
_MAX_WORD = 60
_MIN_LETTER_SHARE = 0.5
_MAX_REPEATED_SHARE = 0.3
_NGRAM = 3
_ECHO_CHARACTERS = 40
_MAX_KEYWORDS = 30
_MAX_KEYWORD_WORDS = 5


def text_check(prompt: str, *, min_words: int = 1, max_words: int = 400) -> Callable[[str], Outcome]:
    """Return the check of an answer to `prompt` in prose."""

    def check(text: str) -> Outcome:
        text = cleaned(text)
        problem = prose_problem(text, prompt)
        if problem is not None:
            return problem
        count = num_words(text)
        if not min_words <= count <= max_words:
            reason = "too_short" if count < min_words else "too_long"
            return NoAnswer(reason=reason, detail=f"{count} words, allowed are {min_words} to {max_words}: {text[:120]}")
        return Answer(text=text)

    return check


def keywords_check(prompt: str, *, min_words: int = 2, max_words: int = 60) -> Callable[[str], Outcome]:
    """Return the check of an answer that lists key words; its text is the distinct key words, joined by commas."""

    def check(text: str) -> Outcome:
        text = cleaned(text)
        problem = prose_problem(text, prompt, repetition=False)
        if problem is not None:
            return problem
        items = [_BULLET.sub("", item).strip(" .\u3002\"'") for item in _SEPARATORS.split(text)]
        items = [item for item in items if item]
        distinct = list(dict.fromkeys(item.casefold() for item in items))
        if len(items) > 4 and len(distinct) < (1 - _MAX_REPEATED_SHARE) * len(items):
            return NoAnswer(reason="repetitive", detail=text[:120])
        if len(distinct) > _MAX_KEYWORDS or num_words(text) > max_words:
            return NoAnswer(reason="too_long", detail=f"{len(distinct)} key words: {text[:120]}")
        if any(num_words(item) > _MAX_KEYWORD_WORDS for item in items):
            return NoAnswer(reason="format", detail=f"key words expected: {text[:120]}")
        if len(distinct) < min_words:
            return NoAnswer(reason="too_short", detail=f"{len(distinct)} key words: {text[:120]}")
        first = {item.casefold(): item for item in reversed(items)}
        return Answer(text=", ".join(first[item] for item in distinct))

    return check


def cleaned(text: str) -> str:
    """Return an answer without code fences, quotation marks around all of it, and a lead such as `Caption:`."""
    text = text.replace("\r\n", "\n").strip()
    if fenced := _FENCE.match(text):
        text = fenced[1].strip()
    text = _LEAD.sub("", text)
    for opening, closing in ('""', "\u201c\u201d", "\u201e\u201c", "\u00ab\u00bb"):
        if text.startswith(opening) and text.endswith(closing) and text.count(opening) + text.count(closing) in (2, 4):
            text = text[1:-1].strip()
    return text


def prose_problem(text: str, prompt: str, *, repetition: bool = True) -> NoAnswer | None:
    """Return why a cleaned answer is not usable text, or None."""
    letters = sum(each.isalnum() or unicodedata.category(each).startswith("M") for each in text)
    visible = sum(not each.isspace() for each in text)
    if not letters:
        return NoAnswer(reason="empty", detail=text[:120])
    if _REFUSAL.match(text):
        return NoAnswer(reason="refused", detail=text[:120])
    if _is_echo(text, prompt):
        return NoAnswer(reason="echo", detail=text[:120])
    words = _WORD.findall(text)
    is_garbled = (
        "\N{REPLACEMENT CHARACTER}" in text
        or any(unicodedata.category(each) in ("Cc", "Co", "Cn") and each not in "\n\t" for each in text)
        or letters < _MIN_LETTER_SHARE * visible
        or _CONTROL_TOKEN.search(text) is not None
        or any(len(word) > _MAX_WORD and not _SPACELESS.search(word) for word in words)
    )
    if is_garbled:
        return NoAnswer(reason="garbled", detail=text[:120])
    if repetition and repeated_share(text) > _MAX_REPEATED_SHARE:
        return NoAnswer(reason="repetitive", detail=text[:120])
    return None


def repeated_share(text: str) -> float:
    """Return the share of word trigrams that occurred before in the text; of Chinese, Japanese and Thai, of characters."""
    words = [word.casefold() for word in _WORD.findall(text)]
    units = [each for word in words for each in (word if _SPACELESS.search(word) else (word,))]
    grams = [tuple(units[start : start + _NGRAM]) for start in range(len(units) - _NGRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def num_words(text: str) -> int:
    """Return the number of words; two characters of Chinese, Japanese and Thai count as one."""
    spaceless = len(_SPACELESS.findall(text))
    return len(_WORD.findall(_SPACELESS.sub(" ", text))) + -(-spaceless // 2)


def _is_echo(text: str, prompt: str) -> bool:
    """Return whether an answer repeats the beginning of its prompt."""
    one, other = " ".join(text.split()).casefold(), " ".join(prompt.split()).casefold()
    return len(other) >= _ECHO_CHARACTERS and one.startswith(other[:_ECHO_CHARACTERS])
