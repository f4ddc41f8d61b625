"""The HTML report: complete, without requests, and safe for text of models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from openafm.core.errors import UsageError
from openafm.evaluation.harness.answerer import RecordedAnswerer
from openafm.evaluation.harness.cache import OutputCache
from openafm.evaluation.harness.compare import compare_runs
from openafm.evaluation.harness.report import write_comparison, write_report
from openafm.evaluation.harness.results import open_run
from openafm.evaluation.harness.runner import run_tasks
from openafm.evaluation.harness.table import report_table
from openafm.evaluation.harness.task import Item, Output, Prompt, TaskConfig, Verdict

ATTACK = "</script><script>alert(1)</script><!-- <img src=x>"


@dataclass(frozen=True, kw_only=True)
class EchoConfig(TaskConfig):
    """Outputs that equal the id are right."""

    def items(self, data: Path) -> Iterator[Item]:
        for id in ("a", "b", "c"):
            yield Item(id=id, prompt=Prompt(text=f"{id}?"), language="de" if id == "c" else "en")

    def judge(self, item: Item, output: Output) -> Verdict:
        return Verdict(scores={"accuracy": float(output.text == item.id)}, extraction=output.text, expected=item.id)


def page_data(path: Path) -> dict[str, Any]:
    """Return the data of a page, which is one script that nothing inside ends early."""
    html = path.read_text(encoding="utf-8")
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert html.count("</script>") == 2
    assert not re.search(r"(src|href)=|https?://|@import|url\(", html.replace(text, ""))
    assert "default-src 'none'" in html
    return dict(json.loads(text))


def run_of(folder: Path, name: str, outputs: dict[str, str]) -> None:
    cache = OutputCache(folder / "outputs.sqlite")
    answerer = RecordedAnswerer(lambda prompt: Output(text=outputs[prompt.text[0]]), name)
    run_tasks(answerer, {"echo": EchoConfig()}, folder, folder / name, cache)
    cache.close()


def test_a_report_and_a_comparison(tmp_path: Path) -> None:
    run_of(tmp_path, "one", {"a": "a", "b": ATTACK, "c": "c"})
    run_of(tmp_path, "two", {"a": "x", "b": "b", "c": "c"})
    write_report(open_run(tmp_path / "one"), tmp_path / "one.html")
    data = page_data(tmp_path / "one.html")
    assert [(row["part"], row["count"]) for row in data["rows"]] == [("all", 3), ("de", 1), ("en", 2)]
    first = data["samples"][0]  # wrong ones first
    assert (first["id"], first["outputs"][0]["text"]) == ("b", ATTACK)
    comparison = compare_runs(open_run(tmp_path / "one"), open_run(tmp_path / "two"))
    write_comparison(comparison, tmp_path / "both.html")
    data = page_data(tmp_path / "both.html")
    assert data["models"] == ["one", "two"]
    assert [sample["id"] for sample in data["samples"]] == ["a", "b"]  # those that differ
    assert [output["value"] for output in data["samples"][0]["outputs"]] == [1.0, 0.0]


def test_the_table_of_several_runs(tmp_path: Path) -> None:
    run_of(tmp_path, "one", {"a": "a", "b": "b", "c": "c"})
    run_of(tmp_path, "two", {"a": "x", "b": "x", "c": "x"})
    run_of(tmp_path, "three", {"a": "a", "b": "b", "c": "x"})
    table = report_table([open_run(tmp_path / name) for name in ("one", "two", "three")])
    assert table.header == ("model", "echo")  # no bundle, so no bits per weight
    assert [row[0] for row in table.rows] == ["one", "two", "2 - 1", "three", "3 - 1"]
    assert table.rows[2][1] == "-100.0 [-100.0, -100.0] *"
    assert table.rows[4][1].startswith("-33.3 [")
    assert not table.rows[4][1].endswith("*")  # one item of three
    with pytest.raises(UsageError, match="two runs or more"):
        report_table([open_run(tmp_path / "one")])
