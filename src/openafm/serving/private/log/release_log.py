"""The log of releases: a folder that only grows.

ORIGIN_FOLDER/log.key, log.key.pub   the key that signs checkpoints
ORIGIN_FOLDER/origin                 the name of the log
ORIGIN_FOLDER/entries/00000000.json  the entries, canonical JSON
ORIGIN_FOLDER/checkpoint             the signed state, the signed time, and cosignatures of witnesses
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openafm.adapters.delivery.keys import read_private_key, write_key_pair
from openafm.core.files import atomic_file
from openafm.core.folder_lock import folder_lock
from openafm.serving.private.errors import NodeRefusedError, PrivateSetupError
from openafm.serving.private.log.checkpoints import Checkpoint, open_checkpoint
from openafm.serving.private.log.merkle import consistency_proof, inclusion_proof, leaf_hash, root_hash
from openafm.serving.private.log.notes import LOG_KEY, Note, NoteError, VerifierKey, signature_line
from openafm.serving.private.log.releases import Release, read_release


@dataclass(frozen=True, kw_only=True)
class LogProofs:
    """What a client needs to check a release: all for the same checkpoint.

    Attributes:
        checkpoint: the signed checkpoint.
        index, inclusion: the number of the release and its proof; None if it is not logged.
        newest, newest_inclusion: the last entry and its proof.
        consistency: the proof that the log contains the entries of the client's former checkpoint.
    """

    checkpoint: str
    index: int | None
    inclusion: Sequence[bytes]
    newest: bytes
    newest_inclusion: Sequence[bytes]
    consistency: Sequence[bytes]


class ReleaseLog:
    """An opened log.

    Raises:
        PrivateSetupError: the folder is not a log, or an entry or the checkpoint is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.origin = (folder / "origin").read_text(encoding="utf-8").strip()
            self.entries = [path.read_bytes() for path in sorted((folder / "entries").glob("*.json"))]
            self.signed = (folder / "checkpoint").read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise PrivateSetupError(f"{folder} is not a log of releases; `openafm private log init` creates one") from error
        self.leaves = [leaf_hash(entry) for entry in self.entries]
        self._private_key = read_private_key(folder / "log.key")
        self.key = VerifierKey.of(self.origin, LOG_KEY, self._private_key)
        try:
            self.checkpoint = open_checkpoint(self.signed, self.key)
        except NodeRefusedError as error:
            raise PrivateSetupError(f"the checkpoint of {folder} is damaged: {error}") from error
        if self.checkpoint.root != root_hash(self.leaves[: self.checkpoint.size]) or self.checkpoint.size > len(self.leaves):
            raise PrivateSetupError(f"the entries of {folder} were changed: they do not have the root of its checkpoint")

    @classmethod
    def create(cls, folder: Path, origin: str) -> ReleaseLog:
        """Create an empty log with a new key.

        Raises:
            PrivateSetupError: the folder has files, or the name is invalid.
        """
        if folder.exists() and any(folder.iterdir()):
            raise PrivateSetupError(f"{folder} is not empty; choose a new folder for the log")
        VerifierKey.of(origin, LOG_KEY, "0" * 64)  # checks the name before a file is written
        (folder / "entries").mkdir(parents=True)
        write_key_pair(folder / "log.key")
        (folder / "origin").write_text(origin + "\n", encoding="utf-8")
        _write_checkpoint(folder, [], VerifierKey.of(origin, LOG_KEY, read_private_key(folder / "log.key")))
        return cls(folder)

    def add(self, release: Release) -> int:
        """Append a release and sign the new state. Return its number in the log.

        Raises:
            PrivateSetupError: the number or the minimum of the release is not above those of the last one.
            FolderInUseError: another process appends.
        """
        with folder_lock(self.folder):
            entries = sorted((self.folder / "entries").glob("*.json"))
            if entries:
                last = read_release(entries[-1].read_bytes())
                if release.number <= last.number or release.minimum < last.minimum:
                    raise PrivateSetupError(
                        f"the last release has the number {last.number} and the minimum {last.minimum}; the next one needs a"
                        f" higher number and no lower minimum, got {release.number} and {release.minimum}"
                    )
            with atomic_file(self.folder / "entries" / f"{len(entries):08d}.json") as file:
                file.write(release.data)
            leaves = [*(leaf_hash(path.read_bytes()) for path in entries), leaf_hash(release.data)]
            _write_checkpoint(self.folder, leaves, self.key)
            return len(entries)

    def cosign(self, line: str, witness: VerifierKey) -> None:
        """Add the signature line of a witness to the checkpoint.

        Raises:
            PrivateSetupError: the line is not a signature of this witness for the current checkpoint.
        """
        with folder_lock(self.folder):
            try:
                note = Note.parse(self.signed).with_line(line)
                if not note.is_signed_by(witness):
                    raise NoteError(f"it is not a signature of {witness.name}")
            except NoteError as error:
                raise PrivateSetupError(f"the cosignature does not fit the checkpoint of {self.origin}: {error}") from error
            self.signed = str(note)
            _write(self.folder / "checkpoint", self.signed)

    def sign_time(self, now: float | None = None) -> None:
        """Sign the checkpoint with the time, so that clients refuse old copies of it.

        Raises:
            FolderInUseError: another process appends.
        """
        with folder_lock(self.folder):
            note = Note.parse(self.signed)
            at = int(time.time() if now is None else now)
            line = signature_line(note.text, self.key.of_times, self._private_key, at)
            self.signed = str(note.with_line(line))
            _write(self.folder / "checkpoint", self.signed)

    def signed_at(self) -> int:
        """Return the time that was signed with the checkpoint, in seconds since 1970; 0 if there is none."""
        return Note.parse(self.signed).signed_at(self.key.of_times) or 0

    def proofs(self, leaf: bytes | None, since: int) -> LogProofs:
        """Return the proofs for the release with this leaf hash, and from a checkpoint of `since` entries."""
        leaves = self.leaves[: self.checkpoint.size]
        index = leaves.index(leaf) if leaf in leaves else None
        return LogProofs(
            checkpoint=self.signed,
            index=index,
            inclusion=[] if index is None else inclusion_proof(leaves, index),
            newest=self.entries[len(leaves) - 1] if leaves else b"",
            newest_inclusion=inclusion_proof(leaves, len(leaves) - 1) if leaves else [],
            consistency=consistency_proof(leaves, since),
        )


def _write_checkpoint(folder: Path, leaves: Sequence[bytes], key: VerifierKey) -> None:
    """Sign the state of the log and the time. Cosignatures of the state before are dropped."""
    text, private_key = Checkpoint(key.name, len(leaves), root_hash(leaves)).text, read_private_key(folder / "log.key")
    timed = signature_line(text, key.of_times, private_key, int(time.time()))
    _write(folder / "checkpoint", f"{text}\n{signature_line(text, key, private_key)}{timed}")


def _write(path: Path, text: str) -> None:
    with atomic_file(path, "w") as file:
        file.write(text)
