"""The replay buffer and the weight store: files that are whole or absent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from openafm.rl.buffer import BufferError, ReplayBuffer
from openafm.rl.prompts import RLPrompt
from openafm.rl.trajectories import Group, Sample, Score, Trajectory
from openafm.rl.weights import KEPT_VERSIONS, WeightStore, WeightStoreError
from openafm.tokenizer.conversation import AssistantTurn, Conversation, ToolCall, ToolTurn, UserTurn

PROMPT = RLPrompt(conversation=Conversation(turns=(UserTurn(text="2 + 2?"),)), kind="math", truth={"answer": "4"})


def trajectory(index: int = 0, reward: float = 1.0, length: int = 3, version: int = 0, error: str = "") -> Trajectory:
    call = AssistantTurn(tool_calls=(ToolCall(name="add", arguments={"a": 2}),))
    sample = Sample(
        prompt=PROMPT,
        turns=(call, ToolTurn(name="add", text="4"), AssistantTurn(text="4")),
        text="4",
        finish_reason="stop",
        num_tokens=length,
        state={"calls": 1},
    )
    return Trajectory(
        sample=sample,
        score=Score(reward=reward, terms={"exact": reward}, error=error),
        group=7,
        index=index,
        prompt_tokens=(5, 6),
        tokens_N=np.arange(10, 10 + length, dtype=np.int32),
        loss_mask_N=np.ones(length, np.bool_),
        log_probs_N=np.full(length, -0.5, np.float32),
        versions_N=np.full(length, version, np.int32),
        reference_log_probs_N=np.full(length, -0.75, np.float32),
    )


def group(number: int = 7, count: int = 2) -> Group:
    return Group(number=number, trajectories=tuple(trajectory(index) for index in range(count)), tokenizer="abc")


def test_a_group_is_read_as_it_was_written(tmp_path: Path) -> None:
    buffer = ReplayBuffer(tmp_path / "buffer", "abc")
    assert buffer.numbers() == []
    assert buffer.add(group())
    assert not buffer.add(replace(group(), trajectories=()))
    read = buffer.read(7)
    for one, other in zip(read.trajectories, group().trajectories, strict=True):
        assert (one.sample, one.score, one.prompt_tokens, one.index) == (other.sample, other.score, (5, 6), other.index)
        np.testing.assert_array_equal(one.log_probs_N, other.log_probs_N)
        assert one.support_NV is None
        assert one.kl == pytest.approx(0.75)
    assert ReplayBuffer(tmp_path / "buffer", "abc").numbers() == [7]
    buffer.add(Group(number=9, trajectories=(), tokenizer="abc", error="too long"))
    assert buffer.read(9).error == "too long"
    buffer.remove_before(9)
    assert buffer.numbers() == [9]


def test_groups_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    ReplayBuffer(tmp_path, "abc").add(group())
    other = ReplayBuffer(tmp_path, "def")
    with pytest.raises(BufferError, match="another tokenizer"):
        other.add(group(8))
    with pytest.raises(BufferError, match="another tokenizer"):
        other.read(7)


@pytest.mark.parametrize("kept", [0, 10, 400])
def test_a_damaged_group_is_an_error(tmp_path: Path, kept: int) -> None:
    buffer = ReplayBuffer(tmp_path, "abc")
    buffer.add(group())
    (path,) = tmp_path.glob("group-*")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(BufferError, match="not a readable group"):
        buffer.read(7)


def test_published_weights_are_the_newest_and_old_ones_are_removed(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "weights")
    assert store.newest() == 0
    for version in range(1, 6):
        store.publish(version, {"a": torch.full((2,), float(version))})
    assert store.newest() == 5
    assert store.load(5)["a"].tolist() == [5, 5]
    assert store.versions() == list(range(6 - KEPT_VERSIONS, 6))
    store.remove_above(4)
    assert store.newest() == 4


@pytest.mark.parametrize("kept", [0, 5, 60])
def test_weights_cut_in_half_are_an_error(tmp_path: Path, kept: int) -> None:
    store = WeightStore(tmp_path)
    store.publish(1, {"a": torch.zeros(8)})
    (path,) = tmp_path.glob("version-*")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(WeightStoreError, match="repeat the command, which publishes it again"):
        store.load(1)
