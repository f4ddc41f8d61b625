"""Mean of the weights of models that continue one training (model soups, arXiv 2203.05482; WiSE-FT, arXiv 2109.01903).

Runs from one start with other data or seeds have weights whose mean is often better than each of them. A mean of weights
before and after fine-tuning keeps more of what the former could do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.bundle import Bundle, BundleError, bundle_place, write_bundle
from openafm.bundle.tensor_file import MappedTensor
from openafm.core.errors import UsageError
from openafm.recipes.sources.own_data import data_of, write_data


class AverageError(UsageError):
    """The bundles have no mean: another architecture, tokenizer or template, or compressed weights."""


def average(bundles: Sequence[Bundle], name: str, shares: Sequence[float] = ()) -> Bundle:
    """Write the mean of the weights of `bundles` in fp32 as the bundle `name`, one tensor in memory at a time.

    The description of the data is that of the first bundle.

    `shares` are relative, one for each bundle; by default all are equal.

    Raises:
        AverageError: fewer than two bundles, or bundles whose weights have no mean.
        UsageError: `name` is not a valid bundle name or is one of the bundles, or the shares do not fit.
        BundleError: a bundle is damaged.
    """
    place = bundle_place(name)
    fractions = _fractions(shares, len(bundles))
    _check_alike(bundles)
    for bundle in bundles:
        if bundle.path.resolve() == place.resolve():
            raise UsageError(f"'{name}' is one of the bundles and must not be overwritten; choose another --name")
        bundle.verify()
    parts = ", ".join(f"{share:.3g} of {b.name} (`{b.signature}`)" for share, b in zip(fractions, bundles, strict=True))
    first = bundles[0]
    made = write_bundle(
        place,
        config=first.config,
        tokenizer=first.tokenizer,
        template=first.template,
        tensors=[_Mean(tuple(b.stored_tensors[each] for b in bundles), fractions) for each in first.stored_tensors],
        card=f"# {name}\n\nMean of weights: {parts}.\n",
    )
    data = data_of(first)
    if data is not None:
        write_data(made, data)
    return made


@dataclass(frozen=True)
class _Mean:
    """A tensor source: the weighted mean of tensors of one name, computed when its bytes are read."""

    parts: tuple[MappedTensor, ...]
    fractions: tuple[float, ...]
    dtype: str = "F32"

    @property
    def name(self) -> str:
        return self.parts[0].name

    @property
    def file(self) -> Path:
        return self.parts[0].file

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts[0].shape

    @property
    def data(self) -> NDArray[np.uint8]:
        pairs = zip(self.fractions, self.parts, strict=True)
        total: Any = sum(share * part.array().astype(np.float64) for share, part in pairs)
        return np.ascontiguousarray(total, np.float32).reshape(-1).view(np.uint8)


def _fractions(shares: Sequence[float], count: int) -> tuple[float, ...]:
    if count < 2:
        raise AverageError(f"a mean needs two bundles or more, got {count}")
    if shares and len(shares) != count:
        raise UsageError(f"expected a share for each of the {count} bundles, got {len(shares)}: {list(shares)}")
    if not all(share > 0 for share in shares) or not math.isfinite(sum(shares)):
        raise UsageError(f"shares are positive numbers, got {list(shares)}")
    return tuple(share / sum(shares) for share in shares) if shares else (1 / count,) * count


def _check_alike(bundles: Sequence[Bundle]) -> None:
    first = bundles[0]
    for bundle in bundles:
        if bundle.numerics.is_compressed or bundle.recovery_adapter is not None:
            raise AverageError(
                f"{bundle.name} is compressed; write its weights in fp32 with `openafm compress decode {bundle.name}`"
            )
        if bundle.config != first.config:
            raise AverageError(f"{bundle.name} has another architecture than {first.name}; `openafm show` prints both")
        if bundle.tokenizer.digest != first.tokenizer.digest:
            raise AverageError(f"{bundle.name} has another tokenizer than {first.name}; their embeddings have no mean")
        if bundle.template.to_json() != first.template.to_json():
            raise AverageError(
                f"{bundle.name} has another chat template than {first.name}, so they read prompts differently"
            )
        if _shapes(bundle) != _shapes(first):
            raise BundleError(f"{bundle.name} or {first.name} is damaged: tensors differ, though the configs are equal")


def _shapes(bundle: Bundle) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in bundle.stored_tensors.items()}
