"""Short stories: three to six simple sentences of one of two plots."""

from __future__ import annotations

import random

from openafm.data.synthetic.lexicons import Lexicon, Texts
from openafm.data.synthetic.slots import Slots
from openafm.tokenizer.conversation import AssistantTurn, Instructions, Turn, UserTurn

_SIDE_STEP_SHARE = 0.6


def story_turns(rng: random.Random, words: Lexicon) -> tuple[Turn, ...]:
    """A wish for a story about someone and something, and the story."""
    story = words.story
    slots = Slots(rng, words, object=rng.choice(story.objects), skill=rng.choice(story.skills))
    # Each step with whether it may be passed over.
    steps: tuple[tuple[Texts, bool], ...]
    if rng.random() < 0.5:
        prompts = story.lost_prompts
        steps = (
            (story.openings, False),
            (story.lost, False),
            (story.search, True),
            (story.found, False),
            (story.endings, True),
        )
    else:
        prompts = story.learn_prompts
        steps = (
            (story.openings, True),
            (story.wish, False),
            (story.failure, True),
            (story.help, False),
            (story.success, False),
            (story.endings, True),
        )
    told = [rng.choice(texts) for texts, passable in steps if not passable or rng.random() < _SIDE_STEP_SHARE]
    return (
        Instructions(text=rng.choice(story.instructions)),
        UserTurn(text=slots.choose(prompts)),
        AssistantTurn(text=slots.fill(words.space.join(told))),
    )
