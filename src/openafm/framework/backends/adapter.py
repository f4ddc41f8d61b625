"""Adapters for app developers: named or given by file, bound to the bundle that answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from openafm.adapters import package, store
from openafm.bundle import Bundle, list_bundles, open_bundle, resolve_model, shipped_bundle
from openafm.core.errors import OpenAFMError
from openafm.framework.errors import FoundationModelsError


class AssetError(FoundationModelsError):
    """An adapter that cannot be used. Exits as what caused it does."""

    def __init__(self, message: str, exit_code: int = FoundationModelsError.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class InvalidAssetError(AssetError):
    """There is no adapter in this folder, or it is damaged."""


class InvalidAdapterNameError(AssetError):
    """A name that no adapter can have."""


class CompatibleAdapterNotFoundError(AssetError):
    """No adapter of this name is for the model that is to answer, or the given one is for another."""


class Adapter:
    """An adapter for `SystemLanguageModel(adapter=...)`.

    Args:
        file: its folder, NAME.fmadapter.
        name: of an installed adapter; its version for the model that answers is taken.

    Raises:
        InvalidAssetError: `file` is not an adapter.
        InvalidAdapterNameError: `name` is none.
        CompatibleAdapterNotFoundError: no adapter of this name is installed.
        ValueError: neither of the two is given, or both.
    """

    def __init__(self, file: str | Path | None = None, *, name: str | None = None) -> None:
        if (file is None) == (name is None):
            raise ValueError("an Adapter is given by its file or by its name, one of the two")
        self.file = None if file is None else Path(file)
        with _asset_errors():
            if self.file is not None:
                self.name = package.open_adapter(self.file).name
            elif name is not None:
                store.versions_of(name)
                self.name = name

    def __repr__(self) -> str:
        return f"Adapter(name={self.name!r})" if self.file is None else f"Adapter(file={str(self.file)!r})"

    @cached_property
    def creator_defined_metadata(self) -> dict[str, Any]:
        """What the author has put into the metadata; of a named adapter, its version for the model that answers by default.

        Raises:
            AssetError: there is none, or it is damaged.
        """
        base_signature = open_bundle(resolve_model()).signature if self.file is None else ""
        with _asset_errors():
            return dict(self._opened(base_signature).metadata.creatorDefined)

    @staticmethod
    def compatible_identifiers(name: str, bundle: str | Path | None = None) -> list[str]:
        """The installed adapters of this name for a bundle, by default the one that answers; at most one.

        Raises:
            InvalidAdapterNameError: the name is none.
        """
        base_signature = open_bundle(resolve_model() if bundle is None else bundle).signature
        with _asset_errors():
            place = store.adapter_place(name, base_signature)
        return [place.name] if place.is_dir() else []

    @staticmethod
    def remove_obsolete() -> list[str]:
        """Remove the installed adapters that are for no bundle on this machine; returns their identifiers."""
        return [folder.name for folder in store.remove_obsolete_adapters(_local_signatures())]

    def _opened(self, base_signature: str) -> package.Adapter:
        return store.find_adapter(self.name, base_signature) if self.file is None else package.open_adapter(self.file)


def resolve_adapter(adapter: Adapter | str | Path, bundle: Bundle) -> package.Adapter:
    """The adapter, opened and verified, for the bundle that is to answer. A text is the name of an installed one, or a path.

    Raises:
        InvalidAssetError: there is none, or it is damaged.
        InvalidAdapterNameError: a text that is neither a name nor a path to something.
        CompatibleAdapterNotFoundError: it is for another bundle, or no installed one is for this.
    """
    with _asset_errors():
        found = (adapter if isinstance(adapter, Adapter) else _named(adapter))._opened(bundle.signature)
        found.check_base(bundle.signature)
        _verify_once(found)
        return found


def _verify_once(adapter: package.Adapter) -> None:
    """Verify files that were not verified before as they are now: hundreds of megabytes take a second."""
    stat = (adapter.path / package.WEIGHTS).stat()
    seen = (str(adapter.path.resolve()), adapter.digest, stat.st_size, stat.st_mtime_ns, stat.st_ino)
    if seen not in _verified:
        adapter.verify()
        _verified.add(seen)


def _named(adapter: str | Path) -> Adapter:
    is_path = isinstance(adapter, Path) or any(sign in adapter for sign in ("/", "\\", "."))
    return Adapter(file=adapter) if is_path else Adapter(name=str(adapter))


@contextmanager
def _asset_errors() -> Iterator[None]:
    """What goes wrong with an adapter, as the framework names it."""
    try:
        yield
    except AssetError:
        raise
    except package.AdapterNameError as error:
        raise InvalidAdapterNameError(str(error), error.exit_code) from error
    except (package.AdapterMismatchError, store.AdapterNotInstalledError) as error:
        raise CompatibleAdapterNotFoundError(str(error), error.exit_code) from error
    except OpenAFMError as error:
        raise InvalidAssetError(str(error), error.exit_code) from error
    except OSError as error:
        raise InvalidAssetError(str(error)) from error


def _local_signatures() -> set[str]:
    """Those of the bundles that can be named on this machine, and of the one that answers."""
    folders = [*list_bundles(), shipped_bundle(), resolve_model()]
    return {Bundle(folder).signature for folder in folders if folder is not None}


_verified: set[tuple[str, str, int, int, int]] = set()
