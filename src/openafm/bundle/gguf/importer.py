"""Import a GGUF file as a bundle: config, weights, tokenizer and chat template, atomically."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openafm.bundle.gguf.architecture import ROPE_FACTORS, decoder_name, read_architecture
from openafm.bundle.gguf.errors import GGUFError
from openafm.bundle.gguf.nearest import grouped, nearest_numerics, outcome_notes
from openafm.bundle.gguf.reader import GGUFFile, GGUFTensor, read_gguf
from openafm.bundle.gguf.tokenizer import tokenizer_json
from openafm.bundle.hugging_face.chat.jinja import JinjaTemplate
from openafm.bundle.hugging_face.chat.template import ReadTemplate, read_chat_template
from openafm.bundle.hugging_face.weights import decoder_shapes
from openafm.bundle.hugging_face.writing import (
    Compute,
    Conversion,
    ImportReport,
    ReadModel,
    import_card,
    numerics_of,
    write_import,
)
from openafm.compression.grouped import GroupedMatrix
from openafm.compression.numerics import Numerics
from openafm.models.config import DecoderConfig
from openafm.tokenizer.errors import TokenizerError
from openafm.tokenizer.files import read_imported_tokenizer
from openafm.tokenizer.imported.byte_level import ImportedTokenizer

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def import_gguf(
    file: Path,
    place: Path,
    *,
    compute: Compute = "float32",
    conversion: Conversion | Literal["nearest"] | None = None,
    today: datetime.date | None = None,
    on_part: Callable[[int, int], None] = lambda done, total: None,
) -> ImportReport:
    """Convert a GGUF file to a bundle at `place`.

    Args:
        compute: compute dtype of the bundle; float32 is exact, bfloat16 takes half the memory of keys and values.
        conversion: how weights are rounded for the native engine; matrices of Q8_0 keep their values in int8. "nearest":
            each matrix in the native format that is nearest to its type in the file, with the file's codes where both have
            the same groups (nearest.py). Without one, quantized weights become float32 with exactly the values of the file.
            An import that is killed continues when it is called again with the same arguments.
        today: the date for chat templates that state one.
        on_part: called with the number of finished weight files and of all, with `conversion`.

    Raises:
        GGUFError: the file is damaged, or needs an unsupported feature.
        HuggingFaceError: the model or its chat template needs an unsupported feature.
        BundleError: a weight is not finite, or `place` exists and is not a bundle.
        OutOfSpaceError: the disk is full. After any error `place` is unchanged.
    """
    read = read_gguf(file)
    factors = read.tensors.get(ROPE_FACTORS)
    shapes = {name: tensor.shape for name, tensor in read.tensors.items()}
    family, config = read_architecture(read.metadata, shapes, None if factors is None else factors.values())
    tensors = _tensors(read, config)
    text = tokenizer_json(read.metadata)
    try:
        tokenizer = read_imported_tokenizer(text)
    except TokenizerError as error:
        raise GGUFError(f"the tokenizer of {file} cannot be used: {error}") from error
    template = _chat_template(read.metadata, text, tokenizer, today or datetime.date.today())
    conversion, numerics, outcome = _outcome(read, config, tensors, conversion)
    notes = (*template.notes, *outcome)
    model = ReadModel(
        config=config,
        tokenizer=tokenizer,
        template=template.template,
        tensors=tensors,
        files=[file],
        card=import_card(place.name, f"GGUF file of the {family} family", "model", notes),
    )

    bundle = write_import(place, model, compute=compute, conversion=conversion, numerics=numerics, on_part=on_part)
    return ImportReport(bundle=bundle, notes=notes)


def _outcome(
    read: GGUFFile,
    config: DecoderConfig,
    tensors: Sequence[_ConvertedTensor],
    conversion: Conversion | Literal["nearest"] | None,
) -> tuple[Conversion | None, Numerics | None, list[str]]:
    """Return how weights are converted, the numerics of a conversion, and notes about the values."""
    if conversion == "nearest":
        numerics = nearest_numerics(tensors)
        if numerics is None:
            return None, None, ["F32 keeps its values; the native engine computes it as it is"]
        # The numerics name the type of each matrix; of the conversion only its rounding without calibration is used.
        return Conversion(weights="int8"), numerics, outcome_notes(tensors, numerics)
    if conversion is None:
        return None, None, _type_notes(read, "become float32 with the same values")
    numerics, outcome = numerics_of(config, conversion.weights), f"are decoded and rounded to {conversion.weights}"
    matrices = (tensor for tensor in tensors if len(tensor.shape) == 2 and tensor.name.startswith("layers."))
    if conversion.weights == "int8":
        outcome += ", except that matrices keep their values if all are Q8_0"
        if all(each.source.type.name == "Q8_0" for each in matrices):
            numerics = replace(numerics, weights="int8_group32", exceptions=())  # the same groups: values stay
    return conversion, numerics, _type_notes(read, outcome)


@dataclass(frozen=True, kw_only=True)
class _ConvertedTensor:
    """A tensor of the file under its name in the decoder; `data` decodes it."""

    name: str
    file: Path
    source: GGUFTensor

    @property
    def dtype(self) -> str:
        return self.source.type.name if self.source.type.name in ("F16", "BF16") else "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def data(self) -> NDArray[np.uint8]:
        source = self.source
        return source.blocks if source.type.block_values == 1 else source.values().reshape(-1).view(np.uint8)

    def grouped(self, format: str) -> GroupedMatrix | None:
        """Return the codes of the file (`CodedSource`)."""
        return grouped(self.source, format)


def _tensors(read: GGUFFile, config: DecoderConfig) -> list[_ConvertedTensor]:
    expected, found = decoder_shapes(config), dict[str, _ConvertedTensor]()
    for theirs, tensor in read.tensors.items():
        if theirs == ROPE_FACTORS:
            continue
        ours = decoder_name(theirs)
        if ours is None or ours not in expected:
            raise GGUFError(f"{read.path}: the weight '{theirs}' does not exist in a decoder of openafm")
        if tensor.shape != expected[ours]:
            raise GGUFError(f"{read.path}: '{theirs}' has shape {tensor.shape}, its metadata imply {expected[ours]}")
        found[ours] = _ConvertedTensor(name=ours, file=read.path, source=tensor)
    if missing := expected.keys() - found.keys():
        raise GGUFError(f"{read.path} lacks the weight '{min(missing)}' ({len(missing)} in all); restore the file")
    return [found[name] for name in expected]


def _chat_template(
    metadata: Mapping[str, Any], text: str, tokenizer: ImportedTokenizer, today: datetime.date
) -> ReadTemplate:
    import tokenizers

    source = metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        raise GGUFError("the file has no chat template; import an instruction-tuned model, not a base model")
    tokens = metadata["tokenizer.ggml.tokens"]
    jinja = JinjaTemplate(source, _special_tokens(metadata, tokens), today)
    return read_chat_template(
        jinja, tokenizer, tokenizers.Tokenizer.from_str(text), _stop_names(metadata, tokens, tokenizer)
    )


def _special_tokens(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    ids = {f"{kind}_token": metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos", "unknown", "padding")}
    names = {"unknown_token": "unk_token", "padding_token": "pad_token"}
    return {names.get(key, key): tokens[id] for key, id in ids.items() if isinstance(id, int) and 0 <= id < len(tokens)}


def _stop_names(metadata: Mapping[str, Any], tokens: Sequence[str], tokenizer: ImportedTokenizer) -> list[str]:
    ids = (metadata.get(f"tokenizer.ggml.{key}") for key in _END_KEYS)
    names = (tokens[id] for id in ids if isinstance(id, int) and 0 <= id < len(tokens))
    return [name for name in names if name in tokenizer.special_ids]


def _type_notes(read: GGUFFile, outcome: str) -> list[str]:
    values: Counter[str] = Counter()
    for tensor in read.tensors.values():
        values[tensor.type.name] += int(np.prod(tensor.shape))
    quantized = [f"{name} {count / values.total():.0%}" for name, count in values.most_common() if name[0] == "Q"]
    if not quantized:
        return []
    return [f"quantized weights ({', '.join(quantized)}) {outcome}"]
