"""Description of an adapter, as `openafm adapter inspect` prints it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from openafm.adapters.package import WEIGHTS, AdapterPackage


@dataclass(frozen=True, kw_only=True)
class AdapterDescription:
    """Facts of an adapter. `bytes` is the size of the weights; `draft` is the signature of its draft model or None."""

    identifier: str
    name: str
    path: str
    base_signature: str
    rank: int
    alpha: float
    targets: tuple[str, ...]
    precision: str
    parameters: int
    bytes: int
    author: str
    description: str
    license: str
    draft: str | None
    draft_token_count: int
    creator_defined: Mapping[str, Any]
    created_by: str
    digest: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe_adapter(adapter: AdapterPackage) -> AdapterDescription:
    """Verify an adapter and return its description.

    Raises:
        AdapterError: the adapter is damaged.
    """
    weights, metadata = adapter.weights(), adapter.metadata
    return AdapterDescription(
        identifier=adapter.identifier,
        name=adapter.name,
        path=str(adapter.path),
        base_signature=adapter.base_signature,
        rank=metadata.loraRank,
        alpha=metadata.loraAlpha,
        targets=metadata.loraTargets,
        precision=metadata.precision,
        parameters=sum(math.prod(array.shape) for array in weights.values()),
        bytes=(adapter.path / WEIGHTS).stat().st_size,
        author=metadata.author,
        description=metadata.description,
        license=metadata.license,
        draft=metadata.draftSignature or None,
        draft_token_count=metadata.speculativeDecodingDraftTokenCount,
        creator_defined=metadata.creatorDefined,
        created_by=metadata.createdBy,
        digest=adapter.digest,
    )
