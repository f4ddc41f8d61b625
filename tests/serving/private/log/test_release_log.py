"""The log of releases: published vectors, proofs against all trees, signed notes, the folder, and its damage."""

from __future__ import annotations

import hashlib
import math
import random
from pathlib import Path

import pytest
from statements_of_nodes import OPERATOR, PUBLIC_OPERATOR, release

from openafm.serving.private.errors import NodeRefusedError, PrivateSetupError
from openafm.serving.private.log.checkpoints import Checkpoint, check_follows, open_checkpoint
from openafm.serving.private.log.merkle import (
    ProofError,
    check_consistency,
    check_inclusion,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    root_hash,
)
from openafm.serving.private.log.notes import LOG_KEY, WITNESS_KEY, Note, NoteError, VerifierKey, signature_line
from openafm.serving.private.log.release_log import ReleaseLog

# The entries and hashes of the test suites of Certificate Transparency (RFC 6962).
LEAVES = [
    leaf_hash(bytes.fromhex(text))
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
NOTE = (
    "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n\n"
    "\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
NOTE_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"


def test_published_roots_and_proofs() -> None:
    assert root_hash([]).hex() == hashlib.sha256().hexdigest()
    assert root_hash(LEAVES[:2]).hex() == "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"
    assert root_hash(LEAVES[:5]).hex() == "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4"
    assert root_hash(LEAVES).hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"
    assert [each.hex()[:16] for each in inclusion_proof(LEAVES, 5)] == [
        "bc1a0643b12e4d2d",
        "ca854ea128ed050b",
        "d37ee418976dd957",
    ]
    assert [each.hex()[:16] for each in consistency_proof(LEAVES, 6)] == [
        "0ebc5d3437fbe2db",
        "ca854ea128ed050b",
        "d37ee418976dd957",
    ]


def test_proofs_of_every_tree_hold_and_no_other_ones() -> None:
    draw = random.Random(0)
    leaves = [leaf_hash(bytes((index,))) for index in range(20)]
    roots = [root_hash(leaves[:size]) for size in range(21)]
    for size in range(1, 21):
        for index in range(size):
            proof = inclusion_proof(leaves[:size], index)
            check_inclusion(leaves[index], index, size, proof, roots[size])
            wrong = [
                (leaves[(index + 1) % 20], index, size, proof, roots[size]),
                (leaves[index], index, size, [*proof, leaves[0]], roots[size]),
                (leaves[index], index, size, proof[:-1] if proof else [leaves[0]], roots[size]),
                (leaves[index], index, size, proof, roots[size - 1]),
                (leaves[index], size, size, proof, roots[size]),
                (leaves[index], -1, size, proof, roots[size]),
            ]
            for arguments in wrong:
                with pytest.raises(ProofError):
                    check_inclusion(*arguments)
        for old in range(size + 1):
            steps = consistency_proof(leaves[:size], old)
            check_consistency(old, roots[old], size, roots[size], steps)
            if 0 < old < size:
                changed = [bytes(32) if number == draw.randrange(len(steps)) else each for number, each in enumerate(steps)]
                wrong_steps = [[*steps, leaves[0]], steps[:-1], *([changed] if changed != steps else [])]
                for each in wrong_steps:
                    with pytest.raises(ProofError):
                        check_consistency(old, roots[old], size, roots[size], each)
                with pytest.raises(ProofError):
                    check_consistency(old, roots[old - 1], size, roots[size], steps)
                with pytest.raises(ProofError):
                    check_consistency(size, roots[size], old, roots[old], steps)


def test_a_published_note_is_read_written_and_checked() -> None:
    note, key = Note.parse(NOTE), VerifierKey.parse(NOTE_KEY)
    assert note.is_signed_by(key)
    assert (str(note), str(key)) == (NOTE, NOTE_KEY)
    with pytest.raises(NoteError, match="wrong"):
        Note.parse(NOTE.replace("answer", "Answer")).is_signed_by(key)
    for damaged in ("", NOTE[:-1], NOTE.replace("\u2014", "-"), NOTE.replace("nAM=", "nAM"), NOTE.replace("\n\n", "\n")):
        with pytest.raises(NoteError):
            Note.parse(damaged)
    for text in ("", "a+b", NOTE_KEY[:-1], NOTE_KEY.replace("c74f", "c74e"), NOTE_KEY.replace("Peter", "Peter ")):
        with pytest.raises(PrivateSetupError):
            VerifierKey.parse(text)


def test_a_published_checkpoint_of_a_log_with_witnesses() -> None:
    signed = Path(__file__).with_name("published_checkpoint.txt").read_text(encoding="utf-8")
    log, witness = (
        VerifierKey.parse(text)
        for text in (
            "arche2025h1.staging.ct.transparency.dev+ba2f06c0+AU0vHmlGCS/PdN8b2OaGmKprLI8HKM+dJ472xgFYh15f",
            "remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2",
        )
    )
    assert open_checkpoint(signed, log, [witness], 1, max_days=math.inf).origin == log.name
    with pytest.raises(NodeRefusedError) as refused:
        open_checkpoint(signed, log, [witness], 2, max_days=math.inf)
    assert refused.value.reason == "witnesses"


def test_a_log_grows_and_proves_it(tmp_path: Path) -> None:
    log = ReleaseLog.create(tmp_path / "log", "example.com/releases")
    former = log.checkpoint
    for number in range(5):
        assert log.add(release(number + 1)) == number
        log = ReleaseLog(log.folder)
        assert log.checkpoint.size == number + 1
        proofs = log.proofs(leaf_hash(release(1).data), former.size)
        assert proofs.index == 0
        check_follows(log.checkpoint, former, proofs.consistency)
        former = log.checkpoint
    assert log.proofs(leaf_hash(release(9).data), 0).index is None
    for added in (release(5), release(4, minimum=2)):
        with pytest.raises(PrivateSetupError, match="higher number"):
            log.add(added)
    assert (log.folder / "log.key").stat().st_mode & 0o777 == 0o600


def test_a_changed_log_is_not_opened(tmp_path: Path) -> None:
    log = ReleaseLog.create(tmp_path / "log", "example.com/releases")
    log.add(release(1))
    log.add(release(2))
    entry = log.folder / "entries" / "00000000.json"
    kept = entry.read_bytes()
    entry.write_bytes(kept.replace(b'"number":1', b'"number":0'))
    with pytest.raises(PrivateSetupError, match="were changed"):
        ReleaseLog(log.folder)
    entry.write_bytes(kept)
    checkpoint = log.folder / "checkpoint"
    signed = checkpoint.read_text(encoding="utf-8")
    checkpoint.write_text(signed.replace("\n2\n", "\n1\n"), encoding="utf-8")
    with pytest.raises(PrivateSetupError, match="damaged"):
        ReleaseLog(log.folder)
    with pytest.raises(PrivateSetupError, match="not a log"):
        ReleaseLog(tmp_path)
    with pytest.raises(PrivateSetupError, match="not empty"):
        ReleaseLog.create(tmp_path / "log", "example.com/releases")
    with pytest.raises(PrivateSetupError, match="white space"):
        ReleaseLog.create(tmp_path / "other", "two words")


def test_witnesses_cosign_the_state_that_they_saw(tmp_path: Path) -> None:
    log = ReleaseLog.create(tmp_path / "log", "example.com/releases")
    log.add(release(1))
    log = ReleaseLog(log.folder)
    witness = VerifierKey.of("example.com/witness", WITNESS_KEY, OPERATOR)
    line = signature_line(log.checkpoint.text, witness, OPERATOR, time=1_700_000_000)
    log.cosign(line, witness)
    signed = ReleaseLog(log.folder).signed
    assert open_checkpoint(signed, log.key, [witness], 1, now=1_700_000_000) == log.checkpoint
    other = signature_line(Checkpoint("x", 0, bytes(32)).text, witness, OPERATOR, time=1)
    with pytest.raises(PrivateSetupError, match="does not fit"):
        log.cosign(other, witness)
    with pytest.raises(PrivateSetupError, match="does not fit"):
        log.cosign(signature_line(log.checkpoint.text, log.key, OPERATOR), VerifierKey(log.origin, LOG_KEY, PUBLIC_OPERATOR))
    with pytest.raises(NodeRefusedError, match="wrong"):
        open_checkpoint(signed[:-8] + "AAAAAA=\n", log.key, [witness], 1)
