"""Small projects that tests write."""

from __future__ import annotations

from pathlib import Path

from openafm.annotation.environments.project import Project, read_project, write_sample

TOOLS = '''
import time
from typing import Any
from openafm.annotation.environments.world import ToolError, World

def add(world: World, key: str, value: int = 1) -> dict[str, Any]:
    """Add to a counter."""
    world.run("INSERT INTO counters VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET value = value + excluded.value", key, value)
    return world.row("SELECT * FROM counters WHERE id = ?", key)

def remove(world: World, key: str) -> str:
    """Remove a counter."""
    if not world.run("DELETE FROM counters WHERE id = ?", key):
        raise ToolError(f"there is no counter {key}")
    return "removed"

def draw(world: World) -> list[Any]:
    """Store a random number and the time."""
    number = world.random.randrange(10**6)
    world.run("INSERT OR REPLACE INTO counters VALUES ('drawn', ?)", number)
    return [number, world.now.isoformat()]

def read(world: World) -> list[dict[str, Any]]:
    """Return the counters."""
    return world.rows("SELECT * FROM counters ORDER BY id")

def misbehave(world: World, how: str, items: list[int] = []) -> Any:
    """Do what tools must not do."""
    world.run("INSERT OR REPLACE INTO counters VALUES ('bad', 1)")
    if how == "raise": return 1 / 0
    if how == "exit": raise SystemExit(3)
    if how == "sleep": time.sleep(60)
    if how == "loop":
        while True: pass
    if how == "memory": return len(bytearray(4 << 30))
    if how == "long": return "x" * 10_000_000
    if how == "object": return {1, 2}
    if how == "nan": return float("nan")
    if how == "surrogate": return chr(0xD800)
    if how == "mutate": items.append(1); return "done"
    if how == "schema": world.db.execute("DROP TABLE counters")
    if how == "commit": world.db.commit()
    if how == "attach": world.db.execute("ATTACH '/tmp/x' AS other")
    if how == "kill":
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"
'''


def write_counters(path: Path, *, seconds: float = 5.0, rows: int = 1) -> Project:
    """Write a project with counters and tools that misbehave, and return it."""
    (path / "state").mkdir(parents=True)
    (path / "scenarios").mkdir()
    (path / "project.toml").write_text(f'title = "Counters"\ncall_seconds = {seconds}\n')
    (path / "tools.py").write_text(TOOLS)
    (path / "policy.md").write_text("Count.")
    filler = "".join(f"INSERT INTO counters VALUES ('c{number}', {number});" for number in range(rows))
    (path / "state" / "schema.sql").write_text(f"CREATE TABLE counters (id TEXT PRIMARY KEY, value INTEGER);{filler}")
    (path / "scenarios" / "some.jsonl").write_text('{"id": "one", "query": "Count to one."}\n')
    return read_project(path)


def add_starts(path: Path) -> None:
    """Add two scenarios to a project with counters: one starts from `starts/two.json`, one from rows of its own."""
    (path / "starts").mkdir(exist_ok=True)
    (path / "starts" / "two.json").write_text('{"counters": [{"id": "k0", "value": 7}, {"id": "k1", "value": 8}]}')
    (path / "scenarios" / "starts.jsonl").write_text(
        '{"id": "file", "query": "Count.", "start": "two"}\n{"id": "own", "query": "Count.", "start": {"counters": []}}\n'
    )


def sample_project(name: str, path: Path) -> Project:
    """Write a sample and return it."""
    write_sample(name, path)
    return read_project(path)
