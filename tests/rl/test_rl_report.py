"""The report of a run, from written logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openafm.core.chrome_trace import write_chrome_trace
from openafm.rl.collapse import CollapseWatch
from openafm.rl.events import EventLog, part_times, read_events, slices
from openafm.rl.report import NoPolicyRunError, _read_samples, read_report, terminal_report, write_html
from openafm.rl.updater import Counters, CountersError


def line(step: int, **changes: float) -> dict[str, float]:
    values = {"step": step, "reward": step / 10, "kl": 0.1, "entropy": 1.0, "length": 10.0, "lag": 0.0, "gradient_norm": 1.0}
    counters = {"generated": 8 * step, "trained": 8 * step, "stale": 0, "dropped": 0, "in_flight": 0}
    return values | counters | {"repetition": 0.0, "equal_groups": 0.0} | changes


def write_run(folder: Path) -> None:
    (folder / "rl.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line(step)) + "\n" for step in range(1, 5)))
    sample = {"prompt": {"messages": [{"role": "user", "content": "<b>2 + 2?"}]}, "terms": {"exact": 1.0}, "error": ""}
    steps = (1, 2, 3, 2, 3, 4)  # steps 2 and 3 were repeated
    lines = [sample | {"step": step, "text": f"answer {number}", "reward": 1.0} for number, step in enumerate(steps)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    events = EventLog(folder, "generator-1")
    events.add("decode", 100.0, 103.0, count=60)
    events.add("wait", 103.0, 104.0)
    for start, stop in ((100.0, 101.0), (102.0, 104.0), (110.0, 111.0), (111.0, 113.0)):  # interrupted before the third
        EventLog(folder, "updater").add("update", start, stop)


def test_the_report_shows_curves_counters_and_samples(tmp_path: Path) -> None:
    write_run(tmp_path)
    report = read_report(tmp_path)
    assert [sample["text"] for sample in report.samples] == ["answer 0", "answer 3", "answer 4", "answer 5"]
    text = terminal_report(report)
    assert "32 generated = 32 trained + 0 stale + 0 dropped + 0 in flight" in text
    assert "time from update to update: 3.00 s (median)" in text
    assert "generator-1: idle 25%, 15 tokens/s" in text
    assert report.to_dict()["curves"]["reward"] == [0.1, 0.2, 0.3, 0.4]
    page = write_html(report, tmp_path).read_text()
    assert "&lt;b&gt;2 + 2?" in page
    assert "exact 1.000" in page


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoPolicyRunError, match="rl"):
        read_report(tmp_path)
    (tmp_path / "rl.json").write_text("{}")
    with pytest.raises(NoPolicyRunError, match="has no step yet"):
        read_report(tmp_path)


def test_events_are_exported_for_chrome(tmp_path: Path) -> None:
    write_run(tmp_path)
    events = read_events(tmp_path)
    assert {part.part for part in part_times(events)} == {"generator-1", "updater"}
    write_chrome_trace(slices(events), tmp_path / "trace.json")
    rows = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [row["dur"] for row in rows if row["name"] == "decode"] == [3_000_000]


def test_counters_must_add_up() -> None:
    Counters(generated=8, trained=4, dropped=1, in_flight=3).check()
    with pytest.raises(CountersError, match="8 samples were generated, the other counters add up to 7"):
        Counters(generated=8, trained=4, in_flight=3).check()


def test_steps_without_samples_are_reported_once() -> None:
    watch = CollapseWatch()
    assert watch.warnings(1, line(1, dropped=4)) == []  # others were trained on
    (found,) = watch.warnings(2, line(2, trained=8, dropped=12))
    assert "every sample was dropped" in found
    assert watch.warnings(3, line(3, trained=8, dropped=20)) == []
    (first,) = CollapseWatch().warnings(1, line(1, trained=0, dropped=8))
    assert "every sample was dropped" in first


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"entropy": 0.05}, "the entropy fell to"),
        ({"length": 40.0}, "samples grew to"),
        ({"repetition": 0.6}, "4-grams"),
        ({"equal_groups": 1.0}, "so there is no gradient"),
        ({}, None),
    ],
)
def test_collapse_is_reported_once(changes: dict[str, float], expected: str | None) -> None:
    watch = CollapseWatch()
    for step in range(12):
        assert watch.warnings(step, line(step)) == []
    found = [warning for step in range(12, 20) for warning in watch.warnings(step, line(step, **changes))]
    assert len(found) == (0 if expected is None else 1)
    assert expected is None or expected in found[0]


@pytest.mark.parametrize("line", ["{}", "[]", "{", '{"step": "a"}', '{"step": 1}'])
def test_a_damaged_sample_is_an_error(line: str, tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text(line + "\n")
    with pytest.raises(NoPolicyRunError, match="line 1 of"):
        _read_samples(tmp_path / "samples.jsonl", last_step=9)
