"""A reward model as a bundle: the same rewards in this process and over HTTP, alone and in groups; servers that fail."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import torch
from reward_bundles import write_reward_bundle
from reward_samples import sample
from tiny_bundles import write_tiny_bundle

from openafm.bundle import Bundle, open_bundle
from openafm.cli.main import run
from openafm.core.config import ConfigError
from openafm.models.reward_config import RewardModelConfig
from openafm.rl.rewards.reward_model import (
    LearnedReward,
    LearnedRewardConfig,
    LocalRewardModel,
    NotARewardModelError,
    RemoteRewardModel,
    RewardServerError,
)
from openafm.rl.rewards.reward_server import RewardServer
from openafm.tokenizer.conversation import AssistantTurn, Conversation, UserTurn

CHATS = [
    Conversation(turns=(UserTurn(text="the cat"), AssistantTurn(text=text)))
    for text in ("and the dog", "sat on the mat", "no: the log. " * 5)
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundles")
    return write_reward_bundle(folder / "reward", write_tiny_bundle(folder / "base"))


@pytest.fixture
def server(bundle: Bundle) -> Iterator[RewardServer]:
    with RewardServer(LocalRewardModel(bundle)) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_rewards_do_not_depend_on_the_group(bundle: Bundle) -> None:
    model = LocalRewardModel.open(bundle.path)
    together = model.rewards(CHATS)
    alone = [model.rewards([chat])[0] for chat in CHATS]
    assert together == pytest.approx(alone, abs=1e-5)
    assert len(set(together)) == 3
    tokens = bundle.template.encode_conversation(bundle.tokenizer, CHATS[0]).tokens
    with torch.no_grad():
        plain = model.decoder.rewards(model.decoder.hidden(torch.tensor([list(tokens)]))[:, -1])
    assert together[0] == pytest.approx(float(plain[0]), abs=1e-5)
    assert model.rewards([]) == []


def test_a_busy_port_is_a_usage_error(bundle: Bundle, server: RewardServer, capsys: pytest.CaptureFixture[str]) -> None:
    port = server.server_address[1]
    assert run(["rl", "serve-rewards", str(bundle.path), "--port", str(port)]) == 2
    assert f"cannot listen at 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_server_gives_the_rewards_of_the_model(bundle: Bundle, server: RewardServer) -> None:
    local = LearnedRewardConfig(model=str(bundle.path), scale=2.0).build()
    remote = LearnedRewardConfig(url=server.url, scale=2.0).build()
    samples = [sample("and the dog"), sample("sat")]
    assert [score.reward for score in remote(samples)] == [score.reward for score in local(samples)]
    assert list(local(samples)[0].terms) == ["reward_model"]
    with urllib.request.urlopen(f"{server.url}/health") as reply:
        assert json.load(reply) == {"model": bundle.name, "signature": bundle.signature}


def test_what_cannot_be_scored_is_an_error_of_the_samples(bundle: Bundle, server: RewardServer) -> None:
    long = sample("the cat " * 600)
    (local,) = LearnedRewardConfig(model=str(bundle.path)).build()([long])
    assert "LongConversationError" in local.error
    (remote,) = LearnedRewardConfig(url=server.url).build()([long])
    assert "RewardServerError" in remote.error
    assert "the reward model's context has 512" in remote.error
    (unreachable,) = LearnedRewardConfig(url="http://127.0.0.1:9").build()([sample("x")])
    assert "start it with openafm rl serve-rewards" in unreachable.error


@pytest.mark.parametrize("reply", [b"", b"[1]", b'{"rewards": [1, 2]}', b'{"rewards": ["a"]}', b"<html>"])
def test_replies_that_are_no_rewards_are_errors(reply: bytes) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.handle_request)
        thread.start()
        with pytest.raises(RewardServerError):
            RemoteRewardModel(f"http://127.0.0.1:{running.server_port}", 10.0).rewards(CHATS[:1])
        thread.join()


@pytest.mark.parametrize("body", [b"", b"{", b"{}", b'{"conversations": [{}]}'])
def test_the_server_refuses_requests_that_are_no_conversations(server: RewardServer, body: bytes) -> None:
    request = urllib.request.Request(f"{server.url}/rewards", data=body, method="POST")
    with pytest.raises(urllib.request.HTTPError) as raised:
        urllib.request.urlopen(request)
    assert raised.value.code == 400
    assert "error" in json.load(raised.value)


def test_a_scorer_that_hangs_costs_its_samples_only(bundle: Bundle) -> None:
    release = threading.Event()

    class Hanging:
        def rewards(self, conversations: object) -> list[float]:
            release.wait(60)
            return []

    config = LearnedRewardConfig(model="any", time_limit=0.1)
    (score,) = LearnedReward(config, Hanging())([sample("x")])
    release.set()
    assert "TimeoutError" in score.error


def test_wrong_configs_and_bundles_without_a_head_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="either model"):
        LearnedRewardConfig()
    with pytest.raises(ConfigError, match="must be HTTP"):
        LearnedRewardConfig(url="file:///etc/passwd")
    base = write_tiny_bundle(tmp_path / "base")
    with pytest.raises(NotARewardModelError, match=r"train one with on_device\.reward_model"):
        LearnedRewardConfig(model=str(base.path)).build()
    assert isinstance(open_bundle(write_reward_bundle(tmp_path / "reward", base).path).config, RewardModelConfig)
