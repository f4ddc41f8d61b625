"""HTTP server of a log of releases. Its content is public, so it needs no keys."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse

from openafm.core.folder_lock import FolderInUseError
from openafm.serving.private.log.release_log import ReleaseLog
from openafm.serving.private.verification import encode_proofs

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_SIGN_SECONDS = 24 * 3600.0
"""After this time the log signs its checkpoint again, so that clients can tell it from an old copy."""


def build_log_server(folder: Path) -> ASGIApp:
    """Return the application of a log: /checkpoint, /proofs and /entries/NUMBER.

    Raises:
        PrivateSetupError: the folder is not a log, or was changed.
    """
    opened = _Opened(folder)
    app = FastAPI(openapi_url=None)

    @app.get("/checkpoint", response_class=PlainTextResponse)
    def checkpoint() -> str:
        """Return the signed state of the log."""
        return opened.log().signed

    @app.get("/proofs")
    def proofs(leaf: str = "", since: int = 0) -> Response:
        """Return the proofs for the entry with this hash, and from the log of `since` entries."""
        try:
            hash = bytes.fromhex(leaf)
        except ValueError:
            return Response("leaf must be hex digits", 400)
        log = opened.log()
        return Response(
            encode_proofs(log.proofs(hash or None, min(max(since, 0), log.checkpoint.size))), media_type="application/json"
        )

    @app.get("/entries/{number}")
    def entry(number: int) -> Response:
        """Return an entry."""
        log = opened.log()
        if not 0 <= number < log.checkpoint.size:
            return Response(f"the log has {log.checkpoint.size} entries, numbered from 0", 404)
        return Response(log.entries[number], media_type="application/json")

    return app


class _Opened:
    """The log, opened again when its checkpoint has changed, and signed again when the signed time is old."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp, self._log = self._read_stamp(), ReleaseLog(folder)

    def log(self) -> ReleaseLog:
        stamp = self._read_stamp()
        if stamp != self._stamp:
            self._log, self._stamp = ReleaseLog(self._folder), stamp
        if time.time() - self._log.signed_at() > _SIGN_SECONDS:
            with contextlib.suppress(FolderInUseError):  # a release is added now, with the time
                self._log.sign_time()
                self._stamp = self._read_stamp()
        return self._log

    def _read_stamp(self) -> tuple[int, int]:
        try:
            status = (self._folder / "checkpoint").stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_mtime_ns, status.st_ino
