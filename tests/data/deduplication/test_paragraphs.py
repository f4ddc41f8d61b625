from __future__ import annotations

import random
from dataclasses import replace
from itertools import groupby

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shard_runs import Run, document, kept, kept_ids

from openafm.data.deduplication import ParagraphsConfig
from openafm.data.deduplication.groups import MEMBER
from openafm.data.deduplication.paragraphs import paragraph_spans, repeated, without
from openafm.data.web.documents import Dropped, Media, WebDocument

COOKIES = "We use cookies to improve your experience on our site."
FOOTER = "Copyright by the publisher. All rights are reserved."


def article(name: str, *paragraphs: str, domain: str = "a.example") -> WebDocument:
    return document(name, "\n\n".join(paragraphs), f"https://{domain}/{name}")


def test_repeated_paragraphs_of_a_domain_are_removed_or_kept_once(run: Run) -> None:
    shards = [
        [article("b", COOKIES, "The first text is about rivers.", FOOTER), article("c", "A second text, on lakes.", FOOTER)],
        [article("a", "Third: the sea and its tides.", COOKIES.upper(), FOOTER), article("d", COOKIES, domain="b.example")],
    ]
    once = kept(run(ParagraphsConfig(min_documents=2), shards))
    assert [each.text for each in once] == [
        "The first text is about rivers.",
        "A second text, on lakes.",
        f"Third: the sea and its tides.\n\n{COOKIES.upper()}\n\n{FOOTER}",
        COOKIES,
    ]
    assert [each.metadata.get("paragraphs.removed") for each in once] == ["2", "1", None, None]
    none = kept(run(ParagraphsConfig(min_documents=2, keep="none"), shards))
    assert [each.text for each in none][2:] == ["Third: the sea and its tides.", COOKIES]
    at_least_three = kept(run(ParagraphsConfig(min_documents=3, keep="none"), shards))
    assert [COOKIES in each.text for each in at_least_three] == [True, False, False, True]
    assert not any(FOOTER in each.text for each in at_least_three)
    corpus = run(ParagraphsConfig(min_documents=3, keep="none", scope="corpus"), shards)
    assert corpus[1][1] == Dropped(reason="only_repeated_paragraphs", detail="1 paragraphs", url="https://b.example/d")


def test_a_repetition_within_a_document_counts_once_and_short_paragraphs_are_kept(run: Run) -> None:
    shards = [[article("a", FOOTER, FOOTER, "## Notes"), article("b", "Something else that is long enough.", "## Notes")]]
    assert kept(run(ParagraphsConfig(min_documents=2), shards)) == shards[0]


def test_spans_join_to_the_text_and_do_not_cut_code() -> None:
    code = "```\nfirst\n\nsecond\n```\n\n"
    text = f"\n\nOne\nline\n \n\n{code}Last"
    spans = list(paragraph_spans(text))
    assert [text[start:stop] for start, stop in spans] == ["\n\n", "One\nline\n \n\n", code, "Last"]
    assert list(paragraph_spans("")) == []
    assert "".join(text[start:stop] for start, stop in spans) == text


def test_media_keep_their_places() -> None:
    text = "0123456789"
    media = tuple(Media(url=str(offset), offset=offset) for offset in (0, 3, 4, 6, 9, 10))
    cut = without(WebDocument(id="a", url="", text=text, media=media), [(0, 2), (4, 6)])
    assert cut.text == "236789"
    assert [each.offset for each in cut.media] == [0, 1, 2, 2, 5, 6]


def test_documents_without_text_one_document_and_none(run: Run) -> None:
    config = ParagraphsConfig(min_documents=2)
    assert run(config, []) == []
    assert kept_ids(run(config, [[], [document("a", ""), document("b", "\n\n")]])) == ["a", "b"]
    same = [article("a", FOOTER, "A text about mountains and snow.")] * 3
    assert [each.text for each in kept(run(config, [same[:1], same[1:]]))] == [same[0].text]


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 6), st.integers(2, 5), st.booleans())
@settings(max_examples=100, deadline=None)
def test_groups_are_found_across_blocks(groups: list[int], block: int, min_members: int, keeps_first: bool) -> None:
    members = np.zeros(len(groups), MEMBER)
    members["group_high"], members["position"] = sorted(groups), np.arange(len(groups))
    found = [
        each
        for part in repeated((members[i : i + block] for i in range(0, len(groups), block)), min_members, keeps_first)
        for each in part["position"].tolist()
    ]
    lists = [list(each) for _, each in groupby(range(len(groups)), key=lambda place: sorted(groups)[place])]
    assert found == [place for each in lists if len(each) >= min_members for place in each[keeps_first:]]


PARAGRAPHS = st.lists(st.sampled_from([COOKIES, FOOTER, "A text of its own that is long.", "short"]), min_size=1, max_size=3)


@given(st.lists(PARAGRAPHS, max_size=8), st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_results_do_not_depend_on_order_and_shards(run: Run, rows: list[list[str]], seed: int, num_shards: int) -> None:
    documents = [article(f"{index}", *row) for index, row in enumerate(rows)]
    documents = [replace(each, metadata={"quality.score": str(index % 3)}) for index, each in enumerate(documents)]
    shuffled = list(documents)
    random.Random(seed).shuffle(shuffled)
    config = ParagraphsConfig(min_documents=2)
    found = kept(run(config, [shuffled[shard::num_shards] for shard in range(num_shards)]))
    assert sorted(map(repr, found)) == sorted(map(repr, kept(run(config, [documents]))))
