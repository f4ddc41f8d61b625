"""Running the calls of one answer: in parallel, each within its time, all or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any, TypeAlias

from openafm.core.errors import OpenAFMError
from openafm.framework.daemon import in_daemon_loop
from openafm.framework.errors import GenerationCancelledError, ToolCallError
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.tools.tool import Tool, ToolLimits
from openafm.tokenizer.conversation import ToolCall, ToolTurn
from openafm.tokenizer.schema_text import compact_json

_POLL_S, _LOOP_POLL_S = 0.02, 0.5
_Outputs: TypeAlias = tuple[ToolTurn, ...]


class ToolOutputError(OpenAFMError):
    """What a tool returned cannot be told to the model."""


class ToolTimeoutError(OpenAFMError):
    """A call took longer than `ToolLimits.call_seconds`."""


@dataclass(frozen=True, kw_only=True)
class ToolRunner:
    """The tools of a session. With `loop`, calls run there, as tasks beside the caller's; else in a loop of their own."""

    tools: Mapping[str, Tool]
    limits: ToolLimits

    def run(
        self, calls: Sequence[ToolCall], cancelled: Callable[[], bool], loop: asyncio.AbstractEventLoop | None
    ) -> _Outputs:
        """The outputs of the calls, in their order. Blocks; must not be called in the thread of `loop`.

        Raises:
            ToolCallError: a tool raised, took too long or returned what is not text; the other calls are cancelled.
            GenerationCancelledError: `cancelled` said so; all calls are cancelled.
        """
        work = self._run(calls, cancelled)
        try:
            if loop is None:
                return in_daemon_loop(work, "openafm-tools").result()
            return _waited_for(asyncio.run_coroutine_threadsafe(work, loop), loop, cancelled)
        except (RuntimeError, futures.CancelledError) as error:  # the caller's loop is gone
            work.close()
            raise GenerationCancelledError(f"tools cannot be called: {error!r}") from error

    async def _run(self, calls: Sequence[ToolCall], cancelled: Callable[[], bool]) -> _Outputs:
        tasks = [asyncio.ensure_future(self.call(call)) for call in calls]
        try:
            while not all(task.done() for task in tasks):
                await asyncio.wait(tasks, timeout=_POLL_S, return_when=asyncio.FIRST_EXCEPTION)
                for call, task in zip(calls, tasks, strict=True):
                    if error := _error_of(task):
                        raise ToolCallError(call.name, error) from error
                if cancelled():
                    raise GenerationCancelledError("the request was cancelled while its tools were at work")
        finally:
            for task in tasks:
                _abandon(task)
        return tuple(ToolTurn(name=call.name, text=task.result()) for call, task in zip(calls, tasks, strict=True))

    async def call(self, call: ToolCall) -> str:
        """The output of one call, as the model is told it. Raises what the tool raises.

        Raises:
            ToolTimeoutError: it took too long.
            ToolOutputError: what it returned is not text, or too much of it.
        """
        tool = self.tools[call.name]
        output = await _within(tool.call(GeneratedContent(dict(call.arguments))), self.limits.call_seconds)
        text = _as_text(output)
        if len(text) > self.limits.output_characters:
            raise ToolOutputError(
                f"the output has {len(text):,} characters, at most {self.limits.output_characters:,} are told to a model;"
                " return less, or raise ToolLimits.output_characters"
            )
        return text


def _waited_for(
    future: futures.Future[_Outputs], loop: asyncio.AbstractEventLoop, cancelled: Callable[[], bool]
) -> _Outputs:
    """The result of what runs in `loop`, unless that will never run again."""
    while True:
        futures.wait((future,), timeout=_LOOP_POLL_S)
        if future.done():
            return future.result()
        if not loop.is_running() and (loop.is_closed() or cancelled()):
            raise GenerationCancelledError("the event loop ended while tools were at work in it")


async def _within(call: Coroutine[Any, Any, Any] | Awaitable[Any], seconds: float | None) -> Any:
    """Like `asyncio.wait_for`, but does not wait for a call that will not be cancelled."""
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise ToolTimeoutError(f"no output after {seconds:g} s; ToolLimits.call_seconds allows more")
        return task.result()
    finally:
        _abandon(task)


def _abandon(task: asyncio.Future[Any]) -> None:
    """Cancel what may still be under way. How it ends is of no interest any more, and is not logged either."""
    task.cancel()
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def _error_of(task: asyncio.Future[str]) -> BaseException | None:
    if not task.done():
        return None
    return asyncio.CancelledError("the tool cancelled itself") if task.cancelled() else task.exception()


def _as_text(output: Any) -> str:
    """An output as the model reads it.

    Raises:
        ToolOutputError: it is neither text nor JSON nor a generable instance.
    """
    if isinstance(output, str):
        return output
    if isinstance(output, GeneratedContent):
        return output.to_json()
    content = getattr(output, "generated_content", None)
    if isinstance(content, GeneratedContent):
        return content.to_json()
    try:
        return compact_json(output)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolOutputError(
            f"a tool returns text, a generable instance or a JSON value, not {type(output).__name__} ({error})"
        ) from error
