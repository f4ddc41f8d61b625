"""Replay the nodes of a tree from the initial state: exports and imports check that the tools really give the results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.process import Lineage, state_key
from openafm.annotation.trees.nodes import Node, result_dicts
from openafm.annotation.trees.states import NewState


class Replay:
    """Run the calls of nodes, each in the state after its parent.

    Args:
        pool: runs the calls.
        seed: the image of the initial state.
    """

    def __init__(self, pool: ToolPool, seed: bytes) -> None:
        self._pool, self._seed = pool, seed
        self.states: dict[str, NewState] = {}
        """The states after calls, by key."""
        self.keys = {0: state_key(seed)}
        """The key of the state after each node."""
        self.results: dict[int, tuple[dict[str, Any], ...]] = {}
        """The results of the calls of each node."""

    def run(self, node: Node, num_calls: int) -> str | None:
        """Run the calls of a node, after that of its parent; return how the results differ, None if they are equal.

        Args:
            num_calls: the calls before the node in its trajectory.
        """
        state, problem = self.keys[node.parent], None
        results = self._pool.run(node.content.calls, state, self._lineage, num_calls)
        recorded, found = node.results, []
        if len(recorded) != len(node.content.calls):
            return f"step {node.id} has {len(node.content.calls)} calls and {len(recorded)} results"
        for call, before, (result, after) in zip(node.content.calls, recorded, results, strict=True):
            if result.delta:
                self.states[after] = NewState(key=after, parent=state, delta=result.delta)
            state = after
            found.append(result)
            if problem is None and (result.text, result.problem.value) != (before.get("text"), before.get("problem")):
                recorded_text = str(before.get("text"))
                problem = f"step {node.id}, {call.name}: the tool returns {result.text:.200}, not {recorded_text:.200}"
        self.keys[node.id], self.results[node.id] = state, result_dicts(found)
        return problem

    def tables(self, node: int) -> dict[str, list[dict[str, Any]]]:
        """Return all rows after a node that was run; 0 is the beginning."""
        return self._pool.tables(self.keys[node], self._lineage)

    def _lineage(self, key: str) -> Lineage:
        deltas = []
        while key in self.states:
            deltas.append(self.states[key].delta)
            key = self.states[key].parent
        return Lineage(base=key, image=lambda: self._seed, deltas=tuple(deltas[::-1]))


def replay_path(pool: ToolPool, seed: bytes, path: Iterable[Node]) -> str | None:
    """Replay a trajectory; return the first difference, None if every result is equal."""
    replay, num_calls = Replay(pool, seed), 0
    for node in path:
        problem = replay.run(node, num_calls)
        if problem is not None:
            return problem
        num_calls += len(node.content.calls)
    return None
