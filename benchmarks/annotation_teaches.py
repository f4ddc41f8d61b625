"""Does annotation teach? Nano on held-out tasks of the sample 'device': before, after fine-tuning, after preferences.

    python benchmarks/annotation_teaches.py --json [--quick]

A scripted model with injected mistakes runs tasks in the environment; a scripted expert corrects each wrong step, as an
annotator does. Main stems fine-tune a LoRA adapter of nano (`after_sft`); then abandoned siblings train it with direct
preference optimization against the fine-tuned model (`after_preferences`). Held-out tasks have other values than those of
training. After each part of their reference calls the model writes the next turn.

`before`, `after_sft` and `after_preferences` are the shares of right fields: the tool and each argument of each call.
`scores` has all of them with 95 % intervals from resampled tasks: fields, tools, arguments, whole calls, and whole tasks.
`change_by_sft` and `change_by_preferences` are paired differences.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from shared.reporting import benchmark_parser, hand_in
from torch import Tensor
from torch.nn import functional as F

from openafm.adapters.config import LoRAConfig
from openafm.adapters.lora import start_at_zero
from openafm.annotation.agent import run_agent
from openafm.annotation.database import Database
from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import Project, Scenario, read_project, write_sample
from openafm.annotation.environments.replay import ProjectEnvironment
from openafm.annotation.scripted_model import ScriptedModel
from openafm.annotation.trees.export import export
from openafm.annotation.trees.item import Change, Item
from openafm.annotation.trees.nodes import Content, NodeKind
from openafm.annotation.trees.store import TreeStore
from openafm.annotation.trees.tables import TREES
from openafm.bundle import open_bundle
from openafm.bundle.decoder import load_decoder
from openafm.data.preferences import encode_answer, read_preferences
from openafm.evaluation.tool_turns import next_turn
from openafm.models.decoder import Decoder
from openafm.runtime.decoding.grammar import Grammar, GrammarCompiler
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.conversation import (
    AssistantTurn,
    Conversation,
    Instructions,
    ToolCall,
    ToolDefinition,
    ToolTurn,
    Turn,
    UserTurn,
)
from openafm.tokenizer.template import BaseChatTemplate
from openafm.tokenizer.tool_calls import tool_calls_schema

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "annotation_teaches.json"
TOOLS = ("set_setting", "create_alarm", "set_notifications")
MISTAKES = 0.5
BETA = 0.2
SFT_RATE, PREFERENCE_RATE = 5e-3, 2e-4
MAX_TOKENS = 48
SCORE, RESAMPLES = "fields", 1000
_keys = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is annotated, trained and tested."""

    tasks: int
    held_out: int
    sft_steps: int
    preference_steps: int


QUICK = Size(tasks=120, held_out=16, sft_steps=60, preference_steps=8)
FULL = Size(tasks=300, held_out=60, sft_steps=400, preference_steps=100)


@dataclass
class Policy:
    """Nano with an adapter, and what generation needs (the part of `LoadedModel` that `next_turn` uses)."""

    decoder: Decoder
    tokenizer: Tokenizer
    template: BaseChatTemplate
    engine: TorchEngine
    compiler: GrammarCompiler

    def grammar(self, schema: None, tools: tuple[ToolDefinition, ...]) -> Grammar:
        """Return the grammar of an answer with these tools."""
        return self.compiler.answer(schema, tool_calls_schema(tools) | {"maxItems": 4} if tools else None)


def main() -> None:
    """Run the benchmark from the command line."""
    arguments = benchmark_parser(__doc__, "fewer tasks and steps: about two minutes").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), QUICK if arguments.quick else FULL)
    hand_in({"figures": found}, REPORT, arguments)


