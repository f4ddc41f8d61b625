"""The form of locales: BCP 47 tags of language, script and region."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from openafm.core.errors import UsageError

_LOCALE = re.compile(r"([a-z]{2,3})(-[A-Z][a-z]{3})?(-([A-Z]{2}|[0-9]{3}))?")


class LocaleError(UsageError):
    """A text is not a locale."""


def check_locale(locale: str, known: Iterable[str] = ()) -> None:
    """Check that a locale is a tag of language, script and region, such as en-GB or zh-Hans-CN.

    Args:
        known: locales to suggest the nearest of.

    Raises:
        LocaleError: it is not; the message has the nearest tag.
    """
    if not _LOCALE.fullmatch(locale):
        raise LocaleError(f"{locale[:50]!r} is not a locale; use a tag such as {_nearest(locale, known)}")


def _nearest(locale: str, known: Iterable[str]) -> str:
    language, *others = re.split(r"[-_]", locale.casefold())
    respelled = "-".join([language, *(part.title() if len(part) == 4 else part.upper() for part in others)])
    if _LOCALE.fullmatch(respelled):
        return respelled
    return next(iter(difflib.get_close_matches(respelled, list(known), n=1)), "en-GB, pt-BR or zh-Hans-CN")
