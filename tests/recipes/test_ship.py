"""`make nano` on tiny models: the stages, assembly from bundles, the size limit, the card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from openafm.adapters.package import write_adapter
from openafm.bundle import open_bundle
from openafm.core.config import override
from openafm.evaluation import held_out
from openafm.evaluation.fresh.cases import label_cases
from openafm.ranking.ranker import open_ranker, write_ranker
from openafm.ranking.training import ChoiceSet, RankedChoice, RankerTrainingConfig, train_ranker
from openafm.reading.page import FILES
from openafm.recipes.config import RunConfig
from openafm.recipes.prepare import prepare_run
from openafm.recipes.shipping.__main__ import main
from openafm.recipes.shipping.package import ShippedSizeError, check_size
from openafm.recipes.shipping.stages import changes_from_recipe

pytestmark = pytest.mark.xdist_group("ship")

STAGES = ("pretrain", "sft", "qat", "recovery_adapter")
CORPUS = {"type": "SyntheticCorpusConfig", "name": "built_in", "synthetic": {"tasks": {"event": 1}}, "num_examples": 200}


def small(recipe: str, size: str, *, start: str | None = None, changes: Mapping[str, str]) -> RunConfig:
    """Return the stage with two steps and a model of two layers."""
    assert not changes  # no folder of natural requests
    changes = {
        "trainer.budget": '{"type": "StepBudget", "num_steps": 2}',
        "corpora": json.dumps([CORPUS]),
        "trainer.data.rows_per_step": "1",
        "trainer.data.row_tokens": "512",
        "trainer.data.sources": '[{"name": "built_in", "path": "built_in"}]',
        "trainer.evaluation": "null",
    }
    if start is None:
        attention = {
            "type": "AttentionConfig",
            "num_heads": 2,
            "head_dim": 16,
            "keys_values": {"type": "OwnKeysValuesConfig", "num_heads": 1},
        }
        layer = {"attention": attention, "feed_forward": {"type": "DenseFeedForwardConfig", "hidden_dim": 64}}
        model = {"vocab_size": 600, "dim": 32, "layers": [layer, layer], "context_length": 4096}
        changes |= {"tokenizer.vocab_size": "600", "trainer.model": json.dumps(model)}
        changes |= {"trainer.start": '{"type": "PlainStart"}'}
    if recipe == "on_device.recovery_adapter":
        changes |= {"trainer.adapter.rank": "2"}
    return prepare_run(recipe, size, start=start, changes=changes)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def tiny(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use stages of two steps and short answers, in a data home shared by the tests."""
    monkeypatch.setenv("OPENAFM_HOME", str(home))
    monkeypatch.setattr("openafm.recipes.shipping.stages.prepare_run", small)
    monkeypatch.setattr("openafm.evaluation.events.MAX_TOKENS", 4)
    monkeypatch.setattr(held_out, "MAX_TOKENS", 4)
    tasks = {name: held_out.TASKS[name] for name in ("event", "tagging")}
    monkeypatch.setattr(held_out, "TASKS", tasks)
    monkeypatch.setattr("openafm.recipes.shipping.package.fresh_cases", lambda natural: label_cases()[:2])


@pytest.fixture
def assembled(home: Path) -> list[str]:
    """Return the arguments that reuse the bundles of the first test."""
    if not (home / "first").exists():
        assert main(["--out", str(home / "first" / "nano"), "--examples", "3"]) == 0
    bundles = [str(home / "bundles" / f"nano-{stage}") for stage in STAGES[1:]]
    runs = [str(home / "runs" / "ship" / stage) for stage in STAGES]
    return ["--from-bundles", *bundles, "--runs", *runs, "--examples", "3"]


