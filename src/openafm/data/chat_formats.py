"""Read conversations in the formats of other tools: OpenAI, ShareGPT, Alpaca and prompt/completion.

`as_messages` converts one JSON object to the chat JSONL form of `tokenizer.conversation`:

    {"messages": [{"role": "system", ...}, ...], "tools": [...]}            OpenAI, with content lists and `tool_calls`
    {"conversations": [{"from": "human", "value": "..."}, ...]}             ShareGPT
    {"instruction": "...", "input": "...", "output": "..."}                 Alpaca
    {"prompt": "...", "completion": "..."}                                  text or messages
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from openafm.tokenizer.conversation import ConversationError

SHAREGPT_ROLES = {
    "system": "instructions",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "function_response": "tool",
    "tool": "tool",
}
_CONSUMED = ("conversations", "instruction", "input", "output", "prompt", "completion", "system", "tools", "functions")
_OPENAI_SETTINGS = ("parallel_tool_calls", "response_format")


def as_messages(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a conversation in the chat JSONL form; None if the object is none of the formats.

    Raises:
        ConversationError: the object has the keys of a format and an invalid value; the message names the value.
    """
    match values:
        case {"messages": list(messages)}:
            pass
        case {"conversations": list(conversations)}:
            messages = _from_sharegpt(conversations, values.get("system"))
        case {"instruction": str(instruction), "output": str(output)}:
            prompt = "\n\n".join(text for text in (instruction, values.get("input")) if text)
            messages = _with_system(values, [{"role": "user", "content": prompt}, {"role": "assistant", "content": output}])
        case {"prompt": prompt, "completion": completion}:
            messages = _with_system(values, [*_messages_of(prompt, "user"), *_messages_of(completion, "assistant")])
        case _:
            return None
    messages = _from_openai(messages)
    tools = _tools(values.get("tools") or values.get("functions") or ())
    if tools:
        if not messages or messages[0].get("role") != "instructions":
            messages = [{"role": "instructions", "content": ""}, *messages]
        messages[0] = messages[0] | {"tools": tools}
    schema = _response_schema(values.get("response_format"))
    if schema is not None:
        messages = [m | {"response_format": schema} if m.get("role") == "user" else m for m in messages]
    kept = {key: value for key, value in values.items() if key not in (*_CONSUMED, *_OPENAI_SETTINGS)}
    return kept | {"messages": messages}


def _from_openai(messages: Sequence[Any]) -> list[Any]:
    """Return messages with plain texts and calls: OpenAI's content lists, null contents and call objects converted."""
    converted: list[Any] = []
    names: dict[str, str] = {}
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ConversationError(f"message {position}: expected an object, got {message!r}")
        try:
            found = _message(message, names)
        except ConversationError as error:
            raise ConversationError(f"message {position}: {error}") from None
        is_instructions = found.get("role") == "instructions"
        if is_instructions and converted and converted[-1].get("role") == "instructions":
            before = converted.pop()
            text = "\n\n".join(filter(None, (before["content"], found["content"])))
            found = before | found | {"content": text}
        elif is_instructions and converted:
            raise ConversationError(f"message {position}: a system message must come first; move its text there")
        converted.append(found)
    return converted


def _message(message: Mapping[str, Any], names: dict[str, str]) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if message.get("weight") == 0:
        raise ConversationError("'weight' 0 is not supported: all assistant messages are learned; remove the key")
    match role:
        case "system" | "developer" | "instructions":
            kept = {"tools": message["tools"]} if message.get("tools") else {}
            return {"role": "instructions", "content": _text(content)} | kept
        case "user":
            parts = {"content": content if _has_images(content) else _text(content)}
            schema = message.get("response_format")
            return {"role": "user"} | parts | ({} if schema is None else {"response_format": schema})
        case "assistant":
            calls = list(message.get("tool_calls") or ())
            if message.get("function_call"):
                calls.append({"function": message["function_call"]})
            found: dict[str, Any] = {"role": "assistant", "content": _text(content)}
            return found | ({"tool_calls": [_call(call, names) for call in calls]} if calls else {})
        case "tool" | "function":
            name = message.get("name") or names.get(str(message.get("tool_call_id")))
            if not name:
                raise ConversationError("a tool message needs a 'name', or the 'tool_call_id' of an earlier call")
            return {"role": "tool", "name": name, "content": _text(content)}
    raise ConversationError(f"unknown role {role!r}; known: system, developer, user, assistant, tool, function")


def _call(call: Any, names: dict[str, str]) -> dict[str, Any]:
    """Return a call in the chat JSONL form and remember the name of its id."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConversationError(f"a tool call needs a function with a name, got {call!r}")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _json(arguments or "{}", "the arguments of a tool call")
    if not isinstance(arguments, Mapping):
        raise ConversationError(f"the arguments of a tool call must be a JSON object, got {arguments!r}")
    if isinstance(call.get("id"), str):
        names[call["id"]] = function["name"]
    return {"name": function["name"], "arguments": dict(arguments)}


def _tools(tools: Any) -> list[dict[str, Any]]:
    if isinstance(tools, str):
        tools = _json(tools, "'tools'")
    if not isinstance(tools, Sequence):
        raise ConversationError(f"'tools' must be a list, got {tools!r}")
    found = []
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ConversationError(f"a tool needs a name, got {tool!r}")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        found.append({"name": function["name"], "description": function.get("description") or "", "parameters": parameters})
    return found


def _response_schema(response_format: Any) -> Any:
    match response_format:
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return schema
        case {"type": "text"} | None:
            return None
    raise ConversationError(f"'response_format' must be of type json_schema with a schema, got {response_format!r}")


def _from_sharegpt(turns: Sequence[Any], system: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    name = "tool"
    for position, turn in enumerate(turns):
        if not isinstance(turn, Mapping) or not isinstance(turn.get("value"), str):
            raise ConversationError(f"turn {position} of 'conversations' needs a text under 'value', got {turn!r}")
        speaker, value = turn.get("from"), turn["value"]
        if speaker not in SHAREGPT_ROLES:
            known = ", ".join(SHAREGPT_ROLES)
            raise ConversationError(f"turn {position} of 'conversations' is from {speaker!r}; known: {known}")
        message: dict[str, Any] = {"role": SHAREGPT_ROLES[speaker], "content": value}
        if speaker == "function_call":
            call = _json(value, f"the function_call of turn {position}")
            message = {"role": "assistant", "content": "", "tool_calls": call if isinstance(call, list) else [call]}
            name = _call(message["tool_calls"][-1], {})["name"] if message["tool_calls"] else name
        if message["role"] == "tool":
            message["name"] = name
        messages.append(message)
    return messages


def _with_system(values: Mapping[str, Any], messages: list[Any]) -> list[Any]:
    system = values.get("system")
    return [{"role": "system", "content": system}, *messages] if isinstance(system, str) and system else messages


def _messages_of(value: Any, role: str) -> list[Any]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, list):
        return value
    raise ConversationError(f"prompt and completion must be texts or lists of messages, got {value!r}")


def _has_images(content: Any) -> bool:
    return isinstance(content, list) and any(isinstance(part, Mapping) and part.get("type") == "image" for part in content)


def _text(content: Any) -> str:
    """Return a content as text: null is empty, a list of text parts is joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        if all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
        kinds = sorted({str(part.get("type")) for part in content if isinstance(part, Mapping) and "text" not in part})
        raise ConversationError(f"'content' has parts of type {', '.join(kinds) or 'unknown'}; only text is supported")
    raise ConversationError(f"'content' must be a text, null or a list of parts, got {content!r}")


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConversationError(f"{what} is not JSON: {error}") from error
