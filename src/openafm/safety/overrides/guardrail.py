"""A guardrail of override lists, which are reloaded when their files change."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Protocol

from openafm.core.errors import OpenAFMError
from openafm.safety.guardrail import Allowed, Verdict, Violation
from openafm.safety.overrides.lists import OverrideListError, read_list
from openafm.safety.overrides.matcher import Overrides

_SECONDS_BETWEEN_LOOKS = 1.0


class OverrideSource(Protocol):
    """Return the lists that are valid now."""

    def current(self) -> Overrides:
        """Return the compiled lists."""


class FixedOverrides:
    """Lists that do not change."""

    def __init__(self, overrides: Overrides) -> None:
        self._overrides = overrides

    def current(self) -> Overrides:
        return self._overrides


class OverridesFolder:
    """The lists of a folder (`*.json`, `*.txt`), read again when a file changes.

    A damaged file leaves the lists as they were; `error` has the reason until the folder can be read again.

    Raises:
        OverrideListError: the folder cannot be read at first.
    """

    def __init__(self, folder: Path, seconds_between_looks: float = _SECONDS_BETWEEN_LOOKS) -> None:
        self._folder, self._seconds = folder, seconds_between_looks
        self._lock = threading.Lock()
        self._state = self._files()
        self._overrides = self._read()
        self._looked = time.monotonic()
        self.error: OpenAFMError | None = None

    def current(self) -> Overrides:
        """Return the compiled lists; look for changes at most once a second."""
        with self._lock:
            if time.monotonic() - self._looked >= self._seconds:
                self._looked = time.monotonic()
                self._reload()
            return self._overrides

    def _reload(self) -> None:
        try:
            state = self._files()
            if state != self._state:
                self._overrides, self._state = self._read(), state
            self.error = None
        except OpenAFMError as error:
            self.error = error

    def _read(self) -> Overrides:
        return Overrides([read_list(path) for path, _, _ in self._files()])

    def _files(self) -> list[tuple[Path, int, int]]:
        try:
            paths = sorted(path for path in self._folder.iterdir() if path.suffix in (".json", ".txt"))
            return [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths]
        except OSError as error:
            raise OverrideListError(f"{self._folder}: {error.strerror or error}; pass a folder with lists") from error


class OverrideGuardrail:
    """Block texts with terms whose action is `block`. Use `Overrides.find` for warnings.

    Args:
        source: the lists.
        locale: the locale of the texts; None: search all lists.
        feature: the feature of the app, for lists with actions by feature.
    """

    releases_after_check = True

    def __init__(
        self,
        source: OverrideSource,
        *,
        locale: str | None = None,
        feature: str | None = None,
    ) -> None:
        self._source, self._locale, self._feature = source, locale, feature

    def check_input(self, text: str) -> Verdict:
        return self._check(text)

    def check_output(self, window: str) -> Verdict:
        return self._check(window)

    def _check(self, text: str) -> Verdict:
        for hit in self._source.current().find(text, self._locale, self._feature):
            if hit.action == "block":
                return Violation(category=hit.subcategory, reason=f"the text has a term of the list {hit.list_name}")
        return Allowed()
