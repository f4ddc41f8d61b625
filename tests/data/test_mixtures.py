"""Mixtures of the multimodal stages: shares, sources, the verb that prints them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from image_samples import corpus_of, interleaved_of, pair_of

from openafm.cli.main import run
from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.data.mixtures import (
    MULTIMODAL_ADAPTATION,
    STAGE_MIXTURES,
    MixturePartConfig,
    StageMixtureConfig,
    count_source,
    stage_mixture,
)
from openafm.data.pipeline.mixture_plan import MixtureConfig, MixtureError, Source, plan_mixture


def source(name: str, **tokens: int) -> Source:
    return Source(name=name, path=f"/data/{name}", tokens=tokens)


def test_adaptation_has_the_shares_of_the_report() -> None:
    shares = {part.name: part.share for part in MULTIMODAL_ADAPTATION.parts}
    assert shares == {"text": 0.6, "interleaved": 0.1, "captions": 0.285, "domains": 0.015}
    for mixture in STAGE_MIXTURES.values():
        assert abs(sum(part.share for part in mixture.parts) - 1) < 1e-9
        assert from_dict(StageMixtureConfig, to_dict(mixture)) == mixture


def test_a_plan_keeps_the_shares_and_divides_a_part_by_tokens() -> None:
    sources = {
        "text": [source("text", en=6_000, de=4_000)],
        "interleaved": [source("pages", en=900)],
        "captions": [source("alt", en=3_000), source("levels", en=1_000)],
        "domains": [source("charts", en=500), source("empty")],
    }
    weighted = MULTIMODAL_ADAPTATION.weighted(sources)
    assert {each.name: each.weight for each in weighted} == pytest.approx(
        {"text": 0.6, "interleaved": 0.1, "captions-1": 0.285 * 0.75, "captions-2": 0.285 * 0.25, "domains-1": 0.015}
    )
    plan = plan_mixture(weighted, MixtureConfig(tokens=10_000, max_epochs=0))
    assert plan.share_of("text") == pytest.approx(0.6)
    assert plan.share_of("captions-1") + plan.share_of("captions-2") == pytest.approx(0.285)
    assert plan.share_of("domains-1") == pytest.approx(0.015)


def test_missing_unknown_and_empty_parts_are_named() -> None:
    with pytest.raises(MixtureError, match=r"needs sources for interleaved \(10\.0%\), captions \(28\.5%\), domains"):
        MULTIMODAL_ADAPTATION.loader_sources({"text": "a"})
    with pytest.raises(MixtureError, match="no part 'txt'; did you mean 'text'"):
        MULTIMODAL_ADAPTATION.loader_sources({"txt": "a"})
    with pytest.raises(MixtureError, match="the sources of text have no tokens"):
        MULTIMODAL_ADAPTATION.weighted({part.name: [source("x")] for part in MULTIMODAL_ADAPTATION.parts})
    with pytest.raises(MixtureError, match="did you mean 'vision_sft'"):
        stage_mixture("vision_stf")
    part = MixturePartConfig(name="a", share=0.5, holds="x")
    with pytest.raises(ConfigError, match=r"add up to 1, got 0\.5"):
        StageMixtureConfig(name="x", origin="ours", parts=(part,))


def test_loader_sources_have_the_shares_as_weights() -> None:
    paths = {part.name: f"/shards/{part.name}" for part in MULTIMODAL_ADAPTATION.parts}
    sources = MULTIMODAL_ADAPTATION.loader_sources(paths)
    assert [(each.name, each.weight) for each in sources][2] == ("captions", 0.285)
    assert sources[0].path == "/shards/text"


def test_images_count_by_the_tokens_of_the_balanced_mode(tmp_path: Path) -> None:
    corpus_of(tmp_path / "in", [pair_of("red", alt="four" * 10), interleaved_of(pair_of("blue"), pair_of("green"))])
    counted = count_source("pairs", tmp_path / "in", None)
    assert counted.is_estimated
    assert counted.tokens == {"en": round(40 / 4 + 144 + 2 * 144 + len("Look:\n\nLook:") / 4)}


def test_the_verb_prints_the_stage_and_plans_its_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "mixture", "--stage", "multimodal_adaptation"]) == 0
    printed = capsys.readouterr().out
    assert "28.5%" in printed
    assert "openafm data caption" in printed
    assert run(["data", "mixture", "--stage", "vision_sft", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "vision_sft"

    corpus_of(tmp_path / "images", [pair_of("red", alt="a red thing"), pair_of("blue", alt="a blue thing")])
    (tmp_path / "text.txt").write_text("Some text of the web. " * 40)
    parts = [
        f"{part}={tmp_path}/{'text.txt' if part == 'text' else 'images'}" for part in ("text", "interleaved", "captions")
    ]
    arguments = ["data", "mixture", "--stage", "multimodal_adaptation", "--max-epochs", "0", *parts]
    assert run([*arguments, "--json"]) != 0
    assert "needs sources for domains (1.5%)" in capsys.readouterr().err
    arguments += [f"domains={tmp_path}/images", "--out", str(tmp_path / "mixture.toml")]
    assert run([*arguments, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert {cell["source"]: round(cell["share"], 6) for cell in cells} == {
        "text": 0.6,
        "interleaved": 0.1,
        "captions": 0.285,
        "domains": 0.015,
    }
    written = tomllib.loads((tmp_path / "mixture.toml").read_text())
    assert {each["name"]: each["weight"] for each in written["sources"]}["captions"] == 0.285
    assert run(["data", "mixture"]) != 0
    assert "needs sources" in capsys.readouterr().err
    assert run(["data", "mixture", "--stage", "vision_sft", str(tmp_path / "images")]) != 0
    assert "is not PART=PATH" in capsys.readouterr().err
