"""Preferences: pairs of answers to a prompt, and absolute grades of answers, from JSONL to token shards.

A line has a prompt and either two answers or one graded answer:

    {"prompt": P, "chosen": A, "rejected": A, "strength": 2, "grades": {"chosen": 4, "rejected": 2}, "language": "en"}
    {"prompt": P, "responses": [A, A], "preferred": 0, ...}
    {"prompt": P, "response": A, "grade": 4}

P is a text or a list of messages that ends with a turn of the user or of a tool. A is a text, a message of the assistant,
or a list of messages that ends with one. `strength` is 1 (slightly better, the default), 2 or 3 (much better). Grades start
at 1.

In token shards a document is one line: both conversations, the chosen one first, then label tokens, whose ids are the
numbers: strength and one grade for each conversation, 0 if there is none. The loss mask selects the first token of the first
answer and the token after each conversation, so that the loss reads the state at the end of the prompt and of each
conversation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_folder
from openafm.data.chat_formats import as_messages
from openafm.data.pack import HELD_OUT
from openafm.data.shards.writer import TOKENS_PER_SHARD, ShardWriter, check_output
from openafm.tokenizer.conversation import AssistantTurn, Conversation, ConversationError, ToolTurn, Turn, UserTurn

if TYPE_CHECKING:
    from openafm.tokenizer.bpe import Tokenizer
    from openafm.tokenizer.template import BaseChatTemplate

MAX_STRENGTH = 3
MAX_GRADE = 100


class PreferenceError(OpenAFMError):
    """A line of a preference file cannot be used; the message has the file and the line."""


@dataclass(frozen=True, kw_only=True)
class Preference:
    """A prompt with two answers, the first of which is preferred, or with one graded answer.

    Attributes:
        answers: the turns after the prompt, one or two lists.
        strength: 1 to 3 for two answers, 0 for one.
        grades: the absolute grade of each answer; 0 if it is not graded.
    """

    prompt: tuple[Turn, ...]
    answers: tuple[tuple[Turn, ...], ...]
    strength: int
    grades: tuple[int, ...]
    language: str = ""


@dataclass(frozen=True, kw_only=True)
class PreferenceReport:
    """Counts of `pack_preferences`; `num_too_long` lines were left out because they do not fit into a row."""

    num_train: int
    num_held_out: int
    num_too_long: int


def read_preferences(path: Path) -> Iterator[Preference]:
    """Yield the lines of a JSONL file, or of every .jsonl file below a folder.

    Raises:
        PreferenceError: a line is not JSON, is a tie, lacks a side, or has a wrong role, strength or grade.
    """
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    if not files or not path.exists():
        raise PreferenceError(f"{path} has no .jsonl file with preferences")
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    try:
                        yield preference_of(json.loads(line))
                    except (ValueError, RecursionError) as error:
                        raise PreferenceError(f"{file}:{number}: not a JSON object: {error}") from error
                    except (PreferenceError, ConversationError) as error:
                        raise PreferenceError(f"{file}:{number}: {error}") from error


def preference_of(values: Any) -> Preference:
    """Return the preference of a line.

    Raises:
        PreferenceError: it is a tie, lacks a side, or has a wrong role, strength or grade.
        ConversationError: a message is not valid.
    """
    if not isinstance(values, Mapping):
        raise PreferenceError(f"expected an object, got {values!r:.100}")
    prompt = _prompt(values.get("prompt", values.get("messages")))
    language = str(values.get("language", ""))
    if "response" in values:
        grade = _number(values.get("grade"), "grade", 1, MAX_GRADE)
        answer = _answer(values["response"], "response", prompt)
        return Preference(prompt=prompt, answers=(answer,), strength=0, grades=(grade,), language=language)
    sides = _sides(values)
    first, second = (_answer(side, name, prompt) for name, side in sides.items())
    if first == second:
        raise PreferenceError("the two answers are equal; remove the line")
    given = values.get("grades", {})
    if not isinstance(given, Mapping) or not set(given) <= {"chosen", "rejected"}:
        raise PreferenceError(f"'grades' is an object with 'chosen' and 'rejected', got {given!r:.100}")
    grades = tuple(_number(given[name], "grades", 1, MAX_GRADE) if name in given else 0 for name in ("chosen", "rejected"))
    strength = _number(values.get("strength", 1), "strength", 1, MAX_STRENGTH)
    return Preference(prompt=prompt, answers=(first, second), strength=strength, grades=grades, language=language)


def pack_preferences(
    preferences: Iterable[Preference],
    out: Path,
    tokenizer: Tokenizer,
    template: BaseChatTemplate,
    *,
    max_tokens: int,
    held_out: float = 0.0,
) -> PreferenceReport:
    """Write token shards to `out`, and the share `held_out` of the prompts to its subfolder `held_out`.

    A line of more than `max_tokens` tokens is left out: a row cannot hold it.

    Raises:
        PreferenceError: one side of the split has no line.
        OutputFolderError: `out` has files that are not a corpus.
    """
    check_output(out)
    counts = {False: 0, True: 0}
    num_too_long = 0
    with atomic_folder(out) as folder:
        folders = {False: folder, True: folder / HELD_OUT} if held_out else {False: folder}
        writers = {side: _writer(path, tokenizer) for side, path in folders.items()}
        for preference in preferences:
            tokens, loss_mask = encode_preference(preference, tokenizer, template)
            if len(tokens) > max_tokens:
                num_too_long += 1
                continue
            side = _share_of(preference) < held_out
            writers[side].add(tokens, loss_mask=loss_mask, language=preference.language, source="preferences")
            counts[side] += 1
        if not all(counts[side] for side in writers):
            raise PreferenceError(
                f"{counts[False]} lines to train on and {counts[True]} held out, {num_too_long} longer than "
                f"{max_tokens} tokens; both sides need at least one: add lines, use longer rows, or hold out another share"
            )
        for writer in writers.values():
            writer.finish()
    return PreferenceReport(num_train=counts[False], num_held_out=counts[True], num_too_long=num_too_long)


def _writer(path: Path, tokenizer: Tokenizer) -> ShardWriter:
    return ShardWriter(
        path,
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        tokens_per_shard=TOKENS_PER_SHARD,
    )


def encode_preference(
    preference: Preference, tokenizer: Tokenizer, template: BaseChatTemplate
) -> tuple[list[int], list[bool]]:
    """Return the tokens of a document and its loss mask; see the head of this module."""
    tokens: list[int] = []
    read_after: list[int] = []
    for answer in preference.answers:
        prompt, conversation = encode_answer(preference.prompt, answer, tokenizer, template)
        if not read_after:
            read_after.append(len(prompt))
        tokens += conversation
        read_after.append(len(tokens))
    tokens += [preference.strength, *preference.grades]
    return tokens, [position in read_after for position in range(len(tokens))]


def encode_answer(
    prompt: Iterable[Turn], answer: Iterable[Turn], tokenizer: Tokenizer, template: BaseChatTemplate
) -> tuple[list[int], list[int]]:
    """Return the tokens of a prompt, and those of the prompt with an answer."""
    turns = tuple(prompt)
    before = template.encode_conversation(tokenizer, Conversation(turns=turns)).tokens
    whole = template.encode_conversation(tokenizer, Conversation(turns=(*turns, *answer))).tokens
    return list(before), list(whole)


def _prompt(value: Any) -> tuple[Turn, ...]:
    if isinstance(value, str) and value:
        return (UserTurn(text=value),)
    if not isinstance(value, list) or not value:
        raise PreferenceError("a line needs 'prompt', a text or a list of messages")
    turns = _turns(value)
    if not isinstance(turns[-1], UserTurn | ToolTurn):
        raise PreferenceError("the prompt ends with a turn of the assistant; the last turn is the user's or a tool's")
    return turns


def _sides(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chosen and the rejected answer."""
    if "responses" in values:
        responses, preferred = values["responses"], values.get("preferred")
        if not isinstance(responses, list) or len(responses) != 2:
            raise PreferenceError("'responses' is a list of two answers")
        if preferred not in (0, 1) or isinstance(preferred, bool):
            raise PreferenceError(
                f"'preferred' is 0 or 1, got {preferred!r}; a tie has no preferred answer: write two lines with 'response' "
                "and 'grade', or remove the line"
            )
        return {"chosen": responses[preferred], "rejected": responses[1 - preferred]}
    if missing := [name for name in ("chosen", "rejected") if not values.get(name)]:
        raise PreferenceError(
            f"a line needs 'chosen' and 'rejected', or 'response' and 'grade'; it lacks {' and '.join(missing)}"
        )
    if str(values.get("preference", "")).lower() in ("tie", "equal") or values.get("strength") == 0:
        raise PreferenceError(
            "a tie has no preferred answer; write two lines with 'response' and 'grade', or remove the line"
        )
    return {"chosen": values["chosen"], "rejected": values["rejected"]}


