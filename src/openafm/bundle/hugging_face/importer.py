"""Import a local Hugging Face folder as a bundle: config, weights, tokenizer and chat template, atomically."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from openafm.bundle.hugging_face.chat.image_layout import image_tokens
from openafm.bundle.hugging_face.chat.jinja import JinjaTemplate
from openafm.bundle.hugging_face.chat.template import ReadTemplate, read_chat_template
from openafm.bundle.hugging_face.config import decoder_config
from openafm.bundle.hugging_face.errors import HuggingFaceError
from openafm.bundle.hugging_face.internvl import internvl_config
from openafm.bundle.hugging_face.internvl_weights import read_internvl_weights
from openafm.bundle.hugging_face.weights import read_weights
from openafm.bundle.hugging_face.writing import Compute, Conversion, ImportReport, ReadModel, import_card, write_import
from openafm.bundle.tensor_file import TensorSource
from openafm.core.regular_files import read_document
from openafm.models.config import DecoderConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.tokenizer.errors import TokenizerError
from openafm.tokenizer.files import read_imported_tokenizer
from openafm.tokenizer.imported.byte_level import ImportedTokenizer

_TOKEN_VARIABLES = ("bos_token", "eos_token", "pad_token", "unk_token")


def import_hugging_face(
    folder: Path,
    place: Path,
    *,
    compute: Compute = "float32",
    conversion: Conversion | None = None,
    today: datetime.date | None = None,
    on_part: Callable[[int, int], None] = lambda done, total: None,
) -> ImportReport:
    """Convert the checkpoint in `folder` to a bundle at `place`. Weights keep their dtype (float16 becomes float32).

    Args:
        compute: compute dtype of the bundle; float32 is exact, bfloat16 takes half the memory. Without `conversion` only.
        conversion: how weights are rounded for the native engine; None keeps their dtype. An import that is killed
            continues when it is called again with the same arguments.
        today: the date for chat templates that state one.

    Raises:
        HuggingFaceError: the checkpoint is incomplete, or needs an unsupported feature.
        BundleError: a weight file is damaged, a weight is not finite, or `place` exists and is not a bundle.
        OutOfSpaceError: the disk is full. After any error `place` is unchanged.
    """
    values = _read_json(folder / "config.json")
    config, tensors = _model(folder, values)
    tokenizer = _tokenizer(folder)
    if tokenizer.vocab_size > config.vocab_size:
        counts = f"{tokenizer.vocab_size} tokens, the model has {config.vocab_size}"
        raise HuggingFaceError(f"{folder / 'tokenizer.json'} has {counts}; restore the folder")
    read = _chat_template(folder, values, tokenizer, today or datetime.date.today())
    notes = (*read.notes, *_image_notes(config))
    card = import_card(place.name, f"Hugging Face checkpoint of the {values['model_type']} family", "checkpoint", notes)
    model = ReadModel(
        config=config,
        tokenizer=tokenizer,
        template=read.template,
        tensors=tensors,
        files=[tensor.file for tensor in tensors],
        card=card,
    )
    bundle = write_import(place, model, compute=compute, conversion=conversion, on_part=on_part)
    return ImportReport(bundle=bundle, notes=notes)


def _model(folder: Path, values: dict[str, Any]) -> tuple[DecoderConfig, Sequence[TensorSource]]:
    """Return the config of a checkpoint and its weights."""
    if values.get("model_type") != "internvl":
        config = decoder_config(values)
        return config, read_weights(folder, config)
    multimodal = internvl_config(values, _image_processor(folder))
    has_bias = bool(values["vision_config"].get("attention_bias", False))
    return multimodal, read_internvl_weights(folder, multimodal, has_attention_bias=has_bias)


def _image_processor(folder: Path) -> dict[str, Any]:
    """Return the settings of the image processor, from either file that transformers writes."""
    if (folder / "preprocessor_config.json").is_file():
        return _read_json(folder / "preprocessor_config.json")
    settings = _read_json(folder / "processor_config.json", may_be_missing=True).get("image_processor")
    if not isinstance(settings, dict):
        raise HuggingFaceError(f"{folder} has no preprocessor_config.json, which sets how images are resized; restore it")
    return settings


def _image_notes(config: DecoderConfig) -> tuple[str, ...]:
    if not isinstance(config, MultimodalConfig):
        return ()
    usual, *others = config.image_modes
    details = "".join(f", {min(each.token_counts)} to {each.num_tokens} with image_detail {each.name}" for each in others)
    return (f"an image takes {usual.num_tokens} tokens{details}",)


def _tokenizer(folder: Path) -> ImportedTokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise HuggingFaceError(
            f"{file} is missing; save the tokenizer with transformers, which converts a tokenizer.model of SentencePiece"
        )
    try:
        return read_imported_tokenizer(read_document(file).decode())
    except (TokenizerError, UnicodeDecodeError) as error:
        raise HuggingFaceError(f"{file} cannot be used: {error}") from error


def _chat_template(folder: Path, values: dict[str, Any], tokenizer: ImportedTokenizer, today: datetime.date) -> ReadTemplate:
    import tokenizers

    settings = _read_json(folder / "tokenizer_config.json", may_be_missing=True)
    named = _read_json(folder / "special_tokens_map.json", may_be_missing=True) | settings
    variables = {key: _content(named[key]) for key in _TOKEN_VARIABLES if named.get(key) is not None}
    jinja = JinjaTemplate(_jinja_source(folder, settings), variables, today)
    generation = _read_json(folder / "generation_config.json", may_be_missing=True)
    has_images = values.get("model_type") == "internvl"
    text = values["text_config"] if has_images else values
    stop_ids = [*_ids(generation.get("eos_token_id")), *_ids(text.get("eos_token_id"))]
    names = {id: name for name, id in tokenizer.special_ids.items()}
    stop = [names[id] for id in stop_ids if id in names] + [variables["eos_token"]] * ("eos_token" in variables)
    original = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    original.no_truncation()
    original.no_padding()
    images = image_tokens(settings, tokenizer.special_ids, values.get("image_token_id")) if has_images else None
    return read_chat_template(jinja, tokenizer, original, [name for name in stop if name in tokenizer.special_ids], images)


def _jinja_source(folder: Path, settings: dict[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return read_document(file).decode()
        except UnicodeDecodeError as error:
            raise HuggingFaceError(f"{file} is not UTF-8 text ({error}); restore it") from error
    source = settings.get("chat_template")
    if isinstance(source, list):  # several templates by name
        named = (entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default")
        source = next(named, {}).get("template")
    if not isinstance(source, str):
        raise HuggingFaceError(
            f"{folder} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); "
            "import an instruction-tuned model, not a base model"
        )
    return source


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _ids(value: Any) -> list[int]:
    return [id for id in (value if isinstance(value, list) else [value]) if isinstance(id, int)]


def _read_json(file: Path, *, may_be_missing: bool = False) -> dict[str, Any]:
    if may_be_missing and not file.is_file():
        return {}
    try:
        values = json.loads(read_document(file))
    except FileNotFoundError:
        raise HuggingFaceError(f"{file} is missing; pass the folder of a Hugging Face checkpoint") from None
    except (ValueError, OSError, RecursionError) as error:
        raise HuggingFaceError(f"{file} is not readable JSON ({error}); restore it") from error
    if not isinstance(values, dict):
        raise HuggingFaceError(f"{file} does not hold a JSON object; restore it")
    return values
