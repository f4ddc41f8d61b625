"""Routes of the playground beside its files: Python tools and types of the user, and feedback."""

from __future__ import annotations

import hmac
import json
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from openafm.core.errors import OpenAFMError
from openafm.framework.options import GenerationOptions
from openafm.framework.transcripts.feedback import FeedbackCategory, FeedbackIssue, Sentiment, feedback_attachment
from openafm.framework.transcripts.transcript import (
    Entry,
    InstructionsEntry,
    PromptEntry,
    ResponseEntry,
    ToolCallsEntry,
    ToolOutputEntry,
    Transcript,
)
from openafm.serving.apis.messages import Message, Tool, prompt_of, tools_of
from openafm.serving.apis.wire import Wire
from openafm.serving.errors import ApiError, bad_request
from openafm.serving.user_code import UserCode
from openafm.tokenizer.conversation import AssistantTurn, Instructions, JsonSchema, ToolCall, ToolTurn, Turn, UserTurn

TOKEN_HEADER = "x-playground-token"

router = APIRouter(prefix="/playground", include_in_schema=False)


class CallRequest(Wire):
    """A call of a Python tool, which the user has confirmed."""

    name: str
    arguments: dict[str, Any]


class Issue(Wire):
    """An issue of an answer."""

    category: FeedbackCategory
    explanation: str | None = Field(default=None, max_length=10_000)


class FeedbackRequest(Wire):
    """A conversation up to the rated answer."""

    model: str = ""
    messages: list[Message]
    tools: list[Tool] = Field(default_factory=list)
    json_schema: dict[str, Any] | None = None
    sentiment: Sentiment
    issues: list[Issue] = Field(default_factory=list)
    desired_output: str | None = None
    comment: str | None = Field(default=None, max_length=10_000)


def _user_code(request: Request) -> UserCode:
    return cast(UserCode, request.app.state.user_code)


Code = Annotated[UserCode, Depends(_user_code)]


@router.get("/tools")
async def tools(code: Code) -> list[dict[str, Any]]:
    """List the Python tools of this server."""
    definitions = [tool.definition() for tool in code.tools.values()]
    return [{"name": each.name, "description": each.description, "parameters": each.parameters} for each in definitions]


@router.get("/schemas")
async def schemas(code: Code) -> dict[str, Any]:
    """List the schemas of the Python types of this server."""
    return dict(code.schemas)


@router.post("/tools/call")
async def call(body: CallRequest, code: Code, request: Request) -> dict[str, str]:
    """Run a Python tool and return its output as text. The token shows that the call is from the user's own page."""
    if not hmac.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), code.token.encode()):
        raise ApiError(
            403,
            "the token of the playground is missing or old; open the address that `openafm play` shows",
            code="forbidden",
        )
    if body.name not in code.tools:
        raise ApiError(404, f"this server has no Python tool '{body.name[:80]}'; start it with --tools", code="not_found")
    try:
        return {"output": await code.runner.call(ToolCall(name=body.name, arguments=body.arguments))}
    except OpenAFMError as error:
        raise bad_request(str(error), code="tool_failed") from error
    except Exception as error:  # of the user's code
        raise ApiError(500, f"the tool failed: {type(error).__name__}: {error}", code="tool_failed") from error


@router.post("/feedback")
def feedback(body: FeedbackRequest) -> Response:
    """Return a feedback file, as `LanguageModelSession.log_feedback` does. Nothing is stored here."""
    prompt = prompt_of(body.messages, tools_of([tool.function for tool in body.tools]))
    try:
        entries = transcript_entries(prompt.turns, body.json_schema, body.model)
        data = feedback_attachment(
            Transcript(entries),
            sentiment=body.sentiment,
            issues=[FeedbackIssue(each.category, each.explanation) for each in body.issues],
            desired_output=body.desired_output,
            comment=None if body.issues else body.comment,
        )
    except OpenAFMError as error:
        raise bad_request(str(error), param="messages") from error
    return Response(data, media_type="application/json")


def transcript_entries(turns: Sequence[Turn], schema: JsonSchema | None, model: str) -> list[Entry]:
    """Return the entries of a transcript with these turns. `schema` is the one of all answers."""
    entries: list[Entry] = []
    call_ids: list[str] = []
    for turn in turns:
        match turn:
            case Instructions():
                if turn.text or turn.tools:
                    entries.append(InstructionsEntry(turn=turn))
            case UserTurn():
                entries.append(PromptEntry(turn=turn, options=GenerationOptions(), schema=schema))
            case AssistantTurn(tool_calls=()):
                source = None if schema is None or not _is_json(turn.text) else str(schema.get("title", ""))
                entries.append(ResponseEntry(turn=turn, source=source, assets=(model,) if model else ()))
            case AssistantTurn():
                call_ids = [str(uuid.uuid4()).upper() for _ in turn.tool_calls]
                entries.append(ToolCallsEntry(turn=turn, call_ids=tuple(call_ids), assets=(model,) if model else ()))
            case ToolTurn():
                entries.append(ToolOutputEntry(turn=turn, call_id=call_ids.pop(0) if call_ids else ""))
    return entries


def _is_json(text: str) -> bool:
    """Return False for an answer that was stopped before its end."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
