"""Write bundles: sign them, and replace an existing one atomically."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.adapters.config import LoRAConfig
from openafm.adapters.package import write_adapter
from openafm.bundle.bundle import Bundle
from openafm.bundle.errors import BundleError
from openafm.bundle.files import DOCUMENTS, RECOVERY_ADAPTER, read_all_tensors, read_json
from openafm.bundle.signature import FORMAT, FORMAT_VERSION, Signature, sign
from openafm.bundle.store import FILE_PATTERNS
from openafm.bundle.tensor_file import TensorSource, copy_tensors, write_tensors
from openafm.compression.numerics import FULL_PRECISION, Numerics
from openafm.core.config import to_dict, to_tagged_dict
from openafm.core.files import atomic_folder, check_written, resumable_folder, write_json
from openafm.models.config import DecoderConfig
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.template import BaseChatTemplate


@dataclass(frozen=True, kw_only=True)
class RecoveryAdapter:
    """Config and weights of a recovery adapter; writing the bundle binds it to the bundle's signature."""

    config: LoRAConfig
    weights: Mapping[str, NDArray[Any]]


def write_bundle(
    path: Path,
    *,
    config: DecoderConfig,
    tokenizer: Tokenizer,
    template: BaseChatTemplate,
    tensors: Mapping[str, NDArray[Any]] | Sequence[TensorSource],
    numerics: Numerics = FULL_PRECISION,
    recovery: RecoveryAdapter | None = None,
    card: str = "",
) -> Bundle:
    """Write and sign a bundle at `path`, atomically. An existing bundle is replaced, any other folder is refused.

    Tensor sources, named as in the model, are copied one at a time.

    Raises:
        OutOfSpaceError: the disk is full; `path` is unchanged.
        BundleError: a weight is not finite, a tensor name is not allowed, the tokenizer has more tokens than the model, or
            `path` is not a bundle.
        ForeignFilesError: the bundle at `path` has files that openafm did not write.
    """
    _check_place(path)
    if tokenizer.vocab_size > config.vocab_size:
        raise BundleError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model {config.vocab_size} rows; extend the model"
        )
    if isinstance(tensors, Mapping):
        _check_finite(tensors)
    with atomic_folder(path) as folder:
        _write_documents(folder, config, tokenizer, template, numerics)
        if isinstance(tensors, Mapping):
            write_tensors(folder, tensors)
        else:
            copy_tensors(folder, tensors)
        signature = _sign(folder)
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


def write_bundle_in_parts(
    path: Path,
    *,
    key: str,
    config: DecoderConfig,
    tokenizer: Tokenizer,
    template: BaseChatTemplate,
    numerics: Numerics,
    write_weights: Callable[[Path], None],
    card: str = "",
) -> Bundle:
    """Write and sign a bundle at `path` whose weights are written file by file; a killed call continues with the same `key`.

    Args:
        write_weights: writes `model-00001.safetensors`, ... into the given folder, which may have some of them already.

    Raises:
        FolderInUseError: another process is writing this bundle.
        OutOfSpaceError, BundleError, ForeignFilesError: as `write_bundle`; the parts are removed.
    """
    _check_place(path)
    with resumable_folder(path, key, FILE_PATTERNS) as folder:
        write_weights(folder)
        _write_documents(folder, config, tokenizer, template, numerics)
        _sign(folder)
        (folder / "card.md").write_text(card or f"# {path.name}\n", encoding="utf-8")
    return Bundle(path)


def _write_documents(
    folder: Path, config: DecoderConfig, tokenizer: Tokenizer, template: BaseChatTemplate, numerics: Numerics
) -> None:
    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "model": to_tagged_dict(config, DecoderConfig),
        "numerics": to_dict(numerics),
    }
    write_json(folder / "config.json", header)
    tokenizer.save(folder / "tokenizer.json")
    (folder / "chat_template.json").write_text(template.to_json(), encoding="utf-8")


def _sign(folder: Path) -> Signature:
    """Write the signature of a folder's documents and tensors."""
    signature = sign({name: read_json(folder / name) for name in DOCUMENTS}, read_all_tensors(folder).values())
    write_json(folder / "signature.json", signature.to_dict())
    return signature


def _check_finite(tensors: Mapping[str, NDArray[Any]]) -> None:
    for name, array in tensors.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise BundleError(f"weight '{name}' holds a value that is not finite; the model diverged and was not saved")


def _check_place(path: Path) -> None:
    """Check that `path` does not exist, is an empty folder or is a bundle of any version, possibly damaged."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "signature.json").is_file():
        raise BundleError(f"{path} exists and is not a bundle; choose another path")
    check_written(path, FILE_PATTERNS)
