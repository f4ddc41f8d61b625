"""The client's check of a node: statement, log, and the checkpoint that it saw before."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from openafm.core.config import Config
from openafm.serving.private.errors import NodeRefusedError, PrivateSetupError
from openafm.serving.private.log.checkpoints import (
    MAX_LOG_DAYS,
    MAX_WITNESS_DAYS,
    Checkpoint,
    check_follows,
    open_checkpoint,
)
from openafm.serving.private.log.merkle import ProofError, check_inclusion, leaf_hash
from openafm.serving.private.log.notes import LOG_KEY, WITNESS_KEY, VerifierKey
from openafm.serving.private.log.release_log import LogProofs
from openafm.serving.private.log.releases import read_release
from openafm.serving.private.node.statements import Statement, check_statement, open_statement

_MAX_PROOF = 64


@dataclass(frozen=True, kw_only=True)
class Trust(Config):
    """The log that a client trusts.

    Attributes:
        log: the URL of the log.
        log_key: its verifier key.
        witnesses: verifier keys of witnesses.
        quorum: how many witnesses must have signed the checkpoint.
        max_witness_days: how old their signatures may be.
        max_log_days: how old the time may be that the log signed with its checkpoint.
    """

    log: str
    log_key: str
    witnesses: tuple[str, ...] = ()
    quorum: int = 0
    max_witness_days: float = MAX_WITNESS_DAYS
    max_log_days: float = MAX_LOG_DAYS

    def __post_init__(self) -> None:
        for name in ("max_witness_days", "max_log_days"):
            self.require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        self.require(self.log.startswith(("http://", "https://")), f"'{self.log[:200]}' is not the URL of a log")
        self.require(
            0 <= self.quorum <= len(set(self.witnesses)),
            f"quorum must lie in 0..{len(set(self.witnesses))}, the number of witnesses, got {self.quorum}",
        )
        if VerifierKey.parse(self.log_key).kind != LOG_KEY:
            raise PrivateSetupError(f"'{self.log_key[:100]}' is the key of a witness; pass the key of the log")
        for key in self.witnesses:
            if VerifierKey.parse(key).kind != WITNESS_KEY:
                raise PrivateSetupError(f"'{key[:100]}' is not the key of a witness")


def check_node(
    signed_statement: bytes,
    proofs: LogProofs,
    trust: Trust,
    former: Checkpoint | None = None,
    accepted: Collection[str] = (),
    now: float | None = None,
) -> tuple[Statement, Checkpoint]:
    """Return the statement of a node and the checkpoint of the log, after all checks.

    Raises:
        NodeRefusedError: a check failed; its reason names which.
    """
    statement = open_statement(signed_statement)
    check_statement(statement, accepted, now)
    witnesses = [VerifierKey.parse(key) for key in dict.fromkeys(trust.witnesses)]
    checkpoint = open_checkpoint(
        proofs.checkpoint,
        VerifierKey.parse(trust.log_key),
        witnesses,
        trust.quorum,
        now,
        max_days=trust.max_witness_days,
        max_log_days=trust.max_log_days,
    )
    check_follows(checkpoint, former, proofs.consistency)
    if proofs.index is None:
        raise NodeRefusedError(
            "unlogged", f"the release {statement.release.number} of the node is not in the log {checkpoint.origin}"
        )
    try:
        leaf = leaf_hash(statement.release.data)
        check_inclusion(leaf, proofs.index, checkpoint.size, proofs.inclusion, checkpoint.root)
    except ProofError as error:
        raise NodeRefusedError("unlogged", f"the log does not prove that it contains the release: {error}") from error
    try:
        last = checkpoint.size - 1
        check_inclusion(leaf_hash(proofs.newest), last, checkpoint.size, proofs.newest_inclusion, checkpoint.root)
        newest = read_release(proofs.newest)
    except (ProofError, PrivateSetupError) as error:
        raise NodeRefusedError("log", f"the log does not prove its newest release: {error}") from error
    if statement.release.number < newest.minimum:
        raise NodeRefusedError(
            "downgraded",
            f"the node runs release {statement.release.number}; release {newest.number} requires {newest.minimum} or more",
        )
    return statement, checkpoint


def encode_proofs(proofs: LogProofs) -> bytes:
    """Return proofs as JSON."""
    values = dict(vars(proofs))
    for name in ("inclusion", "newest_inclusion", "consistency"):
        values[name] = [each.hex() for each in values[name]]
    return json.dumps({**values, "newest": proofs.newest.decode("ascii")}).encode()


def decode_proofs(data: bytes) -> LogProofs:
    """Return the proofs in JSON.

    Raises:
        NodeRefusedError: `log`, they are damaged.
    """
    try:
        values = json.loads(data)
        index, checkpoint = values["index"], values["checkpoint"]
        if not isinstance(checkpoint, str) or not (index is None or type(index) is int):
            raise TypeError("the checkpoint must be text, and the index a number")
        proofs = LogProofs(
            checkpoint=checkpoint,
            index=index,
            newest=values["newest"].encode("ascii"),
            inclusion=_hashes(values, "inclusion"),
            newest_inclusion=_hashes(values, "newest_inclusion"),
            consistency=_hashes(values, "consistency"),
        )
        if encode_proofs(proofs) != data:
            raise ValueError("they are not in canonical form")
        return proofs
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise NodeRefusedError("log", f"the reply of the log is damaged: {error}") from error


def _hashes(values: Mapping[str, Any], name: str) -> list[bytes]:
    texts = values[name]
    if not isinstance(texts, list) or len(texts) > _MAX_PROOF:
        raise ValueError(f"{name} must be a list of at most {_MAX_PROOF} hashes")
    hashes = [bytes.fromhex(text) for text in texts]
    if any(len(each) != 32 for each in hashes):
        raise ValueError(f"{name} has a hash that is not 32 bytes")
    return hashes
