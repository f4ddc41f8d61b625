"""The user's data as one description: mixture, held-out split, tokenizer, languages, and inheritance by later stages."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_sources import write_source

from openafm.bundle import Bundle, bundle_place, open_bundle
from openafm.data.pack import PackConfig, pack_path
from openafm.data.shards.manifest import ForeignTokenizerError
from openafm.data.shards.token_shards import read_manifest
from openafm.recipes.card import model_card
from openafm.recipes.compression.compress import compress
from openafm.recipes.compression.formats import CalibrationConfig, calibration_batches, compression_config
from openafm.recipes.compression.report import held_out_loss
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import StartBundleError, run_recipe
from openafm.recipes.sources.corpora import FolderCorpusConfig, ShardsCorpusConfig
from openafm.recipes.sources.own_data import OwnDataError, data_of, read_data, sample_batches, write_data
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.training.observability.goodput import Goodput
from openafm.training.run import TrainingResult

QUICK = {
    "trainer.budget": '{"type": "StepBudget", "num_steps": 2}',
    "trainer.data.rows_per_step": "1",
    "trainer.data.row_tokens": "128",
    "trainer.log_every": "1",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))


@pytest.fixture
def base() -> Bundle:
    return write_source(bundle_place("base"))


def chats(file: Path, count: int, seed: int = 0) -> Path:
    chance = random.Random(seed)
    lines = []
    for _ in range(count):
        number = chance.randrange(10**6)
        turns = [{"role": "user", "content": f"Say {number}"}, {"role": "assistant", "content": str(number)}]
        lines.append(json.dumps({"messages": turns}))
    file.write_text("\n".join(lines))
    return file


def texts(folder: Path, names: tuple[str, ...], count: int = 60) -> Path:
    folder.mkdir()
    chance = random.Random(1)
    for name in names:
        lines = [json.dumps({"text": " ".join(chance.choices("abcdefgh", k=40))}) for _ in range(count)]
        (folder / name).write_text("\n".join(lines))
    return folder


def test_a_description_names_sources_weights_and_evaluation(tmp_path: Path) -> None:
    chats(tmp_path / "chat.jsonl", 60)
    texts(tmp_path / "notes", ("a.jsonl",))
    chats(tmp_path / "eval.jsonl", 8)
    (tmp_path / "data.toml").write_text(
        'eval = "eval.jsonl"\n[[sources]]\npath = "chat.jsonl"\nweight = 3\n[[sources]]\npath = "notes"\nlanguage = "de"\n'
    )
    data = read_data(tmp_path / "data.toml")
    assert [(source.name, source.weight) for source in data.sources] == [("chat", 3), ("notes", 1)]
    config = prepare_run("on_device.sft", "nano", start=str(write_source(tmp_path / "base").path), data=data)
    weights = {source.name: round(source.weight, 3) for source in config.trainer.data.sources}
    assert weights == {"chat": 0.675, "notes": 0.225, "copies": 0.1}
    evaluation = config.trainer.evaluation
    assert evaluation is not None
    assert [source.name for source in evaluation.data.sources] == ["eval"]
    assert evaluation.every_steps == 500
    (tmp_path / "data.json").write_text(
        (tmp_path / "data.toml").read_text() and json.dumps({"sources": [{"path": "notes"}]})
    )
    assert read_data(tmp_path / "data.json").sources[0].name == "notes"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sources = 3", "expected a list"),
        ("sources = []", "must not be empty"),
        ('[[sources]]\npath = "none"', "does not exist"),
        ('[[sources]]\npath = "."\nwieght = 2', "did you mean 'weight'"),
        ("[[sources", "cannot be read"),
    ],
)
def test_an_invalid_description_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "data.toml").write_text(text)
    with pytest.raises(OwnDataError, match=message):
        read_data(tmp_path / "data.toml")


@pytest.mark.parametrize(
    ("option", "message"),
    [("evaluation", "the evaluation data .*absent does not exist"), ("tokenizer", "the tokenizer .*absent does not exist")],
)
def test_an_absent_file_of_an_option_is_named(tmp_path: Path, option: str, message: str) -> None:
    with pytest.raises(OwnDataError, match=message):
        read_data(chats(tmp_path / "chat.jsonl", 3), **{option: tmp_path / "absent"})


@pytest.mark.long
def test_later_stages_inherit_the_data_of_their_start(
    tmp_path: Path, base: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    """SFT on own chats, then QAT, compression and its report without naming the data again."""
    file = chats(tmp_path / "chat.jsonl", 120)
    tuned = prepare_run("on_device.sft", "micro", start="base", data=file, changes=QUICK)
    corpus, copies = tuned.corpora
    assert copies.name == "copies"
    assert isinstance(corpus, FolderCorpusConfig)
    assert corpus.held_out == pytest.approx(20 / 120)
    run_recipe(tuned, tmp_path / "sft", "tuned")
    held_out = read_manifest(tmp_path / "sft" / "data" / "chat" / "held_out")
    assert 5 < held_out.num_documents < 40
    assert read_manifest(tmp_path / "sft" / "data" / "chat").num_documents == 120 - held_out.num_documents
    metrics = (tmp_path / "sft" / "metrics.jsonl").read_text()
    assert "held_out_loss" in metrics
    card = open_bundle("tuned").card()
    trained_on = card[card.index("Training data") : card.index("Held-out data, not trained on")]
    assert "- `chat`: the user's files (chat.jsonl); learns answers" in trained_on
    assert "- documents held out of `chat`" in card[card.index("Held-out data, not trained on") :]
    assert "held-out loss" in card

    capsys.readouterr()
    quantized = prepare_run("on_device.qat", "micro", start="tuned", changes=QUICK)
    assert quantized.corpora == tuned.corpora
    assert quantized.data == tuned.data
    assert "inherited from tuned" in capsys.readouterr().err
    built_in = prepare_run("on_device.qat", "micro", start="tuned", data=Path("built-in"), changes=QUICK)
    assert built_in.data is None
    assert "tuned was trained on" in capsys.readouterr().err

    source = open_bundle("tuned")
    tokens = {
        source.tokenizer.decode(row)
        for batch in calibration_batches(source, CalibrationConfig(num_rows=2, row_tokens=256))
        for row in batch.tokens_BS.tolist()
    }
    assert all("Say " in text for text in tokens)
    compress(source, compression_config("int2"), "small")
    assert data_of(open_bundle("small")) == tuned.data
    assert held_out_loss(source, 4, data_of(source)) != held_out_loss(source, 4)
    file.unlink()
    with pytest.raises(OwnDataError, match="which does not exist; name its data with --data"):
        prepare_run("on_device.qat", "micro", start="tuned")


def test_the_card_tells_training_from_evaluation_data(tmp_path: Path, base: Bundle) -> None:
    data = read_data(chats(tmp_path / "chat.jsonl", 60), chats(tmp_path / "tests.jsonl", 8, seed=1))
    config = prepare_run("on_device.sft", "micro", start="base", data=data)
    tokenizer_only = FolderCorpusConfig(name="other", path=str(tmp_path / "tests.jsonl"))
    config = replace(config, corpora=(*config.corpora, tokenizer_only))
    result = TrainingResult(
        folder=tmp_path,
        finished=True,
        step=1,
        num_steps=1,
        num_tokens=1,
        seconds=1,
        loss=1.0,
        held_out_loss=None,
        goodput=Goodput(),
    )
    card = model_card("tuned", config, result)
    training, rest = card.split("Held-out data, not trained on:\n")
    held_out, tokenizer = rest.split("Data of the tokenizer only:\n")
    assert "chat.jsonl" in training
    assert "tests.jsonl" not in training
    assert "- `eval`: the user's files (tests.jsonl)" in held_out
    assert "chat.jsonl" not in held_out
    assert tokenizer.startswith("- `other`")
    assert "held-out loss" not in card
    no_evaluation = replace(config, trainer=replace(config.trainer, evaluation=None))
    assert "Held-out data, not trained on:\n- none" in model_card("tuned", no_evaluation, result)


def test_samples_of_training_and_held_out_documents_are_disjoint(tmp_path: Path, base: Bundle) -> None:
    data = read_data(chats(tmp_path / "chat.jsonl", 100))
    parts = []
    for held_out in (False, True):
        batches = sample_batches(base, data, 4, 512, held_out=held_out)
        numbers = {
            text.split()[0]
            for batch in batches
            for row in batch.tokens_BS.tolist()
            for text in base.tokenizer.decode(row).split("Say ")[1:]
        }
        parts.append(numbers)
    assert parts[0]
    assert parts[1]
    assert not parts[0] & parts[1]


@pytest.mark.long
def test_packed_shards_and_a_tokenizer_of_the_user(tmp_path: Path, base: Bundle) -> None:
    folder = texts(tmp_path / "notes", ("a.jsonl",))
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=328), ["a b c d e f g h a b c d"] * 20)
    tokenizer.save(tmp_path / "tokenizer.json")
    pack_path(folder, tmp_path / "shards", tokenizer, base.template, PackConfig(held_out=0.3))
    data = read_data(tmp_path / "shards", tokenizer=tmp_path / "tokenizer.json")
    changes = QUICK | {"trainer.start": '{"type": "PlainStart"}'}
    config = prepare_run("on_device.pretrain", "micro", data=data, changes=changes)
    assert isinstance(config.corpora[0], ShardsCorpusConfig)
    assert config.trainer.model.vocab_size == 384
    result = run_recipe(config, tmp_path / "run", "own")
    assert result.held_out_loss is not None
    assert open_bundle("own").tokenizer.digest == tokenizer.digest
    assert not (tmp_path / "run" / "data" / "shards" / "shards").exists()
    stored = read_data(f"file://{tmp_path / 'shards'}", tokenizer=tmp_path / "tokenizer.json")  # as from s3://
    again = run_recipe(prepare_run("on_device.pretrain", "micro", data=stored, changes=changes), tmp_path / "again", "again")
    assert (again.loss_last, again.held_out_loss) == (result.loss_last, result.held_out_loss)
    with pytest.raises(ForeignTokenizerError):
        run_recipe(
            prepare_run("on_device.sft", "micro", start="base", data=tmp_path / "shards", changes=QUICK), tmp_path / "b", "b"
        )
    with pytest.raises(StartBundleError, match="another tokenizer"):
        run_recipe(prepare_run("on_device.sft", "micro", start="base", data=data, changes=QUICK), tmp_path / "c", "c")


def test_a_new_vocabulary_fits_model_and_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "large.txt").write_text("x" * 3_000_000)
    config = prepare_run("on_device.pretrain", "nano", data=tmp_path / "large.txt")
    assert config.tokenizer is not None
    assert config.tokenizer.vocab_size == config.trainer.model.vocab_size == 4_096
    (tmp_path / "small.txt").write_text("x" * 150_000)
    config = prepare_run("on_device.pretrain", "nano", data=tmp_path / "small.txt")
    assert config.tokenizer is not None
    assert config.tokenizer.vocab_size == 2_048
    notes = capsys.readouterr().err
    assert "2,048 tokens for the 4,096 rows" in notes
    assert "no evaluation: fewer than 50 documents" in notes


@pytest.mark.long
def test_languages_come_from_file_names_and_untagged_documents_are_reported(
    tmp_path: Path, base: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = texts(tmp_path / "notes", ("de.jsonl", "news.fr.jsonl", "other.jsonl"))
    config = prepare_run("server.sft", "micro", start="base", data=folder, changes=QUICK)
    (source, _) = config.trainer.data.sources
    assert (source.name, round(source.weight, 2), getattr(source, "temperature", None)) == ("notes", 0.9, 3.0)
    run_recipe(config, tmp_path / "run", "own")
    manifest = read_manifest(tmp_path / "run" / "data" / "notes")
    assert set(manifest.languages) == {"de", "fr", ""}
    assert "of 'notes' have no language" in capsys.readouterr().err


def test_the_record_of_a_bundle_survives_a_round_trip(tmp_path: Path, base: Bundle) -> None:
    data = read_data(chats(tmp_path / "chat.jsonl", 3))
    write_data(base, data)
    assert data_of(base) == data
    base.verify()
    (base.path / "data.json").write_text("{")
    with pytest.raises(OwnDataError, match="--data"):
        data_of(base)
