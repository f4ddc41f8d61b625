"""Runs with failures: the simulation agrees with Daly's formula, and the study multiplies days, chips and prices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openafm.cli.main import run
from openafm.core.errors import UsageError
from openafm.models.sizes import named_size
from openafm.training.planning.chips import CHIPS
from openafm.training.planning.failures import Failures, simulate
from openafm.training.planning.plan import Workload
from openafm.training.planning.study import Assumptions, Impossible, StudiedRun, study

CLUSTER = Failures(between=22_000.0, save=5.0, restart=600.0)
FULL = ["plan", "server.full", "--devices", "256", "--rows-per-step", "1024", "--study"]


@pytest.mark.parametrize("factor", [0.1, 0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("failures", [CLUSTER, Failures(between=2_000.0, save=30.0, restart=100.0)])
def test_the_simulation_agrees_with_the_formula(failures: Failures, factor: float) -> None:
    interval, work = factor * failures.best_interval, 500 * failures.between
    simulated = simulate(failures, work, interval, num_runs=8)
    assert simulated.wall == pytest.approx(failures.expected_wall(work, interval), rel=0.02)


def test_the_best_interval_is_best() -> None:
    best = CLUSTER.best_interval
    walls = [CLUSTER.expected_wall(1e6, factor * best) for factor in (0.8, 1.0, 1.25)]
    assert walls[1] == min(walls)
    assert best == pytest.approx((2 * 5.0 * 22_000) ** 0.5, rel=0.05)
    assert Failures(between=10.0, save=30.0, restart=1.0).best_interval == 10.0


def test_a_run_without_failures_only_saves() -> None:
    calm = simulate(Failures(between=1e12, save=2.0, restart=60.0), 1000.0, 100.0, num_runs=1)
    assert (calm.num_failures, calm.saving, calm.lost, calm.restarting) == (0, 18.0, 0, 0)
    assert calm.wall == 1018.0
    assert simulate(CLUSTER, 1e6, 500.0, 2, seed=1) == simulate(CLUSTER, 1e6, 500.0, 2, seed=1)


def test_days_chip_hours_and_cost() -> None:
    assumptions = Assumptions(tokens=1e12, prices={"tpu-v5p": 4.0})
    (found,) = study(
        named_size("on_device.base"),
        num_devices=64,
        slices=1,
        workload=Workload(),
        assumptions=assumptions,
        chips=["tpu-v5p"],
    )
    assert isinstance(found, StudiedRun)
    assert found.work == pytest.approx(1e12 / found.plan.tokens_per_step * found.plan.step_seconds * 2)
    assert found.failures.between == pytest.approx(CHIPS["tpu-v5p"].mtbf_hours * 3600 / 64)
    assert found.cost == pytest.approx(4.0 * 64 * found.simulated.wall / 3600)
    assert found.expected_goodput == pytest.approx(found.simulated.goodput, rel=0.02)


def test_chips_without_memory_for_the_run_have_a_reason() -> None:
    found = study(
        named_size("server.full"), num_devices=8, slices=1, workload=Workload(), assumptions=Assumptions(), chips=["h100"]
    )
    assert isinstance(found[0], Impossible)
    assert "GiB more than" in found[0].reason


def test_a_run_that_fails_before_each_checkpoint_has_a_reason() -> None:
    (found,) = study(
        named_size("on_device.base"),
        num_devices=64,
        slices=1,
        workload=Workload(),
        assumptions=Assumptions(mtbf_hours=0.5),
        chips=["tpu-v5p"],
    )
    assert isinstance(found, Impossible)
    assert found.reason.startswith("the run fails every 28.1 s, and a restart with the steps to the next checkpoint takes")


@pytest.mark.parametrize("tokens", [float("nan"), float("inf"), 0.0])
def test_amounts_are_finite_and_above_0(tokens: float) -> None:
    with pytest.raises(UsageError, match="must be above 0, and finite"):
        Assumptions(tokens=tokens)


@pytest.mark.long
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "goodput.png"
    assert run([*FULL, "--price", "h100=2", "--plot", str(plot), "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [one["chip"] for one in runs] == ["tpu-v5p", "h100", "h200", "b200", "mi300x"]
    for one in runs:
        assert one["goodput_simulated"] == pytest.approx(one["goodput_formula"], rel=0.02)
    assert runs[1]["cost"] == pytest.approx(2 * runs[1]["chip_hours"])
    assert runs[0]["cost"] is None
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--price", "h100"], "write it as h100=2.5"),
        (["--price", "abacus=1"], "unknown chip 'abacus'"),
        (["--efficiency", "2"], "above 0 and at most 1"),
        (["--mtbf-hours", "-1"], "must be above 0"),
        (["--shard", "2", "--trace"], "leave out trace, axes"),
        (["--plot", "goodput.txt"], "does not end in .png"),
        (["--plot", "absent/goodput.png"], "does not exist; create it"),
        (["--devices", "8", "--slices", "1"], "mi300x: replicate 1 x"),
        (["--row-tokens", "100_000"], "set --row-tokens to 65536 or less"),
    ],
)
def test_wrong_options_are_refused(options: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FULL, *options]) == 2
    assert text in capsys.readouterr().err


def test_prices_and_shares_are_checked() -> None:
    with pytest.raises(UsageError, match="above 0"):
        Assumptions(prices={"h100": 0.0})