def measure(folder: Path, size: Size) -> dict[str, Any]:
    """Annotate, train and return the scores."""
    project = write_project(folder / "device", draw_tasks("train", size.tasks))
    stems, branches = annotate(project, folder)
    held_out = draw_tasks("test", size.held_out)
    policy = load_policy()
    stages = {"before": graded("before", policy, project, held_out)}
    examples = [encoded(policy, json.loads(line)) for line in stems.read_text().splitlines()]
    fine_tune(policy.decoder, examples, size.sft_steps)
    stages["after_sft"] = graded("after_sft", policy, project, held_out)
    pairs = [encoded_pair(policy, preference) for preference in read_preferences(branches)]
    learn_preferences(policy.decoder, pairs, size.preference_steps)
    stages["after_preferences"] = graded("after_preferences", policy, project, held_out)
    return {
        **{name: share(found, SCORE) for name, found in stages.items()},
        "change_by_sft": difference(stages["before"], stages["after_sft"]),
        "change_by_preferences": difference(stages["after_sft"], stages["after_preferences"]),
        "scores": {name: shares(found) for name, found in stages.items()},
        **dataclasses.asdict(size),
        "pairs": len(pairs),
    }


def graded(stage: str, policy: Policy, project: Project, held_out: tuple[Scenario, ...]) -> list[Graded]:
    """Return what the model gets right in the held-out tasks, and print it."""
    found = grade(policy, project, held_out)
    print(f"{stage}: " + ", ".join(f"{name} {share(found, name)}" for name in found[0].parts), file=sys.stderr)
    return found


def draw_tasks(split: str, count: int) -> tuple[Scenario, ...]:
    """Return tasks of one or two calls; the values of the splits differ."""
    rng = random.Random(split)
    parity = 0 if split == "train" else 1
    drawn = []
    for number in range(count):
        parts = [draw_part(rng, parity) for _ in range(rng.choice((1, 1, 2)))]
        query = " Then ".join(text for text, _ in parts)
        drawn.append(Scenario(id=f"{split}-{number}", query=f"{query} ({number})", calls=tuple(call for _, call in parts)))
    return tuple(drawn)


def draw_part(rng: random.Random, parity: int) -> tuple[str, ToolCall]:
    """Return a request and its reference call. Training has even values, tests have odd ones."""
    number = 2 * rng.randrange(50) + parity
    match rng.randrange(3):
        case 0:
            name = rng.choice(("brightness", "volume"))
            number = min(number, 48 + parity) if name == "brightness" else number
            return f"Set {name} to {number}.", call("set_setting", name=name, value=str(number))
        case 1:
            time = f"{rng.randrange(24):02}:{number % 60:02}"
            return f"Wake me at {time}.", call("create_alarm", time=time)
    app, is_on = rng.choice(("mail", "maps", "music", "chess")), rng.random() < 0.5
    verb = "on" if is_on else "off"
    return f"Turn {verb} notifications of {app}.", call("set_notifications", app=app, is_on=is_on)


def call(tool: str, **arguments: Any) -> ToolCall:
    """Return a call."""
    return ToolCall(name=tool, arguments=arguments)


def write_project(path: Path, tasks: tuple[Scenario, ...]) -> Project:
    """Write the sample with these tasks, a short policy and the tools that the tasks need: short prompts train faster."""
    write_sample("device", path)
    head, *functions = (path / "tools.py").read_text().split("\n\n\ndef ")
    kept = [each for each in functions if each.startswith(("_", *TOOLS))]
    (path / "tools.py").write_text("\n\n\ndef ".join([head, *kept]))
    (path / "policy.md").write_text("You control the settings of a phone. Call the tools, then say: Done.")
    for file in (path / "scenarios").iterdir():
        file.unlink()
    (path / "scenarios" / "tasks.jsonl").write_text("".join(json.dumps(task.to_dict()) + "\n" for task in tasks))
    return read_project(path)


