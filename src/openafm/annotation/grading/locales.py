"""Locales: the groups of the report's figure 4, and what graders of a locale check (guidelines.json)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from openafm.annotation.errors import AnnotationError
from openafm.core import locales

GROUPS = ("en-US", "English outside US", "PFIGSCJK", "Other")
"""Locale groups. PFIGSCJK: Portuguese, French, Italian, German, Spanish, Simplified Chinese, Japanese, Korean. The caption
of the report's figure 4 does not list German, the abbreviation has it. The report has no results for other languages."""

_PFIGSCJK = ("pt", "fr", "it", "de", "es", "ja", "ko")


def check_locale(locale: str) -> None:
    """Check that a locale is a tag of language, script and region, such as en-GB or zh-Hans-CN.

    Raises:
        AnnotationError: it is not.
    """
    try:
        locales.check_locale(locale, built_in_guidelines())
    except locales.LocaleError as error:
        raise AnnotationError(str(error)) from error


def locale_group(locale: str) -> str:
    """Return the group of a locale, one of `GROUPS`."""
    language = locale.split("-")[0]
    if locale == "en-US":
        return "en-US"
    if language == "en":
        return "English outside US"
    is_traditional = "Hant" in locale or locale.endswith(("-TW", "-HK", "-MO"))
    return "PFIGSCJK" if language in _PFIGSCJK or (language == "zh" and not is_traditional) else "Other"


@cache
def built_in_guidelines() -> Mapping[str, Any]:
    """Return the guidelines of openafm by locale."""
    text = files("openafm.annotation.grading").joinpath("guidelines.json").read_text(encoding="utf-8")
    guidelines: Mapping[str, Any] = json.loads(text)
    return guidelines


def guidelines_of(locale: str, guidelines: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the guidelines of a locale, else those of another locale of its language, else None."""
    if locale in guidelines:
        return dict(guidelines[locale])
    subtags = locale.split("-")
    same = [each for each in guidelines if each.split("-")[0] == subtags[0]]
    same.sort(key=lambda each: -len(set(each.split("-")) & set(subtags)))
    return dict(guidelines[same[0]]) if same else None
