"""The encoder: astcenc decodes the same values, and the error is close to the smallest possible."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from astc_oracle import PROFILES, astcenc_decode, astcenc_encode, num_mismatches
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openafm.compression.astc.block_layout import partition_table
from openafm.compression.astc.config import NUM_SPLITS, AstcConfig, LiteralAstcConfig
from openafm.compression.astc.decoder import decode_blocks
from openafm.compression.astc.encoder import ONE_PARTITION, TWO_PARTITIONS, encode_blocks, fit_blocks
from openafm.compression.astc.literal import encode_above_minimum
from openafm.compression.astc.matrix import decode_matrix, encode_matrix
from openafm.compression.astc.partition_search import candidate_seeds, distinct_seeds
from openafm.core.config import ConfigError

PLAIN = AstcConfig(partitions=1, rotation=None)
TWO = AstcConfig(rotation=None)


def unit(values: NDArray[np.float64]) -> NDArray[np.float32]:
    low, high = values.min(), values.max()
    return ((values - low) / (high - low or 1)).astype(np.float32)


def relative_error(weight: NDArray[np.float32], decoded: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(weight - decoded) / np.linalg.norm(weight))


def gaussian(size: int) -> NDArray[np.float32]:
    return np.random.default_rng(2).normal(0, 0.02, (size, size)).astype(np.float32)


def heavy_tailed(size: int) -> NDArray[np.float32]:
    """Student-t with five degrees of freedom, rows and columns scaled by log-normal factors."""
    rng = np.random.default_rng(3)
    rows, columns = np.exp(0.5 * rng.normal(size=(size, 1))), np.exp(0.5 * rng.normal(size=(1, size)))
    return (rng.standard_t(5, (size, size)) * rows * columns).astype(np.float32)


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["normal", "uniform", "two", "outlier", "constant"]),
    st.sampled_from([PLAIN, TWO]),
)
def test_astcenc_reads_what_we_write(seed: int, kind: str, config: AstcConfig) -> None:
    rng = np.random.default_rng(seed)
    values = {
        "normal": lambda: rng.normal(size=(36, 50)),
        "uniform": lambda: rng.random((36, 50)),
        "two": lambda: rng.integers(0, 2, (36, 50)) * 1.0,
        "outlier": lambda: rng.normal(size=(36, 50)) + 50 * (rng.random((36, 50)) < 0.02),
        "constant": lambda: np.repeat(rng.random((1, 50)), 36, 0),
    }[kind]()
    blocks = encode_blocks(unit(values), config)
    ours = decode_blocks(blocks)
    for profile in PROFILES:
        assert num_mismatches(ours, astcenc_decode(blocks, profile)[..., 0]) == 0


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.floats(1e-4, 100))
def test_astcenc_reads_the_literal_recipe(seed: int, size: float) -> None:
    values = np.random.default_rng(seed).normal(0, size, (36, 40)).astype(np.float32)
    coded = encode_above_minimum(values)
    assert num_mismatches(decode_blocks(coded.blocks), astcenc_decode(coded.blocks)[..., 0]) == 0
    assert (coded.minima.astype(np.float32) <= values.min(0)).all()


def test_levels_decode_to_the_values_of_the_fit() -> None:
    x_TN = unit(np.random.default_rng(0).normal(size=(36, 200)))
    fits = fit_blocks(x_TN, TWO)
    assert [fit.format for fit in fits] == [ONE_PARTITION, TWO_PARTITIONS]
    for fit in fits:
        levels_TN = fit.nearest_levels(x_TN[:, fit.index_N])
        decoded_TN = decode_blocks(fit.write(levels_TN)).T.astype(np.float32)
        np.testing.assert_allclose(decoded_TN, fit.values(levels_TN), atol=2**-11)


def test_one_partition_comes_close_to_exhaustive_search() -> None:
    x_TN = unit(np.random.default_rng(4).normal(size=(36, 20)))
    least_N = np.full(20, np.inf)
    for low, high in product(range(0, 256, 3), repeat=2):
        levels = (low + (high - low) * ONE_PARTITION.positions.values) / 255
        least_N = np.minimum(least_N, (np.abs(x_TN[:, :, None] - levels).min(2) ** 2).sum(0))
    found_N = ((x_TN - decode_blocks(encode_blocks(x_TN, PLAIN)).T) ** 2).sum(0)
    assert found_N.sum() < 1.03 * least_N.sum()


def test_candidates_have_the_smallest_ranges() -> None:
    """A block of two distant groups along one of the patterns gets a pattern that separates them."""
    chosen = distinct_seeds()[::5]
    second_TN = partition_table(2)[chosen].T
    x_TN = unit(second_TN * 10 + np.random.default_rng(0).random(second_TN.shape))
    blocks_error = ((x_TN - decode_blocks(encode_blocks(x_TN, TWO)).T) ** 2).mean()
    assert blocks_error < 1e-3
    assert (candidate_seeds(x_TN, 1)[0] == chosen).mean() > 0.95


def test_no_more_candidates_than_ways_to_split_a_block() -> None:
    assert len(distinct_seeds()) == NUM_SPLITS
    assert candidate_seeds(unit(np.random.default_rng(0).normal(size=(36, 2))), NUM_SPLITS).shape == (NUM_SPLITS, 2)
    with pytest.raises(ConfigError, match=r"1 to 521"):
        AstcConfig(num_candidates=NUM_SPLITS + 1)


def test_errors_at_three_and_a_half_bits() -> None:
    for weight, most in ((gaussian(384), 0.205), (heavy_tailed(384), 0.21)):
        for config in (AstcConfig(), AstcConfig(partitions=1)):
            matrix = encode_matrix(weight, config)
            assert round(matrix.bits_per_weight, 2) == 3.56
            assert relative_error(weight, decode_matrix(matrix)) <= most


def test_a_second_partition_helps_outliers() -> None:
    weight = heavy_tailed(192)
    errors = [relative_error(weight, decode_matrix(encode_matrix(weight, config))) for config in (PLAIN, TWO)]
    assert errors[1] < 0.9 * errors[0]


def test_the_literal_recipe_costs_more_bits_and_more_error() -> None:
    weight = gaussian(192)
    literal, ours = encode_matrix(weight, LiteralAstcConfig()), encode_matrix(weight, AstcConfig())
    assert literal.bits_per_weight == pytest.approx(4.0, rel=1e-3)
    error, our_error = (relative_error(weight, decode_matrix(matrix)) for matrix in (literal, ours))
    assert 1.15 * our_error < error < 0.3


def test_astcenc_has_twice_the_error_in_the_literal_recipe() -> None:
    weight = gaussian(192)
    tiles = weight.reshape(32, 6, 32, 6)
    minima = tiles.min((1, 3), keepdims=True).astype(np.float16).astype(np.float32)
    image = np.maximum((tiles - minima).reshape(192, 192), 0)
    decoded = astcenc_decode(astcenc_encode(image, "HDR", 60))[..., 0].astype(np.float32)
    error = np.linalg.norm(decoded.reshape(32, 32, 6, 6).swapaxes(1, 2).reshape(192, 192) - image) / np.linalg.norm(weight)
    assert error > 1.8 * relative_error(weight, decode_matrix(encode_matrix(weight, AstcConfig())))
