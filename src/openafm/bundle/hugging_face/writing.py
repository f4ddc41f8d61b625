"""The last steps of every import: choose the numerics, convert the weights, write the bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.bundle.bundle import Bundle
from openafm.bundle.hugging_face.calibration import Calibration
from openafm.bundle.hugging_face.compressed import LayerMethod, embeddings_of, write_parts
from openafm.bundle.hugging_face.errors import HuggingFaceError
from openafm.bundle.tensor_file import TensorSource
from openafm.bundle.writer import write_bundle, write_bundle_in_parts
from openafm.compression.errors import CompressionError
from openafm.compression.grouped import NEAREST
from openafm.compression.native_numerics import Weights, native_numerics
from openafm.compression.numerics import Numerics
from openafm.models.config import DecoderConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.tokenizer.imported.byte_level import ImportedTokenizer
from openafm.tokenizer.imported.template import ImportedTemplate

if TYPE_CHECKING:
    from openafm.compression.post_training.groups import RangeConfig

Compute: TypeAlias = Literal["float32", "bfloat16"]

_HEAD_BYTES = 1 << 22  # more than the headers of most files


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """Hold the bundle and notes for the user about how it differs from the checkpoint."""

    bundle: Bundle
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ReadModel:
    """A model that was read and checked; `files` hold its weights."""

    config: DecoderConfig
    tokenizer: ImportedTokenizer
    template: ImportedTemplate
    tensors: Sequence[TensorSource]
    files: Sequence[Path]
    card: str


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """How weights are rounded for the native engine.

    Attributes:
        calibration: round 4-bit matrices by GPTQ, calibrated on this text.
        range: how to choose the levels of 4-bit matrices without calibration.
    """

    weights: Weights
    calibration: Calibration | None = None
    range: RangeConfig = NEAREST


def write_import(
    place: Path,
    model: ReadModel,
    *,
    compute: Compute,
    conversion: Conversion | None,
    numerics: Numerics | None = None,
    on_part: Callable[[int, int], None],
) -> Bundle:
    """Write a model as a bundle: with the dtypes of its weights, or converted for the native engine.

    Args:
        numerics: of a conversion; default: those of its weights for the model.

    Raises:
        HuggingFaceError: a width of the model does not fit the format, or the calibration text is too short.
        BundleError: a weight is damaged or not finite, or `place` exists and is not a bundle.
        OutOfSpaceError: the disk is full. After any error `place` is unchanged.
    """
    parts: dict[str, Any] = {
        "config": model.config,
        "tokenizer": model.tokenizer,
        "template": model.template,
        "card": model.card,
    }
    if conversion is None:
        return write_bundle(place, **parts, tensors=model.tensors, numerics=_stored_numerics(model.tensors, compute))
    chosen = numerics or numerics_of(model.config, conversion.weights)
    calibration, tensors = conversion.calibration, model.tensors
    method = None if calibration is None else _gptq(model, calibration.tokens(model.tokenizer, model.template))
    # A killed import continues if nothing differs that decides the bytes of the weights.
    states = sorted((str(file.resolve()), *file_state(file)) for file in set(model.files))
    stated = (states, chosen, calibration, conversion.range, model.template.to_json())
    return write_bundle_in_parts(
        place,
        **parts,
        key=hashlib.sha256(repr(stated).encode()).hexdigest(),
        numerics=chosen,
        write_weights=lambda folder: write_parts(folder, tensors, chosen, method, conversion.range, on_part),
    )


def numerics_of(config: DecoderConfig, weights: Weights) -> Numerics:
    """Return numerics for the native engine.

    Raises:
        HuggingFaceError: a width of the model does not fit the format.
    """
    has_8_bit_vision = isinstance(config, MultimodalConfig) and weights != "bf16"
    try:
        numerics = native_numerics(config, weights)
        return replace(numerics, vision="int8_per_row_and_token") if has_8_bit_vision else numerics
    except CompressionError as error:
        raise HuggingFaceError(f"{error}; use --weights bf16") from error


def file_state(file: Path) -> tuple[str | int, ...]:
    """Return what differs when a file of weights is replaced, also by one of the same size and time of modification."""
    state = file.stat()
    with file.open("rb") as stream:
        head = hashlib.sha256(stream.read(_HEAD_BYTES)).hexdigest()
    return file.name, state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns, head


def import_card(name: str, origin: str, owner: str, notes: Sequence[str]) -> str:
    """Return the card of an imported bundle; the license is that of `owner`."""
    lines = [f"# {name}", "", f"Imported from a {origin}."]
    lines += [f"The license of the {owner} applies.", "", *(f"- {note}" for note in notes)]
    return "\n".join(lines).rstrip() + "\n"


def _gptq(model: ReadModel, tokens_BS: NDArray[np.int64]) -> LayerMethod:
    from openafm.compression.post_training.layerwise import LayerwiseGPTQ

    decoder = model.config.decoder if isinstance(model.config, MultimodalConfig) else model.config
    return LayerwiseGPTQ(decoder, embeddings_of(model.tensors, tokens_BS))


def _stored_numerics(tensors: Sequence[TensorSource], compute: Compute) -> Numerics:
    others = ("embedding", "vision.registers_RD")
    layers = {tensor.dtype for tensor in tensors if len(tensor.shape) == 2 and tensor.name not in others}
    embedding = {tensor.dtype for tensor in tensors if tensor.name == "embedding"}
    return Numerics(weights=_dtype(layers), embedding=_dtype(embedding), activations=compute, kv=compute)


def _dtype(stored: set[str]) -> Literal["bfloat16", "float32"]:
    return "bfloat16" if stored == {"BF16"} else "float32"
