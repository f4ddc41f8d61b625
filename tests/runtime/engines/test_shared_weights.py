"""Engines of one bundle share its weights and have their own adapters."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_engines import CONFIGS, random_tokens
from tiny_tokenizer import TOKENIZER

from openafm.adapters.config import LoRAConfig
from openafm.adapters.lora import adapter_weights, install
from openafm.adapters.package import AdapterMismatchError, AdapterPackage, AdapterTamperedError, open_adapter, write_adapter
from openafm.bundle import FULL_PRECISION, Bundle, RecoveryAdapter, write_bundle
from openafm.bundle.decoder import load_decoder
from openafm.compression.config import QATConfig
from openafm.compression.deploy import packed_tensors
from openafm.runtime.engines.shared_weights import _bases
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.tokenizer.chat_template import ChatTemplate

CONFIG = dataclasses.replace(CONFIGS["shared"], vocab_size=TOKENIZER.vocab_size)
LORA = LoRAConfig(rank=4, precision="float32")
KINDS = ("plain", "compressed", "compressed, recovered")


def random_adapter(seed: int) -> dict[str, NDArray[np.float32]]:
    decoder = CONFIG.build(seed=0)
    install(decoder, LORA)
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(w.shape, generator=generator).mul(0.2).numpy() for name, w in adapter_weights(decoder).items()}


def write(path: Path, kind: str, seed: int = 3) -> Bundle:
    torch.set_num_threads(1)
    decoder = CONFIG.build(seed=seed)
    if kind == "plain":
        tensors, numerics = {name: tensor.numpy() for name, tensor in decoder.state_dict().items()}, FULL_PRECISION
    else:
        qat = QATConfig()
        qat.install(decoder)
        tensors, numerics = packed_tensors(decoder), qat.numerics
    return write_bundle(
        path,
        config=CONFIG,
        tokenizer=TOKENIZER,
        template=ChatTemplate(),
        tensors=tensors,
        numerics=numerics,
        recovery=RecoveryAdapter(config=LORA, weights=random_adapter(9)) if kind == "compressed, recovered" else None,
    )


def adapter(path: Path, bundle: Bundle, seed: int) -> AdapterPackage:
    return write_adapter(
        path, weights=random_adapter(seed), config=LORA, base_signature=bundle.signature, name=f"seed_{seed}"
    )


def opened(bundle: Bundle, with_adapter: AdapterPackage | None = None) -> TorchEngine:
    return TorchEngine.open(bundle, with_adapter)


def last_logits(engine: TorchEngine, tokens: list[int]) -> NDArray[np.float32]:
    return engine.step([(engine.new_sequence(), tokens)])[0]


def tensors_of(engine: TorchEngine) -> dict[str, torch.Tensor]:
    decoder = engine.decoder
    return {**dict(decoder.named_parameters()), **dict(decoder.named_buffers())}


@pytest.mark.parametrize("kind", KINDS)
def test_base_weights_are_in_memory_once(tmp_path: Path, kind: str) -> None:
    bundle = write(tmp_path / "b", kind)
    engines = [opened(bundle), *(opened(bundle, adapter(tmp_path / str(seed), bundle, seed)) for seed in (1, 2))]
    base = [{n: t for n, t in tensors_of(engine).items() if ".lora." not in n} for engine in engines]
    assert base[0].keys() == base[1].keys() == base[2].keys()
    for name, tensor in base[0].items():
        assert tensor.data_ptr() == base[1][name].data_ptr() == base[2][name].data_ptr()
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for e in engines for t in tensors_of(e).values()
    }
    one_adapter = sum(weight.nbytes for weight in random_adapter(0).values())
    num_adapters = 3 if kind == "compressed, recovered" else 2
    assert sum(storages.values()) == sum(t.untyped_storage().nbytes() for t in base[0].values()) + num_adapters * one_adapter


@pytest.mark.parametrize("kind", KINDS)
def test_each_engine_computes_with_its_own_adapter(tmp_path: Path, kind: str) -> None:
    bundle = write(tmp_path / "b", kind)
    adapters = [adapter(tmp_path / str(seed), bundle, seed) for seed in (1, 2)]
    engines = [opened(bundle), *(opened(bundle, given) for given in adapters)]
    tokens = random_tokens(30)
    sequences = [engine.new_sequence() for engine in engines]
    found: list[list[NDArray[np.float32]]] = [[], [], []]
    for token in tokens:  # interleaved
        for engine, sequence, logits in zip(engines, sequences, found, strict=True):
            logits.append(engine.step([(sequence, [token])])[0])
    for given, logits in zip((bundle.recovery_adapter, *adapters), found, strict=True):
        decoder = load_decoder(bundle, adapter=given)
        with torch.inference_mode():
            expected = decoder(torch.tensor([tokens]))[0].float().numpy()
        assert (np.stack(logits).argmax(-1) == expected.argmax(-1)).mean() > 0.9
        assert np.abs(np.stack(logits) - expected).mean() < 0.02 * np.abs(expected).mean()
    distances = [np.abs(np.stack(found[a]) - np.stack(found[b])).max() for a, b in ((0, 1), (0, 2), (1, 2))]
    assert min(distances) > 0.05
    assert len({engine.signature for engine in engines}) == 3


def test_an_adapter_replaced_on_disk_affects_new_engines_only(tmp_path: Path) -> None:
    bundle = write(tmp_path / "b", "compressed, recovered")
    first = adapter(tmp_path / "a", bundle, 1)
    engine = opened(bundle, first)
    tokens = random_tokens(20)
    before = last_logits(engine, tokens)
    second = adapter(tmp_path / "a", bundle, 2)
    assert np.array_equal(last_logits(engine, tokens), before)
    after = last_logits(opened(bundle, open_adapter(tmp_path / "a")), tokens)
    assert np.array_equal(after, last_logits(opened(bundle, second), tokens))
    assert not np.array_equal(after, before)
    with pytest.raises(AdapterTamperedError):  # opened before the swap, its weights never read: not mixed up
        opened(bundle, first)


def test_a_rejected_adapter_does_not_affect_other_engines(tmp_path: Path) -> None:
    bundle = write(tmp_path / "b", "compressed")
    engine = opened(bundle)
    tokens = random_tokens(20)
    before = last_logits(engine, tokens)
    foreign = adapter(tmp_path / "a", write(tmp_path / "other", "compressed", seed=4), 1)
    with pytest.raises(AdapterMismatchError, match=bundle.signature):
        TorchEngine.open(bundle, foreign)
    assert np.array_equal(last_logits(opened(bundle), tokens), before)


def test_a_bundle_replaced_at_its_path_is_loaded_again(tmp_path: Path) -> None:
    tokens = random_tokens(20)
    engine = opened(write(tmp_path / "b", "plain"))
    before = last_logits(engine, tokens)
    after = last_logits(opened(write(tmp_path / "b", "plain", seed=4)), tokens)
    assert not np.array_equal(after, before)
    assert np.array_equal(last_logits(engine, tokens), before)


def test_the_weights_are_freed_with_the_last_engine(tmp_path: Path) -> None:
    bundle = write(tmp_path / "b", "plain")
    engines = [opened(bundle), opened(bundle, adapter(tmp_path / "a", bundle, 1))]
    held = [key for key in _bases if key[0] == str(bundle.path.resolve())]
    assert len(held) == 1
    engines.pop()
    gc.collect()
    assert held[0] in _bases
    engines.clear()
    gc.collect()
    assert held[0] not in _bases
