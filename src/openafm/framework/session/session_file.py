"""Saved sessions: a transcript and, optionally, the model's state computed from it.

OPENAFM-SESSION-2 and the SHA-256 of the next line, in hex | the transcript as one line of JSON | a tag and a snapshot

The snapshot holds keys and values that the model continues from without recomputing them, so forged ones could change
answers. The tag, an HMAC-SHA256 of the transcript and the snapshot under a key of this user (`user_key`), is checked before
a snapshot is used. Without a valid tag, the transcript is prefilled instead.

Images are files of the folder NAME.images beside the session NAME, named by the SHA-256 of their bytes in hex.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from openafm.core.files import atomic_file
from openafm.core.regular_files import read_document
from openafm.core.user_key import TAG_BYTES, tag, user_key
from openafm.framework.transcripts.transcript import Transcript
from openafm.framework.transcripts.wire import TranscriptError

_IMAGE_NAME = re.compile("[0-9a-f]{64}")
_KIND = b"OPENAFM-SESSION-"
_MAGIC = _KIND + b"2 "
_UNTAGGED_MAGIC = _KIND + b"1 "  # files without a tag: the transcript is read, the snapshot is ignored


@dataclass(frozen=True, kw_only=True)
class SavedSession:
    """Hold a transcript and the `LanguageModelExecutor.snapshot` of it, if there is one."""

    transcript: Transcript
    snapshot: bytes | memoryview | None


def write_session(path: Path, session: SavedSession) -> None:
    """Write a session, atomically, readable by this user only; its images first.

    The snapshot is left out if the key cannot be read or created.

    Raises:
        OutOfSpaceError: the disk is full. An existing file at `path` is unchanged.
        OSError: the file cannot be written.
    """
    line = json.dumps(session.transcript.as_dict()).encode()
    digest = hashlib.sha256(line).hexdigest().encode()
    _write_images(_image_folder(path), session.transcript)
    state: list[bytes | memoryview] = []
    if session.snapshot is not None and (key := user_key()) is not None:
        state = [tag(key, (digest, session.snapshot)), session.snapshot]
    with atomic_file(path, permissions=0o600) as file:
        file.writelines((_MAGIC, digest, b"\n", line, b"\n", *state))


def read_session(path: Path) -> SavedSession:
    """Read a file of `write_session`. A snapshot without a valid tag of this user is dropped, as is a damaged image.

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
        values = json.loads(line)
        transcript = Transcript.parse(values)
        if digests := transcript.image_digests:
            transcript = Transcript.parse(values, images=_read_images(_image_folder(path), digests))
    except (TranscriptError, ValueError, RecursionError) as error:
        raise TranscriptError(f"{path} does not hold a valid transcript: {error}") from error
    is_tagged = data.startswith(_MAGIC)
    return SavedSession(
        transcript=transcript, snapshot=_authenticated(digest, memoryview(data)[last + 1 :]) if is_tagged else None
    )


def _image_folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.images")


def _write_images(folder: Path, transcript: Transcript) -> None:
    """Write the images that are not in the folder, and remove those that this transcript does not have."""
    images = transcript.images
    if images:
        folder.mkdir(parents=True, exist_ok=True)
    for digest, data in images.items():
        if not (folder / digest).exists():
            with atomic_file(folder / digest, permissions=0o600) as file:
                file.write(data)
    if folder.is_dir():
        for path in folder.iterdir():
            if _IMAGE_NAME.fullmatch(path.name) and path.name not in transcript.image_digests:
                path.unlink()


def _read_images(folder: Path, digests: Iterable[str]) -> dict[str, bytes]:
    """Return the images of a folder by digest, without missing and damaged ones."""
    images = {}
    for digest in digests:
        if _IMAGE_NAME.fullmatch(digest) and (folder / digest).is_file():
            data = read_document(folder / digest, max_bytes=None)
            if hashlib.sha256(data).hexdigest() == digest:
                images[digest] = data
    return images


def _authenticated(digest: bytes, state: memoryview) -> memoryview | None:
    """Return the snapshot if its tag is valid."""
    stored, snapshot = state[:TAG_BYTES], state[TAG_BYTES:]
    if not snapshot or (key := user_key()) is None:
        return None
    return snapshot if hmac.compare_digest(stored, tag(key, (digest, snapshot))) else None
