"""The files of a bundle's folder, read as text, JSON and tensors. `bundle.py` describes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openafm.bundle.errors import BundleError
from openafm.bundle.tensor_file import MappedTensor, read_tensors
from openafm.core.regular_files import NotAFileError, OversizeFilesError, read_document

RECOVERY_ADAPTER = "recovery.fmadapter"
READER = "reader"
RANKER = "ranker"
SPAN_RANKER = "spans"
PARTS = (READER, RANKER, SPAN_RANKER)
"""Folders of a bundle with NAME.json, which has the digest of NAME.safetensors. The signature does not cover them."""
PAGES_ADAPTER = "pages"
"""Name of the adapter for the text of pages, in the folder of the reader."""
DOCUMENTS = ("config.json", "tokenizer.json", "chat_template.json")


def read_all_tensors(folder: Path) -> dict[str, MappedTensor]:
    """Return the tensors of all safetensors files of a folder, mapped.

    Raises:
        BundleError: there is no file, or one is malformed.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise BundleError(f"{folder} has no *.safetensors file; restore it")
    return {name: tensor for file in files for name, tensor in read_tensors(file).items()}


def read_bytes(file: Path) -> bytes:
    """Return the content of a file of a bundle.

    Raises:
        BundleError: the file is missing, too large, or not a regular file.
    """
    try:
        return read_document(file)
    except FileNotFoundError:
        raise BundleError(f"{file} is missing; restore it") from None
    except (NotAFileError, OversizeFilesError) as error:
        raise BundleError(f"{error}; restore it") from error


def read_text(file: Path) -> str:
    """Return the text of a file of a bundle.

    Raises:
        BundleError: the file is missing, too large, not a regular file, or not UTF-8.
    """
    try:
        return read_bytes(file).decode()
    except UnicodeDecodeError as error:
        raise BundleError(f"{file} is not UTF-8 text ({error})") from error


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object of a file of a bundle.

    Raises:
        BundleError: the file is missing, not UTF-8 or not a JSON object.
    """
    return parse_json(file, read_text(file))


def parse_json(file: Path, text: str) -> dict[str, Any]:
    """Return the JSON object that `text`, the content of `file`, holds; errors as `read_json`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file} is not JSON ({error}); restore it") from error
    if not isinstance(value, dict):
        raise BundleError(f"{file} is not a JSON object; restore it")
    return value
