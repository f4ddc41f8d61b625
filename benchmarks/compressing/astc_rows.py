"""Rows of ASTC 6x6: the report's literal recipe, ours, and ours calibrated for the layers' outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from compressing.rows import Compressed, Row, Setting, Values, each_matrix, layer_by_layer
from torch import Tensor

from openafm.compression.astc.config import AstcConfig, LiteralAstcConfig
from openafm.compression.astc.matrix import AstcMatrix, decode_matrix, encode_matrix

AnyAstcConfig: TypeAlias = AstcConfig | LiteralAstcConfig


def astc_rows() -> list[Row]:
    simple = AstcConfig(partitions=1, rotation=None)
    return [
        Row(method="ASTC 6x6, literal recipe", of="layers", compress=_plain(LiteralAstcConfig())),
        Row(method="ASTC 6x6, ours, one partition, no rotation", of="layers", compress=_plain(simple)),
        Row(method="ASTC 6x6, ours", of="layers", compress=_plain(AstcConfig())),
        Row(method="ASTC 6x6, ours, block-GPTQ", of="layers", compress=_calibrated(AstcConfig())),
    ]


def _plain(config: AnyAstcConfig) -> Callable[[Setting], Compressed]:
    def compress(name: str, weight_RC: Tensor) -> Values:
        return _values(encode_matrix(weight_RC.numpy(), config, name=name))

    return lambda setting: each_matrix(setting.base.decoder, compress)


def _calibrated(config: AnyAstcConfig) -> Callable[[Setting], Compressed]:
    def compress(name: str, weight_RC: Tensor, moment_CC: Tensor) -> Values:
        return _values(encode_matrix(weight_RC.numpy(), config, calibration=moment_CC.numpy(), name=name))

    return lambda setting: layer_by_layer(setting, compress)


def _values(matrix: AstcMatrix) -> Values:
    return Values(weight=torch.from_numpy(decode_matrix(matrix)), bits=matrix.num_bits)
