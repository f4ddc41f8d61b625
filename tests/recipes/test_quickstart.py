"""The quickstart with small budgets: the same steps and the same result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openafm.cli.main import run
from openafm.data.synthetic import EVENT_SCHEMA
from openafm.recipes import quickstart as quickstart_module
from openafm.recipes.config import RunConfig
from openafm.recipes.prepare import prepare_run
from openafm.recipes.quickstart import Event

KEYS = [
    "bundle",
    "event",
    "tokens_per_second",
    "ttft_ms",
    "train_seconds",
    "loss_first",
    "loss_last",
    "held_out_exact_match",
    "uncompressed_exact_match",
    "size",
    "size_before",
    "untrained_exact_match",
    "regex_exact_match",
    "constant_exact_match",
]


def small(recipe: str, size: str, *, start: str | None = None) -> RunConfig:
    corpus = {
        "type": "SyntheticCorpusConfig",
        "name": "built_in",
        "learn": "everything" if start is None else "answers",
        "synthetic": {"tasks": {"event": 1}},
        "num_examples": 200,
    }
    changes = {
        "trainer.budget": '{"type": "StepBudget", "num_steps": 3}',
        "corpora": json.dumps([corpus]),
        "trainer.data.rows_per_step": "1",
        "trainer.data.sources": '[{"name": "built_in", "path": "built_in"}]',
    }
    changes |= {} if start else {"tokenizer.vocab_size": "1024", "trainer.model.vocab_size": "1024"}
    return prepare_run(recipe, size, start=start, changes=changes)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(quickstart_module, "prepare_run", small)
    monkeypatch.setattr(quickstart_module, "NUM_HELD_OUT", 2)
    monkeypatch.setattr("openafm.evaluation.events.MAX_TOKENS", 12)
    monkeypatch.setattr(quickstart_module, "MAX_TOKENS", 40)
    return tmp_path / "home"


def test_the_event_of_the_quickstart_is_the_event_of_the_corpus() -> None:
    assert Event.generation_schema().to_dict() == EVENT_SCHEMA  # type: ignore[attr-defined]


@pytest.mark.long
def test_quickstart_prints_one_json_object_and_the_second_run_reuses(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert run(["quickstart", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(KEYS) <= result.keys()
    assert result["size"]["bits_per_weight"] < 0.25 * result["size_before"]["bits_per_weight"]
    assert all(Path(file).exists() for file in result["files"])
    kept = [Path(file) for file in result["files"] if not file.endswith(".png")]
    stamps = [file.stat().st_mtime_ns for file in kept]
    assert run(["quickstart", "--json"]) == 0
    second = capsys.readouterr()
    assert "reused" in second.err
    assert json.loads(second.out)["files"] == result["files"]
    assert stamps == [file.stat().st_mtime_ns for file in kept]
