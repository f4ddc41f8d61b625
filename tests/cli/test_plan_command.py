"""`openafm plan`: the table, the JSON, and refusals on one line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from openafm.cli.main import run
from openafm.cli.training.plan import parse_bytes
from openafm.core.errors import UsageError

COMMAND = ["plan", "server.full", "--devices", "8192", "--slices", "4", "--memory", "95GiB"]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(COMMAND) == 0
    table = capsys.readouterr().out
    for words in (
        "147,803,703,296 parameters",
        "15,834,122,240",
        "replicate 4 x shard 32 x expert 8 x track 8",
        "saved by dividing the vocabulary",
        "activations for the backward pass",
        "kept by the allocator",
        "all-to-all",
        "tpu-v5p: 459 TFLOP/s, 600 GB/s in a slice, 6.25 GB/s across",
        "model FLOPs utilization implied",
    ):
        assert words in table
    assert max(map(len, table.splitlines())) < 160


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMAND, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["mesh"] == {"replicate": 4, "context": 1, "shard": 32, "expert": 8, "track": 8}
    assert plan["chip"]["memory"] == 95 << 30
    assert plan["fits"] is True
    assert plan["memory_per_device"]["peak"] < 95 << 30
    assert {c["axis"] for c in plan["collectives"]} == {"replicate", "shard+expert", "shard", "expert", "track"}
    assert plan["model_flops_utilization"] > 0.9
    assert plan["bound"] == "communication along replicate"


def test_a_cpu_core_has_allocator_overhead(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--chip", "cpu-core", "--precision", "float32", "--rows-per-step", "4", "--row-tokens", "512", "--json"]
    assert run(["plan", "server.nano", *options]) == 0
    memory = json.loads(capsys.readouterr().out)["memory_per_device"]
    held = memory["parameters"] + memory["optimizer"]
    assert 0 < memory["allocator"] < memory["peak"] - held


def test_rates_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    rates = ["--peak-flops", "918e12", "--bandwidth", "1.2e12", "--slice-bandwidth", "1.25e10"]
    plans = []
    for options in ([], rates):
        assert run([*COMMAND, *options, "--json"]) == 0
        plans.append(json.loads(capsys.readouterr().out))
    assert plans[1]["step_seconds"] == pytest.approx(plans[0]["step_seconds"] / 2)
    assert plans[1]["chip"]["name"] == "tpu-v5p, changed"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("server.ful --devices 8", "did you mean 'server.full'"),
        ("server.full --devices 8", "GiB more than its 95.0 GiB; the smallest layout that fits on 32 devices"),
        ("server.full --devices 8192 --slices 4 --track 8 --shard 512 --expert 1", "would cross slices"),
        ("server.full --devices 96 --track 3 --shard 1 --expert 1", "8 tracks do not divide over 3"),
        ("server.full --devices 64 --memory 95lb", "write it as 95GiB"),
        ("server.full --devices 64 --memory 95", "write it as 95GiB"),
        ("server.full --devices 64 --memory 0GiB", "must be above 0"),
        ("server.full --devices 64 --precision float16", "neither float32 nor bfloat16"),
        ("server.full --devices 64 --precision float32", "--peak-flops"),
        ("server.full --devices 64 --chip abacus", "unknown chip 'abacus'"),
        ("server.full --devices 64 --row-tokens 0", "row_tokens must be at least 1"),
        ("server.full --devices 64 --shard 0", "shard must be at least 1"),
        ("server.full --devices 64 --price h100=2 --plot a.png", "--price, --plot only with --study"),
        ("server.full --devices 64 --tokens 1e12 --efficiency 0.4", "--tokens, --efficiency only with --study"),
    ],
)
def test_refusals_are_one_line(options: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *options.split()]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("text", "expected"), [("95GiB", 95 << 30), ("80 GB", 80 * 10**9), ("1.5tib", 3 << 39), ("7B", 7)])
def test_parse_bytes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "95 lb", "1e3", "95"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bytes(text)


def test_no_tensor_library_is_imported() -> None:
    script = (
        "import sys; from openafm.cli.main import run\n"
        f"code = run({COMMAND!r})\n"
        "sys.exit('imported torch' if 'torch' in sys.modules else code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
