"""ASTC 6x6 for weights (report section 6): our codec and ARM's astcenc, at equal bits, one thread each.

1. Decoding: our blocks, blocks of astcenc in both profiles, and random ones, decoded by both; values that differ in any
   bit.
2. Error: ||W - W'|| / ||W|| on a Gaussian matrix and on a heavy-tailed one (Student-t with five degrees of freedom, rows
   and columns scaled by log-normal factors), with all bits counted.
3. Speed: megabytes of fp16 weights per CPU-second, of `encode_matrix` and of astcenc's compression of a prepared image.
   They alternate in one run; ratios are medians over rounds.

astcenc gets the matrix mapped to 0..1 (LDR profile) or, as in the report, minus the minimum of each block, which is stored
as fp16 (HDR profile, 4 bits). By default it stops improving a block at a quality limit in dB, which nearly all blocks reach
if outliers widen the range. "no dB limit" removes the limit, "matrix rotated" gives it the rotated matrix that ours encodes.
THOROUGH runs on a small matrix only.

    python benchmarks/astc.py [--quick] [--json]

A full run writes docs/benchmarks/astc.json. `--quick` runs the same code on small matrices for one round and claims nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

from openafm.compression.errors import CompressionError

os.environ["OMP_NUM_THREADS"] = "1"

import astc_encoder
import numpy as np
from numpy.typing import NDArray

from openafm.compression.astc.config import AstcConfig, LiteralAstcConfig
from openafm.compression.astc.decoder import decode_blocks
from openafm.compression.astc.matrix import AstcMatrix, decode_matrix, encode_matrix
from openafm.compression.astc.rotation import rotate
from openafm.core.files import write_json

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "astc.json"
SEED = 0
OURS = {
    "ours": AstcConfig(),
    "ours, one partition": AstcConfig(partitions=1),
    "ours, not rotated": AstcConfig(rotation=None),
    "ours, one partition, not rotated": AstcConfig(partitions=1, rotation=None),
    "ours, the report's recipe": LiteralAstcConfig(),
}
PRESETS = {"FASTEST": 0, "FAST": 10, "MEDIUM": 60, "THOROUGH": 98}
DB_LIMIT = 999.0  # no block reaches it
Weights = NDArray[np.float32]
Blocks = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Side of the matrices, of the small one for THOROUGH, rounds, random blocks to decode."""

    side: int
    small_side: int
    rounds: int
    random_blocks: int


FULL = Sizes(side=768, small_side=192, rounds=4, random_blocks=100_000)
QUICK = Sizes(side=192, small_side=48, rounds=1, random_blocks=5_000)


def gaussian(side: int) -> Weights:
    return np.random.default_rng(SEED).normal(0, 0.02, (side, side)).astype(np.float32)


def heavy_tailed(side: int) -> Weights:
    rng = np.random.default_rng(SEED + 1)
    rows, columns = np.exp(0.5 * rng.normal(size=(side, 1))), np.exp(0.5 * rng.normal(size=(1, side)))
    return (0.02 * rng.standard_t(5, (side, side)) * rows * columns).astype(np.float32)


@dataclass(frozen=True)
class Coded:
    """Result of an encoder on a matrix: bits per weight, relative error, CPU-seconds."""

    bits: float
    error: float
    seconds: float


def ours(weight: Weights, config: AstcConfig | LiteralAstcConfig) -> Coded:
    started = process_time()
    matrix = encode_matrix(weight, config)
    seconds = process_time() - started
    return Coded(matrix.bits_per_weight, relative_error(weight, decode_matrix(matrix)), seconds)


def astcenc(weight: Weights, preset: str, profile: str, db_limit: float | None = None) -> Coded:
    """LDR: the matrix fills 0..1. HDR: the report's recipe."""
    if profile == "LDR":
        low, span = weight.min(), weight.max() - weight.min()
        back, bits = low, 128 / 36
    else:
        low = np.repeat(np.repeat(block_minima(weight), 6, 0), 6, 1)
        back, span, bits = low, np.float32(1), 144 / 36
    image = np.maximum((weight - low) / span, 0)
    compress = compressor(image, preset, profile, db_limit)
    started = process_time()
    blocks = compress()
    seconds = process_time() - started
    decoded = astcenc_decode(blocks, profile)[..., 0].astype(np.float32)
    return Coded(bits, relative_error(weight, untiled(decoded, weight.shape) * span + back), seconds)


