"""Replay a trajectory's calls on the initial state, as reinforcement learning and the checks of exports do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from openafm.annotation.environments.host import CallResult, ToolHost
from openafm.annotation.environments.project import Project
from openafm.tokenizer.conversation import ToolCall, ToolDefinition


class ProjectEnvironment:
    """The tools of a project with their state, in this process: an `Environment` of reinforcement learning (`rl`).

    Limits of time and memory need a `ToolProcess`.
    """

    def __init__(self, project: Project) -> None:
        config = project.config
        self._host = ToolHost(
            project.tools_path, start=config.start, seed=config.seed, max_characters=config.output_characters
        )
        self._seed = project.seed
        self.reset()

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools as the model reads them."""
        return tuple(self._host.definitions.values())

    def reset(self) -> None:
        """Return to the initial state."""
        self._num_calls = 0
        self._host.load(self._seed)

    def run(self, call: ToolCall) -> CallResult:
        """Return the result of the next call."""
        result = self._host.call(call.name, call.arguments, self._num_calls)
        self._num_calls += 1
        return result

    def call(self, call: ToolCall) -> str:
        """Return the output of the next call as the model reads it."""
        return self.run(call).text

    @property
    def state(self) -> Mapping[str, object]:
        """All rows by table."""
        return self._host.tables()

    @property
    def digest(self) -> str:
        """The digest of the state."""
        return self._host.digest()


def replay(project: Project, calls: Iterable[ToolCall]) -> tuple[list[CallResult], str]:
    """Return the results of calls from the initial state, and the digest of the state after them."""
    environment = ProjectEnvironment(project)
    return [environment.run(call) for call in calls], environment.digest
