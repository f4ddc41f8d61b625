"""The memory-mapped model gives the probabilities of py3langid."""

from pathlib import Path

import pytest

from openafm.data.filtering import seed_model as module
from openafm.data.filtering.seed_model import seed_model

_TEXTS = (
    "This is a plain English text about the weather.",
    "ALL LETTERS OF THIS ONE ARE CAPITALS",
    "Das ist ein deutscher Satz über das Wetter in Köln.",
    "これは天気についての日本語の文章です。",
    "cafe\u0301 de flore",
    "half of a pair: \ud800",
    "é",
    "12 34",
    "",
)


def test_probabilities_are_those_of_py3langid() -> None:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    theirs = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    for text in _TEXTS:
        assert seed_model().ranking(text) == [(code, share) for code, share in theirs.rank(text) if share >= 1e-6]


@pytest.mark.slow
def test_a_home_that_cannot_be_written_or_is_damaged_does_not_change_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = seed_model().ranking(_TEXTS[0])
    file = tmp_path / "file"
    file.write_text("not a folder")
    for home in (file, tmp_path / "home"):
        monkeypatch.setenv("OPENAFM_HOME", str(home))
        module.seed_model.cache_clear()
        assert seed_model().ranking(_TEXTS[0]) == expected
    (stored,) = (tmp_path / "home" / "cache").iterdir()
    (stored / "rows.npy").write_bytes(b"damaged")
    module.seed_model.cache_clear()
    assert seed_model().ranking(_TEXTS[0]) == expected
    module.seed_model.cache_clear()
