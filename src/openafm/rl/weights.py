"""The weight store: a folder with a file for each published version, which generators poll (the report's parameter server).

weights/  version-00000012.safetensors  version-00000013.safetensors

A version is the number of optimizer updates. Files appear by an atomic rename, so a reader sees whole files only. Other
machines need the folder on a shared file system.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_file

if TYPE_CHECKING:
    from torch import Tensor

_NAME = re.compile(r"version-(\d{8})\.safetensors")
KEPT_VERSIONS = 3
"""Published versions that are kept: a generator may still read the one before the newest."""


class WeightStoreError(OpenAFMError):
    """The file of a version is damaged."""


class WeightStore:
    """The versions in a folder. One process publishes, any number read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Write a version and remove old ones. A version that exists is replaced.

        Raises:
            OutOfSpaceError: the disk is full; published versions are intact.
        """
        from safetensors.torch import save

        data = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        with atomic_file(self._path(version)) as file:
            file.write(data)
        for old in self.versions()[:-KEPT_VERSIONS]:
            self._path(old).unlink(missing_ok=True)

    def versions(self) -> list[int]:
        """Return the published versions, ascending."""
        if not self._folder.is_dir():
            return []
        return sorted(int(match[1]) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name)))

    def newest(self) -> int:
        """Return the newest version; 0, the weights of the start bundle, if none is published."""
        return max(self.versions(), default=0)

    def load(self, version: int) -> dict[str, Tensor]:
        """Return the tensors of a version by name.

        Raises:
            WeightStoreError: the file is damaged or missing.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self._path(version)
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise WeightStoreError(
                f"{path} is not readable ({error}); remove it and repeat the command, which publishes it again"
            ) from error

    def remove_above(self, version: int) -> None:
        """Remove the versions above `version`: a run that resumes from an older checkpoint computes them again."""
        for newer in self.versions():
            if newer > version:
                self._path(newer).unlink(missing_ok=True)

    def _path(self, version: int) -> Path:
        return self._folder / f"version-{version:08}.safetensors"
