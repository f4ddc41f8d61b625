"""The signature binds adapters, caches and checks to what a bundle computes, not to how its files are laid out.

It is SHA-256 over the digests of the canonical config, tokenizer and chat template and of every tensor's name, dtype, shape
and bytes; the first 40 hex digits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from openafm.bundle.tensor_file import MappedTensor

SIGNATURE_LENGTH = 40


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The digest of each part by name, and of the whole."""

    parts: dict[str, str]

    @property
    def hex(self) -> str:
        lines = "".join(f"{name} {digest}\n" for name, digest in sorted(self.parts.items()))
        return hashlib.sha256(b"openafm-bundle-1\n" + lines.encode()).hexdigest()[:SIGNATURE_LENGTH]


def sign(documents: dict[str, Any], tensors: Iterable[MappedTensor]) -> Signature:
    """The signature of JSON documents by file name and tensors."""
    parts = {name: hashlib.sha256(canonical_json(value)).hexdigest() for name, value in documents.items()}
    for tensor in tensors:
        shape = ",".join(map(str, tensor.shape))
        parts[f"tensor {tensor.name} {tensor.dtype} [{shape}]"] = tensor.digest()
    return Signature(parts=parts)


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no white space."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
