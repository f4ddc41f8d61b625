"""Saved sessions: a transcript and, optionally, the model's state computed from it.

OPENAFM-SESSION-2 and the SHA-256 of the next line, in hex | the transcript as one line of JSON | a tag and a snapshot

The snapshot holds keys and values that the model continues from without recomputing them, so forged ones could change
answers. The tag, an HMAC-SHA256 of the transcript and the snapshot under a key of this user (`user_key`), is checked before
a snapshot is used. Without a valid tag, the transcript is prefilled instead.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from pathlib import Path

from openafm.core.files import atomic_file, read_document
from openafm.core.user_key import TAG_BYTES, tag, user_key
from openafm.framework.transcripts.transcript import Transcript
from openafm.framework.transcripts.wire import TranscriptError

_KIND = b"OPENAFM-SESSION-"
_MAGIC = _KIND + b"2 "
_UNTAGGED_MAGIC = _KIND + b"1 "  # files without a tag: the transcript is read, the snapshot is ignored


@dataclass(frozen=True, kw_only=True)
class SavedSession:
    """Hold a transcript and the `LanguageModelExecutor.snapshot` of it, if there is one."""

    transcript: Transcript
    snapshot: bytes | memoryview | None


def write_session(path: Path, session: SavedSession) -> None:
    """Write a session, atomically, readable by this user only.

    The snapshot is left out if the key cannot be read or created.

    Raises:
        OutOfSpaceError: the disk is full. An existing file at `path` is unchanged.
        OSError: the file cannot be written.
    """
    line = json.dumps(session.transcript.as_dict()).encode()
    digest = hashlib.sha256(line).hexdigest().encode()
    state: list[bytes | memoryview] = []
    if session.snapshot is not None and (key := user_key()) is not None:
        state = [tag(key, (digest, session.snapshot)), session.snapshot]
    with atomic_file(path, permissions=0o600) as file:
        file.writelines((_MAGIC, digest, b"\n", line, b"\n", *state))


def read_session(path: Path) -> SavedSession:
    """Read a file of `write_session`. A snapshot without a valid tag of this user is dropped.

    Raises:
        TranscriptError: the file is not a saved session, its transcript is damaged, or its format version is unknown.
        NotAFileError: it is a folder, a FIFO or a device.
        OSError: the file cannot be read.
    """
    data = read_document(path, max_bytes=None)
    if not data.startswith((_MAGIC, _UNTAGGED_MAGIC)):
        if data.startswith(_KIND):
            raise TranscriptError(f"{path} was saved by another version of openafm; load it with that version")
        raise TranscriptError(f"{path} is not a saved session; write one with LanguageModelSession.save")
    first = data.find(b"\n")
    last = data.find(b"\n", first + 1)
    line, digest = data[first + 1 : last], data[len(_MAGIC) : first]
    if -1 in (first, last) or digest != hashlib.sha256(line).hexdigest().encode():
        raise TranscriptError(f"{path} is damaged or cut short, its transcript cannot be read; use another copy")
    try:
        transcript = Transcript.parse(json.loads(line))
    except (TranscriptError, ValueError, RecursionError) as error:
        raise TranscriptError(f"{path} does not hold a valid transcript: {error}") from error
    is_tagged = data.startswith(_MAGIC)
    return SavedSession(
        transcript=transcript, snapshot=_authenticated(digest, memoryview(data)[last + 1 :]) if is_tagged else None
    )


def _authenticated(digest: bytes, state: memoryview) -> memoryview | None:
    """Return the snapshot if its tag is valid."""
    stored, snapshot = state[:TAG_BYTES], state[TAG_BYTES:]
    if not snapshot or (key := user_key()) is None:
        return None
    return snapshot if hmac.compare_digest(stored, tag(key, (digest, snapshot))) else None
