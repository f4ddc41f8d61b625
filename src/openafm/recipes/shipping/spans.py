"""Train the span ranker of a bundle on the built-in corpus and on requests that people wrote: minutes on one core.

    python -m openafm.recipes.shipping.spans --out spans [--natural FOLDER] [--examples N] [--steps N]

The folder `spans` of a bundle is read by `openafm.ranking.span_ranker.open_span_ranker`. Held-out texts are not read.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from openafm.core.progress import progress
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.data.synthetic.languages import LANGUAGES
from openafm.framework.backends.answer_priors import field_names
from openafm.framework.schema.single_properties import single_properties, title_of
from openafm.ranking.span_ranker import write_span_ranker
from openafm.ranking.span_training import FilledText, SpanTrainingConfig, train_span_ranker
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, JsonSchema, UserTurn

SEED = 20261130
TASKS = {"event": 0.2, "plain_event": 0.05, "form": 0.35, "tool": 0.4}
ENGLISH_SHARE, NATURAL_SHARE = 0.45, 0.4
NUM_EXAMPLES = 130_000


def corpus(natural: Path | None) -> SyntheticConfig:
    """Return the config of the conversations."""
    others = [language for language in LANGUAGES if language != "en"]
    return SyntheticConfig(
        seed=SEED,
        tasks=TASKS,
        languages={"en": ENGLISH_SHARE} | dict.fromkeys(others, (1 - ENGLISH_SHARE) / len(others)),
        natural="" if natural is None else str(natural),
        natural_share=0.0 if natural is None else NATURAL_SHARE,
    )


def filled_texts(conversation: Conversation) -> Iterator[FilledText]:
    """Yield the requests of a conversation whose answer is an object or one call, with the fields that may be texts."""
    turns = conversation.turns
    tools = {tool.name: tool.parameters for turn in turns[:1] if isinstance(turn, Instructions) for tool in turn.tools}
    for request, answer in itertools.pairwise(turns):
        if not (isinstance(request, UserTurn) and isinstance(answer, AssistantTurn)):
            continue
        if len(answer.tool_calls) == 1 and answer.tool_calls[0].name in tools:
            (call,) = answer.tool_calls
            yield _filled(request.text, tools[call.name], call.name, call.arguments)
        elif request.response_format is not None and not answer.tool_calls:
            value = json.loads(answer.text)
            if isinstance(value, dict):
                yield _filled(request.text, request.response_format, title_of(request.response_format), value)


def _filled(text: str, schema: JsonSchema, context: str, value: Mapping[str, Any]) -> FilledText:
    texts = [each for each in single_properties(schema) if each.is_text and each.path]
    values = [_value_at(value, each.path) for each in texts]
    return FilledText(text=text, fields=tuple(zip(field_names(texts, context), values, strict=True)))


def _value_at(value: Any, path: tuple[str, ...]) -> str | None:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the span ranker")
    parser.add_argument("--natural", type=Path, help="folder of NAME-train.jsonl.gz files")
    parser.add_argument("--examples", type=int, default=NUM_EXAMPLES, help="conversations of the corpus")
    parser.add_argument("--steps", type=int, default=SpanTrainingConfig.num_steps)
    options = parser.parse_args()
    torch.set_num_threads(1)
    texts: list[FilledText] = []
    with progress("writing requests", options.examples) as bar:
        for number, conversation in enumerate(generate(corpus(options.natural), options.examples), start=1):
            texts += filled_texts(conversation)
            bar.update(number)
    config = SpanTrainingConfig(num_steps=options.steps)
    with progress("training the span ranker", config.num_steps) as bar:
        trained = train_span_ranker(config, texts, lambda step, loss: bar.update(step, f"loss {loss:.2f}"))
    write_span_ranker(options.out, *trained)


if __name__ == "__main__":
    main()
