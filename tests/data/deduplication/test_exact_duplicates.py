from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shard_runs import Run, document, kept, kept_ids

from openafm.data.deduplication import ExactConfig
from openafm.data.web.documents import Dropped, WebDocument


def test_one_document_of_each_text_is_kept_the_best_then_the_earliest(run: Run) -> None:
    outcomes = run(
        ExactConfig(),
        [
            [document("c", "Same  TEXT\n"), document("x", "other")],
            [document("b", "same text"), document("a", "ｓａｍｅ text")],
            [document("d", "same text", quality=0.5), document("e", "same text", quality=0.4)],
        ],
    )
    assert kept_ids(outcomes) == ["x", "d"]
    assert outcomes[0][0] == Dropped(reason="duplicate_text", detail="kept: d", url="https://a.example/c")
    without_quality = run(ExactConfig(quality="none"), [[document("c", "t", quality=1), document("b", "t")]])
    assert kept_ids(without_quality) == ["b"]


def test_one_document_of_each_canonical_url_is_kept(run: Run) -> None:
    urls = ["https://a.example/p?b=1&a=2", "https://A.example:443/p?a=2&b=1#top", "https://a.example/q"]
    outcomes = run(ExactConfig(), [[document(str(index), f"text {index}", url) for index, url in enumerate(urls)]])
    assert kept_ids(outcomes) == ["0", "2"]
    assert kept_ids(run(ExactConfig(by=("text",)), [[document("0", "a", urls[0]), document("1", "b", urls[1])]])) == [
        "0",
        "1",
    ]


def test_a_text_is_not_lost_if_its_best_document_is_dropped_for_its_url(run: Run) -> None:
    first, second = document("a", "one", "https://a.example/1", 3), document("b", "two", "https://a.example/1", 2)
    third = document("c", "two", "https://a.example/2", 1)
    assert kept_ids(run(ExactConfig(), [[first, second, third]])) == ["a", "c"]


def test_documents_of_one_identifier_and_none(run: Run) -> None:
    same = document("a", "text")
    assert kept_ids(run(ExactConfig(), [[same, same], [same]])) == ["a"]
    anonymous = [WebDocument(id="", url="", text=text) for text in ("x", "y", "x", "")]
    assert [each.text for each in kept(run(ExactConfig(), [anonymous]))] == ["x", "y", ""]


def test_no_document_one_document_and_an_empty_shard(run: Run) -> None:
    assert run(ExactConfig(), []) == []
    assert run(ExactConfig(), [[]]) == [[]]
    assert kept_ids(run(ExactConfig(), [[], [document("a", "t")], []])) == ["a"]


TEXTS = st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz"), st.sampled_from("123"), st.sampled_from([0.0, 1.0]))


@given(st.lists(TEXTS, max_size=12), st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_texts_kept_do_not_depend_on_order_and_shards(
    run: Run, rows: list[tuple[str, str, str, float]], seed: int, num_shards: int
) -> None:
    documents = [document(name, text, f"https://a.example/{url}", quality) for name, text, url, quality in rows]
    shuffled = list(documents)
    random.Random(seed).shuffle(shuffled)
    outcomes = run(ExactConfig(), [shuffled[shard::num_shards] for shard in range(num_shards)])
    reference = run(ExactConfig(), [documents])
    found, expected = kept(outcomes), kept(reference)
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert {replace(each, metadata={}).text for each in expected} <= {text for _, text, _, _ in rows}


def test_a_group_may_span_blocks_of_the_sort(run: Run) -> None:
    documents = [document(f"{index:05d}", f"text {index % 3}") for index in range(3000)]
    config = ExactConfig(memory_mb=1, by=("text",))
    assert kept_ids(run(config, [documents[:1700], documents[1700:]])) == ["00000", "00001", "00002"]
