"""Every command of docs/train-your-own.md, in order, with two training steps each."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path

import pytest

from openafm.bundle import open_bundle
from openafm.cli.main import run
from openafm.recipes.sources.own_data import data_of

PAGE = Path(__file__).parents[2] / "docs" / "train-your-own.md"
TINY = {
    "trainer.budget": '{"type": "StepBudget", "num_steps": 2}',
    "trainer.data.rows_per_step": "1",
    "trainer.data.row_tokens": "128",
    "trainer.evaluation.num_batches": "1",
    "trainer.log_every": "1",
}


def write_data(folder: Path) -> None:
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 7))) for _ in range(700)]

    def text(count: int) -> str:
        return " ".join(chance.choices(words, k=count))

    (folder / "notes").mkdir()
    for language in ("en", "de"):
        lines = [json.dumps({"text": text(40)}) for _ in range(60)]
        (folder / "notes" / f"{language}.jsonl").write_text("\n".join(lines))
    for name, count in (("chats", 80), ("eval", 3)):
        turns = [
            [{"role": "user", "content": text(6)}, {"role": "assistant", "content": [{"type": "text", "text": text(4)}]}]
            for _ in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps({"messages": messages}) for messages in turns))


@pytest.mark.slow
def test_every_command_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for module in ("evaluation.events", "evaluation.held_out", "evaluation.calculator", "evaluation.tool_requests"):
        monkeypatch.setattr(f"openafm.{module}.MAX_TOKENS", 4)
    monkeypatch.setattr("openafm.evaluation.data_scores.MAX_TOKENS", 8)
    write_data(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    (tmp_path / "data.toml").write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    (tmp_path / "plain.py").write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    commands = [shlex.split(line) for line in re.findall(r"^    openafm (.*)$", page, re.MULTILINE)]
    assert len(commands) >= 19
    for command in commands:
        is_ablation = command[:2] == ["recipes", "ablate"]
        changed = TINY.items() if command[0] == "train" or is_ablation else ()
        tiny = [part for key, value in changed for part in ("--set", f"{key}={value}")]
        tiny += ["--steps", "2", "--examples", "2"] if is_ablation else []  # the last one of an option counts
        code = run([*command, *tiny])
        captured = capsys.readouterr()
        # A model of two steps may answer with nothing, which `respond` reports.
        assert code == 0 or "empty answer" in captured.err, (command, captured.err)
    data = data_of(open_bundle("recovered"))
    assert data is not None
    assert [source.name for source in data.sources] == ["chats", "notes"]
    assert open_bundle("recovered").recovery_adapter is not None
    samples = (tmp_path / "runs" / "on_device.sft-micro" / "metrics.jsonl").read_text()
    assert '"samples"' in samples
    from transformers import AutoModelForCausalLM  # takes seconds

    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert exported.config.model_type == "llama"
    assert (tmp_path / "exported" / "chat_template.jinja").is_file()


def test_the_page_stays_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= 125
