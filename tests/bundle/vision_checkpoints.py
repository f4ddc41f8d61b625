"""A small random InternVL checkpoint, saved by transformers itself, with a tokenizer trained in `checkpoints`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image

SIDE, PATCH, MOST_TILES = 28, 7, 6
TOKENS = (SIDE // PATCH // 2) ** 2
IMAGE_TOKENS = ("<img>", "</img>", "<IMG_CONTEXT>")
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

TEMPLATE = """
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- if message['content'] is string -%}
        {{- message['content'] -}}
    {%- else -%}
        {%- for part in message['content'] -%}
            {%- if part['type'] == 'image' -%}{{- '<IMG_CONTEXT>\\n' -}}{%- else -%}{{- part['text'] -}}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def tokenizer() -> Any:
    trained = checkpoints.tokenizer("qwen2")
    trained.add_special_tokens(list(IMAGE_TOKENS))
    return trained


def save(
    folder: Path, *, family: str = "qwen2", dtype: torch.dtype = torch.float32, shards: str = "5GB", **vision: Any
) -> Any:
    """Write a checkpoint and return the model in fp32. Norms, biases and positions are random, so that each one counts."""
    torch.manual_seed(3)
    trained = tokenizer()
    text = checkpoints.config(family, tie_word_embeddings=False, eos_token_id=trained.token_to_id("<|im_end|>"))
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    stated = {"image_size": SIDE, "patch_size": PATCH, "attention_bias": True, "layer_scale_init_value": 0.5}
    config = transformers.InternVLConfig(
        text_config=text,
        vision_config=transformers.InternVLVisionConfig(**(shape | stated | vision)),
        image_token_id=trained.token_to_id("<IMG_CONTEXT>"),
        image_seq_length=TOKENS,
        tie_word_embeddings=False,
    )
    theirs = transformers.InternVLForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias") or "cls_token" in name or "position_embeddings" in name:
                parameter.normal_(std=0.3)
            elif "vision_tower" in name or "projector" in name:
                parameter.normal_(std=0.15)
    theirs.to(dtype).save_pretrained(folder, max_shard_size=shards)
    checkpoints.save_tokenizer(folder, "qwen2", TEMPLATE)
    trained.save(str(folder / "tokenizer.json"))
    processor = {
        "image_processor_type": "GotOcr2ImageProcessorFast",
        "size": {"height": SIDE, "width": SIDE},
        "image_mean": MEAN,
        "image_std": STD,
        "max_patches": MOST_TILES,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return type(theirs).from_pretrained(folder, dtype=torch.float32).eval()


def picture(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return smooth colors with noise, so that resampling matters."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(256, size=(5, 5, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    return np.clip(smooth + rng.integers(-20, 20, size=smooth.shape), 0, 255).astype(np.uint8)


def their_pixels(images: list[NDArray[np.uint8]], *, tiles: bool) -> tuple[torch.Tensor, list[int]]:
    """Return the normalized views [V, 3, Y, X] of transformers' image processor, and the number of views of each image."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    processor = GotOcr2ImageProcessorPil(
        size={"height": SIDE, "width": SIDE},
        image_mean=MEAN,
        image_std=STD,
        crop_to_patches=tiles,
        max_patches=MOST_TILES,
    )
    made = processor([Image.fromarray(image) for image in images], return_tensors="np")
    return torch.from_numpy(np.asarray(made["pixel_values"], np.float32)), [int(count) for count in made["num_patches"]]
