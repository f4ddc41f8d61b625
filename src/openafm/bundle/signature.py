"""The signature of a bundle. Adapters, caches and checks refer to a bundle by it.

It identifies what the bundle computes, not the layout of its files: the first 40 hex digits of the SHA-256 of a canonical
JSON document with the digests of config, tokenizer and chat template and the name, dtype, shape and digest of every tensor.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from openafm.bundle.errors import BundleError, BundleTamperedError
from openafm.bundle.tensor_file import MappedTensor

FORMAT = "openafm.bundle"
FORMAT_VERSION = 2
SIGNATURE_LENGTH = 40
_TENSOR_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """Dtype, shape and SHA-256 of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @staticmethod
    def of(tensor: MappedTensor) -> TensorEntry:
        return TensorEntry(dtype=tensor.dtype, shape=tensor.shape, sha256=tensor.digest())

    def has_header_of(self, tensor: MappedTensor) -> bool:
        """Whether dtype and shape are those of `tensor`; the bytes are not read."""
        return (self.dtype, self.shape) == (tensor.dtype, tensor.shape)


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The digests of documents by file name, and the entries of tensors by name."""

    documents: Mapping[str, str]
    tensors: Mapping[str, TensorEntry]

    @cached_property
    def hex(self) -> str:
        signed = {"format": FORMAT, "version": FORMAT_VERSION} | self._parts()
        return hashlib.sha256(canonical_json(signed)).hexdigest()[:SIGNATURE_LENGTH]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `signature.json`."""
        return {"signature": self.hex} | self._parts()

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Signature:
        """Read the output of `to_dict`.

        Raises:
            BundleTamperedError: a part is missing or malformed, or the stated signature is not that of the parts.
        """
        try:
            signature = Signature(
                documents={str(name): str(digest) for name, digest in values["documents"].items()},
                tensors={
                    check_tensor_name(name): TensorEntry(
                        dtype=str(entry["dtype"]), shape=tuple(map(int, entry["shape"])), sha256=str(entry["sha256"])
                    )
                    for name, entry in values["tensors"].items()
                },
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, BundleError) as error:
            raise BundleTamperedError(f"it holds no complete signature ({error}); restore it") from error
        if values.get("signature") != signature.hex:
            raise BundleTamperedError("the stated signature is not that of its parts; restore it")
        return signature

    def _parts(self) -> dict[str, Any]:
        tensors = {
            name: {"dtype": entry.dtype, "shape": list(entry.shape), "sha256": entry.sha256}
            for name, entry in self.tensors.items()
        }
        return {"documents": dict(self.documents), "tensors": tensors}


def sign(documents: Mapping[str, Any], tensors: Iterable[MappedTensor]) -> Signature:
    """Return the signature of JSON documents by file name and tensors.

    Raises:
        BundleError: the name of a tensor is not allowed.
    """
    return Signature(
        documents={name: document_digest(value) for name, value in documents.items()},
        tensors={check_tensor_name(tensor.name): TensorEntry.of(tensor) for tensor in tensors},
    )


def document_digest(value: Any) -> str:
    """Return the SHA-256 of a JSON document, independent of its white space and the order of its keys."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no white space, in ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def check_tensor_name(name: str) -> str:
    """Return `name`.

    Raises:
        BundleError: it is not made of letters, digits and underscores, in parts separated by dots.
    """
    if not _TENSOR_NAME.fullmatch(name):
        raise BundleError(f"the tensor name {name!r} is not allowed; use ASCII letters, digits, '_' and '.' between parts")
    return name
