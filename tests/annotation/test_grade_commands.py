"""`openafm grade`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grading_projects import add_people, item, judge
from tiny_bundles import write_tiny_bundle
from web_servers import Browser

from openafm.annotation.grading.items import write_items
from openafm.annotation.grading.project import open_project
from openafm.annotation.grading.server import open_store
from openafm.bundle import bundle_place
from openafm.cli.main import run
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import run_recipe


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))


def output_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert run([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def judged_project(folder: Path, num_items: int = 12) -> Path:
    """A project with own items, judged by two people."""
    items = [item(f"i{n}", prompt=f"the {n}", answers={"a": "the cat", "b": f"the dog {n}"}) for n in range(num_items)]
    folder.mkdir()
    write_items(folder / "own.jsonl", items)
    project = folder / "wave1"
    assert run(["grade", "init", str(project), "--items", str(folder / "own.jsonl"), "--overlap", "2"]) == 0
    store = open_store(open_project(project))
    for person in add_people(store, "Ana", "Bo"):
        for task in store.project.tasks.values():
            judge(store, task.key, person, "first", satisfaction=(5, 2))
    store.database.close()
    return project


def test_a_project_is_reported_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = judged_project(tmp_path / "own")
    capsys.readouterr()
    assert run(["grade", "report", str(project)]) == 0
    printed = capsys.readouterr().out
    assert "100% [76%, 100%]" in printed
    assert all(Path(line).is_file() for line in printed.splitlines()[-4:])
    report = json.loads((project / "report" / "report.json").read_text())
    assert report["groups"]["English outside US"][0]["win"]["count"] == 12
    assert report["ratings"]["all"]["error"].startswith("the ratings have no finite maximum")
    out = tmp_path / "preferences.jsonl"
    assert output_of(capsys, "grade", "export", project, "-o", out)["num_pairs"] == 12
    assert len(out.read_text().splitlines()) == 12


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["report", "missing"], 2, "grade init missing"),
        (["init", "sample", "--items", "wrong.jsonl"], 1, "wrong.jsonl:1"),
        (["invite", "sample", "--role", "boss"], 2, "unknown role"),
        (["serve", "--host", "0.0.0.0"], 2, "needs TLS"),
        (["serve", "--forwarded-allow-ips", "127.0.0.1, *"], 2, "'*' is not an IP address"),
        (["serve", "--tls-key", "key.pem"], 2, "pass both"),
        (["report", "sample"], 1, "no comparison of sample is judged yet"),
        (["progress", "wrong"], 2, "wrong is not a grading project; create one with"),
        (["init", "wrong.jsonl/project"], 1, "cannot be written: Not a directory; choose a folder"),
        (["generate", "wrong.jsonl", "--system", "a=nano", "--locale", "en_GB"], 1, "'en_GB' is not a locale"),
        (["serve", "--project", "sample", "--database", "mysql://x"], 1, "mysql is not supported"),
        (["auto", "sample", "--judge", "http://localhost:1/v1"], 2, "no name of a model"),
        (["auto", "sample", "--judge", "missing"], 2, "no bundle 'missing'"),
        (["generate", "wrong.jsonl", "--system", "nano"], 2, "NAME=MODEL"),
    ],
)
def test_wrong_calls_are_explained(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "--items" not in arguments:
        assert run(["grade", "init", "sample"]) == 0
    Path("wrong.jsonl").write_text("{}")
    assert run(["grade", *arguments]) == code
    assert message in capsys.readouterr().err


def test_an_unreachable_judge_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "wave1"
    write_items(tmp_path / "own.jsonl", [item("i")])
    assert run(["grade", "init", str(project), "--items", str(tmp_path / "own.jsonl")]) == 0
    capsys.readouterr()
    assert run(["grade", "auto", str(project), "--judge", "http://127.0.0.1:9/v1#none"]) == 1
    assert "all 2 requests failed" in capsys.readouterr().err


@pytest.mark.slow
def test_the_shipped_model_answers_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = {"id": "p", "prompt": "Write one sentence about the sea.", "category": "Chat", "locale": "en-US"}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(prompt) + "\n" + json.dumps(prompt | {"id": "q", "prompt": "Hello!"}))
    systems = ["--system", "one=nano", "--system", "two=nano", "--max-tokens", "20"]
    made = output_of(capsys, "grade", "generate", tmp_path / "prompts.jsonl", *systems, "-o", tmp_path / "items.jsonl")
    assert (made["num_items"], made["num_answers"]) == (2, 4)
    assert run(["grade", "init", str(tmp_path / "wave"), "--items", str(tmp_path / "items.jsonl")]) == 0
    capsys.readouterr()
    result = output_of(capsys, "grade", "auto", tmp_path / "wave", "--judge", "nano")
    assert (result["new"], result["replies"], result["failed"]) == (4, 4, [])


@pytest.mark.slow
def test_the_export_trains_a_reward_model(tmp_path: Path) -> None:
    write_tiny_bundle(bundle_place("base"))
    project, out = judged_project(tmp_path / "own", 40), tmp_path / "preferences.jsonl"
    assert run(["grade", "export", str(project), "-o", str(out)]) == 0
    changes = {
        "trainer.budget": '{"type": "StepBudget", "num_steps": 3}',
        "trainer.data.row_tokens": "500",
        "trainer.data.rows_per_step": "2",
    }
    config = prepare_run("on_device.reward_model", "micro", start="base", data=out, changes=changes)
    assert run_recipe(config, tmp_path / "run", "reward").steps == 3


@pytest.mark.slow
def test_a_killed_server_loses_nothing(tmp_path: Path) -> None:
    assert run(["grade", "init", str(tmp_path / "wave")]) == 0
    stored: list[str] = []
    for _ in range(3):
        command = [sys.executable, "-m", "openafm", "grade", "serve", "--project", str(tmp_path / "wave"), "--port", "0"]
        with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                browser = Browser(json.loads(server.stdout.readline())["url"])
                browser.open()
                for _ in range(2):
                    task = browser.get("/task")["task"]
                    browser.post("/judgments", {"task": task["key"], "verdict": "left", "strength": 1})
                    stored.append(task["key"])
            finally:
                server.kill()
    judgments = open_store(open_project(tmp_path / "wave")).all()
    assert [judgment.task for judgment in judgments] == stored
    assert len(set(stored)) == 6
