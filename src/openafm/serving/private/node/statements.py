"""Statements of nodes: the release that a node runs and the key to which clients encrypt, signed by the operator.

A statement is signed by software. No hardware vouches for it, so `assurance` is always `software-only`: it shows who
makes the claim, not that the claim is true.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection
from dataclasses import dataclass

from openafm.adapters.delivery.errors import UntrustedDeliveryError
from openafm.adapters.delivery.keys import check_signature, public_key, sign
from openafm.core.config import Config, ConfigError, from_dict
from openafm.serving.private.errors import MessageError, NodeRefusedError
from openafm.serving.private.log.releases import Release, canonical
from openafm.serving.private.oblivious_http.key_configs import KeyConfig, decode_key_config

FORMAT = "openafm.statement/1"
SOFTWARE_ONLY = "software-only"
MAX_VALID_SECONDS = 24 * 3600
"""Statements with a longer validity are refused: a stolen key must not work for long."""

CLOCK_SKEW_SECONDS = 300
"""A node's clock may differ from the client's by this much."""

MAX_STATEMENT_BYTES = 64 << 10
_CONTEXT = b"openafm private compute statement\n"


@dataclass(frozen=True, kw_only=True)
class Statement(Config):
    """What a node states about itself.

    Attributes:
        key_config: the node's public key as in RFC 9458, in hex.
        not_before, not_after: validity in seconds since 1970.
    """

    format: str = FORMAT
    assurance: str = SOFTWARE_ONLY
    release: Release
    key_config: str
    not_before: int
    not_after: int

    def __post_init__(self) -> None:
        self.require(self.format == FORMAT, f"the format is {self.format!r:.40}, this openafm reads {FORMAT}")
        self.require(re.fullmatch("([0-9a-f]{2}){1,200}", self.key_config) is not None, "key_config is not hex")
        self.require(0 <= self.not_before < self.not_after < 1 << 40, "the validity is empty")

    @property
    def key(self) -> KeyConfig:
        """The key to which clients encrypt.

        Raises:
            MessageError: it is damaged.
        """
        return decode_key_config(bytes.fromhex(self.key_config))


def sign_statement(statement: Statement, private_key: str) -> bytes:
    """Return the signed statement as JSON. The key must be that of the release's operator."""
    if public_key(private_key) != statement.release.operator:
        raise ValueError("the statement must be signed with the key of the release's operator")
    text = canonical(statement).decode()
    return _signed(text, sign(_CONTEXT + text.encode(), private_key))


def open_statement(data: bytes) -> Statement:
    """Return a statement that its operator signed. The log decides whether the operator is trusted.

    Raises:
        NodeRefusedError: `statement`, it is damaged or not signed by its operator.
    """
    try:
        if len(data) > MAX_STATEMENT_BYTES:
            raise ValueError(f"it has more than {MAX_STATEMENT_BYTES:,} bytes")
        signed = json.loads(data)
        text, signature = signed["statement"], signed["signature"]
        if not re.fullmatch("[0-9a-f]{128}", signature):
            raise ValueError("the signature needs 128 hex digits")
        statement = from_dict(Statement, json.loads(text))
        if canonical(statement).decode() != text or _signed(text, signature) != data:
            raise ValueError("it is not in canonical form")
        _ = statement.key
        check_signature(_CONTEXT + text.encode(), signature, statement.release.operator)
    except UntrustedDeliveryError as error:
        raise NodeRefusedError("statement", "the statement is not signed with the key of its operator") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigError, MessageError) as error:
        raise NodeRefusedError("statement", f"the statement of the node is damaged: {error}") from error
    return statement


def check_statement(statement: Statement, accepted: Collection[str] = (), now: float | None = None) -> None:
    """Check the assurance and the validity of a statement.

    Args:
        accepted: assurances that the client accepts although no hardware vouches for them.
        now: the time in seconds; by default this machine's.

    Raises:
        NodeRefusedError: `software-only`, `expired`, or `statement` for an assurance that cannot be checked.
    """
    now = time.time() if now is None else now
    if statement.assurance != SOFTWARE_ONLY:
        raise NodeRefusedError(
            "statement", f"the assurance '{statement.assurance[:40]}' cannot be checked; this openafm knows {SOFTWARE_ONLY}"
        )
    if SOFTWARE_ONLY not in accepted:
        raise NodeRefusedError(
            "software-only",
            "no hardware vouches for the node; its operator can read requests. Pass --accept software-only to use it anyway",
        )
    if statement.not_after - statement.not_before > MAX_VALID_SECONDS:
        raise NodeRefusedError("expired", f"the statement is valid for more than {MAX_VALID_SECONDS // 3600} hours")
    if not statement.not_before - CLOCK_SKEW_SECONDS <= now <= statement.not_after + CLOCK_SKEW_SECONDS:
        raise NodeRefusedError(
            "expired",
            f"the statement is valid from {_clock(statement.not_before)} to {_clock(statement.not_after)}, and the clock of"
            f" this machine shows {_clock(now)}; check the clock, else use another node",
        )


def _signed(text: str, signature: str) -> bytes:
    return json.dumps({"statement": text, "signature": signature}).encode()


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
