"""`openafm data domains` and `bootstrap` with a model behind an endpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from endpoints import says, serving
from image_samples import corpus_of, image_of, pair_of

from openafm.cli.main import run
from openafm.data.images.shards import open_image_corpus

ANSWER = '{"questions":[{"question":"Which color is it?","answer":"Red"}]}'
SCORER = """
from dataclasses import dataclass
from openafm.data.captions.domains import Scorer, ScorerConfig

@dataclass(frozen=True, kw_only=True)
class FirstPromptConfig(ScorerConfig):
    def build(self) -> Scorer:
        return FirstPrompt()

class FirstPrompt(Scorer):
    def scores(self, image, prompts):
        return [-float(index) for index in range(len(prompts))]
"""


def test_domains_of_a_file_with_a_scorer_of_a_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus_of(tmp_path / "in", [pair_of("red", alt="a bird"), pair_of("blue", alt="a boat"), pair_of("green")])
    names = [{"name": f"{it}s", "keywords": [it], "prompts": [f"a photo of a {it}"]} for it in ("bird", "boat")]
    (tmp_path / "domains.json").write_text(json.dumps(names))
    (tmp_path / "scorer.py").write_text(SCORER)
    files = [str(tmp_path / name) for name in ("in", "out", "domains.json", "scorer.py")]
    with serving(says(ANSWER)) as endpoint:
        arguments = ["data", "domains", files[0], "-o", files[1], "--domains", files[2], "--endpoint", endpoint.url]
        scorer = ["--plugins", files[3], "--set", 'scorer={"type": "FirstPromptConfig"}']
        assert run([*arguments, "--model", "seer", *scorer, "--json"]) == 0
        assert endpoint.requests[0]["response_format"]["json_schema"]["schema"]["required"] == ["questions"]
    printed = json.loads(capsys.readouterr().out)
    assert (printed["documents"], printed["kinds"]) == (1, {"domain.birds": 1})
    assert printed["dropped"] == {"no_keyword": 1, "other_category": 1}
    (tmp_path / "domains.json").write_text('[{"name": "x", "keyword": ["y"]}]')
    assert run([*arguments, "--model", "seer"]) != 0
    assert "did you mean 'keywords'" in capsys.readouterr().err


def test_bootstrap_from_a_file_of_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus_of(tmp_path / "in", [pair_of("red", background=200), pair_of("blue", background=0)])
    (tmp_path / "seed.png").write_bytes(image_of("red").data)
    (tmp_path / "seeds.jsonl").write_text('{"image": "seed.png", "prompt": "Name the color."}\n')
    with serving(says(ANSWER)) as endpoint:
        place = ["--endpoint", endpoint.url, "--model", "seer"]
        seeds = ["--seeds", str(tmp_path / "seeds.jsonl"), "--set", "min_similarity=0.3"]
        assert run(["data", "bootstrap", str(tmp_path / "in"), "-o", str(tmp_path / "out"), *seeds, *place]) == 0
        assert "Request: Name the color." in endpoint.requests[0]["messages"][0]["content"][1]["text"]
    assert "not_retrieved" in capsys.readouterr().out
    (document,) = open_image_corpus(tmp_path / "out").documents()
    assert document.questions[0].answer == "Red"
