"""The server model from recipe to session: training, engines, adapters, compression and refusals."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import openafm as fm
from openafm.adapters.config import LoRAConfig
from openafm.adapters.package import open_adapter
from openafm.bundle import Bundle, Numerics, bundle_place, open_bundle, write_bundle
from openafm.bundle.decoder import load_decoder
from openafm.bundle.describe import describe_bundle
from openafm.compression.config import QATConfig
from openafm.compression.errors import UncompressibleModelError
from openafm.models.initialization.vocabulary_extension import extend_vocabulary
from openafm.models.sizes import named_size
from openafm.recipes.adapters.train import adapter_run, train_adapter
from openafm.recipes.compression.compress import compress
from openafm.recipes.compression.formats import FORMATS, AstcCompression
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import run_recipe
from openafm.recipes.sources.corpora import SyntheticCorpusConfig
from openafm.runtime.engines.selection import open_engine
from openafm.training.budgets import StepBudget

pytestmark = pytest.mark.xdist_group("server_model")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of `server.micro` after a few steps."""
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAFM_HOME", str(folder / "home"))
        run = prepare_run("server.pretrain", "micro")
        corpora = tuple(
            replace(corpus, num_examples=100) if isinstance(corpus, SyntheticCorpusConfig) else corpus
            for corpus in run.corpora
        )
        trainer = replace(run.trainer, budget=StepBudget(num_steps=4), evaluation=None, log_every=1)
        run_recipe(replace(run, corpora=corpora, trainer=trainer), folder / "run", "server")
        return open_bundle("server")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1024, size=count).tolist()


@pytest.mark.long
def test_the_engine_equals_the_trained_decoder(trained: Bundle) -> None:
    assert trained.config == named_size("server.micro")
    engine, decoder = open_engine(trained), load_decoder(trained)
    sequence, held = engine.new_sequence(), tokens(400)
    with torch.no_grad():
        full_NV = decoder(torch.tensor([held]))[0].numpy()
    start = 0
    for count in (150, 1, 1, 98, 150):  # several windows of 64
        (logits_NV,) = engine.step([(sequence, held[start : start + count])], "all")
        np.testing.assert_allclose(logits_NV, full_NV[start : start + count], atol=1e-4)
        start += count
    fork = engine.fork(sequence)
    engine.rollback(sequence, 300)
    (logits_V,) = engine.step([(sequence, held[100:102])])
    np.testing.assert_allclose(logits_V, full_NV[101], atol=1e-4)
    restored = engine.restore(engine.snapshot(fork))
    assert np.array_equal(engine.step([(restored, [5])])[0], engine.step([(fork, [5])])[0])


@fm.generable
class Pet:
    name: str = fm.guide(regex="[a-z]{2,9}")
    age: int = fm.guide(range=(1, 30))


def test_sessions_answer_in_text_and_in_types(trained: Bundle) -> None:
    model = fm.SystemLanguageModel(bundle=trained.path)
    session = fm.LanguageModelSession("Be brief.", model)
    options = fm.GenerationOptions(maximum_response_tokens=100)
    first = asyncio.run(session.respond("Tell me of a cat.", options=options))
    pet = asyncio.run(session.respond("A pet?", generating=Pet, options=options))
    assert isinstance(first, str)
    assert isinstance(pet, Pet)
    assert 1 <= pet.age <= 30
    again = fm.LanguageModelSession.from_transcript(session.transcript, model=model)
    options = fm.GenerationOptions(maximum_response_tokens=8)
    answers = [asyncio.run(each.respond("And a dog?", options=options)) for each in (session, again)]
    assert answers[0] == answers[1]


def test_bfloat16_engines_agree_with_fp32_ones(trained: Bundle, tmp_path: Path) -> None:
    rounded = write_bundle(
        tmp_path / "rounded",
        config=trained.config,
        tokenizer=trained.tokenizer,
        template=trained.template,
        tensors=trained.tensors(),
        numerics=Numerics(activations="bfloat16", kv="bfloat16"),
    )
    exact, near = open_engine(trained), open_engine(rounded)
    (exact_NV,), (near_NV,) = (e.step([(e.new_sequence(), tokens(100))], "all") for e in (exact, near))
    assert np.linalg.norm(exact_NV - near_NV) < 0.1 * np.linalg.norm(exact_NV)


