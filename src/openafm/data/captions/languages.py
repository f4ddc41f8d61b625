"""English names of the languages in which models are asked to answer."""

from __future__ import annotations

import functools

from openafm.data.synthetic.languages import LANGUAGES, locale_of

OF_DOCUMENT = "document"
"""Stands for the language of each document, or English if it is none of the sixteen."""
ENGLISH = "English"


def answer_language(wanted: str, tag: str) -> str:
    """Return `wanted`, or for `OF_DOCUMENT` the name of the language with a BCP 47 tag, such as `Chinese (Simplified)`."""
    return wanted if wanted != OF_DOCUMENT else _name(tag)


@functools.cache
def _name(tag: str) -> str:
    return str(locale_of(tag).get_display_name("en")) if tag in LANGUAGES else ENGLISH
