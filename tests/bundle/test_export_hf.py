"""Exporting bundles to transformers: the same logits and chat texts, or a refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
import transformers
from checkpoints import FAMILIES

from openafm.bundle import Bundle, shipped_bundle, write_bundle
from openafm.bundle.hugging_face import HuggingFaceError, export_hugging_face, import_hugging_face
from openafm.bundle.hugging_face.exporter import checkpoint_config
from openafm.cli.main import run
from openafm.core.errors import UsageError
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    QKNormConfig,
    RotaryConfig,
    SharedKeysValuesConfig,
)
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.conversation import AssistantTurn, Instructions, Turn, UserTurn
from openafm.tokenizer.template import opened

TALK: tuple[Turn, ...] = (
    UserTurn(text='What is {{ 17 * 23 }}? "quoted" \\n'),
    AssistantTurn(text="391 👍"),
    UserTurn(text="今日は\n\nand more"),
)
ATTENTION = AttentionConfig(
    num_heads=4, head_dim=16, keys_values=OwnKeysValuesConfig(num_heads=2), position=RotaryConfig(theta=1e4), qk_norm=None
)
CONFIG = DecoderConfig(
    vocab_size=330,
    dim=64,
    layers=(LayerConfig(attention=ATTENTION, feed_forward=DenseFeedForwardConfig(hidden_dim=96)),) * 2,
    context_length=256,
)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


def messages(turns: tuple[Turn, ...]) -> list[dict[str, str]]:
    roles = {Instructions: "system", UserTurn: "user", AssistantTurn: "assistant"}
    return [{"role": roles[type(turn)], "content": turn.text} for turn in turns]


def own_bundle(path: Path, config: DecoderConfig = CONFIG) -> Bundle:
    torch.manual_seed(0)
    decoder = config.build()
    for name, parameter in decoder.named_parameters():
        if "norm" in name:
            parameter.uniform_(0.5, 1.5)
    tensors = {name: tensor.numpy() for name, tensor in decoder.state_dict().items()}
    return write_bundle(path, config=config, tokenizer=Tokenizer(merges=()), template=ChatTemplate(), tensors=tensors)


def logits(bundle: Bundle, tokens: list[int]) -> torch.Tensor:
    engine = TorchEngine.open(bundle)
    (logits_NV,) = engine.step([(engine.new_sequence(), tokens)], logits="all")
    return torch.from_numpy(logits_NV)


def check_parity(bundle: Bundle, folder: Path) -> None:
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    for turns in (TALK, (Instructions(text="Be brief."), *TALK)):
        tokens = bundle.template.encode(bundle.tokenizer, opened(turns)).tokens
        tokens += bundle.template.generation_prompt(bundle.tokenizer)
        assert tokenizer.apply_chat_template(messages(turns), add_generation_prompt=True)["input_ids"] == tokens
    expected = theirs(torch.tensor([tokens]), use_cache=False).logits[0]
    scale = expected.abs().max()
    error = (logits(bundle, tokens) - expected).abs().max() / scale
    assert error <= 1e-6, (error, scale)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_imported_checkpoint_is_exported_as_it_was(family: str, tmp_path: Path) -> None:
    theirs = checkpoints.save(tmp_path / "model", family)
    bundle = import_hugging_face(tmp_path / "model", tmp_path / "bundle").bundle
    report = export_hugging_face(bundle, tmp_path / "export")
    assert report.family == family
    again: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export").eval()
    assert type(again) is type(theirs)
    prompt = torch.arange(40)[None]
    assert torch.equal(again(prompt, use_cache=False).logits, theirs(prompt, use_cache=False).logits)
    assert import_hugging_face(tmp_path / "export", tmp_path / "again").bundle.config == bundle.config


@pytest.mark.parametrize("qk_norm", [None, QKNormConfig(order="before_position")], ids=["llama", "qwen3"])
def test_an_own_model_gives_the_logits_and_texts_of_transformers(qk_norm: QKNormConfig | None, tmp_path: Path) -> None:
    """Interleaved rotary pairs become halves; the norm weights move with their rows."""
    layer = replace(CONFIG.layers[0], attention=replace(ATTENTION, qk_norm=qk_norm))
    bundle = own_bundle(tmp_path / "bundle", replace(CONFIG, layers=(layer, layer)))
    report = export_hugging_face(bundle, tmp_path / "export")
    assert report.family == ("llama" if qk_norm is None else "qwen3")
    assert report.notes == ("the chat template has no tools and no response formats",)
    check_parity(bundle, tmp_path / "export")


def test_several_weight_files_have_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = own_bundle(tmp_path / "bundle")
    monkeypatch.setattr("openafm.bundle.hugging_face.exporter.MAX_SHARD_BYTES", 50_000)
    export_hugging_face(bundle, tmp_path / "export")
    index = json.loads((tmp_path / "export" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    check_parity(bundle, tmp_path / "export")


def test_other_shapes_are_refused() -> None:
    layer = CONFIG.layers[0]
    after = replace(layer, attention=replace(ATTENTION, qk_norm=QKNormConfig(order="after_position")))
    shared = replace(layer, attention=replace(ATTENTION, keys_values=SharedKeysValuesConfig(layer=0)))
    wider = replace(layer, feed_forward=DenseFeedForwardConfig(hidden_dim=128))
    for other in (after, shared, wider):
        with pytest.raises(HuggingFaceError, match="uniform dense layers"):
            checkpoint_config(replace(CONFIG, layers=(layer, other)))


def test_compressed_bundles_and_existing_folders_are_refused(tmp_path: Path) -> None:
    shipped = shipped_bundle()
    assert shipped is not None
    with pytest.raises(HuggingFaceError, match=r"nano is compressed.*openafm compress decode nano`"):
        export_hugging_face(Bundle(shipped), tmp_path / "export")
    assert not (tmp_path / "export").exists()
    (tmp_path / "export").mkdir()
    with pytest.raises(UsageError, match="exists"):
        export_hugging_face(own_bundle(tmp_path / "bundle"), tmp_path / "export")


def test_the_command_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_bundle(tmp_path / "bundle")
    assert run(["export", str(tmp_path / "bundle"), "--to", "hf", "--out", str(tmp_path / "export"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["family"] == "llama"
    assert (tmp_path / "export" / "chat_template.jinja").is_file()
