from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from shard_runs import Outcomes, Run, deduplicate

from openafm.data.deduplication.base import DeduplicationConfig
from openafm.data.web.documents import WebDocument


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Deduplicate shards in a folder of their own."""
    numbers = count()

    def run_shards(config: DeduplicationConfig, shards: Sequence[Sequence[WebDocument]]) -> Outcomes:
        return deduplicate(config, shards, tmp_path / f"run{next(numbers)}")

    return run_shards
