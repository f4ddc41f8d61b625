from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openafm.cli.main import run
from openafm.core.config import ConfigError
from openafm.data.documents import DocumentFiles
from openafm.data.loading.loader import LanguageMissingError, LanguageSharesConfig, LoaderConfig
from openafm.data.pipeline.mixture_plan import (
    MixtureConfig,
    MixtureError,
    Source,
    count_tokens,
    plan_mixture,
    write_description,
)
from openafm.data.pipeline.parquet import RowWriter, document_row, document_schema
from openafm.data.shards.writer import write_shards
from openafm.data.web.documents import WebDocument
from openafm.recipes.sources.own_data import read_data

WEB = Source(name="web", path="web", tokens={"en": 8_000, "de": 640, "da": 10})
CODE = Source(name="code", path="code", tokens={"en": 1_000}, weight=1.0)


def by_cell(sources: list[Source], **changes: float) -> dict[str, tuple[float, float]]:
    plan = plan_mixture(sources, MixtureConfig(**changes))  # type: ignore[arg-type]
    return {f"{cell.source}/{cell.language}": (cell.share, cell.epochs) for cell in plan.cells}


def test_languages_are_sampled_by_temperature() -> None:
    web = Source(name="web", path="web", tokens={"en": 64, "da": 1})
    assert by_cell([web], temperature=3.0, max_epochs=0) == {"web/da": (0.2, 13.0), "web/en": (0.8, 0.8125)}


def test_the_share_of_other_languages_is_set() -> None:
    for multilingual in (0.08, 0.30):
        plan = plan_mixture([WEB], MixtureConfig(multilingual=multilingual, max_epochs=0))
        assert plan.multilingual == pytest.approx(multilingual)
    with pytest.raises(MixtureError, match="no text in other languages, which must have a share of 8%"):
        plan_mixture([CODE], MixtureConfig(multilingual=0.08))


def test_no_cell_is_repeated_above_the_cap_and_its_group_takes_the_rest() -> None:
    cells = by_cell([WEB], tokens=8_000, multilingual=0.1, max_epochs=2.0, temperature=3.0)
    assert cells["web/da"] == pytest.approx((20 / 8_000, 2.0))
    assert cells["web/de"][0] == pytest.approx(0.1 - 20 / 8_000)
    assert cells["web/en"][0] == pytest.approx(0.9)


def test_fewer_tokens_than_wanted_if_everything_is_at_the_cap() -> None:
    plan = plan_mixture([CODE], MixtureConfig(tokens=10_000, max_epochs=4.0))
    assert (plan.tokens, plan.cells[0].epochs) == (4_000, 4.0)


@given(
    tokens=st.lists(st.dictionaries(st.sampled_from(["en", "de", "ja"]), st.integers(0, 10**9)), min_size=1, max_size=4),
    budget=st.integers(0, 10**10),
    cap=st.sampled_from([0, 1, 4]),
)
def test_shares_add_up_and_stay_below_the_cap(tokens: list[dict[str, int]], budget: int, cap: int) -> None:
    sources = [Source(name=str(index), path="", tokens=each) for index, each in enumerate(tokens)]
    config = MixtureConfig(tokens=budget, max_epochs=cap)
    if not any(sum(each.values()) for each in tokens):
        with pytest.raises(MixtureError):
            plan_mixture(sources, config)
        return
    plan = plan_mixture(sources, config)
    assert sum(cell.share for cell in plan.cells) == pytest.approx(1)
    assert plan.tokens <= plan.wanted_tokens
    if cap:
        assert max(cell.epochs for cell in plan.cells) <= cap * (1 + 1e-6)
    trained = sum(cell.epochs * cell.tokens for cell in plan.cells)
    assert trained == pytest.approx(plan.tokens, rel=1e-6, abs=1)


def packed(path: Path) -> Path:
    with write_shards(path, tokenizer_digest="d", vocab_size=1_000, tokens_per_shard=1_000) as writer:
        for language, first, count in (("en", 1, 6), ("de", 100, 3), ("da", 200, 1)):
            for index in range(count):
                writer.add(np.arange(first + 8 * index, first + 8 * index + 8), language=language)
    return path


