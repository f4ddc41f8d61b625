"""The log of a run: lines, truncation, curves."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import tiny_run, write_corpus

from openafm.core.files import OutOfSpaceError
from openafm.training.observability.curves import CurveError, plot_losses, terminal_curve
from openafm.training.observability.metrics import (
    FILE,
    MetricsError,
    measured_flops_per_second,
    metrics_log,
    peak_flops_per_second,
    read_metrics,
)
from openafm.training.run import train


def test_a_resumed_log_drops_later_and_incomplete_lines(tmp_path: Path) -> None:
    lines = [json.dumps({"step": step, "loss": 1.0 / step}) for step in (1, 2, 3, 4)]
    (tmp_path / FILE).write_text("\n".join(lines) + '\n{"step": 5, "lo')
    with metrics_log(tmp_path, 2, print) as log:
        log.write(3, {"loss": 0.123456789, "num_tokens": 12})
    assert read_metrics(tmp_path) == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 0.5},
        {"step": 3, "loss": 0.123457, "num_tokens": 12},
    ]


def test_without_tensorboard_one_note_and_the_same_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    notes: list[str] = []
    with metrics_log(tmp_path, 0, notes.append) as log:
        log.write(1, {"loss": 1.0})
        log.write(2, {"loss": 0.5})
    assert len(notes) == 1
    assert "openafm[metrics]" in notes[0]
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]
    assert not (tmp_path / "tensorboard").exists()


def test_a_full_disk_is_a_typed_error(tmp_path: Path) -> None:
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(OutOfSpaceError, match=FILE),
        metrics_log(tmp_path, 0, print) as log,
    ):
        log._file = io.TextIOWrapper(full, write_through=True)
        log.write(1, {"loss": 1.0})


def test_a_run_logs_its_throughput_also_to_tensorboard(tmp_path: Path) -> None:
    train(tiny_run(write_corpus(tmp_path / "corpus"), num_steps=4), tmp_path / "run")
    lines = read_metrics(tmp_path / "run")
    for key in ("loss", "learning_rate", "gradient_norm", "tokens_per_second", "peak_memory_mb", "seconds"):
        assert all(line[key] > 0 for line in lines), key
    assert all(0 < line["model_flops_utilization"] < 1 for line in lines)
    assert [line["num_tokens"] for line in lines] == sorted({line["num_tokens"] for line in lines})
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("loss")]
    assert [step for step, _ in shown] == [1, 2, 3, 4]
    assert [value for _, value in shown] == pytest.approx([line["loss"] for line in lines], rel=1e-5)


@pytest.mark.parametrize("line", ['{"step": 2, "lo', "3", '{"loss": 1.0}', "\0\0", "\udcff"])
def test_a_malformed_line_in_the_log_is_a_typed_error(tmp_path: Path, line: str) -> None:
    content = '{"step": 1}\n' + line + '\n{"step": 3}\n'
    (tmp_path / FILE).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(MetricsError, match=rf"line 2 of .*{FILE}"):
        read_metrics(tmp_path)


def test_memory_is_not_reported_where_the_system_does_not_measure_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    train(tiny_run(write_corpus(tmp_path / "corpus"), num_steps=1), tmp_path / "run")
    (line,) = read_metrics(tmp_path / "run")
    assert "peak_memory_mb" not in line
    assert "tokens_per_second" in line
    code = "import sys; sys.modules['resource'] = None; import openafm.training.observability.metrics"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_peak_of_an_accelerator_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product is synchronized; torch's meta device computes nothing."""
    waits: list[int] = []
    monkeypatch.setattr("torch.accelerator.synchronize", lambda: waits.append(1))
    measured_flops_per_second(torch.bfloat16, "meta", seconds=0.001)
    assert len(waits) >= 2


def test_the_peak_is_measured_once() -> None:
    assert peak_flops_per_second(torch.float32, "cpu") == peak_flops_per_second(torch.float32, "cpu") > 1e8


def test_a_terminal_curve_falls_from_its_labeled_high_to_its_low() -> None:
    losses = list(np.linspace(8, 2, 333))
    lines = terminal_curve(losses, width=40, height=6).split("\n")
    assert len(lines) == 6
    assert {len(line) for line in lines} == {8 + 2 + 40}
    assert float(lines[0].split()[0]) == pytest.approx(8, abs=0.1)
    assert float(lines[-1].split()[0]) == pytest.approx(2, abs=0.1)
    blank = chr(0x2800)
    assert lines[0][10] != blank
    assert lines[-1][10] == blank
    assert lines[-1][-1] != blank
    assert terminal_curve([3.0]).count("\n") == 9
    with pytest.raises(CurveError):
        terminal_curve([])


def test_the_plot_is_drawn_and_missing_parts_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FILE).write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.5, "held_out_loss": 2.6}\n')
    assert plot_losses(tmp_path).read_bytes().startswith(b"\x89PNG")
    with pytest.raises(CurveError, match="no logged losses"):
        plot_losses(tmp_path / "elsewhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CurveError, match=r"openafm\[plots\]"):
        plot_losses(tmp_path)


def test_configs_and_curves_need_no_torch() -> None:
    code = "import sys, openafm.training.config, openafm.training.observability.curves; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_peak_of_a_known_card_is_its_makers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openafm.training.device.describe_device", lambda device: "NVIDIA H100 80GB HBM3")
    assert peak_flops_per_second(torch.bfloat16, "cuda") == 989.4e12
    assert peak_flops_per_second(torch.float32, "cuda") == 66.9e12