def compressor(image: Weights, preset: str, profile: str, db_limit: float | None = None) -> Callable[[], Blocks]:
    """Return a function that only compresses; everything else is prepared."""
    num_rows, num_columns = image.shape
    config = astc_encoder.ASTCConfig(astc_encoder.ASTCProfile[profile], 6, 6, 1, PRESETS[preset])
    if db_limit is not None:
        config.tune_db_limit = db_limit
    rgba = np.repeat(image[:, :, None], 4, axis=2)
    rgba[..., 3] = 1
    texture = astc_encoder.ASTCImage(astc_encoder.ASTCType.F32, num_columns, num_rows, 1, rgba.tobytes())
    context, swizzle = astc_encoder.ASTCContext(config, 1), astc_encoder.ASTCSwizzle.from_str("RRR1")
    return lambda: np.frombuffer(context.compress(texture, swizzle), np.uint8).reshape(-1, 16)


def astcenc_decode(blocks: Blocks, profile: str) -> NDArray[np.float16]:
    config = astc_encoder.ASTCConfig(astc_encoder.ASTCProfile[profile], 6, 6, 1)
    texture = astc_encoder.ASTCImage(astc_encoder.ASTCType.F16, 6, 6 * len(blocks), 1)
    swizzle = astc_encoder.ASTCSwizzle.from_str("RGBA")
    decoded = astc_encoder.ASTCContext(config, 1).decompress(np.ascontiguousarray(blocks).tobytes(), texture, swizzle)
    return np.frombuffer(decoded.data, np.float16).reshape(len(blocks), 36, 4)


