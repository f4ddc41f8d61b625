from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from planted import words
from shard_runs import document

from openafm.core.executors import LocalConfig
from openafm.data.deduplication import DecontaminationConfig, ExactConfig, MinHashConfig, ParagraphsConfig
from openafm.data.deduplication.evaluation_sets import EvaluationSetError
from openafm.data.pipeline.config import DeduplicationStageConfig, PipelineConfig
from openafm.data.pipeline.parquet import RowWriter, document_row, document_schema, read_documents
from openafm.data.pipeline.runner import run_pipeline
from openafm.data.pipeline.store import CorpusManifest
from openafm.data.web.documents import WebDocument

FOOTER = "Subscribe to the newsletter of this site to read more."


def pipeline(evaluation: Path) -> PipelineConfig:
    methods = {
        "exact": ExactConfig(),
        "near": MinHashConfig(),
        "paragraphs": ParagraphsConfig(keep="none"),
        "decontaminate": DecontaminationConfig(evaluation=(str(evaluation),)),
    }
    stages = tuple(DeduplicationStageConfig(name=name, deduplication=method) for name, method in methods.items())
    return PipelineConfig(stages=stages, executor=LocalConfig(num_workers=1))


def write(path: Path, documents: Sequence[WebDocument]) -> Path:
    with path.open("wb") as file, RowWriter(file, document_schema()) as writer:
        for each in documents:
            writer.write(document_row(each))
    return path


def texts(corpus: Path) -> list[str]:
    return sorted(each.text for path in (corpus / "documents").iterdir() for each in read_documents(path))


def dropped(manifest: CorpusManifest) -> dict[str, int]:
    return {reason: count for stage in manifest.stages for reason, count in stage.dropped.items()}


@pytest.mark.slow
def test_stages_of_deduplication_in_a_pipeline(tmp_path: Path) -> None:
    generator = random.Random(0)
    bodies = [" ".join(words(generator, 120)) for _ in range(8)]
    documents = [document(f"{index}", f"{body}\n\n{FOOTER}") for index, body in enumerate(bodies)]
    documents += [documents[0], document("same text", documents[1].text), document("near", f"{documents[2].text} end")]
    evaluation = tmp_path / "set.txt"
    evaluation.write_text(" ".join(bodies[7].split()[20:40]), encoding="utf-8")
    config = pipeline(evaluation)
    one = run_pipeline(config, [write(tmp_path / "one.parquet", documents)], tmp_path / "a")
    generator.shuffle(documents)
    parts = [write(tmp_path / f"part{index}.parquet", documents[index::3]) for index in range(3)]
    three = run_pipeline(config, parts, tmp_path / "b")
    assert dropped(one) == {"duplicate_url": 1, "duplicate_text": 1, "near_duplicate": 1, "contaminated": 1}
    assert texts(tmp_path / "a") == sorted(bodies[:7])
    assert (dropped(three), texts(tmp_path / "b")) == (dropped(one), texts(tmp_path / "a"))
    evaluation.write_text("another question that no document has", encoding="utf-8")
    again = run_pipeline(config, parts, tmp_path / "b")
    assert "contaminated" not in dropped(again)
    assert texts(tmp_path / "b") == sorted(bodies)


def test_a_missing_evaluation_set_is_reported_before_any_work(tmp_path: Path) -> None:
    path = write(tmp_path / "one.parquet", [document("a", "text")])
    with pytest.raises(EvaluationSetError, match="does not exist"):
        run_pipeline(pipeline(tmp_path / "none.txt"), [path], tmp_path / "out")
    assert not (tmp_path / "out").exists()
