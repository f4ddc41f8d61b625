"""Goodput: every second is counted once, also over processes killed at any point."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import exit_code, step_result, tiny_run, train_in_child, write_corpus

from openafm.training.config import CheckpointConfig, EvaluationConfig
from openafm.training.observability.goodput import (
    CAUSES,
    FILE,
    Goodput,
    GoodputRecorder,
    ProcessTimes,
    goodput,
    read_process_times,
)
from openafm.training.observability.metrics import read_metrics
from openafm.training.observers import Phase
from openafm.training.run import train


@contextmanager
def phase(recorder: GoodputRecorder, name: Phase) -> Iterator[None]:
    recorder.on_phase_start(name)
    yield
    recorder.on_phase_end(name)


def opened_recorder(path: Path) -> GoodputRecorder:
    recorder = GoodputRecorder(path)
    recorder.open()
    return recorder


def test_every_second_is_counted_once(tmp_path: Path) -> None:
    before_s = time.perf_counter()
    recorder = opened_recorder(tmp_path / FILE)
    time.sleep(0.02)
    with phase(recorder, "data_wait"):
        time.sleep(0.03)
    time.sleep(0.05)
    recorder.on_step(step_result(1))
    time.sleep(0.01)
    with phase(recorder, "evaluation"):
        time.sleep(0.04)
    recorder.close()
    found = goodput(read_process_times(tmp_path / FILE))
    least = {"start": 0.02, "data_wait": 0.03, "other": 0.01, "evaluation": 0.04}
    assert all(found.lost[cause] >= seconds - 1e-3 for cause, seconds in least.items())
    assert found.productive >= 0.049
    assert found.lost["rework"] == found.lost["hang"] == 0
    assert found.wall <= time.perf_counter() - before_s
    assert found.wall >= 0.149


def test_repeated_steps_are_rework_and_time_between_processes_is_lost_to_start(tmp_path: Path) -> None:
    first = ProcessTimes(begun=100.0, seconds={"start": 1.0, "productive": 9.0}, step=9)
    again = ProcessTimes(begun=113.0, seconds={"start": 2.0, "rework": 3.0, "productive": 5.0}, step=14, ended=True)
    later = ProcessTimes(begun=1000.0, seconds={"start": 1.0, "productive": 1.0}, step=15)
    found = goodput([first, again, later])
    assert found.productive == 15
    assert found.lost["start"] == 1 + 3 + 2 + 1  # the three seconds between; not the time after a stop
    assert found.lost["rework"] == 3
    assert (found.wall, found.starts) == (25, 3)
    assert found.share == 15 / 25
    assert str(found) == "goodput 60.0 % of 25 s in 3 starts; lost: start 28.0 %, rework 12.0 %"

    (tmp_path / FILE).write_text(json.dumps({"begun": 1.0, "seconds": {"productive": 1.0}, "step": 2}) + "\n")
    recorder = opened_recorder(tmp_path / FILE)
    for step in (1, 2, 3):
        with phase(recorder, "data_wait"):
            pass
        time.sleep(0.01)
        recorder.on_step(step_result(step))
    assert recorder.goodput.lost["rework"] >= 0.02
    assert 1.01 <= recorder.goodput.productive < 1.02 + 1


process_times = st.lists(
    st.builds(
        ProcessTimes,
        begun=st.floats(0, 1e6),
        seconds=st.dictionaries(st.sampled_from([*CAUSES, "productive"]), st.floats(0, 100), min_size=1),
        step=st.integers(0, 99),
        ended=st.booleans(),
    ),
    max_size=5,
    unique_by=lambda times: times.begun,
)


@given(process_times)
def test_wall_time_is_the_time_of_processes_and_gaps(some: list[ProcessTimes]) -> None:
    some = sorted(some, key=lambda times: times.begun)
    found = goodput(some)
    spent = sum(sum(account.seconds.values()) for account in some)
    gaps = sum(max(0.0, b.begun - a.until) for a, b in pairwise(some) if not a.ended)
    assert found.wall == pytest.approx(spent + gaps)
    assert 0 <= found.share <= 1


def test_an_incomplete_line_is_skipped(tmp_path: Path) -> None:
    whole = [{"begun": 1.0, "seconds": {"productive": float(n)}, "step": n, "ended": False} for n in (1, 2)]
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in whole) + '{"begun": 1.0, "sec')
    assert goodput(read_process_times(tmp_path / FILE)) == Goodput(productive=2.0, starts=1)
    opened_recorder(tmp_path / FILE).write_waiting("hang")
    lines = (tmp_path / FILE).read_text().splitlines()
    assert [json.loads(line)["seconds"].keys() for line in lines] == [{"productive"}, {"hang"}]


def test_a_wait_written_during_a_hang_is_replaced_by_the_next_step(tmp_path: Path) -> None:
    recorder = opened_recorder(tmp_path / FILE)
    with phase(recorder, "data_wait"):
        time.sleep(0.02)
        recorder.write_waiting("hang")
        assert goodput(read_process_times(tmp_path / FILE)).lost["hang"] >= 0.019
    recorder.on_step(step_result(1))
    recorder.close()
    assert goodput(read_process_times(tmp_path / FILE)).lost["hang"] == 0


def test_a_hang_before_the_folder_is_locked_is_a_hang(tmp_path: Path) -> None:
    path = tmp_path / "run" / FILE
    waiting = GoodputRecorder(path)
    assert not path.parent.exists()
    time.sleep(0.02)
    waiting.write_waiting("hang")
    another = opened_recorder(path)  # the lines of another process are kept
    another.on_step(step_result(1))
    waiting.write_waiting("hang")
    found = goodput(read_process_times(path))
    assert found.starts == 2
    assert found.lost["hang"] >= 0.02
    assert found.lost["start"] < 0.02


@pytest.mark.slow
def test_a_killed_and_resumed_run_accounts_for_its_wall_time(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    evaluation = EvaluationConfig(data=write_corpus(tmp_path / "held_out", num_documents=30, seed=1), every_steps=20)
    config = tiny_run(corpus, num_steps=70, evaluation=evaluation)
    config = replace(config, checkpoint=CheckpointConfig(every_steps=25, every_seconds=None))
    output, begun_s = tmp_path / "run", time.time()
    process = train_in_child(config, output)
    while not any(times.step % 25 > 5 for times in read_process_times(output / FILE)):
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    assert exit_code(process) == -signal.SIGKILL
    time.sleep(0.5)
    result = train(config, output)
    found, wall_s = result.goodput, time.time() - begun_s
    assert found.starts == 2
    assert found.wall <= wall_s
    assert found.wall == pytest.approx(wall_s, abs=1.0)
    assert found.lost["start"] >= 0.5
    assert found.lost["rework"] > 0
    assert found.lost["evaluation"] > 0
    assert found.lost["checkpoint"] > 0
    lines = [line for line in read_metrics(output) if "loss" in line]
    assert all(0 <= line["goodput"] <= 1 for line in lines)
    assert lines[-1]["lost_seconds/start"] == pytest.approx(found.lost["start"], rel=1e-3)
    assert train(config, output) == result  # a finished run is unchanged
