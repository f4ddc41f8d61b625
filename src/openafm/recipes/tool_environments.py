"""Annotation projects as prompts of reinforcement learning: the tools and the state that annotators use."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from openafm.annotation.environments.project import Project, Scenario, read_project
from openafm.annotation.environments.replay import ProjectEnvironment
from openafm.rl.prompt_sources import Environment, PromptSource, PromptSourceConfig
from openafm.rl.prompts import RLPrompt
from openafm.tokenizer.conversation import Conversation, ConversationError, Instructions, UserTurn

KIND = "tool_environment"


@dataclass(frozen=True, kw_only=True)
class ProjectPromptsConfig(PromptSourceConfig):
    """Scenarios of an annotation project (`docs/annotation.md`) that have reference calls, in the order of the files.

    The truth is `state`, the rows after the reference calls, and `contains`, the text that the answer must hold.

    Attributes:
        path: the folder of the project.
    """

    path: str

    @property
    def digest(self) -> str:
        files = sorted(
            each for each in Path(self.path).rglob("*") if each.suffix in (".py", ".json", ".jsonl", ".sql", ".md")
        )
        return hashlib.blake2b(b"".join(each.read_bytes() for each in files), digest_size=16).hexdigest()

    def build(self) -> PromptSource:
        return _ProjectPrompts(read_project(Path(self.path)))


class _ProjectPrompts(PromptSource):
    def __init__(self, project: Project) -> None:
        self._project = project
        by_scenario = _prompts(project)
        self._prompts = [prompt for _, prompt in by_scenario]
        self._scenarios = {prompt.digest: scenario for scenario, prompt in by_scenario}
        if not self._prompts:
            raise ConversationError(f"{project.path} has no scenario with reference calls; add 'calls' to its scenarios")

    def prompt(self, number: int) -> RLPrompt:
        return self._prompts[number % len(self._prompts)]

    def environment(self, prompt: RLPrompt) -> Environment | None:
        return ProjectEnvironment(self._project, self._scenarios[prompt.digest])


def _prompts(project: Project) -> list[tuple[Scenario, RLPrompt]]:
    environment, prompts = ProjectEnvironment(project), []
    for scenario in project.scenarios:
        if not scenario.calls:
            continue
        environment.begin(scenario)
        for call in scenario.calls:
            environment.call(call)
        truth = {"state": dict(environment.state), "contains": [scenario.answer] if scenario.answer else []}
        opening = Instructions(text=project.policy, tools=environment.definitions)
        turns = (opening, UserTurn(text=scenario.query))
        extra = {"scenario": scenario.id} if scenario.start else {}  # two scenarios may differ in their start alone
        conversation = Conversation(turns=turns, task=KIND, language=scenario.language, extra=extra)
        prompts.append((scenario, RLPrompt(conversation=conversation, kind=KIND, truth=truth)))
    return prompts
