"""The model of lm-evaluation-harness: the results of its `hf` model on the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install lm-eval")

import tokenizers
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import decoders, models, pre_tokenizers, trainers

from openafm.bundle.hugging_face import import_hugging_face
from openafm.core.errors import UsageError
from openafm.evaluation.lm_eval_model import OpenafmLM

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SHOTS = "Question: what is 2 + 2?\nAnswer: 4\n\nQuestion: what is 3 + 5?\nAnswer: 8\n\n"
PAIRS = [
    *((f"{SHOTS}Question: what is {i} + 1?\nAnswer:", f" {i + j}") for i in range(6) for j in range(3)),
    ("", "an answer without a context"),
    ("two spaces at the end  ", "of the context"),
    ("one", " token " * 40),
]


def checkpoint(folder: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=640,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.2,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        [Path(__file__).read_text()], trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    trained.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    trained.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[OpenafmLM, HFLM]:
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("harness")
    folder = checkpoint(place / "checkpoint")
    bundle = import_hugging_face(folder, place / "bundle").bundle
    ours = OpenafmLM.create_from_arg_string(f"bundle={bundle.path}", {"batch_size": 3})
    return ours, HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=1)


def instances(kind: str, arguments: list[Any]) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=each, idx=0) for each in arguments]  # type: ignore[arg-type]


def test_loglikelihoods_equal_those_of_transformers(both: tuple[OpenafmLM, HFLM]) -> None:
    ours, theirs = (model.loglikelihood(instances("loglikelihood", PAIRS)) for model in both)
    for (our_value, our_greedy), (their_value, their_greedy) in zip(ours, theirs, strict=True):
        assert our_value == pytest.approx(their_value, abs=1e-4)
        assert our_greedy == their_greedy


def test_rolling_loglikelihoods_equal_those_of_transformers(both: tuple[OpenafmLM, HFLM]) -> None:
    texts = [("A short text.",), (SHOTS * 12,)]  # the second has several windows
    ours, theirs = (model.loglikelihood_rolling(instances("loglikelihood_rolling", texts)) for model in both)
    assert ours == pytest.approx(theirs, rel=1e-6)


def test_answers_equal_those_of_transformers(both: tuple[OpenafmLM, HFLM]) -> None:
    ours, theirs = both
    settings = {"until": [], "max_gen_toks": 24, "do_sample": False}
    free = ours.generate_until(instances("generate_until", [(SHOTS, settings)]))[0]
    until = free[4:6]
    arguments = [(f"{SHOTS}Question {i}", settings | {"until": [until] if i % 2 else ["\n\n"]}) for i in range(4)]
    assert ours.generate_until(instances("generate_until", arguments)) == (
        theirs.generate_until(instances("generate_until", arguments))
    )
    assert (
        ours.generate_until(instances("generate_until", [(SHOTS, settings | {"until": [until]})]))[0]
        == free[: free.index(until)]
    )


def test_chat_templates_equal_those_of_transformers(both: tuple[OpenafmLM, HFLM]) -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    open_talk = [*talk, {"role": "assistant", "content": "It is"}]
    ours, theirs = both
    assert ours.apply_chat_template(talk) == theirs.apply_chat_template(talk)
    assert ours.tok_encode(ours.apply_chat_template(talk)) == theirs.tok_encode(theirs.apply_chat_template(talk))
    assert ours.apply_chat_template(open_talk, add_generation_prompt=False).endswith("assistant\nIt is")


def test_the_shared_beginning_is_computed_once(both: tuple[OpenafmLM, HFLM], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = both
    num_tokens, step = 0, ours._engine.step

    def counted(batch: Any, logits: Any = "last") -> Any:
        nonlocal num_tokens
        num_tokens += sum(len(tokens) for _, tokens in batch)
        return step(batch, logits)

    monkeypatch.setattr(ours._engine, "step", counted)
    ours.loglikelihood(instances("loglikelihood", PAIRS[:18]))
    separate = sum(len(ours.tok_encode(context + continuation)) for context, continuation in PAIRS[:18])
    assert num_tokens < separate / 3


def test_wrong_arguments_are_usage_errors(both: tuple[OpenafmLM, HFLM]) -> None:
    with pytest.raises(UsageError, match="no bundle"):
        OpenafmLM()
    with pytest.raises(UsageError, match="leaves no room"):
        both[0].generate_until(instances("generate_until", [("a", {"until": [], "max_gen_toks": 256})]))


@pytest.mark.slow
def test_a_task_has_the_same_scores(both: tuple[OpenafmLM, HFLM], tmp_path: Path) -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    rows = [{"question": f"{i} + {i}", "choices": [str(i), str(2 * i), str(i * i)], "answer": 1} for i in range(12)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {
        "task": "sums",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "What is {{question}}?",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    manager = TaskManager(include_defaults=False)
    scores = [
        lm_eval.simple_evaluate(model=model, tasks=[task], task_manager=manager, bootstrap_iters=0)["results"]["sums"]
        for model in both
    ]
    assert {key: value for key, value in scores[0].items() if "acc" in key} == (
        {key: value for key, value in scores[1].items() if "acc" in key}
    )
