"""Peak memory of `openafm import hf --weights int4` of a sharded checkpoint in bfloat16, measured in a process of its own.

Random weights at the shape of Qwen3-4B (8 GB on disk, removed afterwards), in a quick run of 0.6B. Layers are converted one
at a time, so memory does not grow with the number of layers.

- `peak_gb`: the largest resident memory of the process in 10^9 bytes, mapped files included. Required: at most 6 for 4B.
- `seconds`, `checkpoint_gb`, `bundle_gb`: time, and sizes on disk.

    python benchmarks/import_memory.py [--quick] [--json] [--weights int4] [--method rtn]

A full run writes docs/benchmarks/import_memory.json and needs 12 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "shared"))

import numpy as np
from reporting import hand_in

from openafm.bundle.tensor_file import in_memory, write_file

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "import_memory.json"
ASKED = {"peak_gb": "<= 6 for 4B"}
SHAPES = {"0.6B": (28, 1024, 16, 3072), "4B": (36, 2560, 32, 9728)}  # layers, dim, heads, hidden dim
VOCAB_SIZE, KV_HEADS, HEAD_DIM, LAYERS_OF_A_SHARD = 151_936, 8, 128, 6
TEMPLATE = """
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def write_checkpoint(folder: Path, shape: str) -> None:
    """Write config, shards, tokenizer and chat template of a random model."""
    num_layers, dim, num_heads, hidden_dim = SHAPES[shape]
    config: dict[str, Any] = {
        "model_type": "qwen3",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": dim,
        "intermediate_size": hidden_dim,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    inner, kv_dim = num_heads * HEAD_DIM, KV_HEADS * HEAD_DIM
    of_layer = {
        "input_layernorm": (dim,),
        "post_attention_layernorm": (dim,),
        "self_attn.q_norm": (HEAD_DIM,),
        "self_attn.k_norm": (HEAD_DIM,),
        "self_attn.q_proj": (inner, dim),
        "self_attn.k_proj": (kv_dim, dim),
        "self_attn.v_proj": (kv_dim, dim),
        "self_attn.o_proj": (dim, inner),
        "mlp.gate_proj": (hidden_dim, dim),
        "mlp.up_proj": (hidden_dim, dim),
        "mlp.down_proj": (dim, hidden_dim),
    }
    shards = [{"model.embed_tokens.weight": (VOCAB_SIZE, dim), "model.norm.weight": (dim,)}]
    for first in range(0, num_layers, LAYERS_OF_A_SHARD):
        layers = range(first, min(first + LAYERS_OF_A_SHARD, num_layers))
        shards.append({f"model.layers.{i}.{name}.weight": shape for i in layers for name, shape in of_layer.items()})
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        weight_map |= dict.fromkeys(shard, name)
        with (folder / name).open("wb") as stream:
            write_file(stream, [in_memory(tensor, _random(shape), dtype="BF16") for tensor, shape in shard.items()])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    _write_tokenizer(folder)


def _random(shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape))
    drawn = np.random.default_rng(count).standard_normal(min(count, 1 << 20), np.float32) * np.float32(0.03)
    return np.resize((drawn.view(np.uint32) >> 16).astype(np.uint16), shape)


def _write_tokenizer(folder: Path) -> None:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [__doc__ or ""], trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def measure(options: argparse.Namespace, shape: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        checkpoint, home = Path(temporary) / "checkpoint", Path(temporary) / "home"
        checkpoint.mkdir()
        print(f"... write {shape}", file=sys.stderr)
        write_checkpoint(checkpoint, shape)
        command = [sys.executable, "-m", "openafm", "import", "hf", str(checkpoint), "--name", "model", "--json"]
        command += ["--weights", options.weights, "--method", options.method]
        start = time.perf_counter()
        environment = os.environ | {"OPENAFM_HOME": str(home)}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
        return {
            "peak_gb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9, 2),
            "shape": shape,
            "weights": options.weights,
            "method": options.method,
            "seconds": round(time.perf_counter() - start, 1),
            "checkpoint_gb": _gigabytes(checkpoint),
            "bundle_gb": _gigabytes(Path(json.loads(done.stdout)["bundle"])),
        }


def _gigabytes(folder: Path) -> float:
    return round(sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e9, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the shape of 0.6B")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--weights", default="int4", choices=("int4", "int8", "bf16"))
    parser.add_argument("--method", default="rtn", choices=("rtn", "gptq"))
    parser.add_argument(
        "--folder", type=Path, help="where the checkpoint and the bundle are written; default: the temporary folder"
    )
    options = parser.parse_args()
    figures = measure(options, "0.6B" if options.quick else "4B")
    hand_in({**figures, "figures": figures, "asked": ASKED}, REPORT, options)


if __name__ == "__main__":
    main()