def _answer(value: Any, name: str, prompt: tuple[Turn, ...]) -> tuple[Turn, ...]:
    if isinstance(value, str):
        turns: tuple[Turn, ...] = (AssistantTurn(text=value),)
    elif isinstance(value, Mapping):
        turns = _turns([value])
    elif isinstance(value, list) and value:
        turns = _turns(value)
        turns = turns[len(prompt) :] if turns[: len(prompt)] == prompt else turns  # a whole conversation
    else:
        raise PreferenceError(f"'{name}' is a text, a message or a list of messages, got {value!r:.100}")
    wrong = [type(turn).__name__ for turn in turns if not isinstance(turn, AssistantTurn | ToolTurn)]
    if wrong or not turns or not isinstance(turns[-1], AssistantTurn):
        raise PreferenceError(f"'{name}' has turns of the assistant and of tools only, and ends with one of the assistant")
    if not turns[-1].text.strip() and not turns[-1].tool_calls:
        raise PreferenceError(f"'{name}' is empty")
    return turns


def _turns(messages: list[Any]) -> tuple[Turn, ...]:
    converted = as_messages({"messages": messages})
    assert converted is not None
    return Conversation.from_dict(converted).turns


def _number(value: Any, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise PreferenceError(f"'{name}' is a whole number from {least} to {most}, got {value!r:.100}")
    return value


def _share_of(preference: Preference) -> float:
    """Return a number in [0, 1) that depends on the prompt alone, so that equal prompts are on one side of the split."""
    text = json.dumps(Conversation(turns=preference.prompt).to_dict(), sort_keys=True, ensure_ascii=False)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest()) / 2**48
