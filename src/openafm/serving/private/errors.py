"""Errors of private compute."""

from __future__ import annotations

from typing import Literal, TypeAlias

from openafm.core.errors import OpenAFMError, UsageError

Refusal: TypeAlias = Literal[
    "statement",  # damaged, or not signed by its operator
    "software-only",  # no hardware vouches for the statement, and the client does not accept that
    "expired",  # outside its validity, or valid for too long
    "log",  # the log's checkpoint or proofs are damaged, or not signed by the trusted key
    "rolled-back",  # the log is smaller than before, or does not contain its former entries
    "stale",  # the log signed its checkpoint too long ago
    "witnesses",  # too few witnesses signed the checkpoint
    "unlogged",  # the release is not in the log
    "downgraded",  # the release is below the minimum of the newest one
]


class PrivateComputeError(OpenAFMError):
    """Private compute failed. Base of the errors of this package that are not usage errors."""


class MessageError(PrivateComputeError):
    """An encrypted or binary HTTP message is damaged, truncated or not for this key."""


class NodeUnreachableError(PrivateComputeError):
    """No node answers, or the connection ended before the answer did."""


class NodeRefusedError(PrivateComputeError):
    """The client does not send its request to this node. `reason` is a word that programs compare."""

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(f"node refused ({reason}): {message}")
        self.reason = reason


class PrivateSetupError(UsageError):
    """A file, key or setting of a node, log, relay or client is missing or invalid."""
