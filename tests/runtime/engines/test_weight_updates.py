"""Weight updates in place and embeddings in place of tokens: for reinforcement learning and images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_engines import assert_close, decoder, engine, full_logits, native_engine, random_tokens

from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig
from openafm.runtime.engines.base import (
    Engine,
    InsertedEmbeddings,
    InsertedEmbeddingsError,
    WeightUpdateError,
)
from openafm.runtime.engines.prefix_cache import PrefixCache
from openafm.runtime.engines.shared_weights import sharing
from openafm.runtime.engines.snapshot import SnapshotMismatchError
from openafm.runtime.engines.torch_engine import TorchEngine

TOKENS = random_tokens(30)


def changed_embedding() -> torch.Tensor:
    return decoder("shared").embedding.detach().flip(0).clone()


@pytest.fixture
def updated() -> tuple[Engine, torch.nn.Module]:
    """An engine whose weights can be updated, and a decoder with the new weights."""
    base = decoder("shared")
    expected = sharing(base)
    expected.embedding = torch.nn.Parameter(changed_embedding())
    return TorchEngine(sharing(base), signature="tiny", base=base), expected


def test_after_an_update_sequences_continue_with_the_new_weights(updated: tuple[Engine, torch.nn.Module]) -> None:
    running, expected = updated
    before, forked = running.new_sequence(), None
    running.step([(before, TOKENS[:20])])
    forked = running.fork(before, 10)
    running.update_weights({"embedding": changed_embedding()}, version=3)
    assert running.weights_version == 3
    with torch.no_grad():
        new = expected(torch.tensor([TOKENS]))[0].numpy()
        shorter = expected(torch.tensor([TOKENS[:10] + TOKENS[20:]]))[0].numpy()
    (logits_NV,) = running.step([(before, TOKENS[20:])], "all")
    assert_close(logits_NV, new[20:])
    (logits_V,) = running.step([(forked, TOKENS[20:])])
    assert_close(logits_V, shorter[-1])


def test_an_update_leaves_other_engines_of_the_same_weights_alone(updated: tuple[Engine, torch.nn.Module]) -> None:
    running, _ = updated
    running.update_weights({"embedding": changed_embedding()}, version=1)
    other = engine("shared")
    assert_close(other.step([(other.new_sequence(), TOKENS)], "all")[0], full_logits("shared", TOKENS))


def test_an_update_invalidates_prefix_cache_and_snapshots(updated: tuple[Engine, torch.nn.Module]) -> None:
    running, _ = updated
    cache, sequence = PrefixCache(running, 1 << 20), running.new_sequence()
    running.step([(sequence, TOKENS)])
    cache.keep(sequence, len(TOKENS), "opening")
    data = running.snapshot(sequence)
    assert cache.begin(TOKENS).length == len(TOKENS)
    running.update_weights({"embedding": changed_embedding()}, version=1)
    assert cache.begin(TOKENS).length == 0
    with pytest.raises(SnapshotMismatchError):
        running.restore(data)
    running.step([(sequence, TOKENS[:1])])
    cache.keep(sequence, len(TOKENS), "opening")
    assert cache.begin(TOKENS).length == len(TOKENS), "computed with the new weights"


def test_impossible_updates_raise_and_change_nothing(updated: tuple[Engine, torch.nn.Module]) -> None:
    running, _ = updated
    embedding = changed_embedding()
    for tensors, version, problem in (
        ({"embeding": embedding}, 1, "did you mean 'embedding'"),
        ({"embedding": embedding[1:]}, 1, "shape"),
        ({"embedding": embedding}, 0, "version 0"),
    ):
        with pytest.raises(WeightUpdateError, match=problem):
            running.update_weights(tensors, version)
    assert running.weights_version == 0
    assert_close(running.step([(running.new_sequence(), TOKENS)])[0], full_logits("shared", TOKENS)[-1])
    with pytest.raises(WeightUpdateError, match="NativeEngine"):
        native_engine().update_weights({"embedding": embedding}, 1)


@pytest.mark.parametrize("drafted", [False, True])
def test_log_probabilities_are_those_of_the_whole_text(drafted: bool) -> None:
    """Recomputed by one forward pass without a cache, at the temperature that was sampled with."""
    from openafm.runtime.decoding.draft_length import DraftLengthConfig
    from openafm.runtime.decoding.speculation import Drafter

    running = engine("shared")
    drafter = Drafter(engine("shared"), length=DraftLengthConfig(cost=0.1)) if drafted else None
    options = {"sampling": RandomConfig(temperature=0.7, seed=4), "stop_tokens": (), "max_tokens": 20, "drafter": drafter}
    events = list(generate(running, running.new_sequence(), TOKENS, log_probabilities=True, **options))
    tokens = TOKENS + [event.token for event in events]
    expected = torch.log_softmax(torch.tensor(full_logits("shared", tokens)).double() / 0.7, dim=-1)
    for place, event in enumerate(events, start=len(TOKENS)):
        assert event.log_probability == pytest.approx(float(expected[place - 1, event.token]), abs=1e-4)
    plain = list(generate(running, running.new_sequence(), TOKENS, **options))
    assert [event.log_probability for event in plain] == [None] * len(plain)
    greedy = options | {"sampling": GreedyConfig()}
    assert {
        e.log_probability for e in generate(running, running.new_sequence(), TOKENS, log_probabilities=True, **greedy)
    } == {0}


@pytest.mark.parametrize("name", ["shared", "windows"])
def test_inserted_embeddings_replace_those_of_tokens(name: str) -> None:
    """Embeddings of other tokens give the logits of those tokens, in one step, in several, and after a rollback."""
    running, model = engine(name), decoder(name)
    placeholders = [*TOKENS[:5], *[0] * 12, *TOKENS[17:]]
    vectors = model.embed(torch.tensor([TOKENS[5:17]]))[0].detach().numpy()
    expected = full_logits(name, TOKENS)
    inserted = InsertedEmbeddings(5, vectors, "ab")
    one = running.new_sequence()
    (logits_NV,) = running.step([(one, placeholders, [inserted])], "all")
    assert_close(logits_NV, expected)
    two = running.new_sequence()
    running.step([(two, placeholders[:3])])
    running.step([(two, placeholders[3:20], [inserted.moved(-3)])])
    running.rollback(two, 10)
    (logits_V,) = running.step([(two, placeholders[10:], [inserted.cut(10, 30)])])
    assert_close(logits_V, expected[-1])
    assert [(each.start, each.stop) for each in two.inserted] == [(5, 10), (10, 17)]
    running.rollback(two, 28)  # further back than windows keep: the next step recomputes nothing but two tokens
    (logits_V,) = running.step([(two, TOKENS[2:])])
    assert_close(logits_V, expected[-1])


def test_embeddings_outside_of_an_entry_raise() -> None:
    running = engine("shared")
    sequence, vectors = running.new_sequence(), np.zeros((4, 32), np.float32)
    for start in (-1, 28):
        with pytest.raises(InsertedEmbeddingsError, match="inside"):
            running.step([(sequence, TOKENS, [InsertedEmbeddings(start, vectors, "ab")])])
