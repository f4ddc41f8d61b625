"""Changes of an item: edits, branches, undo, conflicts, and a random test against a replay from nothing."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from project_folders import add_starts, write_counters
from sqlalchemy.exc import StatementError
from tree_items import answer, change, new_item, open_store, step

from openafm.annotation.database import Database, DatabaseError, Schema
from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import Project, read_project
from openafm.annotation.environments.replay import ProjectEnvironment
from openafm.annotation.errors import AnnotationError
from openafm.annotation.trees import tables as tree_tables
from openafm.annotation.trees.item import Change, Item
from openafm.annotation.trees.store import ConflictError, TreeStore, open_trees
from openafm.annotation.trees.tree import ErrorKind, Event, EventKind, fold


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_counters(tmp_path_factory.mktemp("projects") / "counters")


@pytest.fixture(scope="module")
def tools(project: Project) -> Iterator[tuple[TreeStore, ToolPool]]:
    with open_store(project, project.path / "items.sqlite") as opened:
        yield opened


@pytest.fixture
def item(project: Project, tools: tuple[TreeStore, ToolPool]) -> Item:
    return new_item(project, *tools)


def counters(item: Item, node: int | None = None) -> dict[str, int]:
    rows = item.tables(item.tree.head if node is None else node)["counters"]
    return {row["id"]: row["value"] for row in rows if row["id"] != "c0"}


def fill(item: Item) -> list[int]:
    """Add a query, three steps and an answer; return their ids."""
    item.query("Count.", change())
    for key, value in (("a", 1), ("b", 10), ("a", 100)):
        item.step(step("add", key=key, value=value), change(), model="m")
    item.answer("Done.", change(), model="m")
    return [node.id for node in item.tree.path()]


def test_revert_restores_the_state_of_any_node(item: Item) -> None:
    nodes = fill(item)
    assert counters(item) == {"a": 101, "b": 10}
    for node, expected in (
        (nodes[1], {"a": 1}),
        (nodes[4], {"a": 101, "b": 10}),
        (nodes[0], {}),
        (nodes[2], {"a": 1, "b": 10}),
    ):
        item.revert(node, change(), reason="try again")
        assert counters(item) == expected
    item.step(step("add", key="b", value=5), change())
    assert counters(item) == {"a": 1, "b": 15}
    assert item.tree.reasons[nodes[3]].kind == "reverted"
    assert len(item.tree.children(nodes[2])) == 2


def test_an_edit_opens_a_branch_and_can_keep_the_rest(item: Item) -> None:
    nodes = fill(item)
    item.edit(nodes[1], step("add", key="a", value=7), change(), keeps_rest=True, reason="wrong value")
    assert counters(item) == {"a": 107, "b": 10}
    assert [node.kind for node in item.tree.path()] == ["query", "step", "step", "step", "answer"]
    assert item.tree.reasons == {nodes[1]: item.tree.reasons[nodes[1]]}
    assert (item.tree.reasons[nodes[1]].kind, item.tree.reasons[nodes[1]].text) == ("edited", "wrong value")
    assert counters(item, nodes[4]) == {"a": 101, "b": 10}
    item.edit(item.tree.path()[2].id, step("remove", key="a"), change())
    assert (counters(item), len(item.tree.path())) == ({}, 3)


def test_steps_are_inserted_and_deleted(item: Item) -> None:
    nodes = fill(item)
    item.delete(nodes[2], change(), reason="not needed")
    assert (counters(item), len(item.tree.path())) == ({"a": 101}, 4)
    item.insert(item.tree.path()[1].id, step("add", key="c", value=3), change())
    assert counters(item) == {"a": 101, "c": 3}
    assert item.tree.reasons[nodes[2]].kind == "deleted"
    item.delete(item.tree.head, change())
    assert item.tree.path()[-1].kind == "step"


def test_undo_and_redo_change_nothing_but_the_view(item: Item) -> None:
    nodes = fill(item)
    item.flag(nodes[1], ErrorKind.WRONG_ARGUMENTS, True, change())
    item.edit(nodes[1], step("add", key="a", value=7), change(), keeps_rest=True)
    item.set_done(True, change())
    edited = item.tree.path()
    for _ in range(3):
        item.undo(change())
    assert ([n.id for n in item.tree.path()], item.tree.is_done, item.tree.flags.get(nodes[1]) or set()) == (
        nodes,
        False,
        set(),
    )
    assert item.tree.reasons == {}
    for _ in range(3):
        item.redo(change())
    assert ([n.id for n in item.tree.path()], item.tree.is_done) == ([n.id for n in edited], True)
    assert item.tree.flags[nodes[1]] == {"wrong_arguments"}
    with pytest.raises(AnnotationError, match="nothing to redo"):
        item.redo(change())


def test_a_tree_that_was_read_does_not_change(item: Item) -> None:
    nodes = fill(item)
    item.flag(nodes[1], ErrorKind.WRONG_TOOL, True, change())
    read = item.tree
    before = copy.deepcopy(read)
    item.flag(nodes[1], ErrorKind.POLICY, True, change())
    item.comment(0, "looked at", change())
    item.revert(nodes[1], change())
    item.step(step("add", key="z"), change())
    item.undo(change())
    assert read == before
    assert item.tree != before


def test_wrong_changes_are_refused_and_store_nothing(item: Item) -> None:
    nodes = fill(item)
    sequence = item.tree.sequence
    for wrong, message in (
        (lambda: item.edit(nodes[1], step("add", key=3), change()), "do not fit at"),
        (lambda: item.edit(nodes[1], step("fly"), change()), "there is no tool 'fly'"),
        (lambda: item.edit(nodes[1], item.tree.node(nodes[1]).content, change()), "equals the old one"),
        (lambda: item.edit(999, answer("x"), change()), "no step 999"),
        (lambda: item.delete(nodes[0], change()), "at the beginning comes a query"),
        (lambda: item.answer("x", change()), "after a answer comes a query"),
        (lambda: item.query("", change()), "the query is empty"),
        (lambda: item.query("x" * 20_001, change()), "20,000 are allowed"),
        (lambda: item.comment(999, "x", change()), "no step 999"),
        (lambda: item.comment(0, " ", change()), "comment is empty"),
    ):
        with pytest.raises(AnnotationError, match=message):
            wrong()
    item.revert(nodes[2], change())
    with pytest.raises(AnnotationError, match="no answer at its end"):
        item.set_done(True, change())
    with pytest.raises(AnnotationError, match="not on the main stem"):
        item.edit(nodes[3], step("read"), change(), keeps_rest=True)
    assert item.tree.sequence == sequence + 1


def test_a_change_is_made_once_and_conflicts_are_typed(
    project: Project, tools: tuple[TreeStore, ToolPool], item: Item
) -> None:
    mine = change(item)
    item.query("Count.", mine)
    item.query("Count.", mine)
    assert len(item.tree.nodes) == 1
    other = Item(tools[0], item.id, tools[1])
    stale = Change(key="stale", sequence=item.tree.sequence)
    other.answer("Done.", change(other))
    with pytest.raises(ConflictError):
        item.answer("Mine.", stale)
    assert [node.content.text for node in item.tree.path()] == ["Count.", "Done."]
    assert fold(tools[0].events(item.id)).head == item.tree.head


def with_starts(project: Project) -> Project:
    """Add scenarios that start from other states: rows in a file, and in the scenario."""
    add_starts(project.path)
    return read_project(project.path)


class RandomChanges(RuleBasedStateMachine):
    """Random changes of an item. After each one, the state equals a replay of the main stem from nothing."""

    project: Project
    tools: tuple[TreeStore, ToolPool]

    def __init__(self) -> None:
        super().__init__()
        self.num_nodes = 0

    @initialize(scenario=st.integers(0, 2))
    def begin(self, scenario: int) -> None:
        """Create an item that starts from one of several states."""
        self.item = new_item(self.project, *self.tools, scenario=scenario)
        self.environment = ProjectEnvironment(self.project, self.project.scenarios[scenario])

    @property
    def may_step(self) -> bool:
        path = self.item.tree.path()
        return bool(path) and path[-1].kind != "answer"

    def draw_step(self, kind: int, key: int) -> object:
        return (
            step("add", key=f"k{key}", value=key + 1),
            step("remove", key=f"k{key}"),
            step("draw"),
            step("misbehave", how="raise"),
        )[kind]

    @precondition(lambda self: not self.may_step)
    @rule()
    def query(self) -> None:
        self.item.query("Count.", change())

    @precondition(lambda self: self.may_step)
    @rule(kind=st.integers(0, 3), key=st.integers(0, 2))
    def step(self, kind: int, key: int) -> None:
        self.item.step(self.draw_step(kind, key), change())

    @precondition(lambda self: self.may_step)
    @rule()
    def answer(self) -> None:
        self.item.answer("Done.", change())

    @rule(data=st.data())
    def revert(self, data: st.DataObject) -> None:
        self.item.revert(data.draw(st.sampled_from([0, *self.item.tree.nodes])), change())

    @rule(data=st.data(), kind=st.integers(0, 2), key=st.integers(0, 2), keeps=st.booleans(), act=st.integers(0, 2))
    def edit(self, data: st.DataObject, kind: int, key: int, keeps: bool, act: int) -> None:
        steps = [node.id for node in self.item.tree.path() if node.kind == "step"]
        if not steps:
            return
        node, content = data.draw(st.sampled_from(steps)), self.draw_step(kind, key)
        if act == 0 and self.item.tree.node(node).content != content:
            self.item.edit(node, content, change(), keeps_rest=keeps)
        elif act == 1:
            self.item.insert(node, content, change(), keeps_rest=keeps)
        else:
            self.item.delete(node, change(), keeps_rest=keeps)

    @rule(redoes=st.booleans())
    def undo(self, redoes: bool) -> None:
        if redoes and self.item.tree.can_redo:
            self.item.redo(change())
        elif not redoes and self.item.tree.can_undo:
            self.item.undo(change())

    @invariant()
    def equals_a_replay(self) -> None:
        """Check the whole state every few changes, to save time."""
        if self.item.tree.sequence % 5 == 0:
            self.check()

    def check(self) -> None:
        path = self.item.tree.path()
        assert len(self.item.tree.nodes) >= self.num_nodes  # nothing is lost
        self.num_nodes = len(self.item.tree.nodes)
        self.environment.reset()
        texts = [self.environment.call(call) for node in path for call in node.content.calls]
        assert texts == [result["text"] for node in path for result in node.results]
        assert self.environment.state == self.item.tables(self.item.tree.head)

    def teardown(self) -> None:
        self.check()
        store = TreeStore(self.tools[0].database)  # with nothing in memory
        assert fold(store.events(self.item.id)) == self.item.tree
        for node in (0, *self.item.tree.nodes):
            state = self.item.tree.state(node)
            assert store.states.lineage(state).deltas == self.tools[0].states.lineage(state).deltas


def test_random_changes_equal_a_replay(project: Project, tools: tuple[TreeStore, ToolPool]) -> None:
    RandomChanges.project, RandomChanges.tools = with_starts(project), tools
    run_random(examples=6, steps=20)


@pytest.mark.slow
def test_ten_thousand_random_changes_equal_a_replay(project: Project, tools: tuple[TreeStore, ToolPool]) -> None:
    RandomChanges.project, RandomChanges.tools = with_starts(project), tools
    run_random(examples=250, steps=40)


def run_random(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        RandomChanges,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


def test_items_of_different_starting_states_share_a_process(project: Project, tools: tuple[TreeStore, ToolPool]) -> None:
    project = with_starts(project)
    items = [new_item(project, *tools, scenario=number) for number in range(3)]
    assert [counters(item) for item in items] == [{}, {"k0": 7, "k1": 8}, {}]
    for item in items:
        item.query("Count.", change())
    for value in (1, 2):
        for item in items:  # each call finds the state of another item in the process
            item.step(step("add", key="k0", value=value), change())
    assert [counters(item) for item in items] == [{"k0": 3}, {"k0": 10, "k1": 8}, {"k0": 3}]


def test_two_servers_may_use_one_database(project: Project, tmp_path: Path) -> None:
    with open_store(project, tmp_path / "a.sqlite") as (store, pool):
        first = new_item(project, store, pool)
        with open_store(project, tmp_path / "a.sqlite", pool) as (other_store, _):
            second = Item(other_store, first.id, pool)
            first.query("Count.", change())
            second.refresh()
            second.step(step("add", key="z"), change(second))
            assert first.refresh().head == second.tree.head
            assert counters(first) == {"z": 1}


@pytest.mark.parametrize("value", ["\ud800", float("nan"), float("inf")])
def test_values_that_no_reply_could_hold_are_not_stored(item: Item, value: object) -> None:
    item.query("Count.", change())
    with pytest.raises(AnnotationError, match="cannot be stored as JSON"):
        item.step(step("add", key=value), change())
    with pytest.raises(AnnotationError, match="not valid Unicode"):
        item.comment(0, "half \ud800", change())
    assert item.tree.sequence == 1


def test_a_done_mark_is_stored_with_its_event(
    item: Item, tools: tuple[TreeStore, ToolPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(item)
    transactions = []
    writing = tools[0].database.writing
    monkeypatch.setattr(tools[0].database, "writing", lambda: transactions.append(1) or writing())
    for act, is_done in ((lambda: item.set_done(True, change()), True), (lambda: item.undo(change()), False)):
        act()
        assert [each["is_done"] for each in tools[0].items() if each["id"] == item.id] == [is_done]
    assert len(transactions) == 2


def test_a_database_of_another_project_is_refused(project: Project, tmp_path: Path) -> None:
    other, place = write_counters(tmp_path / "other"), tmp_path / "shared.sqlite"
    first = Schema(name="trees", tables=tree_tables.TREES.tables)  # version 1, without the table of the project
    old = Database(place, [first])
    with old.writing() as connection:
        tree_tables.project.drop(connection)
    old.close()
    store = TreeStore(Database(place, [tree_tables.TREES]))
    store.claim(project)
    store.claim(replace(project, path=tmp_path / "renamed", config=replace(project.config, id="counters")))
    with pytest.raises(DatabaseError, match="the items of the project 'counters', not of 'other'"):
        store.claim(other)
    store.database.close()


def test_projects_do_not_share_a_postgres_database(project: Project, tmp_path: Path, postgres_url: str) -> None:
    open_trees(project, postgres_url, [tree_tables.TREES]).database.close()
    open_trees(project, postgres_url, [tree_tables.TREES]).database.close()
    with pytest.raises(DatabaseError, match="not of 'other'"):
        open_trees(write_counters(tmp_path / "other"), postgres_url, [tree_tables.TREES])


def test_changes_that_wait_for_the_disk_take_one_transaction(
    project: Project, tools: tuple[TreeStore, ToolPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [new_item(project, *tools) for _ in range(5)]
    changes = [partial(item.comment, 0, "seen", change()) for item in items]
    assert run_together(tools[0], changes, monkeypatch) == 2  # the first one's, and one for those that waited for it
    assert [item.refresh().sequence for item in items] == [1] * 5


def test_an_invalid_change_fails_without_those_that_wait_with_it(
    project: Project, tools: tuple[TreeStore, ToolPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = tools
    items = [new_item(project, *tools) for _ in range(5)]
    errors: dict[int, BaseException] = {}

    def append(number: int, sequence: int = 1, text: object = "seen") -> None:
        payload = {"node": 0, "text": text}
        event = Event(sequence=sequence, group=f"batch{number}", kind=EventKind.COMMENT, payload=payload)
        try:
            store.append(items[number].id, [event], is_done=False)
        except (ConflictError, StatementError) as error:
            errors[number] = error

    special = {2: {"text": object()}, 3: {"sequence": 7}}  # not JSON; a gap in the log
    changes = [partial(append, number, **special.get(number, {})) for number in range(5)]
    assert run_together(store, changes, monkeypatch) == 1 + 1 + 4  # the batch, and then each of it alone
    assert {number: type(error) for number, error in errors.items()} == {2: StatementError, 3: ConflictError}
    assert [item.refresh().sequence for item in items] == [1, 1, 0, 0, 1]


def run_together(store: TreeStore, changes: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run changes in threads, while another transaction holds the database; return the number of transactions."""
    transactions: list[int] = []
    writing = store.database.writing
    monkeypatch.setattr(store.database, "writing", lambda: transactions.append(1) or writing())
    threads = [threading.Thread(target=each) for each in changes]
    with writing():
        threads[0].start()
        wait_until(lambda: len(transactions) == 1)
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: len(store._waiting) == len(threads) - 1)
    for thread in threads:
        thread.join(60)
    return len(transactions)


def wait_until(is_met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_met():
        assert time.monotonic() < deadline
        time.sleep(0.002)
