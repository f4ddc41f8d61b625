"""Saved sessions: a transcript and, optionally, the model's state computed from it.

OPENAFM-SESSION-1 and the SHA-256 of the next line, in hex | the transcript as one line of JSON | a snapshot, or nothing
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from openafm.core.files import atomic_file
from openafm.framework.transcripts.transcript import Transcript
from openafm.framework.transcripts.wire import TranscriptError

_KIND = b"OPENAFM-SESSION-"
_MAGIC = _KIND + b"1 "


@dataclass(frozen=True, kw_only=True)
class SavedSession:
    """Hold a transcript and the `LanguageModelExecutor.snapshot` of it, if there is one."""

    transcript: Transcript
    snapshot: bytes | memoryview | None


def write_session(path: Path, session: SavedSession) -> None:
    """Write a session, atomically.

    Raises:
        OutOfSpaceError: the disk is full. An existing file at `path` is unchanged.
        OSError: the file cannot be written.
    """
    line = json.dumps(session.transcript.as_dict()).encode()
    with atomic_file(path) as file:
        file.writelines((_MAGIC, hashlib.sha256(line).hexdigest().encode(), b"\n", line, b"\n", session.snapshot or b""))


def read_session(path: Path) -> SavedSession:
    """Read a file of `write_session`. The snapshot is not checked here; the executor that restores it checks it.

    Raises:
        TranscriptError: the file is not a saved session, its transcript is damaged, or its format version is unknown.
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    if not data.startswith(_MAGIC):
        if data.startswith(_KIND):
            raise TranscriptError(f"{path} was saved by another version of openafm; load it with that version")
        raise TranscriptError(f"{path} is not a saved session; write one with LanguageModelSession.save")
    first = data.find(b"\n")
    last = data.find(b"\n", first + 1)
    line = data[first + 1 : last]
    if -1 in (first, last) or data[len(_MAGIC) : first] != hashlib.sha256(line).hexdigest().encode():
        raise TranscriptError(f"{path} is damaged or cut short, its transcript cannot be read; use another copy")
    try:
        transcript = Transcript.parse(json.loads(line))
    except (TranscriptError, ValueError, RecursionError) as error:
        raise TranscriptError(f"{path} does not hold a valid transcript: {error}") from error
    return SavedSession(transcript=transcript, snapshot=memoryview(data)[last + 1 :] if last + 1 < len(data) else None)
