"""The decoder against astcenc, bit for bit, on blocks of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from astc_oracle import PROFILES, astcenc_decode, astcenc_encode, num_mismatches
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openafm.compression.astc.block_layout import COLOR_RANGES, WEIGHT_RANGES, partition_table
from openafm.compression.astc.decoder import decode_blocks
from openafm.compression.astc.integer_sequence import IntegerRange, pack, unpack
from openafm.compression.errors import CompressionError


def is_legal(block: NDArray[np.uint8]) -> bool:
    try:
        decode_blocks(block[None])
    except CompressionError:
        return False
    return True


def test_random_bits_decode_like_astcenc_or_are_refused_like_astcenc() -> None:
    blocks = np.random.default_rng(0).integers(0, 256, (3_000, 16), dtype=np.uint8)
    theirs = astcenc_decode(blocks)
    refused = ~np.isfinite(theirs[..., 0]).all(1)  # astcenc's error color
    legal = np.array([is_legal(block) for block in blocks])
    np.testing.assert_array_equal(legal, ~refused)
    assert legal.sum() > 150
    assert num_mismatches(decode_blocks(blocks[legal]), theirs[legal][..., 0]) == 0


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(0, 15), st.sampled_from([0x10C, 0x108, 0x118, 0x42, 0x51]))
def test_every_endpoint_mode_and_number_of_partitions(seed: int, num_partitions: int, mode: int, block_mode: int) -> None:
    blocks = np.random.default_rng(seed).integers(0, 256, (64, 16), dtype=np.uint8)
    head = blocks[:, :4].copy().view("<u4")[:, 0]
    head = (head & ~np.uint32(0x1FFF)) | block_mode | num_partitions - 1 << 11
    mode_bits, shift = (0xF << 13, 13) if num_partitions == 1 else (0x3F << 23, 25)
    head = (head & ~np.uint32(mode_bits)) | mode << shift
    blocks[:, :4] = head.astype("<u4")[:, None].view(np.uint8)
    theirs = astcenc_decode(blocks)
    if np.isnan(theirs.astype(np.float32)).all():
        assert not any(map(is_legal, blocks))
    else:
        assert num_mismatches(decode_blocks(blocks), theirs[..., 0]) == 0


def matrices() -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(1)
    return {
        "gaussian": rng.normal(size=(96, 96)),
        "heavy": rng.standard_t(3, size=(96, 96)),
        "smooth": np.cumsum(rng.normal(size=(96, 96)), axis=1),
        "constant blocks": np.repeat(np.repeat(rng.normal(size=(16, 16)), 6, 0), 6, 1),
        "sparse": rng.normal(size=(96, 96)) * (rng.random((96, 96)) < 0.05),
    }


@pytest.mark.parametrize("quality", [0, 60])
@pytest.mark.parametrize("name", matrices())
@pytest.mark.parametrize("profile", PROFILES)
def test_blocks_made_by_astcenc(profile: str, name: str, quality: int) -> None:
    matrix = matrices()[name]
    image = matrix - matrix.min()
    blocks = astcenc_encode(image / image.max() if profile == "LDR" else image, profile, quality)
    assert num_mismatches(decode_blocks(blocks), astcenc_decode(blocks, profile)[..., 0]) == 0


def test_a_void_extent_block_is_one_value() -> None:
    block = np.full((1, 16), 0xFF, np.uint8)
    block[0, :2] = 0xFC, 0xFD
    block[0, 8:] = np.array([0x8000] * 4, "<u2").view(np.uint8)
    assert (decode_blocks(block) == 0.5).all()
    assert num_mismatches(decode_blocks(block), astcenc_decode(block)[..., 0]) == 0


def test_a_damaged_block_is_named() -> None:
    blocks = astcenc_encode(np.random.default_rng(0).random((6, 36)), "LDR").copy()
    blocks[4] = 0
    with pytest.raises(CompressionError, match="block 4 "):
        decode_blocks(blocks)


@given(st.sampled_from([*COLOR_RANGES, *WEIGHT_RANGES[0], *WEIGHT_RANGES[1]]), st.integers(1, 64), st.integers(0, 2**32 - 1))
def test_integer_sequences_round_trip(values: IntegerRange, length: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, values.num_levels, (3, length)).astype(np.uint8)
    stream = pack(numbers, values)
    assert stream.shape == (3, values.num_bits(length))
    np.testing.assert_array_equal(unpack(stream, values, length), numbers)


@pytest.mark.parametrize("num_partitions", [2, 3, 4])
def test_partitions_are_numbered_from_zero(num_partitions: int) -> None:
    table = partition_table(num_partitions)
    assert table.shape == (1024, 36)
    assert set(np.unique(table)) == set(range(num_partitions))
