"""Built-in corpus: a seeded generator of chat conversations in sixteen languages, pure standard library."""

from openafm.data.synthetic.corpus import TASKS, SyntheticConfig, example, generate
from openafm.data.synthetic.events import EVENT_SCHEMA, event_instructions, event_instructions_today_only, reference_week
from openafm.data.synthetic.lexicons import LANGUAGES

__all__ = [
    "EVENT_SCHEMA",
    "LANGUAGES",
    "TASKS",
    "SyntheticConfig",
    "event_instructions",
    "event_instructions_today_only",
    "example",
    "generate",
    "reference_week",
]
