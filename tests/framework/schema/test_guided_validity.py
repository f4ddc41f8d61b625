"""The guided-validity benchmark on a few cases; its judges reject invalid texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import openafm as fm

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import guided_validity

    yield guided_validity
    for name in ("guided_validity", "guided.judges", "guided.decoding", "guided.random_types", "guided"):
        sys.modules.pop(name, None)


@pytest.mark.long
def test_random_types_under_random_logits_are_valid(benchmark: Any) -> None:
    tally = benchmark.Tally()
    figures = benchmark.run(benchmark.Setting(cases=12, vocab_size=1_024, seed=77), tally)
    assert figures["problems"] == []
    assert figures["invalid"] == 0
    assert figures["forced_share"] > 0.3
    assert {"object", "array", "pattern", "enum", "anyOf", "$ref"} <= tally.kinds.keys()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"day": "2024-02-29"}', AssertionError),
        ('{"day":"2023-02-29"}', jsonschema.ValidationError),
        ('{"day":"2024-02-29","more":1}', jsonschema.ValidationError),
        ('{"day":"2024-01-01"}', AssertionError),
        ('{"day":"2024-02-29"', ValueError),
    ],
)
def test_judges_reject_invalid_text(benchmark: Any, text: str, error: type[Exception]) -> None:
    import datetime

    from guided.random_types import RandomType

    @fm.generable
    class Leap:
        day: datetime.date

    made = RandomType(annotation=Leap, judge=lambda value: bool(value.day == datetime.date(2024, 2, 29)))
    schema = fm.GenerationSchema(Leap)
    benchmark.judge_text('{"day":"2024-02-29"}', made, schema)
    with pytest.raises(error):
        benchmark.judge_text(text, made, schema)