def block_minima(weight: Weights) -> Weights:
    """The minimum of each block, rounded down to fp16."""
    num_rows, num_columns = weight.shape
    exact = weight.reshape(num_rows // 6, 6, num_columns // 6, 6).min((1, 3))
    kept = exact.astype(np.float16)
    return np.where(kept > exact, np.nextafter(kept, np.float16(-np.inf)), kept).astype(np.float32)


def untiled(blocks_N36: Weights, shape: tuple[int, ...]) -> Weights:
    return blocks_N36.reshape(shape[0] // 6, shape[1] // 6, 6, 6).swapaxes(1, 2).reshape(shape)


def relative_error(weight: Weights, decoded: Weights) -> float:
    return float(np.linalg.norm(weight - decoded) / np.linalg.norm(weight))


class Decoding:
    """Counts values that our decoder and astcenc's give in different bits."""

    def __init__(self) -> None:
        self.num_values = self.num_mismatches = 0

    def compare(self, blocks: Blocks, profile: str) -> None:
        theirs = np.ascontiguousarray(astcenc_decode(blocks, profile)[..., 0])
        self.num_values += theirs.size
        self.num_mismatches += int(np.count_nonzero(decode_blocks(blocks).view(np.uint16) != theirs.view(np.uint16)))

    def compare_random(self, num_blocks: int) -> None:
        """Random bits: legal blocks of every kind; both decoders must agree which blocks are legal."""
        blocks = np.random.default_rng(SEED).integers(0, 256, (num_blocks, 16), dtype=np.uint8)
        is_legal = np.isfinite(astcenc_decode(blocks, "HDR")[..., 0]).all(1)
        self.compare(blocks[is_legal], "HDR")
        for block in blocks[~is_legal][:2_000]:
            try:
                decode_blocks(block[None])
            except CompressionError:
                continue
            self.num_mismatches += 36


def decoding(sizes: Sizes) -> Decoding:
    rng = np.random.default_rng(SEED)
    shape = (sizes.small_side, sizes.small_side)
    matrices = [
        gaussian(sizes.small_side),
        heavy_tailed(sizes.small_side),
        rng.random(shape, np.float32),
        rng.integers(0, 3, shape).astype(np.float32),
        np.cumsum(rng.normal(size=shape), 1).astype(np.float32),
    ]
    result = Decoding()
    for weight in matrices:
        for config in OURS.values():
            blocks = encode_matrix(weight, config).blocks.reshape(-1, 16)
            for profile in ("HDR",) if isinstance(config, LiteralAstcConfig) else ("LDR", "HDR"):
                result.compare(blocks, profile)
        for preset in PRESETS:
            image = weight - weight.min()
            result.compare(compressor(image / image.max(), preset, "LDR")(), "LDR")
            result.compare(compressor(image, preset, "HDR")(), "HDR")
    result.compare_random(sizes.random_blocks)
    return result


def compare(weight: Weights, presets: list[str], num_rounds: int) -> dict[str, list[Coded]]:
    """Run all encoders on one matrix, alternating."""
    coders: dict[str, Callable[[], Coded]] = {name: lambda c=config: ours(weight, c) for name, config in OURS.items()}
    rotated = rotate(weight, 0)
    for preset in presets:
        coders[f"astcenc {preset}"] = lambda p=preset: astcenc(weight, p, "LDR")
        coders[f"astcenc {preset}, the report's recipe"] = lambda p=preset: astcenc(weight, p, "HDR")
    coders["astcenc MEDIUM, no dB limit"] = lambda: astcenc(weight, "MEDIUM", "LDR", DB_LIMIT)
    coders["astcenc MEDIUM, matrix rotated"] = lambda: astcenc(rotated, "MEDIUM", "LDR")
    results: dict[str, list[Coded]] = {name: [] for name in coders}
    for round_index in range(-1, num_rounds):  # the first round is warm-up
        names = list(coders) if round_index % 2 else list(coders)[::-1]
        for name in names:
            coded = coders[name]()
            if round_index >= 0:
                results[name].append(coded)
    return results


def rows(matrix: str, weight: Weights, results: dict[str, list[Coded]]) -> list[dict[str, Any]]:
    megabytes = 2 * weight.size / 1e6
    return [
        {
            "matrix": matrix,
            "method": name,
            "bits_per_weight": round(runs[0].bits, 4),
            "error": round(runs[0].error, 4),
            "megabytes_per_second": round(megabytes / statistics.median(run.seconds for run in runs), 2),
        }
        for name, runs in results.items()
    ]


def ratio(results: dict[str, list[Coded]], our_method: str, peer: str) -> float:
    pairs = zip(results[our_method], results[peer], strict=True)
    return round(statistics.median(theirs.seconds / mine.seconds for mine, theirs in pairs), 2)


def decode_speed(matrix: AstcMatrix) -> float:
    started = process_time()
    decode_matrix(matrix)
    return round(2 * np.prod(matrix.shape) / 1e6 / (process_time() - started), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code; claims nothing")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL

    decoded = decoding(sizes)
    table: list[dict[str, Any]] = []
    results = {}
    for name, make in (("gaussian", gaussian), ("heavy", heavy_tailed)):
        weight = make(sizes.side)
        results[name] = compare(weight, ["FASTEST", "FAST", "MEDIUM"], sizes.rounds)
        table += rows(f"{name} {sizes.side}", weight, results[name])
        small = make(sizes.small_side)
        table += rows(f"{name} {sizes.small_side}", small, compare(small, ["MEDIUM", "THOROUGH"], 1))
    gauss, heavy = results["gaussian"], results["heavy"]
    figures = {
        "decode_mismatches": decoded.num_mismatches,
        "values_decoded": decoded.num_values,
        "gaussian_error": round(gauss["ours"][0].error, 4),
        "heavy_error": round(heavy["ours"][0].error, 4),
        "bits_per_weight": round(gauss["ours"][0].bits, 4),
        "encode_ratio": ratio(gauss, "ours", "astcenc MEDIUM"),
        "medium_gaussian_error": round(gauss["astcenc MEDIUM"][0].error, 4),
        "medium_heavy_error": round(heavy["astcenc MEDIUM"][0].error, 4),
        "medium_heavy_error_no_db_limit": round(heavy["astcenc MEDIUM, no dB limit"][0].error, 4),
        "medium_heavy_error_rotated": round(heavy["astcenc MEDIUM, matrix rotated"][0].error, 4),
        "encode_ratio_heavy": ratio(heavy, "ours", "astcenc MEDIUM"),
        "encode_ratio_heavy_no_db_limit": ratio(heavy, "ours", "astcenc MEDIUM, no dB limit"),
        "encode_ratio_heavy_rotated": ratio(heavy, "ours", "astcenc MEDIUM, matrix rotated"),
        "decode_megabytes_per_second": decode_speed(encode_matrix(gaussian(sizes.side), AstcConfig(rotation=None))),
    }
    report = {
        "figures": figures,
        "rows": table,
        "peer": "ARM astcenc through astc-encoder-py, one thread",
        "setting": {
            **vars(sizes),
            "seed": SEED,
            "threads": 1,
            "clock": "CPU time of the process",
            "astc_encoder_py": astc_encoder.__version__,
            "numpy": np.__version__,
            "machine": platform.machine(),
        },
    }
    if not options.quick:
        write_json(REPORT, report)
    if not options.json:
        for row in table:
            print(
                "{matrix:14} {method:42} {bits_per_weight:7} bits  error {error:.4f}  {megabytes_per_second:8} MB/s".format(
                    **row
                )
            )
        for key, value in figures.items():
            print(f"{key:36} {value}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
