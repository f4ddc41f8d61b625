"""Built-in corpus: a seeded generator of chat conversations in sixteen languages, over texts that people wrote."""

from openafm.data.synthetic.corpus import TASKS, SyntheticConfig, example, generate
from openafm.data.synthetic.languages import LANGUAGES
from openafm.data.synthetic.reference import event_instructions, event_instructions_today_only, reference_week
from openafm.data.synthetic.tasks.events import EVENT_SCHEMA

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
