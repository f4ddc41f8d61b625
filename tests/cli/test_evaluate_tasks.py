"""`openafm evaluate --tasks`: a run from the command line, its gate, comparison, and wrong options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from endpoints import says, serving
from tiny_bundles import write_native_bundle, write_tiny_bundle

from openafm.cli.main import run

ROW = {"subject": "anatomy", "question": "Which?", "choices": ["w", "x", "y", "z"], "answer": "C"}
PLUGIN = '''
from dataclasses import dataclass
from openafm.evaluation.harness.task import Item, Prompt, TaskConfig, Verdict

@dataclass(frozen=True, kw_only=True)
class LongAnswerConfig(TaskConfig):
    """Any answer of three tokens."""

    def items(self, data):
        return [Item(id="a", prompt=Prompt(text="the cat", max_tokens=3))]

    def judge(self, item, output):
        return Verdict(scores={"accuracy": float(output.generated_tokens <= 3)})
'''


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    return str(write_tiny_bundle(tmp_path / "tiny").path)


def test_a_run_its_gate_and_a_comparison(bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test.jsonl").write_text("".join(json.dumps({**ROW, "answer": answer}) + "\n" for answer in "ABCD"))
    (tmp_path / "dev.jsonl").write_text(json.dumps(ROW))
    (tmp_path / "own.py").write_text(PLUGIN)
    command = ["evaluate", "--model", bundle, "--data", str(tmp_path), "--plugins", str(tmp_path / "own.py")]
    command += ["--tasks", "mmlu:lm_eval,LongAnswer", "--out", str(tmp_path / "a"), "--json"]
    assert run(command) == 0
    printed = json.loads(capsys.readouterr().out)["tasks"]
    assert printed["mmlu:lm_eval"]["count"] == 4
    assert printed["mmlu:lm_eval"]["metrics"]["acc"]["mean"] == 0.25  # one letter for equal contexts
    assert printed["LongAnswer"]["metrics"]["accuracy"]["mean"] == 1.0
    assert "__DATA__" not in (tmp_path / "a" / "report.html").read_text()
    assert run([*command[:-2], str(tmp_path / "b"), "--fail-below", "mmlu:lm_eval=0.5"]) == 1
    captured = capsys.readouterr()
    assert "mmlu:lm_eval is 0.2500, below 0.5" in captured.err
    assert "4 from the cache" in captured.out
    assert run(["evaluate", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--html", str(tmp_path / "c.html")]) == 0
    assert "+0.0" in capsys.readouterr().out
    assert (tmp_path / "c.html").is_file()


def test_a_bundle_and_its_compressed_form(bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table 3 of the report: both bundles are run, and the table has scores, a difference and bits per weight."""
    (tmp_path / "own.py").write_text(PLUGIN)
    compressed = str(write_native_bundle(tmp_path / "compressed").path)
    command = ["evaluate", "compare", bundle, compressed, "--tasks", "LongAnswer", "--plugins", str(tmp_path / "own.py")]
    out = tmp_path / "runs"
    assert run([*command, "--out", str(out), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)["table"]
    assert table["header"] == ["model", "LongAnswer", "bits per weight"]
    (first, second, difference) = table["rows"]
    assert (first[0], first[2], second[0], difference[0]) == ("tiny", "32.00", "compressed", "2 - 1")
    assert float(second[2]) < 8
    assert first[1].startswith("100.0 [")
    assert difference[1] == "+0.0 [+0.0, +0.0]"
    runs = [str(out / "1-tiny"), str(out / "2-compressed")]
    assert run(["evaluate", "compare", *runs, "--markdown"]) == 0
    assert "| 2 - 1 | +0.0 [+0.0, +0.0] |" in capsys.readouterr().out
    for _ in range(2):  # earlier results are replaced
        assert run(["evaluate", "card", runs[0], "--fill", bundle]) == 0
    card = (Path(bundle) / "card.md").read_text()
    assert card.count("## Evaluation") == 1
    assert card.startswith("# tiny")
    assert run(["inspect", bundle]) == 0  # the signature holds
    assert run(["evaluate", "card", runs[0], "--fill", compressed]) == 2
    assert "has results of tiny, not of compressed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--tasks mmlu", "--tasks needs --data"),
        ("--out x", "--out needs --tasks"),
        ("--tasks mmlo --data . --out x", "did you mean 'mmlu'"),
        ("--tasks mmlu --data . --out x --fail-below gsm8k=1", "is not TASK=SCORE with a task of --tasks"),
        ("--tasks mmlu --data . --out x --fail-below mmlu=high", "is not TASK=SCORE"),
        ("--tasks mmlu --data . --out x --base-url http://127.0.0.1:9/v1", "--base-url needs --model"),
        ("--tasks mmlu --data . --out x --base-url ftp://a --model m", "must begin with http"),
        ("--tasks mmlu --data . --out x --limit 0", "--limit"),
        ("compare . missing", "holds no results.json"),
        ("compare .", "compare needs two or more runs"),
        ("compare a b --tasks mmlu", "compare with --tasks needs --out"),
        ("judge . .", "--judge names the model"),
        ("features --model m", "features needs --out"),
        ("features --out x --tasks evnt", "unknown feature 'evnt'"),
        ("features --out x --baseline oracle", "known: constant, pattern"),
    ],
)
def test_wrong_options(
    options: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["evaluate", *options.split()]) != 0
    assert message in capsys.readouterr().err


