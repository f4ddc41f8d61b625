"""Yarn from a checkpoint to both engines and back: the logits of transformers at positions beyond the original length."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoints
import gguf_models
import pytest
import torch
import transformers
from checkpoints import VOCAB_ROWS, YARN_SCALING

from openafm.bundle import Bundle
from openafm.bundle.gguf import GGUFError, export_gguf, import_gguf, read_gguf
from openafm.bundle.hugging_face import HuggingFaceError, export_hugging_face, import_hugging_face
from openafm.models.config import AttentionConfig, YarnRotaryConfig
from openafm.runtime.engines.base import Engine
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.engine import NativeEngine

TOLERANCE, POWER = 1e-5, 1e-2
PROMPT = torch.randint(0, VOCAB_ROWS, (1, 96), generator=torch.Generator().manual_seed(1))
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "attention factor": {"attention_factor": 0.8},
    "scales": {"mscale": 0.7, "mscale_all_dim": 1.3},
    "bounds": {"beta_fast": 4.0, "beta_slow": 0.5, "truncate": False},
}


@pytest.fixture(autouse=True)
def _one_thread_no_grad() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    checkpoints.save(folder, "qwen3", rope_parameters=YARN_SCALING)
    return folder


def stated(checkpoint: Path, changes: dict[str, Any]) -> None:
    file = checkpoint / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rope_parameters": YARN_SCALING | changes}))


def theirs(checkpoint: Path) -> torch.Tensor:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    logits: torch.Tensor = model(PROMPT, use_cache=False).logits[0]
    return logits


def difference(engine: Engine, expected: torch.Tensor) -> float:
    """The largest difference of logits as a share of the largest logit."""
    logits = torch.from_numpy(engine.step([(engine.new_sequence(), PROMPT[0].tolist())], logits="all")[0])
    return ((logits - expected).abs().max() / expected.abs().max()).item()


def rotary(bundle: Bundle) -> YarnRotaryConfig:
    attention = bundle.config.layers[0].attention
    assert isinstance(attention, AttentionConfig)
    assert isinstance(attention.position, YarnRotaryConfig)
    return attention.position


@pytest.mark.parametrize("variant", VARIANTS)
def test_both_engines_and_an_export_have_the_logits_of_transformers(variant: str, checkpoint: Path, tmp_path: Path) -> None:
    stated(checkpoint, VARIANTS[variant])
    expected = theirs(checkpoint)
    bundle = import_hugging_face(checkpoint, tmp_path / "bundle").bundle
    assert difference(TorchEngine.open(bundle), expected) <= TOLERANCE
    assert difference(NativeEngine(bundle, num_threads=1), expected) <= TOLERANCE
    assert export_hugging_face(bundle, tmp_path / "export").family == "qwen3"
    assert (theirs(tmp_path / "export") - expected).abs().max() <= TOLERANCE * expected.abs().max()
    assert import_hugging_face(tmp_path / "export", tmp_path / "again").bundle.config == bundle.config


@pytest.mark.parametrize(
    "change", [{"beta_fast": 2.0}, {"beta_slow": 0.5}, {"truncate": False}, {"attention_factor": 1.0}, {"factor": 2.0}]
)
def test_the_comparison_detects_one_changed_value(change: dict[str, Any], checkpoint: Path, tmp_path: Path) -> None:
    stated(checkpoint, {})
    expected = theirs(checkpoint)
    stated(checkpoint, change)
    bundle = import_hugging_face(checkpoint, tmp_path / "bundle").bundle
    assert difference(TorchEngine.open(bundle), expected) > POWER
    assert difference(NativeEngine(bundle, num_threads=1), expected) > POWER


def test_the_context_is_the_extended_one(checkpoint: Path, tmp_path: Path) -> None:
    """Published folders state the length before the extension, and old ones a `rope_scaling`."""
    file = checkpoint / "config.json"
    values = json.loads(file.read_text()) | {"max_position_embeddings": 96, "rope_theta": 1e4}
    for name, scaling, expected in (("extended", {}, 128), ("by default", {"original_max_position_embeddings": None}, 384)):
        old = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32} | scaling
        file.write_text(json.dumps(values | {"rope_parameters": None, "rope_scaling": old}))
        assert import_hugging_face(checkpoint, tmp_path / name).bundle.config.context_length == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factor": 1e300}, "max_position_embeddings is"),
        ({"original_max_position_embeddings": 1e300}, "max_position_embeddings is"),
        ({"attention_factor": math.inf}, "attention_factor must be finite"),
        ({"beta_fast": math.inf}, "fast_turns must be finite"),
        ({"factor": math.nan}, "factor must be finite"),
        ({"beta_slow": 64}, "slow_turns must be positive and below fast_turns"),
    ],
)
def test_values_of_no_model_are_refused(change: dict[str, Any], message: str, checkpoint: Path, tmp_path: Path) -> None:
    stated(checkpoint, change)
    with pytest.raises(HuggingFaceError, match=message):
        import_hugging_face(checkpoint, tmp_path / "bundle")


@pytest.mark.parametrize("attention_factor", [None, 0.8])
def test_a_gguf_file_there_and_back_has_the_same_rotation(attention_factor: float | None, tmp_path: Path) -> None:
    scaling = YARN_SCALING | {"attention_factor": attention_factor}
    bundle = gguf_models.bundle(tmp_path, "qwen3", num_hidden_layers=1, rope_parameters=scaling)
    export_gguf(bundle, tmp_path / "model.gguf")
    metadata = read_gguf(tmp_path / "model.gguf").metadata
    assert metadata["qwen3.rope.scaling.type"] == "yarn"
    assert ("qwen3.rope.scaling.attn_factor" in metadata) == (attention_factor is not None)
    found, expected = (rotary(each) for each in (import_gguf(tmp_path / "model.gguf", tmp_path / "again").bundle, bundle))
    assert found.attention_factor == pytest.approx(expected.attention_factor, rel=1e-6)
    assert found.kept_shares(32) == expected.kept_shares(32)
    assert (found.factor, found.theta) == (expected.factor, expected.theta)


def test_bounds_that_llama_cpp_does_not_read_are_refused(tmp_path: Path) -> None:
    bundle = gguf_models.bundle(tmp_path, "qwen3", num_hidden_layers=1, rope_parameters=YARN_SCALING | {"beta_fast": 16.0})
    with pytest.raises(GGUFError, match="reads no bounds of yarn"):
        export_gguf(bundle, tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()
