"""Names and keywords of emoji as labels: from a folder of small files in CLDR's format, attributed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from openafm.data.synthetic import SyntheticConfig, generate
from openafm.data.synthetic.tasks.emoji import ATTRIBUTION, AnnotationsError, emoji_turns, read_annotations
from openafm.recipes.sources.corpora import SyntheticCorpusConfig
from openafm.tokenizer.conversation import AssistantTurn, UserTurn

ENGLISH = {
    "🍎": ("red apple", "apple | fruit | red"),
    "🍐": ("pear", "fruit | pear"),
    "🍇": ("grapes", "fruit | grape"),
    "🐕": ("dog", "animal | pet"),
    "🐈": ("cat", "animal | pet"),
    "🐎": ("horse", "animal | racing"),
    "→": ("right arrow", "animal | fruit"),
}
NORWEGIAN = {
    "🍎": ("rødt eple", "eple | frukt"),
    "🍐": ("pære", "frukt | pære"),
    "🍇": ("druer", "frukt | drue"),
    "🐕": ("hund", "dyr | kjæledyr"),
    "🐈": ("katt", "dyr | kjæledyr"),
    "🐎": ("hest", "dyr | løp"),
}
FRUIT = {"🍎", "🍐", "🍇"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cldr")
    (folder / "annotations").mkdir()
    for name, rows in (("en", ENGLISH), ("no", NORWEGIAN)):
        lines = [
            f'<annotation cp="{emoji}">{keywords}</annotation><annotation cp="{emoji}" type="tts">{title}</annotation>'
            for emoji, (title, keywords) in rows.items()
        ]
        text = f"<ldml><annotations>{''.join(lines)}</annotations></ldml>"
        (folder / "annotations" / f"{name}.xml").write_text(text, encoding="utf-8")
    return folder


def test_names_and_keywords_of_things_are_read(folder: Path) -> None:
    found = read_annotations(folder, "en")
    assert found.names["🍎"] == "red apple"
    assert found.keywords["🐕"] == ("animal", "pet")
    assert "→" not in found.names
    assert {name: set(emoji) for name, emoji in found.labels.items()} == {"fruit": FRUIT, "animal": {"🐕", "🐈", "🐎"}}


def test_each_text_has_a_keyword_of_its_emoji_as_label_in_its_language_or_in_english(folder: Path) -> None:
    seen = set()
    for seed in range(200):
        _, *turns = emoji_turns(random.Random(seed), "nb", folder)
        for user, answer in zip(turns[::2], turns[1::2], strict=True):
            assert isinstance(user, UserTurn)
            assert isinstance(answer, AssistantTurn)
            emoji = next(each for each, (name, words) in NORWEGIAN.items() if _is_of(user.text, name, words))
            right = {"frukt", "fruit"} if emoji in FRUIT else {"dyr", "animal"}
            (label,) = (word for word in right if word in answer.text.lower())
            assert label not in user.text.lower()
            seen.add(label)
    assert seen == {"frukt", "fruit", "dyr", "animal"}


def _is_of(text: str, name: str, words: str) -> bool:
    return text == name or set(text.split(", ")) <= set(words.split(" | "))


def test_the_corpus_has_its_share_of_them_in_training_only(folder: Path) -> None:
    languages = {"nb": 1.0}
    config = SyntheticConfig(cldr=str(folder), cldr_share=0.5, languages=languages)
    found = [conversation for conversation in generate(config, 200) if conversation.task == "cldr"]
    assert 60 < len(found) < 140
    assert {conversation.language for conversation in found} == {"nb"}
    held_out = SyntheticConfig(cldr=str(folder), cldr_share=0.5, split="held_out", languages=languages)
    assert all(conversation.task != "cldr" for conversation in generate(held_out, 50))


def test_the_card_attributes_them() -> None:
    corpus = SyntheticConfig(cldr="somewhere", cldr_share=0.1)
    assert ATTRIBUTION in SyntheticCorpusConfig(name="a", synthetic=corpus, num_examples=10).description
    without = SyntheticCorpusConfig(name="a", synthetic=SyntheticConfig(cldr_share=0.1), num_examples=10)
    assert ATTRIBUTION not in without.description


def test_a_folder_without_annotations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AnnotationsError, match=r"annotations/no\.xml"):
        read_annotations(tmp_path, "nb")
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "no.xml").write_text("<ldml>", encoding="utf-8")
    with pytest.raises(AnnotationsError, match="cannot be read"):
        read_annotations(tmp_path, "nb")
