"""The loader: every token once per epoch, targets inside documents, one global order, exact mixtures, no state."""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.core.errors import OpenAFMError, UsageError
from openafm.data.loading.batch import Batch
from openafm.data.loading.loader import LanguagesConfig, Loader, LoaderConfig, LoaderRankError, SourceConfig, prefetch
from openafm.data.shards.manifest import ForeignTokenizerError, ManifestError, ShardDigestError
from openafm.data.shards.token_shards import open_shards
from openafm.data.shards.writer import write_shards

VOCAB = 100_000
LOG_NORMAL = np.maximum(1, np.random.default_rng(0).lognormal(np.log(130) - 0.32, 0.8, 600).astype(np.int64)).tolist()


def make_corpus(path: Path, lengths: list[int], first_token: int = 1, digest: str = "d") -> Path:
    """Documents whose tokens count up from `first_token` without end, so that a token identifies its place."""
    token = first_token
    with write_shards(path, tokenizer_digest=digest, vocab_size=VOCAB, tokens_per_shard=2000) as writer:
        for length in lengths:
            tokens = np.arange(token, token + length)
            writer.add(tokens, loss_mask=(tokens % 3 > 0).tolist())
            token += length
    return path


def one_source(path: Path, rows_per_step: int = 4, row_tokens: int = 64, seed: int = 0) -> LoaderConfig:
    sources = (SourceConfig(name="only", path=str(path)),)
    return LoaderConfig(sources=sources, rows_per_step=rows_per_step, row_tokens=row_tokens, seed=seed)


def assert_equal(a: Batch, b: Batch) -> None:
    for name in ("tokens_BS", "targets_BS", "loss_mask_BS"):
        assert np.array_equal(getattr(a, name), getattr(b, name))
    assert (a.documents, a.origins) == (b.documents, b.origins)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=40),
    row_tokens=st.integers(2, 70),
    rows_per_step=st.integers(1, 5),
    seed=st.integers(0, 3),
)
def test_every_token_is_seen_once_an_epoch_and_every_target_stays_in_its_document(
    tmp_path: Path, lengths: list[int], row_tokens: int, rows_per_step: int, seed: int
) -> None:
    shutil.rmtree(tmp_path / "corpus", ignore_errors=True)
    loader = one_source(make_corpus(tmp_path / "corpus", lengths), rows_per_step, row_tokens, seed).build()
    ends = set(np.cumsum(lengths).tolist())  # the last token of each document
    num_rows = loader.sources[0].num_rows
    seen, targets = Counter[int](), Counter[int]()
    for step in range(2 * num_rows):
        check_batch(loader, step, ends, seen, targets)
        epochs_begun, epochs_done = -(-(step + 1) * rows_per_step // num_rows), (step + 1) * rows_per_step // num_rows
        assert {seen[token] for token in range(1, sum(lengths) + 1)} <= {epochs_done, epochs_begun}
    firsts = {end + 1 for end in ends} | {1}
    assert seen == dict.fromkeys(range(1, sum(lengths) + 1), 2 * rows_per_step)
    assert targets == dict.fromkeys(set(seen) - firsts, 2 * rows_per_step)


def check_batch(loader: Loader, step: int, ends: set[int], seen: Counter[int], targets: Counter[int]) -> None:
    """Check one batch of a corpus of counting tokens, and add its tokens to the counters."""
    batch = loader.batch(step)
    covered = np.zeros(batch.tokens_BS.shape, dtype=bool)
    assert list(batch.documents) == sorted(batch.documents)
    for (row, start, stop), origin in zip(batch.documents, batch.origins, strict=True):
        assert not covered[row, start:stop].any()
        covered[row, start:stop] = True
        tokens = batch.tokens_BS[row, start:stop].tolist()
        assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
        assert tokens == loader.sources[0].shards.tokens(*origin[1:]).tolist()
        seen.update(tokens)
        for token, target, learn in zip(
            tokens, batch.targets_BS[row, start:stop].tolist(), batch.loss_mask_BS[row, start:stop].tolist(), strict=True
        ):
            assert target == (0 if token in ends else token + 1)
            assert learn == (token not in ends and target % 3 > 0)
            targets.update([target] if target else [])
    for padding in (batch.tokens_BS[~covered], batch.targets_BS[~covered], batch.loss_mask_BS[~covered]):
        assert not padding.any()


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows_per_step=st.integers(1, 9), world=st.integers(1, 9), step=st.integers(0, 10_000))
def test_ranks_interleave_to_the_global_order(tmp_path: Path, rows_per_step: int, world: int, step: int) -> None:
    path = tmp_path / "corpus"
    if not path.exists():
        make_corpus(path, LOG_NORMAL[:100])
    config = one_source(path, rows_per_step=max(rows_per_step, world))
    whole = config.build().batch(step)
    for rank in range(world):
        part = config.build(rank, world).batch(step)
        for name in ("tokens_BS", "targets_BS", "loss_mask_BS"):
            assert np.array_equal(getattr(part, name), getattr(whole, name)[rank::world])
        of_rank = [origin for span, origin in zip(whole.documents, whole.origins, strict=True) if span.row % world == rank]
        assert list(part.origins) == of_rank
        assert list(part.documents) == sorted(part.documents)


