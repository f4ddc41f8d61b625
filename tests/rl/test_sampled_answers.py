"""Sampling of groups: probabilities as in training, grammars, tools, limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from tiny_bundles import write_tiny_bundle

from openafm.bundle import Bundle
from openafm.bundle.decoder import load_decoder
from openafm.rl.decoding import DecodedGroup, GroupDecoder, GroupRequest
from openafm.rl.generator import with_reference
from openafm.rl.prompt_sources import Environment
from openafm.rl.prompts import RLPrompt
from openafm.rl.trajectories import Score, Trajectory
from openafm.runtime.batching.pending import TokenChunk
from openafm.runtime.engines.base import Engine
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.engine import NativeEngine
from openafm.tokenizer.conversation import AssistantTurn, Conversation, ToolCall, ToolTurn, UserTurn
from openafm.training.objectives.policy_config import RLOOConfig

SCHEMA = {
    "type": "object",
    "properties": {"age": {"enum": ["the cat", "the dog"]}},
    "required": ["age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_tiny_bundle(tmp_path_factory.mktemp("decoding") / "tiny", context_length=96)


def prompt(text: str = "the cat", schema: dict[str, Any] | None = None) -> RLPrompt:
    turn = UserTurn(text=text, response_format=schema)
    return RLPrompt(conversation=Conversation(turns=(turn,)), kind="test")


def request(number: int, of: RLPrompt, count: int = 3, environment: Environment | None = None) -> GroupRequest:
    seeds = [100 * number + index for index in range(count)]
    return GroupRequest(number=number, prompt=of, environments=[environment] * count, seeds=seeds)


def decoder(bundle: Bundle, engine: Engine | None = None, **options: Any) -> GroupDecoder:
    values = {"temperature": 0.8, "max_tokens": 12, "max_turns": 3} | options
    return GroupDecoder(engine or TorchEngine.open(bundle), bundle.tokenizer, bundle.template, **values)


def recomputed(bundle: Bundle, group: DecodedGroup, engine: Engine | None = None) -> list[np.ndarray]:
    trajectories = [
        Trajectory(
            sample=each.sample,
            score=Score(reward=0.0),
            group=0,
            index=index,
            prompt_tokens=group.prompt_tokens,
            tokens_N=each.tokens_N,
            loss_mask_N=each.loss_mask_N,
            log_probs_N=each.log_probs_N,
            versions_N=each.versions_N,
            support_NV=each.support_NV,
        )
        for index, each in enumerate(group.samples)
    ]
    objective = RLOOConfig(temperature=0.8, num_tokens=bundle.tokenizer.vocab_size)
    reference = engine or load_decoder(bundle)
    found = [each.reference_log_probs_N for each in with_reference(trajectories, reference, objective)]
    return [log_probs_N for log_probs_N in found if log_probs_N is not None]


def test_log_probabilities_are_those_of_a_forward_pass(bundle: Bundle) -> None:
    (group,) = decoder(bundle).decode([request(0, prompt())], max_rows=8)
    engine = TorchEngine.open(bundle)
    for sample in group.samples:
        tokens = [*group.prompt_tokens, *sample.tokens_N.tolist()]
        logits = engine.decoder(torch.tensor([tokens]))[0, len(group.prompt_tokens) - 1 : -1, : bundle.tokenizer.vocab_size]
        expected = (logits / 0.8).log_softmax(-1).gather(1, torch.from_numpy(sample.tokens_N).long()[:, None])[:, 0]
        np.testing.assert_allclose(sample.log_probs_N, expected.detach().numpy(), atol=1e-5)
        assert sample.loss_mask_N.all()
    for sample, reference in zip(group.samples, recomputed(bundle, group), strict=True):
        np.testing.assert_allclose(sample.log_probs_N, reference, atol=1e-5)


def test_groups_do_not_depend_on_the_rows_decoded_with_them(bundle: Bundle) -> None:
    requests = [request(number, prompt(f"the dog {number}")) for number in range(4)]
    alone = [group for each in requests for group in decoder(bundle).decode([each], max_rows=8)]
    together = sorted(decoder(bundle).decode(requests, max_rows=6), key=lambda group: group.request.number)
    for one, other in zip(alone, together, strict=True):
        tokens = [[each.tokens_N.tolist() for each in group.samples] for group in (one, other)]
        assert tokens[0] == tokens[1]


def test_grammars_give_a_support_and_forced_tokens_carry_no_loss(bundle: Bundle) -> None:
    (group,) = decoder(bundle, max_tokens=60).decode([request(0, prompt(schema=SCHEMA), count=4)], max_rows=8)
    assert {each.sample.text for each in group.samples} <= {'{"age":"the cat"}', '{"age":"the dog"}'}
    for sample, reference in zip(group.samples, recomputed(bundle, group), strict=True):
        assert sample.sample.finish_reason == "stop"
        assert 0 < sample.loss_mask_N.sum() < len(sample.tokens_N)
        assert sample.sample.num_tokens == sample.loss_mask_N.sum()
        assert sample.support_NV is not None
        assert not sample.support_NV[~sample.loss_mask_N].any()
        np.testing.assert_allclose(sample.log_probs_N, reference, atol=1e-5)
        assert sample.log_probs_N.sum() > np.log(0.5) - 20  # the choice is between few tokens


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["free", "grammar"])
def test_the_native_engine_has_the_probabilities_of_training_and_of_its_reference(
    bundle: Bundle, schema: dict[str, Any] | None
) -> None:
    engine = NativeEngine(bundle, num_threads=1)
    (group,) = decoder(bundle, engine, max_tokens=40).decode([request(0, prompt(schema=schema), count=4)], max_rows=8)
    of_torch, of_engine = recomputed(bundle, group), recomputed(bundle, group, NativeEngine(bundle, num_threads=1))
    for sample, trained, reference in zip(group.samples, of_torch, of_engine, strict=True):
        assert sample.loss_mask_N.any()
        np.testing.assert_allclose(sample.log_probs_N, trained, atol=1e-5)
        np.testing.assert_array_equal(sample.log_probs_N, reference)  # the KL divergence from itself is 0


class Script(TorchEngine):
    """An engine that gives one token at each position nearly all probability."""

    def script(self, start: int, tokens: list[int]) -> None:
        self._script = dict(enumerate(tokens, start))

    def forward(self, chunks: Any) -> list[Any]:
        outputs = super().forward(chunks)
        chunk: TokenChunk
        for chunk, logits_NV in zip(chunks, outputs, strict=True):
            for back, logits_V in enumerate(reversed(logits_NV)):
                position = chunk.start + len(chunk.tokens) - back
                if position in self._script:
                    logits_V[self._script[position]] = 100.0
        return outputs


class Doubling:
    """An environment whose tool doubles a number."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def call(self, call: ToolCall) -> str:
        self.calls.append(call.name)
        return str(2 * int(call.arguments["age"]))

    @property
    def state(self) -> Mapping[str, object]:
        return {"calls": self.calls}


