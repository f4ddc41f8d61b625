"""Sign-in and sessions. A session is a random token in a cookie; the database stores its hash."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import threading
from dataclasses import dataclass

import sqlalchemy as sql

from openafm.annotation.errors import AnnotationError
from openafm.annotation.people import tables
from openafm.annotation.people.accounts import Accounts, Person, find, normalized_name, token_digest
from openafm.annotation.people.audit import record
from openafm.annotation.people.passwords import is_password
from openafm.serving.config import is_loopback

SESSION_SECONDS = 24 * 3600.0
TRIES_PER_NAME, TRIES_PER_ADDRESS = 10, 50
MAX_RECORDED = 1000
WINDOW_SECONDS = 900.0
_SESSION = sql.select(tables.sessions.c.person, tables.sessions.c.csrf).where(
    tables.sessions.c.digest == sql.bindparam("of"), tables.sessions.c.expires > sql.bindparam("now")
)


@dataclass(frozen=True, kw_only=True)
class Session:
    """A signed-in person. Requests that change something repeat `csrf` in a header."""

    person: Person
    csrf: str

    def is_csrf(self, text: str) -> bool:
        return hmac.compare_digest(self.csrf.encode(), text.encode("utf-8", "replace"))


class Sessions:
    """Open, find and close sessions."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts, self._database, self._clock = accounts, accounts.database, accounts.clock
        self._by_name, self._by_address = (FailedTries(n, accounts) for n in (TRIES_PER_NAME, TRIES_PER_ADDRESS))
        self._recorded = FailedTries(MAX_RECORDED, accounts)

    def sign_in(self, name: str, password: str, address: str) -> str:
        """Return the token of a new session. Wrong tries from one address do not lock the person out at another one.

        Args:
            address: of the client. Loopback addresses have no limit of their own: a proxy sends all requests from there.

        Raises:
            AnnotationError: name or password is wrong, or there were too many wrong ones.
        """
        name = normalized_name(name)
        limits = [(self._by_name, (name, address))] + ([] if is_loopback(address) else [(self._by_address, ("", address))])
        for tries, key in limits:
            tries.take(key)  # before the slow hash, so that tries at the same time count too
        with self._database.reading() as connection:
            row = connection.execute(sql.select(tables.people).where(tables.people.c.name == name)).one_or_none()
        if not is_password(password, "" if row is None else row.password) or row is None:
            self._record_failure(None if row is None else row.id)
            raise AnnotationError("name or password is wrong", status=401, code="sign_in")
        self._by_name.clear((name, address))
        self._by_address.give_back(("", address))
        return self.open(row.id)

    def _record_failure(self, person_id: str | None) -> None:
        """Record a failed sign-in, up to a number in the window: clients without an account can fail without end."""
        with contextlib.suppress(AnnotationError):
            self._recorded.take(("", ""))
            with self._database.writing() as connection:
                person = None if person_id is None else find(connection, person_id)
                record(connection, self._clock(), person, "sign_in_failed")

    def open(self, person_id: str) -> str:
        """Return the token of a new session of a person whose identity is established."""
        token, now = secrets.token_urlsafe(32), self._clock()
        with self._database.writing() as connection:
            connection.execute(tables.sessions.delete().where(tables.sessions.c.expires <= now))
            row = {"person": person_id, "csrf": secrets.token_urlsafe(32), "expires": now + SESSION_SECONDS}
            connection.execute(tables.sessions.insert().values(digest=token_digest(token), **row))
            record(connection, now, find(connection, person_id), "sign_in")
        return token

    def find(self, token: str) -> Session | None:
        """Return the session of a token; None if it is unknown, closed or expired."""
        values = {"of": token_digest(token), "now": self._clock()}
        with self._database.reading() as connection:
            row = connection.execute(_SESSION, values).one_or_none()
            person = None if row is None else find(connection, row.person)
        return Session(person=person, csrf=row.csrf) if row and person else None

    def close(self, token: str) -> None:
        """Close a session, if it is open."""
        with self._database.writing() as connection:
            connection.execute(tables.sessions.delete().where(tables.sessions.c.digest == token_digest(token)))


class FailedTries:
    """Count sign-ins that failed or are not decided yet, by name and address. Thread-safe."""

    def __init__(self, limit: int, accounts: Accounts) -> None:
        self._limit, self._clock = limit, accounts.clock
        self._times: dict[tuple[str, str], list[float]] = {}
        self._lock = threading.Lock()

    def take(self, key: tuple[str, str]) -> None:
        """Count a try.

        Raises:
            AnnotationError: the key has as many tries as the limit; status 429.
        """
        with self._lock:
            times = self._recent(key)
            if len(times) >= self._limit:
                wait = WINDOW_SECONDS - (self._clock() - times[0])
                message = f"too many failed sign-ins; try again in {max(wait / 60, 1):.0f} min"
                raise AnnotationError(message, status=429, code="rate_limit", retry_after=wait)
            self._times[key] = [*times, self._clock()]
            if len(self._times) > 10_000:  # a client can choose names without end
                self._times = {each: times for each in list(self._times) if (times := self._recent(each))}

    def give_back(self, key: tuple[str, str]) -> None:
        """Remove the newest try, which succeeded."""
        with self._lock:
            if times := self._times.pop(key, [])[:-1]:
                self._times[key] = times

    def clear(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._times.pop(key, None)

    def _recent(self, key: tuple[str, str]) -> list[float]:
        since = self._clock() - WINDOW_SECONDS
        return [time for time in self._times.get(key, []) if time > since]
