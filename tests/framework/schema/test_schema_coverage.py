"""The schema-coverage benchmark on a few cases; its judge rejects invalid calls."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import openafm as fm

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("pydantic")
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import schema_coverage

    yield schema_coverage
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("schema_coverage", "guided", "tokenizer_extension"):
            del sys.modules[name]


@pytest.mark.long
def test_types_and_tools_compile_and_constrain(benchmark: Any) -> None:
    figures = benchmark.run(benchmark.Setting(cases=30, vocab_size=1_024, num_languages=0, seed=31))
    assert figures["problems"] == []
    assert (figures["cases"], figures["compiled"], figures["invalid"]) == (30, 30, 0)
    assert {"mean_mask_us", "compile_p50_ms"} <= figures.keys()


def test_the_judge_rejects_invalid_calls(benchmark: Any) -> None:
    from guided.random_types import RandomType

    @fm.generable
    class Arguments:
        n: int = fm.guide(minimum=3)

    made = {"tool": RandomType(annotation=Arguments, judge=lambda value: bool(value.n < 9))}
    schemas = {"tool": fm.GenerationSchema(Arguments)}

    def judge(calls: Any) -> None:
        benchmark._judge_calls(json.dumps(calls), made, schemas)

    judge([{"name": "tool", "arguments": {"n": 3}}])
    for calls, error in [
        ([], AssertionError),
        ([{"name": "other", "arguments": {"n": 3}}], AssertionError),
        ([{"name": "tool", "arguments": {"n": 9}}], AssertionError),
        ([{"name": "tool", "arguments": {"n": 2}}], jsonschema.ValidationError),
        ([{"name": "tool"}], AssertionError),
    ]:
        with pytest.raises(error):
            judge(calls)


def test_real_schemas_are_counted(benchmark: Any, tmp_path: Path) -> None:
    cases = [
        ({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, {"n": 1}, {"n": "x"}),
        ({"type": "array", "uniqueItems": True}, [1], [1, 1]),
    ]
    for index, (schema, valid, invalid) in enumerate(cases):
        tests = [{"valid": True, "data": valid}, {"valid": False, "data": invalid}]
        (tmp_path / f"Snowplow---{index}.json").write_text(json.dumps({"schema": schema, "tests": tests}))
    tokenizer = benchmark.train_tokenizer(
        benchmark.TokenizerConfig(vocab_size=330, min_frequency=1), ["the quick brown fox jumps"]
    )
    figures = benchmark.real_schemas.measure(tmp_path, tokenizer)
    assert (figures["schemas"], figures["accepted"], figures["invalid"], figures["valid_refused"]) == (2, 1, 0, 0)
    assert (figures["valid_instances"], figures["invalid_instances"]) == (1, 1)
    assert "uniqueItems: unique items cannot be enforced" in next(iter(figures["reasons"]))