@pytest.mark.slow
def test_training_writes_a_bundle_with_card_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "nano"), "--examples", "3"]) == 0
    bundle = open_bundle(tmp_path / "nano")
    bundle.verify()
    assert bundle.numerics.weights == "int2_balanced"
    assert bundle.numerics.embedding == "int4_group32"
    assert bundle.recovery_adapter is not None
    bundle.recovery_adapter.check_base(bundle.signature)
    assert bundle.signature == open_bundle("nano-qat").signature
    assert ": " not in (tmp_path / "nano" / "tokenizer.json").read_text(encoding="utf-8")[:200]
    printed = capsys.readouterr().out
    assert all(file.name in printed for file in (tmp_path / "nano").iterdir() if file.is_file())
    assert "bytes in total, limit 12,000,000" in printed

    results = json.loads((tmp_path / "nano.json").read_text())
    assert [stage["recipe"] for stage in results["stages"]] == [f"on_device.{stage}" for stage in STAGES]
    assert {stage["steps"] for stage in results["stages"]} == {2}
    assert all(stage["seconds"] > 0 and stage["tokens"] > 0 for stage in results["stages"])
    assert results["files"]["model.safetensors"] == (tmp_path / "nano" / "model.safetensors").stat().st_size
    assert results["scores"].keys() == {"shipped", "without_adapter", "uncompressed"}
    assert results["scores"]["shipped"]["tasks"]["event"]["baselines"].keys() == {"constant", "regex"}

    assert results["fresh"]["label_first"]["cases"] > 0
    card = bundle.card()
    assert "| `label_first` | " in card, "an example of an answer"
    for expected in (
        "| label, the right one listed first |",
        bundle.signature,
        "Apache-2.0",
        "openafm train on_device.qat --size nano --from on_device.sft-nano --set",
        "`make nano`",
        "recovery adapter",
        f"{results['files']['model.safetensors']:,}",
        f"{100 * results['scores']['shipped']['tasks']['event']['baselines']['regex']:.1f} %",
        "What it cannot do",
    ):
        assert expected in card
    assert str(tmp_path) not in card + (tmp_path / "nano.json").read_text(), "no path of this machine"


@pytest.mark.long
def test_reported_bits_equal_file_sizes(assembled: list[str], home: Path) -> None:
    results = json.loads((home / "first" / "nano.json").read_text())
    bundle = open_bundle(home / "first" / "nano")
    assert bundle.recovery_adapter is not None
    stored = sum(tensor.data.nbytes for tensor in bundle.stored_tensors.values())
    adapter = sum(2 * weight.size for weight in bundle.recovery_adapter.weights().values())
    bits = 8 * (stored + adapter) / results["description"]["parameters"]
    assert results["description"]["bits_per_weight"] == pytest.approx(bits)
    assert f"| **{bits:.2f}** |" in bundle.card()


def test_assembly_from_bundles_gives_the_same_bundle(assembled: list[str], home: Path, tmp_path: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in (home / "bundles").rglob("*")}
    assert main(["--out", str(tmp_path / "nano"), *assembled]) == 0
    again, first = tmp_path / "nano", home / "first" / "nano"
    assert {file.name: file.read_bytes() for file in again.iterdir() if file.is_file()} == {
        file.name: file.read_bytes() for file in first.iterdir() if file.is_file()
    }
    assert before == {file: file.stat().st_mtime_ns for file in (home / "bundles").rglob("*")}


def test_the_reader_and_the_rankers_stay(assembled: list[str], tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "nano"), *assembled]) == 0
    choices = tuple(RankedChoice(names=(name,), texts=(name,)) for name in ("music", "weather"))
    config = RankerTrainingConfig(num_buckets=64, dim=2, num_steps=1)
    write_ranker(tmp_path / "nano" / "ranker", *train_ranker(config, [ChoiceSet(choices=choices, weight=1.0)]))
    folder = tmp_path / "nano" / "reader"
    folder.mkdir()
    config_file, weights_file = (folder / name for name in FILES)
    weights_file.write_bytes(b"weights")
    config_file.write_text(json.dumps({"digest": sha256(b"weights").hexdigest()}))
    bundle = open_bundle(tmp_path / "nano")
    recovery = bundle.recovery_adapter
    assert recovery is not None
    for signature, stays in ((bundle.signature, True), ("0" * 40, False)):
        write_adapter(
            folder / "pages.fmadapter",
            weights=recovery.weights(),
            config=recovery.config,
            base_signature=signature,
            name="pages",
        )
        assert main(["--out", str(tmp_path / "nano"), *assembled]) == 0
        assert (folder / "pages.fmadapter").is_dir() == stays
        assert weights_file.read_bytes() == b"weights"
        assert "digest" in json.loads(config_file.read_text())
        assert open_ranker(tmp_path / "nano" / "ranker").config.num_buckets == 64


def test_scores_are_cached(assembled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "held_out_scores", lambda *_, **__: pytest.fail("scored again"))
    assert main(["--out", str(tmp_path / "nano"), *assembled]) == 0