def annotate(project: Project, folder: Path) -> tuple[Path, Path]:
    """Run the model with mistakes on each task, correct its wrong steps, and return the exported files."""
    database, pool = Database(folder / "items.sqlite", [TREES]), ToolPool(project, size=1)
    store = TreeStore(database)
    wrong, right = ScriptedModel(project, mistakes=MISTAKES), ScriptedModel(project)
    for scenario in project.scenarios:
        item = Item(store, store.create(project, pool.definitions, scenario, None), pool)
        item.query(scenario.query, new_change())
        list(run_agent(item, wrong, new_change(), max_steps=8))
        for number, reference in enumerate(scenario.calls):
            step = item.tree.path()[1 + number]
            if step.content.calls != (reference,):
                item.edit(step.id, Content(kind=NodeKind.STEP, calls=(reference,)), new_change(), reason="wrong")
                list(run_agent(item, wrong if number + 1 < len(scenario.calls) else right, new_change(), max_steps=8))
        last = item.tree.path()[-1]
        item.edit(last.id, Content(kind=NodeKind.ANSWER, text="Done."), new_change())
        item.set_done(True, new_change())
    files = []
    for target in ("sft", "preferences"):
        files.append(folder / f"{target}.jsonl")
        report = export(store, project, pool, target, files[-1])
        print(f"{target}: {report.lines} lines, {len(report.skipped)} items left out", file=sys.stderr)
    pool.close()
    database.close()
    return files[0], files[1]


def new_change() -> Change:
    """Return a change with a key of its own."""
    return Change(key=f"change{next(_keys)}")


def load_policy() -> Policy:
    """Return nano with a new adapter."""
    bundle = open_bundle("nano")
    decoder = load_decoder(bundle)
    start_at_zero(decoder, LoRAConfig(rank=16, alpha=16.0))
    compiler = GrammarCompiler(bundle.tokenizer, bundle.template)
    return Policy(decoder, bundle.tokenizer, bundle.template, TorchEngine(decoder), compiler)


def encoded(policy: Policy, line: dict[str, Any]) -> tuple[list[int], list[bool]]:
    """Return the tokens of a conversation and whether each one is learned."""
    found = policy.template.encode_conversation(policy.tokenizer, Conversation.from_dict(line))
    return list(found.tokens), list(found.loss_mask)


def encoded_pair(policy: Policy, preference: Any) -> tuple[list[int], list[int], int]:
    """Return the tokens with the chosen answer, with the rejected one, and the length of the prompt."""
    both = [encode_answer(preference.prompt, answer, policy.tokenizer, policy.template) for answer in preference.answers]
    return both[0][1], both[1][1], len(both[0][0])


