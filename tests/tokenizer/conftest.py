"""A small tokenizer of sixteen languages, and golden files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from sentences import SENTENCES

from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, train_tokenizer


@pytest.fixture(scope="session")
def sentences() -> tuple[str, ...]:
    return SENTENCES


@pytest.fixture(scope="session")
def tokenizer(sentences: tuple[str, ...]) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(vocab_size=600, min_frequency=1), sentences)


@pytest.fixture
def check_golden() -> Callable[[str, str], None]:
    """Compare a text with a file under `golden/`; OPENAFM_UPDATE_GOLDEN=1 writes the file instead."""

    def check(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if os.environ.get("OPENAFM_UPDATE_GOLDEN"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{name} is frozen: models are trained on it"

    return check
