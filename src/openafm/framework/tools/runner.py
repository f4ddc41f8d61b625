"""Execution of the tool calls of one answer: concurrent, with timeouts, all or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any, TypeAlias

from openafm.core.errors import OpenAFMError
from openafm.framework.daemon import in_daemon_loop
from openafm.framework.errors import GenerationCancelledError, ToolCallError
from openafm.framework.profiling.recorder import NOT_RECORDED, SpanRecorder
from openafm.framework.profiling.spans import SpanKind
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.tools.tool import Tool, ToolLimits
from openafm.framework.transcripts.prompt import has_attachments, prompt_content
from openafm.tokenizer.conversation import ContentPart, ToolCall, ToolTurn
from openafm.tokenizer.schema_text import compact_json

_POLL_S, _LOOP_POLL_S = 0.02, 0.5


@dataclass(frozen=True, kw_only=True)
class ToolOutput:
    """The output of a call as the model reads it, and the bytes of its images by digest."""

    turn: ToolTurn
    images: Mapping[str, bytes]


_Outputs: TypeAlias = tuple[ToolOutput, ...]
_ImageReader: TypeAlias = Callable[[bytes], ContentPart]


class ToolOutputError(OpenAFMError):
    """The output of a tool is neither text nor JSON, or is too long."""


class ToolTimeoutError(OpenAFMError):
    """A call exceeded `ToolLimits.call_seconds`."""


@dataclass(frozen=True, kw_only=True)
class ToolRunner:
    """Run the tools of a session."""

    tools: Mapping[str, Tool]
    limits: ToolLimits

    def run(
        self,
        calls: Sequence[ToolCall],
        cancelled: Callable[[], bool],
        loop: asyncio.AbstractEventLoop | None,
        image_part: _ImageReader,
        span: SpanRecorder = NOT_RECORDED,
    ) -> _Outputs:
        """Return the outputs of the calls in order. Blocks, so the thread of `loop` must not call it.

        Args:
            calls: the calls of one answer.
            cancelled: polled; returns whether the request is cancelled.
            loop: the event loop to run the calls in; None: a new one.
            image_part: returns the part for an image in an output; raises if the model sees no images.
            span: records the calls for profiles.

        Raises:
            ToolCallError: a tool raised, timed out or returned an unusable output; the other calls are cancelled.
            GenerationCancelledError: the request was cancelled, and with it all calls.
        """
        work = self._run(calls, cancelled, image_part, span)
        try:
            if loop is None:
                return in_daemon_loop(work, "openafm-tools").result()
            return _wait_for(asyncio.run_coroutine_threadsafe(work, loop), loop, cancelled)
        except (RuntimeError, futures.CancelledError) as error:  # the caller's loop is closed
            work.close()
            raise GenerationCancelledError(f"tools cannot be called: {error!r}") from error

    async def _run(
        self, calls: Sequence[ToolCall], cancelled: Callable[[], bool], image_part: _ImageReader, span: SpanRecorder
    ) -> _Outputs:
        tasks = [asyncio.ensure_future(self._recorded(call, image_part, span)) for call in calls]
        try:
            while not all(task.done() for task in tasks):
                await asyncio.wait(tasks, timeout=_POLL_S, return_when=asyncio.FIRST_EXCEPTION)
                for call, task in zip(calls, tasks, strict=True):
                    if error := _error_of(task):
                        raise ToolCallError(call.name, error) from error
                if cancelled():
                    raise GenerationCancelledError("the request was cancelled while its tools were running")
        finally:
            for task in tasks:
                _cancel_silently(task)
        return tuple(task.result() for task in tasks)

    async def call(self, call: ToolCall) -> str:
        """Return the output of one call as text for the model. Exceptions of the tool pass through.

        Raises:
            ToolTimeoutError: the call timed out.
            ToolOutputError: the output is neither text nor JSON, or is too long.
        """
        return self._limited(_as_text(await self._called(call)))

    async def _recorded(self, call: ToolCall, image_part: _ImageReader, parent: SpanRecorder) -> ToolOutput:
        with parent.child(SpanKind.TOOL, call.name) as span:
            output = await self._output(call, image_part)
            if span.is_recorded:
                span.set_content(arguments=compact_json(call.arguments), output=output.turn.text)
            return output

    async def _output(self, call: ToolCall, image_part: _ImageReader) -> ToolOutput:
        output = await self._called(call)
        if not has_attachments(output):
            return ToolOutput(turn=ToolTurn(name=call.name, text=self._limited(_as_text(output))), images={})
        content, images = await asyncio.to_thread(prompt_content, output, image_part)  # reading takes seconds
        turn = ToolTurn(name=call.name, content=content)
        self._limited(turn.text)
        return ToolOutput(turn=turn, images=images)

    async def _called(self, call: ToolCall) -> Any:
        running = _without_exit(self.tools[call.name].call(GeneratedContent(dict(call.arguments))))
        return await _with_timeout(running, self.limits.call_seconds)

    def _limited(self, text: str) -> str:
        if len(text) > self.limits.output_characters:
            raise ToolOutputError(
                f"the output has {len(text):,} characters, the limit is {self.limits.output_characters:,};"
                " return less, or raise ToolLimits.output_characters"
            )
        return text


def _wait_for(future: futures.Future[_Outputs], loop: asyncio.AbstractEventLoop, cancelled: Callable[[], bool]) -> _Outputs:
    """Wait for the result of a task in `loop`. Raise if the loop has stopped for good."""
    while True:
        futures.wait((future,), timeout=_LOOP_POLL_S)
        if future.done():
            return future.result()
        if not loop.is_running() and (loop.is_closed() or cancelled()):
            raise GenerationCancelledError("the event loop ended while tools were running in it")


async def _without_exit(call: Awaitable[Any]) -> Any:
    """Await a call of a tool. Convert SystemExit, which would end the event loop and the program."""
    try:
        return await call
    except SystemExit as error:
        raise RuntimeError(f"the tool called sys.exit({error.code!r})") from error


async def _with_timeout(call: Coroutine[Any, Any, Any] | Awaitable[Any], seconds: float | None) -> Any:
    """Await a call with a timeout. Unlike `asyncio.wait_for`, do not wait for a call that ignores cancellation."""
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise ToolTimeoutError(f"no output after {seconds:g} s; raise ToolLimits.call_seconds to allow more")
        return task.result()
    finally:
        _cancel_silently(task)


def _cancel_silently(task: asyncio.Future[Any]) -> None:
    """Cancel a task and retrieve its exception, so that asyncio does not log it."""
    task.cancel()
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def _error_of(task: asyncio.Future[ToolOutput]) -> BaseException | None:
    if not task.done():
        return None
    return asyncio.CancelledError("the tool cancelled itself") if task.cancelled() else task.exception()


def _as_text(output: Any) -> str:
    """Return an output as text for the model.

    Raises:
        ToolOutputError: the output is not text, JSON or a generable instance.
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
            f"a tool must return text, a generable instance or a JSON value, got {type(output).__name__} ({error})"
        ) from error
