"""The plugin of docs/captions.md works, and its commands have the options that the verbs have."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from endpoints import says, serving
from image_samples import corpus_of, image_of, pair_of

from openafm.cli.main import run
from openafm.data.images.shards import open_image_corpus

PAGE = (Path(__file__).parents[2] / "docs" / "captions.md").read_text(encoding="utf-8")
QUESTIONS = '{"questions":[{"question":"Which color is it?","answer":"Red"}]}'


def test_the_plugin_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    (tmp_path / "seeds.jsonl").write_text(json.dumps({"image": "seed.png", "prompt": "Name the color."}))
    (tmp_path / "seed.png").write_bytes(image_of("red").data)
    names = [{"name": "reds", "keywords": ["thing"], "prompts": ["something red"]}]
    (tmp_path / "domains.json").write_text(json.dumps(names))
    corpus_of(tmp_path / "pairs", [pair_of("red", background=250, alt="a thing")])
    lines = re.findall(r"^    openafm (data \w+ pairs .*--plugins .*) \.\.\.$", PAGE, re.MULTILINE)
    assert len(lines) == 3
    fused = "On a plain page of paper there is one clearly visible red block [50,100,333,500] and nothing else."
    with serving(says("a red block"), says(fused), says(QUESTIONS), says(QUESTIONS)) as endpoint:
        for number, line in enumerate(lines):
            words = [str(tmp_path / word) if (tmp_path / word).exists() else word for word in shlex.split(line)]
            own = ["--domains", str(tmp_path / "domains.json")] if words[1] == "domains" else []
            own += ["--set", "max_similarity=2"] if words[1] == "bootstrap" else []
            place = ["--endpoint", endpoint.url, "--model", "m", "--out", str(tmp_path / str(number))]
            assert run([*words, *own, *place]) == 0, capsys.readouterr().err
    grounded, domain, similar = (next(iter(open_image_corpus(tmp_path / str(it)).documents())) for it in range(3))
    assert grounded.captions["grounded"] == fused
    assert domain.metadata["domain.scorer"] == "WarmthConfig"
    assert similar.metadata["bootstrap.embedder"] == "MeanColorConfig"


def test_the_examples_of_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus_of(tmp_path / "in", [pair_of("red")])
    settings = re.findall(r"`(--set [^`]+)`", PAGE)
    assert len(settings) == 6
    for setting in settings:
        with serving(says("Ein roter Block auf einer Seite.")) as endpoint:
            place = ["--endpoint", endpoint.url, "--model", setting, "--out", str(tmp_path / "out"), "--levels", "short"]
            assert run(["data", "caption", str(tmp_path / "in"), *shlex.split(setting), *place]) == 0
        capsys.readouterr()
