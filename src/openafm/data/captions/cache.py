"""Answers of captioners: asked within limits, checked, and stored on disk, so that no request is sent twice."""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from openafm.core.errors import OpenAFMError
from openafm.core.files import room_for
from openafm.data.captions.captioner import (
    Captioner,
    EndlessAnswerError,
    ImageRequest,
    RefusedAnswerError,
    request_key,
)

MAX_LATE = 8
_GRACE_S = 5.0
_BUSY_S = 60.0
_DETAIL_CHARACTERS = 200


class HangingCaptionerError(OpenAFMError):
    """A captioner gave no answer in time to several requests in a row."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The text of a captioner."""

    text: str


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    """An answer that is not used: `reason` from the list of the stage that asked, and `detail` for a reader."""

    reason: str
    detail: str = ""


Outcome: TypeAlias = Answer | NoAnswer
Check: TypeAlias = Callable[[str], Outcome]
"""Returns the cleaned text of an answer, or why it is not used."""


class AnswerCache:
    """Ask a captioner, or return the stored answer to the same request.

    Answers are stored as the captioner gave them and checked when they are read, so a changed check applies to them too.
    Answers that did not end within the time limit are not stored: another run may be faster. Threads may share a cache.

    Args:
        path: the SQLite file; it is created.
    """

    def __init__(self, path: Path, captioner: Captioner) -> None:
        self._captioner = captioner
        self._lock = threading.Lock()
        self._num_late = self.num_asked = self.num_found = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        columns = "key TEXT PRIMARY KEY, reason TEXT NOT NULL, text TEXT NOT NULL"
        self._database.execute(f"CREATE TABLE IF NOT EXISTS answers ({columns}) WITHOUT ROWID")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._database.close()

    def ask(self, request: ImageRequest, check: Check) -> Outcome:
        """Return the checked answer to a request, or `endless`, `refused`, or the reason of `check`.

        Raises:
            OpenAFMError: the captioner failed; answers so far are stored.
            HangingCaptionerError: it gave no answer in time to several requests in a row.
        """
        key = request_key(self._captioner, request)
        with self._lock:
            row = self._database.execute("SELECT reason, text FROM answers WHERE key = ?", (key,)).fetchone()
            if row is None:
                self.num_asked += 1
            else:
                self.num_found += 1
        if row is None:
            row, is_final = self._answered(request)
            with self._lock, room_for(self._path):
                if is_final:
                    self._database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, *row))
                self._num_late = 0 if is_final else self._num_late + 1
                if self._num_late >= MAX_LATE:
                    raise HangingCaptionerError(
                        f"the captioner {self._captioner.model} gave no answer within {request.seconds:g} s to {MAX_LATE}"
                        " requests in a row; check the model or raise the limit, then repeat the command to continue"
                    )
        reason, text = row
        return NoAnswer(reason=reason, detail=text[:_DETAIL_CHARACTERS]) if reason else check(text)

    def _answered(self, request: ImageRequest) -> tuple[tuple[str, str], bool]:
        """Return the reason (empty for an answer) and the text, and whether the same request would give the same."""
        try:
            return ("", self._called(request)), True
        except EndlessAnswerError as error:
            return ("endless", error.text or str(error)), bool(error.text)
        except RefusedAnswerError as error:
            return ("refused", str(error)), True

    def _called(self, request: ImageRequest) -> str:
        """Call the captioner in a thread, which is abandoned if it does not return in time.

        Raises:
            EndlessAnswerError: it did not return in time.
        """
        results: queue.SimpleQueue[str | BaseException] = queue.SimpleQueue()

        def work() -> None:
            try:
                results.put(self._captioner(request))
            except BaseException as error:
                results.put(error)

        threading.Thread(target=work, name="openafm-captioner", daemon=True).start()
        try:
            result = results.get(timeout=request.seconds + _GRACE_S)
        except queue.Empty:
            raise EndlessAnswerError(f"no answer within {request.seconds:g} s") from None
        if isinstance(result, BaseException):
            raise result
        if not isinstance(result, str):
            raise TypeError(f"a captioner returns text, {self._captioner.model} returned {type(result).__name__}")
        return result
