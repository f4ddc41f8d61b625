"""Generation of the built-in corpus in several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from openafm.bundle import open_bundle
from openafm.core import executors
from openafm.core.worker_process import Failure, Outcome
from openafm.data import generation
from openafm.data.generation import GenerationError, generated_documents
from openafm.data.pack import pack_synthetic
from openafm.data.synthetic import SyntheticConfig


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "CHUNK", 15)
    bundle = open_bundle("nano")
    for num_workers in (1, 3):
        folder = tmp_path / str(num_workers)
        pack_synthetic(SyntheticConfig(), 100, folder, bundle.tokenizer, bundle.template, num_workers=num_workers)
    one, three = (sorted((tmp_path / name).iterdir()) for name in ("1", "3"))
    assert [file.name for file in one] == [file.name for file in three]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, three, strict=True))


def test_a_dead_worker_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out of a corpus without a word."""
    died = Failure(reason="killed", detail="out of memory")
    monkeypatch.setattr(
        executors.LocalExecutor, "map", lambda _, __, items: (Outcome(item=item, failure=died) for item in items)
    )
    bundle = open_bundle("nano")
    with pytest.raises(GenerationError, match="out of memory"):
        list(generated_documents(SyntheticConfig(), 3_000, bundle.tokenizer, bundle.template, 2))
