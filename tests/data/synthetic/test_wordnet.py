"""Definitions and sentences of WordNet as labels: from a folder of small files in its format, attributed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from openafm.core.config import ConfigError
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.data.synthetic.tasks import wordnet
from openafm.data.synthetic.tasks.wordnet import ATTRIBUTION, WordNetError, read_wordnet, wordnet_turns
from openafm.recipes.sources.corpora import SyntheticCorpusConfig
from openafm.tokenizer.conversation import AssistantTurn, Instructions, UserTurn

LICENSE = "  1 This software and database is being provided to you\n"
DRINKS = ("tea", "coffee", "juice", "milk", "cider", "cocoa", "lemonade", "soda", "water", "punch")
TOOLS = ("hammer", "saw", "drill", "file", "plane", "wrench", "chisel", "awl", "pliers", "clamp")


def noun(offset: int, words: list[str], gloss: str, above: int | None = None, file: int = 13) -> str:
    pairs = " ".join(f"{word} 0" for word in words)
    pointers = "000" if above is None else f"001 @ {above:08d} n 0000"
    return f"{offset:08d} {file:02d} n {len(words):02x} {pairs} {pointers} | {gloss}  \n"


def drink(at: int, word: str) -> str:
    return noun(
        100 + at, [word, f"{word}_brew"], f'liquid number {at} that people swallow; "a cup with sugar and lemon {at}"', 10
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wordnet")
    lines = [LICENSE, noun(1, ["entity"], "whatever exists")]
    lines += [noun(10, ["beverage"], "what one drinks", 1), noun(20, ["tool"], "what one works with", 1)]
    lines += [drink(at, word) for at, word in enumerate(DRINKS)]
    lines += [noun(200 + at, [word], f"implement number {at} for wood or metal", 20) for at, word in enumerate(TOOLS)]
    lines += [noun(300, ["scoundrel"], "(ethnic slur) an offensive name", 20)]
    (folder / "data.noun").write_text("".join(lines), encoding="utf-8")
    for part in ("verb", "adj", "adv"):
        (folder / f"data.{part}").write_text(LICENSE, encoding="utf-8")
    counts = ["beverage%1:13:00:: 1 5", "tool%1:13:00:: 1 3", "tea%1:13:00:: 1 40"]
    (folder / "cntlist.rev").write_text("\n".join(counts) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def few_meanings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds may hold half of this small database."""
    monkeypatch.setattr(wordnet, "_MOST_KIND_SHARE", 0.5)
    read_wordnet.cache_clear()


@pytest.mark.usefixtures("few_meanings")
def test_meanings_are_read_with_words_sentences_kinds_and_uses(folder: Path) -> None:
    net = read_wordnet(folder)
    tea = net.meanings["n00000100"]
    assert tea.words == ("tea", "tea brew")
    assert tea.definition == "liquid number 0 that people swallow"
    assert tea.sentences == ("a cup with sugar and lemon 0",)
    assert (tea.above, tea.uses) == (("n00000010",), 40)
    assert tea.weight > net.meanings["n00000101"].weight
    assert {kind.words[0] for kind in net.kinds} == {"beverage", "tool"}  # of an entity there are too many
    assert {kind.words[0] for kind in net.siblings["n00000010"]} == {"tool"}


@pytest.mark.usefixtures("few_meanings")
def test_offensive_words_are_left_out(folder: Path) -> None:
    net = read_wordnet(folder)
    assert all("scoundrel" not in meaning.words for meaning in (*net.drawn, *net.below["n00000020"]))


@pytest.mark.usefixtures("few_meanings")
def test_each_text_has_its_kind_or_word_as_label(folder: Path) -> None:
    net = read_wordnet(folder)
    seen = set()
    for seed in range(200):
        instructions, *turns = wordnet_turns(random.Random(seed), folder)
        assert isinstance(instructions, Instructions)
        for user, answer in zip(turns[::2], turns[1::2], strict=True):
            assert isinstance(user, UserTurn)
            assert isinstance(answer, AssistantTurn)
            meaning = next(each for each in net.drawn if user.text.endswith((each.definition, *each.sentences)))
            kinds = [net.meanings[key].words[0] for key in meaning.above]
            right = [word for word in (*meaning.words, *kinds) if word.lower() in answer.text.lower()]
            assert right, (user.text, answer.text)
            assert all(word.lower() not in user.text.lower() for word in right if word.lower() == answer.text.lower())
            seen |= {"kind" if right[-1] in kinds else "word", "sentence" if "lemon" in user.text else "definition"}
    assert seen == {"kind", "word", "sentence", "definition"}


@pytest.mark.usefixtures("few_meanings")
def test_the_corpus_has_its_share_of_them_in_training_only(folder: Path) -> None:
    config = SyntheticConfig(wordnet=str(folder), wordnet_share=0.5)
    tasks = [conversation.task for conversation in generate(config, 300)]
    assert 100 < tasks.count("wordnet") < 200
    held_out = SyntheticConfig(wordnet=str(folder), wordnet_share=0.5, split="held_out")
    assert all(conversation.task != "wordnet" for conversation in generate(held_out, 100))
    assert all(conversation.task != "wordnet" for conversation in generate(SyntheticConfig(wordnet_share=0.5), 100))


def test_the_card_attributes_it() -> None:
    corpus = SyntheticConfig(wordnet="somewhere", wordnet_share=0.1)
    assert ATTRIBUTION in SyntheticCorpusConfig(name="a", synthetic=corpus, num_examples=10).description
    without = SyntheticCorpusConfig(name="a", synthetic=SyntheticConfig(wordnet_share=0.1), num_examples=10)
    assert "WordNet" not in without.description


def test_a_folder_without_the_database_and_wrong_shares_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WordNetError, match=r"cntlist\.rev"):
        read_wordnet(tmp_path)
    (tmp_path / "cntlist.rev").write_text("", encoding="utf-8")
    (tmp_path / "data.noun").write_text("no pipe in this line\n", encoding="utf-8")
    with pytest.raises(WordNetError, match="cannot be read"):
        read_wordnet(tmp_path)
    with pytest.raises(ConfigError, match="wordnet_share"):
        SyntheticConfig(wordnet_share=1.5)
    with pytest.raises(ConfigError, match="are together at most 1"):
        SyntheticConfig(natural_share=0.7, wordnet_share=0.4)
