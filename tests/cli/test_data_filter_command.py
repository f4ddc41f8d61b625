"""`openafm data train-filter`."""

import json
import random
from pathlib import Path

import pytest

from openafm.cli.main import run

_GOOD = ["fluss", "haus", "garten", "winter", "weil", "menschen", "gehen", "oft", "wasser", "sprechen"]
_BAD = ["kaufen", "billig", "klick", "angebot", "preis", "jetzt", "gratis", "rabatt", "versand", "gewinn"]


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    rng = random.Random(0)
    for name, words in (("good", _GOOD), ("bad", _BAD)):
        (tmp_path / name).mkdir()
        lines = [{"text": " ".join(rng.choice(words) for _ in range(30))} for _ in range(80)]
        (tmp_path / name / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def _arguments(folder: Path, *more: str) -> list[str]:
    paths = ["--positive", str(folder / "good"), "--negative", str(folder / "bad"), "--out", str(folder / "de.filter")]
    return ["data", "train-filter", *paths, "--language", "de", *more]


def test_train_filter_writes_a_filter_and_a_report(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(_arguments(folders, "--keep-rate", "0.4", "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert (folders / "de.filter").is_file()
    assert report["language"] == "de"
    assert report["chosen"]["keep_rate"] == 0.4
    assert report["auc"] == 1.0
    assert report["num_positive"] == 80
    assert len(report["points"]) == 9
    assert run(_arguments(folders)) == 0
    assert "AUC 1.000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--keep-rate", "1.5"), "keep_rate 1.5 is not in (0, 1)"),
        (("--positive", "nowhere"), "nowhere does not exist"),
        (("--held-out", "0.01"), "held out"),
    ],
)
def test_wrong_input_is_explained(
    folders: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], message: str
) -> None:
    assert run(_arguments(folders, *more)) == 2
    assert message in capsys.readouterr().err
    assert not (folders / "de.filter").exists()


def test_train_identifier_reads_languages_from_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(0)
    for language, words in (("de", _GOOD), ("en", ["river", "house", "garden", "because", "people", "walk", "often"])):
        (tmp_path / f"{language}.txt").write_text(" ".join(rng.choice(words) for _ in range(1500)))
    out = tmp_path / "own.identifier"
    assert run(["data", "train-identifier", str(tmp_path), "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["accuracy"] == {"de": 1.0, "en": 1.0}
    assert out.is_file()
    (tmp_path / "en.txt").unlink()
    assert run(["data", "train-identifier", str(tmp_path / "de.txt"), "--out", str(out)]) == 2
    assert "two languages or more" in capsys.readouterr().err