def test_shards_are_counted_and_the_description_is_accepted(tmp_path: Path) -> None:
    source = count_tokens("mine", packed(tmp_path / "mine"), None)
    assert source.tokens == {"da": 8, "de": 24, "en": 48}
    plan = plan_mixture([source], MixtureConfig(multilingual=0.5, temperature=1.0))
    write_description(plan, [source], tmp_path / "mixture.toml")
    (read,) = read_data(tmp_path / "mixture.toml").sources
    assert read.languages == pytest.approx({"da": 0.125, "de": 0.375, "en": 0.5})
    assert read.path == str(tmp_path / "mine")


def test_the_loader_draws_the_shares(tmp_path: Path) -> None:
    path = str(packed(tmp_path / "mine"))
    source = LanguageSharesConfig(name="mine", path=path, shares={"en": 0.25, "de": 0.5, "sv": 0.25})
    loader = LoaderConfig(sources=(source,), rows_per_step=3, row_tokens=8).build()
    assert loader.weights == pytest.approx({"mine/de": 2 / 3, "mine/en": 1 / 3})
    first_tokens = loader.batch(0).tokens_BS[:, 0]
    assert (first_tokens >= 100).sum() == 2
    assert (first_tokens >= 200).sum() == 0  # Danish has no share
    with pytest.raises(LanguageMissingError, match="has no document in sv"):
        LoaderConfig(
            sources=(LanguageSharesConfig(name="mine", path=path, shares={"sv": 1.0}),), rows_per_step=1, row_tokens=8
        ).build()
    with pytest.raises(ConfigError, match="above 0"):
        LanguageSharesConfig(name="mine", path=path, shares={"sv": 0.0})


def test_the_command_prints_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = packed(tmp_path / "mine")
    assert run(["data", "mixture", f"{path}=2", "--multilingual", "0.3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["multilingual"] == pytest.approx(0.3)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "de.txt").write_text("ein Text " * 100)
    assert run(["data", "mixture", str(path), str(tmp_path / "notes"), "-o", str(tmp_path / "m.toml")]) == 0
    assert "tokens estimated" in capsys.readouterr().out
    for wrong in (["none"], [f"{path}=-1"], [f"{path}=x"], [str(path), "--temperature", "0.5"]):
        assert run(["data", "mixture", *wrong]) == 2


def test_domains_have_factors_and_the_description_has_their_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "web.parquet"
    urls = ["https://a.example/1", "https://sub.a.example/2", "https://b.example/3", "https://c.example/4"]
    with path.open("wb") as file, RowWriter(file, document_schema()) as writer:
        for url in urls:
            writer.write(document_row(WebDocument(id=url, url=url, text="word " * 100, language="en")))
    out = tmp_path / "mix.toml"
    options = ["--domain", "a.example=3", "--domain", "b.example=0", "--out", str(out), "--json"]
    assert run(["data", "mixture", str(path), "--max-epochs", "0", *options]) == 0
    shares = {cell["source"]: cell["share"] for cell in json.loads(capsys.readouterr().out)["cells"]}
    assert shares == pytest.approx({"web-a.example": 6 / 7, "web-others": 1 / 7})
    parts = {source.name: Path(source.path) for source in read_data(out).sources}
    assert [len(list(DocumentFiles(part))) for part in parts.values()] == [2, 1]


@pytest.mark.parametrize(
    ("option", "message"), [("none.example=2", "no document of the domain none.example"), ("a.example", "DOMAIN=FACTOR")]
)
def test_wrong_domains_are_refused(option: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "web.parquet"
    with path.open("wb") as file, RowWriter(file, document_schema()) as writer:
        writer.write(document_row(WebDocument(id="1", url="https://a.example/", text="word " * 100, language="en")))
    assert run(["data", "mixture", str(path), "--domain", option]) == 2
    assert message in capsys.readouterr().err
