"""Charts by a model: its code runs in the sandbox only, and charts that do not show the data are refused."""

from __future__ import annotations

import random

import pytest

from openafm.data.drawing.charts.model import ChartCodeError, code_of, draw_model_chart
from openafm.data.drawing.charts.model_corpus import draw_model_charts
from openafm.data.drawing.table_questions import check_answers
from openafm.sandbox import SandboxMissingError, bubblewrap, sandbox_reason

works = pytest.mark.skipif(bool(sandbox_reason()), reason=sandbox_reason() or "works")
CODE = """
import json
import matplotlib.pyplot as plt
data = json.load(open("data.json"))
plt.figure(figsize=(7, 5))
plt.barh(data["rows"], [row[0] for row in data["values"]])
plt.title(data["title"])
plt.xlabel(data["measure"])
plt.tight_layout()
"""


@works
def test_code_of_a_model_draws_a_chart():
    prompts = []

    def write(prompt):
        prompts.append(prompt)
        return f"Here it is:\n```python\n{CODE}\n```\nDone."

    drawn = draw_model_chart(write, random.Random(0), "en", "train", kind="bar")
    assert "a bar chart" in prompts[0]
    assert check_answers("en", drawn.transcription, drawn.questions) == []
    labels = [region.label for region in drawn.images[0].regions]
    assert set(drawn.transcription.splitlines()[0][2:].split("\n")) <= set(labels)
    assert (drawn.images[0].width, drawn.images[0].height) == (700, 500)
    assert drawn.log["code"] == CODE.strip()


@works
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import matplotlib.pyplot as plt\nplt.plot([1, 2])", "the chart does not show"),
        ("raise SystemExit('no')", "the plotting code failed: no"),
        ("open('/root/x', 'w')", "the plotting code failed: (FileNotFound|Permission|OS)"),
    ],
)
def test_charts_without_the_data_are_refused(code, message):
    with pytest.raises(ChartCodeError, match=message):
        draw_model_chart(lambda prompt: code, random.Random(0), "en", "train", kind="bar")


@pytest.mark.parametrize("answer", ["", "```python\n```", "draw it (", "x" * 30_000, "\0"])
def test_answers_that_are_not_code_are_refused(answer):
    with pytest.raises(ChartCodeError):
        code_of(answer)


def test_without_a_sandbox_the_code_is_not_run(monkeypatch, tmp_path):
    monkeypatch.setattr(bubblewrap, "sandbox_reason", lambda: "bubblewrap is missing")
    code = f"open({str(tmp_path / 'ran')!r}, 'w')"
    with pytest.raises(SandboxMissingError, match="bubblewrap is missing"):
        draw_model_chart(lambda prompt: code, random.Random(0), "en", "train", kind="bar")
    assert not (tmp_path / "ran").exists()


@works
@pytest.mark.slow
def test_a_corpus_of_a_model_counts_failures_and_is_resumed(tmp_path):
    calls = []

    def write(prompt):
        calls.append(prompt)
        return CODE if len(calls) == 1 else "not code ("

    first = draw_model_charts(write, tmp_path / "corpus", model="scripted", count=2, languages=("en",))
    assert (first.num_documents + first.dropped["chart_code"], first.config["model"]) == (2, "scripted")
    again = draw_model_charts(write, tmp_path / "corpus", model="scripted", count=2, languages=("en",))
    assert again.digest == first.digest
    assert len(calls) == 2


def test_a_session_writes_code():
    from scripted_models import ScriptedModel

    from openafm.recipes.pipelines.drawing import code_writer

    assert code_writer(ScriptedModel("```python\nx = 1\n```"))("Draw.") == "```python\nx = 1\n```"
