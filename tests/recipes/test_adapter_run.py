"""Adapter training: refused input, resumption after SIGKILL, export."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_sources import write_source

from openafm.adapters.config import LoRAConfig
from openafm.adapters.metadata import AdapterNameError
from openafm.adapters.package import AdapterAbout, AdapterNotFoundError, IncompleteDraftError, open_adapter
from openafm.bundle import Bundle, BundleError, open_bundle, write_bundle
from openafm.core.config import ConfigError
from openafm.core.errors import UsageError
from openafm.data.documents import InputPathError, NotADocumentError, NotTextError
from openafm.data.shards.token_shards import open_shards
from openafm.recipes.adapters.export import export_adapter
from openafm.recipes.adapters.train import AdapterRunResult, adapter_run, train_adapter, train_draft
from openafm.runtime.decoding.speculation import DraftMismatchError
from openafm.runtime.engines.selection import open_engine
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.conversation import Conversation
from openafm.training.checkpoints.record import AnotherRunError

COLORS = ("red", "blue", "green")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))


def conversation(index: int) -> dict[str, Any]:
    color = COLORS[index % 3]
    question = {"role": "user", "content": f"The color is {color}."}
    return {"messages": [question, {"role": "assistant", "content": f"It is {color}, friend."}]}


def write_lines(path: Path, num_lines: int) -> Path:
    path.write_text("".join(json.dumps(conversation(index)) + "\n" for index in range(num_lines)))
    return path


def run(tmp_path: Path, folder: str = "run", **changes: Any) -> AdapterRunResult:
    """Train on 18 conversations, evaluate on 6, with a tiny base."""
    base = tmp_path / "base"
    if not base.exists():
        write_source(base)
    data, evaluation = write_lines(tmp_path / "train.jsonl", 18), write_lines(tmp_path / "eval.jsonl", 6)
    values = {"lora": LoRAConfig(rank=4), "epochs": 3, "learning_rate": 1e-2} | changes
    return train_adapter(adapter_run(open_bundle(base), data, evaluation, values), tmp_path / folder, "colors")


@pytest.mark.long
def test_training_lowers_the_loss_of_answers(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert len(result.eval_losses) == 3
    assert result.eval_losses[2] < result.eval_losses[0] - 0.1
    assert (result.conversations, result.rank, result.base) == (18, 4, "base")
    base = open_bundle(tmp_path / "base")
    adapter = open_adapter(Path(result.adapter))
    adapter.verify()
    adapter.check_base(base.signature)
    assert adapter.path == tmp_path / "run" / "colors.fmadapter"
    assert adapter.identifier == result.identifier == f"fmadapter-colors-{base.signature[:7]}"
    assert _loss(base, adapter) < _loss(base, None)
    assert _loss(base, adapter) == pytest.approx(result.eval_losses[2], rel=0.02)


def _loss(base: Bundle, adapter: Any) -> float:
    """Return the loss of the answers of the evaluation set, as an engine computes it."""
    engine = open_engine(base, adapter)
    losses: list[float] = []
    for index in range(6):
        encoded = base.template.encode_conversation(base.tokenizer, Conversation.from_dict(conversation(index)))
        (logits_NV,) = engine.step([(engine.new_sequence(), encoded.tokens[:-1])], "all")
        chances = logits_NV - np.log(np.exp(logits_NV).sum(-1, keepdims=True))
        pairs = zip(chances, encoded.tokens[1:], encoded.loss_mask[1:], strict=True)
        losses += [-float(row[token]) for row, token, learned in pairs if learned]
    return float(np.mean(losses))


@pytest.mark.long
def test_an_epoch_reads_every_conversation_once_and_masks_the_prompts(tmp_path: Path) -> None:
    result = run(tmp_path, batch_size=2)
    shards = open_shards(tmp_path / "run" / "data" / "train")
    num_tokens = sum(int(shards.offsets(shard)[-1]) for shard in range(shards.num_shards))
    assert result.tokens == 3 * num_tokens
    assert 2 * 18 // 4 <= result.steps / 3 <= 2 * 18 // 2  # about two conversations per step
    base = open_bundle(tmp_path / "base")
    encoded = base.template.encode_conversation(base.tokenizer, Conversation.from_dict(conversation(0)))
    masks = shards.loss_mask(0, 0, len(encoded.tokens))
    assert shards.tokens(0, 0, len(encoded.tokens)).tolist() == list(encoded.tokens)
    assert masks.tolist() == list(encoded.loss_mask)
    assert 0 < masks.sum() < len(masks) / 2 + 5


BAD_LINES = {
    "no JSON": (NotADocumentError, "is not a JSON value"),
    "[]": (NotADocumentError, "needs a text"),
    '{"text": "a text"}': (NotADocumentError, "learns from conversations"),
    '{"messages": []}': (NotADocumentError, "non-empty list"),
    '{"messages": [{"role": "king", "content": "x"}]}': (NotADocumentError, "king"),
    '{"messages": [{"role": "user", "content": 3}]}': (NotADocumentError, "content"),
    '{"messages": [{"role": "user", "content": "and now?"}]}': (NotADocumentError, "without an assistant's turn"),
    "\0": (NotTextError, "binary"),
}


@pytest.mark.parametrize(("part", "line"), [*(("train", line) for line in BAD_LINES), ("eval", "[]")])
def test_a_bad_line_is_refused_with_its_number_before_training(tmp_path: Path, part: str, line: str) -> None:
    base = write_source(tmp_path / "base")
    files = {name: write_lines(tmp_path / f"{name}.jsonl", 4) for name in ("train", "eval")}
    with files[part].open("a") as file:
        file.write(f"\n{line}\n")
    error, message = BAD_LINES[line]
    with pytest.raises(error, match=rf"{part}\.jsonl:6.*{message}"):
        train_adapter(adapter_run(base, files["train"], files["eval"]), tmp_path / "run", "colors")
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert not list((tmp_path / "run").glob("*.fmadapter"))


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    base, data = write_source(tmp_path / "base"), write_lines(tmp_path / "train.jsonl", 4)
    with pytest.raises(InputPathError):
        train_adapter(adapter_run(base, tmp_path / "none.jsonl", None), tmp_path / "run", "colors")
    with pytest.raises(AdapterNameError):
        train_adapter(adapter_run(base, data, None), tmp_path / "run", "two words")
    (tmp_path / "empty.jsonl").write_text("\n")
    for files in ((tmp_path / "empty.jsonl", None), (data, tmp_path / "empty.jsonl")):
        with pytest.raises(NotADocumentError, match=r"empty\.jsonl holds no conversation"):
            train_adapter(adapter_run(base, *files), tmp_path / "run", "colors")
    for values in ({"epochs": 0}, {"batch_size": 0}, {"learning_rate": 0.0}, {"lora": {"rank": 0}}, {"epoch": 3}):
        with pytest.raises(ConfigError):
            adapter_run(base, data, None, values)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_another_run_is_not_overwritten(tmp_path: Path) -> None:
    digest = open_adapter(Path(run(tmp_path, epochs=1).adapter)).digest
    for change, message in (({"epochs": 2}, "epochs is 1, not 2"), ({"lora": LoRAConfig(rank=5)}, "lora.rank")):
        with pytest.raises(AnotherRunError, match=message):
            run(tmp_path, **({"epochs": 1} | change))
    again = run(tmp_path, epochs=1, checkpoint={"every_steps": 1})
    assert open_adapter(Path(again.adapter)).digest == digest


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_adapter(tmp_path: Path) -> None:
    """After SIGKILL at the first checkpoint the same call gives a bit-identical adapter."""
    often: dict[str, Any] = {"checkpoint": {"every_steps": 4}, "epochs": 4}
    expected = open_adapter(Path(run(tmp_path, "undisturbed", **often).adapter)).digest
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom pathlib import Path\n"
        f"import test_adapter_run as t\nt.run(Path({str(tmp_path)!r}), 'killed', **{often!r})"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 60
    while not list((tmp_path / "killed" / "checkpoints").glob("step-*")) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list((tmp_path / "killed").glob("*.fmadapter"))
    result = run(tmp_path, "killed", **often)
    assert open_adapter(Path(result.adapter)).digest == expected
    assert len(result.eval_losses) == 4


def test_export(tmp_path: Path) -> None:
    result = run(tmp_path, epochs=1)
    about = AdapterAbout(author="A. Uthor", creator_defined={"use": ["colors"]})
    exported = export_adapter(tmp_path / "run", "tints", tmp_path / "out", about)
    assert exported.path == tmp_path / "out" / "tints.fmadapter"
    assert exported.metadata.creatorDefined == {"use": ["colors"]}
    again = export_adapter(Path(result.adapter), "tints", tmp_path / "again", about)
    assert again.digest == exported.digest
    for name, weight in open_adapter(Path(result.adapter)).weights().items():
        assert np.array_equal(weight, exported.weights()[name])
    for source, error in (
        (tmp_path / "none", AdapterNotFoundError),
        (tmp_path / "base", UsageError),
        (tmp_path / "run" / "data", UsageError),
    ):
        with pytest.raises(error):
            export_adapter(source, "tints", tmp_path / "out")
    with pytest.raises(AdapterNameError):
        export_adapter(tmp_path / "run", "two-words", tmp_path / "out")


def test_export_with_a_draft(tmp_path: Path) -> None:
    run(tmp_path, epochs=1)
    draft = write_source(tmp_path / "draft", {"norm.weight": 2.0})
    exported = export_adapter(tmp_path / "run", "tints", tmp_path / "out", AdapterAbout(draft_token_count=4), draft.path)
    assert exported.draft is not None
    travelled = open_bundle(exported.draft)
    travelled.verify()
    assert travelled.signature == draft.signature == exported.metadata.draftSignature
    assert exported.metadata.speculativeDecodingDraftTokenCount == 4

    weights = next(draft.path.glob("*.safetensors"))
    content = weights.read_bytes()
    weights.unlink()
    with pytest.raises((IncompleteDraftError, BundleError)):
        export_adapter(tmp_path / "run", "tints", tmp_path / "out", draft=draft.path)
    weights.write_bytes(content[:-1] + b"x")
    with pytest.raises(BundleError):
        export_adapter(tmp_path / "run", "tints", tmp_path / "out", draft=draft.path)
    assert open_adapter(tmp_path / "out" / "tints.fmadapter") == exported


def test_a_draft_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, epochs=1)
    base = open_bundle(tmp_path / "base")
    other = write_bundle(
        tmp_path / "other",
        config=base.config,
        tokenizer=train_tokenizer(TokenizerConfig(vocab_size=320), ["quite another text than before " * 20]),
        template=ChatTemplate(),
        tensors=base.tensors(),
    )
    with pytest.raises(DraftMismatchError, match="another tokenizer"):
        export_adapter(tmp_path / "run", "tints", tmp_path / "out", draft=other.path)
    with pytest.raises(UsageError, match="not on this machine"):  # an adapter folder has no path to its base
        export_adapter(Path(result.adapter), "tints", tmp_path / "out", draft=other.path)


QUICK = {
    "trainer.budget": '{"type": "StepBudget", "num_steps": 4}',
    "trainer.data.rows_per_step": "1",
    "trainer.data.row_tokens": "128",
}


@pytest.mark.slow
def test_a_draft_is_distilled_from_base_and_adapter_and_exported(tmp_path: Path) -> None:
    base = write_source(tmp_path / "base", context_length=128)  # untrained answers end at the context window
    adapter = open_adapter(Path(run(tmp_path, epochs=1).adapter))
    data, evaluation, folder = tmp_path / "train.jsonl", tmp_path / "eval.jsonl", tmp_path / "draft run"
    with pytest.raises(UsageError, match="--base"):
        train_draft(adapter, data, evaluation, folder, "colors_draft")
    result = train_draft(adapter, data, evaluation, folder, "colors_draft", base=base, size="micro", changes=QUICK)
    assert result.steps == 4
    assert result.acceptance is not None
    assert 0 <= result.acceptance <= 1
    exported = export_adapter(tmp_path / "run", "tints", tmp_path / "out", draft="colors_draft")
    assert exported.metadata.draftSignature == open_bundle("colors_draft").signature == result.signature
    data.write_text('{"text": "no conversation"}\n')
    with pytest.raises(NotADocumentError, match=r"train\.jsonl:1"):
        train_draft(adapter, data, None, tmp_path / "another", "other_draft", base=base, size="micro", changes=QUICK)


def test_a_run_without_an_adapter_is_refused(tmp_path: Path) -> None:
    run(tmp_path, epochs=1)
    file = tmp_path / "run" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"adapter": None}))
    with pytest.raises(UsageError, match="no adapter was trained"):
        export_adapter(tmp_path / "run", "tints", tmp_path / "out")
