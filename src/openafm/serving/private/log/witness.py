"""A witness: signs the checkpoint of a log if it contains the one that it signed before."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from openafm.adapters.delivery.keys import read_private_key, write_key_pair
from openafm.core.files import atomic_file, data_home
from openafm.core.folder_lock import folder_lock
from openafm.serving.private.client import fetch
from openafm.serving.private.log.checkpoints import check_follows, open_checkpoint
from openafm.serving.private.log.notes import WITNESS_KEY, VerifierKey, signature_line
from openafm.serving.private.verification import decode_proofs

_MAX_BYTES = 1 << 20


def cosignature(url: str, log_key: str, name: str, key_file: Path) -> tuple[str, str]:
    """Return the witness's verifier key and its signature line for the current checkpoint of a log.

    Raises:
        NodeRefusedError: the checkpoint is not signed by the log, or does not contain the one signed before.
        NodeUnreachableError: the log does not answer.
    """
    log = VerifierKey.parse(log_key)
    if not key_file.exists():
        write_key_pair(key_file)
    private_key = read_private_key(key_file)
    witness = VerifierKey.of(name, WITNESS_KEY, private_key)
    folder = data_home() / "private" / "witnessed" / hashlib.sha256(f"{witness} {log}".encode()).hexdigest()[:32]
    with folder_lock(folder):  # two processes must not sign two histories
        file = folder / "checkpoint.txt"
        former = open_checkpoint(file.read_text(encoding="utf-8"), log) if file.exists() else None
        since = 0 if former is None else former.size
        proofs = decode_proofs(fetch(f"{url.rstrip('/')}/proofs?since={since}", _MAX_BYTES))
        checkpoint = open_checkpoint(proofs.checkpoint, log)
        check_follows(checkpoint, former, proofs.consistency)
        with atomic_file(file, "w") as opened:
            opened.write(proofs.checkpoint)
    return str(witness), signature_line(checkpoint.text, witness, private_key, int(time.time())).rstrip("\n")
