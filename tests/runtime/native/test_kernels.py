"""All kernels of all instruction sets that this processor supports, against double precision.

Shapes: N rows, R outputs, I inputs, K rank, V vocabulary, D model dim, G groups, L keys, C head dim.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openafm.core.native_build import NativeBuildError, find_compiler
from openafm.runtime.native.layout import packed_codes as layout_of_codes
from openafm.runtime.native.library import LowRankStruct, MatrixStruct, ModelStruct, kernel_names, native_library
from openafm.runtime.native.matrix_layout import MatrixLayout

Float = NDArray[np.float32]
Double = NDArray[np.float64]
PANEL_ROWS, STEP_INPUTS = 64, 16
SMALLEST = np.float32(1.17549435e-38)
MANY_ROWS = (1, 2, 3, 5, 7, 11, 12, 13, 24, 30, 40, 130)


def _names() -> list[str]:
    try:
        find_compiler()
    except NativeBuildError:
        return []
    return kernel_names(native_library())


NAMES = _names()
every_kernel = pytest.mark.parametrize("name", NAMES or [pytest.param("", marks=pytest.mark.skip(reason="no C++ compiler"))])
kernel_of_any = st.sampled_from(NAMES or [""])
needs_compiler = pytest.mark.skipif(not NAMES, reason="no C++ compiler")


@dataclass(frozen=True)
class Adapter:
    a_KI: NDArray[Any]
    b_RK: NDArray[Any]
    scale: float


class Kernels:
    """The kernels of one instruction set, with numpy arrays."""

    def __init__(self, name: str, zero: float = 1.5, num_threads: int = 1, *, float_cache: bool = False) -> None:
        self.library = native_library()
        self._config = ModelStruct(level_zero=zero, float_cache=float_cache)
        self._model = self.library.oa_model_new(ctypes.byref(self._config), num_threads, name.encode())
        assert self._model

    def __del__(self) -> None:
        self.library.oa_model_free(self._model)

    def product(self, codes_RI: NDArray[np.uint8], scales_R: Float, x_NI: Float, adapter: Adapter | None = None) -> Float:
        num_outputs, num_inputs = codes_RI.shape
        num_panels = -(-num_outputs // PANEL_ROWS)
        panels = np.full((num_panels, -(-num_inputs // STEP_INPUTS), PANEL_ROWS * STEP_INPUTS // 4), 255, np.uint8)
        parts_RP4 = codes_RI.reshape(num_outputs, -1, 4) << np.array([0, 2, 4, 6], np.uint8)
        stored = np.ascontiguousarray(parts_RP4.sum(-1, dtype=np.uint8))
        self.library.oa_pack_panels(stored.ctypes.data, num_outputs, num_inputs, panels.ctypes.data)
        scales = np.zeros(num_panels * PANEL_ROWS, np.float32)
        scales[:num_outputs] = scales_R
        matrix = MatrixStruct(
            codes=panels.ctypes.data, scales=scales.ctypes.data, num_outputs=num_outputs, num_inputs=num_inputs
        )
        low_rank = LowRankStruct()
        if adapter is not None:
            rank = len(adapter.a_KI)
            b = np.zeros((num_panels * PANEL_ROWS, rank), adapter.b_RK.dtype)
            b[:num_outputs] = adapter.b_RK
            b = np.ascontiguousarray(b.reshape(num_panels, PANEL_ROWS, rank).transpose(0, 2, 1))
            low_rank = LowRankStruct(
                a=adapter.a_KI.ctypes.data, b=b.ctypes.data, rank=rank, bits=8 * b.itemsize, scale=adapter.scale
            )
        x_NI, y_NR = np.ascontiguousarray(x_NI), np.full((len(x_NI), num_outputs), np.nan, np.float32)
        self.library.oa_product(self._model, matrix, low_rank, x_NI.ctypes.data, len(x_NI), y_NR.ctypes.data)
        return y_NR

    def matrix(
        self, weights: str, tensors: dict[str, NDArray[Any]], shape: tuple[int, int]
    ) -> tuple[MatrixStruct, list[Any]]:
        """Return a packed matrix of the bundle tensors "", ".scale", ".minimum", and the arrays that it points to."""
        layout = MatrixLayout(
            name="m", num_outputs=shape[0], num_inputs=shape[1], weights=weights, stored=weights, tensor="m.weight"
        )
        scales = np.zeros(layout.num_panels * PANEL_ROWS, np.float32)
        if layout.has_row_scales:
            scales[: shape[0]] = tensors[".scale"]
        packed = layout_of_codes(layout, {f"m.weight{suffix}": array for suffix, array in tensors.items()}, self.library)
        struct = MatrixStruct(
            codes=packed.ctypes.data,
            scales=scales.ctypes.data if layout.has_row_scales else None,
            kind=layout.kind,
            group=layout.group,
            has_minimum=layout.has_minimum,
            num_outputs=shape[0],
            num_inputs=shape[1],
        )
        return struct, [packed, scales]

    def multiply(self, matrix: MatrixStruct, x_NI: Float) -> Float:
        x_NI, y_NR = np.ascontiguousarray(x_NI), np.full((len(x_NI), matrix.num_outputs), np.nan, np.float32)
        self.library.oa_product(self._model, ctypes.byref(matrix), None, x_NI.ctypes.data, len(x_NI), y_NR.ctypes.data)
        return y_NR

    def rows(self, matrix: MatrixStruct) -> Float:
        y_RI = np.full((matrix.num_outputs, matrix.num_inputs), np.nan, np.float32)
        for row in range(matrix.num_outputs):
            self.library.oa_row(ctypes.byref(matrix), row, y_RI[row].ctypes.data)
        return y_RI

    def round(self, x_I: Float) -> tuple[NDArray[np.int8], np.float32, int]:
        integers_I = np.full(-(-len(x_I) // 64) * 64, 99, np.int8)
        scale, total = ctypes.c_float(), ctypes.c_int32()
        self.library.oa_round(
            self._model, x_I.ctypes.data, len(x_I), integers_I.ctypes.data, ctypes.byref(scale), ctypes.byref(total)
        )
        assert not integers_I[len(x_I) :].any()
        return integers_I[: len(x_I)], np.float32(scale.value), total.value

    def norm(self, x_D: Float, weight_D: Float, eps: float) -> Float:
        y_D = np.full_like(x_D, np.nan)
        self.library.oa_norm(self._model, x_D.ctypes.data, weight_D.ctypes.data, len(x_D), eps, y_D.ctypes.data)
        return y_D

    def swiglu(self, gate_I: Float, up_I: Float) -> Float:
        y_I = gate_I.copy()
        self.library.oa_swiglu(self._model, y_I.ctypes.data, up_I.ctypes.data, len(y_I))
        return y_I

    def attend(self, q_NC: Float, k_LC: Float, v_LC: Float) -> Float:
        q_NC, y_NC = np.ascontiguousarray(q_NC), np.full(q_NC.shape, np.nan, np.float32)
        assert not self.library.oa_attend(
            self._model, q_NC.ctypes.data, *q_NC.shape, k_LC.ctypes.data, v_LC.ctypes.data, len(k_LC), y_NC.ctypes.data
        )
        return y_NC


def _rounded(x_NI: Float) -> tuple[Double, Double]:
    """Return rows rounded by the numerics: integers and a scale for each row."""
    scale_N1 = np.maximum(np.abs(x_NI).max(-1, keepdims=True, initial=0) / np.float32(127), SMALLEST)
    return np.rint(x_NI / scale_N1).astype(np.float64), scale_N1.astype(np.float64)


def _rounded_keys(x_LC: Float) -> Double:
    exact_L1 = np.clip(np.abs(x_LC).max(-1, keepdims=True) / np.float32(127), 2.0**-24, 65504.0).astype(np.float16)
    scale_L1 = exact_L1.astype(np.float32)
    return np.clip(np.rint(x_LC / scale_L1), -127, 127).astype(np.float64) * scale_L1.astype(np.float64)


def _product(codes_RI: NDArray[np.uint8], scales_R: Float, zero: float, x_NI: Float) -> Double:
    integers_NI, scale_N1 = _rounded(x_NI)
    return integers_NI @ (codes_RI - zero).T * scale_N1 * scales_R.astype(np.float64)


def _close(y: Float, expected: Double, bound: Any) -> None:
    error = np.abs(y.astype(np.float64) - expected)
    assert np.isfinite(y).all()
    assert (error <= bound).all(), f"off by {np.max(error / np.maximum(bound, 1e-300)):.3g} times the bound"


def _same_bits(a: Float, b: Float) -> None:
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(
    kernel_of_any,
    st.integers(1, 200),
    st.integers(1, 90),
    st.integers(0, 40),
    st.sampled_from([1.5, 2.0]),
    st.integers(-27, 26),
    st.integers(0, 2**31),
)
def test_products_are_exact_integer_products(
    name: str, num_outputs: int, num_quads: int, num_rows: int, zero: float, exponent: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    codes_RI = draw.integers(0, 4, (num_outputs, 4 * num_quads), dtype=np.uint8)
    scales_R = draw.uniform(0.5, 2, num_outputs).astype(np.float32) * np.float32(10.0 ** (exponent // 3))
    x_NI = (draw.standard_normal((num_rows, 4 * num_quads)) * 10.0**exponent).astype(np.float32)
    expected_NR = _product(codes_RI, scales_R, zero, x_NI)
    y_NR = Kernels(name, zero).product(codes_RI, scales_R, x_NI)
    _close(y_NR, expected_NR, 2.5e-7 * np.abs(expected_NR) + 1e-37)


@every_kernel
@pytest.mark.parametrize("zero", [1.5, 2.0])
@pytest.mark.parametrize("num_rows", [1, 2, 13])
def test_the_largest_sums_do_not_overflow(name: str, zero: float, num_rows: int) -> None:
    for code, sign in ((3, 1), (3, -1), (0, 1), (0, -1)):
        codes_RI = np.full((5, 44_032), code, np.uint8)
        x_NI = np.full((num_rows, 44_032), sign * 5.0, np.float32)
        y_NR = Kernels(name, zero).product(codes_RI, np.ones(5, np.float32), x_NI)
        _close(y_NR, _product(codes_RI, np.ones(5, np.float32), zero, x_NI), 1e-6 * 44_032 * 5)


@every_kernel
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(1, 4), (17, 36), (130, 256), (65, 6656)])
def test_a_row_does_not_depend_on_the_batch(name: str, num_outputs: int, num_inputs: int) -> None:
    draw = np.random.default_rng(num_inputs)
    codes_RI = draw.integers(0, 4, (num_outputs, num_inputs), dtype=np.uint8)
    scales_R = draw.uniform(0.01, 0.02, num_outputs).astype(np.float32)
    x_NI = draw.standard_normal((max(MANY_ROWS), num_inputs)).astype(np.float32)
    x_NI[4] = 0
    x_NI[5] *= 1e-40
    x_NI[6] *= 1e30
    adapter = Adapter(
        draw.standard_normal((5, num_inputs)).astype(np.float16),
        draw.standard_normal((num_outputs, 5)).astype(np.float16),
        0.5,
    )
    one, many = Kernels(name), Kernels(name, num_threads=3)
    for beside in (None, adapter):
        alone_NR = np.concatenate([one.product(codes_RI, scales_R, x_NI[n : n + 1], beside) for n in range(len(x_NI))])
        assert not alone_NR[4].any()
        for num_rows in MANY_ROWS:
            _same_bits(many.product(codes_RI, scales_R, x_NI[:num_rows], beside), alone_NR[:num_rows])


@every_kernel
@pytest.mark.parametrize("precision", [np.float16, np.float32])
@pytest.mark.parametrize("rank", [1, 4, 32])
def test_an_adapter_adds_to_a_product(name: str, precision: Any, rank: int) -> None:
    draw = np.random.default_rng(rank)
    num_outputs, num_inputs = 100, 1056
    codes_RI = draw.integers(0, 4, (num_outputs, num_inputs), dtype=np.uint8)
    scales_R = draw.uniform(0.01, 0.02, num_outputs).astype(np.float32)
    x_NI = draw.standard_normal((4, num_inputs)).astype(np.float32)
    adapter = Adapter(
        (draw.standard_normal((rank, num_inputs)) / 30).astype(precision),
        (draw.standard_normal((num_outputs, rank)) * 10.0 ** draw.integers(-7, 1, (num_outputs, 1))).astype(precision),
        0.5,
    )
    a_KI, b_RK = adapter.a_KI.astype(np.float64), adapter.b_RK.astype(np.float64)
    expected_NR = _product(codes_RI, scales_R, 1.5, x_NI) + 0.5 * (x_NI.astype(np.float64) @ a_KI.T) @ b_RK.T
    bound_NR = 1e-6 * (1 + np.abs(x_NI).astype(np.float64) @ np.abs(a_KI).T @ np.abs(b_RK).T)
    _close(Kernels(name).product(codes_RI, scales_R, x_NI, adapter), expected_NR, bound_NR)


@needs_compiler
@settings(max_examples=80, deadline=None)
@given(kernel_of_any, st.integers(1, 300), st.integers(-44, 37), st.integers(0, 2**31))
def test_rounding_is_bit_exact(name: str, size: int, exponent: int, seed: int) -> None:
    x_I = (np.random.default_rng(seed).standard_normal(size) * 10.0**exponent).astype(np.float32)
    integers_I, scale, total = Kernels(name).round(x_I)
    expected_I, expected_scale = _rounded(x_I[None])
    assert scale == expected_scale[0, 0]
    np.testing.assert_array_equal(integers_I, expected_I[0])
    assert total == expected_I.sum()


@every_kernel
def test_ties_are_rounded_to_even(name: str) -> None:
    x_I = np.concatenate([np.arange(-126.5, 127.0), [127.0], np.zeros(20)]).astype(np.float32)
    integers_I, scale, _ = Kernels(name).round(x_I)
    assert scale == 1
    np.testing.assert_array_equal(integers_I, np.rint(x_I))
    assert (integers_I[:253] % 2 == 0).all()


@every_kernel
def test_a_row_of_zeros_is_rounded(name: str) -> None:
    integers_I, scale, total = Kernels(name).round(np.zeros(33, np.float32))
    assert not integers_I.any()
    assert (scale, total) == (SMALLEST, 0)


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(kernel_of_any, st.integers(1, 300), st.integers(-18, 18), st.integers(0, 2**31))
def test_norms(name: str, size: int, exponent: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    x_D = (draw.standard_normal(size) * 10.0**exponent).astype(np.float32)
    weight_D = draw.uniform(0.1, 3, size).astype(np.float32)
    factor = np.float32(1 / np.sqrt(np.mean(x_D.astype(np.float64) ** 2) + np.float64(np.float32(1e-5))))
    # The factor to the nearest, and the products in this order: bit-identical, except at a tie of the factor.
    y_D = Kernels(name).norm(x_D, weight_D, 1e-5)
    _close(y_D, (x_D * factor * weight_D).astype(np.float64), 1.3e-7 * np.abs(x_D * factor * weight_D))


@every_kernel
def test_a_norm_of_zeros_is_zero(name: str) -> None:
    assert not Kernels(name).norm(np.zeros(40, np.float32), np.ones(40, np.float32), 1e-6).any()


@every_kernel
def test_swiglu(name: str) -> None:
    draw = np.random.default_rng(0)
    edges = [0, -0.0, 1e-40, -1e-40, 20, -20, 87, -87, 88, -88, 89, -89, 1e4, -1e4, 1e30, -1e30]
    gate_I = np.concatenate([draw.standard_normal(1003) * 4, edges]).astype(np.float32)
    up_I = draw.standard_normal(len(gate_I)).astype(np.float32)
    exact_I = gate_I.astype(np.float64)
    with np.errstate(over="ignore"):
        expected_I = exact_I / (1 + np.exp(-exact_I)) * up_I
    _close(Kernels(name).swiglu(gate_I, up_I), expected_I, 4e-7 * np.abs(expected_I) + 1e-34)


def _attention(q_NC: Float, k_LC: Float, v_LC: Float) -> tuple[Double, Double]:
    """Return attention over the stored keys, and the tolerance for fp32."""
    q, k, v = q_NC.astype(np.float64), _rounded_keys(k_LC), _rounded_keys(v_LC)
    scores_NL = q @ k.T / np.sqrt(q.shape[-1])
    weights_NL = np.exp(scores_NL - scores_NL.max(-1, keepdims=True))
    weights_NL /= weights_NL.sum(-1, keepdims=True)
    off_N1 = 1e-6 * (1 + (np.abs(q) @ np.abs(k).T).max(-1, keepdims=True) / np.sqrt(q.shape[-1]))
    return weights_NL @ v, np.minimum(off_N1, 1) * (weights_NL @ np.abs(v) + 0.01 * np.abs(v).max())


@needs_compiler
@settings(max_examples=80, deadline=None)
@given(
    kernel_of_any,
    st.integers(1, 200),
    st.sampled_from([1, 2, 3, 8]),
    st.sampled_from([4, 32, 48, 64, 100, 128]),
    st.sampled_from([0.01, 1.0, 1.0, 10.0]),
    st.sampled_from([1e-6, 1.0, 1e4]),
    st.integers(0, 2**31),
)
def test_attention(
    name: str, num_keys: int, num_queries: int, head_dim: int, sharpness: float, size: float, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    q_NC = (draw.standard_normal((num_queries, head_dim)) * sharpness).astype(np.float32)
    k_LC, v_LC = (draw.standard_normal((num_keys, head_dim)).astype(np.float32) for _ in range(2))
    v_LC *= np.float32(size)
    k_LC[num_keys // 2] = 0
    kernels = Kernels(name)
    y_NC = kernels.attend(q_NC, k_LC, v_LC)
    _close(y_NC, *_attention(q_NC, k_LC, v_LC))
    for n in range(num_queries):
        _same_bits(kernels.attend(q_NC[n : n + 1], k_LC, v_LC)[0], y_NC[n])


@every_kernel
@pytest.mark.parametrize("head_dim", [32, 48, 128])
def test_attention_with_small_and_large_scores(name: str, head_dim: int) -> None:
    draw = np.random.default_rng(head_dim)
    k_LC, v_LC = (draw.standard_normal((150, head_dim)).astype(np.float32) for _ in range(2))
    q_NC = np.stack([k_LC[70] * 1e3, -k_LC[3] * 1e6, np.zeros(head_dim, np.float32), k_LC[149] * 1e-30])
    _close(Kernels(name).attend(q_NC, k_LC, v_LC), *_attention(q_NC, k_LC, v_LC))
    alone_1C = Kernels(name).attend(q_NC, k_LC[:1], v_LC[:1])
    _close(alone_1C, np.repeat(_rounded_keys(v_LC[:1]), 4, 0), 1e-5 * np.abs(v_LC[0]).max())


@every_kernel
@pytest.mark.parametrize("num_keys", [130, 1100])
@pytest.mark.parametrize("head_dim", [64, 256, 512, 1024])
def test_the_largest_sums_of_attention_do_not_overflow(name: str, head_dim: int, num_keys: int) -> None:
    """All integers of queries, keys, weights and values have the largest magnitude, with both signs."""
    draw, ones_C = np.random.default_rng(head_dim), np.ones(head_dim, np.float32)
    k_LC, v_LC = (draw.choice(np.float32([-1, 1]), (num_keys, 1)) * ones_C for _ in range(2))
    q_NC = np.float32([[0.1], [-0.1], [1e-6]]) * ones_C
    _close(Kernels(name).attend(q_NC, k_LC, v_LC), _attention(q_NC, k_LC, v_LC)[0], 1e-4)


@every_kernel
def test_the_highest_score_may_come_last(name: str) -> None:
    k_LC = np.linspace(-20, 20, 200, dtype=np.float32)[:, None] * np.ones(64, np.float32)
    v_LC = np.random.default_rng(0).standard_normal((200, 64)).astype(np.float32)
    for q_NC in (np.ones((1, 64), np.float32), -np.ones((1, 64), np.float32)):
        _close(Kernels(name).attend(q_NC, k_LC, v_LC), *_attention(q_NC, k_LC, v_LC))


@every_kernel
@pytest.mark.parametrize(("head_dim", "num_keys"), [(64, 1025), (128, 3000), (256, 1100), (48, 1100)])
def test_long_contexts_add_little_to_the_error_of_8_bits(name: str, head_dim: int, num_keys: int) -> None:
    draw, kernels = np.random.default_rng(num_keys), Kernels(name)
    q_NC, k_LC, v_LC = (draw.standard_normal((n, head_dim)).astype(np.float32) for n in (5, num_keys, num_keys))
    k_LC *= np.float32(2)  # some keys matter more than others
    y_NC, exact_NC = kernels.attend(q_NC, k_LC, v_LC), _attention(q_NC, k_LC, v_LC)[0]
    scores_NL = q_NC.astype(np.float64) @ k_LC.T.astype(np.float64) / np.sqrt(head_dim)
    weights_NL = np.exp(scores_NL - scores_NL.max(-1, keepdims=True))
    unrounded_NC = weights_NL / weights_NL.sum(-1, keepdims=True) @ v_LC.astype(np.float64)
    assert np.abs(y_NC - exact_NC).max() < 0.03 * np.abs(exact_NC - unrounded_NC).max()
    for n in range(len(q_NC)):
        _same_bits(kernels.attend(q_NC[n : n + 1], k_LC, v_LC)[0], y_NC[n])


def _share_of_exact(y: Float, exact: Double) -> float:
    return float((y == exact.astype(np.float32)).mean())


@every_kernel
def test_inputs_of_roundings_are_correctly_rounded(name: str) -> None:
    """Nearly all are bit-exact, so that engines round to the same integers. With fp32 only half of them are."""
    draw, kernels = np.random.default_rng(0), Kernels(name)
    gate_I, up_I = (draw.standard_normal(20_000).astype(np.float32) * np.float32(3) for _ in range(2))
    exact_I = gate_I.astype(np.float64)
    assert _share_of_exact(kernels.swiglu(gate_I, up_I), exact_I / (1 + np.exp(-exact_I)) * up_I) > 0.999
    for head_dim in (48, 64, 128):
        for num_keys in (9, 200, 900):
            q_NC, k_LC, v_LC = (draw.standard_normal((n, head_dim)).astype(np.float32) for n in (16, num_keys, num_keys))
            assert _share_of_exact(kernels.attend(q_NC, k_LC, v_LC), _attention(q_NC, k_LC, v_LC)[0]) > 0.95
    codes_RI = draw.integers(0, 4, (100, 1056), dtype=np.uint8)
    scales_R, x_NI = draw.uniform(0.01, 0.02, 100).astype(np.float32), draw.standard_normal((8, 1056)).astype(np.float32)
    a_KI, b_RK = (draw.standard_normal(shape).astype(np.float16) for shape in ((6, 1056), (100, 6)))
    added_NR = (x_NI.astype(np.float64) @ a_KI.astype(np.float64).T @ b_RK.astype(np.float64).T * 0.5).astype(np.float32)
    y_NR = kernels.product(codes_RI, scales_R, x_NI, Adapter(a_KI, b_RK, 0.5))
    assert _share_of_exact(y_NR, (kernels.product(codes_RI, scales_R, x_NI) + added_NR).astype(np.float64)) > 0.999


@every_kernel
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 3.4e38, -3.4e38])
def test_non_finite_inputs_affect_only_their_row(name: str, odd: float) -> None:
    """The row itself is unspecified; the other rows of the batch must not change."""
    kernels = Kernels(name)
    x_NI = np.ones((3, 100), np.float32)
    x_NI[1, 37] = odd
    codes_RI = np.full((70, 100), 2, np.uint8)
    with np.errstate(all="ignore"):
        kernels.norm(x_NI[1], x_NI[0], 1e-5)
    kernels.swiglu(x_NI[1], x_NI[1])
    y_NR = kernels.product(codes_RI, np.ones(70, np.float32), x_NI)
    assert (y_NR[[0, 2]] == 50).all()
    for head_dim in (60, 64):
        q_NC, kv_LC = np.ones((3, head_dim), np.float32), np.ones((70, head_dim), np.float32)
        q_NC[1, 5] = odd
        y_NC = kernels.attend(q_NC, kv_LC, kv_LC)
        assert np.abs(y_NC[[0, 2]] - 1).max() < 1e-3
        kv_LC[66, 3] = odd
        kernels.attend(q_NC, kv_LC, np.ones_like(kv_LC))
        kernels.attend(q_NC, np.ones_like(kv_LC), kv_LC)