def test_any_step_comes_out_the_same_from_a_fresh_loader_and_from_prefetching(tmp_path: Path) -> None:
    config = one_source(make_corpus(tmp_path / "corpus", LOG_NORMAL))
    loader = config.build()
    in_order = [loader.batch(step) for step in range(12)]
    for step in (11, 3, 7):
        assert_equal(config.build().batch(step), in_order[step])
    batches = prefetch(loader.batch, start_step=4, depth=3)
    for step in range(4, 12):
        assert_equal(next(batches), in_order[step])
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


def test_prefetch_passes_errors_on(tmp_path: Path) -> None:
    loader = one_source(make_corpus(tmp_path / "corpus", [10])).build()
    with pytest.raises(UsageError, match="counted from 0"):
        next(loader.batches(-1))


def two_sources(tmp_path: Path, weights: tuple[float, float]) -> LoaderConfig:
    low = make_corpus(tmp_path / "low", LOG_NORMAL[:200])
    high = make_corpus(tmp_path / "high", LOG_NORMAL[200:240], first_token=40_000)
    names = (("low", low), ("high", high))
    sources = tuple(
        SourceConfig(name=name, path=str(path), weight=weight) for (name, path), weight in zip(names, weights, strict=True)
    )
    return LoaderConfig(sources=sources, rows_per_step=10, row_tokens=256, seed=0)


def test_mixture_is_exact_in_every_step_and_reaches_every_rank(tmp_path: Path) -> None:
    loader = two_sources(tmp_path, (0.7, 0.3)).build()
    positions: Counter[int] = Counter()
    for step in range(100):
        first_tokens = loader.batch(step).tokens_BS[:, 0]
        assert (first_tokens >= 40_000).sum() == 3
        positions.update(np.flatnonzero(first_tokens >= 40_000).tolist())
    assert set(positions) == set(range(10))
    rows = {source.name: source.num_rows for source in loader.sources}
    assert loader.epochs(100) == {"low": 700 / rows["low"], "high": 300 / rows["high"]}
    assert loader.steps_per_epoch() == max(rows["low"] / 7, rows["high"] / 3)