@pytest.mark.parametrize("format", FORMATS)
def test_compression_with_calibration_is_refused_before_any_work(trained: Bundle, format: str) -> None:
    match = "parallel tracks and mixtures of experts have stacks of matrices.*--format astc --no-calibration"
    with pytest.raises(UncompressibleModelError, match=match):
        compress(trained, FORMATS[format](), "small")
    assert not bundle_place("small").exists()


def test_astc_without_calibration_compresses_tracks_and_experts(trained: Bundle) -> None:
    """The report's format for its server model, adapter included; all matrices of the layers except routers."""
    config = AstcCompression(calibration=None, adapter=LoRAConfig(rank=8))
    result = compress(trained, config, "small")
    made = open_bundle("small")
    made.verify()
    matrices = {name for name, array in trained.tensors().items() if name.startswith("layers.") and array.ndim > 2}
    blocks = {name for name in matrices if f"{name}.scale" in made.stored_tensors}
    assert matrices - blocks == {f"layers.{layer}.feed_forward.router.weight" for layer in (1, 3)}
    assert result.bytes < result.source_bytes / 3
    exact, near = load_decoder(trained), load_decoder(made)
    for name, weight in near.state_dict().items():
        if name in blocks:
            expected = exact.state_dict()[name]
            residual = (weight - expected).norm(dim=(-2, -1)) / expected.norm(dim=(-2, -1))
            assert residual.max() < 0.7, name  # every matrix of a stack; the adapter holds its largest singular values
    tokens_BS = torch.tensor([tokens(60)])
    with torch.no_grad():
        logits = load_decoder(made, adapter=made.recovery_adapter)(tokens_BS)
        error = (logits - exact(tokens_BS)).norm() / exact(tokens_BS).norm()
    assert 0 < error < 0.35
    engine = open_engine(made)
    (logits_V,) = engine.step([(engine.new_sequence(), tokens(60))])
    assert np.linalg.norm(logits_V - logits[0, -1].float().numpy()) < 0.1 * np.linalg.norm(logits_V)


@pytest.mark.parametrize("parts", ["tracks", "experts"])
def test_quantization_aware_training_refuses_tracks_and_experts(parts: str) -> None:
    config = named_size("server.micro")
    dense, sparse = replace(config, layers=config.layers[:1] * 2), replace(config, tracks=None)
    model = (dense if parts == "tracks" else sparse).build()
    before = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(UncompressibleModelError, match=f"{parts} have stacks of matrices"):
        QATConfig().install(model)
    assert {name: type(module) for name, module in model.named_modules()} == before


def test_an_adapter_trains_on_tracks_and_loads_from_its_folder(trained: Bundle, tmp_path: Path) -> None:
    line = {"messages": [{"role": "user", "content": "Which color?"}, {"role": "assistant", "content": "It is red."}]}
    data = tmp_path / "train.jsonl"
    data.write_text((json.dumps(line) + "\n") * 8)
    values = {"lora": LoRAConfig(rank=4), "epochs": 8, "learning_rate": 3e-2}
    result = train_adapter(adapter_run(trained, data, data, values), tmp_path / "run", "colors")
    assert result.eval_losses[-1] < result.eval_losses[0] - 0.1
    adapter = open_adapter(Path(result.adapter))
    prompt = tokens(20)
    plain, adapted = open_engine(trained), open_engine(trained, adapter)
    (before,), (after,) = (engine.step([(engine.new_sequence(), prompt)]) for engine in (plain, adapted))
    assert np.abs(before - after).max() > 0.1


def test_a_larger_vocabulary_keeps_the_old_tokens(trained: Bundle) -> None:
    decoder = load_decoder(trained)
    old = trained.config.vocab_size
    extended = extend_vocabulary(decoder, {old: [3, 4], old + 1: [5]}, old + 2)
    tokens_BS = torch.tensor([tokens(30)])
    with torch.no_grad():
        assert torch.equal(extended(tokens_BS)[..., :old], decoder(tokens_BS))


def test_inspect_counts_active_parameters(trained: Bundle) -> None:
    description = describe_bundle(trained)
    assert 0 < description.active_parameters < description.parameters
