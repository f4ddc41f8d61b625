"""The C interface (source/abi.h) through ctypes. Imports no tensor library."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from openafm.core.native_build import NativeBuildError
from openafm.runtime.native.build import built_library

VERSION = 13


class MatrixStruct(Structure):
    """OaMatrix."""

    _fields_ = [
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("kind", c_int32),
        ("group", c_int32),
        ("has_minimum", c_int32),
        ("num_outputs", c_int32),
        ("num_inputs", c_int32),
    ]


class LowRankStruct(Structure):
    """OaLowRank."""

    _fields_ = [("a", c_void_p), ("b", c_void_p), ("rank", c_int32), ("bits", c_int32), ("scale", c_float)]


class FeedForwardStruct(Structure):
    """OaFeedForward."""

    _fields_ = [(name, MatrixStruct) for name in ("gate", "up", "down")]


class LayerStruct(Structure):
    """OaLayer."""

    _fields_ = [
        *((name, MatrixStruct) for name in ("query", "key", "value", "output", "router")),
        ("feed_forwards", POINTER(FeedForwardStruct)),
        *((name, c_void_p) for name in ("attention_norm", "feed_forward_norm", "query_norm", "key_norm", "track_norm")),
        *((name, c_int32) for name in ("source", "rotary", "window", "num_experts", "num_chosen")),
        ("soft_cap", c_float),
    ]


class ModelStruct(Structure):
    """OaConfig."""

    _fields_ = [
        *(
            (name, c_int32)
            for name in (
                *("vocab_size", "dim", "num_layers", "num_heads", "num_kv_heads", "head_dim", "hidden_dim"),
                *("num_prefill_layers", "num_rotaries", "num_tracks", "block_depth"),
            )
        ),
        *((name, c_float) for name in ("track_divisor", "track_norm_eps", "norm_eps", "qk_norm_eps")),
        ("norm_before_position", c_int32),
        ("interleaved", c_int32),
        ("float_cache", c_int32),
        ("level_zero", c_float),
        ("frequencies", c_void_p),
        ("amplitudes", c_void_p),
        ("final_norm", c_void_p),
        ("embedding", MatrixStruct),
        ("head", MatrixStruct),
        ("layers", POINTER(LayerStruct)),
    ]


_STEP = (c_int32, *(c_void_p,) * 6, c_int32, c_void_p, c_void_p, c_void_p)

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "oa_version": (c_int32, ()),
    "oa_kernels": (c_char_p, (c_int32,)),
    "oa_model_new": (c_void_p, (POINTER(ModelStruct), c_int32, c_char_p)),
    "oa_model_free": (None, (c_void_p,)),
    "oa_cache_new": (c_void_p, (c_void_p,)),
    "oa_cache_fork": (c_void_p, (c_void_p, c_int64)),
    "oa_cache_free": (None, (c_void_p,)),
    "oa_cache_bytes": (c_int64, (c_void_p, c_int64)),
    "oa_cache_save": (None, (c_void_p, c_int64, c_void_p)),
    "oa_cache_load": (c_int32, (c_void_p, c_int64, c_void_p)),
    "oa_cache_pages": (c_int64, (c_void_p, c_void_p)),
    "oa_step": (c_int32, (c_void_p, *_STEP)),
    "oa_states": (None, (c_void_p, c_int32, c_void_p)),
    "oa_pack_panels": (None, (c_void_p, c_int32, c_int32, c_void_p)),
    "oa_pack_groups": (None, (c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p)),
    "oa_pack_bfloat16": (None, (c_void_p, c_int32, c_int32, c_void_p)),
    "oa_pack_float32": (None, (c_void_p, c_int32, c_int32, c_void_p)),
    "oa_product": (None, (c_void_p, POINTER(MatrixStruct), POINTER(LowRankStruct), c_void_p, c_int32, c_void_p)),
    "oa_tower_new": (c_void_p, (c_int32, c_char_p)),
    "oa_tower_free": (None, (c_void_p,)),
    "oa_tower_norm": (None, (c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_float, c_void_p)),
    "oa_tower_product": (c_int32, (c_void_p, POINTER(MatrixStruct), c_int32, c_void_p, c_int32, c_void_p)),
    "oa_tower_feed_forward": (
        c_int32,
        (c_void_p, POINTER(MatrixStruct), POINTER(MatrixStruct), c_void_p, c_void_p, c_float, c_void_p, c_int32, c_void_p),
    ),
    "oa_tower_attend": (c_int32, (c_void_p, c_void_p, *(c_int32,) * 5, c_void_p)),
    "oa_row": (None, (POINTER(MatrixStruct), c_int32, c_void_p)),
    "oa_round": (None, (c_void_p, c_void_p, c_int32, c_void_p, POINTER(c_float), POINTER(c_int32))),
    "oa_norm": (None, (c_void_p, c_void_p, c_void_p, c_int32, c_float, c_void_p)),
    "oa_swiglu": (None, (c_void_p, c_void_p, c_void_p, c_int32)),
    "oa_attend": (c_int32, (c_void_p, c_void_p, c_int32, c_int32, c_void_p, c_void_p, c_int32, c_void_p)),
}


def open_library(path: Path) -> ctypes.CDLL:
    """Load a compiled library and declare its functions.

    Raises:
        NativeBuildError: the library cannot be loaded or has another version.
    """
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise NativeBuildError(f"{path} cannot be loaded ({error}); delete it to compile it again") from error
    if library.oa_version() != VERSION:
        raise NativeBuildError(
            f"{path} is version {library.oa_version()}, expected {VERSION}; delete it to compile it again"
        )
    return library


@cache
def native_library() -> ctypes.CDLL:
    """Return the library of this machine, compiling it if needed.

    Raises:
        NativeBuildError: it cannot be compiled or loaded.
    """
    return open_library(built_library().path)


def kernel_names(library: ctypes.CDLL) -> list[str]:
    """Return the kernel sets that this processor supports, best first."""
    names: list[str] = []
    while (name := library.oa_kernels(len(names))) is not None:
        names.append(name.decode())
    return names
