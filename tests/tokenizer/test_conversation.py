"""Turns with typed content: text and images, in memory, on disk and as tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openafm.tokenizer.bpe import SPECIAL_TOKENS, Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate, ImageSpan
from openafm.tokenizer.conversation import (
    AssistantTurn,
    Conversation,
    ConversationError,
    ImagePart,
    TextPart,
    UserTurn,
)

CAT, DOG = ImagePart(digest="ca7", num_tokens=3), ImagePart(digest="d09", num_tokens=2)
PROMPT = UserTurn(content=(TextPart(text="Which of "), CAT, TextPart(text=" and "), DOG, TextPart(text=" barks?")))


def test_a_text_prompt_is_one_text_part() -> None:
    assert UserTurn(text="Hi") == UserTurn(content=[TextPart(text="H"), TextPart(text="i")])
    assert UserTurn(text="") == UserTurn(content=())
    assert PROMPT.text == "Which of  and  barks?"
    assert PROMPT.images == (CAT, DOG)
    assert replace(PROMPT, response_format={}).content == PROMPT.content
    with pytest.raises(TypeError, match="either text or content"):
        UserTurn(text="a", content=(CAT,))


def test_images_round_trip_through_chat_jsonl() -> None:
    conversation = Conversation(turns=(PROMPT, AssistantTurn(text="The second.")))
    written = conversation.to_dict()
    assert written["messages"][0]["content"][1] == {"type": "image", "digest": "ca7", "num_tokens": 3}
    assert Conversation.from_dict(written) == conversation
    assert Conversation(turns=(UserTurn(text="Hi"),)).to_dict() == {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (7, "message 0"),
        (["Hi"], "message 0: the content part 'Hi'"),
        ([{"type": "audio", "digest": "a"}], "audio"),
        ([{"type": "image", "digest": "", "num_tokens": 1}], "message 0: an image part needs the digest"),
        ([{"type": "image", "digest": "a", "num_tokens": 0}], "at least 1 token"),
    ],
)
def test_unreadable_content_is_a_typed_error(content: object, message: str) -> None:
    with pytest.raises(ConversationError, match=message):
        Conversation.from_dict({"messages": [{"role": "user", "content": content}]})


def test_images_are_placeholder_tokens_with_spans(tokenizer: Tokenizer) -> None:
    template = ChatTemplate()
    encoded = template.encode(tokenizer, (UserTurn(text="<|image_start|><|image|>"), PROMPT))
    for span, image in zip(encoded.images, PROMPT.images, strict=True):
        assert (span.digest, span.stop - span.start) == (image.digest, image.num_tokens)
        assert encoded.tokens[span.start - 1] == SPECIAL_TOKENS.image_start
        assert encoded.tokens[span.start : span.stop] == [SPECIAL_TOKENS.image] * image.num_tokens
        assert encoded.tokens[span.stop] == SPECIAL_TOKENS.image_end
    assert encoded.tokens.count(SPECIAL_TOKENS.image) == 5
    assert not any(encoded.loss_mask)
    first = tokenizer.encode("Which of ")
    assert template.encode_turn(tokenizer, PROMPT).images[0] == ImageSpan(
        start=2 + len(first), stop=5 + len(first), digest="ca7"
    )


def test_text_around_an_image_keeps_the_layout_around_the_field(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(user=("<|user|>", "Q: {text}?", "{response_format}", "<|turn_end|>"))
    encoded = template.encode_turn(tokenizer, UserTurn(content=(CAT, TextPart(text="a cat"))))
    assert tokenizer.decode(encoded.tokens) == "Q: a cat?"
    assert tokenizer.decode(encoded.tokens[: encoded.images[0].start]) == "Q: "


def test_fewest_tokens_of_turns_is_a_lower_bound(tokenizer: Tokenizer) -> None:
    template = ChatTemplate()
    turns = (UserTurn(text="Dinner with Ada " * 50), AssistantTurn(text="Yes."), PROMPT)
    fewest = template.fewest_tokens(tokenizer, turns)
    assert fewest <= len(template.encode(tokenizer, turns))
    assert fewest >= 5 + tokenizer.fewest_tokens(turns[0].text)
