"""Answers of mathematical problems: the final answer of a text, and whether it equals a reference.

Choices and plain numbers are compared here, in the notations that math-verify does not read: percent signs, decimal commas,
thousands separators of several kinds. Other answers, such as fractions, sets and polynomials, are compared by math-verify.
It has no time limit here: call it in a worker process (`rl/rewards/rules.py`), because sympy can hang on text of a model.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from openafm.core.libraries import needed

DECIMAL_COMMA_LANGUAGES = frozenset(("da", "de", "es", "fr", "it", "nb", "nl", "pt", "sv", "tr", "vi"))

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_MARKERS = (
    "answer", "antwort", "antwoord", "réponse", "respuesta", "risposta", "resposta", "svar", "cevap", "yanıt", "đáp án",
    "答案", "答え", "回答", "정답", "답",
)  # fmt: skip
_MARKED = re.compile(rf"(?:(?:{'|'.join(_MARKERS)})[\s*_]*[:：]|\banswer is\b:?|####)[ \t*_]*([^\n]+)", re.IGNORECASE)
_TEXT_COMMAND = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,;:! ]|~")
_CHOICE = re.compile(r"\(?\[?([A-J])\]?\)?(?:[.:)]\s*.*)?", re.DOTALL)
_NUMBER_IN_TEXT = re.compile(r"[-−+]?\d(?:[\d.,'’\s]*\d)?(?:\s*/\s*\d+)?\s*(?:\\?%)?")
_PERCENT = re.compile(r"\s*(?:\\?%|percent|per cent|prozent|pour cent|por ciento|por cento|per cento)$", re.I)
_CURRENCY = re.compile(r"^[$€£¥]\s*|\s*[$€£¥]$")
_FRACTION = re.compile(r"([-+]?\d+)\s*/\s*(\d+)|([-+]?)\\d?frac\{(\d+)\}\{(\d+)\}")
_GROUPED_POINT = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?")
_GROUPED_COMMA = re.compile(r"[-+]?(?:\d{1,3}(?:\.\d{3})+|\d+)?(?:,\d+)?")
_GROUPED_SPACE = re.compile(r"[-+]?\d{1,3}(?:[\s'’]\d{3})+(?:[.,]\d+)?")


def final_answer(text: str) -> str:
    """Return the final answer of a solution: the last box, else the text after the last "Answer:", else the last line."""
    boxes = [box for match in _BOX.finditer(text) if (box := _balanced(text, match.end())) is not None]
    if boxes:
        return boxes[-1].strip()
    if marked := _MARKED.findall(text):
        return str(marked[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def is_correct(text: str, gold: str, *, language: str = "", choices: Mapping[str, str] | None = None) -> bool:
    """Return whether the final answer of a solution equals the reference `gold`.

    `choices` are the texts of the options by their letters; then `gold` is a letter, and the answer may be a letter or the
    text of an option. `language` decides how "1.234" and "1,234" are read.
    """
    answer = _cleaned(final_answer(text))
    wanted = _cleaned(gold)
    if choices or re.fullmatch(r"[A-J]", wanted):
        return _chosen(answer, choices or {}) == wanted
    if answer == wanted:
        return bool(answer)
    golds = numbers(wanted, language)
    if golds:
        answers = numbers(answer, language) or _last_number(answer, language)
        if answers:
            return bool(golds & answers)
    return verified(f"${wanted}$", f"$\\boxed{{{answer}}}$")


def verified(gold: str, answer: str) -> bool:
    """Return whether math-verify finds two formulas in LaTeX equal. Without a time limit."""
    library = math_verify()
    golds, answers = (library.parse(text, parsing_timeout=None) for text in (gold, answer))
    return bool(library.verify(golds, answers, timeout_seconds=None))


@functools.cache
def math_verify() -> Any:
    """Return the library that compares formulas.

    Raises:
        MissingLibraryError: it is not installed.
    """
    with needed("comparing mathematical answers", "math-verify", "rl"):
        import logging

        import math_verify as library
    for name in ("parser", "grader", "utils"):  # they warn at each call that their time limit is off, as intended here
        logging.getLogger(f"math_verify.{name}").setLevel(logging.ERROR)
    return library


def numbers(text: str, language: str = "") -> frozenset[Fraction]:
    """Return the values that a number can have; empty for other texts.

    A percentage is both its share and its number, since problems ask for either. "1.234" and "1,234" have two values in
    languages with a decimal comma, and the English one in others.
    """
    text = _CURRENCY.sub("", unicodedata.normalize("NFKC", text).replace("−", "-").strip().rstrip("."))
    bare = _PERCENT.sub("", text)
    values = _readings(bare.strip(), language)
    return frozenset(values | {value / 100 for value in values}) if bare != text else frozenset(values)


def _readings(text: str, language: str) -> set[Fraction]:
    if fraction := _FRACTION.fullmatch(text):
        top, bottom, sign, frac_top, frac_bottom = fraction.groups()
        below = int(bottom or frac_bottom)
        return {Fraction(int(top or sign + frac_top), below)} if below else set()
    if not re.search(r"\d", text) or len(text) > 100:
        return set()
    values = set()
    if _GROUPED_SPACE.fullmatch(text):
        text = re.sub(r"[\s'’]", "", text)
        return {Fraction(text.replace(",", "."))}
    if _GROUPED_POINT.fullmatch(text):
        values.add(Fraction(text.replace(",", "")))
    if _GROUPED_COMMA.fullmatch(text) and (not values or language.partition("-")[0] in DECIMAL_COMMA_LANGUAGES):
        values.add(Fraction(text.replace(".", "").replace(",", ".")))
    return values


def _last_number(text: str, language: str) -> frozenset[Fraction]:
    """Return the values of the last number of a sentence such as "She has 12 apples."."""
    if "\\" in text or "$" in text:
        return frozenset()  # a formula
    found = _NUMBER_IN_TEXT.findall(text)
    return numbers(found[-1], language) if found else frozenset()


def _chosen(answer: str, choices: Mapping[str, str]) -> str:
    """Return the letter of the option that an answer names; empty if it names none."""
    for letter, option in choices.items():
        if answer.casefold() == _cleaned(option).casefold():
            return letter
    match = _CHOICE.fullmatch(answer)
    return match[1] if match else ""


def _cleaned(text: str) -> str:
    """Return an answer without the markup around it."""
    text = unicodedata.normalize("NFKC", text.replace("’", "'")).strip()
    text = _SPACING.sub(" ", _TEXT_COMMAND.sub(r"\1", text)).strip("*_` ")
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if len(text) > len(opening + closing) and text.startswith(opening) and text.endswith((closing, closing + ".")):
            text = text[len(opening) : text.rindex(closing)]
    return text.strip().rstrip(".。").strip()


def _balanced(text: str, start: int) -> str | None:
    """Return the text up to the brace that closes the one before `start`; None if it is never closed."""
    depth = 1
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start:index]
    return None
