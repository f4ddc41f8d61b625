"""Adapters for app developers: by name or folder, resolved for a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from openafm.adapters import package, store
from openafm.bundle import Bundle, list_bundles, open_bundle, resolve_model, shipped_bundle
from openafm.bundle.files import PAGES_ADAPTER
from openafm.core.errors import OpenAFMError
from openafm.framework.errors import FoundationModelsError
from openafm.runtime.engines.verified_files import verify_once


class AssetError(FoundationModelsError):
    """An adapter cannot be used. `exit_code` is that of the cause."""

    def __init__(self, message: str, exit_code: int = FoundationModelsError.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class InvalidAssetError(AssetError):
    """The folder holds no adapter, or a damaged one."""


class InvalidAdapterNameError(AssetError):
    """The name is not a valid adapter name."""


class CompatibleAdapterNotFoundError(AssetError):
    """No installed adapter of this name belongs to the bundle, or the given adapter belongs to another bundle."""


class Adapter:
    """An adapter for `SystemLanguageModel(adapter=...)`.

    Args:
        file: the adapter's folder, NAME.fmadapter.
        name: the name of an installed adapter; its version for the session's bundle is used.

    Raises:
        InvalidAssetError: `file` is not an adapter.
        InvalidAdapterNameError: `name` is not a valid adapter name.
        CompatibleAdapterNotFoundError: no adapter of this name is installed.
        ValueError: neither or both of `file` and `name` are given.
    """

    def __init__(self, file: str | Path | None = None, *, name: str | None = None) -> None:
        if (file is None) == (name is None):
            raise ValueError("Adapter() takes either 'file' or 'name'; pass one of them")
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
        """Return the author's metadata. For a named adapter: of its version for the default bundle.

        Raises:
            AssetError: the adapter is missing or damaged.
        """
        base_signature = open_bundle(resolve_model()).signature if self.file is None else ""
        with _asset_errors():
            return dict(self._opened(base_signature).metadata.creatorDefined)

    @staticmethod
    def compatible_identifiers(name: str, bundle: str | Path | None = None) -> list[str]:
        """Return the identifiers of the installed adapters with this name for a bundle: none or one.

        Raises:
            InvalidAdapterNameError: `name` is not a valid adapter name.
        """
        base_signature = open_bundle(resolve_model() if bundle is None else bundle).signature
        with _asset_errors():
            place = store.adapter_place(name, base_signature)
        return [place.name] if place.is_dir() else []

    @staticmethod
    def remove_obsolete() -> list[str]:
        """Remove the installed adapters whose bundle is not on this machine. Return their identifiers."""
        return [folder.name for folder in store.remove_obsolete_adapters(_local_signatures())]

    def _opened(self, base_signature: str) -> package.AdapterPackage:
        return store.find_adapter(self.name, base_signature) if self.file is None else package.open_adapter(self.file)


def resolve_adapter(adapter: Adapter | str | Path, bundle: Bundle) -> package.AdapterPackage:
    """Return the adapter for a bundle, opened and verified. A string with `/`, `\\` or `.` is a path, else a name.

    The name `pages` is the adapter for the text of images that the bundle has, unless one of this name is installed.

    Raises:
        InvalidAssetError: the adapter is missing or damaged.
        InvalidAdapterNameError: the string is neither a valid name nor a path.
        CompatibleAdapterNotFoundError: the adapter belongs to another bundle, or none is installed for this one.
    """
    with _asset_errors():
        if adapter == PAGES_ADAPTER and not store.adapter_place(PAGES_ADAPTER, bundle.signature).is_dir():
            adapter = bundle.pages_adapter or adapter
        given = adapter if isinstance(adapter, Adapter) else _named(adapter)
        _check_installed(given, bundle)
        found = given._opened(bundle.signature)
        if found.base_signature != bundle.signature:
            raise CompatibleAdapterNotFoundError(
                f"the adapter '{found.name}' belongs to {_bundle_text(found.base_signature)}, not to {_own_text(bundle)};"
                " choose that bundle, or train an adapter for this one",
                package.AdapterMismatchError.exit_code,
            )
        verify_once(found)
        return found


def _check_installed(adapter: Adapter, bundle: Bundle) -> None:
    """Raise if a named adapter has versions for other bundles only."""
    if adapter.file is None and not store.adapter_place(adapter.name, bundle.signature).is_dir():
        versions = [package.open_adapter(folder) for folder in store.versions_of(adapter.name)]
        bases = ", ".join(f"{version.path.name} for {_bundle_text(version.base_signature)}" for version in versions)
        raise CompatibleAdapterNotFoundError(
            f"no adapter '{adapter.name}' is installed for {_own_text(bundle)}; installed: {bases}",
            store.AdapterNotInstalledError.exit_code,
        )


def _own_text(bundle: Bundle) -> str:
    return f"the bundle '{bundle.name}' (signature {bundle.signature})"


def _bundle_text(signature: str) -> str:
    """Return the name of the bundle with a signature, if it is on this machine."""
    for folder in _local_bundles():
        with suppress(OpenAFMError, OSError):
            if (bundle := Bundle(folder)).signature == signature:
                return _own_text(bundle)
    return f"a bundle that is not on this machine (signature {signature})"


def _named(adapter: str | Path) -> Adapter:
    is_path = isinstance(adapter, Path) or any(sign in adapter for sign in ("/", "\\", "."))
    return Adapter(file=adapter) if is_path else Adapter(name=str(adapter))


@contextmanager
def _asset_errors() -> Iterator[None]:
    """Translate errors of lower rooms into asset errors."""
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
    """Return the signatures of all bundles on this machine: installed, shipped and default."""
    return {Bundle(folder).signature for folder in _local_bundles()}


def _local_bundles() -> list[Path]:
    return [folder for folder in (*list_bundles(), shipped_bundle(), resolve_model()) if folder is not None]
