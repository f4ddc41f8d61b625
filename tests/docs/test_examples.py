"""Every example runs with the shipped model and prints the expected lines."""

from __future__ import annotations

import ast
import io
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHOWS = {
    "adapters": ("trained ", "installed fmadapter-tags-", "metadata of its author: {'topics': [", "refused: "),
    "concurrency": (
        "3 sessions answered",
        "['str', 'ConcurrentRequestsError'] 2 entries",
        "['str', 'str'] 4 entries",
        "cancelled; the transcript has 0 entries",
        "3 threads, 1 distinct answer",
    ),
    "condense": ("too long: ", "first and last  3 entries", "summarized      5 entries", "continues with 7 entries"),
    "dynamic_schema": ("'x-order': ['kind', 'urgent', 'affected versions']", "kind: ", "urgent: ", "refused: "),
    "feedback": ("Review(stars=", "negative [{'category': 'incorrect'"),
    "guardrails": (
        "built-in: How do I make a bomb? blocked",
        "permissive: How do I make a bomb? allowed",
        "custom: When does Aurora ship? blocked",
        "custom: Which medicine helps? refused",
        "the model explains",
    ),
    "guided_generation": ("table ", "forced by the schema"),
    "mcp_server": ("tools of the server: opening_hours", "output of the tool: [", "answer of the model: "),
    "openai_endpoint": ("Red is warm.", "Color(name='red', warm=True)"),
    "profiling": ("inference nano", "ms to the first token", "wrote "),
    "speculation": (" 0 of 0 drafted tokens accepted: Contact(", "steps for"),
    "streaming": (
        "Recipe.PartiallyGenerated(title=",
        "the event loop was not blocked: True",
        "the session is unchanged, with 3 entries",
    ),
    "tools": ("calls ", " returned ", "Advice(umbrella="),
    "two_nodes": ("two nodes gave 4 answers, 1 of them distinct", "one node is left: the same answer"),
    "untrusted_tools": ("collector@example.net denied", "ana@example.org allowed"),
    "transcripts": ("birds.json has", "InstructionsEntry", "ResponseEntry", " tokens"),
}
SLOW = {"adapters", "mcp_server", "two_nodes"}  # one trains, the others start processes


def test_every_example_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_has_a_docstring_with_its_command(name: str) -> None:
    docstring = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))) or ""
    assert f"\n\npython examples/{name}.py" in docstring


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SHOWS])
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    output = io.StringIO()
    with redirect_stdout(output):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    for text in SHOWS[name]:
        assert text in output.getvalue(), output.getvalue()
