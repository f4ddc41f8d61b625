"""Every command of the example in docs/data.md, in order: from a local site to a model trained on its pages."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from openafm.bundle import open_bundle
from openafm.cli.main import run
from openafm.data.documents import DocumentFiles
from openafm.data.pipeline.config import PipelineConfig
from openafm.data.pipeline.store import read_manifest
from openafm.data.shards.token_shards import open_shards
from openafm.data.sites import SiteConfig, serve
from openafm.recipes.pipelines.web import build_pipeline

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
TINY = {
    "trainer.budget": '{"type": "StepBudget", "num_steps": 2}',
    "trainer.data.rows_per_step": "2",
    "trainer.data.row_tokens": "128",
    "trainer.evaluation.num_batches": "1",
    "trainer.log_every": "1",
}
ADDRESS = "http://127.0.0.1:8000"


@pytest.mark.slow
def test_every_command_of_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    example = PAGE.read_text(encoding="utf-8").partition("## The pipeline")[0]
    lines = re.findall(r"^    openafm (.*)$", example, re.MULTILINE)
    assert len(lines) >= 9
    with serve(SiteConfig(num_pages=300).build()) as server:
        for line in lines:
            command = shlex.split(line.replace(ADDRESS, server.url))
            tiny = (
                [part for key, value in TINY.items() for part in ("--set", f"{key}={value}")]
                if command[0] == "train"
                else []
            )
            assert run([*command, *tiny]) == 0, command
    manifest = read_manifest(Path("corpus"))
    assert manifest.num_kept > 50
    assert len(manifest.stages[-1].languages) == 16
    files = DocumentFiles(Path("corpus"))
    assert sum(1 for _ in files) == manifest.num_kept
    assert files.num_opted_out == 0
    assert set(open_shards(Path("shards")).manifest.languages) <= {"", *manifest.stages[-1].languages}
    for name in ("web", "web-mixture"):
        assert open_bundle(name).name == name


def test_the_pipeline_of_the_page(tmp_path: Path) -> None:
    code = next(
        text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL) if "def " in text
    )
    (tmp_path / "mine.py").write_text(code)
    config = build_pipeline(f"{tmp_path / 'mine.py'}:pipeline")
    assert isinstance(config, PipelineConfig)
    assert config.stages[0].filters[0].languages == ("de", "fr")  # type: ignore[attr-defined]
