"""Rows of a large source: stored in groups, mapped, computed once, the same for any number of processes that pack them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from openafm.data.loading import row_index
from openafm.data.loading.loader import LanguagesConfig, Loader, LoaderConfig, SourceConfig
from openafm.data.shards.manifest import ShardDigestError
from openafm.data.shards.token_shards import open_shards
from openafm.data.shards.writer import write_shards

NUM_TOKENS = 7_000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder, and groups of up to 20 documents."""
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(row_index, "GROUP_DOCUMENTS", 20)
    return tmp_path / "cache"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """100 documents of 70 tokens that count up from 1, in shards of 10, in two languages."""
    with write_shards(tmp_path / "corpus", tokenizer_digest="d", vocab_size=10_000, tokens_per_shard=700) as writer:
        for start in range(1, NUM_TOKENS + 1, 70):
            writer.add(np.arange(start, start + 70), language="da" if start < 1000 else "de")
    return tmp_path / "corpus"


def config(corpus: Path) -> LoaderConfig:
    return LoaderConfig(sources=(SourceConfig(name="one", path=str(corpus)),), rows_per_step=6, row_tokens=48)


def epoch(loader: Loader) -> Counter[int]:
    """Return the tokens of one epoch of a corpus with one source."""
    seen = Counter[int]()
    source = loader.sources[0]
    for row in source.draws(0, source.num_rows):
        for origin, _ in source.pieces(row):
            seen.update(source.shards.tokens(*origin[1:]).tolist())
    return seen


def test_every_token_of_every_group_is_seen_once_an_epoch(corpus: Path, cache: Path) -> None:
    loader = config(corpus).build()
    assert len(row_index.shard_groups(open_shards(corpus).manifest)) == 5
    assert len(list(cache.glob("rows/*/*.json"))) == 5
    assert epoch(loader) == dict.fromkeys(range(1, NUM_TOKENS + 1), 1)
    assert (loader.sources[0].num_documents, loader.sources[0].num_tokens) == (100, NUM_TOKENS)


def test_targets_continue_over_the_pieces_of_a_document(corpus: Path) -> None:
    batch = config(corpus).build().batch(0)
    for (row, start, stop), origin in zip(batch.documents, batch.origins, strict=True):
        ends_document = (origin.stop - 1) % 70 == 69
        targets = batch.tokens_BS[row, start:stop] + 1
        assert batch.targets_BS[row, start:stop].tolist() == [*targets[:-1], 0 if ends_document else targets[-1]]


def test_stored_rows_are_read_and_not_packed_again(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = config(corpus).build().batch(3)
    monkeypatch.setattr(row_index, "pack_group", lambda *_: pytest.fail("packed again"))
    again = config(corpus).build().batch(3)
    assert np.array_equal(first.tokens_BS, again.tokens_BS)


def test_processes_that_share_the_packing_store_the_same_rows(corpus: Path, cache: Path) -> None:
    for share in range(3):
        config(corpus).prepare(share, 3)
    shared = {file.name: file.read_bytes() for file in cache.glob("rows/*/*")}
    for file in cache.glob("rows/*/*"):
        file.unlink()
    config(corpus).prepare()
    assert {file.name: file.read_bytes() for file in cache.glob("rows/*/*")} == shared


def test_missing_and_cut_files_are_packed_again_and_changed_ones_are_refused(corpus: Path, cache: Path) -> None:
    whole = config(corpus).build().batch(0)
    pieces = sorted(cache.glob("rows/*/*.pieces.npy"))
    pieces[0].unlink()
    pieces[1].write_bytes(pieces[1].read_bytes()[:-1])
    assert np.array_equal(config(corpus).build().batch(0).tokens_BS, whole.tokens_BS)
    content = bytearray(pieces[2].read_bytes())
    content[-20] ^= 1
    pieces[2].write_bytes(content)
    with pytest.raises(ShardDigestError, match=pieces[2].name):
        epoch(config(corpus).build())


def test_the_rows_of_each_language_are_stored_apart(corpus: Path) -> None:
    source = LanguagesConfig(name="many", path=str(corpus), temperature=1.0)
    loader = LoaderConfig(sources=(source,), rows_per_step=6, row_tokens=48).build()
    danish, german = loader.sources
    assert (danish.name, danish.num_documents) == ("many/da", 15)
    assert (german.name, german.num_documents) == ("many/de", 85)
    assert loader.weights["many/da"] == pytest.approx(0.15)
    assert max(epoch(loader)) < 1100


def test_seed_and_row_length_have_rows_of_their_own(corpus: Path, cache: Path) -> None:
    for changes in ({"seed": 0}, {"seed": 1}, {"row_tokens": 96}):
        source = SourceConfig(name="one", path=str(corpus))
        LoaderConfig(**{"sources": (source,), "rows_per_step": 6, "row_tokens": 48, **changes}).build()
    assert len(list((cache / "rows").iterdir())) == 3
