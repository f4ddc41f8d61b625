"""Parity of the GGUF reader with the `gguf` package: values of every supported type, and whole random files.

    python benchmarks/gguf_parity.py [--quick] [--json]

`mismatches` counts values whose float32 bits differ, metadata that differ, and damaged files that end in another error than
GGUFError; `types` names the types compared. `--json` prints one JSON object.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from shared.reporting import hand_in

from openafm.bundle.gguf import GGUFError, read_gguf
from openafm.bundle.gguf.types import TENSOR_TYPES

BLOCKS, QUICK_BLOCKS = 200_000, 20_000
MUTATIONS, QUICK_MUTATIONS = 20_000, 5_000


REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "gguf_parity.json"


def wrong_values(num_blocks: int) -> dict[str, int]:
    """Number of values with other bits than those of the package, by type, for random blocks."""
    import gguf

    wrong = {}
    for number, type in TENSOR_TYPES.items():
        if type.decode is None:
            continue
        blocks = np.random.default_rng(number).integers(0, 256, (num_blocks, type.block_bytes), np.uint8)
        with np.errstate(all="ignore"):  # random scales may be infinite or NaN
            theirs = np.ascontiguousarray(gguf.dequantize(blocks, gguf.GGMLQuantizationType(number)), np.float32)
            ours = type.dequantize(blocks.reshape(-1))
        wrong[type.name] = int((ours.view(np.uint32) != theirs.reshape(-1).view(np.uint32)).sum())
        print(f"{type.name}: {wrong[type.name]} of {ours.size:,} values differ", file=sys.stderr)
    return wrong


def write_with_package(file: Path) -> dict[str, Any]:
    """Write a file of random tensors of all types the package can quantize; return its metadata."""
    import gguf

    writer, random = gguf.GGUFWriter(file, "qwen3"), np.random.default_rng(0)
    texts = [f"token {i} \u00e9" for i in range(1000)]
    writer.add_uint32("qwen3.block_count", 7)
    writer.add_float32("qwen3.rope.freq_base", 1e6)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_array("tokenizer.ggml.tokens", texts)
    writer.add_array("tokenizer.ggml.token_type", [1] * 1000)
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"):
        type = gguf.GGMLQuantizationType[name]
        values = random.standard_normal((96, 256), np.float32)
        writer.add_tensor(name, gguf.quantize(values, type), raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"qwen3.block_count": 7, "qwen3.rope.freq_base": 1e6, "tokenizer.ggml.tokens": texts}


def wrong_file(file: Path) -> int:
    """Number of metadata and tensors of a package-written file that our reader reads differently."""
    import gguf

    expected = write_with_package(file)
    ours, theirs = read_gguf(file), gguf.GGUFReader(file)
    wrong = sum(ours.metadata.get(key) != value for key, value in expected.items())
    for tensor in theirs.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        wrong += not np.array_equal(ours.tensors[tensor.name].values(), values)
    return wrong + (len(theirs.tensors) != len(ours.tensors))


def untyped_failures(file: Path, num_mutations: int) -> int:
    """Number of damaged copies of a file whose reading ends in another error than GGUFError."""
    data, random, failures = file.read_bytes(), np.random.default_rng(1), 0
    damaged_file = file.with_name("damaged.gguf")
    for _ in range(num_mutations):
        damaged = bytearray(data[: int(random.integers(1, len(data)))] if random.random() < 0.1 else data)
        for place in random.integers(0, min(len(damaged), 40_000), random.integers(1, 4)):
            damaged[place] = random.integers(0, 256)
        damaged_file.write_bytes(damaged)
        try:
            read_gguf(damaged_file)
        except GGUFError:
            continue
        except Exception as error:
            print(f"untyped: {error!r}", file=sys.stderr)
            failures += 1
    return failures


def figures(*, quick: bool) -> dict[str, Any]:
    wrong = wrong_values(QUICK_BLOCKS if quick else BLOCKS)
    mutations = QUICK_MUTATIONS if quick else MUTATIONS
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "random.gguf"
        in_file = wrong_file(file)
        untyped = untyped_failures(file, mutations)
    return {
        "mismatches": sum(wrong.values()) + in_file + untyped,
        "types": list(wrong),
        "mutations": mutations,
        "untyped_failures": untyped,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the blocks, 5,000 damaged files")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    result = figures(quick=arguments.quick)
    hand_in({"figures": result}, REPORT, arguments)


if __name__ == "__main__":
    main()
