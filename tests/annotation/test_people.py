"""Accounts, sessions, the audit log, export and deletion."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sql

from openafm.annotation.database import Database, Schema
from openafm.annotation.errors import AnnotationError
from openafm.annotation.people import accounts as accounts_module
from openafm.annotation.people import sessions as sessions_module
from openafm.annotation.people.accounts import Accounts, Person, Role
from openafm.annotation.people.audit import entries
from openafm.annotation.people.privacy import delete_person, export_person
from openafm.annotation.people.sessions import SESSION_SECONDS, TRIES_PER_ADDRESS, TRIES_PER_NAME, WINDOW_SECONDS, Sessions
from openafm.annotation.people.tables import PEOPLE

PASSWORD = "correct horse"


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def accounts(tmp_path: Path, clock: SetClock) -> Accounts:
    return Accounts(Database(tmp_path / "people.sqlite3", [PEOPLE]), clock)


def join(accounts: Accounts, name: str, role: Role = Role.ANNOTATOR, projects: tuple[str, ...] = ("wave1",)) -> Person:
    return accounts.join(accounts.invite(role, projects), name, PASSWORD)


def test_an_invite_is_used_once_and_expires(accounts: Accounts, clock: SetClock) -> None:
    token = accounts.invite(Role.REVIEWER, ["wave1"], days=1)
    person = accounts.join(token, "  Ana ", PASSWORD)
    assert (person.name, person.role, person.projects) == ("Ana", Role.REVIEWER, ("wave1",))
    assert person.may_open("wave1")
    assert not person.may_open("wave2")
    with pytest.raises(AnnotationError, match="used, expired or unknown"):
        accounts.join(token, "Bo", PASSWORD)
    late = accounts.invite(Role.ADMIN, days=1)
    clock.now += 86401
    with pytest.raises(AnnotationError, match="used, expired or unknown"):
        accounts.join(late, "Bo", PASSWORD)


def test_a_refused_join_keeps_the_invite(accounts: Accounts) -> None:
    join(accounts, "Ana")
    token = accounts.invite(Role.ANNOTATOR)
    for name, password, reason in (
        ("Ana", PASSWORD, "taken"),
        ("Bo", "short", "5 characters"),
        ("", PASSWORD, "printable"),
        ("B\no", PASSWORD, "printable"),
    ):
        with pytest.raises(AnnotationError, match=reason):
            accounts.join(token, name, password)
    assert accounts.join(token, "Bo", PASSWORD).name == "Bo"


def test_sessions_open_expire_and_close(accounts: Accounts, clock: SetClock) -> None:
    ana, sessions = join(accounts, "Ana"), Sessions(accounts)
    token = sessions.sign_in("Ana", PASSWORD, "10.0.0.1")
    session = sessions.find(token)
    assert session is not None
    assert session.person == ana
    assert session.is_csrf(session.csrf)
    assert not session.is_csrf("other")
    assert sessions.find("other") is None
    clock.now += SESSION_SECONDS
    assert sessions.find(token) is None
    again = sessions.sign_in("Ana", PASSWORD, "10.0.0.1")
    sessions.close(again)
    assert sessions.find(again) is None


def test_failed_sign_ins_are_limited(accounts: Accounts, clock: SetClock) -> None:
    join(accounts, "Ana")
    sessions = Sessions(accounts)
    for _ in range(TRIES_PER_NAME):
        with pytest.raises(AnnotationError, match="wrong"):
            sessions.sign_in("Ana", "another password", "10.0.0.1")
    with pytest.raises(AnnotationError, match="too many") as caught:
        sessions.sign_in("Ana", PASSWORD, "10.0.0.1")
    assert caught.value.status == 429
    assert caught.value.retry_after == WINDOW_SECONDS
    assert sessions.sign_in("Ana", PASSWORD, "10.0.0.2")  # wrong tries from one place do not lock Ana out at another
    clock.now += WINDOW_SECONDS
    assert sessions.sign_in("Ana", PASSWORD, "10.0.0.1")


def test_sign_ins_at_the_same_time_are_limited(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    join(accounts, "Ana")
    sessions, hashes = Sessions(accounts), list[str]()
    monkeypatch.setattr(sessions_module, "is_password", lambda *_: time.sleep(0.05) or hashes.append("") or False)

    def status(_number: int) -> int:
        with pytest.raises(AnnotationError) as caught:
            sessions.sign_in("Ana", "another password", "127.0.0.1")
        return caught.value.status

    with ThreadPoolExecutor(30) as pool:
        found = list(pool.map(status, range(30)))
    assert (found.count(401), found.count(429), len(hashes)) == (TRIES_PER_NAME, 30 - TRIES_PER_NAME, TRIES_PER_NAME)


def test_successful_sign_ins_are_not_limited(accounts: Accounts) -> None:
    join(accounts, "Ana")
    sessions = Sessions(accounts)
    for _ in range(TRIES_PER_ADDRESS + 1):
        assert sessions.sign_in("Ana", PASSWORD, "10.0.0.1")


def test_the_audit_log_of_failed_sign_ins_is_bounded(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "MAX_RECORDED", 3)
    sessions = Sessions(accounts)
    for number in range(5):
        with pytest.raises(AnnotationError, match="wrong"):
            sessions.sign_in(f"name {number}", PASSWORD, "127.0.0.1")
    assert [entry["action"] for entry in entries(accounts.database)] == ["sign_in_failed"] * 3


def test_a_join_without_an_invite_hashes_nothing(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes: list[str] = []
    monkeypatch.setattr(accounts_module, "hash_password", lambda password: hashes.append(password) or "")
    with pytest.raises(AnnotationError, match="unknown"):
        accounts.join("guessed", "Bo", PASSWORD)
    assert not hashes


def test_addresses_are_limited_except_that_of_a_proxy(accounts: Accounts) -> None:
    join(accounts, "Zoë")
    for address, is_limited in (("127.0.0.1", False), ("10.0.0.1", True)):
        sessions = Sessions(accounts)
        for number in range(TRIES_PER_ADDRESS):
            with pytest.raises(AnnotationError, match="wrong"):
                sessions.sign_in(f"name {number}", PASSWORD, address)
        if is_limited:
            with pytest.raises(AnnotationError, match="too many"):
                sessions.sign_in("Zoë", PASSWORD, address)
        else:
            assert sessions.sign_in(" Zoe\u0308", PASSWORD, address)  # as some keyboards type it


def test_names_without_an_account_cannot_sign_in(accounts: Accounts) -> None:
    accounts.local_admin()
    for name in ("local", "missing"):
        for password in ("", PASSWORD):
            with pytest.raises(AnnotationError, match="wrong"):
                Sessions(accounts).sign_in(name, password, "10.0.0.1")
    assert not accounts.has_admin()


def test_the_last_admin_stays(accounts: Accounts) -> None:
    ana = join(accounts, "Ana", Role.ADMIN)
    with pytest.raises(AnnotationError, match="last admin"):
        accounts.change(ana.id, Role.ANNOTATOR, [], by=ana)
    with pytest.raises(AnnotationError, match="last admin"):
        delete_person(accounts, ana.id, by=ana)
    accounts.local_admin()  # cannot sign in, so it does not count
    with pytest.raises(AnnotationError, match="last admin"):
        accounts.change(ana.id, Role.ANNOTATOR, [], by=ana)
    bo = join(accounts, "Bo", Role.ADMIN)
    assert accounts.change(ana.id, Role.ANNOTATOR, ["wave2"], by=bo).projects == ("wave2",)


def test_a_person_is_exported_and_deleted(accounts: Accounts) -> None:
    ana, bo = join(accounts, "Ana", Role.ADMIN), join(accounts, "Bo")
    token = Sessions(accounts).sign_in("Bo", PASSWORD, "10.0.0.1")
    data = export_person(accounts, bo.id)
    assert data["account"]["name"] == "Bo"
    assert data["memberships"] == [{"person": bo.id, "project": "wave1"}]
    assert [entry["action"] for entry in data["audit"]] == ["join", "sign_in"]
    assert not {"digest", "csrf"} & set(data["sessions"][0])
    delete_person(accounts, bo.id, by=ana)
    assert Sessions(accounts).find(token) is None
    assert accounts.people() == [ana]
    assert accounts.names() == {ana.id: ana.name}
    log = entries(accounts.database)
    assert (log[0]["action"], log[0]["person"]) == ("delete_person", ana.id)
    assert not [entry for entry in log if entry["person"] == bo.id]
    with pytest.raises(AnnotationError, match="no account"):
        export_person(accounts, bo.id)


def test_rows_of_other_parts_are_exported_and_deleted_with_the_person(tmp_path: Path) -> None:
    tables = sql.MetaData()
    notes = sql.Table("notes", tables, sql.Column("person", sql.String), sql.Column("text", sql.String))
    accounts = Accounts(Database(tmp_path / "people.sqlite3", [PEOPLE, Schema(name="notes", tables=tables)]))
    ana, bo = join(accounts, "Ana"), join(accounts, "Bo")
    with accounts.database.writing() as connection:
        connection.execute(notes.insert(), [{"person": each.id, "text": each.name} for each in (ana, bo)])
    assert export_person(accounts, ana.id)["notes"] == [{"person": ana.id, "text": "Ana"}]
    delete_person(accounts, ana.id, by=None)
    with accounts.database.reading() as connection:
        assert list(connection.scalars(sql.select(notes.c.text))) == ["Bo"]


def test_roles_include_lower_ones() -> None:
    assert Role.ADMIN.includes(Role.REVIEWER)
    assert Role.REVIEWER.includes(Role.REVIEWER)
    assert not Role.ANNOTATOR.includes(Role.REVIEWER)
