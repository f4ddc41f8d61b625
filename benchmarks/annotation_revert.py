"""Reverts of a trajectory: time on a 10 MB database, bytes of a snapshot, and random changes against a replay from nothing.

    python benchmarks/annotation_revert.py --json [--quick]

A revert is timed until the first tool call in the old state has returned; `server_cpu_ms` is its CPU time without the tool
process. The database, its project and the tools are written here. `mismatches` counts random changes (edits, reverts,
inserts, deletes, undo, redo) after which the rows differ from those of a replay of the main stem from the initial state.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shared.reporting import benchmark_parser, hand_in

from openafm.annotation.database import Database
from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import Project, read_project
from openafm.annotation.environments.replay import ProjectEnvironment
from openafm.annotation.errors import AnnotationError
from openafm.annotation.trees.item import Change, Item
from openafm.annotation.trees.nodes import Content, NodeKind
from openafm.annotation.trees.store import TreeStore
from openafm.annotation.trees.tables import TREES
from openafm.tokenizer.conversation import ToolCall

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "annotation_revert.json"
TOOLS = '''
from openafm.annotation.environments.world import World

def move(world: World, first: int, second: int, third: int) -> int:
    """Change three rows."""
    for row in (first, second, third):
        world.run("UPDATE stock SET quantity = quantity + 1 WHERE id = ?", row)
    return first

def read(world: World, row: int) -> int:
    """Return the quantity of a row."""
    return world.row("SELECT quantity FROM stock WHERE id = ?", row)["quantity"]
'''
ROW_BYTES = 100
_keys = itertools.count()


def main() -> None:
    """Run the benchmark from the command line."""
    arguments = benchmark_parser(__doc__, "50 reverts and 300 random changes").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure_reverts(Path(folder), num_reverts=50 if arguments.quick else 300)
        found |= compare_random_changes(Path(folder), 300 if arguments.quick else 10_000)
    hand_in({"figures": found}, REPORT, arguments)


def measure_reverts(folder: Path, *, num_reverts: int, num_turns: int = 200, megabytes: int = 10) -> dict[str, Any]:
    """Return times of reverts in a trajectory of `num_turns` steps."""
    num_rows = megabytes * 1_000_000 // (ROW_BYTES + 14)
    project = write_project(folder / "large", num_rows)
    store, pool = open_project(project)
    rng = random.Random(1)
    item = Item(store, store.create(project, pool.definitions, project.scenarios[0], None), pool)
    item.query("Move the stock.", new_change())
    for _ in range(num_turns):
        rows = [rng.randrange(num_rows) for _ in range(3)]
        item.step(move(*rows), new_change())
    progress(f"{num_turns} turns on {len(project.seed) / 1e6:.1f} MB; {num_reverts} reverts")
    snapshot_bytes = store.states.total_bytes() / num_turns
    nodes = [node.id for node in item.tree.path()]
    seconds = []
    cpu_started = time.process_time()
    for _ in range(num_reverts):
        node = rng.choice(nodes)
        started = time.perf_counter()
        item.revert(node, new_change())
        tree = item.tree
        read = [ToolCall(name="read", arguments={"row": 1})]
        list(pool.run(read, tree.state(tree.head), store.states.lineage, tree.num_calls(tree.head)))
        seconds.append(time.perf_counter() - started)
    cpu_seconds = time.process_time() - cpu_started
    close(store, pool)
    seconds.sort()
    return {
        "database_bytes": len(project.seed),
        "turns": num_turns,
        "snapshot_bytes_per_turn": round(snapshot_bytes),
        "server_cpu_ms": round(1000 * cpu_seconds / num_reverts, 1),
        "p50_ms": round(1000 * seconds[len(seconds) // 2], 1),
        "p99_ms": round(1000 * seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))], 1),
    }


def compare_random_changes(folder: Path, count: int, *, per_item: int = 50) -> dict[str, int]:
    """Return the number of random changes, and of those after which the rows differ from a replay."""
    project = write_project(folder / "small", 20)
    store, pool = open_project(project)
    environment, rng = ProjectEnvironment(project), random.Random(2)
    operations = mismatches = 0
    while operations < count:
        item = Item(store, store.create(project, pool.definitions, project.scenarios[0], None), pool)
        item.query("Move the stock.", new_change())
        for _ in range(min(per_item, count - operations)):
            change_randomly(item, rng)
            operations += 1
            environment.reset()
            for node in item.tree.path():
                for call in node.content.calls:
                    environment.call(call)
            mismatches += environment.state != item.tables(item.tree.head)
        progress(f"{operations} random changes, {mismatches} mismatches")
    close(store, pool)
    return {"operations": operations, "mismatches": mismatches}


def change_randomly(item: Item, rng: random.Random) -> None:
    """Make one random change. Changes that do not fit the tree are refused by the item."""
    path = item.tree.path()
    steps = [node.id for node in path if node.kind is NodeKind.STEP]
    step = move(*(rng.randrange(20) for _ in range(3)))
    try:
        match rng.randrange(7):
            case 0:
                item.revert(rng.choice([0, *item.tree.nodes]), new_change())
            case 1 if steps:
                item.edit(rng.choice(steps), step, new_change(), keeps_rest=rng.random() < 0.5)
            case 2 if steps:
                item.insert(rng.choice(steps), step, new_change(), keeps_rest=rng.random() < 0.5)
            case 3 if steps:
                item.delete(rng.choice(steps), new_change())
            case 4:
                (item.undo if rng.random() < 0.6 else item.redo)(new_change())
            case _ if not path:
                item.query("Move the stock.", new_change())
            case _:
                item.step(step, new_change())
    except AnnotationError:
        item.refresh()


def move(first: int, second: int, third: int) -> Content:
    """Return a step that changes three rows."""
    arguments = {"first": first, "second": second, "third": third}
    return Content(kind=NodeKind.STEP, calls=(ToolCall(name="move", arguments=arguments),))


def new_change() -> Change:
    """Return a change with a key of its own."""
    return Change(key=f"change{next(_keys)}")


def write_project(path: Path, num_rows: int) -> Project:
    """Write a project whose database has `num_rows` rows."""
    (path / "state").mkdir(parents=True)
    (path / "scenarios").mkdir()
    (path / "project.toml").write_text('title = "Stock"\n')
    (path / "tools.py").write_text(TOOLS)
    (path / "scenarios" / "one.jsonl").write_text('{"id": "one", "query": "Move the stock."}\n')
    (path / "state" / "stock.sql").write_text(
        "CREATE TABLE stock (id INTEGER PRIMARY KEY, text TEXT, quantity INTEGER);\n"
        f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {num_rows - 1}) "
        f"INSERT INTO stock SELECT i, hex(zeroblob({ROW_BYTES // 2})), i FROM n;\n"
    )
    return read_project(path)


def open_project(project: Project) -> tuple[TreeStore, ToolPool]:
    """Return the store and the tool process of a project."""
    return TreeStore(Database(project.path / "annotations.sqlite", [TREES])), ToolPool(project, size=1)


def close(store: TreeStore, pool: ToolPool) -> None:
    """Close a project."""
    pool.close()
    store.database.close()


def progress(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
