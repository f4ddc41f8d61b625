from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from simple_kinds import EqualTextsConfig, MinLengthConfig, TagsConfig

from openafm.core.executors import LocalConfig
from openafm.core.worker_process import LimitsConfig
from openafm.data.pipeline.config import DeduplicationStageConfig, ExtractionStageConfig, PipelineConfig
from openafm.data.web.documents import Page
from openafm.data.web.warc import Capture, capture_bytes

HTML = {"content-type": "text/html; charset=utf-8"}


def page(name: str, text: str, **changes: object) -> Page:
    made = Page(
        url=f"https://a.example/{name}", body=f"<p>{text}</p>".encode(), headers=HTML, fetched_at="2026-01-02T03:04:05Z"
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def write_warc(tmp_path: Path) -> Callable[[str, Iterable[Page]], Path]:
    def write(name: str, pages: Iterable[Page]) -> Path:
        path = tmp_path / name
        path.write_bytes(b"".join(capture_bytes(Capture(page=each)) for each in pages))
        return path

    return write


@pytest.fixture
def config() -> PipelineConfig:
    return PipelineConfig(
        stages=(
            ExtractionStageConfig(extraction=TagsConfig(), filters=(MinLengthConfig(),)),
            DeduplicationStageConfig(deduplication=EqualTextsConfig()),
        ),
        limits=LimitsConfig(cpu_seconds=0.5, wall_seconds=20.0, memory_mb=1024),
        executor=LocalConfig(num_workers=1),
    )
