"""The vote of a domain on the language of its uncertain documents."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import page
from simple_kinds import TagsConfig

from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.core.executors import LocalConfig
from openafm.data.deduplication.base import DeduplicationConfig
from openafm.data.filtering.language import CONFIDENCE_KEY, LanguageConfig
from openafm.data.pipeline.config import DeduplicationStageConfig, ExtractionStageConfig, PipelineConfig
from openafm.data.pipeline.domain_language import IDENTIFIED_KEY, DomainLanguageConfig
from openafm.data.pipeline.runner import run_pipeline
from openafm.data.web.documents import Dropped, Page, WebDocument


def _document(domain: str, language: str, confidence: float) -> WebDocument:
    metadata = {CONFIDENCE_KEY: f"{confidence:.4f}"}
    return WebDocument(id="1", url=f"https://{domain}/a", text="x", language=language, metadata=metadata)


def _decisions(config: DomainLanguageConfig, shards: list[list[WebDocument]], folder: Path):
    method = config.build()
    paths = []
    for number, shard in enumerate(shards):
        paths.append(folder / f"{number}.parquet")
        pq.write_table(method.signatures(shard), paths[-1])
    method.decide(paths, folder / "out.parquet")
    return method, method.read_decisions(folder / "out.parquet", 0)


_SHARDS = [
    [_document("a.no", "nb", 0.99)] * 9 + [_document("b.dk", "da", 0.99)] * 2,
    [_document("a.no", "nb", 0.99)] * 9 + [_document("a.no", "da", 0.6), _document("c.com", "en", 1.0)] * 2,
    [_document("c.com", "de", 1.0)] * 3 + [_document("", "de", 1.0)] * 9,
]


def test_domains_vote_over_all_shards_in_any_order(tmp_path: Path) -> None:
    config = DomainLanguageConfig()
    _, decisions = _decisions(config, _SHARDS, tmp_path)
    assert decisions == {"a.no": "nb"}  # b.dk has two documents, c.com two languages
    first = (tmp_path / "out.parquet").read_bytes()
    _decisions(config, _SHARDS[::-1], tmp_path)
    assert (tmp_path / "out.parquet").read_bytes() == first


def test_uncertain_documents_get_the_language_of_their_domain(tmp_path: Path) -> None:
    method, decisions = _decisions(DomainLanguageConfig(), _SHARDS, tmp_path)
    found = method.apply(_document("a.no", "da", 0.6), 0, decisions)
    assert isinstance(found, WebDocument)
    assert (found.language, found.metadata[IDENTIFIED_KEY]) == ("nb", "da")
    for unchanged in (_document("a.no", "da", 0.95), _document("a.no", "nb", 0.6), _document("c.com", "en", 0.6)):
        assert method.apply(unchanged, 0, decisions) is unchanged


def test_uncertain_documents_are_dropped_if_the_config_says_so(tmp_path: Path) -> None:
    method, decisions = _decisions(DomainLanguageConfig(action="drop"), _SHARDS, tmp_path)
    found = method.apply(_document("a.no", "da", 0.6), 0, decisions)
    assert isinstance(found, Dropped)
    assert (found.reason, found.detail) == ("domain_language", "da on a domain in nb")


def test_config_is_checked_and_survives_json() -> None:
    with pytest.raises(ConfigError, match="min_share"):
        DomainLanguageConfig(min_share=0.4)
    config = DomainLanguageConfig(min_documents=3)
    assert from_dict(DeduplicationConfig, {"type": "DomainLanguageConfig", **to_dict(config)}) == config


def test_the_vote_is_a_stage_of_a_pipeline(tmp_path: Path, write_warc: Callable[[str, Iterable[Page]], Path]) -> None:
    sentence = "Kommunen åpner det nye biblioteket ved elva til sommeren, og alle er velkomne dit. "
    pages = [page(str(number), f"{sentence} {number}") for number in range(9)]
    config = PipelineConfig(
        stages=(
            ExtractionStageConfig(extraction=TagsConfig(), filters=(LanguageConfig(languages=("nb", "da")),)),
            DeduplicationStageConfig(name="vote", deduplication=DomainLanguageConfig(max_confidence=1.0)),
        ),
        executor=LocalConfig(num_workers=1),
    )
    manifest = run_pipeline(config, [write_warc("a.warc.gz", pages)], tmp_path / "corpus")
    assert manifest.num_kept == 9
    assert manifest.stages[-1].languages == {"nb": 9}
