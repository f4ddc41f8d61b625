"""Tagging: a message in, the topics that it is about out, in the order in which they come up."""

from __future__ import annotations

import random
from collections.abc import Sequence

from openafm.data.synthetic.lexicons import Lexicon
from openafm.data.synthetic.slots import Slots
from openafm.tokenizer.conversation import AssistantTurn, Instructions, JsonSchema, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

_FREE_TAGS_SHARE = 0.3
_MAX_TAGS = 3


def tags_schema(choices: Sequence[str] = ()) -> JsonSchema:
    """Schema of one to three tags, out of `choices` if there are any."""
    item: JsonSchema = {"type": "string"} | ({"enum": list(choices)} if choices else {})
    return {
        "title": "Tags",
        "type": "object",
        "properties": {"tags": {"type": "array", "items": item, "minItems": 1, "maxItems": _MAX_TAGS}},
        "required": ["tags"],
        "additionalProperties": False,
        "x-order": ["tags"],
    }


def tagging_turns(rng: random.Random, words: Lexicon) -> tuple[Turn, ...]:
    """A message of one to three sentences, each about another topic."""
    topics = list(words.tagging.topics)
    rng.shuffle(topics)
    num_tags = rng.randint(1, _MAX_TAGS)
    sentences = [Slots(rng, words, thing=rng.choice(topic.things)).choose(topic.sentences) for topic in topics[:num_tags]]
    choices: list[str] = []
    if rng.random() >= _FREE_TAGS_SHARE:
        choices = [topic.tag for topic in topics[: rng.randint(num_tags + 2, len(topics))]]
        rng.shuffle(choices)
    return (
        Instructions(text=rng.choice(words.tagging.instructions)),
        UserTurn(text=words.space.join(sentences), response_format=tags_schema(choices)),
        AssistantTurn(text=compact_json({"tags": [topic.tag for topic in topics[:num_tags]]})),
    )
