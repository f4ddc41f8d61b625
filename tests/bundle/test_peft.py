"""Adapters as PEFT folders, both ways: the logits of PEFT itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import peft
import pytest
import torch
import transformers

from openafm.adapters.package import AdapterMismatchError, AdapterPackage
from openafm.bundle import Bundle, write_bundle
from openafm.bundle.hugging_face import HuggingFaceError, export_hugging_face, import_hugging_face
from openafm.bundle.hugging_face.peft import export_peft, import_peft
from openafm.cli.main import run
from openafm.core.errors import UsageError
from openafm.models.config import AttentionConfig
from openafm.runtime.engines.torch_engine import TorchEngine

PROMPT = np.random.default_rng(3).integers(0, 600, 40).tolist()


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Path]:
    folder = tmp_path_factory.mktemp("peft")
    checkpoints.save(folder / "checkpoint", "qwen3")
    return import_hugging_face(folder / "checkpoint", folder / "bundle").bundle, folder / "checkpoint"


def trained(checkpoint: Path, folder: Path, **settings: Any) -> torch.Tensor:
    """Save a random PEFT adapter and return its logits."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "k_proj", "down_proj"]} | settings)
    adapted = peft.get_peft_model(model, config)
    torch.manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.normal_(std=0.2)
    adapted.save_pretrained(str(folder))
    return adapted(torch.tensor([PROMPT])).logits[0]


def logits(bundle: Bundle, adapter: AdapterPackage | None = None) -> torch.Tensor:
    engine = TorchEngine.open(bundle, adapter)
    return torch.from_numpy(engine.step([(engine.new_sequence(), PROMPT)], "all")[0])


def peft_logits(checkpoint: Path, folder: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return peft.PeftModel.from_pretrained(model, str(folder)).eval()(torch.tensor([PROMPT])).logits[0]


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}])
def test_an_imported_adapter_has_the_logits_of_peft(base: tuple[Bundle, Path], tmp_path: Path, settings: Any) -> None:
    bundle, checkpoint = base
    expected = trained(checkpoint, tmp_path / "peft", **settings)
    adapter = import_peft(tmp_path / "peft", bundle, tmp_path / "a.fmadapter", name="a")
    ours = logits(bundle, adapter)
    assert (ours - logits(bundle)).abs().max() > 0.1
    assert (ours - expected).abs().max() < 1e-4
    export_peft(adapter, bundle, tmp_path / "again")
    assert (peft_logits(checkpoint, tmp_path / "again") - expected).abs().max() < 1e-4


def test_an_adapter_of_interleaved_rotary_pairs(base: tuple[Bundle, Path], tmp_path: Path) -> None:
    """Rows of queries and keys are in another order here than in the exported folder."""
    bundle, _ = base
    layers = tuple(
        replace(layer, attention=replace(layer.attention, position=replace(layer.attention.position, layout="interleaved")))
        for layer in bundle.config.layers
        if isinstance(layer.attention, AttentionConfig)
    )
    own = write_bundle(
        tmp_path / "own",
        config=replace(bundle.config, layers=layers),
        tokenizer=bundle.tokenizer,
        template=bundle.template,
        tensors=bundle.tensors(),
    )
    export_hugging_face(own, tmp_path / "exported")
    expected = trained(tmp_path / "exported", tmp_path / "peft")
    adapter = import_peft(tmp_path / "peft", own, tmp_path / "a.fmadapter", name="a")
    assert (logits(own, adapter) - expected).abs().max() < 1e-4
    export_peft(adapter, own, tmp_path / "again")
    assert (peft_logits(tmp_path / "exported", tmp_path / "again") - expected).abs().max() < 1e-4
    with pytest.raises(AdapterMismatchError):
        export_peft(adapter, bundle, tmp_path / "other")
    with pytest.raises(UsageError, match="exists"):
        export_peft(adapter, own, tmp_path / "again")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "use_dora=True; only plain LoRA"),
        ({"peft_type": "IA3"}, "peft_type='IA3'"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"r": 0}, "not the config of a LoRA adapter"),
        ({"r": 5}, "needs"),
        ({"lora_alpha": None}, "not the config of a LoRA adapter"),
    ],
)
def test_other_adapters_are_refused(base: tuple[Bundle, Path], tmp_path: Path, change: Any, message: str) -> None:
    bundle, checkpoint = base
    trained(checkpoint, tmp_path / "peft")
    file = tmp_path / "peft" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(HuggingFaceError, match=message):
        import_peft(tmp_path / "peft", bundle, tmp_path / "a.fmadapter", name="a")
    assert not (tmp_path / "a.fmadapter").exists()


def test_adapters_of_some_layers_only_are_refused(base: tuple[Bundle, Path], tmp_path: Path) -> None:
    bundle, checkpoint = base
    trained(checkpoint, tmp_path / "peft", layers_to_transform=[1])
    with pytest.raises(HuggingFaceError, match="layers_to_transform"):
        import_peft(tmp_path / "peft", bundle, tmp_path / "a.fmadapter", name="a")
    with pytest.raises(HuggingFaceError, match="is missing"):
        import_peft(tmp_path, bundle, tmp_path / "a.fmadapter", name="a")


def test_verbs(
    base: tuple[Bundle, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    bundle, checkpoint = base
    expected = trained(checkpoint, tmp_path / "peft")
    assert run(["import", "peft", str(tmp_path / "peft"), "--base", str(bundle.path), "--name", "tone"]) == 0
    assert run(["export", str(bundle.path), "--to", "peft", "--adapter", "tone", "--out", str(tmp_path / "out")]) == 0
    assert (peft_logits(checkpoint, tmp_path / "out") - expected).abs().max() < 1e-4
    capsys.readouterr()
    assert run(["export", str(bundle.path), "--to", "peft", "--out", str(tmp_path / "none")]) == 2
    assert "--adapter" in capsys.readouterr().err
