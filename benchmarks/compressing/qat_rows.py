"""Rows of 2-bit quantization-aware training: evaluated on the deployed decoder, from the tensors of a bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from compressing.rows import Compressed, Row, Setting
from compressing.trained import train_further

from openafm.compression.config import AbsmaxClip, OctavClip, QATConfig, UnbalancedLevels
from openafm.compression.deploy import build_decoder, packed_tensors
from openafm.compression.low_bit import layer_linears

WEIGHTS_ONLY = QATConfig(embedding="float32", activations="float32", kv="float32")
ARMS = {
    "QAT 2 bits, absmax (max/1.5) per tensor": replace(WEIGHTS_ONLY, clip=AbsmaxClip()),
    "QAT 2 bits, absmax (max/1.5) per row": replace(WEIGHTS_ONLY, clip=AbsmaxClip(), granularity="row"),
    "QAT 2 bits, OCTAV per tensor": replace(WEIGHTS_ONLY, clip=OctavClip()),
    "QAT 2 bits, Newton per tensor": WEIGHTS_ONLY,
    "QAT 2 bits, Newton per row": replace(WEIGHTS_ONLY, granularity="row"),
    "QAT 2 bits, Newton per tensor, unbalanced set": replace(WEIGHTS_ONLY, levels=UnbalancedLevels()),
    "QAT 2 bits, Newton per tensor, with embedding 4, activations 8, KV 8": QATConfig(),
}


def qat_rows() -> list[Row]:
    return [Row(method=method, of="layers", against="control", compress=_arm(config)) for method, config in ARMS.items()]


def _arm(config: QATConfig) -> Callable[[Setting], Compressed]:
    def compress(setting: Setting) -> Compressed:
        trained = train_further(setting.base, setting.data, setting.size, config)
        tensors = packed_tensors(trained)
        decoder = build_decoder(trained.config, config.numerics, tensors)
        stored = [tensors[f"{name}.weight{part}"] for name in layer_linears(trained) for part in ("", ".scale")]
        num_weights = sum(linear.in_dim * linear.out_dim for linear in layer_linears(trained).values())
        return Compressed(decoder=decoder, bits_per_weight=8 * sum(tensor.nbytes for tensor in stored) / num_weights)

    return compress