def test_other_examples_are_scored_again(assembled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event, scored = held_out.TASKS["event"], []
    monkeypatch.setitem(
        held_out.TASKS, "event", replace(event, examples=lambda count, languages: event.examples(count + 1, languages)[1:])
    )
    of_model = held_out.held_out_scores
    monkeypatch.setattr(
        held_out, "held_out_scores", lambda model, **values: scored.append(model) or of_model(model, **values)
    )
    assert main(["--out", str(tmp_path / "nano"), *assembled]) == 0
    assert len(scored) == 3


def test_without_the_adapter(assembled: list[str], home: Path, tmp_path: Path) -> None:
    bundles, runs = assembled[1:3], assembled[5:8]
    arguments = ["--from-bundles", *bundles, "--runs", *runs, "--without-adapter", "--examples", "3"]
    assert main(["--out", str(tmp_path / "nano"), *arguments]) == 0
    bundle = open_bundle(tmp_path / "nano")
    assert bundle.recovery_adapter is None
    assert "recovery" not in bundle.card()


def test_a_continued_model_names_the_stages_of_its_former_model(
    assembled: list[str], home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundles, (sft, qat, recovery) = assembled[1:4], assembled[6:9]  # without pre-training
    runs = (sft, qat, qat, recovery)
    noted = json.loads((home / "first" / "nano.json").read_text())
    noted["stages"][1]["note"] = "started from a mean"
    former = tmp_path / "former.json"
    former.write_text(json.dumps(noted))
    arguments = ["--from-bundles", *bundles, "--runs", *runs, "--former", str(former), "--examples", "3"]
    assert main(["--out", str(tmp_path / "nano"), *arguments]) == 0
    card = open_bundle(tmp_path / "nano").card()
    assert "The first 4 stages made the former nano" in card
    assert "    # started from a mean\n    openafm train on_device.sft --size nano --from on_device.pretrain-nano" in card
    decoded = card.index(
        "    openafm compress decode nano\n    openafm train on_device.sft --size nano --from nano-decoded --set"
    )
    assert decoded > card.index("    openafm train on_device.recovery_adapter --size nano --from on_device.qat-nano")
    again = "on_device.qat --size nano --from on_device.qat-nano-decoded"
    assert f"    openafm compress decode on_device.qat-nano\n    openafm train {again}" in card
    results = json.loads((tmp_path / "nano.json").read_text())
    assert [len(results["former"]), len(results["stages"])] == [4, 4]

    (tmp_path / "not.json").write_text("{}")
    assert main(["--out", str(tmp_path / "other"), *arguments, "--former", str(tmp_path / "not.json")]) == 2
    assert "is not the results file of a shipped model" in capsys.readouterr().err


def test_a_too_large_bundle_is_refused_and_not_written(
    assembled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openafm.recipes.shipping.package.MAX_BYTES", 20_000)
    assert main(["--out", str(tmp_path / "nano"), *assembled]) == 1
    message = capsys.readouterr().err
    assert "model.safetensors" in message
    assert "tokenizer.json" in message
    assert "20,000 at most" in message
    assert list(tmp_path.iterdir()) == []


def test_the_limit_is_twelve_million_bytes() -> None:
    check_size({"a": 6_000_000, "b": 6_000_000})
    with pytest.raises(ShippedSizeError, match="12,000,001 bytes"):
        check_size({"a": 6_000_000, "b": 6_000_001})


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ((2, 3), "expected 3 bundles"),
        ((1, 2, 2), "has no recovery adapter"),
        ((1, 1, 3), "is not compressed"),
    ],
)
def test_parts_of_different_models_are_refused(
    assembled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], places: tuple[int, ...], text: str
) -> None:
    arguments = ["--from-bundles", *(assembled[place] for place in places), *assembled[4:]]
    assert main(["--out", str(tmp_path / "nano"), *arguments]) == 2
    assert text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_package_is_written_only_in_a_checkout(
    assembled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "checkout" / "src" / "openafm" / "shipped"
    monkeypatch.setattr("openafm.recipes.shipping.__main__.SHIPPED_HOME", package)
    assert main(assembled) == 2
    assert "not part of a source checkout; name the bundle folder with --out" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    package.mkdir(parents=True)
    (tmp_path / "checkout" / "pyproject.toml").touch()
    assert main(assembled) == 0
    open_bundle(package / "nano").verify()
    assert (tmp_path / "checkout" / "docs" / "benchmarks" / "shipped_nano.json").is_file()


def test_a_folder_without_a_run_is_refused(assembled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "nano"), *assembled[:8], str(tmp_path), *assembled[9:]]) == 2
    assert f"{tmp_path} is not the folder of a run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_changes_from_the_recipe_reproduce_the_run() -> None:
    recipe = prepare_run("on_device.sft", "nano")
    assert changes_from_recipe(recipe) == {}
    changed = override(recipe, {"trainer.budget.num_tokens": "7", "trainer.seed": "3"})
    assert changes_from_recipe(changed) == {"trainer.budget.num_tokens": "7", "trainer.seed": "3"}
    timed = override(recipe, {"trainer.budget": '{"type": "TimeBudget", "seconds": 60}', "trainer.ema": '{"decay": 0.5}'})
    assert override(recipe, changes_from_recipe(timed)) == timed
    from_bundle = replace(changed, trainer=replace(changed.trainer, from_bundle="/some/where"))
    assert changes_from_recipe(from_bundle) == changes_from_recipe(changed)
