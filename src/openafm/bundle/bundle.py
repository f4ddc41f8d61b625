"""A bundle: config, tokenizer, chat template, weights, card and signature in one folder. Never pickle.

NAME/config.json  tokenizer.json  chat_template.json  model.safetensors  card.md  signature.json
[recovery.fmadapter/]  [reader/]  [ranker/]  [spans/]

The signature covers everything except the card, the recovery adapter, which has a digest and the signature of its base, and
parts with a digest each: the reader of pages, which reads images for a text model, and the rankers of choices and of spans.
Nothing is used before it is verified: the stated signature and the config at open, each other part when it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from openafm.adapters.package import AdapterPackage, open_adapter
from openafm.bundle.errors import BundleError, BundleTamperedError, BundleVersionError, NotGenerativeError
from openafm.bundle.files import (
    DOCUMENTS,
    PAGES_ADAPTER,
    PARTS,
    RANKER,
    READER,
    RECOVERY_ADAPTER,
    SPAN_RANKER,
    parse_json,
    read_all_tensors,
    read_bytes,
    read_json,
    read_text,
)
from openafm.bundle.signature import FORMAT, FORMAT_VERSION, Signature, document_digest
from openafm.bundle.store import find_bundle
from openafm.bundle.tensor_file import MappedTensor
from openafm.compression.numerics import Numerics
from openafm.core.config import ConfigError, UnknownKindError, from_dict
from openafm.core.errors import OpenAFMError
from openafm.models.config import DecoderConfig
from openafm.models.feed_forward.experts_config import (
    ExpertsConfig as ExpertsConfig,  # a kind of layer is known once it is imported
)
from openafm.models.reward_config import RewardModelConfig as RewardModelConfig  # a kind of model, as the next ones
from openafm.models.vision import multimodal_config as multimodal_config  # its kinds of models are read from files
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.files import read_tokenizer
from openafm.tokenizer.imported.template import read_template
from openafm.tokenizer.tables import with_tables
from openafm.tokenizer.template import BaseChatTemplate

T = TypeVar("T")


class Bundle:
    """An opened bundle. Parts are read and verified on first use; `verify` checks every byte at once.

    Raises:
        BundleTamperedError: config.json or signature.json differs from what was signed.
        BundleVersionError: the bundle has another version of the format.
        UnknownKindError: the model needs a plugin that is not loaded.
        BundleError: a file is missing or malformed; the message names it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._has_verified_tensors = False
        header = read_json(path / "config.json")
        _check_version(path, header)
        self._signed = _read_signature(path / "signature.json")
        self._check_document("config.json", header)
        try:
            self.config = from_dict(DecoderConfig, header["model"])
            self.numerics = from_dict(Numerics, header["numerics"])
        except UnknownKindError:
            raise
        except (KeyError, ConfigError) as error:
            raise BundleError(f"{path / 'config.json'} does not describe a model of this openafm: {error}") from error

    @property
    def signature(self) -> str:
        """40 hex digits that identify config, tokenizer, chat template and every tensor."""
        return self._signed.hex

    @property
    def name(self) -> str:
        return self.path.name

    def check_generates(self) -> None:
        """Check that the model generates text.

        Raises:
            NotGenerativeError: it encodes only, as the models of `vision.clip` and `vision.letters`.
        """
        if not self.config.generates_text:
            raise NotGenerativeError(f"{self.name} encodes images and generates no text; use a model that answers")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            BundleTamperedError: the file differs from the signed one.
            BundleError: the file is missing or is not a tokenizer.
        """
        data = read_bytes(self.path / "tokenizer.json")
        signed = self._signed.documents.get("tokenizer.json", "")
        return with_tables(data, signed, lambda: self._part("tokenizer.json", read_tokenizer))

    @cached_property
    def template(self) -> BaseChatTemplate:
        """The chat template.

        Raises:
            BundleTamperedError: the file differs from the signed one.
            BundleError: the file is missing or is not a chat template.
        """
        return self._part("chat_template.json", read_template)

    @cached_property
    def stored_tensors(self) -> dict[str, MappedTensor]:
        """Every tensor by name, mapped from the files. Names, dtypes and shapes are verified, bytes are not.

        Raises:
            BundleTamperedError: the files hold other tensors than the signed ones.
            BundleError: a file is missing or truncated.
        """
        tensors, signed = read_all_tensors(self.path), self._signed.tensors
        for name in sorted(tensors.keys() | signed.keys()):
            if name not in tensors or name not in signed or not signed[name].has_header_of(tensors[name]):
                file = tensors[name].file if name in tensors else self.path / "model.safetensors"
                raise BundleTamperedError(f"{file}: tensor '{name}' differs from the signed one; restore the bundle")
        return tensors

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Every tensor by its name in the model's state dict, verified, as read-only arrays (bfloat16 widened to float32).

        Raises:
            BundleTamperedError: a tensor differs from the signed one.
            BundleError: a file is missing or truncated.
        """
        self.check_tensors()
        return {name: tensor.array() for name, tensor in self.stored_tensors.items()}

    @cached_property
    def recovery_adapter(self) -> AdapterPackage | None:
        """The adapter that restores quality of a compressed bundle; engines attach it unless given another.

        Raises:
            AdapterError: the adapter is damaged.
        """
        folder = self.path / RECOVERY_ADAPTER
        return open_adapter(folder) if folder.is_dir() else None

    @property
    def reader(self) -> Path | None:
        """The folder of the reader of pages (`openafm.reading`), None for a bundle without one."""
        return self._folder_of(READER)

    @property
    def ranker(self) -> Path | None:
        """The folder of the ranker of labels and tools (`openafm.ranking`), None for a bundle without one."""
        return self._folder_of(RANKER)

    @property
    def span_ranker(self) -> Path | None:
        """The folder of the ranker of values (`openafm.ranking.span_ranker`), None for a bundle without one."""
        return self._folder_of(SPAN_RANKER)

    def _folder_of(self, name: str) -> Path | None:
        folder = self.path / name
        return folder if folder.is_dir() else None

    @property
    def pages_adapter(self) -> Path | None:
        """The folder of the adapter that is trained on what the reader of pages finds, None for a bundle without one."""
        folder = self.path / READER / f"{PAGES_ADAPTER}.fmadapter"
        return folder if folder.is_dir() else None

    @property
    def parts_digest(self) -> str:
        """The digests of the weights of the reader of pages and of the rankers, each empty without it.

        Raises:
            BundleError: a config of theirs is damaged.
        """
        return ",".join("" if self._folder_of(name) is None else self._digest_of(name) for name in PARTS)

    def _digest_of(self, part: str) -> str:
        return str(read_json(self.path / part / f"{part}.json").get("digest"))

    @property
    def identity(self) -> str:
        """A key that differs for bundles with different answers: the signature and the digest of the recovery adapter.

        Raises:
            AdapterError: the adapter is damaged.
        """
        adapter = self.recovery_adapter
        return self.signature if adapter is None else f"{self.signature} {adapter.digest}"

    def card(self) -> str:
        """The model card, in Markdown."""
        return read_text(self.path / "card.md")

    def verify(self) -> None:
        """Check every byte against the signature, and the recovery adapter against its digest and this bundle.

        Raises:
            BundleTamperedError: a part differs from the signed one; the message names the file and the tensor.
            AdapterError: the recovery adapter is damaged.
            AdapterMismatchError: the recovery adapter belongs to another base.
        """
        if _read_signature(self.path / "signature.json") != self._signed:
            raise BundleTamperedError(f"{self.path / 'signature.json'} changed after the bundle was opened; open it again")
        for name in DOCUMENTS:
            self._check_document(name, read_json(self.path / name))
        self._compare_tensors()
        self._has_verified_tensors = True
        if self.recovery_adapter is not None:
            self.recovery_adapter.verify()
            self.recovery_adapter.check_base(self.signature)
        for name in PARTS:
            if self._folder_of(name) is not None:
                self._check_part(name)
        if self.pages_adapter is not None:
            adapter = open_adapter(self.pages_adapter)
            adapter.verify()
            adapter.check_base(self.signature)

    def check_tensors(self) -> None:
        """Compare the mapped tensors with the signature, unless this object did before.

        Raises:
            BundleTamperedError: a tensor differs from the signed one.
            BundleError: a file is missing or truncated.
        """
        if not self._has_verified_tensors:
            self._compare_tensors()
            self._has_verified_tensors = True

    def _check_part(self, name: str) -> None:
        """Compare the weights of a part with the digest beside them."""
        folder = self.path / name
        if sha256(read_bytes(folder / f"{name}.safetensors")).hexdigest() != self._digest_of(name):
            raise BundleTamperedError(f"{folder}: {name}.safetensors differs from its digest; restore the bundle")

    def _compare_tensors(self) -> None:
        for name, tensor in self.stored_tensors.items():
            if tensor.digest() != self._signed.tensors[name].sha256:
                raise BundleTamperedError(f"{tensor.file}: tensor '{name}' differs from the signed one; restore the bundle")

    def _check_document(self, name: str, value: Any) -> None:
        if self._signed.documents.get(name) != document_digest(value):
            raise BundleTamperedError(f"{self.path / name} differs from the signed file; restore the bundle")

    def _part(self, name: str, read: Callable[[str], T]) -> T:
        file = self.path / name
        text = read_text(file)
        self._check_document(name, parse_json(file, text))
        try:
            return read(text)
        except UnknownKindError:
            raise
        except (OpenAFMError, RecursionError) as error:
            raise BundleError(f"{file} cannot be read ({error}); restore it") from error


def open_bundle(name_or_path: str | Path) -> Bundle:
    """Return the bundle with this name on this machine, or at this path.

    Raises:
        BundleNotFoundError: there is no such bundle.
        BundleVersionError: the bundle has another version of the format.
        UnknownKindError: the model needs a plugin that is not loaded.
        BundleError: the bundle cannot be read; the message names the file.
    """
    return Bundle(find_bundle(name_or_path))


def _check_version(path: Path, header: dict[str, Any]) -> None:
    if header.get("format") != FORMAT:
        raise BundleError(f'{path / "config.json"} is not the config of an openafm bundle (no "format": "openafm.bundle")')
    if header.get("version") != FORMAT_VERSION:
        raise BundleVersionError(
            f"{path} is a bundle of format version {header.get('version')}, this openafm reads version {FORMAT_VERSION}; "
            + ("sign it again with `openafm resign`" if header.get("version") == 1 else "install a matching openafm")
        )


def _read_signature(file: Path) -> Signature:
    try:
        return Signature.from_dict(read_json(file))
    except BundleTamperedError as error:
        raise BundleTamperedError(f"{file}: {error}") from error
