"""Accounts: people join by invite links, have a role, and may open some projects."""

from __future__ import annotations

import hashlib
import secrets
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sql

from openafm.annotation.clock import Clock, steady_clock
from openafm.annotation.database import Database
from openafm.annotation.errors import AnnotationError, not_found
from openafm.annotation.people import tables
from openafm.annotation.people.audit import record
from openafm.annotation.people.passwords import check_password, hash_password

LOCAL_ID = "local"
_DAY = 86400.0
_MAX_NAME = 80
_NAMES = sql.select(tables.people.c.id, tables.people.c.name)
_PERSON = (
    sql.select(tables.people, tables.memberships.c.project)
    .outerjoin(tables.memberships, tables.memberships.c.person == tables.people.c.id)
    .where(tables.people.c.id == sql.bindparam("of"))
    .order_by(tables.memberships.c.project)
)


class Role(StrEnum):
    """What a person may do; each role includes the ones before it."""

    ANNOTATOR = "annotator"
    REVIEWER = "reviewer"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        return list(Role).index(self) >= list(Role).index(other)


@dataclass(frozen=True, kw_only=True)
class Person:
    """An account. `projects` are those that the person may open; an admin may open all."""

    id: str
    name: str
    role: Role
    projects: tuple[str, ...] = ()

    def may_open(self, project: str) -> bool:
        return self.role is Role.ADMIN or project in self.projects


class Accounts:
    """Create, change and find accounts.

    Args:
        database: has the schema `tables.PEOPLE`.
    """

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self.database, self.clock = database, clock or steady_clock()

    def local_admin(self) -> Person:
        """Return the admin of a server on a loopback address without accounts. The account cannot sign in."""
        with self.database.writing() as connection:
            found = find(connection, LOCAL_ID)
            if found is None:
                row = {"id": LOCAL_ID, "name": "local", "password": "", "role": Role.ADMIN, "created": self.clock()}
                connection.execute(tables.people.insert().values(row))
                found = find(connection, LOCAL_ID)
        assert found is not None
        return found

    def has_admin(self) -> bool:
        """Return True if an admin can sign in."""
        people = tables.people.c
        with self.database.reading() as connection:
            statement = sql.select(people.id).where(people.role == Role.ADMIN, people.password != "").limit(1)
            return connection.scalar(statement) is not None

    def invite(self, role: Role, projects: Sequence[str] = (), *, by: Person | None = None, days: float = 7.0) -> str:
        """Return the token of a new invite link, which one person can use. Only its hash is stored."""
        token = secrets.token_urlsafe(32)
        with self.database.writing() as connection:
            expires = self.clock() + days * _DAY
            row = {"role": role, "projects": list(projects), "expires": expires, "person": by and by.id}
            connection.execute(tables.invites.insert().values(digest=token_digest(token), **row))
            record(connection, self.clock(), by, "invite", role=role, projects=list(projects))
        return token

    def join(self, token: str, name: str, password: str) -> Person:
        """Create the account of an invited person.

        Raises:
            AnnotationError: the invite is used, expired or unknown, the name is taken, or the password too short.
        """
        name = _checked_name(name)
        check_password(password)
        refused = AnnotationError("this invite is used, expired or unknown; ask for a new link", status=403, code="invite")
        invites = tables.invites.c
        is_valid = sql.and_(invites.digest == token_digest(token), invites.expires > self.clock())
        with self.database.reading() as connection:
            if connection.scalar(sql.select(invites.digest).where(is_valid)) is None:
                raise refused
        hashed = hash_password(password)  # expensive: only with a valid invite, and outside the transaction
        with self.database.writing() as connection:
            invite = connection.execute(
                tables.invites.delete().where(is_valid).returning(invites.role, invites.projects)
            ).one_or_none()
            if invite is None:
                raise refused
            if connection.scalar(sql.select(tables.people.c.id).where(tables.people.c.name == name)):
                raise AnnotationError(f"the name '{name}' is taken; choose another one", status=409, code="name_taken")
            id = secrets.token_hex(8)
            row = {"id": id, "name": name, "password": hashed, "role": invite.role, "created": self.clock()}
            connection.execute(tables.people.insert().values(row))
            _set_projects(connection, id, invite.projects)
            person = found(connection, id)
            record(connection, self.clock(), person, "join", role=person.role)
        return person

    def people(self) -> list[Person]:
        """Return all accounts, sorted by name."""
        people, memberships = tables.people, tables.memberships
        projects: dict[str, list[str]] = {}
        with self.database.reading() as connection:
            for row in connection.execute(sql.select(memberships).order_by(memberships.c.project)):
                projects.setdefault(row.person, []).append(row.project)
            rows = connection.execute(sql.select(people).order_by(people.c.name)).all()
        return [
            Person(id=row.id, name=row.name, role=Role(row.role), projects=tuple(projects.get(row.id, ()))) for row in rows
        ]

    def names(self) -> dict[str, str]:
        """Return the names of all accounts by id."""
        with self.database.reading() as connection:
            return {row.id: row.name for row in connection.execute(_NAMES)}

    def person(self, id: str) -> Person:
        """Return an account.

        Raises:
            AnnotationError: none has this id.
        """
        with self.database.reading() as connection:
            return found(connection, id)

    def change(self, id: str, role: Role, projects: Sequence[str], *, by: Person) -> Person:
        """Change the role and the projects of a person.

        Raises:
            AnnotationError: no account has this id, or the last admin would lose the role.
        """
        with self.database.writing() as connection:
            before = found(connection, id)
            if before.role is Role.ADMIN and role is not Role.ADMIN:
                check_not_last_admin(connection, id)
            connection.execute(tables.people.update().where(tables.people.c.id == id).values(role=role))
            _set_projects(connection, id, projects)
            record(connection, self.clock(), by, "change", subject=id, role=role, projects=list(projects))
            return found(connection, id)


