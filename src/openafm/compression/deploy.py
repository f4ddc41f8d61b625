"""Tensors of a bundle from a decoder after quantization-aware training, and the decoder of such a bundle.

Tensors: `<weight>` U8 [R, C / 4] with `<weight>.scale` F32 [] or [R]; groups of 4 and 8 bits as in grouped.py; an ASTC
matrix as in astc/matrix.py; everything else in fp32 or bfloat16. Names are those of the uncompressed decoder's state dict.

Shapes: R outputs, C inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import parametrize

from openafm.compression.config import BalancedLevels, LevelSetConfig, UnbalancedLevels
from openafm.compression.errors import CompressionError
from openafm.compression.group_linear import GroupedProduct, GroupLinear
from openafm.compression.grouped import FORMATS, GroupedMatrix, GroupFormat
from openafm.compression.int4_embedding import quantize_embedding
from openafm.compression.int8_rows import is_vision, with_vision_for_products
from openafm.compression.keys_values import keep_in
from openafm.compression.low_bit import LowBitLinear, RoundedNorm, layer_linears, layer_matrices, replace_linears
from openafm.compression.numerics import Numerics
from openafm.compression.packing import pack_codes, unpack_codes
from openafm.compression.post_training.groups import MinMaxRange
from openafm.compression.qat import FakeQuantLinear
from openafm.models.config import DecoderConfig
from openafm.models.decoder import Decoder
from openafm.models.layers import Linear

Arrays = Mapping[str, NDArray[Any]]
_LEVEL_SETS: dict[str, LevelSetConfig] = {"int2_balanced": BalancedLevels(), "int2_unbalanced": UnbalancedLevels()}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8_per_token": torch.float32}


@dataclass
class FixedRounding:
    """Activation rounding of a deployed model: always on or always off."""

    active: bool


@torch.no_grad()
def packed_tensors(decoder: Decoder) -> dict[str, NDArray[Any]]:
    """Return the tensors of a decoder after quantization-aware training."""
    tensors: dict[str, NDArray[Any]] = {}
    for name, module in decoder.named_modules():
        if isinstance(module, FakeQuantLinear):
            scale = module.scale()
            codes_RC = (module.levels(scale) - module.level_set.levels[0]).to(torch.uint8)
            tensors[f"{name}.weight"] = pack_codes(codes_RC.numpy(), name)
            tensors[f"{name}.weight.scale"] = scale.numpy()
    if parametrize.is_parametrized(decoder, "embedding"):
        master_VD = cast(Any, decoder).parametrizations.embedding.original
        tensors |= quantize_embedding(master_VD.numpy(), MinMaxRange()).tensors("embedding")
    known = {f"{name.removesuffix('.weight')}.clip" for name in tensors} | {"parametrizations.embedding.original"}
    others = {name: weight.numpy() for name, weight in decoder.state_dict().items() if name not in known | tensors.keys()}
    return tensors | others


def build_decoder(config: DecoderConfig, numerics: Numerics, arrays: Arrays, device: torch.device | None = None) -> Decoder:
    """Return the decoder of a bundle's arrays in these numerics. Writable arrays are used without a copy.

    Raises:
        RuntimeError: the arrays do not fit the config.
    """
    with torch.device("meta"):
        decoder = config.build()
    decoder.compute_dtype = _DTYPES[numerics.activations]
    rounding = FixedRounding(numerics.activations == "int8_per_token")
    rest = with_vision_for_products(arrays, numerics)
    if numerics.rounds_vision:
        _put_vision_integers(decoder, rest, device)
    if numerics.weights == "astc_6x6":
        for name, weight in layer_matrices(decoder).items():
            rest[name] = _decoded(name, tuple(weight.shape), rest)
    elif _has_integers(numerics):
        _put_integers(decoder, numerics, rounding, rest, device)
    if numerics.embedding in FORMATS:
        for name in ("embedding", "output.weight"):
            if name in rest:
                matrix = _grouped(name, rest, FORMATS[numerics.embedding], (config.vocab_size, config.dim))
                rest[name] = matrix.dequantize()
    # Arrays widened on reading are writable and not shared, so large models are not copied again.
    owned = {name: array if array.flags.writeable else np.array(array) for name, array in rest.items()}
    weights = {name: torch.from_numpy(array).to(device) for name, array in owned.items()}
    missing = {
        name for name in decoder.state_dict() if not name.endswith((".levels", ".scale", ".minimum"))
    } - weights.keys()
    found = decoder.load_state_dict(weights, strict=False, assign=True)
    if missing or found.unexpected_keys:
        raise RuntimeError(f"missing {sorted(missing)}, unexpected {sorted(found.unexpected_keys)}")
    if rounding.active and numerics.embedding != "bfloat16":
        decoder.norm = RoundedNorm(decoder.norm, rounding)
    keep_in(decoder, numerics.kv)
    return decoder


def _put_integers(
    decoder: Decoder,
    numerics: Numerics,
    rounding: FixedRounding,
    arrays: dict[str, NDArray[Any]],
    device: torch.device | None,
) -> None:
    """Replace the Linears of the layers whose format has integer codes, and remove their arrays."""
    built: dict[str, torch.nn.Module] = {}
    for name, linear in layer_linears(decoder).items():
        format = numerics.weights_of(name)
        if format in _LEVEL_SETS:
            built[name] = _low_bit(name, linear, _LEVEL_SETS[format], rounding, arrays, device)
        elif format in FORMATS:
            matrix = _grouped(f"{name}.weight", arrays, FORMATS[format], (linear.out_dim, linear.in_dim))
            built[name] = GroupLinear(linear, GroupedProduct(matrix, rounding, device))
    replace_linears(decoder, built)


def _put_vision_integers(decoder: Decoder, arrays: dict[str, NDArray[Any]], device: torch.device | None) -> None:
    """Replace the Linears of the vision encoder and its adapter whose inputs are rounded, and remove their arrays."""
    built: dict[str, torch.nn.Module] = {}
    for name, module in decoder.named_modules():
        if isinstance(module, Linear) and is_vision(name) and f"{name}.weight.scale" in arrays:
            matrix = _grouped(f"{name}.weight", arrays, FORMATS["int8_per_row"], (module.out_dim, module.in_dim))
            built[name] = GroupLinear(module, GroupedProduct(matrix, FixedRounding(True), device))
    replace_linears(decoder, built)


def _has_integers(numerics: Numerics) -> bool:
    return any(
        each in FORMATS or each in _LEVEL_SETS for each in (numerics.weights, *(e.weights for e in numerics.exceptions))
    )


def _low_bit(
    name: str,
    linear: Linear,
    level_set: LevelSetConfig,
    rounding: FixedRounding,
    arrays: dict[str, NDArray[Any]],
    device: torch.device | None,
) -> LowBitLinear:
    try:
        packed_RP, scale = arrays.pop(f"{name}.weight"), arrays.pop(f"{name}.weight.scale")
    except KeyError as error:
        raise RuntimeError(f"missing {error}") from error
    packed_shape = (linear.out_dim, linear.in_dim // 4)
    is_packed = packed_RP.dtype == np.uint8 and packed_RP.shape == packed_shape
    if not is_packed or scale.dtype != np.float32 or scale.shape not in ((), (linear.out_dim,)):
        raise RuntimeError(
            f"{name} holds codes {packed_RP.dtype} {packed_RP.shape} and scales {scale.dtype} {scale.shape}, expected "
            f"uint8 {packed_shape} and float32 () or ({linear.out_dim},)"
        )
    levels_RC = torch.from_numpy(unpack_codes(packed_RP)).to(device, torch.float32) + level_set.levels[0]
    return LowBitLinear(linear, levels_RC, torch.from_numpy(np.array(scale)).to(device), rounding)


def _grouped(name: str, arrays: dict[str, NDArray[Any]], format: GroupFormat, shape: tuple[int, int]) -> GroupedMatrix:
    """Return a matrix in groups and remove its arrays."""
    try:
        matrix = GroupedMatrix.from_tensors(name, arrays, format, shape)
    except CompressionError as error:
        raise RuntimeError(str(error)) from error
    for suffix in format.shapes(*shape):
        arrays.pop(name + suffix)
    return matrix


def _decoded(name: str, shape: tuple[int, ...], arrays: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Decode a matrix or stack and remove its arrays; no engine uses a hardware decoder."""
    from openafm.compression.astc.matrix import AstcMatrix, decode_matrix

    own = {key: arrays.pop(key) for key in list(arrays) if key == name or key.startswith(f"{name}.")}
    return decode_matrix(AstcMatrix.from_tensors(name, own, shape))
