"""A bundle: config, tokenizer, chat template, weights, card and signature in one folder. Never pickle.

NAME/config.json  tokenizer.json  chat_template.json  model.safetensors  card.md  signature.json  [recovery.fmadapter/]

The signature covers all but the card and the recovery adapter, which carries a digest and the signature of its base.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from openafm.adapters.config import LoRAConfig
from openafm.adapters.package import AdapterPackage, open_adapter, write_adapter
from openafm.bundle.errors import BundleError, BundleTamperedError, BundleVersionError
from openafm.bundle.signature import SIGNATURE_LENGTH, sign
from openafm.bundle.store import find_bundle
from openafm.bundle.tensor_file import MappedTensor, copy_tensors, read_tensors, write_tensors
from openafm.compression.numerics import FULL_PRECISION, Numerics
from openafm.core.config import ConfigError, UnknownKindError, from_dict, to_dict
from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_folder, write_json
from openafm.models.config import DecoderConfig
from openafm.models.experts_config import ExpertsConfig as ExpertsConfig  # a kind of layer is known once it is imported
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.imported import read_tokenizer
from openafm.tokenizer.imported_template import read_template
from openafm.tokenizer.template import BaseChatTemplate

FORMAT = "openafm.bundle"
FORMAT_VERSION = 1
RECOVERY_ADAPTER = "recovery.fmadapter"
_DOCUMENTS = ("config.json", "tokenizer.json", "chat_template.json")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RecoveryAdapter:
    """What a compressed bundle carries beside its weights; bound to its signature as it is written."""

    config: LoRAConfig
    weights: Mapping[str, NDArray[Any]]


class Bundle:
    """An opened bundle. Parts are read on first use; `verify` compares every byte with the signature."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = _read_json(path / "config.json")
        _check_version(path, header)
        try:
            self.config = from_dict(DecoderConfig, header["model"])
            self.numerics = from_dict(Numerics, header["numerics"])
        except UnknownKindError:
            raise
        except (KeyError, ConfigError) as error:
            raise BundleError(f"{path / 'config.json'} does not describe a model this version knows: {error}") from error
        self.signature: str = _read_json(path / "signature.json").get("signature", "")
        if not isinstance(self.signature, str) or len(self.signature) != SIGNATURE_LENGTH:
            raise BundleTamperedError(f"{path / 'signature.json'} holds no signature; restore it")

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            BundleError: its file is missing or is no tokenizer.
        """
        return _read_part(self.path / "tokenizer.json", read_tokenizer)

    @cached_property
    def template(self) -> BaseChatTemplate:
        """The chat template.

        Raises:
            BundleError: its file is missing or is no chat template.
        """
        return _read_part(self.path / "chat_template.json", read_template)

    @cached_property
    def stored_tensors(self) -> dict[str, MappedTensor]:
        """Every weight by name, mapped from the files.

        Raises:
            BundleError: a file is missing or too short.
        """
        return _read_all_tensors(self.path)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Every weight by its name in the model's state dict, as read-only arrays (bfloat16 widened to float32)."""
        return {name: tensor.array() for name, tensor in self.stored_tensors.items()}

    @cached_property
    def recovery_adapter(self) -> AdapterPackage | None:
        """The adapter that a compressed bundle carries to win quality back; engines put it on unless given another.

        Raises:
            AdapterError: it is damaged.
        """
        folder = self.path / RECOVERY_ADAPTER
        return open_adapter(folder) if folder.is_dir() else None

    @property
    def identity(self) -> str:
        """What tells two bundles apart by their answers: the signature, and the digest of the recovery adapter.

        Raises:
            AdapterError: the adapter is damaged.
        """
        adapter = self.recovery_adapter
        return self.signature if adapter is None else f"{self.signature} {adapter.digest}"

    def card(self) -> str:
        """The model card, in Markdown."""
        return _read_text(self.path / "card.md")

    def verify(self) -> None:
        """Recompute the signature from every byte, and the digest of the recovery adapter, which must be this bundle's.

        Raises:
            BundleTamperedError: the message names the file, and the tensor where it is one.
            AdapterError: the recovery adapter is damaged.
            AdapterMismatchError: it belongs to another base.
        """
        recorded = _read_json(self.path / "signature.json")
        documents = {name: _read_json(self.path / name) for name in _DOCUMENTS}
        actual = sign(documents, self.stored_tensors.values())
        expected = recorded.get("parts", {})
        for part in sorted(expected.keys() | actual.parts.keys()):
            if expected.get(part) != actual.parts.get(part):
                raise BundleTamperedError(f"{self._file_of(part)}: '{part}' is not what was signed; restore the bundle")
        if recorded.get("signature") != actual.hex:
            raise BundleTamperedError(f"{self.path / 'signature.json'} does not sign these files; restore the bundle")
        if self.recovery_adapter is not None:
            self.recovery_adapter.verify()
            self.recovery_adapter.check_base(self.signature)

    def _file_of(self, part: str) -> Path:
        if not part.startswith("tensor "):
            return self.path / part
        tensor = self.stored_tensors.get(part.split(" ")[1])
        return tensor.file if tensor else self.path / "model.safetensors"


