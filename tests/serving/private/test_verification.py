"""The check of a node by its client: what is refused with which reason, and mutations of all that is signed."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from statements_of_nodes import OPERATOR, release, statement

from openafm.core.config import ConfigError
from openafm.serving.private.errors import NodeRefusedError
from openafm.serving.private.log.merkle import leaf_hash
from openafm.serving.private.log.notes import WITNESS_KEY, VerifierKey, signature_line
from openafm.serving.private.log.release_log import LogProofs, ReleaseLog
from openafm.serving.private.log.server import _Opened
from openafm.serving.private.node.statements import SOFTWARE_ONLY, sign_statement
from openafm.serving.private.oblivious_http.key_configs import NodeKey
from openafm.serving.private.verification import Trust, check_node, decode_proofs, encode_proofs

NODE = NodeKey(1)
WITNESS = VerifierKey.of("example.com/witness", WITNESS_KEY, OPERATOR)


@pytest.fixture
def log(tmp_path: Path) -> ReleaseLog:
    """A log of seven releases; number 5 raised the minimum to 3."""
    log = ReleaseLog.create(tmp_path / "log", "example.com/releases")
    for number in range(1, 8):
        log.add(release(number, minimum=3 if number >= 5 else 0))
    return ReleaseLog(log.folder)


@pytest.fixture
def trust(log: ReleaseLog) -> Trust:
    return Trust(log="http://localhost:1", log_key=str(log.key))


def signed(number: int = 6, **changes: Any) -> bytes:
    stated = statement(NODE, release(number, minimum=3 if number >= 5 else 0))
    return sign_statement(dataclasses.replace(stated, **changes), OPERATOR)


def proofs_of(log: ReleaseLog, number: int = 6, since: int = 0) -> LogProofs:
    return log.proofs(leaf_hash(release(number, minimum=3 if number >= 5 else 0).data), since)


def refused(reason: str, check: Callable[[], object]) -> None:
    with pytest.raises(NodeRefusedError) as raised:
        check()
    assert raised.value.reason == reason, raised.value


def test_an_old_copy_of_the_log_is_refused(log: ReleaseLog, trust: Trust) -> None:
    later = time.time() + 8 * 24 * 3600
    stated = sign_statement(statement(NODE, release(6, minimum=3), start=later), OPERATOR)
    old, checkpoint = proofs_of(log), log.checkpoint
    refused("stale", lambda: check_node(stated, old, trust, checkpoint, [SOFTWARE_ONLY], now=later))
    untimed = dataclasses.replace(old, checkpoint="".join(old.checkpoint.splitlines(keepends=True)[:-1]))
    refused("stale", lambda: check_node(signed(), untimed, trust, None, [SOFTWARE_ONLY]))
    patient = dataclasses.replace(trust, max_log_days=9)
    assert check_node(stated, old, patient, checkpoint, [SOFTWARE_ONLY], now=later)[1] == checkpoint
    log.sign_time(later)
    assert check_node(stated, proofs_of(log), trust, checkpoint, [SOFTWARE_ONLY], now=later)[1] == checkpoint


def test_a_served_log_signs_the_time_daily(log: ReleaseLog) -> None:
    log.sign_time(now=1_700_000_000)
    opened = _Opened(log.folder)
    assert time.time() - opened.log().signed_at() < 3600
    checkpoint = (log.folder / "checkpoint").read_text(encoding="utf-8")
    assert opened.log().signed == checkpoint  # not signed again
    assert len(checkpoint.splitlines()) == 6  # origin, size, root, an empty line, two signatures


def test_a_logged_node_is_accepted(log: ReleaseLog, trust: Trust) -> None:
    stated, checkpoint = check_node(signed(), proofs_of(log), trust, None, [SOFTWARE_ONLY])
    assert (stated.key, checkpoint) == (NODE.config, log.checkpoint)
    assert decode_proofs(encode_proofs(proofs_of(log, since=3))) == proofs_of(log, since=3)


def test_a_node_without_hardware_is_refused_unless_the_client_accepts_it(log: ReleaseLog, trust: Trust) -> None:
    refused("software-only", lambda: check_node(signed(), proofs_of(log), trust))
    hardware = signed(assurance="hardware")
    refused("statement", lambda: check_node(hardware, proofs_of(log), trust, None, [SOFTWARE_ONLY, "hardware"]))


@pytest.mark.parametrize(
    ("start", "seconds", "is_valid"),
    [
        (0, 3600, True),
        (-3600 - 299, 3600, True),
        (-3600 - 302, 3600, False),
        (299, 3600, True),
        (302, 3600, False),
        (-100, 24 * 3600, True),
        (-100, 24 * 3600 + 1, False),
    ],
)
def test_validity_and_skewed_clocks(log: ReleaseLog, trust: Trust, start: int, seconds: int, is_valid: bool) -> None:
    now = 1_800_000_000
    log.sign_time(now)
    data = signed(not_before=now + start, not_after=now + start + seconds)
    if is_valid:
        check_node(data, proofs_of(log), trust, None, [SOFTWARE_ONLY], now)
    else:
        refused("expired", lambda: check_node(data, proofs_of(log), trust, None, [SOFTWARE_ONLY], now))


def test_unlogged_downgraded_and_forked_releases(log: ReleaseLog, trust: Trust, tmp_path: Path) -> None:
    refused("unlogged", lambda: check_node(signed(9), proofs_of(log, 9), trust, None, [SOFTWARE_ONLY]))
    refused("unlogged", lambda: check_node(signed(7), proofs_of(log, 6), trust, None, [SOFTWARE_ONLY]))
    refused("downgraded", lambda: check_node(signed(2), proofs_of(log, 2), trust, None, [SOFTWARE_ONLY]))
    check_node(signed(3), proofs_of(log, 3), trust, None, [SOFTWARE_ONLY])
    other = ReleaseLog.create(tmp_path / "other", "example.com/releases")
    other.add(release(6, minimum=3))
    forked = ReleaseLog(other.folder)
    refused("log", lambda: check_node(signed(), proofs_of(forked), trust, None, [SOFTWARE_ONLY]))
    own = dataclasses.replace(trust, log_key=str(forked.key))
    refused("rolled-back", lambda: check_node(signed(), proofs_of(forked), own, log.checkpoint, [SOFTWARE_ONLY]))
    old = dataclasses.replace(forked.checkpoint, root=bytes(32))
    refused("rolled-back", lambda: check_node(signed(), proofs_of(forked), own, old, [SOFTWARE_ONLY]))


def test_a_quorum_of_witnesses(log: ReleaseLog, trust: Trust) -> None:
    watched = dataclasses.replace(trust, witnesses=(str(WITNESS), str(WITNESS)), quorum=1)
    refused("witnesses", lambda: check_node(signed(), proofs_of(log), watched, None, [SOFTWARE_ONLY]))
    log.cosign(signature_line(log.checkpoint.text, WITNESS, OPERATOR, int(time.time())), WITNESS)
    check_node(signed(), proofs_of(ReleaseLog(log.folder)), watched, None, [SOFTWARE_ONLY])
    with pytest.raises(ConfigError, match="number of witnesses"):  # one witness named twice is one
        dataclasses.replace(watched, quorum=2)


@pytest.mark.parametrize(("days", "is_accepted"), [(-0.1, False), (0, True), (6.9, True), (7.1, False)])
def test_old_signatures_of_witnesses_do_not_count(log: ReleaseLog, trust: Trust, days: float, is_accepted: bool) -> None:
    watched = dataclasses.replace(trust, witnesses=(str(WITNESS),), quorum=1)
    signed_at = int(time.time() - days * 24 * 3600)
    log.cosign(signature_line(log.checkpoint.text, WITNESS, OPERATOR, signed_at), WITNESS)
    proofs = proofs_of(ReleaseLog(log.folder))
    if is_accepted:
        check_node(signed(), proofs, watched, None, [SOFTWARE_ONLY])
    else:
        refused("witnesses", lambda: check_node(signed(), proofs, watched, None, [SOFTWARE_ONLY]))


def test_a_client_may_accept_older_signatures_of_witnesses(log: ReleaseLog, trust: Trust) -> None:
    log.cosign(signature_line(log.checkpoint.text, WITNESS, OPERATOR, int(time.time()) - 8 * 24 * 3600), WITNESS)
    patient = dataclasses.replace(trust, witnesses=(str(WITNESS),), quorum=1, max_witness_days=9.0)
    check_node(signed(), proofs_of(ReleaseLog(log.folder)), patient, None, [SOFTWARE_ONLY])


def changed_text(draw: random.Random, text: str) -> str:
    """Return a text with one character changed, removed, doubled or moved."""
    at = draw.randrange(len(text))
    other = draw.choice([c for c in '0123456789abcdefXYZ+=/ \n"{}' if c != text[at]])
    return draw.choice(
        [text[:at] + other + text[at + 1 :], text[:at] + text[at + 1 :], text[: at + 1] + other + text[at + 1 :], text[:at]]
    )


def test_mutations_of_statements_proofs_and_checkpoints_are_refused(log: ReleaseLog, trust: Trust) -> None:
    draw = random.Random(22)
    data, former = signed(), log.checkpoint
    log.add(release(8, minimum=3))
    proofs = ReleaseLog(log.folder).proofs(leaf_hash(release(6, minimum=3).data), former.size)
    check_node(data, decode_proofs(encode_proofs(proofs)), trust, former, [SOFTWARE_ONLY])
    wire = encode_proofs(proofs).decode()
    for number in range(700):
        statement_text, proof_text = data.decode(), wire
        if number % 2:
            statement_text = changed_text(draw, statement_text)
        else:
            proof_text = changed_text(draw, proof_text)
        with pytest.raises(NodeRefusedError):
            check_node(statement_text.encode(), decode_proofs(proof_text.encode()), trust, former, [SOFTWARE_ONLY])
