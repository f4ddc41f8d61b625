"""A scripted expert who annotates the scenarios of a project: for demonstrations, tests and `openafm reproduce`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from openafm.annotation.agent import run_agent
from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import Project
from openafm.annotation.scripted_model import ScriptedModel
from openafm.annotation.trees.item import Change, Item
from openafm.annotation.trees.nodes import Content, NodeKind
from openafm.annotation.trees.store import TreeStore

_STEPS_AFTER_THE_LAST = 2


@dataclass(frozen=True, kw_only=True)
class SimulatedAnnotation:
    """Counts of `annotate_scenarios`."""

    items: int
    corrections: int


def annotate_scenarios(project: Project, store: TreeStore, pool: ToolPool, *, mistakes: float = 0.5) -> SimulatedAnnotation:
    """Annotate each scenario once: correct each step of the scripted model that differs from the reference.

    Args:
        mistakes: share of the model's calls with a wrong argument.
    """
    wrong, right = ScriptedModel(project, mistakes=mistakes), ScriptedModel(project)
    keys = (f"simulated-{number}" for number in itertools.count())
    corrections = 0
    for scenario in project.scenarios:
        item = Item(store, store.create(project, pool.definitions, scenario, None), pool)
        most_steps = len(scenario.calls) + _STEPS_AFTER_THE_LAST
        item.query(scenario.query, Change(key=next(keys)))
        list(run_agent(item, wrong, Change(key=next(keys)), max_steps=most_steps))
        for number, reference in enumerate(scenario.calls):
            step = item.tree.path()[1 + number]
            if step.content.calls != (reference,):
                corrections += 1
                corrected = Content(kind=NodeKind.STEP, calls=(reference,))
                item.edit(step.id, corrected, Change(key=next(keys)), reason="a wrong argument")
                model = wrong if number + 1 < len(scenario.calls) else right
                list(run_agent(item, model, Change(key=next(keys)), max_steps=most_steps))
        item.set_done(True, Change(key=next(keys)))
    return SimulatedAnnotation(items=len(project.scenarios), corrections=corrections)
