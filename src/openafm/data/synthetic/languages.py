"""The sixteen languages of the corpus, and where their files are."""

from __future__ import annotations

import functools
import importlib.resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from openafm.core.errors import OpenAFMError

if TYPE_CHECKING:
    from babel import Locale

LANGUAGES = ("en", "da", "nl", "fr", "de", "it", "nb", "pt", "es", "sv", "tr", "zh-Hans", "zh-Hant", "ja", "ko", "vi")
Split: TypeAlias = Literal["train", "held_out"]


class MissingLibraryError(OpenAFMError):
    """A library of the extra `data` is not installed."""


def text_folder() -> Path:
    """The folder of the hand-written files, one folder a language."""
    return Path(str(importlib.resources.files("openafm.data.synthetic").joinpath("text")))


@functools.cache
def locale_of(language: str) -> Locale:
    """The CLDR data of a language.

    Raises:
        MissingLibraryError: babel is not installed.
    """
    try:
        from babel import Locale
    except ImportError as error:
        raise MissingLibraryError(
            "the built-in corpus needs babel and faker; install openafm with its extra 'corpus'"
        ) from error
    return Locale.parse(language.replace("-", "_"))


def source_file(language: str, name: str) -> Path:
    """Return a hand-written file of a language."""
    return text_folder() / language / name
