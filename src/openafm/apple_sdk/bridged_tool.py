"""Tools behind the C interface: called through a callback, finished by call number."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import Future

from openafm.apple_sdk.handles import HANDLES
from openafm.framework.daemon import in_daemon_thread
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.schema.schema import GenerationSchema
from openafm.framework.tools.tool import Tool


class BridgedTool(Tool):
    """A tool behind a callback. Several calls may run at the same time."""

    def __init__(
        self, name: str, description: str, parameters: GenerationSchema, callback: Callable[[int, int], object]
    ) -> None:
        self.name, self.description = name, description
        self._schema = parameters
        self._callback = callback
        self._numbers = itertools.count(1)
        self._open: dict[int, Future[str]] = {}
        super().__init__()

    @property
    def arguments_schema(self) -> GenerationSchema:
        return self._schema

    async def call(self, args: GeneratedContent) -> str:
        number, output = next(self._numbers), Future[str]()
        self._open[number] = output
        try:
            # In another thread: the SDK runs the tool in the event loop of the calling thread, if there is one, and a slow
            # tool would block all other requests.
            await asyncio.wrap_future(
                in_daemon_thread(lambda: self._callback(HANDLES.hand_over(args), number), "openafm-tool")
            )
            return await asyncio.wrap_future(output)
        finally:
            self._open.pop(number, None)

    def finish_call(self, number: int, output: str) -> None:
        """Set the output of an open call. Does nothing if the call has finished or was cancelled."""
        future = self._open.pop(number, None)
        if future is not None and future.set_running_or_notify_cancel():
            future.set_result(output)