def open_bundle(name_or_path: str | Path) -> Bundle:
    """Open a bundle by the name it has on this machine or by path.

    Raises:
        BundleNotFoundError: there is none.
        BundleVersionError: it belongs to another version of the format.
        BundleError: it cannot be read; the message names the file.
    """
    return Bundle(find_bundle(name_or_path))


def write_bundle(
    path: Path,
    *,
    config: DecoderConfig,
    tokenizer: Tokenizer,
    template: BaseChatTemplate,
    tensors: Mapping[str, NDArray[Any]] | Sequence[MappedTensor],
    numerics: Numerics = FULL_PRECISION,
    recovery: RecoveryAdapter | None = None,
    card: str = "",
) -> Bundle:
    """Write and sign a bundle at `path`, whole or not at all; a bundle that stands there is replaced, nothing else is.

    Stored tensors, by the names they shall have, are copied one at a time from their files.

    Raises:
        OutOfSpaceError: the disk is full; what stood at `path` is untouched.
        BundleError: a weight is not finite, the tokenizer does not fit the model, or `path` holds something else.
    """
    _check_place(path)
    if tokenizer.vocab_size > config.vocab_size:
        raise BundleError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model only {config.vocab_size} rows; extend the model"
        )
    if isinstance(tensors, Mapping):
        _check_finite(tensors)
    with atomic_folder(path) as folder:
        header = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "model": to_dict(config),
            "numerics": to_dict(numerics),
        }
        write_json(folder / "config.json", header)
        tokenizer.save(folder / "tokenizer.json")
        (folder / "chat_template.json").write_text(template.to_json(), encoding="utf-8")
        if isinstance(tensors, Mapping):
            write_tensors(folder, tensors)
        else:
            copy_tensors(folder, tensors)
        signature = sign({name: _read_json(folder / name) for name in _DOCUMENTS}, _read_all_tensors(folder).values())
        write_json(folder / "signature.json", {"signature": signature.hex, "parts": signature.parts})
        if recovery is not None:
            write_adapter(
                folder / RECOVERY_ADAPTER,
                weights=recovery.weights,
                config=recovery.config,
                base_signature=signature.hex,
                name="recovery",
            )
        (folder / "card.md").write_text(card or f"# {path.name}\n", encoding="utf-8")
    return Bundle(path)


def _check_finite(tensors: Mapping[str, NDArray[Any]]) -> None:
    for name, array in tensors.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise BundleError(f"weight '{name}' holds a value that is not finite; the model is broken and was not saved")


def _check_place(path: Path) -> None:
    """Only nothing, an empty folder or another bundle, of any version or damaged, may be replaced."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "signature.json").is_file():
        raise BundleError(f"{path} exists and is not a bundle; it was left alone, choose another place")


def _check_version(path: Path, header: dict[str, Any]) -> None:
    if header.get("format") != FORMAT:
        raise BundleError(f'{path / "config.json"} is not the config of an openafm bundle (no "format": "openafm.bundle")')
    if header.get("version") != FORMAT_VERSION:
        raise BundleVersionError(
            f"{path} is a bundle of format version {header.get('version')}, this openafm reads version {FORMAT_VERSION};"
            " install the matching version or make the bundle again"
        )


def _read_all_tensors(folder: Path) -> dict[str, MappedTensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise BundleError(f"{folder} holds no *.safetensors file; restore it")
    return {name: tensor for file in files for name, tensor in read_tensors(file).items()}


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BundleError(f"{file} is missing; restore it") from None
    except UnicodeDecodeError as error:
        raise BundleError(f"{file} is not UTF-8 text ({error})") from error


def _read_part(file: Path, read: Callable[[str], T]) -> T:
    try:
        return read(_read_text(file))
    except BundleError:
        raise
    except (OpenAFMError, RecursionError) as error:
        raise BundleError(f"{file} cannot be read ({error}); restore it") from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read_text(file))
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file} is not JSON ({error}); restore it") from error
    if not isinstance(value, dict):
        raise BundleError(f"{file} does not hold a JSON object; restore it")
    return value
