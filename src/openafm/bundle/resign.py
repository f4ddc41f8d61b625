"""Bundles of format version 1, whose signature was ambiguous in the names of tensors: verify them and sign them again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from openafm.adapters.package import open_adapter, write_adapter
from openafm.bundle.bundle import Bundle
from openafm.bundle.errors import BundleTamperedError, BundleVersionError
from openafm.bundle.files import DOCUMENTS, RECOVERY_ADAPTER, read_all_tensors, read_json, read_text
from openafm.bundle.signature import FORMAT_VERSION, SIGNATURE_LENGTH, check_tensor_name, sign
from openafm.bundle.store import FILE_PATTERNS
from openafm.bundle.tensor_file import MappedTensor
from openafm.core.files import atomic_folder, check_written, write_json
from openafm.core.regular_files import copy_files

_MAX_BYTES = 1 << 50  # any model


def resign_bundle(path: Path) -> Bundle:
    """Verify a bundle of format version 1 and rewrite it in place with the current signature.

    Its recovery adapter is bound to the new signature, and the card states the new signature where it stated the old one.
    Other adapters that were trained for the bundle state its old signature and no longer fit.

    Raises:
        BundleVersionError: the bundle does not have format version 1.
        BundleTamperedError: a file differs from the signed one.
        BundleError: a file is missing or malformed, or the name of a tensor is not allowed.
        AdapterError: the recovery adapter is damaged.
        ForeignFilesError: the folder has files that openafm did not write; it is unchanged.
        NotAFileError: a file is a symbolic link, whose target would be copied into the bundle.
    """
    check_written(path, FILE_PATTERNS)
    header = read_json(path / "config.json")
    if header.get("version") != 1:
        raise BundleVersionError(f"{path} has format version {header.get('version')}; only version 1 is signed again")
    old = str(read_json(path / "signature.json").get("signature"))
    tensors = read_all_tensors(path)
    if _signature_of_version_1(path, tensors) != old:
        raise BundleTamperedError(f"{path} differs from the signed bundle; restore it before signing it again")
    recovery = open_adapter(path / RECOVERY_ADAPTER) if (path / RECOVERY_ADAPTER).is_dir() else None
    card = read_text(path / "card.md")
    with atomic_folder(path) as folder:
        copy_files(path, folder, [file.name for file in path.iterdir() if not file.is_dir()], max_bytes=_MAX_BYTES)
        write_json(folder / "config.json", header | {"version": FORMAT_VERSION})
        documents = {name: read_json(folder / name) for name in DOCUMENTS}
        signature = sign(documents, read_all_tensors(folder).values())
        write_json(folder / "signature.json", signature.to_dict())
        if recovery is not None:
            recovery.check_base(old)
            write_adapter(
                folder / RECOVERY_ADAPTER,
                weights=recovery.weights(),
                config=recovery.config,
                base_signature=signature.hex,
                name=recovery.name,
            )
        (folder / "card.md").write_text(card.replace(old, signature.hex), encoding="utf-8")
    return Bundle(path)


def _signature_of_version_1(path: Path, tensors: dict[str, MappedTensor]) -> str:
    """The old rule, unambiguous for the names that are allowed now."""

    def digest(value: object) -> str:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    parts = {name: digest(read_json(path / name)) for name in DOCUMENTS}
    for name, tensor in tensors.items():
        shape = ",".join(map(str, tensor.shape))
        parts[f"tensor {check_tensor_name(name)} {tensor.dtype} [{shape}]"] = tensor.digest()
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(parts.items()))
    return hashlib.sha256(b"openafm-bundle-1\n" + lines.encode()).hexdigest()[:SIGNATURE_LENGTH]
