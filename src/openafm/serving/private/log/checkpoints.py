"""Checkpoints of a log (c2sp.org/tlog-checkpoint): origin, size and root, signed by the log and by witnesses."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from openafm.serving.private.errors import NodeRefusedError
from openafm.serving.private.log.merkle import ProofError, check_consistency
from openafm.serving.private.log.notes import Note, NoteError, VerifierKey
from openafm.serving.private.node.statements import CLOCK_SKEW_SECONDS

_ROOT_BYTES = 32
_DAY_SECONDS = 24 * 3600
MAX_WITNESS_DAYS, MAX_LOG_DAYS = 7.0, 7.0


@dataclass(frozen=True)
class Checkpoint:
    """The state of a log: its first `size` entries have this root."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """The text that the log and its witnesses sign."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Return the checkpoint in the text of a note.

        Raises:
            NoteError: it is not a checkpoint.
        """
        lines = text.split("\n")
        try:
            origin, size, root = lines[0], lines[1], base64.b64decode(lines[2], validate=True)
        except (IndexError, ValueError) as error:
            raise NoteError("the note is not a checkpoint: origin, size and root, each on a line") from error
        if len(lines) != 4 or not re.fullmatch("0|[1-9][0-9]{0,15}", size) or len(root) != _ROOT_BYTES:
            raise NoteError("the note is not a checkpoint: origin, size and root, each on a line")
        found = cls(origin, int(size), root)
        if found.text != text:
            raise NoteError("the checkpoint is not in canonical form")
        return found


def open_checkpoint(
    signed: str,
    log_key: VerifierKey,
    witnesses: Sequence[VerifierKey] = (),
    quorum: int = 0,
    now: float | None = None,
    max_days: float = MAX_WITNESS_DAYS,
    max_log_days: float | None = None,
) -> Checkpoint:
    """Return the checkpoint of a note, signed by the log and lately by at least `quorum` of the witnesses.

    An old signature does not count: a log that is frozen before a release was withdrawn would show it without end. The log
    signs the time too, against others who show an old checkpoint; only witnesses protect from the log itself.

    Args:
        signed: the note.
        log_key: the key of the log.
        witnesses: keys of witnesses.
        quorum: how many of them must have signed.
        now: the time in seconds since 1970; None: the current time.
        max_days: how old the signature of a witness may be.
        max_log_days: how old the time may be that the log signed; None: the time is not checked.

    Raises:
        NodeRefusedError: `log` if it is damaged or not signed by the log, `stale` if the log signed it too long ago,
            `witnesses` if too few witnesses signed it.
    """
    try:
        note = Note.parse(signed)
        checkpoint = Checkpoint.parse(note.text)
        if checkpoint.origin != log_key.name or not note.is_signed_by(log_key):
            raise NoteError(f"the checkpoint is not signed with the trusted key of {log_key.name}")
        times = [note.signed_at(witness) for witness in witnesses]
        log_time = note.signed_at(log_key.of_times)
    except NoteError as error:
        raise NodeRefusedError("log", str(error)) from error
    now = time.time() if now is None else now
    if max_log_days is not None and not _is_recent(log_time, now, max_log_days):
        raise NodeRefusedError(
            "stale",
            f"the log signed its checkpoint more than {max_log_days:g} days ago, or without a time; it may be an old copy,"
            " which still has releases that were withdrawn",
        )
    num_signed = sum(_is_recent(at, now, max_days) for at in times)
    if num_signed < quorum:
        raise NodeRefusedError(
            "witnesses",
            f"{num_signed} of the trusted witnesses signed the checkpoint within {max_days:g} days, {quorum} are"
            " required; the log may be old, or show others another history",
        )
    return checkpoint


def _is_recent(at: int | None, now: float, max_days: float) -> bool:
    return at is not None and -CLOCK_SKEW_SECONDS <= now - at <= max_days * _DAY_SECONDS


def check_follows(checkpoint: Checkpoint, former: Checkpoint | None, proof: Sequence[bytes]) -> None:
    """Check that the log contains all entries of a checkpoint that was seen before.

    Raises:
        NodeRefusedError: `rolled-back`, it does not.
    """
    if former is None:
        return
    try:
        check_consistency(former.size, former.root, checkpoint.size, checkpoint.root, proof)
    except ProofError as error:
        raise NodeRefusedError("rolled-back", f"the log {checkpoint.origin} changed its past: {error}") from error
