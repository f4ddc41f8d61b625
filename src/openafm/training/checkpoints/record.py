"""The record of a checkpoint: its progress, the checksums of its files, and its own digest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import write_json
from openafm.core.regular_files import OversizeFilesError, read_document
from openafm.training.checkpoints.index import INDEX

FORMAT = "openafm.checkpoint"
VERSION = 4
# Version 1 has no num_processes; before 3 neither the record nor the config has a digest; before 4 files have a SHA-256.
READABLE = (1, 2, 3, 4)
RECORD, CONFIG = "record.json", "config.json"
_TENSOR_FILE = re.compile(r"[\w.-]+\.safetensors")


class CheckpointError(OpenAFMError):
    """A checkpoint cannot be used."""


class DamagedCheckpointError(CheckpointError):
    """A file of a checkpoint is missing, unreadable, or was changed."""


class AnotherRunError(UsageError):
    """The output folder holds a run of another config or on other data."""


def is_checkpoint_file(name: str) -> bool:
    """Return True for the names of files that checkpoints consist of."""
    return name in (RECORD, CONFIG, INDEX) or _TENSOR_FILE.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord(Config):
    """The contents of `record.json`.

    Attributes:
        data_digest: identifies the data of the run.
        held_out_loss: that of the evaluation at this step, if there was one.
        files: the checksum of every other file, `crc32:` and hex digits; SHA-256 in hex before version 4.
        digest: the SHA-256 in hex of this record without its digest.
    """

    format: str = FORMAT
    version: int = VERSION
    step: int
    num_steps: int
    num_tokens: int
    seconds: float
    data_digest: str
    num_processes: int = 1
    held_out_loss: float | None = None
    files: dict[str, str]
    digest: str = ""

    def __post_init__(self) -> None:
        self.require(
            self.format == FORMAT and self.version in READABLE,
            f"has format {self.format} version {self.version}; this openafm reads {FORMAT} versions up to {VERSION}",
        )
        self.require(self.num_processes > 0, f"num_processes must be at least 1, got {self.num_processes}")
        for name in self.files:
            self.require(
                is_checkpoint_file(name) and name != RECORD,
                f"lists the file {name!r}; allowed are {CONFIG}, {INDEX} and plain names that end in .safetensors",
            )

    @property
    def is_sharded(self) -> bool:
        """Return True if the files hold blocks of tensors, written by several processes."""
        return INDEX in self.files

    def write(self, folder: Path) -> None:
        """Write the record, with its digest, into the folder of a checkpoint."""
        write_json(folder / RECORD, to_dict(replace(self, digest=record_digest(to_dict(self)))))


def read_record(folder: Path) -> CheckpointRecord:
    """Read the record of a checkpoint and compare it with its digest.

    Raises:
        DamagedCheckpointError: the record is missing, unreadable, or was changed.
    """
    values = read_json(folder / RECORD)
    try:
        record = from_dict(CheckpointRecord, values)
    except ConfigError as error:
        raise DamagedCheckpointError(f"{folder / RECORD}: {error}") from error
    if record.version >= 3 and (record.digest != record_digest(values) or CONFIG not in record.files):
        raise DamagedCheckpointError(f"{folder / RECORD} was changed after it was written; restore it or remove {folder}")
    return record


def record_digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 in hex of a record's JSON without its digest."""
    content = json.dumps({key: value for key, value in values.items() if key != "digest"}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def read_json(path: Path) -> Any:
    """Read a JSON file of a checkpoint.

    Raises:
        DamagedCheckpointError: the file is missing or not JSON.
    """
    try:
        return json.loads(read_document(path))
    except (OSError, OversizeFilesError, ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path} is not readable: {error}") from error
