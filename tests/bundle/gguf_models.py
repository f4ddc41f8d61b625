"""Small bundles of each family with tokenizers that GGUF can name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoints

from openafm.bundle import Bundle
from openafm.bundle.gguf.tokenizer import PRE_TOKENIZERS
from openafm.bundle.hugging_face import import_hugging_face

PRE = {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2", "smollm3": "smaug-bpe"}
SHAPE = {"num_hidden_layers": 4, "hidden_size": 128, "head_dim": 32}


def bundle(folder: Path, family: str, **changes: Any) -> Bundle:
    """Write a Hugging Face folder and import it."""
    checkpoint = folder / f"{family}-checkpoint"
    checkpoints.save(checkpoint, family, **(SHAPE | changes))
    file = checkpoint / "tokenizer.json"
    form = json.loads(file.read_text())
    file.write_text(json.dumps(form | {"pre_tokenizer": PRE_TOKENIZERS[PRE[family]]}))
    return import_hugging_face(checkpoint, folder / family).bundle
