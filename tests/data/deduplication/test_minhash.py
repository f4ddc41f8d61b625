from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planted import jaccard, pair, words
from shard_runs import Run, document, kept, kept_ids, write_signatures

from openafm.core.config import ConfigError
from openafm.data.deduplication import MinHashConfig
from openafm.data.deduplication.components import find_roots, join
from openafm.data.deduplication.minhash import ENTRY, WINDOW, candidates, minhash_signatures
from openafm.data.deduplication.shingles import shingle_hashes, tokens_of
from openafm.data.web.documents import Dropped, WebDocument


def text(seed: int, num_words: int = 120) -> str:
    return " ".join(words(random.Random(seed), num_words))


@pytest.mark.parametrize("is_chinese", [False, True])
@pytest.mark.parametrize("is_verified", [True, False])
def test_recall_and_precision_on_planted_pairs(run: Run, is_chinese: bool, is_verified: bool) -> None:
    generator = random.Random(5)
    pairs = [
        pair(generator, 300, share, is_chinese) for share in (0, 0.005, 0.01, 0.02, 0.03, 0.06, 0.12, 0.3) for _ in range(60)
    ]
    similarity = [jaccard(*each) for each in pairs]
    shards = [[document(f"{index:04d}{side}", each[side]) for index, each in enumerate(pairs)] for side in (0, 1)]
    outcomes = run(MinHashConfig(verify=is_verified), shards)
    is_found = [isinstance(each, Dropped) for each in outcomes[1]]
    similar = [found for found, each in zip(is_found, similarity, strict=True) if each >= 0.8]
    found = [each for found, each in zip(is_found, similarity, strict=True) if found]
    assert len(similar) >= 120
    assert np.mean(similar) >= 0.95
    assert np.mean([each >= 0.7 for each in found]) >= (0.95 if is_verified else 0.85)
    assert not any(isinstance(each, Dropped) for each in outcomes[0])
    assert all(found for found, each in zip(is_found, similarity, strict=True) if each == 1)


def test_bands_are_derived_from_the_threshold() -> None:
    config = MinHashConfig()
    assert (config.num_bands, config.num_rows) == (16, 7)
    assert config.probability(0.8, 7) >= 0.97 > config.probability(0.8, 8)
    loose = MinHashConfig(threshold=0.5)
    assert loose.probability(0.5, loose.num_rows) >= 0.97
    assert loose.num_rows < config.num_rows
    with pytest.raises(ConfigError, match="raise num_hashes"):
        MinHashConfig(threshold=0.01, num_hashes=8)
    with pytest.raises(ConfigError, match="not in"):
        MinHashConfig(num_hashes=513)  # the memory bound is for 512


def test_signatures_are_the_same_on_every_platform() -> None:
    english = shingle_hashes(tokens_of("The quick brown fox, jumps OVER the lazy dog").hashes, 5)
    chinese = shingle_hashes(tokens_of("敏捷的棕色狐狸跳过了懒狗。").hashes, 8)
    assert [int(english[0]), len(english), int(chinese[0]), len(chinese)] == [
        12263949359712400284,
        5,
        10195070192317270998,
        5,
    ]
    assert minhash_signatures([english, chinese], 4, 1).tolist() == [
        [84954994, 446857033, 844863136, 1386487317],
        [687092720, 1135118103, 152092710, 1279132397],
    ]
    assert minhash_signatures([english], 4, 2).tolist() != minhash_signatures([english], 4, 1).tolist()


def test_scripts_without_spaces_have_characters_as_tokens() -> None:
    assert tokens_of("Hello, World! It's 5.").words() == ["hello", "world", "it", "s", "5"]
    assert not tokens_of("한국어는 띄어쓰기가 있다").is_spaceless
    assert not tokens_of("An article on 東京 and on other large cities of the world").is_spaceless
    assert tokens_of("東京は大きい。GPU も速い").is_spaceless
    assert tokens_of("ภาษาไทยไม่มีช่องว่าง").is_spaceless
    assert len(tokens_of("").hashes) == 0
    assert len(shingle_hashes(tokens_of("two words").hashes, 5)) == 1


@given(st.text(st.sampled_from("aB_1 .-é\u0301東ก\ud800\U0001f600"), max_size=40))
@settings(max_examples=150, deadline=None)
def test_tokens_have_equal_hashes_if_they_are_equal(some_text: str) -> None:
    tokens = tokens_of(some_text)
    words = tokens.words()
    assert all(word and not any(char in " .-\ud800\U0001f600" for char in word) for word in words)
    pairs = dict(zip(words, tokens.hashes.tolist(), strict=True))
    assert len(set(pairs.values())) == len(pairs)
    again = tokens_of(" ".join(words))
    if again.is_spaceless == tokens.is_spaceless:
        assert again.hashes.tolist() == tokens.hashes.tolist()


