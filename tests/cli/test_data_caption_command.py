"""`openafm data caption` with a model behind an endpoint."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from endpoints import Endpoint, Reply, fails, says, serving, silent
from image_samples import corpus_of, image_of, pair_of

from openafm.cli.main import run
from openafm.data.images.shards import open_image_corpus


def images_sent(endpoint: Endpoint) -> list[bytes]:
    urls = [request["messages"][0]["content"][0]["image_url"]["url"] for request in endpoint.requests]
    return [base64.b64decode(url.removeprefix("data:image/png;base64,"), validate=True) for url in urls]


def caption(tmp_path: Path, *script: Reply, levels: str = "short", options: tuple[str, ...] = ()) -> tuple[int, Endpoint]:
    with serving(*script) as endpoint:
        place = ["--endpoint", endpoint.url, "--model", "seer", "--threads", "1"]
        arguments = ["data", "caption", str(tmp_path / "in"), "--levels", levels, "--out", str(tmp_path / "out")]
        return run([*arguments, *place, *options]), endpoint


def test_images_reach_the_endpoint_and_captions_the_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus_of(tmp_path / "in", [pair_of("red"), pair_of("blue")])
    monkeypatch.setenv("KEY_OF_TEST", "secret-key")
    script = [says("red, thing"), says("Red thing ", "on white."), says("I cannot do that."), says("Blue thing on white.")]
    code, endpoint = caption(tmp_path, *script, levels="short,keywords", options=("--json", "--key-variable", "KEY_OF_TEST"))
    assert code == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["model"], printed["sampling"], printed["num_documents"]) == ("seer", "greedy", 2)
    assert images_sent(endpoint) == [image_of(color).data for color in ("red", "red", "blue", "blue")]
    assert all(headers["Authorization"] == "Bearer secret-key" for _, headers in endpoint.asked)
    assert {request["max_tokens"] for request in endpoint.requests} == {96}
    assert {request["temperature"] for request in endpoint.requests} == {0}
    captions = [document.captions for document in open_image_corpus(tmp_path / "out").documents()]
    assert captions == [{"keywords": "red, thing", "short": "Red thing on white."}, {"short": "Blue thing on white."}]
    assert "secret-key" not in (tmp_path / "out" / "manifest.json").read_text()
    assert printed["dropped"] == {"keywords.refused": 1}


def test_limits_failures_and_slow_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus_of(tmp_path / "in", [pair_of("red"), pair_of("blue"), pair_of("green")])
    slow = ("--set", "seconds=0.3")
    code, _ = caption(
        tmp_path, says("A red thing and", finish="length"), silent(), says("A green thing there."), options=slow
    )
    assert code == 0
    out = open_image_corpus(tmp_path / "out")
    assert out.manifest.dropped == {"endless": 2}
    assert [document.captions["short"] for document in out.documents()] == ["A green thing there."]
    capsys.readouterr()
    code, endpoint = caption(tmp_path, fails(401, {"error": {"message": "bad key"}}), options=("--temperature", "0.5"))
    assert code != 0
    assert len(endpoint.requests) <= 2  # one ahead
    assert "bad key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--levels", "poem"], "unknown level 'poem'; use keywords, short, paragraph, grounded"),
        ([], "does not support images"),
        (["--endpoint", "http://127.0.0.1:9/v1"], "add --model NAME"),
        (["--endpoint", "ftp://x", "--model", "m"], "must begin with http"),
        (["--set", "levles=1"], "did you mean 'levels'"),
    ],
)
def test_wrong_arguments_are_reported_before_any_work(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus_of(tmp_path / "in", [pair_of("red")])
    assert run(["data", "caption", str(tmp_path / "in"), "--out", str(tmp_path / "out"), *arguments]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run(["data", "caption", str(tmp_path), "--out", str(tmp_path / "out"), "--levels", "short"]) != 0
    assert "not a complete image corpus" in capsys.readouterr().err
