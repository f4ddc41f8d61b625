"""Continued pre-training: mixtures, temperature sampling of languages, extension of the context."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_sources import tokenizer, write_source

from openafm.bundle import open_bundle
from openafm.core.config import ConfigError
from openafm.data.loading.loader import LanguagesConfig, LoaderConfig, SourceConfig
from openafm.data.needles import NeedlesConfig, pack_needles
from openafm.data.shards.manifest import ManifestError
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    RotaryConfig,
)
from openafm.models.sizes import named_size
from openafm.recipes.catalog import build_run
from openafm.recipes.config import RunConfig
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import run_recipe
from openafm.recipes.sources.corpora import NeedlesCorpusConfig, SyntheticCorpusConfig
from openafm.recipes.sources.mixtures import NANO_TASKS
from openafm.training.budgets import StepBudget
from openafm.training.config import TrainerConfig
from openafm.training.initialization import BundleMismatchError
from openafm.training.run import train

TEXT = ("on_device.text_continued", "server.text_continued")
LONG = ("on_device.long_context", "server.long_context")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))


def weights(run: RunConfig) -> dict[str, float]:
    return {source.name: source.weight for source in run.trainer.data.sources}


@pytest.mark.parametrize("size", ["micro", "nano"])
def test_the_multilingual_share_rises_from_8_to_30_percent(size: str) -> None:
    assert weights(build_run("server.pretrain", size))["multilingual"] == 0.08
    for recipe in TEXT:
        run = build_run(recipe, size)
        assert weights(run) == {"math": 0.1, "code": 0.25, "knowledge": 0.35, "multilingual": 0.3}
        assert [type(source) for source in run.trainer.data.sources].count(LanguagesConfig) == 1


@pytest.mark.parametrize("recipe", ["server.pretrain", *TEXT])
def test_buckets_partition_languages_and_tasks(recipe: str) -> None:
    corpora = [corpus for corpus in build_run(recipe, "micro").corpora if isinstance(corpus, SyntheticCorpusConfig)]
    read = {corpus.name: corpus.synthetic for corpus in corpora if corpus.name != "held_out"}
    others = set(read.pop("multilingual").languages)
    assert len(others) == 15
    assert all(set(synthetic.languages) == {"en"} for synthetic in read.values())
    tasks = [task for synthetic in read.values() for task in synthetic.tasks]
    assert sorted(tasks) == sorted(NANO_TASKS)


def test_an_invalid_mixture_is_refused() -> None:
    def changed(sources: list[dict[str, object]], key: str = "trainer.data.sources") -> RunConfig:
        return prepare_run("server.text_continued", "micro", changes={key: json.dumps(sources)})

    with pytest.raises(ConfigError, match="source 'physics' has no corpus; corpora: code, held_out, knowledge, math"):
        changed([{"name": "physics", "path": "physics"}])
    with pytest.raises(ConfigError, match="'physics' has no corpus"):
        changed([{"name": "physics", "path": "physics"}], "trainer.evaluation.data.sources")
    with pytest.raises(ConfigError, match=r"the weights of math, code must add up to 1, they add up to 0\.9"):
        changed([{"name": "math", "path": "math", "weight": 0.5}, {"name": "code", "path": "code", "weight": 0.4}])


def tiny_corpora(run: RunConfig, **changes: object) -> RunConfig:
    """Return the same run with 40 examples in each corpus."""
    corpora = []
    for corpus in run.corpora:
        if isinstance(corpus, NeedlesCorpusConfig):
            needles = NeedlesConfig(lengths=(100, 256), num_needles=2)
            corpora.append(replace(corpus, needles=needles, num_examples=8))
        else:
            corpora.append(replace(corpus, num_examples=40))  # type: ignore[call-arg]
    trainer = replace(run.trainer, budget=StepBudget(num_steps=2), evaluation=None, log_every=1, **changes)  # type: ignore[arg-type]
    return replace(run, corpora=tuple(corpora), trainer=trainer)


def test_text_continued_reads_every_language(tmp_path: Path) -> None:
    base = write_source(tmp_path / "base")
    run = tiny_corpora(prepare_run("on_device.text_continued", "micro", start=str(base.path)))
    result = run_recipe(run, tmp_path / "run", "continued")
    bundle = open_bundle("continued")
    assert bundle.signature == result.signature != base.signature
    assert bundle.config == base.config
    located = [replace(source, path=str(tmp_path / "run" / "data" / source.path)) for source in run.trainer.data.sources]
    loader = replace(run.trainer.data, sources=tuple(located)).build()
    languages = [name for name in loader.weights if name.startswith("multilingual/")]
    assert len(languages) > 8
    assert sum(loader.weights[name] for name in languages) == pytest.approx(0.3)


@pytest.mark.parametrize("recipe", LONG)
def test_long_context_changes_only_the_context_length(recipe: str, tmp_path: Path) -> None:
    base = write_source(tmp_path / "base", context_length=64)
    run = prepare_run(recipe, "micro", start=str(base.path))
    assert run.trainer.model == replace(base.config, context_length=4096)
    assert run.trainer.data.row_tokens == 4096
    run = tiny_corpora(run, data=replace(run.trainer.data, row_tokens=256), microbatch_rows=None)
    run_recipe(run, tmp_path / "run", "long")
    assert open_bundle("long").config.context_length == 4096
    assert "retrieval documents" in open_bundle("long").card()


def test_other_recipes_keep_the_context_of_their_bundle(tmp_path: Path) -> None:
    base = write_source(tmp_path / "base", context_length=128)
    run = prepare_run("server.sft", "micro", start=str(base.path))
    assert (run.trainer.model.context_length, run.trainer.data.row_tokens) == (128, 128)
    longer = write_source(tmp_path / "longer", context_length=8192)
    assert prepare_run("on_device.long_context", "micro", start=str(longer.path)).trainer.model.context_length == 8192


@pytest.mark.parametrize(
    ("change", "match"), [({"context_length": 32}, "context_length is 64, not 32"), ({"norm_eps": 1e-3}, "norm_eps")]
)
def test_any_other_difference_of_the_model_is_refused(change: dict[str, float], match: str, tmp_path: Path) -> None:
    base = write_source(tmp_path / "base", context_length=64)
    run = tiny_corpora(prepare_run("on_device.text_continued", "micro", start=str(base.path)))
    model = replace(base.config, **change)  # type: ignore[arg-type]
    trainer = replace(run.trainer, model=model, data=replace(run.trainer.data, row_tokens=32))
    with pytest.raises(BundleMismatchError, match=match):
        run_recipe(replace(run, trainer=trainer), tmp_path / "run", "other")


def test_a_missing_source_is_refused_before_the_first_step(tmp_path: Path) -> None:
    sources = (SourceConfig(name="gone", path=str(tmp_path / "gone")),)
    trainer = TrainerConfig(
        model=named_size("on_device.micro"),
        data=LoaderConfig(sources=sources, rows_per_step=1, row_tokens=64),
        budget=StepBudget(num_steps=1),
    )
    with pytest.raises(ManifestError, match="gone"):
        train(trainer, tmp_path / "run")


@pytest.mark.parametrize("model", ["on_device.base", "server.full"])
def test_report_sizes_take_rows_of_65536(model: str) -> None:
    run = build_run(f"{model.split('.')[0]}.long_context", "nano")
    trainer = replace(run.trainer, model=named_size(model), data=replace(run.trainer.data, row_tokens=65_536))
    assert trainer.model.context_length == 65_536
    with pytest.raises(ConfigError, match="rows of 65537 tokens do not fit"):
        replace(trainer, data=replace(trainer.data, row_tokens=65_537))


@pytest.mark.long
def test_a_step_on_a_row_of_65536(tmp_path: Path) -> None:
    """Local layers attend to their window only; the global layer at the end runs for the positions that carry loss."""

    def layer(window: int | None) -> LayerConfig:
        attention = AttentionConfig(
            num_heads=1,
            head_dim=8,
            keys_values=OwnKeysValuesConfig(num_heads=1),
            window=window,
            position=None if window is None else RotaryConfig(),
        )
        return LayerConfig(attention=attention, feed_forward=DenseFeedForwardConfig(hidden_dim=8))

    config = NeedlesConfig(lengths=(65_536,), num_needles=4)
    assert pack_needles(config, 1, tmp_path / "needles", tokenizer()).num_tokens == 65_536
    model = DecoderConfig(vocab_size=800, dim=8, layers=(layer(64), layer(64), layer(None)), context_length=65_536)
    source = SourceConfig(name="needles", path=str(tmp_path / "needles"))
    trainer = TrainerConfig(
        model=model,
        data=LoaderConfig(sources=(source,), rows_per_step=1, row_tokens=65_536),
        budget=StepBudget(num_steps=1),
        num_threads=1,
    )
    result = train(trainer, tmp_path / "run")
    assert (result.step, result.num_tokens) == (1, 65_536)
    assert result.loss is not None
    assert np.isclose(result.loss, np.log(800), atol=1)