def languages(path: Path, **changes: float) -> LanguagesConfig:
    """640 tokens tagged de, from 1; 10 tagged da, from 50,000; documents of the two alternate."""
    with write_shards(path, tokenizer_digest="d", vocab_size=VOCAB, tokens_per_shard=100) as writer:
        for start in range(1, 641, 64):
            writer.add(np.arange(start, start + 64), language="de")
            writer.add(np.array([50_000 + start // 64]), language="da")
    return LanguagesConfig(name="many", path=str(path), **changes)


def test_languages_of_a_source_are_drawn_by_temperature(tmp_path: Path) -> None:
    source = languages(tmp_path / "many", temperature=3.0)
    loader = LoaderConfig(sources=(source,), rows_per_step=5, row_tokens=64).build()
    assert loader.weights == {"many/da": 0.2, "many/de": 0.8}  # 10 tokens and 640: as 1 and 4
    for step in range(20):
        batch = loader.batch(step)
        is_danish_B = batch.tokens_BS[:, 0] >= 50_000
        assert is_danish_B.sum() == 1
        assert set(batch.tokens_BS[is_danish_B].ravel()) <= {0, *range(50_000, 50_010)}
        assert {origin.source for origin in batch.origins} == {"many/da", "many/de"}
        for (row, start, stop), origin in zip(batch.documents, batch.origins, strict=True):
            stored = loader.sources[0].shards.tokens(*origin[1:])
            assert batch.tokens_BS[row, start:stop].tolist() == stored.tolist()


def test_languages_keep_the_share_of_their_source(tmp_path: Path) -> None:
    many = languages(tmp_path / "many", weight=0.3, temperature=1e9)
    one = SourceConfig(name="one", path=str(make_corpus(tmp_path / "one", [40] * 9, first_token=90_000)), weight=0.7)
    config = LoaderConfig(sources=(one, many), rows_per_step=20, row_tokens=64)
    assert from_dict(LoaderConfig, to_dict(config)) == config
    loader = config.build()
    firsts = [token for step in range(10) for token in loader.batch(step).tokens_BS[:, 0].tolist()]
    assert sum(token >= 90_000 for token in firsts) == 140
    assert sum(50_000 <= token < 90_000 for token in firsts) == sum(0 < token < 50_000 for token in firsts) == 30


def test_a_document_without_a_language_is_one_of_its_own(tmp_path: Path) -> None:
    source = LanguagesConfig(name="untagged", path=str(make_corpus(tmp_path / "low", [5, 7])))
    loader = LoaderConfig(sources=(source,), rows_per_step=1, row_tokens=16).build()
    assert loader.weights == {"untagged/und": 1.0}


def test_no_language_and_an_undetermined_one_are_the_same(tmp_path: Path) -> None:
    with write_shards(tmp_path / "both", tokenizer_digest="d", vocab_size=VOCAB, tokens_per_shard=100) as writer:
        for language in ("", "und", "de"):
            writer.add(np.arange(1, 9), language=language)
    source = LanguagesConfig(name="both", path=str(tmp_path / "both"), temperature=1.0)
    loader = LoaderConfig(sources=(source,), rows_per_step=3, row_tokens=8).build()
    assert loader.weights == {"both/de": pytest.approx(1 / 3), "both/und": pytest.approx(2 / 3)}
    assert [origin.source for origin in loader.batch(0).origins].count("both/und") == 2


def test_temperature_changes_the_digest_and_below_one_is_refused(tmp_path: Path) -> None:
    def digest(source: SourceConfig) -> str:
        return LoaderConfig(sources=(source,), rows_per_step=1, row_tokens=16).build().digest

    source = languages(tmp_path / "many")
    other = LanguagesConfig(name="many", path=source.path, temperature=1.0)
    assert len({digest(source), digest(other), digest(SourceConfig(name="many", path=source.path))}) == 3
    with pytest.raises(ConfigError, match="temperature of 'many'"):
        LanguagesConfig(name="many", path=source.path, temperature=0.5)


def test_each_epoch_has_its_own_order_and_the_seed_changes_it(tmp_path: Path) -> None:
    path = make_corpus(tmp_path / "corpus", LOG_NORMAL)
    loader = one_source(path, row_tokens=512, rows_per_step=1).build()
    num_rows = loader.sources[0].num_rows
    orders = [[loader.batch(epoch * num_rows + n).tokens_BS[0, 0] for n in range(num_rows)] for epoch in range(3)]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert orders[0] != orders[1] != orders[2]
    assert not np.array_equal(
        loader.batch(0).tokens_BS, one_source(path, row_tokens=512, rows_per_step=1, seed=1).build().batch(0).tokens_BS
    )


def test_rows_are_99_percent_full_and_counts_add_up(tmp_path: Path) -> None:
    loader = one_source(make_corpus(tmp_path / "corpus", LOG_NORMAL), row_tokens=512).build()
    source = loader.sources[0]
    assert source.fill > 0.985
    assert (source.num_documents, source.num_tokens) == (600, sum(LOG_NORMAL))
    batch = loader.batch(0)
    assert batch.num_real_tokens == (batch.tokens_BS > 0).sum()
    assert batch.num_targets == batch.loss_mask_BS.sum() > 0


def test_digest_follows_the_bytes_and_the_config_and_not_the_path(tmp_path: Path) -> None:
    path = make_corpus(tmp_path / "corpus", LOG_NORMAL[:50])
    digest = one_source(path).build().digest
    shutil.move(path, tmp_path / "moved")
    assert one_source(tmp_path / "moved").build().digest == digest
    assert one_source(tmp_path / "moved", seed=1).build().digest != digest
    assert one_source(make_corpus(tmp_path / "other", LOG_NORMAL[:51])).build().digest != digest


def test_a_corpus_of_one_token_is_read_for_ever(tmp_path: Path) -> None:
    batch = one_source(make_corpus(tmp_path / "corpus", [1])).build().batch(123_456)
    assert batch.num_real_tokens == 4
    assert batch.num_targets == 0


def test_more_shards_than_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openafm.data.shards.token_shards.MAX_OPEN_SHARDS", 2)
    path = make_corpus(tmp_path / "corpus", [1500] * 10)
    assert len(open_shards(path).manifest.shards) == 10
    loader = one_source(path, rows_per_step=10, row_tokens=1500).build()
    assert sorted(loader.batch(0).tokens_BS[:, 0]) == list(range(1, 15_001, 1500))


def test_config_round_trips_and_refuses_impossible_values(tmp_path: Path) -> None:
    config = two_sources(tmp_path, (0.7, 0.3))
    assert from_dict(LoaderConfig, to_dict(config)) == config
    with pytest.raises(ConfigError, match=r"add up to 1, they add up to 1\.2"):
        two_sources(tmp_path, (0.7, 0.5))
    with pytest.raises(ConfigError, match="weight of 'high'"):
        two_sources(tmp_path, (1.0, 0.0))
    with pytest.raises(ConfigError, match="at least one source"):
        LoaderConfig(sources=(), rows_per_step=1, row_tokens=8)
    source = SourceConfig(name="a", path="x", weight=0.5)
    with pytest.raises(ConfigError, match="rows_per_step must be at least 1, got 0"):
        LoaderConfig(sources=(SourceConfig(name="a", path="x"),), rows_per_step=0, row_tokens=8)
    with pytest.raises(ConfigError, match="must be unique"):
        LoaderConfig(sources=(source, source), rows_per_step=1, row_tokens=8)


def test_absent_and_foreign_sources_and_impossible_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="nowhere"):
        one_source(tmp_path / "nowhere").build()
    config = two_sources(tmp_path, (0.5, 0.5))
    make_corpus(tmp_path / "high", [10], digest="e")
    with pytest.raises(ForeignTokenizerError, match="high"):
        config.build()
    with pytest.raises(ForeignTokenizerError, match="low"):
        config.build(tokenizer_digest="e")
    for rank, world in ((1, 1), (-1, 2), (0, 11)):
        with pytest.raises(LoaderRankError):
            config.build(rank, world)


def test_ranks_share_the_verification(tmp_path: Path) -> None:
    config = one_source(make_corpus(tmp_path / "corpus", LOG_NORMAL))
    damaged = sorted((tmp_path / "corpus").glob("*.tokens.npy"))[-1]
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    failures = []
    for share in range(3):
        try:
            config.prepare(share, 3, verify=True)
        except ShardDigestError:
            failures.append(share)
    assert len(failures) == 1
    with pytest.raises(ShardDigestError):
        config.build()


def test_mutated_shards_are_typed_errors_and_never_other_tokens(tmp_path: Path) -> None:
    config = one_source(make_corpus(tmp_path / "corpus", LOG_NORMAL[:40]))
    wanted = [config.build().batch(step) for step in range(2)]
    choose, files = random.Random(3), sorted((tmp_path / "corpus").iterdir())
    for round_ in range(200):
        file = choose.choice(files)
        content = bytearray(before := file.read_bytes())
        position = choose.randrange(min(len(content), 300))
        match choose.randrange(3):
            case 0:
                content[position] ^= 1 << choose.randrange(8)
            case 1:
                del content[position:]
            case _:
                content[position:position] = choose.choice([b"[" * 9999, b"\xff", b"0", b"null", b'"', b"-"])
        file.write_bytes(content)
        is_verified = round_ % 2 == 0
        try:
            found = [config.build(verification="first_use" if is_verified else "sizes").batch(step) for step in range(2)]
        except OpenAFMError:
            pass
        else:
            for batch, expected in zip(found, wanted, strict=True):
                assert not is_verified or np.array_equal(batch.tokens_BS, expected.tokens_BS)
        file.write_bytes(before)
