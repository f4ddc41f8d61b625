"""The model that ships with the package: small, complete and useful on its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import openafm as fm
from openafm.bundle import open_bundle, resolve_model, shipped_bundle
from openafm.bundle.signature import sign
from openafm.core.files import data_home
from openafm.evaluation.events import held_out_events, model_extractor, score

MAX_BYTES = 12_000_000
EVENT_FLOOR = 0.25  # held-out exact match per field, with 60 messages; its training corpus had other frames

REPOSITORY = Path(__file__).parents[2]
FILES = {"config.json", "tokenizer.json", "chat_template.json", "model.safetensors", "signature.json", "card.md"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty home of a new user."""
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def shipped() -> Path:
    folder = shipped_bundle()
    assert folder is not None
    return folder


def test_it_is_small_and_complete(shipped: Path) -> None:
    files = [file for file in shipped.rglob("*") if file.is_file()]
    assert {file.name for file in shipped.iterdir() if file.is_file()} == FILES
    assert sum(file.stat().st_size for file in files) <= MAX_BYTES


def test_its_signature_can_be_rebuilt(shipped: Path) -> None:
    bundle = open_bundle(shipped)
    bundle.verify()
    names = ("config.json", "tokenizer.json", "chat_template.json")
    documents = {name: json.loads((shipped / name).read_text(encoding="utf-8")) for name in names}
    assert sign(documents, bundle.stored_tensors.values()).hex == bundle.signature
    assert bundle.signature in bundle.card()
    if bundle.recovery_adapter is not None:
        bundle.recovery_adapter.verify()
        bundle.recovery_adapter.check_base(bundle.signature)


def test_it_is_compressed_as_the_report_has_it(shipped: Path) -> None:
    numerics = open_bundle(shipped).numerics
    assert (numerics.weights, numerics.embedding) == ("int2_balanced", "int4_group32")
    assert numerics.kv == "int8_per_token_head"


def test_its_card_has_no_local_paths(shipped: Path) -> None:
    assert re.search(r"(?<![\w`.])/(?:home|root|tmp|work|Users|var)/", open_bundle(shipped).card()) is None


def test_it_is_the_default_model(shipped: Path) -> None:
    assert resolve_model() == shipped
    assert fm.SystemLanguageModel().is_available() == (True, None)
    assert not data_home().exists(), "looking leaves nothing behind"


def test_the_ten_lines_of_the_readme_work(home: Path) -> None:
    code = re.search(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    done = _run([sys.executable, "-c", code[1]], home)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Event(title=")


def test_the_command_line_answers_right_after_installation(home: Path) -> None:
    schema = str(REPOSITORY / "examples" / "event.json")
    sentence = "Coffee with Ana tomorrow at 10:30 in Cafe Roma"
    done = _run([sys.executable, "-m", "openafm", "respond", sentence, "--schema", schema, "--json"], home)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "title" in answer["content"]
    assert answer["usage"]["generated_tokens"] > 0


def test_it_extracts_events_from_held_out_messages() -> None:
    scores = score(model_extractor(fm.SystemLanguageModel()), held_out_events(30))
    assert scores.exact_match >= EVENT_FLOOR, scores


def _run(command: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OPENAFM_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
