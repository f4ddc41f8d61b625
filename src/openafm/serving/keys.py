"""API keys of a server: created for a person or program, stored as hashes in OPENAFM_HOME/keys/serve.json, mode 0600.

A key is 32 random bytes, so its SHA-256 cannot be inverted and needs no salt or slow hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openafm.core.config import nearest
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import atomic_file, data_home
from openafm.core.folder_lock import folder_lock
from openafm.serving.admission import TokenBucket
from openafm.serving.errors import ApiError

PREFIX = "afm_"
SCOPES = ("inference", "metrics", "admin")
"""`inference`: answers and lists of models; `metrics`: /metrics; `admin`: loading and unloading adapters, and all else."""


class KeyFileError(OpenAFMError):
    """The file of keys is damaged."""


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """Hold a stored key.

    Attributes:
        id: a short public name, part of the key itself.
        digest: SHA-256 of the key in hex.
        scopes: some of `SCOPES`.
        expires: time in seconds; None: never.
        requests_per_minute, tokens_per_minute: limits; None: unlimited.
        priority: requests of higher priorities are admitted first.
    """

    id: str
    name: str
    digest: str
    scopes: tuple[str, ...] = ("inference",)
    created: float = 0.0
    expires: float | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        unknown = [scope for scope in self.scopes if scope not in SCOPES]
        if unknown:
            raise UsageError(f"unknown scope '{unknown[0]}'{nearest(unknown[0], list(SCOPES))}")
        for limit in (self.requests_per_minute, self.tokens_per_minute):
            if limit is not None and limit < 1:
                raise UsageError(f"a rate limit is {limit:g}; use 1 or more, or leave it out")


@dataclass(frozen=True, eq=False)
class Client:
    """Who sends a request: a key with its budgets, or the anonymous user of a loopback address."""

    key: ApiKey | None = None
    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None

    @property
    def priority(self) -> int:
        return 0 if self.key is None else self.key.priority

    @property
    def id(self) -> str:
        return "" if self.key is None else self.key.id

    def check_rate(self) -> None:
        """Count a request.

        Raises:
            ApiError: 429, a budget of the key is empty.
        """
        for bucket, unit in ((self.requests, "requests"), (self.tokens, "tokens")):
            if bucket is not None and (seconds := bucket.wait_seconds()):
                message = f"this key may use {bucket.per_minute:g} {unit} per minute; retry later"
                raise ApiError(429, message, code="rate_limit_exceeded", retry_after=seconds)
        if self.requests is not None:
            self.requests.take(1)

    def charge(self, num_tokens: int) -> None:
        """Take the tokens of an answer from the budget."""
        if self.tokens is not None:
            self.tokens.take(num_tokens)


ANONYMOUS = Client()


def keys_file() -> Path:
    """Return the file of this user's keys."""
    return data_home() / "keys" / "serve.json"


def read_keys(file: Path) -> list[ApiKey]:
    """Return the stored keys; none if there is no file.

    Raises:
        KeyFileError: the file is damaged.
    """
    try:
        values: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
        return [ApiKey(**{**each, "scopes": tuple(each["scopes"])}) for each in values]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError, UsageError) as error:
        raise KeyFileError(f"{file} is damaged ({error}); restore it, or remove it and create new keys") from error


def create_key(
    name: str,
    scopes: Sequence[str] = ("inference",),
    *,
    days: float | None = None,
    requests_per_minute: float | None = None,
    tokens_per_minute: float | None = None,
    priority: int = 0,
    file: Path | None = None,
) -> tuple[str, ApiKey]:
    """Create a key. Return its text, which is stored nowhere, and its record.

    Raises:
        UsageError: the name is empty, a scope is unknown, or a limit is not positive.
        KeyFileError: the file of keys is damaged.
        FolderInUseError: another process changes the keys.
    """
    if not name.strip():
        raise UsageError("the name of the key is empty; name who or what uses it")
    file = file or keys_file()
    text = f"{PREFIX}{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"
    now = time.time()
    key = ApiKey(
        id=text.removeprefix(PREFIX)[:8],
        name=name,
        digest=_digest(text),
        scopes=tuple(scopes),
        created=now,
        expires=None if days is None else now + days * 86400,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        priority=priority,
    )
    with _locked(file):
        _write(file, [*read_keys(file), key])
    return text, key


def revoke_key(id: str, file: Path | None = None) -> ApiKey:
    """Remove a key by its id or name. Running servers refuse it from their next request on.

    Raises:
        UsageError: no key has this id or name, or several have this name.
        KeyFileError: the file of keys is damaged.
        FolderInUseError: another process changes the keys.
    """
    file = file or keys_file()
    with _locked(file):
        keys = read_keys(file)
        found = [key for key in keys if id in (key.id, key.name)]
        if not found:
            known = [key.id for key in keys]
            raise UsageError(f"no key '{id}'{nearest(id, known) if known else '; there are none'}")
        if len(found) > 1:
            raise UsageError(f"{len(found)} keys are named '{id}'; revoke by id: {', '.join(key.id for key in found)}")
        _write(file, [key for key in keys if key is not found[0]])
    return found[0]


@dataclass
class KeyRing:
    """Find the client of a key. The file is read again when it changes."""

    file: Path
    _stamp: tuple[int, int] | None = None
    _clients: dict[str, Client] = field(default_factory=dict)

    def find(self, text: str) -> Client | None:
        """Return the client of a valid key; None for an unknown or expired one.

        Raises:
            KeyFileError: the file of keys is damaged.
        """
        self._refresh()
        digest = _digest(text)
        found = None
        for known, client in self._clients.items():  # all are compared, so that the time does not depend on the key
            if hmac.compare_digest(known, digest):
                found = client
        if found is None or found.key is None:
            return None
        return None if found.key.expires is not None and found.key.expires < time.time() else found

    def is_empty(self) -> bool:
        self._refresh()
        return not self._clients

    def _refresh(self) -> None:
        try:
            status = self.file.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
        except FileNotFoundError:
            stamp = (0, 0)
        if stamp != self._stamp:
            old, self._clients = self._clients, {}
            for key in read_keys(self.file):
                known = old.get(key.digest)
                self._clients[key.digest] = known if known is not None and known.key == key else _client(key)
            self._stamp = stamp


def _client(key: ApiKey) -> Client:
    requests = None if key.requests_per_minute is None else TokenBucket(key.requests_per_minute)
    tokens = None if key.tokens_per_minute is None else TokenBucket(key.tokens_per_minute)
    return Client(key=key, requests=requests, tokens=tokens)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Run a block in which no other process changes the keys: it could write a key back that the block revokes."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with folder_lock(file.parent):
        yield


def _write(file: Path, keys: Sequence[ApiKey]) -> None:
    with atomic_file(file, "w", permissions=0o600) as opened:
        json.dump([asdict(key) for key in keys], opened, indent=1)