def test_the_best_then_the_earliest_document_is_kept(run: Run) -> None:
    base = text(1)
    group = [document(name, f"{base} {name}", quality=quality) for name, quality in (("c", 1), ("b", 2), ("a", 2), ("d", 0))]
    outcomes = run(MinHashConfig(), [group[:2], [document("x", text(2))], group[2:]])
    assert kept_ids(outcomes) == ["x", "a"]
    assert outcomes[0][0] == Dropped(reason="near_duplicate", detail="kept: a", url="https://a.example/c")


def test_groups_are_connected_components(run: Run) -> None:
    tokens = words(random.Random(3), 200)
    chain = []
    for step in range(6):  # neighbors are similar, the ends are not
        chain.append(document(f"{step}", " ".join(tokens)))
        for place in range(step * 30, step * 30 + 3):
            tokens[place] = f"changed{step}{place}"
    assert jaccard(chain[0].text, chain[1].text) > 0.9
    assert jaccard(chain[0].text, chain[-1].text) < 0.75
    assert kept_ids(run(MinHashConfig(), [chain[::2], chain[1::2]])) == ["0"]


def test_empty_short_and_equal_documents(run: Run) -> None:
    config = MinHashConfig()
    assert run(config, []) == []
    assert kept_ids(run(config, [[], [document("a", "one")]])) == ["a"]
    assert kept_ids(run(config, [[document("a", ""), document("b", " \n"), document("c", "!")]])) == ["a", "b", "c"]
    assert kept_ids(run(config, [[document("a", "two words"), document("b", "Two words."), document("c", "two")]])) == [
        "a",
        "c",
    ]
    equal = [document(f"{index:04d}", text(4)) for index in range(5 * WINDOW)]
    assert kept_ids(run(config, [equal[20:], equal[:20]])) == ["0000"]
    same = document("a", text(5))
    assert kept_ids(run(config, [[same, same], [same]])) == ["a"]


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_candidates_are_the_near_entries_of_one_bucket(buckets: list[int], size: int) -> None:
    entries = np.zeros(len(buckets), ENTRY)
    entries["bucket"], entries["number"] = sorted(buckets), np.arange(len(buckets))
    blocks = (entries[start : start + size] for start in range(0, len(entries), size))
    found = [pair for left, right in candidates(blocks) for pair in zip(left.tolist(), right.tolist(), strict=True)]
    expected = [
        (left, right)
        for right in range(len(buckets))
        for left in range(max(right - WINDOW, 0), right)
        if sorted(buckets)[left] == sorted(buckets)[right]
    ]
    assert sorted(found) == sorted(expected)


DOCUMENTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from("abcdef"), st.sampled_from([0.0, 1.0])), max_size=10
)


@given(DOCUMENTS, st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_documents_kept_do_not_depend_on_order_and_shards(
    run: Run, rows: list[tuple[int, int, str, float]], seed: int, num_shards: int
) -> None:
    documents = [document(name, f"{text(base)} {'extra ' * extra}", quality=quality) for base, extra, name, quality in rows]
    shuffled = list(documents)
    random.Random(seed).shuffle(shuffled)
    found = kept(run(MinHashConfig(), [shuffled[shard::num_shards] for shard in range(num_shards)]))
    assert sorted(map(repr, found)) == sorted(map(repr, kept(run(MinHashConfig(), [documents]))))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_components_are_those_of_a_search(edges: list[tuple[int, int]], shuffler: random.Random) -> None:
    neighbors: dict[int, set[int]] = {node: {node} for node in range(31)}
    for left, right in edges:
        merged = neighbors[left] | neighbors[right]
        for node in merged:
            neighbors[node] = merged
    shuffler.shuffle(edges)
    links = np.arange(31)
    for start in range(0, len(edges), 7):
        part = np.array(edges[start : start + 7], np.int64)
        join(links, part[:, 0], part[:, 1])
    assert find_roots(links, np.arange(31)).tolist() == [min(neighbors[node]) for node in range(31)]


def test_a_long_chain_is_joined_in_logarithmic_steps() -> None:
    count = 200_000
    links = np.arange(count)
    join(links, np.arange(count - 1), np.arange(1, count))  # would take minutes with one link a step
    assert not find_roots(links, np.arange(count)).any()


def test_memory_of_the_reduction_does_not_grow(tmp_path: Path) -> None:
    import pyarrow as pa

    peaks = []
    for num_shards in (3, 12):
        method = MinHashConfig(num_hashes=32, memory_mb=1).build()
        folder = tmp_path / str(num_shards)
        shard: list[WebDocument] = [document(f"{index}", text(index % 500, 12)) for index in range(600)]
        paths = write_signatures(method, [shard], folder) * num_shards
        tracemalloc.start()
        method.decide(paths, folder / "decisions.parquet")
        peaks.append(tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes())
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] + (1 << 20)
    assert peaks[1] < (1 << 20) + (64 << 20)
