"""A GGUF file of random weights with the shape, the bits and the tokenizer of a bundle, for llama.cpp's server.

Matrices are TQ2_0 (2 bits and a scale for each 256 weights) where their rows are a multiple of 256, else Q4_0, which is what
llama.cpp itself falls back to; the embedding is Q4_K. All layers have keys and values of their own.
"""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

import gguf
import numpy as np
from native.gguf import TYPES
from numpy.typing import NDArray

from openafm.bundle import Bundle

_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
_CONTROL, _NORMAL, _UNUSED = 3, 1, 5  # token types of GGUF
_Q4_0_BLOCK = 32


def write_peer_model(path: Path, bundle: Bundle) -> None:
    """Write the file."""
    config = bundle.config
    layer = config.layers[0]
    attention, hidden_dim = layer.attention, layer.feed_forward.hidden_dim
    inner, kv_dim = attention.num_heads * attention.head_dim, config.kv_heads(0) * attention.head_dim
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.dim)
    writer.add_block_count(len(config.layers))
    writer.add_feed_forward_length(hidden_dim)
    writer.add_head_count(attention.num_heads)
    writer.add_head_count_kv(config.kv_heads(0))
    writer.add_rope_dimension_count(attention.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, bundle)
    source = np.random.default_rng(0)
    embedding = _matrix(source, config.vocab_size, config.dim, 0.05, "Q4_K")
    writer.add_tensor("token_embd.weight", embedding, raw_dtype=_type("Q4_K"))
    writer.add_tensor("output_norm.weight", np.ones(config.dim, np.float32))
    for index in range(len(config.layers)):
        shapes = {
            "attn_q": (inner, config.dim),
            "attn_k": (kv_dim, config.dim),
            "attn_v": (kv_dim, config.dim),
            "attn_output": (config.dim, inner),
            "ffn_gate": (hidden_dim, config.dim),
            "ffn_up": (hidden_dim, config.dim),
            "ffn_down": (config.dim, hidden_dim),
        }
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{index}.{name}.weight", np.ones(config.dim, np.float32))
        for name, (num_outputs, num_inputs) in shapes.items():
            body = "TQ2_0" if num_inputs % 256 == 0 else "Q4_0"
            matrix = _matrix(source, num_outputs, num_inputs, 1 / sqrt(num_inputs), body)
            writer.add_tensor(f"blk.{index}.{name}.weight", matrix, raw_dtype=_type(body))
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, bundle: Bundle) -> None:
    """Add the byte-level BPE vocabulary; rows of the embedding beyond it are unused tokens."""
    read = json.loads(bundle.tokenizer.to_json())
    vocabulary = {number: text for text, number in read["model"]["vocab"].items()}
    control = {each["id"] for each in read["added_tokens"]}
    size = bundle.config.vocab_size
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([vocabulary.get(number, f"[unused {number}]") for number in range(size)])
    types = [_CONTROL if n in control else _NORMAL if n in vocabulary else _UNUSED for n in range(size)]
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in read["model"]["merges"]])
    special = bundle.tokenizer.special
    writer.add_bos_token_id(special.bos)
    writer.add_eos_token_id(special.eos)
    writer.add_chat_template(_TEMPLATE)


def _matrix(source: np.random.Generator, num_outputs: int, num_inputs: int, std: float, body: str) -> NDArray[np.uint8]:
    """Return the bytes of random blocks, [outputs, bytes of a row]."""
    if body == "Q4_0":
        count = num_outputs * num_inputs // _Q4_0_BLOCK
        scales = np.full((count, 1), std / 4.6, np.float16).view(np.uint8)
        blocks = np.concatenate([scales, source.integers(256, size=(count, 16), dtype=np.uint8)], axis=1)
    else:
        blocks = TYPES[body].blocks(source, num_outputs * num_inputs // TYPES[body].num_weights, std)
    return blocks.reshape(num_outputs, -1)


def _type(body: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[body]