def find(connection: sql.Connection, id: str) -> Person | None:
    """Return an account, or None."""
    rows = connection.execute(_PERSON, {"of": id}).all()
    if not rows:
        return None
    projects = tuple(row.project for row in rows if row.project is not None)
    return Person(id=id, name=rows[0].name, role=Role(rows[0].role), projects=projects)


def found(connection: sql.Connection, id: str) -> Person:
    """Return an account.

    Raises:
        AnnotationError: none has this id.
    """
    person = find(connection, id)
    if person is None:
        raise not_found("account has this id")
    return person


def check_not_last_admin(connection: sql.Connection, id: str) -> None:
    """Check that another admin than `id` can sign in.

    Raises:
        AnnotationError: none can, so that no person could invite others.
    """
    people = tables.people.c
    others = sql.select(people.id).where(people.role == Role.ADMIN, people.password != "", people.id != id)
    if connection.scalar(others.limit(1)) is None:
        raise AnnotationError("this is the last admin; make another person admin first", status=409, code="last_admin")


def token_digest(token: str) -> str:
    """Return the SHA-256 of a random token, which needs no salt."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def person_dict(person: Person) -> dict[str, Any]:
    """Return an account as JSON."""
    return {"id": person.id, "name": person.name, "role": person.role, "projects": list(person.projects)}


def _set_projects(connection: sql.Connection, id: str, projects: Sequence[str]) -> None:
    connection.execute(tables.memberships.delete().where(tables.memberships.c.person == id))
    rows = [{"person": id, "project": project} for project in sorted(set(projects))]
    if rows:
        connection.execute(tables.memberships.insert(), rows)


def normalized_name(name: str) -> str:
    """Return a name in NFKC without outer spaces, so that all ways to type it are one account."""
    return unicodedata.normalize("NFKC", name).strip()


def _checked_name(name: str) -> str:
    """Return a normalized name.

    Raises:
        AnnotationError: it is empty, too long, or has control characters.
    """
    name = normalized_name(name)
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise AnnotationError(f"a name has 1 to {_MAX_NAME} printable characters, got {name!r:.100}")
    return name
