"""Replay a trajectory's calls on the initial state, as reinforcement learning and the checks of exports do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from openafm.annotation.environments.host import CallResult, ToolHost
from openafm.annotation.environments.project import Project, Scenario
from openafm.tokenizer.conversation import ToolCall, ToolDefinition


class ProjectEnvironment:
    """The tools of a project with their state, in this process: an `Environment` of reinforcement learning (`rl`).

    Limits of time and memory need a `ToolProcess`.

    Args:
        scenario: it starts from the state of this scenario; None: from the initial database.
    """

    def __init__(self, project: Project, scenario: Scenario | None = None) -> None:
        config = project.config
        self._host = ToolHost(
            project.tools_path, start=config.start, seed=config.seed, max_characters=config.output_characters
        )
        self._project = project
        self.begin(scenario)

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools as the model reads them."""
        return tuple(self._host.definitions.values())

    def begin(self, scenario: Scenario | None) -> None:
        """Load the state that a scenario starts from; None: the initial database."""
        self._start = self._project.seed if scenario is None else self._project.start_image(scenario)
        self.reset()

    def reset(self) -> None:
        """Return to the state at the start."""
        self._num_calls = 0
        self._host.load(self._start)

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


def replay(project: Project, calls: Iterable[ToolCall], scenario: Scenario | None = None) -> tuple[list[CallResult], str]:
    """Return the results of calls from the state that a scenario starts from, and the digest of the state after them."""
    environment = ProjectEnvironment(project, scenario)
    return [environment.run(call) for call in calls], environment.digest
