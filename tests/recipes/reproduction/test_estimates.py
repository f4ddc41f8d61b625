"""Estimates of time: stored calibration, budgets, stages that were done before, the expected end."""

from __future__ import annotations

from pathlib import Path

import pytest

from openafm.core.files import write_json
from openafm.recipes.reproduction import calibration
from openafm.recipes.reproduction.calibration import Calibration, calibrated
from openafm.recipes.reproduction.estimates import estimated_seconds, training_flops
from openafm.recipes.reproduction.forecast import Forecast, clock_time
from openafm.recipes.reproduction.sizes import train
from openafm.recipes.reproduction.stages.catalog import report_stages
from openafm.recipes.reproduction.stages.stage import Command

SPEED = Calibration(size="micro", tokens_per_second=1800.0, flops_per_second=27e9)


def test_the_speed_is_measured_once_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    measured: list[str] = []

    def probe(size: str) -> Calibration:
        measured.append(size)
        return SPEED

    monkeypatch.setattr(calibration, "probe", probe)
    assert calibrated("tiny") == calibrated("micro") == SPEED
    assert measured == ["micro"]
    (tmp_path / "reproduction" / "calibration.json").write_text("{")
    assert calibrated("micro") == SPEED
    assert measured == ["micro", "micro"]


def test_trainings_count_by_their_budget() -> None:
    whole, two_steps = train("on_device.sft", "micro"), train("on_device.sft", "tiny")
    assert training_flops(whole) == pytest.approx(977 / 2 * training_flops(two_steps))
    assert training_flops(Command(name="x", words=("inspect", "nano"))) == 0


def test_micro_is_planned_for_75_to_90_minutes(tmp_path: Path) -> None:
    estimates = estimated_seconds(report_stages("micro"), "micro", SPEED, tmp_path)
    assert 75 <= sum(estimates.values()) / 60 <= 90


def test_a_stage_that_was_done_counts_with_its_own_time(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    write_json(tmp_path / "web" / "done.json", {"seconds": 12.5})
    assert estimated_seconds(report_stages("tiny"), "tiny", SPEED, tmp_path)["web"] == 12.5


def test_the_expected_end_follows_the_finished_stages() -> None:
    forecast = Forecast({"a": 10.0, "b": 20.0, "c": 0.0})
    assert forecast.seconds_left() == 30
    assert forecast.line("a").startswith(" (about 10 s; all done at about ")
    forecast.finished("a", 40.0)
    assert forecast.seconds_left() == 80
    assert forecast.line("c") == ""
    forecast.finished("b", 0.0)
    assert forecast.seconds_left() == 0
    assert [clock_time(seconds) for seconds in (99, 600, 7200)] == ["99 s", "10 min", "2.0 h"]
