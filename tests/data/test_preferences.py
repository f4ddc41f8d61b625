"""Preference files: the formats that are read, lines that are refused by number, and documents of token shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.data.preferences import (
    Preference,
    PreferenceError,
    encode_preference,
    pack_preferences,
    preference_of,
    read_preferences,
)
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.data.synthetic.tasks.preferences import SimulatedGradersConfig, damaged, simulated_preferences
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, UserTurn

PAIR = {"prompt": "Hi", "chosen": "Hello!", "rejected": "What?", "strength": 2, "grades": {"chosen": 4}, "language": "en"}


def tiny_tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(vocab_size=320), ["Hi Hello What long"] * 9)


def test_several_formats_give_the_same_preference() -> None:
    expected = Preference(
        prompt=(UserTurn(text="Hi"),),
        answers=((AssistantTurn(text="Hello!"),), (AssistantTurn(text="What?"),)),
        strength=2,
        grades=(4, 0),
        language="en",
    )
    user, good = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}
    bad = {"role": "assistant", "content": "What?"}
    rest = {key: PAIR[key] for key in ("strength", "grades", "language")}
    assert preference_of(PAIR) == expected
    assert preference_of({"prompt": [user], "chosen": good, "rejected": [bad], **rest}) == expected
    assert preference_of({"messages": [user], "chosen": [user, good], "rejected": [user, bad], **rest}) == expected
    assert preference_of({"prompt": "Hi", "responses": ["What?", "Hello!"], "preferred": 1, **rest}) == expected
    single = preference_of({"prompt": [{"role": "system", "content": "Be kind."}, user], "response": "Hello!", "grade": 5})
    assert single.prompt == (Instructions(text="Be kind."), UserTurn(text="Hi"))
    assert (single.strength, single.grades) == (0, (5,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rejected": ""}, "lacks rejected"),
        ({"chosen": None, "rejected": None}, "lacks chosen and rejected"),
        ({"rejected": "Hello!"}, "the two answers are equal"),
        ({"preference": "tie"}, "a tie has no preferred answer"),
        ({"strength": 0}, "a tie has no preferred answer"),
        ({"responses": ["a", "b"], "preferred": "tie"}, "a tie has no preferred answer"),
        ({"responses": ["a"], "preferred": 0}, "a list of two answers"),
        ({"strength": 4}, "'strength' is a whole number from 1 to 3, got 4"),
        ({"strength": 1.5}, "'strength' is a whole number"),
        ({"grades": {"chosen": 0}}, "'grades' is a whole number from 1"),
        ({"grades": {"better": 1}}, "'grades' is an object"),
        ({"response": "x"}, "'grade' is a whole number from 1 to 100, got None"),
        ({"prompt": ""}, "needs 'prompt'"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "the prompt ends with a turn of the assistant"),
        ({"chosen": {"role": "user", "content": "x"}}, "'chosen' has turns of the assistant and of tools only"),
        ({"chosen": {"role": "judge", "content": "x"}}, "unknown role 'judge'"),
        ({"chosen": 3}, "'chosen' is a text, a message or a list"),
        ({"chosen": " "}, "'chosen' is empty"),
    ],
)
def test_lines_that_are_no_preferences_are_refused_with_their_number(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    file = tmp_path / "preferences.jsonl"
    file.write_text(f"{json.dumps(PAIR)}\n\n{json.dumps(PAIR | change)}\n")
    with pytest.raises(PreferenceError, match=message) as raised:
        list(read_preferences(file))
    assert str(raised.value).startswith(f"{file}:3: ")


@pytest.mark.parametrize("line", ["{", "[1]", "3", "[" * 100_000])
def test_lines_that_are_no_objects_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "bad.jsonl").write_text(line)
    with pytest.raises(PreferenceError, match=r"bad\.jsonl:1: "):
        list(read_preferences(tmp_path))


def test_a_document_has_both_conversations_and_the_labels() -> None:
    tokenizer, template = tiny_tokenizer(), ChatTemplate()
    tokens, mask = encode_preference(preference_of(PAIR), tokenizer, template)
    reads = [position for position, is_read in enumerate(mask) if is_read]
    assert tokens[reads[-1] :] == [2, 4, 0]
    assert tokens[reads[1] - 1] == tokens[reads[2] - 1] == tokenizer.special.turn_end
    assert tokens[reads[1]] == tokens[0] == tokenizer.special.bos
    assert tokens[: reads[0]] == tokens[reads[1] : reads[1] + reads[0]]  # the same prompt twice
    assert tokens[reads[0]] == tokenizer.special.assistant
    tokens, mask = encode_preference(preference_of({"prompt": "Hi", "response": "x", "grade": 3}), tokenizer, template)
    assert tokens[-2:] == [0, 3]
    assert sum(mask) == 2


def test_packing_splits_by_prompt_and_leaves_out_long_lines(tmp_path: Path) -> None:
    tokenizer, template = tiny_tokenizer(), ChatTemplate()
    lines = [preference_of(PAIR | {"prompt": f"Hi {number % 20}", "chosen": f"Hello {number}"}) for number in range(60)]
    lines.append(preference_of(PAIR | {"prompt": "long " * 300}))
    report = pack_preferences(lines, tmp_path / "out", tokenizer, template, max_tokens=200, held_out=0.3)
    assert report.num_too_long == 1
    assert report.num_train + report.num_held_out == 60
    assert report.num_train % 3 == report.num_held_out % 3 == 0  # each prompt occurs three times
    source = SourceConfig(name="p", path=str(tmp_path / "out" / "held_out"))
    batch = LoaderConfig(sources=(source,), rows_per_step=1, row_tokens=200).build().batch(0)
    assert all(batch.loss_mask_BS[0, document.start : document.stop].sum() == 3 for document in batch.documents)
    with pytest.raises(PreferenceError, match="0 lines to train on and 0 held out, 61 longer than 9 tokens"):
        pack_preferences(lines, tmp_path / "none", tokenizer, template, max_tokens=9)
    assert not (tmp_path / "none").exists()


def test_simulated_graders_are_wrong_as_often_as_configured() -> None:
    conversations = list(generate(SyntheticConfig(tasks={"event": 1.0}, languages={"en": 1.0}), 400))
    golds = {json.dumps(chat.to_dict()["messages"][:-1]): chat.turns[-1] for chat in conversations}
    for noise in (0.0, 0.3):
        config = SimulatedGradersConfig(noise=noise)
        found = list(simulated_preferences(config, conversations))
        assert found == list(simulated_preferences(config, conversations))
        pairs = [(golds[json.dumps(Conversation(turns=each.prompt).to_dict()["messages"])], each.answers) for each in found]
        intact = [(gold, answers) for gold, answers in pairs if (gold,) in answers]
        share = sum(answers[0] != (gold,) for gold, answers in intact) / len(intact)
        assert share == pytest.approx(noise, abs=0.08)


def test_damage_changes_as_many_words_as_asked() -> None:
    import random

    text = "one two 3 four five"
    for count in range(5):
        words = damaged(text, count, random.Random(count)).split()
        assert sum(a != b for a, b in zip(words, text.split(), strict=True)) == count
