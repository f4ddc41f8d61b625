"""`benchmarks/shared/finished.py`: results of a benchmark that was interrupted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from shared.finished import Finished

    yield Finished
    for name in [name for name in sys.modules if name == "shared" or name.startswith("shared.")]:
        del sys.modules[name]


def test_results_of_before_an_interruption_are_kept_and_a_cut_one_is_repeated(finished: Any, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    calls: list[str] = []

    def run(name: str) -> dict[str, str]:
        calls.append(name)
        return {"is": name}

    for name in ("a", "b"):
        finished(path=file).result(name, 1, lambda name=name: run(name))
    file.write_text(file.read_text()[:-4])  # killed while it stored b
    for _ in range(2):
        for name in ("a", "b", "c"):
            assert finished(path=file).result(name, 1, lambda name=name: run(name)) == {"is": name}
    assert calls == ["a", "b", "b", "c"]
    finished(path=file).result("a", 2, lambda: run("another setting"))
    assert calls[-1] == "another setting"
