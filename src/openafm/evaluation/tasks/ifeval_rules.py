"""The checks of IFEval (arXiv 2311.07911) with the verdicts of its published program, for comparable scores.

`evaluation.instructions` holds checks of the same instructions for training, which also understand other languages. These
here keep the published behavior where it is surprising: keywords are regular expressions found inside words, text without
letters has every language, and words are counted by NLTK.

Each check takes a response and the instruction's arguments.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from openafm.core.libraries import needed

Arguments = Mapping[str, Any]
Check = Callable[[str, Arguments], bool]

_RESPONSES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_ABBREVIATIONS = ("dr", "mr", "mrs", "ms", "prof", "st", "jr", "sr", "inc", "ltd", "co", "vs", "etc", "e.g", "i.e", "u.s")


def variants(response: str) -> list[str]:
    """Return the texts of which one must pass for a loose verdict: without first line, last line or asterisks."""
    lines = response.split("\n")
    parts = [response, "\n".join(lines[1:]).strip(), "\n".join(lines[:-1]).strip(), "\n".join(lines[1:-1]).strip()]
    return parts + [part.replace("*", "") for part in parts]


def follows(name: str, arguments: Arguments, response: str) -> bool:
    """Return whether a response follows an instruction. An empty one follows none.

    Raises:
        KeyError: the instruction or one of its arguments is unknown.
    """
    given = {key: value for key, value in arguments.items() if value}
    return bool(response.strip()) and CHECKS[name](response, given)


def _related(count: int, relation: str | None, limit: int) -> bool:
    return bool(count < limit if relation == "less than" else count >= limit)


def _keywords(text: str, given: Arguments) -> bool:
    return all(re.search(word, text, flags=re.IGNORECASE) for word in given["keywords"])


def _keyword_frequency(text: str, given: Arguments) -> bool:
    count = len(re.findall(given["keyword"].strip(), text, flags=re.IGNORECASE))
    return _related(count, given["relation"], given["frequency"])


def _forbidden_words(text: str, given: Arguments) -> bool:
    return not any(re.search(rf"\b{word}\b", text, flags=re.IGNORECASE) for word in given["forbidden_words"])


def _letter_frequency(text: str, given: Arguments) -> bool:
    return _related(Counter(text.lower())[given["letter"].strip().lower()], given["let_relation"], given["let_frequency"])


def _language(text: str, given: Arguments) -> bool:
    found = detected_language(text)
    return found is None or found == given["language"]


def _num_sentences(text: str, given: Arguments) -> bool:
    return _related(len(sentence_tokenizer().tokenize(text)), given["relation"], given["num_sentences"])


def _num_paragraphs(text: str, given: Arguments) -> bool:
    paragraphs = re.split(r"\s?\*\*\*\s?", text)
    inner = paragraphs[1:-1]
    if any(not paragraph.strip() for paragraph in inner):
        return False
    ends = [paragraphs[0], *paragraphs[1:][-1:]]
    return bool(len(inner) + sum(bool(paragraph.strip()) for paragraph in ends) == given["num_paragraphs"])


def _num_words(text: str, given: Arguments) -> bool:
    return _related(len(_word_tokenizer().tokenize(text)), given["relation"], given["num_words"])


def _first_word(text: str, given: Arguments) -> bool:
    paragraphs = text.split("\n\n")
    count = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    if given["nth_paragraph"] > count:
        return False
    paragraph = paragraphs[given["nth_paragraph"] - 1].strip()
    if not paragraph:
        return False
    word = paragraph.split()[0].lstrip("'").lstrip('"')
    first = re.split(r"[.,?!'\"]", word)[0].lower()
    return bool(count == given["num_paragraphs"] and first == given["first_word"].lower())


def _placeholders(text: str, given: Arguments) -> bool:
    return bool(len(re.findall(r"\[.*?\]", text)) >= given["num_placeholders"])


def _postscript(text: str, given: Arguments) -> bool:
    marker = given["postscript_marker"].strip()
    patterns = {"P.P.S": r"\s*p\.\s?p\.\s?s.*$", "P.S.": r"\s*p\.\s?s\..*$"}
    return re.search(patterns.get(marker, rf"\s*{marker.lower()}.*$"), text.lower(), flags=re.MULTILINE) is not None


def _bullets(text: str, given: Arguments) -> bool:
    found = (re.findall(pattern, text, flags=re.MULTILINE) for pattern in (r"^\s*\*[^\*].*$", r"^\s*-.*$"))
    return bool(sum(map(len, found)) == given["num_bullets"])


def _constrained(text: str, given: Arguments) -> bool:
    return any(response in text for response in _RESPONSES)


def _highlights(text: str, given: Arguments) -> bool:
    single = re.findall(r"\*[^\n\*]*\*", text)
    double = re.findall(r"\*\*[^\n\*]*\*\*", text)
    count = sum(bool(each.strip("*").strip()) for each in single) + sum(bool(each[2:-2].strip()) for each in double)
    return bool(count >= given["num_highlights"])


def _sections(text: str, given: Arguments) -> bool:
    pattern = rf"\s?{given['section_spliter'].strip()}\s?\d+\s?"
    return bool(len(re.split(pattern, text)) - 1 >= given["num_sections"])


def _json(text: str, given: Arguments) -> bool:
    text = text.strip()
    for opening in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(opening)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str, given: Arguments) -> bool:
    return any(title.lstrip("<").rstrip(">").strip() for title in re.findall(r"<<[^\n]+>>", text))


def _two_responses(text: str, given: Arguments) -> bool:
    parts = text.split("******")
    if any(not part.strip() for part in parts[1:-1]):
        return False
    responses = [part.strip() for part in parts if part.strip()]
    return len(responses) == 2 and responses[0] != responses[1]


def _repeat_prompt(text: str, given: Arguments) -> bool:
    return text.strip().lower().startswith(given["prompt_to_repeat"].strip().lower())


def _end(text: str, given: Arguments) -> bool:
    return text.strip().strip('"').lower().endswith(given["end_phrase"].strip().lower())


def _capital_words(text: str, given: Arguments) -> bool:
    count = sum(word.isupper() for word in _nltk_words(text))
    return _related(count, given["capital_relation"], given.get("capital_frequency", 0))


def _in_english(text: str, is_in_case: Callable[[str], bool]) -> bool:
    return is_in_case(text) and detected_language(text) in ("en", None)


def _capital(text: str, given: Arguments) -> bool:
    return _in_english(text, str.isupper)


def _lowercase(text: str, given: Arguments) -> bool:
    return _in_english(text, str.islower)


def _no_comma(text: str, given: Arguments) -> bool:
    return "," not in text


def _quotation(text: str, given: Arguments) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


CHECKS: Mapping[str, Check] = {
    "keywords:existence": _keywords,
    "keywords:frequency": _keyword_frequency,
    "keywords:forbidden_words": _forbidden_words,
    "keywords:letter_frequency": _letter_frequency,
    "language:response_language": _language,
    "length_constraints:number_sentences": _num_sentences,
    "length_constraints:number_paragraphs": _num_paragraphs,
    "length_constraints:number_words": _num_words,
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:constrained_response": _constrained,
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _json,
    "detectable_format:title": _title,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": _repeat_prompt,
    "startend:end_checker": _end,
    "startend:quotation": _quotation,
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": _capital,
    "change_case:english_lowercase": _lowercase,
    "punctuation:no_comma": _no_comma,
}


def detected_language(text: str) -> str | None:
    """Return the language that langdetect finds; None for text without letters. Always the same for the same text.

    The published program draws a new seed for each call, so that its verdicts on short texts vary.
    """
    with needed("IFEval's language checks", "langdetect", "evaluate"):
        import langdetect
        from langdetect.lang_detect_exception import LangDetectException
    langdetect.DetectorFactory.seed = 0
    try:
        return str(langdetect.detect(text))
    except LangDetectException:
        return None


@cache
def sentence_tokenizer() -> Any:
    """Return NLTK's sentence tokenizer: with its English model if that is installed, else with common abbreviations.

    `python -m nltk.downloader punkt_tab` installs the model, with which sentence counts equal the published ones.
    """
    with needed("IFEval's sentence counts", "nltk", "evaluate"):
        from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer, PunktTokenizer
    try:
        return PunktTokenizer("english")
    except LookupError:
        parameters = PunktParameters()
        parameters.abbrev_types.update(_ABBREVIATIONS)
        return PunktSentenceTokenizer(parameters)


def has_published_sentences() -> bool:
    """Return whether NLTK's English sentence model is installed."""
    return type(sentence_tokenizer()).__name__ == "PunktTokenizer"


@cache
def _word_tokenizer() -> Any:
    """Return NLTK's tokenizer of letters and digits. Since version 3.10 combining marks do not end its words."""
    with needed("IFEval's word counts", "nltk", "evaluate"):
        from nltk.tokenize import RegexpTokenizer
    return RegexpTokenizer(r"\w+")


def _nltk_words(text: str) -> list[str]:
    with needed("IFEval's word counts", "nltk", "evaluate"):
        from nltk.tokenize.destructive import NLTKWordTokenizer
    tokenizer = NLTKWordTokenizer()
    return [word for sentence in sentence_tokenizer().tokenize(text) for word in tokenizer.tokenize(sentence)]