def test_missing_data_are_named_before_any_request(bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    command = ["evaluate", bundle, "--tasks", "bfcl", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "a")]
    assert run(command) == 1
    error = capsys.readouterr().err
    assert "github.com/ShishirPatil/gorilla" in error
    assert "Apache-2.0" in error


def test_tasks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", "--tasks", "list"]) == 0
    assert "mmlu:lm_eval" in capsys.readouterr().out
    assert run(["evaluate", "features", "--json"]) == 0
    features = json.loads(capsys.readouterr().out)
    assert {"flyers", "needles", "output_language"} <= {each["feature"] for each in features}
    assert [each["feature"] for each in features if each["needs_vision"]] == ["flyers"]
    assert run(["evaluate", "--help"]) == 0
    assert "compare" in capsys.readouterr().out


@pytest.mark.long
def test_answers_are_judged(bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": str(number), "prompt": "the cat", "language": "de"} for number in range(2)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in "ab":
        command = ["evaluate", bundle, "--tasks", "prompts", "--data", str(tmp_path), "--out", str(tmp_path / name)]
        assert run([*command, "--limit", "1"]) == 0
    (tmp_path / "grades.jsonl").write_text('{"id": "0", "preference": "tie"}')
    capsys.readouterr()
    command = ["evaluate", "judge", str(tmp_path / "a"), str(tmp_path / "b"), "--judge", bundle, "--task", "prompts"]
    assert run([*command, "--out", str(tmp_path / "judgments.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rates"]["all"] is None  # a random model gives no verdict
    (judgment,) = map(json.loads, (tmp_path / "judgments.jsonl").read_text().splitlines())
    assert judgment["verdicts"] == [None, None]
    assert run([*command, "--grades", str(tmp_path / "grades.jsonl")]) == 1
    assert "no graded prompt was judged" in capsys.readouterr().err
    assert run(command) == 0
    assert "use a stronger judge" in capsys.readouterr().out
    assert run(["evaluate", "judge", str(tmp_path / "a"), str(tmp_path / "b"), "--judge", bundle]) == 1
    assert "has no task 'arena_hard', it has prompts" in capsys.readouterr().err


def test_features_of_a_model_without_vision(bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", "features", "--model", bundle, "--out", str(tmp_path / "a"), "--limit", "1"]
    assert run([*command, "--tasks", "flyers"]) == 2
    assert "does not support images" in capsys.readouterr().err
    assert run([*command, "--tasks", "needles", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["tasks"]) == ["needles"]
    baseline = ["evaluate", "features", "--tasks", "needles", "--baseline", "pattern", "--out", str(tmp_path / "b")]
    assert run([*baseline, "--limit", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"]["needles"]["metrics"]["found"]["mean"] == 1.0


@pytest.mark.slow
def test_tools_and_a_card(bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", "tools", "--model", bundle, "--limit", "1", "--out", str(tmp_path / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"]["tools"]["count"] == 4
    assert run(["evaluate", "card", str(tmp_path / "a")]) == 0
    assert "| tools | success | all | 4 |" in capsys.readouterr().out


def test_an_endpoint_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    rows = [{"question": f"Question {number}?", "answer": f"Steps.\n#### {number}"} for number in (18, 19)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows * 3)))
    command = ["evaluate", "--model", "m", "--data", str(tmp_path), "--out", str(tmp_path / "a"), "--json"]
    with serving(says("So.\nAnswer: 18"), says("So.\nAnswer: 18")) as endpoint:
        place = ["--base-url", endpoint.url, "--threads", "1"]
        assert run([*command, *place, "--tasks", "gsm8k"]) == 0
        assert run([*command, *place, "--tasks", "gsm8k"]) == 0  # from the cache: the script has no more replies
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["tasks"]["gsm8k"]["num_cached"] == 2
        assert run([*command, *place, "--tasks", "gsm8k:lm_eval"]) == 2
    assert "choose a task without ':lm_eval'" in capsys.readouterr().err
    samples = (tmp_path / "a" / "samples" / "gsm8k.jsonl").read_text().splitlines()
    assert [json.loads(line)["scores"]["accuracy"] for line in samples] == [1.0, 0.0]
