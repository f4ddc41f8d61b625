"""Releases: what a node runs, as entries of the log. Everything that decides what happens to a request has a digest."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import openafm
from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.core.files import file_digest
from openafm.serving.private.errors import PrivateSetupError

if TYPE_CHECKING:
    from openafm.bundle import Bundle
    from openafm.serving.config import ServerConfig

FORMAT = "openafm.release/1"
_DIGEST = re.compile("[0-9a-f]{64}")
_SUFFIXES = (".py", ".cpp", ".h", ".json", ".toml", ".txt", ".js", ".html", ".css", ".npz")
_LIBRARIES = (
    "torch",
    "numpy",
    "safetensors",
    "llguidance",
    "starlette",
    "fastapi",
    "uvicorn",
    "httptools",
    "cryptography",
    "pyhpke",
)
_PLACE = (
    "host",
    "port",
    "requires_key",
    "models",
    "private",
    "tls_certificate",
    "tls_key",
)  # of a server, not what it does with requests


@dataclass(frozen=True, kw_only=True)
class Release(Config):
    """An entry of the log.

    Attributes:
        number: grows with every release of a log.
        minimum: clients refuse releases with a lower number once this one is the newest.
        operator: the public key that signs the statements of the nodes.
        code: digest of the source files of openafm.
        weights: digests of the bundles, by name.
        config: digest of the server's settings.
        environment: versions of Python and of the libraries that see requests.
    """

    format: str = FORMAT
    number: int
    minimum: int = 0
    operator: str
    code: str
    weights: dict[str, str]
    config: str
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.require(self.format == FORMAT, f"the format is {self.format!r:.40}, this openafm reads {FORMAT}")
        self.require(0 <= self.minimum <= self.number, f"minimum must lie in 0..{self.number}, got {self.minimum}")
        for digest in (self.operator, self.code, self.config, *self.weights.values()):
            self.require(_DIGEST.fullmatch(digest) is not None, f"{digest!r:.80} is not 64 hex digits")

    @property
    def data(self) -> bytes:
        """The bytes of the entry: canonical JSON."""
        return canonical(self)


def canonical(config: Config) -> bytes:
    """Return JSON with sorted keys and without spaces."""
    return json.dumps(to_dict(config), sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()


def read_release(data: bytes) -> Release:
    """Return the release in an entry or a file.

    Raises:
        PrivateSetupError: it is not a release.
    """
    try:
        return from_dict(Release, json.loads(data))
    except (ValueError, TypeError, RecursionError, AttributeError, ConfigError) as error:
        raise PrivateSetupError(f"not a release of private compute: {error}") from error


def measure(config: ServerConfig, *, number: int, minimum: int, operator: str) -> Release:
    """Return the release that this installation serves with these settings.

    Raises:
        OpenAFMError: a bundle is missing or damaged.
    """
    from openafm.serving.models import ModelCatalog

    bundles = {model.name: model.bundle for model in ModelCatalog(config.models).served() if model.adapter is None}
    return Release(
        number=number,
        minimum=minimum,
        operator=operator,
        code=code_digest(Path(openafm.__file__).parent),
        weights={name: weights_digest(bundle) for name, bundle in sorted(bundles.items())},
        config=config_digest(config),
        environment=environment(),
    )


def code_digest(folder: Path) -> str:
    """Return the digest of the source files below a folder, without the bundles that are shipped with them."""
    files = (path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    return _files_digest(folder, [path for path in files if path.relative_to(folder).parts[0] != "shipped"])


def weights_digest(bundle: Bundle) -> str:
    """Return the digest of the files of a bundle."""
    return _files_digest(bundle.path, [path for path in bundle.path.rglob("*") if path.is_file()])


def config_digest(config: ServerConfig) -> str:
    """Return the digest of the settings that decide what happens to requests."""
    values = {name: value for name, value in to_dict(config).items() if name not in _PLACE}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def environment() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that see requests."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def differences(one: Release, other: Release) -> list[str]:
    """Return the names of the measured values that differ."""
    names = ("operator", "code", "weights", "config", "environment")
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def _files_digest(folder: Path, paths: list[Path]) -> str:
    lines = sorted(f"{file_digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in paths)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
