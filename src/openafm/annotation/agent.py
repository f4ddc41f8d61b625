"""The live agent: a model calls tools until it answers, and every step is stored before the next one begins."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from openafm.annotation.environments.host import CallResult
from openafm.annotation.errors import AnnotationError
from openafm.annotation.trees.item import Change, Item
from openafm.annotation.trees.nodes import Content, NodeKind
from openafm.core.errors import OpenAFMError
from openafm.framework.backends.language_model import Answer, AnswerRequest, LanguageModel, TextPiece
from openafm.framework.options import GenerationOptions
from openafm.tokenizer.conversation import AssistantTurn, Turn

_MAX_CALLS = 16


def run_agent(
    item: Item,
    model: LanguageModel,
    change: Change,
    *,
    max_steps: int,
    options: GenerationOptions | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, Any]]:
    """Let a model continue the main stem until it answers, and yield what happens.

    Events: `text` (the next characters of an answer), `calls`, `result` (of one call), `node` (a stored step or answer) and
    at the end `stopped` with the reason: answered, max_steps, cancelled, or an error with its message. The steps before an
    error stay.

    Raises:
        AnnotationError: the main stem ends with an answer, so there is nothing to do, or others changed the item.
    """
    path = item.tree.path()
    if not path or path[-1].kind is NodeKind.ANSWER:
        raise AnnotationError("the model answers a query; write one first")
    item.check_unchanged(change)
    try:
        yield from _run(item, model, change, max_steps, options or GenerationOptions(maximum_response_tokens=512), cancelled)
    except AnnotationError:
        raise
    except OpenAFMError as error:
        yield {"type": "stopped", "reason": "error", "message": f"{type(error).__name__}: {error}"}


def _run(
    item: Item,
    model: LanguageModel,
    change: Change,
    max_steps: int,
    options: GenerationOptions,
    cancelled: Callable[[], bool],
) -> Iterator[dict[str, Any]]:
    turns = item.tree.turns()
    pending = _pending(turns)
    executor = model.executor(turns[: len(turns) - len(pending)])
    for step in range(max_steps + 1):
        if cancelled():
            yield {"type": "stopped", "reason": "cancelled"}
            return
        request = AnswerRequest(
            turns=pending,
            schema=None,
            tools=item.tree.tools if step < max_steps else (),
            must_call=False,
            options=options,
            cancelled=cancelled,
            max_calls=_MAX_CALLS,
        )
        generator = executor.answer(request)
        answer: Answer
        while True:
            try:
                event = next(generator)
            except StopIteration as stop:
                answer = stop.value
                break
            if isinstance(event, TextPiece):
                yield {"type": "text", "text": event.text}
        if not answer.turn.tool_calls:
            text = answer.turn.text
            if not text.strip():
                yield {"type": "stopped", "reason": "error", "message": "the model gave an empty answer; write one"}
                return
            item.answer(text, _next(change, item), model=model.name)
            yield {"type": "node", "node": item.tree.head}
            yield {"type": "stopped", "reason": "answered"}
            return
        if step == max_steps:
            break
        yield from _step(item, answer.turn, model.name, change)
        pending = item.tree.node(item.tree.head).turns[1:]
    yield {"type": "stopped", "reason": "max_steps"}


def _step(item: Item, turn: AssistantTurn, model: str, change: Change) -> Iterator[dict[str, Any]]:
    """Run and store a step. The results are yielded as they arrive, so the calls run in a thread of their own."""
    content = Content(kind=NodeKind.STEP, text=turn.text, calls=turn.tool_calls)
    yield {"type": "calls", "calls": content.to_dict()["calls"], "text": content.text}
    results: queue.SimpleQueue[tuple[int, CallResult] | BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            item.step(content, _next(change, item), model=model, on_result=lambda index, found: results.put((index, found)))
            results.put(None)
        except BaseException as error:  # raised in the thread that reads
            results.put(error)

    thread = threading.Thread(target=run, daemon=True, name="openafm-step")
    thread.start()
    while (found := results.get()) is not None:
        if isinstance(found, BaseException):
            raise found
        yield {"type": "result", "index": found[0], **found[1].to_dict()}
    thread.join()
    yield {"type": "node", "node": item.tree.head}


def _next(change: Change, item: Item) -> Change:
    """Return the change for the next step of a run: its steps are one group, so that they are undone together."""
    return Change(key=change.key, person=change.person, sequence=item.tree.sequence)


def _pending(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Return the turns after the last one of the assistant; without any, all but the instructions."""
    for index in range(len(turns) - 1, -1, -1):
        if isinstance(turns[index], AssistantTurn):
            return turns[index + 1 :]
    return turns[1:]