def test_tools_run_between_the_turns_and_their_outputs_carry_no_loss(bundle: Bundle) -> None:
    tokenizer, template = bundle.tokenizer, bundle.template
    engine = Script(TorchEngine.open(bundle).decoder)
    of, call = prompt(), AssistantTurn(tool_calls=(ToolCall(name="age", arguments={"age": 4}),))
    sampler = decoder(bundle, engine, max_tokens=64)
    called, output = template.encode_turn(tokenizer, call).tokens[1:], ToolTurn(name="age", text="8")
    returned = template.encode_turn(tokenizer, output).tokens + template.generation_prompt(tokenizer)
    answer = template.encode_turn(tokenizer, AssistantTurn(text="the age: 8")).tokens[1:]
    engine.script(len(sampler.encoded_prompt(of).tokens), [*called, *returned, *answer])
    (group,) = sampler.decode([request(0, of, count=1, environment=Doubling())], max_rows=8)
    (sample,) = group.samples
    assert sample.tokens_N.tolist() == [*called, *returned, *answer]
    assert sample.loss_mask_N.tolist() == [True] * len(called) + [False] * len(returned) + [True] * len(answer)
    assert sample.sample.turns == (call, output, AssistantTurn(text="the age: 8"))
    assert (sample.sample.text, sample.sample.state) == ("the age: 8", {"calls": ["age"]})


def test_limits_end_samples_and_long_prompts_are_reported(bundle: Bundle) -> None:
    short, long = request(0, prompt()), request(1, prompt("the cat and the dog " * 30))
    groups = {group.request.number: group for group in decoder(bundle, max_tokens=3).decode([short, long], max_rows=8)}
    assert {len(each.tokens_N) for each in groups[0].samples if each.sample.finish_reason == "length"} == {3}
    assert groups[1].samples == ()
    assert "the context window 96" in groups[1].error
    in_window = decoder(bundle, max_tokens=500).decode([request(2, prompt(), count=1)], max_rows=8)
    (sample,) = next(in_window).samples
    assert len(sample.tokens_N) <= 96
