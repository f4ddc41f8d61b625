"""Products of groups of 4 and 8 bits, of bfloat16 and of fp32, of all kernel sets, against a plain dequantize-and-multiply.

Shapes: N rows, R outputs, I inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_kernels import MANY_ROWS, NAMES, Kernels, _close, _rounded, _same_bits, every_kernel, kernel_of_any, needs_compiler

from openafm.compression.grouped import FORMATS, GroupedMatrix

Float = NDArray[np.float32]


def random_matrix(draw: np.random.Generator, weights: str, num_outputs: int, num_inputs: int) -> GroupedMatrix:
    """A matrix with the largest and the smallest codes and scales."""
    format = FORMATS[weights]
    low, high = (0, 16) if format.bits == 4 else (-127, 128)
    codes_RI = draw.integers(low, high, (num_outputs, num_inputs)).astype(np.uint8 if format.bits == 4 else np.int8)
    codes_RI[-1] = high - 1
    shapes = format.shapes(num_outputs, num_inputs)
    dtype, shape = shapes[".scale"]
    scale = draw.uniform(0, 0.1, shape).astype(dtype)
    scale[0] = 6e-8  # the least that fp16 holds
    minimum = draw.uniform(-1, 1, shape).astype(np.float16) if format.has_minimum else None
    return GroupedMatrix(format=format, codes_RC=codes_RI, scale=scale, minimum_RG=minimum)


def in_order(matrix: GroupedMatrix, x_NI: Float) -> Float:
    """The exact bits: integer sums of groups, added in order with one rounding each."""
    integers_NI, scale_N1 = _rounded(x_NI)
    levels_RI, scale_N1 = matrix.levels().astype(np.float64), scale_N1.astype(np.float32)
    if not matrix.format.group:
        return (integers_NI @ levels_RI.T).astype(np.float32) * (scale_N1 * matrix.scale)
    total_NR = np.zeros((len(x_NI), len(levels_RI)), np.float32)
    for group in range(matrix.scale.shape[1]):
        columns = slice(group * matrix.format.group, (group + 1) * matrix.format.group)
        sums_NR = integers_NI[:, columns] @ levels_RI[:, columns].T
        total_NR = (sums_NR * matrix.scale[:, group].astype(np.float64) + total_NR).astype(np.float32)
        if matrix.minimum_RG is not None:
            sums_N1 = integers_NI[:, columns].sum(1, keepdims=True)
            total_NR = (sums_N1 * matrix.minimum_RG[:, group].astype(np.float64) + total_NR).astype(np.float32)
    return total_NR * scale_N1


def product(name: str, weights: str, matrix: GroupedMatrix, x_NI: Float, num_threads: int = 1) -> Float:
    kernels = Kernels(name, num_threads=num_threads)
    struct, _held = kernels.matrix(weights, _tensors(matrix), matrix.codes_RC.shape)
    return kernels.multiply(struct, x_NI)


def _tensors(matrix: GroupedMatrix) -> dict[str, NDArray[np.generic]]:
    return {name[1:]: array for name, array in matrix.tensors("m").items()}


@needs_compiler
@settings(max_examples=120, deadline=None)
@given(
    kernel_of_any,
    st.sampled_from(list(FORMATS)),
    st.integers(1, 100),
    st.integers(1, 5),
    st.integers(0, 14),
    st.integers(-20, 20),
    st.integers(0, 2**31),
)
def test_products_are_bit_exact(
    name: str, weights: str, num_outputs: int, num_groups: int, num_rows: int, exponent: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    num_inputs = num_groups * (FORMATS[weights].group or 32)
    matrix = random_matrix(draw, weights, num_outputs, num_inputs)
    x_NI = (draw.standard_normal((num_rows, num_inputs)) * 10.0**exponent).astype(np.float32)
    x_NI[:, :32] = np.abs(x_NI).max(initial=0)
    expected_NR = in_order(matrix, x_NI)
    _same_bits(product(name, weights, matrix, x_NI), expected_NR)
    integers_NI, scale_N1 = _rounded(x_NI)
    exact_NR = integers_NI @ matrix.dequantize().astype(np.float64).T * scale_N1
    _close(expected_NR, exact_NR, 1e-5 * np.abs(integers_NI) @ (np.abs(matrix.dequantize()) + 1e-3).T * scale_N1 + 1e-30)


@every_kernel
@pytest.mark.parametrize("weights", list(FORMATS))
@pytest.mark.parametrize("num_rows", [1, 2, 13])
def test_the_largest_sums_of_groups_do_not_overflow(name: str, weights: str, num_rows: int) -> None:
    num_inputs, format = 12_800, FORMATS[weights]
    ends = (0, 15) if format.bits == 4 else (-127, 127)
    for code in ends:
        codes_RI = np.full((18, num_inputs), code, np.uint8 if format.bits == 4 else np.int8)
        dtype, shape = format.shapes(18, num_inputs)[".scale"]
        matrix = GroupedMatrix(
            format=format,
            codes_RC=codes_RI,
            scale=np.ones(shape, dtype),
            minimum_RG=np.full(shape, 0.5, np.float16) if format.has_minimum else None,
        )
        for sign in (-1, 1):
            x_NI = np.full((num_rows, num_inputs), sign * 5.0, np.float32)
            _same_bits(product(name, weights, matrix, x_NI), in_order(matrix, x_NI))


@every_kernel
@pytest.mark.parametrize(
    "weights", ["int4_group64", "int4_symmetric_group32", "int8_group128", "int8_per_row", "bfloat16", "float32"]
)
def test_a_row_of_any_format_does_not_depend_on_the_batch(name: str, weights: str) -> None:
    draw = np.random.default_rng(0)
    x_NI = draw.standard_normal((max(MANY_ROWS), 384)).astype(np.float32)
    one, many = Kernels(name), Kernels(name, num_threads=3)
    if weights == "bfloat16":
        tensors = {"": draw.integers(0x3C00, 0x3E00, (130, 384)).astype(np.uint16)}
    elif weights == "float32":
        tensors = {"": draw.standard_normal((130, 384)).astype(np.float32)}
    else:
        tensors = _tensors(random_matrix(draw, weights, 130, 384))
    struct, _held = one.matrix(weights, tensors, (130, 384))
    alone_NR = np.concatenate([one.multiply(struct, x_NI[n : n + 1]) for n in range(len(x_NI))])
    for num_rows in MANY_ROWS:
        _same_bits(many.multiply(struct, x_NI[:num_rows]), alone_NR[:num_rows])


@needs_compiler
@settings(max_examples=40, deadline=None)
@given(
    kernel_of_any,
    st.sampled_from(["bfloat16", "float32"]),
    st.integers(1, 70),
    st.integers(1, 90),
    st.integers(1, 13),
    st.integers(0, 2**31),
)
def test_floating_point_weights_multiply_unrounded_inputs(
    name: str, weights: str, num_outputs: int, num_inputs: int, num_rows: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    weight_RI = draw.standard_normal((num_outputs, num_inputs)).astype(np.float32)
    stored_RI: NDArray[Any] = weight_RI
    if weights == "bfloat16":
        stored_RI = (weight_RI.view(np.uint32) >> 16).astype(np.uint16)
        weight_RI = (stored_RI.astype(np.uint32) << 16).view(np.float32)
    x_NI = draw.standard_normal((num_rows, num_inputs)).astype(np.float32)
    kernels = Kernels(name)
    struct, _held = kernels.matrix(weights, {"": stored_RI}, weight_RI.shape)
    bound_NR = 1e-6 * np.abs(x_NI).astype(np.float64) @ np.abs(weight_RI).T.astype(np.float64)
    _close(kernels.multiply(struct, x_NI), x_NI.astype(np.float64) @ weight_RI.T.astype(np.float64), bound_NR)
    _same_bits(kernels.rows(struct), weight_RI)


@pytest.mark.parametrize("weights", list(FORMATS))
def test_rows_are_read_as_the_embedding_is(weights: str) -> None:
    matrix = random_matrix(np.random.default_rng(1), weights, 37, 256)
    if not NAMES:
        pytest.skip("no C++ compiler")
    kernels = Kernels("portable")
    struct, _held = kernels.matrix(weights, _tensors(matrix), matrix.codes_RC.shape)
    _same_bits(kernels.rows(struct), matrix.dequantize())