def fine_tune(decoder: Decoder, examples: list[tuple[list[int], list[bool]]], steps: int) -> None:
    """Train the adapter on the assistant's tokens."""
    optimizer, rng = torch.optim.AdamW(trainable(decoder), lr=SFT_RATE), random.Random(1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = SFT_RATE * min(1.0, (step + 1) / 5) * (1 - step / steps)
        tokens, mask = rng.choice(examples)
        log_probabilities = log_probs(decoder, tokens)
        learned = torch.tensor(mask[1:])
        loss = -(log_probabilities * learned).sum() / learned.sum()
        update(optimizer, loss)


def learn_preferences(decoder: Decoder, pairs: list[tuple[list[int], list[int], int]], steps: int) -> None:
    """Train the adapter with direct preference optimization (arXiv 2305.18290); the reference is the model before it."""
    if not pairs:
        return
    rng = random.Random(2)
    pairs = rng.sample(pairs, min(len(pairs), 4 * steps))
    with torch.no_grad():
        margins = [float(margin(decoder, pair)) for pair in pairs]
    optimizer = torch.optim.AdamW(trainable(decoder), lr=PREFERENCE_RATE)
    for _ in range(steps):
        index = rng.randrange(len(pairs))
        update(optimizer, -F.logsigmoid(BETA * (margin(decoder, pairs[index]) - margins[index])))


def margin(decoder: Decoder, pair: tuple[list[int], list[int], int]) -> Tensor:
    """Return how much more probable the chosen answer is than the rejected one, in nats."""
    chosen, rejected, start = pair
    return log_probs(decoder, chosen)[start - 1 :].sum() - log_probs(decoder, rejected)[start - 1 :].sum()


def log_probs(decoder: Decoder, tokens: list[int]) -> Tensor:
    """Return the log probability of each token after the first, [S - 1]."""
    tokens_BS = torch.tensor([tokens])
    logits_SV = decoder(tokens_BS)[0, :-1].float()
    return torch.log_softmax(logits_SV, -1).gather(1, tokens_BS[0, 1:, None])[:, 0]


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Make one step."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([each for group in optimizer.param_groups for each in group["params"]], 1.0)
    optimizer.step()


def trainable(decoder: Decoder) -> list[torch.nn.Parameter]:
    """Return the adapter's parameters."""
    return [parameter for parameter in decoder.parameters() if parameter.requires_grad]


@dataclass(frozen=True)
class Graded:
    """Hold what a model got right in one held-out task.

    Attributes:
        tools: for each reference call, whether the model called that tool next.
        arguments: for each argument of those calls, whether the tool and the value were right.
        calls: for each reference call, whether the turn was exactly this call.
        is_solved: every turn was right, and then the model answered: the final state is that of the reference.
    """

    tools: tuple[bool, ...]
    arguments: tuple[bool, ...]
    calls: tuple[bool, ...]
    is_solved: bool

    @property
    def parts(self) -> dict[str, tuple[bool, ...]]:
        """The answers by score; `fields` are tools and arguments together."""
        found = {"fields": (*self.tools, *self.arguments), "tools": self.tools, "arguments": self.arguments}
        return found | {"calls": self.calls, "tasks": (self.is_solved,)}


def grade(policy: Policy, project: Project, tasks: tuple[Scenario, ...]) -> list[Graded]:
    """Let the model write the next turn after each part of the reference calls."""
    environment = ProjectEnvironment(project)
    with torch.no_grad():
        return [grade_task(policy, project, environment, task) for task in tasks]


def grade_task(policy: Policy, project: Project, environment: ProjectEnvironment, task: Scenario) -> Graded:
    """Return what the model got right in one task. Its history is the reference, whatever the model wrote before."""
    environment.reset()
    tools = environment.definitions
    turns: list[Turn] = [Instructions(text=project.policy, tools=tools), UserTurn(text=task.query)]
    right_tools, right_arguments, right_calls = [], [], []
    for reference in task.calls:
        turn = next_turn(policy, turns, tools, MAX_TOKENS)  # type: ignore[arg-type]
        made = turn.tool_calls if turn is not None else ()
        is_tool = bool(made) and made[0].name == reference.name
        right_tools.append(is_tool)
        for name, value in reference.arguments.items():
            right_arguments.append(is_tool and name in made[0].arguments and made[0].arguments[name] == value)
        right_calls.append(made == (reference,))
        turns += [AssistantTurn(tool_calls=(reference,)), ToolTurn(name=reference.name, text=environment.call(reference))]
    is_solved = all(right_calls)
    if is_solved:
        turn = next_turn(policy, turns, tools, MAX_TOKENS)  # type: ignore[arg-type]
        is_solved = turn is not None and not turn.tool_calls
    return Graded(tuple(right_tools), tuple(right_arguments), tuple(right_calls), is_solved)


def shares(graded: list[Graded]) -> dict[str, dict[str, Any]]:
    """Return each score with its 95 % interval, from resampled tasks."""
    return {name: {"share": share(graded, name), "interval": resampled([graded], name)} for name in graded[0].parts}


def difference(before: list[Graded], after: list[Graded]) -> dict[str, Any]:
    """Return the change of the fields with its 95 % interval, from resampled tasks: both have the same ones."""
    change = round(share(after, SCORE) - share(before, SCORE), 4)
    return {"change": change, "interval": resampled([before, after], SCORE)}


def share(graded: list[Graded], name: str) -> float:
    """Return the share of right answers."""
    found = [each for task in graded for each in task.parts[name]]
    return round(sum(found) / len(found), 4)


def resampled(stages: list[list[Graded]], name: str) -> list[float]:
    """Return the 95 % interval of the last stage's share, or of its difference from the first one if there are two."""
    rng, found = random.Random(3), []
    for _ in range(RESAMPLES):
        drawn = rng.choices(range(len(stages[0])), k=len(stages[0]))
        values = [share([stage[index] for index in drawn], name) for stage in stages]
        found.append(values[-1] - values[0] if len(values) > 1 else values[0])
    found.sort()
    return [round(found[int(quantile * RESAMPLES)], 4) for quantile in (0.025, 0.975)]


if __name__ == "__main__":
    main()
