"""Several tool processes, shared by the items of a server."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from openafm.annotation.environments.host import CallResult
from openafm.annotation.environments.process import Lineage, ToolProcess
from openafm.annotation.environments.project import Project
from openafm.core.errors import OpenAFMError
from openafm.framework.schema.validation import Validator
from openafm.tokenizer.conversation import ToolCall


class ToolPool:
    """Run tool calls in `size` processes. A call prefers a process that holds its state.

    Raises:
        ToolFileError: the tools of the project cannot be used.
    """

    def __init__(self, project: Project, size: int = 2) -> None:
        self._all = tuple(ToolProcess(project) for _ in range(size))
        self._idle = [self._all[0]]
        self._changed = threading.Condition()
        self.definitions = self._all[0].definitions()
        self._validators = {each.name: Validator(each.parameters) for each in self.definitions}
        self._starting = threading.Thread(target=self._start_others, daemon=True, name="openafm-tools")
        self._starting.start()

    def run(
        self, calls: Sequence[ToolCall], state: str, lineage: Callable[[str], Lineage], index: int
    ) -> Iterator[tuple[CallResult, str]]:
        """Run calls one after the other and yield each result with the state after it.

        Args:
            state: the key of the state before the calls.
            lineage: returns how a state is made: that one, or one after a call that was yielded.
            index: the number of calls before these in the trajectory.
        """
        with self._process(state) as process:
            for number, call in enumerate(calls):
                result, state = process.call(
                    state, functools.partial(lineage, state), call.name, call.arguments, index + number
                )
                yield result, state

    def tables(self, state: str, lineage: Callable[[str], Lineage]) -> dict[str, list[dict[str, Any]]]:
        """Return all rows of a state by table."""
        with self._process(state) as process:
            return process.tables(state, functools.partial(lineage, state))

    def problem(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return why a call does not fit the tools; None if it does."""
        if name not in self._validators:
            return f"there is no tool '{name:.100}'; the tools are {', '.join(self._validators)}"
        problem = self._validators[name].validation().problem(arguments)
        return None if problem is None else f"the arguments of {name} do not fit at {problem:.300}"

    def close(self) -> None:
        """End the processes."""
        self._close_all()
        self._starting.join()  # ends early: the process that it starts was killed
        self._close_all()

    def _start_others(self) -> None:
        """Start the other processes while the first one works: the first call of a process would wait for its imports."""
        for process in self._all[1:]:
            with contextlib.suppress(OpenAFMError, RuntimeError):  # the first call starts it again and reports the error
                process.definitions()
            with self._changed:
                self._idle.append(process)
                self._changed.notify()

    def _close_all(self) -> None:
        for process in self._all:
            process.close()

    @contextlib.contextmanager
    def _process(self, state: str) -> Iterator[ToolProcess]:
        with self._changed:
            self._changed.wait_for(lambda: self._idle)
            process = next((each for each in self._idle if each.held == state), self._idle[0])
            self._idle.remove(process)
        try:
            yield process
        finally:
            with self._changed:
                self._idle.append(process)
                self._changed.notify()
